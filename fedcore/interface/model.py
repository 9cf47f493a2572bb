"""A trained run as values: its state, metrics, result, statement, and what it gives to clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, RunError
from fedcore.evaluation.export import Learnt, export_run
from fedcore.evaluation.run_summary import privacy_of
from fedcore.evaluation.scikit_learn import estimator_of
from fedcore.population.blocks import ClientBlock
from fedcore.population.store import Population
from fedcore.rounds.method import ROWS, AnyMethod, State
from fedcore.rounds.results import Table
from fedcore.runs.store import LoadedRun, Run
from fedcore.runs.store import load_run as read_run
from fedcore.storage.files import Place
from fedcore.training.personalise import check_fits, remembering_leaves


@dataclass(frozen=True, repr=False)
class Model(LoadedRun):
    """A trained run: path, info (what was asked), head, state (arrays and scalars by name), metrics (a row a round)."""

    def __repr__(self) -> str:
        outcome = f": {self.outcome}" if self.outcome else ""
        return f"<run {self.id!r} of {self.info['method']}, {self.status}{outcome}>"

    @property
    def id(self) -> str:
        """The name of the run."""
        return str(self.info["run_id"])

    @property
    def status(self) -> str:
        """finished, running, failed, abandoned, trained or "budget exhausted"."""
        return str(self.head["status"])

    @property
    def outcome(self) -> str:
        """What the run has found, or why nothing, in one line; empty if its method does not tell."""
        return str(self.head.get("outcome") or "")

    @cached_property
    def statement(self) -> dict[str, Any]:
        """The privacy statement: "text" for people, "private" whether it claims anything, and its numbers."""
        return privacy_of(self._run)

    @cached_property
    def tables(self) -> dict[str, Table]:
        """What the run has learnt, by name of the table; see `columns`. Empty before the first round."""
        return {table.name: table for table in self.learnt.result.tables}

    def columns(self, table: str) -> dict[str, list[Any]]:
        """A table of the result, its columns by heading, as pandas.DataFrame takes them. Raises KeyError."""
        return {column.name: list(column.values) for column in self.tables[table].columns}

    def errors(self, table: str) -> dict[str, list[float | None]]:
        """The columns of a table that have standard errors, by heading: what the noise of privacy alone gives each
        number, None where that is not known. Empty for runs that are not private. Raises KeyError."""
        columns = self.tables[table].columns
        return {column.name: list(column.errors) for column in columns if column.errors is not None}

    def personalised(self, population: Population | str | None = None) -> dict[str, np.ndarray]:
        """What the model gives to each client, in memory; `fedcore personalise` writes it to files, whatever its size.

        population: a population, or the place of one; None: the one that it was trained on
        Returns arrays by name, first axis = clients in the order of the population; those whose names begin with
        "rows_" have a row for each stored row. They contain the clients' own data and are not private. Raises RunError
        or WrongKind.
        """
        if population is None:
            recorded = self.info["population"]
            population = Population.open(recorded["path"], version=recorded["version"])
        elif isinstance(population, str):
            population = Population.open(population)
        run, (method, state) = self._run, self.fitted
        check_fits(run, population)
        leaves = [
            method.personalise(state, leaf, kept) for _, leaf, kept in remembering_leaves(run, population, method)
        ]
        return _together(leaves)

    def outputs(self, block: ClientBlock) -> dict[str, np.ndarray]:
        """What the model gives to the clients of a block that is in memory. Raises RunError where the method needs what
        its clients remember."""
        method, state = self.fitted
        return dict(method.personalise(state, block, None))

    def to_sklearn(self) -> Any:
        """The same model as a fitted estimator of scikit-learn: a GaussianMixture, or a DictionaryLearning of the atoms
        that all clients share. Raises ConfigError for models that have no such counterpart, RunError without a model.
        """
        method, state = self.fitted
        return estimator_of(method.fitted_model(state), self.learnt.names)

    def export(
        self, path: str | Path, table: str | None = None, *, force: bool = False, safe_cells: bool = False
    ) -> dict[str, Any]:
        """Write what the run has learnt to a file or folder, in the form that the name asks for, as `fedcore export`.

        path: a folder, or a name that ends in .csv, .parquet, .json, .npz, .zarr, .joblib or .pkl
        table: the one that a .csv or .parquet file holds; force: whether a file that exists is replaced
        safe_cells: of CSV files, whether texts that a spreadsheet would run as formulas get an apostrophe before them
        Returns {"dest", "holds", ...}. Raises ConfigError, RunError: `fedcore.evaluation.export.export_run`.
        """
        return export_run(self.learnt, path, table, force=force, safe_cells=safe_cells)

    @cached_property
    def fitted(self) -> tuple[AnyMethod, State]:
        """The method with its settings, and its last state."""
        return self.learnt.trained

    @cached_property
    def learnt(self) -> Learnt:
        """What is exported; what was read of it stays known when the files of the run are gone."""
        return Learnt(self._run)

    @property
    def _run(self) -> Run:
        return Run(self.path, self.info, self.head)


def load_run(path: str | Place) -> Model:
    """Read a run without executing anything from it; safe on files from elsewhere.

    path: the run's folder or URL, or the file latest-NAME.json that says which run is the latest of a deployment.
    Raises RunNotFound or RunError.
    """
    read = read_run(path)
    return Model(read.path, read.info, read.head, read.state, read.metrics)


def finished(path: str | Place) -> Model:
    """The run, which has parameters. Raises RunError otherwise."""
    model = load_run(path)
    if model.status != "finished":
        raise RunError(f"run {model.id!r} is {model.status}.", "Resume it first.")
    return model


def _together(leaves: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    names = leaves[0].keys() if leaves else ()
    widths = {name: {leaf[name].shape[1:] for leaf in leaves} for name in names}
    for name, shapes in widths.items():
        if len(shapes) > 1:
            raise ConfigError(f"the output {name!r} has no single shape.", "Write it with `fedcore personalise`.")
    return {name: np.concatenate([leaf[name] for leaf in leaves]) for name in names}


def of_rows(outputs: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The output of this name for every row."""
    return outputs[f"{ROWS}{name}"]
