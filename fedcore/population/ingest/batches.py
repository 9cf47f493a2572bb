"""What a source gives to the ingest, and the account of its bad rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import scipy

from fedcore.errors import IngestError
from fedcore.population.blocks import Kind
from fedcore.population.checks import LARGEST_COUNT, Rows
from fedcore.population.identifiers import Rule, spelled_or_why
from fedcore.storage.files import impossible, not_regular, shortened

SHOWN_TOKENS = 5  # unknown tokens that an error message quotes
SHOWN_COLUMNS = 30  # columns that an error names
NUMBERS = "Name columns that hold numbers (--columns)."
SHOWN = 10  # bad rows that an error message quotes


@dataclass
class Account:
    """Bad rows and dropped tokens of one ingest. tolerance: bad rows that are let pass (they are left out).

    columns: of dense rows that are read from tables; words: rows in which one of them was no number
    vocabulary: what it is called in an error. known: entries whose token is in it; unknown: the first tokens that are
    not. examples: bad rows and what they hold; places: where these are. clipped: values that were outside of the bounds
    of their columns

    Of the records that are read each is in one of `stored`, `bad` and `skipped` (it holds nothing that is kept: a token
    that is not in the vocabulary, a count of 0, a frame between those that are read); `fedcore.population.ingest.
    second_count` compares the sum. handed_on: rows, or tokens of counts, that are to be written
    """

    tolerance: int = 0
    vocabulary: str = "the vocabulary"
    bad: int = 0
    dropped_tokens: int = 0
    clipped: int = 0
    known: int = 0
    stored: int = 0
    skipped: int = 0
    handed_on: int = 0
    unknown: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    columns: Sequence[str] = ()
    words: Counter[str] = field(default_factory=Counter)
    _piece: list[tuple[int, str, str]] = field(default_factory=list)  # bad rows of a piece: (record, where, what)

    def reject(self, where: str, what: str, record: int | None = None) -> None:
        """Count one bad row. where: file and line or row; record: its number, if it is reported with the others of a
        piece"""
        self.bad += 1
        if record is None:
            self._show(where, what)
        elif len(self._piece) < SHOWN:
            self._piece.append((record, where, what))

    def reject_all(
        self,
        rows: np.ndarray,
        where: Callable[[int], str],
        what: Callable[[int], str],
        records: np.ndarray | None = None,
    ) -> None:
        """Count many. rows: ascending positions that `where` and `what` understand; records: their numbers, if they are
        reported with the others of a piece"""
        self.bad += len(rows)
        for row in rows[: max(SHOWN - len(self.examples), 0)].tolist():
            if records is None:
                self._show(where(row), what(row))
            else:
                self._piece.append((int(records[row]), where(row), what(row)))

    def end_piece(self) -> None:
        """Report the bad rows of a piece in order, so that those of a file are in order for any size of the pieces."""
        for _, where, what in sorted(self._piece, key=itemgetter(0)):
            self._show(where, what)
        self._piece.clear()

    def _show(self, where: str, what: str) -> None:
        if len(self.examples) < SHOWN:
            self.examples.append(f"{where}: {what}")
            self.places.append(where)

    def drop(self, tokens: Iterable[str | None], amount: int) -> None:
        """Counts tokens that are not in the vocabulary. tokens: some of them; amount: how many there are."""
        self.dropped_tokens += amount
        for token in tokens:
            if self.knows_strangers:
                return
            if token is not None and token not in self.unknown:
                self.unknown.append(token)

    @property
    def knows_strangers(self) -> bool:
        """Whether it has all unknown tokens that are shown."""
        return len(self.unknown) >= SHOWN_TOKENS

    def add(self, later: Account) -> None:
        """What another process counted in the part of the source that follows."""
        self.bad += later.bad
        self.clipped += later.clipped
        self.known += later.known
        self.stored += later.stored
        self.skipped += later.skipped
        self.handed_on += later.handed_on
        self.drop(later.unknown, later.dropped_tokens)
        self.examples = (self.examples + later.examples)[:SHOWN]
        self.places = (self.places + later.places)[:SHOWN]
        self.columns = later.columns
        self.words.update(later.words)

    def settle(self) -> None:
        """Raises IngestError if there were more bad rows than are tolerated, or tokens and none of them known."""
        if self.bad <= self.tolerance:
            self._refuse_strangers()
            return
        more = "" if self.bad <= len(self.examples) else f"\n  ... and {self.bad - len(self.examples)} more"
        examples = "".join(f"\n  {example}" for example in self.examples)
        allowed = f"; {self.tolerance} are tolerated" if self.tolerance else ""
        correct = allow = "Correct them, or allow this many bad rows to be left out (--tolerance N)."
        words = ""
        if self.words:
            counted = (f"{name} ({rows} row{'s' if rows > 1 else ''})" for name, rows in self.words.most_common())
            words = f"\nNot numbers: {listed(counted)}."
            correct = f"{left_out(self.columns, self.words)} {correct}"
        told = f"The source has {self.bad} bad row{'s' if self.bad > 1 else ''}{allowed}:"
        raise IngestError(
            f"{told}{examples}{more}{words}\n",
            correct,
            without_values=f"{told} {'; '.join(self.places)}{' and more' if more else ''}.",
            remedy_without_values=f"{NUMBERS} {allow}" if self.words else allow,
        )

    def _refuse_strangers(self) -> None:
        if self.dropped_tokens and not self.known:
            told = f"None of the {self.dropped_tokens} tokens of the source is in {self.vocabulary}"
            raise IngestError(
                f"{told}; the first ones are {', '.join(repr(token[:40]) for token in self.unknown)}.",
                "Compare the two: case, spelling, whole numbers instead of words, another column.",
                without_values=f"{told}.",
            )


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of clients in the order of the source.

    ids:    the clients of this batch, as the population spells them; codes: (n,) position in ids of each row
    counts: tokens (n,) int32 and amounts (n,) int64 > 0;  rows: x (n, D) of the population's dtype;  words: x (n,) of
            `fedcore.population.words.RECORD`
    A client in `ids` without any row is an empty client.
    """

    heldout: bool
    ids: Sequence[str]
    codes: np.ndarray
    tokens: np.ndarray | None = None
    amounts: np.ndarray | None = None
    x: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class MatrixBatch:
    """Whole clients in the order in which they are stored. Of a count matrix in which every row is a client: ids (C),
    train and held-out (C, d) CSR; of frames (ptr (C + 1,), x (N, d))."""

    ids: list[str]
    train: scipy.sparse.csr_matrix | Rows
    heldout: scipy.sparse.csr_matrix | Rows | None


