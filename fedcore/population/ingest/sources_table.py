"""Tables as sources: long counts (client, token, count) or dense rows (client, features...)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import zip_longest

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.blocks import Kind
from fedcore.population.columns import ColumnEntry, bounds_of
from fedcore.population.identifiers import FOLDED, STRIPPED, spelled_or_why
from fedcore.population.ingest.batches import (
    SHOWN_TOKENS,
    Account,
    Batch,
    bad_counts,
    check_record_files,
    count_fault,
    record_ids,
)
from fedcore.population.ingest.client_ids import chosen, plain_names
from fedcore.population.ingest.documents import no_document, second_half
from fedcore.population.ingest.parts import Part, Portion
from fedcore.population.ingest.readings import Kept, Reading, Said, as_written, missing_texts, readings_of
from fedcore.population.ingest.request import IngestRequest, client_of
from fedcore.population.ingest.table_files import As, Piece, TableFile, check_columns
from fedcore.population.ingest.time_stamps import period_of_each
from fedcore.population.periods import BETWEEN
from fedcore.population.words import OTHER, as_words, records_of

SAID = [one.name for one in fields(Said)]  # of a request


@dataclass
class TableSource:
    """Files with named columns.

    counts: columns client, token and count (None: every row counts as one). Tokens are looked up in `vocabulary`, or
            are whole numbers 0 .. features - 1. A vocabulary that ends with `words.OTHER` counts all other tokens there
    words:  the same columns; tokens are kept as words
    rows:   columns client and `wanted_columns` (None: all others), read as `said` or `readings` declares; empty or
            NaN = missing
    client: None: every row is a client, whose id is its file and number (`records`); for rows only
    columns: those that are read in addition to the client's; entries: the columns of rows that they become
    request.na: additional texts to read as missing; a client with such an id is missing
    request.time, kept.calendar: column of the time stamp, and the periods by which clients are split into entries
    request.documents: column of the document, by which each client's rows are split into its halves
    heldout: files of the same form
    """

    files: Sequence[TableFile]
    request: IngestRequest
    kept: Kept = Kept()
    vocabulary: tuple[str, ...] | None = None
    heldout: Sequence[TableFile] = ()
    memory: int = 64 << 20
    progress: Callable[[int, int], None] | None = None
    keyed: bool = True
    dtype: str | None = None
    kind: Kind = field(init=False)
    client: str | None = field(init=False)
    token: str = field(init=False)
    count: str | None = field(init=False)
    names: tuple[str, ...] = field(init=False)
    columns: tuple[str, ...] = field(init=False)
    readings: tuple[Reading, ...] = field(init=False)
    entries: tuple[ColumnEntry, ...] = field(init=False, default=())
    features: int = field(init=False)

    def __post_init__(self) -> None:
        request, there = self.request, self.files[0].names
        self.said = Said(**{name: getattr(request, name) for name in SAID})
        self.readings, self.rule = self.kept.readings, self.kept.rule or STRIPPED
        said = [*self.said.names, *self.said.written]
        tokens = "token" in there and request.columns is None and not self.readings and not said
        self.kind = request.kind or ("counts" if request.token is not None or tokens else "rows")
        self.client, self.token = client_of(request), request.token or "token"
        self.count = request.count or ("count" if self.kind != "rows" and "count" in there else None)
        self.names = tuple(file.name.rpartition("/")[2] for file in self.files)
        columns: Sequence[str] | None = request.columns
        self.features = request.features or 0
        if self.readings and columns is None:
            columns = [reading.of for reading in self.readings]
        if self.kind != "rows":
            self._refuse_what_is_of_rows()
            columns = (self.token,) if self.count is None else (self.token, self.count)
            if self.vocabulary is not None:
                self.features = len(self.vocabulary)
            if self.kind == "words":
                self.features = 1
            if not self.features:
                raise IngestError(
                    "Tokens need a vocabulary, or feature ids a number of features.",
                    "Give vocabulary=FILE or features=N.",
                )
        told = columns is not None
        for file in (*self.files, *self.heldout):
            if columns is None:
                columns = [name for name in file.names if name not in self.keys]
            self._check_client(file)
            check_columns(file, file.name, self.keys)
            check_columns(file, file.name, columns, told)
        self.columns = tuple(columns or ())
        if twice := [name for name, times in Counter(self.columns).items() if times > 1]:
            raise IngestError(f"The column {twice[0]!r} is named twice.", "Name every column once.")
        self._refuse_double("client", self.client, self.columns)
        self._refuse_double("time", self.request.time, (self.client, *self.columns))
        self._refuse_double("document", self.request.documents, (self.client, self.request.time, *self.columns))
        if self.records:
            dealt = self.kept.calendar is not None or self.request.documents is not None
            plain = self.kind == "rows" and not dealt and not self.heldout
            check_record_files([file.name for file in self.files], plain, self.rule)
        if self.kind == "rows":
            self._set_columns()

    def _set_columns(self) -> None:
        if not self.columns:
            raise IngestError(
                f"{self.files[0].name} has no feature column.", "Give at least one column besides the client."
            )
        if not self.readings or self.request.columns is not None or self.said.names:
            self.readings = readings_of(self.columns, self.said)
        else:
            self.readings = as_written(self.readings, self.said)
        self.entries = tuple(entry for reading in self.readings for entry in reading.entries)
        if self.request.features not in (None, len(self.entries)):
            raise IngestError(
                f"The files have {len(self.entries)} feature columns, not {self.request.features}.", "Name the columns."
            )
        self.features = len(self.entries)
        self.dtype = self.request.dtype or "float64"
        self._bounds = bounds_of(self.entries)

    def _refuse_what_is_of_rows(self) -> None:
        if self.request.columns is not None or self.said.names or self.said.written:
            raise IngestError(
                "Columns are chosen of dense rows, and bounds, dates, categories and booleans are of such columns; "
                "counts are in the columns of the token and its count.",
                "Leave the columns out, or ingest rows (--kind rows).",
            )

    def _check_client(self, file: TableFile) -> None:
        if self.client is not None and self.client not in file.names:
            shown = ", ".join(file.names[:20]) + (", ..." if len(file.names) > 20 else "")
            one = "." if self.kind != "rows" else ", or declare that every row is a separate record: --unit record."
            remedy = f"Name the one of the client (--client COLUMN){one}"
            raise IngestError(
                f"{file.name} has no column {self.client!r} with the client of a row.",
                f"Its columns are {shown}. {remedy}",
                remedy_without_values=f"Look at its first line. {remedy}",
            )

    @property
    def records(self) -> bool:
        """Whether every row is a separate client."""
        return self.client is None

    @staticmethod
    def _refuse_double(what: str, name: str | None, others: Sequence[str | None]) -> None:
        if name is not None and name in others:
            raise IngestError(f"The column {name!r} is named as that of the {what} and as another.", "Name another.")

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that say whose a row is, of which time and of which document."""
        return tuple(name for name in (self.client, self.request.time, self.request.documents) if name is not None)

    def portions(self, size: int) -> list[Portion]:
        """All records, in portions of `size` bytes or a little more, which other processes may read; none if they
        cannot. Raises IngestError.
        """
        found = []
        for number, file in enumerate((*self.files, *self.heldout)):
            spans = file.spans(size, self.records)
            if not spans:
                return []
            found += [Portion(number, span) for span in spans]
        return found

    def batches(self, account: Account, part: Part | None = None) -> Iterator[Batch]:
        """part: of which alone they are"""
        account.columns = self.columns if self.kind == "rows" else ()
        files = [*self.files, *self.heldout]
        wanted = {name: self._read_as(name) for name in (*self.keys, *self.columns)}
        size = max(self.memory // 24, 1 << 12)
        whole = ((number, None) for number in range(len(files)))
        for number, span in whole if part is None else ((portion.file, portion.span) for portion in part):
            file, heldout = files[number], number >= len(self.files)
            for piece in file.pieces(wanted, size, account, span):
                yield from self._checked(account, heldout, file, piece)
                account.end_piece()
            if self.progress is not None:
                self.progress(number + 1, len(files))

    def _read_as(self, name: str) -> As:
        if name in self.keys:
            return "stamp" if name == self.request.time else "id"
        if self.kind == "rows":
            kinds: dict[str, As] = {"number": "number", "date": "stamp"}
            reading = self.readings[self.columns.index(name)]
            return "amount" if reading.marks else kinds.get(reading.kind, "any")
        if name != self.token:
            return "number"
        return "text" if self._text_tokens else "whole"

    @property
    def _text_tokens(self) -> bool:
        return self.kind == "words" or self.vocabulary is not None

    def _checked(self, account: Account, heldout: bool, file: TableFile, piece: Piece) -> Iterator[Batch]:
        """A batch of the good rows, or one of each half; the bad rows go to the account."""
        columns = piece.columns[len(self.keys) :]
        good = np.ones(len(piece.records), bool)
        names, codes = self._owners(account, file, piece, good)
        second = None
        if self.request.documents is not None:  # by client, also where rows go to entries: a document is in one half
            second = self._second_half(account, names, codes, piece, good)
        if self.kept.calendar is not None:
            names, codes = self._entries(account, names, codes, piece, good)
        if self.kind == "rows":
            x = self._rows(account, columns, piece, good)
            account.stored += int(good.sum())
            for half, mine in self._parts(heldout, second, good):
                unique, owners = self._renamed(names, codes[mine])
                yield Batch(half, unique, owners, x=x if mine.all() else x[mine])
            return
        tokens, amounts = self._counts(account, columns, piece, good)
        if self.kind == "words":
            some = amounts > 0
            account.stored += int((good & some).sum())
            account.skipped += int((good & ~some).sum())
            for half, mine in self._parts(heldout, second, good):
                unique, owners = self._renamed(names, codes[mine])
                kept, mine = some[mine], mine & some
                yield Batch(half, unique, owners[kept], x=records_of(tokens[mine], amounts[mine]))
            return
        strangers = np.flatnonzero(good & (tokens < 0))
        shown = [] if account.knows_strangers else columns[0].take(strangers).unique()[:SHOWN_TOKENS].to_pylist()
        account.drop(shown, int(amounts[strangers].sum()))
        known = (tokens >= 0) & (amounts > 0)
        account.stored += int((good & known).sum())
        account.skipped += int((good & ~known).sum())
        for half, mine in self._parts(heldout, second, good):
            unique, owners = self._renamed(names, codes[mine])
            kept, mine = known[mine], mine & known
            yield Batch(half, unique, owners[kept], tokens[mine].astype(np.int32), amounts[mine])

    @staticmethod
    def _parts(heldout: bool, second: np.ndarray | None, good: np.ndarray) -> list[tuple[bool, np.ndarray]]:
        """(whether it is held out, (n,) bool, its rows) of each part that the good rows belong to."""
        return [(heldout, good)] if second is None else [(False, good & ~second), (True, good & second)]

    def _second_half(
        self, account: Account, names: Sequence[str], codes: np.ndarray, piece: Piece, good: np.ndarray
    ) -> np.ndarray:
        """(n,) bool, whether each row is of a document of the second half; clears `good` for rows of none."""
        coded = piece.columns[len(self.keys) - 1].dictionary_encode()
        titles = [*coded.dictionary.to_pylist(), None]
        faults = [no_document(one) for one in titles]
        of = coded.indices.fill_null(len(titles) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
        rows = np.flatnonzero(np.array([bool(fault) for fault in faults])[of] & good)
        _reject(account, piece, rows, lambda row: faults[of[row]])
        good[rows] = False
        second = np.zeros(len(good), bool)
        pairs, each = np.unique(codes[good] * len(titles) + of[good], return_inverse=True)
        whose, which = (part.tolist() for part in np.divmod(pairs, len(titles)))
        second[good] = second_half(
            (names[client], str(titles[document])) for client, document in zip(whose, which, strict=True)
        )[each]
        return second

    def _entries(
        self, account: Account, names: Sequence[str], codes: np.ndarray, piece: Piece, good: np.ndarray
    ) -> tuple[Sequence[str], np.ndarray]:
        """(ids of entries, position of each row's); clears `good` for rows of no period of the calendar."""
        assert self.kept.calendar is not None
        numbers, why = period_of_each(piece.columns[1], self.kept.calendar)
        rows = np.flatnonzero((numbers == 0) & good)
        _reject(account, piece, rows, why)
        good[rows] = False
        labels, entries = self.kept.calendar.labels, np.zeros(len(codes), np.int64)
        kept, entries[good] = np.unique(numbers[good] + (len(labels) + 1) * codes[good], return_inverse=True)
        whose, of = np.divmod(kept, len(labels) + 1)
        pairs = zip(whose.tolist(), of.tolist(), strict=True)
        return [f"{labels[number - 1]}{BETWEEN}{names[client]}" for client, number in pairs], entries

    @staticmethod
    def _renamed(names: Sequence[str], codes: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        """Only the clients that still have a row."""
        there = np.zeros(len(names), bool)
        there[codes] = True
        if there.all():
            return names, codes
        return chosen(names, np.flatnonzero(there)), (np.cumsum(there) - 1)[codes]

    def _owners(
        self, account: Account, file: TableFile, piece: Piece, good: np.ndarray
    ) -> tuple[Sequence[str], np.ndarray]:
        """(ids of clients, (n,) int64, position of each row's); clears `good` for rows of none."""
        if self.client is None:
            return record_ids(file.name, piece.records.tolist(), self.rule), np.arange(len(good))
        clients, missing, na = piece.columns[0], "the client id is missing", self.request.na
        coded = clients.dictionary_encode()
        plain = None if clients.null_count else plain_names(coded.dictionary)
        if plain is not None and not any(one in na for one in (plain if na else ())):
            if (stored := plain.folded() if self.rule == FOLDED else plain) is not None:
                return stored, coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        given = coded.dictionary.to_pylist()
        names, faults = spelled_or_why(given, self.rule)
        absent = [missing if one in na or one.strip() in na else "" for one in given] + [missing]
        faults = [fault or other for fault, other in zip_longest(faults, absent, fillvalue="")]
        codes = coded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False).astype(np.int64)
        good &= ~np.array([bool(fault) for fault in faults])[codes]
        _reject(account, piece, np.flatnonzero(~good), lambda row: faults[codes[row]])
        return names, codes

    def _rows(self, account: Account, columns, piece: Piece, good: np.ndarray) -> np.ndarray:
        """(n, features) values; clears `good` for invalid rows. Values outside the bounds are clipped, or read as
        missing, and counted; or their row is invalid."""
        x, at, missing = np.empty((len(good), self.features), self.dtype), 0, missing_texts(self.request.na)
        for reading, column in zip(self.readings, columns, strict=True):
            values, bad, why = reading.read(column, missing)
            with np.errstate(over="ignore"):
                x[:, at : at + reading.width] = values
            if bad.any():
                _reject(account, piece, np.flatnonzero(bad & good), why)
                good &= ~bad
            at += reading.width
        if (infinite := np.isinf(x)).any():
            rows = np.flatnonzero(infinite.any(axis=1) & good)
            _reject(account, piece, rows, lambda row: f"{self.entries[int(infinite[row].argmax())].name} is infinite")
            good[rows] = False
        if self._bounds is not None:
            low, high = (bound.astype(x.dtype) for bound in self._bounds)
            low = np.where(low < self._bounds.low, np.nextafter(low, low.dtype.type(np.inf)), low)
            high = np.where(high > self._bounds.high, np.nextafter(high, high.dtype.type(-np.inf)), high)
            outside = (x < low) | (x > high)
            for at, entry in enumerate(self.entries):
                if entry.outside == "missing" and entry.kind != "category":
                    x[outside[:, at], at] = np.nan
                elif entry.outside == "invalid":
                    rows = np.flatnonzero(outside[:, at] & good)
                    _reject(account, piece, rows, partial(_out_of_bounds, entry))
                    good[rows] = False
            account.clipped += int((outside & good[:, None]).sum())
            np.clip(x, low, high, out=x)
        return x

    def _counts(self, account: Account, columns, piece: Piece, good: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(token or -1 if out of the vocabulary, or word; amount) of every row; clears `good` for bad rows."""
        import pyarrow as pa
        import pyarrow.compute as compute

        named = compute.not_equal(columns[0], "") if self._text_tokens else columns[0].is_valid()
        unnamed = ~named.fill_null(False).to_numpy(zero_copy_only=False) & good
        _reject(account, piece, np.flatnonzero(unnamed), lambda row: "the token is missing or empty")
        good[unnamed] = False
        if self.kind == "words":
            coded = columns[0].fill_null("").dictionary_encode()
            tokens = as_words(coded.dictionary.to_pylist())[coded.indices.to_numpy(zero_copy_only=False)]
        elif self.vocabulary is None:
            tokens = columns[0].fill_null(0).to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(((tokens < 0) | (tokens >= self.features)) & good)
            _reject(account, piece, rows, lambda row: f"unknown feature id {tokens[row]}")
            good[rows] = False
        else:
            found = compute.index_in(columns[0], value_set=pa.array(self.vocabulary, pa.string()))
            other = len(self.vocabulary) - 1 if self.vocabulary[-1] == OTHER else -1
            tokens = found.fill_null(other).to_numpy(zero_copy_only=False)
        if self.count is None:
            return tokens, np.ones(len(good), np.int64)
        counts = columns[1].fill_null(np.nan) if columns[1].null_count else columns[1]
        values = counts.to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(bad_counts(values) & good)
        _reject(account, piece, rows, lambda row: count_fault(float(values[row])))
        good[rows] = False
        return tokens, np.where(good, values, 0).astype(np.int64)


def _out_of_bounds(entry: ColumnEntry, row: int) -> str:
    return f"{entry.name} is outside of {entry.low:g} to {entry.high:g} (see bounds, outside)"


def _reject(account: Account, piece: Piece, rows: np.ndarray, what: Callable[[int], str]) -> None:
    account.reject_all(rows, piece.where, what, piece.records)
