"""CSV and Parquet files as sources: long counts (client, token, count) or dense rows (client, features...)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.blocks import Kind
from fedcore.population.ingest import csv_blocks
from fedcore.population.ingest.batches import SHOWN, Account, Batch, bad_counts, count_fault, left_out, listed, unusable
from fedcore.population.ingest.documents import no_document, second_half
from fedcore.population.ingest.stamps import is_stamp, period_of_each
from fedcore.population.periods import BETWEEN, Calendar
from fedcore.population.words import OTHER, as_words, records_of

Where = Callable[[int], str]
PARQUET = (".parquet", ".pq")


def column_names(file: Path, delimiter: str) -> list[str]:
    """Names of the columns of a CSV or Parquet file. Raises IngestError."""
    return _open_parquet(file).schema_arrow.names if file.suffix in PARQUET else csv_blocks.header(file, delimiter)


def delimiter_of(file: Path, delimiter: str | None) -> str:
    return delimiter or ("\t" if file.suffix == ".tsv" else ",")


def _open_parquet(file: Path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        return parquet.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise IngestError(f"{file} cannot be read as a Parquet file.", "Check that the file is whole.") from error


@dataclass
class TableSource:
    """CSV (with a header line) or Parquet files.

    counts: columns client, token and count (None: every row counts one); tokens are looked up in `vocabulary`, or are
            whole numbers 0 .. features - 1; a vocabulary that ends with `words.OTHER` counts all others there
    words:  the same columns; tokens are kept as words
    rows:   columns client and `wanted_columns` (None: all others), empty or NaN = missing
    columns: those that are read beside the client's
    time, calendar: column of the time stamp, and the periods by which clients are dealt to entries; None: they are not
    documents: column of the document, by which each client's rows are dealt to its halves; None: they are not
    heldout: files of the same form
    """

    files: Sequence[Path]
    kind: Kind
    client: str = "client"
    token: str = "token"
    count: str | None = None
    wanted_columns: Sequence[str] | None = None
    vocabulary: tuple[str, ...] | None = None
    wanted_features: int | None = None
    heldout: Sequence[Path] = ()
    delimiter: str | None = None
    wanted_dtype: str | None = None
    documents: str | None = None
    time: str | None = None
    calendar: Calendar | None = None
    memory: int = 64 << 20
    progress: Callable[[int, int], None] | None = None
    keyed: bool = True
    dtype: str | None = None
    names: tuple[str, ...] = field(init=False)
    columns: tuple[str, ...] = field(init=False)
    features: int = field(init=False)

    def __post_init__(self) -> None:
        self.names = tuple(file.name for file in self.files)
        columns, self.features = self.wanted_columns, self.wanted_features or 0
        if self.kind != "rows":
            if columns is not None:
                raise IngestError(
                    "Columns are chosen of dense rows; counts are in the columns of the token and its count.",
                    "Leave the columns out, or ingest rows (--kind rows).",
                )
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
        for file in (*self.files, *self.heldout):
            names = column_names(file, delimiter_of(file, self.delimiter))
            if columns is None:
                columns = [name for name in names if name not in self.keys]
            for name in (*self.keys, *columns):
                if name not in names:
                    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
                    raise IngestError(f"{file} has no column {name!r}.", f"Its columns are {shown}.")
        self.columns = tuple(columns or ())
        if twice := [name for name, times in Counter(self.columns).items() if times > 1]:
            raise IngestError(f"The column {twice[0]!r} is named twice.", "Name every column once.")
        self._refuse_double("client", self.client, self.columns)
        self._refuse_double("time", self.time, (self.client, *self.columns))
        self._refuse_double("document", self.documents, (self.client, self.time, *self.columns))
        if self.kind == "rows":
            if not self.columns:
                raise IngestError(
                    f"{self.files[0]} has no feature column.", "Give at least one column beside the client."
                )
            if self.wanted_features not in (None, len(self.columns)):
                raise IngestError(
                    f"The files have {len(self.columns)} feature columns, not {self.wanted_features}.",
                    "Name the columns.",
                )
            self.features = len(self.columns)
            self.dtype = self.wanted_dtype or "float64"

    @staticmethod
    def _refuse_double(what: str, name: str | None, others: Sequence[str | None]) -> None:
        if name is not None and name in others:
            raise IngestError(f"The column {name!r} is named as that of the {what} and as another.", "Name another.")

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that say whose a row is, of which time and of which document."""
        return tuple(name for name in (self.client, self.time, self.documents) if name is not None)

    def batches(self, account: Account) -> Iterator[Batch]:
        account.columns = self.columns if self.kind == "rows" else ()
        files = [(False, file) for file in self.files] + [(True, file) for file in self.heldout]
        for number, (heldout, file) in enumerate(files):
            yield from (self._parquet if file.suffix in PARQUET else self._csv)(account, heldout, file)
            if self.progress is not None:
                self.progress(number + 1, len(files))

    # ---- CSV

    def _csv(self, account: Account, heldout: bool, file: Path) -> Iterator[Batch]:
        delimiter = delimiter_of(file, self.delimiter)
        names = csv_blocks.header(file, delimiter)
        size = max(self.memory // 24, 1 << 12)
        for block in csv_blocks.without_header(csv_blocks.blocks(file, size)):
            table = csv_blocks.parse_quickly(block, names, self._types(), delimiter)
            if table is None:
                yield from self._slow_csv(account, heldout, file, block, names, delimiter)
                continue
            columns = [table.column(name).combine_chunks() for name in (*self.keys, *self.columns)]

            def where(row: int, line=block.line) -> str:
                return f"{file.name}, line {line + row}"

            yield from self._checked(account, heldout, columns, where)

    def _types(self) -> dict:
        import pyarrow as pa

        types = dict.fromkeys(self.keys, pa.string())
        if self.kind == "rows":
            return {**types, **dict.fromkeys(self.columns, pa.float64())}
        types[self.token] = pa.string() if self._text_tokens else pa.int64()
        if self.count is not None:
            types[self.count] = pa.float64()
        return types

    @property
    def _text_tokens(self) -> bool:
        return self.kind == "words" or self.vocabulary is not None

    def _slow_csv(self, account, heldout, file, block, names, delimiter) -> Iterator[Batch]:
        import pyarrow as pa

        places, keys = [names.index(name) for name in (*self.keys, *self.columns)], len(self.keys)
        text_token = self.kind != "rows" and self._text_tokens
        lines: list[int] = []
        columns: list[list] = [[] for _ in places]
        for line, fields in csv_blocks.records(file, block, delimiter):
            if len(fields) != len(names):
                account.reject(f"{file.name}, line {line}", f"{len(fields)} columns instead of {len(names)}")
                continue
            values: list = [fields[place] for place in places[:keys]]
            fault = ""
            for position, place in enumerate(places[keys:]):
                text = fields[place]
                if position == 0 and text_token:
                    values.append(text)
                    continue
                try:
                    if position == 0 and self.kind == "counts":
                        if "_" in text or not -(2**63) <= int(text) < 2**63:
                            raise ValueError(text)
                        values.append(int(text))
                    else:
                        values.append(csv_blocks.number(text))
                except ValueError:
                    feature = self.kind == "counts" and position == 0
                    what = f"unknown feature id {text!r}" if feature else f"{names[place]} is not a number: {text!r}"
                    fault = fault or what
                    if self.kind == "rows":
                        account.words[names[place]] += 1
            if fault:
                account.reject(f"{file.name}, line {line}", fault)
                continue
            lines.append(line)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        arrays = [
            pa.array(column, type=kind, from_pandas=False)
            for column, kind in zip(columns, self._types().values(), strict=True)
        ]
        return self._checked(account, heldout, arrays, lambda row: f"{file.name}, line {lines[row]}")

    # ---- Parquet

    def _parquet(self, account: Account, heldout: bool, file: Path) -> Iterator[Batch]:
        import pyarrow as pa

        opened = _open_parquet(file)
        if self.kind == "rows":
            self._refuse_words(file, opened.schema_arrow)
        step = max(self.memory // (32 * (len(self.columns) + 4)), 64)
        first = 0
        try:
            for records in opened.iter_batches(step, columns=[*self.keys, *self.columns], use_threads=False):
                columns = [self._cast(file, name, records.column(name)) for name in (*self.keys, *self.columns)]

                def where(row: int, first=first) -> str:
                    return f"{file.name}, row {first + row}"

                yield from self._checked(account, heldout, columns, where)
                first += records.num_rows
        except (OSError, pa.ArrowException) as error:
            raise IngestError(f"{file} is truncated or damaged.", "Copy or download it again.") from error

    def _refuse_words(self, file: Path, schema) -> None:
        """Raises IngestError if there are feature columns that hold no numbers."""
        import pyarrow as pa

        words = {}
        for name in self.columns:
            kind = schema.field(name).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
                words[name] = kind
        if words:
            raise IngestError(
                f"{file}: {listed(f'{name} ({kind})' for name, kind in words.items())} hold no numbers.",
                left_out(self.columns, words),
            )

    def _cast(self, file: Path, name: str, column):
        """The column in the type that is needed. Raises IngestError for the wrong type."""
        import pyarrow as pa
        import pyarrow.compute as compute

        wanted = self._types()[name]
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        if name == self.time:
            if is_stamp(kind):
                return column
            raise IngestError(f"{file}: the column {name!r} is of type {kind}.", "It should hold dates or times.")
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        whole = pa.types.is_integer(kind)
        fine = text or (whole and name in (self.client, self.documents)) if pa.types.is_string(wanted) else whole
        if pa.types.is_floating(wanted):
            fine = whole or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
            if pa.types.is_boolean(kind):
                column = column.cast(pa.int8())
        if not fine:
            raise IngestError(f"{file}: the column {name!r} is of type {kind}.", f"It should be {wanted}; convert it.")
        return compute.cast(column, wanted, safe=False)

    # ---- both

    def _checked(self, account: Account, heldout: bool, read: list, where: Where) -> Iterator[Batch]:
        """A batch of the good rows, or one of each half; the bad rows go to the account. read: columns of `keys`, then
        the others.
        """
        clients, columns = read[0], read[len(self.keys) :]
        good = np.ones(len(clients), bool)
        coded = clients.dictionary_encode()
        names = coded.dictionary.to_pylist()
        faults = [unusable(name) for name in names]
        codes = coded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False).astype(np.int64)
        if any(faults) or clients.null_count:
            faults.append("the client id is missing")
            good = ~np.array([bool(fault) for fault in faults])[codes]
            account.reject_all(np.flatnonzero(~good), where, lambda row: faults[codes[row]])
        second = None
        if self.documents is not None:  # by the client, also where rows go to entries: a document lies in one half
            second = self._second_half(account, names, codes, read[len(self.keys) - 1], where, good)
        if self.calendar is not None:
            names, codes = self._entries(account, names, codes, read[1], where, good)
        if self.kind == "rows":
            x = self._rows(account, columns, where, good)
            for half, mine in self._parts(heldout, second, good):
                yield Batch(half, *self._renamed(names, codes[mine]), x=x[mine])
            return
        tokens, amounts = self._counts(account, columns, where, good)
        if self.kind == "words":
            some = amounts > 0
            for half, mine in self._parts(heldout, second, good):
                unique, owners = self._renamed(names, codes[mine])
                kept, mine = some[mine], mine & some
                yield Batch(half, unique, owners[kept], x=records_of(tokens[mine], amounts[mine]))
            return
        strangers = np.flatnonzero(good & (tokens < 0))
        account.drop(columns[0].take(strangers[:SHOWN]).to_pylist(), int(amounts[strangers].sum()))
        known = (tokens >= 0) & (amounts > 0)
        for half, mine in self._parts(heldout, second, good):
            unique, owners = self._renamed(names, codes[mine])
            kept, mine = known[mine], mine & known
            yield Batch(half, unique, owners[kept], tokens[mine].astype(np.int32), amounts[mine])

    @staticmethod
    def _parts(heldout: bool, second: np.ndarray | None, good: np.ndarray) -> list[tuple[bool, np.ndarray]]:
        """(whether it is held out, (n,) bool, its rows) of each part that the good rows belong to."""
        return [(heldout, good)] if second is None else [(False, good & ~second), (True, good & second)]

    def _second_half(
        self, account: Account, names: list[str], codes: np.ndarray, documents, where: Where, good: np.ndarray
    ) -> np.ndarray:
        """(n,) bool, whether each row is of a document of the second half; clears `good` for rows of none."""
        coded = documents.dictionary_encode()
        titles = [*coded.dictionary.to_pylist(), None]
        faults = [no_document(one) for one in titles]
        of = coded.indices.fill_null(len(titles) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
        rows = np.flatnonzero(np.array([bool(fault) for fault in faults])[of] & good)
        account.reject_all(rows, where, lambda row: faults[of[row]])
        good[rows] = False
        second = np.zeros(len(good), bool)
        pairs, each = np.unique(codes[good] * len(titles) + of[good], return_inverse=True)
        whose, which = (part.tolist() for part in np.divmod(pairs, len(titles)))
        second[good] = second_half(
            (names[client], str(titles[document])) for client, document in zip(whose, which, strict=True)
        )[each]
        return second

    def _entries(
        self, account: Account, names: list[str], codes: np.ndarray, stamps, where: Where, good: np.ndarray
    ) -> tuple[list[str], np.ndarray]:
        """(ids of entries, position of each row's); clears `good` for rows of no period of the calendar."""
        assert self.calendar is not None
        numbers, why = period_of_each(stamps, self.calendar)
        rows = np.flatnonzero((numbers == 0) & good)
        account.reject_all(rows, where, why)
        good[rows] = False
        labels, entries = self.calendar.labels, np.zeros(len(codes), np.int64)
        kept, entries[good] = np.unique(numbers[good] + (len(labels) + 1) * codes[good], return_inverse=True)
        whose, of = np.divmod(kept, len(labels) + 1)
        pairs = zip(whose.tolist(), of.tolist(), strict=True)
        return [f"{labels[number - 1]}{BETWEEN}{names[client]}" for client, number in pairs], entries

    @staticmethod
    def _renamed(names: list[str], codes: np.ndarray) -> tuple[list[str], np.ndarray]:
        """Only the clients that still have a row."""
        if not len(codes):
            return [], codes
        kept, codes = np.unique(codes, return_inverse=True)
        return [names[code] for code in kept.tolist()], codes

    def _rows(self, account: Account, columns, where: Where, good: np.ndarray) -> np.ndarray:
        x = np.empty((len(good), len(columns)), self.dtype)
        with np.errstate(over="ignore"):
            for place, column in enumerate(columns):
                x[:, place] = column.fill_null(np.nan).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(np.isinf(x).any(axis=1) & good)
        account.reject_all(rows, where, lambda row: f"{self.columns[int(np.isinf(x[row]).argmax())]} is infinite")
        good[rows] = False
        return x

    def _counts(self, account: Account, columns, where: Where, good: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(token or -1 if out of the vocabulary, or word; amount) of every row; clears `good` for bad rows."""
        import pyarrow as pa
        import pyarrow.compute as compute

        missing = columns[0].is_null().to_numpy(zero_copy_only=False) & good
        account.reject_all(np.flatnonzero(missing), where, lambda row: "the token is missing")
        good[missing] = False
        if self.kind == "words":
            coded = columns[0].fill_null("").dictionary_encode()
            tokens = as_words(coded.dictionary.to_pylist())[coded.indices.to_numpy(zero_copy_only=False)]
        elif self.vocabulary is None:
            tokens = columns[0].fill_null(0).to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(((tokens < 0) | (tokens >= self.features)) & good)
            account.reject_all(rows, where, lambda row: f"unknown feature id {tokens[row]}")
            good[rows] = False
        else:
            found = compute.index_in(columns[0], value_set=pa.array(self.vocabulary, pa.string()))
            other = len(self.vocabulary) - 1 if self.vocabulary[-1] == OTHER else -1
            tokens = found.fill_null(other).to_numpy(zero_copy_only=False)
        if self.count is None:
            return tokens, np.ones(len(good), np.int64)
        values = columns[1].fill_null(np.nan).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(bad_counts(values) & good)
        account.reject_all(rows, where, lambda row: count_fault(float(values[row])))
        good[rows] = False
        return tokens, np.where(good, values, 0).astype(np.int64)
