"""NPZ and NPY files as sources: dense rows with client ids, count matrices (CSR) with one row for each client.

Arrays are read as streams from the files (also from compressed ones), so that memory stays bounded. Nothing is ever
unpickled: an array of objects is refused.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import scipy

from fedcore.errors import IngestError
from fedcore.population.blocks import Kind
from fedcore.population.identifiers import STRIPPED, Rule, spelled_or_why
from fedcore.population.ingest.batches import (
    Account,
    Batch,
    MatrixBatch,
    bad_counts,
    check_record_files,
    count_fault,
    record_ids,
    refuse_odd,
    refuse_same_names,
    unique_ids,
)
from fedcore.storage.npz import BROKEN, npy_header

LARGEST_WHOLE = 256 << 20  # bytes of an array that is read at once; batches are far smaller
LAST_CHARACTER = 0x10FFFF  # of Unicode; Python makes no text of others
CSR_PARTS = ("data", "indices", "indptr", "shape")
EXACT_IN_FLOAT32 = ("bool", "int8", "uint8", "int16", "uint16", "float16", "float32")


class StoredArray:
    """One array of an NPZ file, or an NPY file, read from its beginning. Raises IngestError."""

    def __init__(self, file: Path, name: str | None = None):
        self.where = str(file) if name is None else f"{file}, array {name!r}"
        self.taken = 0
        try:
            if name is None:
                self._handle: IO[bytes] = open(file, "rb")
                size = file.stat().st_size
            else:
                archive = zipfile.ZipFile(file)
                self._handle, size = archive.open(f"{name}.npy"), archive.getinfo(f"{name}.npy").file_size
            self.shape, self.fortran, self.dtype = npy_header(self._handle, lambda at: size - at)
        except ValueError as error:
            raise IngestError(
                f"{self.where} is truncated or damaged, or no plain NumPy array: {error}.",
                "Check that the file is whole, and was saved with a numeric or text dtype.",
            ) from error
        except BROKEN as error:
            raise IngestError(
                f"{self.where} cannot be read as a NumPy array.", "Check that the file is whole."
            ) from error

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    @property
    def entry_bytes(self) -> int:
        return max(self.dtype.itemsize * math.prod(self.shape[1:]), 1)

    def take(self, entries: int) -> np.ndarray:
        """The next entries along the first axis (fewer at the end)."""
        entries = min(entries, len(self) - self.taken)
        if entries * self.entry_bytes > LARGEST_WHOLE:
            raise self._too_large(entries * self.entry_bytes)
        try:
            data = self._handle.read(entries * self.dtype.itemsize * math.prod(self.shape[1:]))
            self.taken += entries
            if self.dtype.kind == "U":
                characters = np.frombuffer(data, np.dtype("u4").newbyteorder(self.dtype.byteorder))
                if characters.size and characters.max() > LAST_CHARACTER:
                    raise ValueError(f"it holds characters beyond U+{LAST_CHARACTER:X}")
            return np.frombuffer(data, self.dtype).reshape(entries, *self.shape[1:])
        except BROKEN as error:
            raise IngestError(f"{self.where} is truncated or damaged.", "Copy or download it again.") from error

    def all(self) -> np.ndarray:
        """Raises IngestError for more than has to be held in memory at once."""
        if len(self) * self.entry_bytes > LARGEST_WHOLE:
            raise self._too_large(len(self) * self.entry_bytes)
        return self.take(len(self)) if self.shape else self._scalar()

    def _too_large(self, size: int) -> IngestError:
        return IngestError(
            f"{self.where} has to be held whole, and its {size} bytes are more than {LARGEST_WHOLE}.",
            "Look at what the file declares; no vocabulary, client or id of that size is known.",
        )

    def _scalar(self) -> np.ndarray:
        try:
            return np.frombuffer(self._handle.read(self.dtype.itemsize), self.dtype).reshape(())
        except BROKEN as error:
            raise IngestError(f"{self.where} is truncated or damaged.", "Copy or download it again.") from error


def array_names(file: Path) -> list[str]:
    """Names of the arrays in an NPZ file. Raises IngestError."""
    try:
        with zipfile.ZipFile(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except BROKEN as error:
        raise IngestError(f"{file} cannot be read as an NPZ file.", "Check that the file is whole.") from error


def vocabulary_in(file: Path, name: str = "vocab") -> tuple[str, ...] | None:
    """The tokens that an NPZ file brings, or None."""
    if name not in array_names(file):
        return None
    tokens = StoredArray(file, name)
    if tokens.dtype.kind != "U" or len(tokens.shape) != 1:
        raise IngestError(f"{tokens.where} is not a vector of text.", "Save the vocabulary as a vector of str.")
    return tuple(str(token) for token in tokens.all())


# ---- dense rows (or dense counts) with client ids


@dataclass
class DenseSource:
    """Files of dense rows. NPZ: arrays `array` and `client`; NPY: the rows, and `client` names an NPY file of ids.

    client: None: every row is a record without a client, called by its file and number. heldout: files of the same
    form. kind "counts": every entry is the count of its column. image: (height, width) of rows that are pictures, in
    arrays (rows, height, width), or (rows, height, width, 1 or 3).
    """

    files: Sequence[Path]
    client: str | None
    array: str = "x"
    kind: Kind = "rows"
    heldout: Sequence[Path] = ()
    wanted_dtype: str | None = None
    memory: int = 64 << 20
    progress: Callable[[int, int], None] | None = None
    rule: Rule = STRIPPED
    features: int = 0
    dtype: str | None = None
    keyed: bool = True
    vocabulary: tuple[str, ...] | None = None
    image: tuple[int, int] | None = field(init=False)
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self):
        self.names = tuple(file.name for file in self.files)
        if self.records:
            check_record_files(self.names, self.kind == "rows" and not self.heldout, self.rule)
        dtypes, shapes = [], set()
        for file in (*self.files, *self.heldout):
            x, ids = self._open(file)
            features = math.prod(x.shape[1:])
            if self.features and features != self.features:
                raise IngestError(
                    f"{x.where} has {features} columns, the files before {self.features}.", "Use like files."
                )
            self.features = features
            dtypes.append(x.dtype.name)
            shapes.add(x.shape[1:])
        if self.features < 1:
            raise IngestError(f"{self.files[0]} has no column.", "Give rows with at least one feature.")
        if self.kind == "rows":
            small = all(name in EXACT_IN_FLOAT32 for name in dtypes)
            self.dtype = self.wanted_dtype or ("float32" if small else "float64")
        shape = shapes.pop() if len(shapes) == 1 else ()
        pictures = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
        self.image = (shape[0], shape[1]) if self.kind == "rows" and pictures else None

    @property
    def records(self) -> bool:
        """Whether every row is a separate client."""
        return self.client is None

    def ids_of(self, file: Path) -> Path | None:
        """The file of the clients of an NPY file; None if they are in the same file, or there are none."""
        return file.parent / self.client if file.suffix == ".npy" and self.client is not None else None

    def _open(self, file: Path) -> tuple[StoredArray, StoredArray | None]:
        """(rows, ids; None without clients)"""
        ids = None
        if file.suffix == ".npy":
            x = StoredArray(file)
            if (beside := self.ids_of(file)) is not None:
                refuse_odd(beside)
                ids = StoredArray(beside)
        else:
            known = array_names(file)
            for name in (self.array, *([] if self.client is None else [self.client])):
                if name not in known:
                    alone = ", or ingest every row as a record: --unit record" if name == self.client else ""
                    raise IngestError(
                        f"{file} has no array {name!r}.", f"It has {', '.join(known)}; name one of them{alone}."
                    )
            x = StoredArray(file, self.array)
            ids = None if self.client is None else StoredArray(file, self.client)
        if x.dtype.kind not in "iufb" or len(x.shape) < 2:
            raise IngestError(
                f"{x.where} is {x.dtype}{x.shape}, not rows of numbers.", "Give an array of shape (rows, features)."
            )
        if x.fortran:
            raise IngestError(f"{x.where} is stored column by column.", "Save it with numpy.ascontiguousarray.")
        if ids is not None and (len(ids.shape) != 1 or len(ids) != len(x) or ids.dtype.kind not in "iuUS"):
            raise IngestError(
                f"{ids.where} is {ids.dtype}{ids.shape}, not one client id for each of {len(x)} rows.",
                "Give one text or whole number for each row.",
            )
        return x, ids

    def batches(self, account: Account) -> Iterator[Batch]:
        files = [(False, file) for file in self.files] + [(True, file) for file in self.heldout]
        for number, (heldout, file) in enumerate(files):
            x, ids = self._open(file)
            step = max(self.memory // (x.entry_bytes + 16 * self.features + 200), 1)
            for first in range(0, len(x), step):
                rows = x.take(step)
                if ids is None:
                    given = record_ids(file.name, range(first, first + len(rows)), self.rule)
                else:
                    given = [_text(one) for one in ids.take(step).tolist()]
                yield self._batch(account, heldout, file.name, first, rows, given)
            if self.progress is not None:
                self.progress(number + 1, len(files))

    def _batch(self, account: Account, heldout: bool, name: str, first: int, x: np.ndarray, given: list[str]) -> Batch:
        def where(row: int) -> str:
            return f"{name}, row {first + row}"

        x = x.reshape(len(x), -1)
        good = np.ones(len(x), bool)
        texts, faults = spelled_or_why(given, self.rule)
        for row, fault in enumerate(faults):
            if fault:
                account.reject(where(row), fault)
                good[row] = False
        if self.kind == "counts":
            faulty = bad_counts(x)
            rows = np.flatnonzero(faulty.any(axis=1) & good)
            account.reject_all(rows, where, lambda row: count_fault(float(x[row, faulty[row].argmax()])))
        else:
            with np.errstate(over="ignore"):
                x = x.astype(self.dtype)
            rows = np.flatnonzero(np.isinf(x).any(axis=1) & good)
            account.reject_all(rows, where, lambda row: f"column {int(np.isinf(x[row]).argmax())} is infinite")
        good[rows] = False
        account.stored += int(good.sum())
        x = x[good]
        unique, codes = unique_ids(text for text, fine in zip(texts, good.tolist(), strict=True) if fine)
        if self.kind == "rows":
            return Batch(heldout, unique, codes, x=x)
        at, token = np.nonzero(x)
        return Batch(heldout, unique, codes[at], token.astype(np.int32), x[at, token].astype(np.int64))


def _text(one: str | bytes | int) -> str:
    return one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else str(one)


# ---- count matrices in CSR form: a row is a client


@dataclass
class _Csr:
    """The four arrays of one stored CSR matrix, checked, and read a run of rows at a time."""

    file: Path
    prefix: str

    def __post_init__(self):
        known = array_names(self.file)
        for part in CSR_PARTS:
            if f"{self.prefix}{part}" not in known:
                raise IngestError(f"{self.file} has no array {self.prefix + part!r}.", f"It has {', '.join(known)}.")
        shape = self._array("shape").all()
        if shape.shape != (2,):
            raise IngestError(
                f"{self.file}: the shape of the matrix is {shape.tolist()}.", "Give a matrix (clients, features)."
            )
        self.rows, self.features = (int(length) for length in shape)
        self.indptr, self.indices, self.data = (self._array(part) for part in ("indptr", "indices", "data"))
        if len(self.indptr) != self.rows + 1 or len(self.indices) != len(self.data):
            raise self._malformed("its arrays have lengths that do not fit together")
        if self.data.dtype.kind not in "iufb" or self.indices.dtype.kind not in "iu":
            raise self._malformed("its arrays are not numbers")
        self.at = int(self.indptr.take(1)[0])
        if self.at != 0:
            raise self._malformed("indptr does not start at 0")

    def _array(self, part: str) -> StoredArray:
        return StoredArray(self.file, self.prefix + part)

    def _malformed(self, what: str) -> IngestError:
        return IngestError(
            f"{self.file}: the matrix is malformed: {what}.", "Save it again with scipy.sparse.save_npz."
        )

    def take(self, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(indptr (rows + 1), indices, data) of the next rows."""
        bounds = np.concatenate([[self.at], self.indptr.take(rows).astype(np.int64)])
        if (np.diff(bounds) < 0).any() or bounds[-1] > len(self.data):
            raise self._malformed("indptr goes back or past the end")
        entries = int(bounds[-1]) - self.at
        self.at = int(bounds[-1])
        if self.indptr.taken == self.rows + 1 and self.at != len(self.data):
            raise self._malformed("indptr does not end at the last entry")
        return bounds - bounds[0], self.indices.take(entries), self.data.take(entries)


