"""Finding out what a source is: which files, which format, which reader."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from fedcore.errors import IngestError, needs
from fedcore.population.choices import Format
from fedcore.population.columns import image_fault
from fedcore.population.identifiers import FOLDED, STRIPPED, Rule
from fedcore.population.ingest.batches import Source, read_vocabulary, refuse_odd
from fedcore.population.ingest.csv_blocks import LONGEST_RECORD
from fedcore.population.ingest.partitions import Partitioned, partition_of
from fedcore.population.ingest.readings import Kept, missing_texts
from fedcore.population.ingest.request import OF_SOURCE, TABLES, IngestRequest, Where, client_of, schema_of
from fedcore.population.ingest.sources_array import DenseSource, MatrixSource, array_names
from fedcore.population.ingest.sources_frames import FRAMES_PER_CLIENT, IMAGES, VIDEOS, FrameSource
from fedcore.population.ingest.sources_table import TableSource
from fedcore.population.ingest.sources_text import TextSource, text_files
from fedcore.population.ingest.table_files import CsvFile, JsonFile, TableFile
from fedcore.population.ingest.typed_files import ArrowFile, ParquetFile, SqlQuery

SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".sql": "sql",
    ".npz": "npz",
    ".npy": "npy",
    **dict.fromkeys((*IMAGES, *VIDEOS), "frames"),
}
Progress = Callable[[int, int], None]  # (files done, files)


def files_of(where: Where) -> list[Path]:
    """The files of a path, a glob pattern, a folder, or a list of these; sorted within each. Raises IngestError."""
    if not isinstance(where, (str, Path)):
        return [file for one in where for file in files_of(one)]
    path = Path(where)
    refuse_odd(path)
    if path.is_dir():
        files = [file for file in text_files(path) if file.suffix.lower() in SUFFIXES]
    elif path.exists():
        files = [path]
    else:
        files = sorted(Path(name) for name in glob.glob(str(where), recursive=True) if os.path.isfile(name))
    if not files:
        raise IngestError(f"There is nothing to ingest at {where}.", "Check the path.")
    return files


def format_of(where: Where, wanted: Format | None) -> Format:
    """The format, from the files' suffixes unless it is named. Raises IngestError."""
    if wanted is not None:
        return wanted
    if isinstance(where, (str, Path)):
        refuse_odd(Path(where))
    if isinstance(where, (str, Path)) and Path(where).is_dir():
        files = text_files(Path(where))
        if not files:
            raise IngestError(f"The folder {where} holds no file.", "Check the path.")
        if not any(file.suffix.lower() in SUFFIXES for file in files):
            return "text"
    found = {SUFFIXES.get(file.suffix.lower()) for file in files_of(where)}
    form = found.pop()
    if found or form is None:
        shown = ", ".join(sorted(str(one) for one in {form, *found}))
        raise IngestError(f"The format of {where} is not clear from the file names ({shown}).", "Name the format.")
    return form


OF_FRAMES = ("frames", "npz", "npy")
# An NPZ file holds one or the other.
OF_DENSE, OF_SPARSE = ("unit", "array", "heldout", "dtype", "image"), ("prefix", "heldout_prefix")


def _taken_by(form: str) -> list[str]:
    """Options of a format, and those of all."""
    return [name for name in OF_SOURCE if form in schema_of(name).get("formats", (form,))]


def _refuse_other_options(request: IngestRequest, takes: Sequence[str], what: str) -> None:
    """Raises IngestError for an option that belongs to another format. takes: those of this one; what: its name"""
    for name in OF_SOURCE:
        if name not in takes and getattr(request, name) != IngestRequest.model_fields[name].default:
            raise IngestError(
                f"The option {name!r} belongs to another format than {what}.",
                f"Options of {what} are {', '.join(takes)}.",
            )


