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
    """A trained run as values.

    path: folder or URL of the run
    info: its request, as run.json has it
    head: its status and its last committed round
    state: arrays and scalars of the last state, by name
    metrics: one row per round, a mapping of names to numbers
    """

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
        """The result in one line, or why there is none; empty if the method reports none."""
        return str(self.head.get("outcome") or "")

    @cached_property
    def statement(self) -> dict[str, Any]:
        """The privacy statement: "text" for people, "private" whether it claims anything, and its numbers."""
        return privacy_of(self._run)

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The result, by name of the table; see `columns`. Empty before the first round."""
        return {table.name: table for table in self.learnt.result.tables}

    def columns(self, table: str) -> dict[str, list[Any]]:
        """Return a table of the result, as pandas.DataFrame takes it.

        table: name of the table, one of `tables`
        Returns the values of each column, by its heading.
        Raises KeyError for a table that the result does not have.
        """
        return {column.name: list(column.values) for column in self.tables[table].columns}

    def errors(self, table: str) -> dict[str, list[float | None]]:
        """Return the standard errors of a table's columns that the privacy noise alone causes.

        table: name of the table, one of `tables`
        Returns the errors of each column that has them, by its heading; None where an error is unknown. Empty for runs
        that are not private.
        Raises KeyError for a table that the result does not have.
        """
        columns = self.tables[table].columns
        return {column.name: list(column.errors) for column in columns if column.errors is not None}

    def predict(self, population: Population | str | None = None) -> dict[str, np.ndarray]:
        """Compute the per-client output in memory; `fedcore predict` writes it to files, whatever its size.

        The output contains the clients' data and is not private.

        population: a population, or its folder or URL; None: the one that the run was trained on
        Returns arrays by name, first axis = clients in the order of the population; those whose names begin with
        "rows_" have a row for each stored row.
        Raises RunError, or WrongKind for a population of another kind.
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

    personalised = predict  # its name before 1.0

    def outputs(self, block: ClientBlock) -> dict[str, np.ndarray]:
        """Compute the per-client output of a block in memory.

        block: the clients' data
        Returns arrays by name, as `predict` does.
        Raises RunError where the method needs the client memory of the run.
        """
        method, state = self.fitted
        return dict(method.personalise(state, block, None))

    def to_sklearn(self) -> Any:
        """Return the model as a fitted estimator of scikit-learn.

        Returns a GaussianMixture, or a DictionaryLearning of the atoms that all clients share.
        Raises ConfigError for models without such a counterpart, RunError before the first round.
        """
        method, state = self.fitted
        return estimator_of(method.fitted_model(state), self.learnt.names)

    def export(
        self, path: str | Path, table: str | None = None, *, force: bool = False, safe_cells: bool = False
    ) -> dict[str, Any]:
        """Write the result to a file or folder, as `fedcore export` does.

        path: a folder, or a name that ends in .csv, .parquet, .json, .npz, .zarr, .joblib or .pkl, which sets the
            format
        table: name of the table, for a .csv or .parquet file
        force: whether to replace an existing file
        safe_cells: whether CSV texts that a spreadsheet would run as formulas get an apostrophe before them
        Returns {"dest", "holds", ...}.
        Raises ConfigError, RunError.
        """
        return export_run(self.learnt, path, table, force=force, safe_cells=safe_cells)

    @cached_property
    def fitted(self) -> tuple[AnyMethod, State]:
        """The method with its settings, and its last state."""
        return self.learnt.trained

    @cached_property
    def learnt(self) -> Learnt:
        """The exported result. What was read of it stays available when the files of the run are gone."""
        return Learnt(self._run)

    @property
    def _run(self) -> Run:
        return Run(self.path, self.info, self.head)


def load_run(path: str | Place) -> Model:
    """Read a run without executing anything from it; safe on files from elsewhere.

    path: folder or URL of the run, or the file latest-NAME.json that a deployment keeps
    Returns the run as values: `status`, `outcome`, `tables`, `metrics`, `statement` and its methods.
    Raises RunNotFound if there is none, RunError if its files are damaged.

    >>> import fedcore
    >>> trained = fedcore.train("federated_em", "heights", {"algorithm": "em"}, run_id="first")
    >>> fedcore.load_run("runs/first").statement["privacy"]
    'none'
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
            raise ConfigError(f"the output {name!r} has no single shape.", "Write it with `fedcore predict`.")
    return {name: np.concatenate([leaf[name] for leaf in leaves]) for name in names}


def of_rows(outputs: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The output of this name for every row."""
    return outputs[f"{ROWS}{name}"]
