"""Columns of tables that are in the names of folders, as Hive writes them: `year=2024/month=3`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

from fedcore.errors import IngestError
from fedcore.population.ingest.batches import NUMBERS, Account, left_out, listed
from fedcore.population.ingest.parts import Span
from fedcore.population.ingest.table_files import As, Piece, TableFile, _Kept, arrow_type

NOWHERE = "__HIVE_DEFAULT_PARTITION__"


def partition_of(file: Path, folder: Path) -> dict[str, str | None]:
    """Columns and values in the names of the folders between the two, as Hive writes them: `year=2024/month=3`."""
    found: dict[str, str | None] = {}
    for part in file.relative_to(folder).parts[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            found[unquote(name)] = None if value == NOWHERE else unquote(value)
    return found


class Partitioned:
    """A file with columns that its folders' names have, the same value in every record."""

    def __init__(self, file: TableFile, path: Path, partition: Mapping[str, str | None], missing: frozenset[str]):
        own = {name: value for name, value in partition.items() if name not in file.names}
        self.file, self.path, self.partition, self.missing = file, path, own, missing
        self.names = [*file.names, *own]
        self.name = "/".join([*(f"{name}={value}" for name, value in partition.items()), file.name])

    def spans(self, size: int, numbered: bool) -> list[Span]:
        return self.file.spans(size, numbered)

    def pieces(
        self, wanted: Mapping[str, As], size: int, account: Account, span: Span | None = None
    ) -> Iterator[Piece]:
        import pyarrow as pa

        mine = {name: kind for name, kind in wanted.items() if name in self.partition}
        kept = _Kept(mine, self.name, self.missing, ".")
        try:
            held = {name: kept._read(kind, self.partition[name]) for name, kind in kept.wanted.items()}
        except ValueError as error:
            names = [name for name, kind in kept.wanted.items() if kind == "number"]
            raise IngestError(
                f"{self.path}: {listed(names)} of the folders' names hold no numbers.",
                left_out(account.columns, names),
                remedy_without_values=NUMBERS,
            ) from error
        others = {name: kind for name, kind in wanted.items() if name not in self.partition}
        for piece in self.file.pieces(others, size, account, span):
            own = iter(piece.columns)
            yield Piece(
                [
                    pa.repeat(pa.scalar(held[name], arrow_type(kind)), len(piece.records))
                    if name in self.partition
                    else next(own)
                    for name, kind in wanted.items()
                ],
                piece.where,
                piece.records,
            )