@dataclass
class MatrixSource:
    """NPZ files with CSR matrices of counts. Row = client; ids from array `client`, else "file:row", in row order.

    prefix: of the arrays, "" for a file of scipy.sparse.save_npz; heldout_prefix: of the held-out matrix, or None
    """

    files: Sequence[Path]
    prefix: str = ""
    heldout_prefix: str | None = None
    client: str | None = None
    memory: int = 64 << 20
    progress: Callable[[int, int], None] | None = None
    rule: Rule = STRIPPED
    features: int = 0
    kind: Kind = "counts"
    dtype: None = None
    names: tuple[str, ...] = field(init=False)
    vocabulary: tuple[str, ...] | None = None

    def __post_init__(self):
        self.names = tuple(file.name for file in self.files)
        if self.client is None:
            refuse_same_names(self.names, self.rule)
        for file in self.files:
            if "format" in array_names(file) and not self.prefix:
                form = StoredArray(file, "format").all().item()
                if form not in (b"csr", "csr"):
                    raise IngestError(f"{file} holds a {form!r} matrix.", "Convert it with .tocsr() before saving.")
            matrix = _Csr(file, self.prefix)
            if self.features and matrix.features != self.features:
                raise IngestError(
                    f"{file} has {matrix.features} columns, the files before {self.features}.", "Use one vocabulary."
                )
            self.features = matrix.features
            if self.heldout_prefix is not None:
                other = _Csr(file, self.heldout_prefix)
                if (other.rows, other.features) != (matrix.rows, matrix.features):
                    raise IngestError(
                        f"{file}: train and held-out matrix differ in shape.", "Give the same clients and tokens."
                    )
            tokens = vocabulary_in(file)
            if self.vocabulary is not None and tokens is not None and tokens != self.vocabulary:
                raise IngestError(f"{file} has another vocabulary than the files before.", "Use one vocabulary.")
            self.vocabulary = self.vocabulary or tokens
        if self.features < 1:
            raise IngestError(f"{self.files[0]} has no column.", "Give a matrix with at least one column.")

    @property
    def keyed(self) -> bool:
        return self.client is not None

    def batches(self, account: Account) -> Iterator[MatrixBatch | Batch]:
        for number, file in enumerate(self.files):
            matrix = _Csr(file, self.prefix)
            other = None if self.heldout_prefix is None else _Csr(file, self.heldout_prefix)
            ids = self._ids(file, matrix.rows)
            mean = (len(matrix.data) + (len(other.data) if other else 0)) // max(matrix.rows, 1) + 1
            step = max(self.memory // (64 * mean + 200), 1)
            for first in range(0, matrix.rows, step):
                rows = min(step, matrix.rows - first)
                good = np.ones(rows, bool)
                parts = [self._part(account, file.name, first, rows, one, good) for one in (matrix, other) if one]
                names, faults = spelled_or_why(ids(first, rows), self.rule)
                for row, fault in enumerate(faults):
                    if good[row] and fault:
                        account.reject(f"{file.name}, row {first + row}", fault)
                        good[row] = False
                account.stored += int(good.sum())
                yield from self._batches(
                    [n for n, fine in zip(names, good, strict=True) if fine], [p[good] for p in parts]
                )
            if self.progress is not None:
                self.progress(number + 1, len(self.files))

    def _batches(self, names: list[str], parts: list[scipy.sparse.csr_matrix]) -> Iterator[MatrixBatch | Batch]:
        if not self.keyed:
            yield MatrixBatch(names, parts[0], parts[1] if len(parts) > 1 else None)
            return
        unique, codes = unique_ids(names)
        for heldout, part in zip((False, True), parts, strict=False):
            coo = part.tocoo()
            some = coo.data > 0
            yield Batch(heldout, unique, codes[coo.row[some]], coo.col[some].astype(np.int32), coo.data[some])

    def _ids(self, file: Path, rows: int) -> Callable[[int, int], list[str]]:
        if self.client is None:
            return lambda first, number: [f"{file.name}:{row}" for row in range(first, first + number)]
        if self.client not in array_names(file):
            raise IngestError(f"{file} has no array {self.client!r}.", f"It has {', '.join(array_names(file))}.")
        ids = StoredArray(file, self.client)
        if len(ids.shape) != 1 or len(ids) != rows or ids.dtype.kind not in "iuU":
            raise IngestError(
                f"{ids.where} is not one client id for each of {rows} rows.", "Give text or whole numbers."
            )
        return lambda first, number: [str(one) for one in ids.take(number).tolist()]

    def _part(
        self, account: Account, name: str, first: int, rows: int, matrix: _Csr, good: np.ndarray
    ) -> scipy.sparse.csr_matrix:
        """The next rows; clears `good` where a row is bad, and leaves that row empty."""
        indptr, indices, data = matrix.take(rows)
        faulty = bad_counts(data)
        unknown = (indices.astype(np.int64) < 0) | (indices >= self.features)
        row_of = np.repeat(np.arange(rows), np.diff(indptr))
        bad, where_first = np.unique(row_of[faulty | unknown], return_index=True)
        entries = np.flatnonzero(faulty | unknown)[where_first]
        fresh = good[bad]
        bad, entries = bad[fresh], entries[fresh]

        def what(position: int) -> str:
            entry = entries[position]
            return f"unknown feature id {indices[entry]}" if unknown[entry] else count_fault(float(data[entry]))

        account.reject_all(np.arange(len(bad)), lambda i: f"{name}, row {first + int(bad[i])}", what)
        good[bad] = False
        fine = good[row_of]
        lengths = np.where(good, np.diff(indptr), 0)
        kept = (data[fine].astype(np.int64), indices[fine].astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]))
        return scipy.sparse.csr_matrix(kept, shape=(rows, self.features))