class Source(Protocol):
    """Files that can be read as clients.

    keyed: clients are known by an id and may come in pieces (`Batch`); else they come whole (`MatrixBatch`)
    names: base names of the files; dtype: of dense rows, None for counts; vocabulary: the tokens, or None
    """

    @property
    def kind(self) -> Kind: ...
    @property
    def features(self) -> int: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def keyed(self) -> bool: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def vocabulary(self) -> tuple[str, ...] | None: ...

    def batches(self, account: Account) -> Iterator[Batch | MatrixBatch]:
        """What the source holds, in its order; bad rows go to the account. Raises IngestError."""


def keyed_batches(batches: Iterable[Batch], account: Account) -> Iterator[Batch]:
    """What a keyed source holds, in which it has spelled the ids: of a batch several may then be equal."""
    for batch in batches:
        account.known += 0 if batch.tokens is None else len(batch.tokens)
        account.handed_on += _size(batch.x if batch.amounts is None else batch.amounts)
        yield batch


def matrix_batches(source: Source, account: Account, rule: Rule) -> Iterator[MatrixBatch]:
    """The batches of a source that is not keyed, whose ids are made of names of files. rule: of the population's ids.
    Raises IngestError.
    """
    for batch in cast(Iterator[MatrixBatch], source.batches(account)):
        account.handed_on += sum(_size(part) for part in (batch.train, batch.heldout) if part is not None)
        yield replace(batch, ids=named_ids(batch.ids, rule))


def check_record_files(names: Sequence[str], plain_rows: bool, rule: Rule) -> None:
    """Raises IngestError unless every row of the files can be a client (--unit record).

    names: of the files; plain_rows: dense rows without a held-out part, documents or calendar periods; rule: of ids
    """
    if not plain_rows:
        raise IngestError(
            "Records without clients (--unit record) are dense rows. They have no counts, documents, calendar periods "
            "or held-out part.",
            "Name the clients (--client), or leave the others out.",
        )
    refuse_same_names(names, rule)


def refuse_same_names(names: Sequence[str], rule: Rule) -> None:
    """Raises IngestError if two of the names that ids are made of are the same once they are stored."""
    stored = named_ids([f"{name}:" for name in names], rule)
    if twice := [one for one, times in Counter(stored).items() if times > 1]:
        first, second = [name for name, one in zip(names, stored, strict=True) if one == twice[0]][:2]
        raise IngestError(
            f"{first!r} and {second!r} would give their rows the same ids, which are made of these names.",
            "Rename one of them.",
            without_values="Two files would give their rows the same ids, which are made of the files' names.",
        )


def record_ids(file: str, numbers: Iterable[int], rule: Rule) -> list[str]:
    """Ids of records: the name of their file and their numbers in it."""
    (name,) = named_ids([f"{file}:"], rule)
    return [f"{name}{number}" for number in numbers]


def named_ids(names: Sequence[str], rule: Rule) -> list[str]:
    """Ids of clients that names of files make, as the rule stores them. Raises IngestError for one that it refuses."""
    made, faults = spelled_or_why(names, rule)
    for name, fault in zip(names, faults, strict=False):
        if fault:
            raise IngestError(
                f"{name!r} cannot be the id of a client: {fault}.",
                "Rename the file or folder.",
                without_values=f"The name of a file or folder cannot be the id of a client: {fault}.",
            )
    return made