def source_of(
    where: Where,
    request: IngestRequest,
    memory: int,
    progress: Progress | None = None,
    spill: Path | None = None,
    kept: Kept = Kept(),
) -> Source:
    """The reader for this source. memory: bytes that one batch may take; spill: folder for what a query does not hold.
    Raises IngestError.
    """
    rule = kept.rule or (FOLDED if request.fold_ids else STRIPPED)
    form = format_of(where, request.format)
    if kept.calendar is not None and form not in TABLES:
        raise IngestError(
            f"The rows of {form} have no time stamps, and calendar periods need them.",
            f"Ingest tables ({', '.join(TABLES)}) with a column of times.",
        )
    _refuse_other_options(request, _taken_by(form), form)
    source: Source
    vocabulary = None if request.vocabulary is None else read_vocabulary(request.vocabulary)
    if form == "text":
        source = _text(where, request, vocabulary, progress, rule)
    elif form == "frames":
        source = _frames(where, request, progress, rule)
    elif form in TABLES:
        tables = table_files(where, form, request, spill)
        heldout = [] if request.heldout is None else table_files(request.heldout, form, request, spill)
        request = request.model_copy(update={"vocabulary": None})  # which may be long, and goes to other processes
        source = TableSource(tables, request, replace(kept, rule=rule), vocabulary, heldout, memory, progress)
    else:
        others = [] if request.heldout is None else files_of(request.heldout)
        source = _arrays(form, files_of(where), others, request, memory, progress, rule)
    if request.features not in (None, source.features):
        raise IngestError(f"The source has {source.features} features, not {request.features}.", "Correct the number.")
    if vocabulary is not None:
        if request.kind == "words":
            raise IngestError("Words are kept as they are, without a vocabulary.", "Leave one of the two out.")
        if source.kind != "counts":
            raise IngestError("Dense rows have no vocabulary.", "Leave it out, or ingest counts.")
        if len(vocabulary) != source.features:
            raise IngestError(
                f"The vocabulary has {len(vocabulary)} tokens, the source {source.features} columns.", "Use its own."
            )
        if source.vocabulary not in (None, vocabulary):
            raise IngestError("The source has another vocabulary than the one given.", "Use the source's.")
        if isinstance(source, (DenseSource, MatrixSource)):
            source.vocabulary = vocabulary
    return source


def _frames(where: Where, request: IngestRequest, progress: Progress | None, rule: Rule) -> FrameSource:
    if request.kind not in (None, "rows"):
        raise IngestError("Frames are dense rows.", "Leave the kind out.")
    if request.dtype not in (None, "float32"):
        raise IngestError("Frames are stored as float32, which holds 16 bits exactly.", "Leave the dtype out.")
    per_client = FRAMES_PER_CLIENT if request.frames_per_client is None else request.frames_per_client
    stride = 1 if request.frame_stride is None else request.frame_stride
    for folder in [where] if isinstance(where, (str, Path)) else where:
        others = [one for one in text_files(Path(folder)) if SUFFIXES.get(one.suffix.lower()) not in OF_FRAMES]
        if others:
            raise IngestError(
                f"{others[0]} is in the folder of frames, but its name is not that of frames.",
                "Move it away, or pass a pattern such as 'FOLDER/*.png'.",
            )
    return FrameSource(files_of(where), per_client, stride, request.array, progress, rule)


def _text(
    where: Where, request: IngestRequest, vocabulary: tuple[str, ...] | None, progress: Progress | None, rule: Rule
) -> TextSource:
    if request.kind == "rows":
        raise IngestError("Text gives counts, not dense rows.", "Leave the kind out.")
    if vocabulary is None and request.kind != "words":
        raise IngestError(
            "Text needs a public vocabulary.",
            "Give a vocabulary file with one token a line; or keep the words, to release a private vocabulary "
            "(--kind words).",
        )
    if not isinstance(where, (str, Path)) or not isinstance(request.heldout, (str, Path, type(None))):
        raise IngestError("Text is read from one folder.", "Name one folder.")
    heldout = None if request.heldout is None else Path(request.heldout)
    client, documents = request.client or "file", request.documents
    return TextSource(Path(where), vocabulary, request.tokeniser, client, heldout, documents, progress, rule)


def table_files(where: Where, form: Format, request: IngestRequest, spill: Path | None = None) -> list[TableFile]:
    """The files of a table, with the columns that the names of their folders have. Raises IngestError,
    ExtraMissing."""
    if form == "sql":
        with needs("The SQL query", "duckdb"):
            import_module("duckdb")  # without types
    with needs("A table", "pyarrow", "Or ingest arrays: .npz, .npy."):
        import pyarrow  # noqa: F401
    if form == "sql":
        return [SqlQuery(_query(where), spill)]
    missing = missing_texts(request.na)
    made: list[TableFile] = []
    for folder in [where] if isinstance(where, (str, Path)) else where:
        root = Path(folder)
        for path in files_of(folder):
            file = _table_file(path, form, request, missing)
            partition = partition_of(path, root) if root.is_dir() else {}
            made.append(Partitioned(file, path, partition, missing) if partition else file)
    return made


