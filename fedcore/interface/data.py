"""Arrays and files as populations: what an estimator is given becomes what the engine reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy

from fedcore.errors import ConfigError, PopulationNotFound
from fedcore.interface.tables import ROWS_OF_A_PART, are_nobodys, rows_of_nobody
from fedcore.population.blocks import Kind
from fedcore.population.identifiers import STRIPPED, spelled
from fedcore.population.ingest.ingest import ingest
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter

Groups: TypeAlias = Sequence[Any] | np.ndarray | str | None


@dataclass(frozen=True)
class Stored:
    """A population, and where it has the rows that it was made of.

    order: (n,) int64, the row of the given array that is each stored row; None for files and populations
    clients: (C,) ids of the clients in the order in which they are stored; None for rows without groups
    """

    population: Population
    order: np.ndarray | None = None
    clients: np.ndarray | None = None

    def ids(self) -> np.ndarray:
        """(C,) ids of the clients in the order in which they are stored."""
        if self.clients is not None:
            return self.clients
        return np.concatenate([self.population.client_ids(index) for index in range(len(self.population.blocks))])

    def in_given_order(self, stored: np.ndarray) -> np.ndarray:
        """(n, ...) values of stored rows, in the order in which the rows were given."""
        if self.order is None:
            return stored
        given = np.empty_like(stored)
        given[self.order] = stored
        return given


def rows_stored(x: np.ndarray, groups: Groups, folder: Path, records: bool = False, **options: Any) -> Stored:
    """x: (n, d) float32 or float64, NaN = missing; groups: (n,) the client of each row; None: rows without clients.

    records: whether rows without groups are separate records, each protected by itself, and not parts of a sum
    options: of `PopulationWriter`
    Raises ConfigError if x and groups differ in length, PopulationError.
    """
    leaf: dict[str, Any] = {}
    if groups is None and records:
        names, ends = [f"row {number}" for number in range(len(x))], np.arange(len(x) + 1)
        order, ids, leaf = np.arange(len(x)), None, {"records": True}
    elif groups is None:
        ends = np.append(np.arange(0, len(x), ROWS_OF_A_PART), len(x))
        names = [f"rows {low}-{high - 1}" for low, high in zip(ends[:-1], ends[1:], strict=True)]
        order, ids, leaf = np.arange(len(x)), None, {"clients_per_leaf": 1}
    else:
        labels = checked_groups(groups, len(x))
        ids, codes = np.unique(labels, return_inverse=True)
        order = np.argsort(codes, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(ids)))])
        names, x = [str(one) for one in ids.tolist()], x[order]
    with PopulationWriter(folder, "rows", x.shape[1], dtype=x.dtype.name, **(leaf | options)) as writer:
        writer.write(names, (ends.astype(np.int64), x))
        return Stored(writer.commit(Provenance(sources=("an array",))), order, ids)


def counts_stored(x: scipy.sparse.csr_matrix, folder: Path, **options: Any) -> Stored:
    """x: (C, d) whole numbers >= 0, a client a row. options: of `PopulationWriter`. Raises PopulationError."""
    with PopulationWriter(folder, "counts", x.shape[1], **options) as writer:
        writer.write([f"client {number}" for number in range(x.shape[0])], x)
        return Stored(writer.commit(Provenance(sources=("an array",))), clients=np.arange(x.shape[0]))


def opened(
    where: str | Path, groups: Groups, folder: Path, kind: Kind, records: bool = False, **options: Any
) -> Population:
    """The population at `where`; or one that is made in `folder` of the files there, a name, a folder or a pattern.

    groups: the column of the files that names the client; None: the one that is called "client". Where there is none,
        rows have no client (`fedcore.interface.tables`)
    records: whether every row of files without groups is a separate record
    Raises ConfigError if groups are given otherwise, and what `fedcore.population.ingest.ingest.ingest` raises.
    """
    if groups is not None and not isinstance(groups, str):
        raise ConfigError("groups of files are the name of a column.", 'Write groups="client".')
    try:
        return Population.open(str(where))
    except PopulationNotFound:
        if records and groups is None:
            return ingest(str(where), folder, kind=kind, unit="record", **options)
        if groups is None and kind == "rows" and are_nobodys(str(where)):
            return rows_of_nobody(str(where), folder, **options)
        return ingest(str(where), folder, kind=kind, client=groups, **options)


def checked_groups(groups: Groups, rows: int) -> np.ndarray:
    """(rows,) array of labels; text, and bytes as UTF-8, are spelled as a population stores ids. Raises ConfigError for
    labels of other types among text, and for missing ones; PopulationError for text that cannot be an id.
    """
    labels = np.asarray(groups)
    if labels.shape != (rows,):
        raise ConfigError(
            f"groups has the shape {labels.shape}, and X has {rows} rows.", "Give the client of every row of X."
        )
    if labels.dtype.kind not in "OSTU":
        return labels
    given = [one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else one for one in labels.tolist()]
    others = [row for row, one in enumerate(given) if not isinstance(one, str)]
    if len(others) == rows and labels.dtype.kind == "O":
        return labels
    if others:
        raise ConfigError(
            f"groups holds text and other values: the label of row {others[0]} is of type "
            f"{type(given[others[0]]).__name__}.",
            "Give every row a label, all of the same type.",
        )
    return np.array(spelled(given, STRIPPED), object if labels.dtype.kind in "OT" else str)


def check_given(groups: Groups) -> None:
    """Raises ConfigError if there are no groups."""
    if groups is None:
        raise ConfigError("the clients of the rows are not given.", "Pass groups=..., the client of each row.")


def places_of(clients: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(n,) int64 where each of the labels (n,) is among the ids (C,) of fitted clients. Raises ConfigError for one that
    is not there."""
    order = np.argsort(clients, kind="stable")
    found = np.searchsorted(clients, labels, sorter=order).clip(max=len(order) - 1)
    places: np.ndarray = order[found]
    strangers = labels[clients[places] != labels]
    if len(strangers):
        raise ConfigError(f"client {strangers[0]!r} was not there when the model was fitted.", "Fit with its rows.")
    return places