def _size(held: np.ndarray | scipy.sparse.csr_matrix | Rows | None) -> int:
    """Rows, or tokens of counts."""
    if isinstance(held, tuple):
        return len(held[1])
    if isinstance(held, np.ndarray) and held.ndim == 2:
        return len(held)
    if held is None:
        return 0
    amounts = held.data if isinstance(held, scipy.sparse.csr_matrix) else held["count"] if held.dtype.names else held
    amounts = amounts.astype(np.int64, copy=False)
    return (int((amounts >> 32).sum()) << 32) + int((amounts & 0xFFFFFFFF).sum())  # the whole sum may take 64 bits


def unique_ids(ids: Iterable[str]) -> tuple[list[str], np.ndarray]:
    """(ids in the order of their first appearance, position of each)."""
    seen: dict[str, int] = {}
    codes = np.fromiter((seen.setdefault(one, len(seen)) for one in ids), np.int64)
    return list(seen), codes


def listed(names: Iterable[str]) -> str:
    """The first names as an error lists them."""
    shown = [*names]
    more = f", and {len(shown) - SHOWN_COLUMNS} more" if len(shown) > SHOWN_COLUMNS else ""
    return f"the column{'s' if len(shown) > 1 else ''} {', '.join(shown[:SHOWN_COLUMNS])}{more}"


def left_out(columns: Sequence[str], without: Container[str]) -> str:
    """What to say to read all columns but some."""
    rest = [name for name in columns if name not in without]
    if not rest:
        return NUMBERS
    if len(rest) > SHOWN_COLUMNS or any("," in name for name in rest):
        return "Leave them out: name the others (--columns)."
    how = "Or say how they are read (--date, --boolean, --category; na for words, marks for numbers in text)."
    return f"Leave them out: --columns {','.join(rest)}. {how}"


def count_fault(value: float) -> str:
    """Why this cannot be a count; empty if it can."""
    if not np.isfinite(value):
        return f"the count is {value}"
    if value < 0:
        return f"the count {value:g} is negative"
    if value != np.floor(value):
        return f"the count {value:g} is not a whole number"
    if value > LARGEST_COUNT:
        return f"the count {value:g} is above 2**53"
    return ""


def bad_counts(values: np.ndarray) -> np.ndarray:
    """(n,) bool: which values cannot be counts; the vectorised `count_fault`."""
    if values.dtype.kind != "f":
        return (values < 0) | (values > LARGEST_COUNT)
    with np.errstate(invalid="ignore"):
        return ~((values >= 0) & (values <= LARGEST_COUNT) & (values == np.floor(values)))


def refuse_odd(path: Path) -> None:
    """Raise IngestError for an impossible path and for anything but a regular file. Sources are read more than once, so
    a FIFO cannot be used.
    """
    if why := impossible(str(path)):
        raise IngestError(f"{shortened(str(path))!r} {why}.", "No file has such a name.")
    if odd := not_regular(path):
        raise IngestError(f"{path} is a {odd}, not a regular file.", "Write its content to a file, and pass that.")


def read_ids(file: Path) -> list[str]:
    """Ids of clients, one a line (UTF-8); empty lines do not count. Raises IngestError."""
    refuse_odd(file)
    try:
        lines = file.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise IngestError(
            f"The list of clients {file} is not UTF-8 text.", "Save it as UTF-8, one id a line."
        ) from error
    except OSError as error:
        raise IngestError(f"The list of clients {file} cannot be read: {error.strerror}.", "Check the path.") from error
    return [line.removesuffix("\r") for line in lines if line.removesuffix("\r")]


def read_vocabulary(vocabulary: str | Path | Iterable[str]) -> tuple[str, ...]:
    """The tokens of a vocabulary file (one a line, UTF-8), or of a sequence. Raises IngestError."""
    where = "The vocabulary"
    if isinstance(vocabulary, (str, Path)):
        where = f"The vocabulary {vocabulary}"
        refuse_odd(Path(vocabulary))
        try:
            tokens = Path(vocabulary).read_text("utf-8-sig").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise IngestError(f"{where} is not UTF-8 text.", "Save it as UTF-8, one token a line.") from error
        except OSError as error:
            raise IngestError(f"{where} cannot be read: {error.strerror}.", "Check the path.") from error
    else:
        tokens = [str(token) for token in vocabulary]
    if tokens in ([], [""]):
        raise IngestError(f"{where} is empty.", "Write one token a line.")
    seen: set[str] = set()
    for number, token in enumerate(tokens, 1):
        if not token or token in seen:
            what = f"has the token {token!r} twice" if token else "has an empty token"
            raise IngestError(f"{where} {what} (token {number}).", "Write every token once, one a line.")
        seen.add(token)
    return tuple(tokens)