def _table_file(path: Path, form: Format, request: IngestRequest, missing: frozenset[str]) -> TableFile:
    own = request.format or SUFFIXES.get(path.suffix, form)
    form = own if own in TABLES else form
    if form == "parquet":
        return ParquetFile(path)
    if form == "arrow":
        return ArrowFile(path)
    longest = request.longest_record or LONGEST_RECORD
    if form == "jsonl":
        return JsonFile(path, missing, longest, request.encoding or "utf-8")
    delimiter = request.delimiter or ("\t" if path.suffix == ".tsv" else ",")
    return CsvFile(path, delimiter, missing, request.decimal or ".", longest, request.encoding or "utf-8")


def _query(where: Where) -> Path | str:
    """The file of a query, or the query. Raises IngestError."""
    if not isinstance(where, (str, Path)):
        raise IngestError("One query is read at a time.", "Give one, with UNION ALL if need be.")
    if isinstance(where, str) and len(where.split()) > 1 and not where.endswith(".sql"):
        return where
    refuse_odd(Path(where))
    return Path(where)


def _arrays(
    form: Format,
    files: list[Path],
    heldout: list[Path],
    request: IngestRequest,
    memory: int,
    progress: Progress | None,
    rule: Rule,
) -> DenseSource | MatrixSource:
    if request.kind == "words":
        raise IngestError("Words are read from text, CSV or Parquet.", "Leave the kind out.")
    array, prefix, heldout_prefix = request.array or "x", request.prefix, request.heldout_prefix
    known = array_names(files[0]) if form == "npz" else []
    matrix = form == "npz" and (prefix is not None or "indptr" in known or "train_indptr" in known)
    if form == "npz":
        other_kind = OF_DENSE if matrix else OF_SPARSE
        takes = [name for name in _taken_by(form) if name not in other_kind or (name == "heldout" and matrix)]
        _refuse_other_options(request, takes, f"{'sparse matrices' if matrix else 'dense rows'} in npz")
    if not matrix:
        client, kind = client_of(request), request.kind or "rows"
        if form == "npy" and request.client is None and client is not None:
            raise IngestError(
                "Rows in an NPY file need client ids in another file.",
                "Name that file (--client ids.npy), or ingest every row as a record: --unit record.",
            )
        return DenseSource(files, client, array, kind, heldout, request.dtype, memory, progress, rule)
    if request.kind == "rows":
        raise IngestError(f"{files[0]} holds sparse counts, not dense rows.", "Leave the kind out.")
    if heldout:
        raise IngestError(
            "The held-out part of a sparse matrix is another matrix in the same file.",
            "Name it by its prefix (heldout_prefix).",
        )
    if prefix is None:
        prefix = "" if "indptr" in known else "train"
        if prefix == "train" and heldout_prefix is None and "test_indptr" in known:
            heldout_prefix = "test"
    other = None if heldout_prefix is None else _start_of_names(heldout_prefix)
    return MatrixSource(files, _start_of_names(prefix), other, request.client, memory, progress, rule)


def brings_heldout(source: Source, request: IngestRequest) -> bool:
    """Whether the source has separate held-out data."""
    return request.heldout is not None or (isinstance(source, MatrixSource) and source.heldout_prefix is not None)


def image_of(source: Source, request: IngestRequest) -> tuple[int, int] | None:
    """(height, width) of the picture that a row is, as the request says, or arrays of pictures. Raises IngestError."""
    given = source.image if isinstance(source, (DenseSource, FrameSource)) else None
    if request.image is None:
        return given
    height, by, width = str(request.image).lower().partition("x")
    if not (by and height.isdecimal() and width.isdecimal()):
        raise IngestError(f"The image {request.image!r} is not of the form HEIGHTxWIDTH.", "Write it as 28x28.")
    image = (int(height), int(width))
    if fault := image_fault(image, source.kind == "rows", source.features):
        raise IngestError(f"{fault[0].upper()}{fault[1:]}.", "Give the height and the width of the pictures.")
    if given not in (None, image):
        raise IngestError(f"The pictures are of {given[0]} x {given[1]}, not {request.image}.", "Leave the image out.")
    return image


def _start_of_names(prefix: str) -> str:
    return f"{prefix}_" if prefix else ""
