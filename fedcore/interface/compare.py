"""Two models on the same rows: how much likelier one of them finds the rows, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcore.errors import ConfigError
from fedcore.evaluation.evaluate import check_public
from fedcore.interface.data import Groups, checked_groups
from fedcore.interface.model import Model, load_run, of_rows
from fedcore.population.blocks import RowsBlock, leaves
from fedcore.population.store import Population

CLEAR = 2.0  # standard errors
ROWS_AT_ONCE = 2**16


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean difference of the log densities of the same rows: first model minus second, in nats per row.

    Above 0 the first model is better.

    difference: the mean difference, nats per row
    standard_error: of the difference, nats per row. Where rows have clients it is computed over clients, since rows of
        one client are similar; None for fewer than 2 of them
    rows: number of compared rows
    clients: number of compared clients; None for rows without clients
    left_out: number of rows to which a model gives no density
    """

    difference: float
    standard_error: float | None
    rows: int
    clients: int | None
    left_out: int

    @property
    def clear(self) -> bool:
        """Whether the difference is more than two standard errors from 0."""
        return self.standard_error is not None and abs(self.difference) > CLEAR * self.standard_error

    def __str__(self) -> str:
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2g}"
        of = f"{self.rows} rows" + ("" if self.clients is None else f" of {self.clients} clients")
        out = f"; {self.left_out} rows have no density" if self.left_out else ""
        which = "first" if self.difference > 0 else "second"
        said = f"the {which} model is better" if self.clear else "no clear difference"
        return f"{said}: {self.difference:+.4g}{error} nats a row ({of}{out})"


def compare(one: Any, other: Any, data: Any, groups: Groups = None) -> Comparison:
    """Compare two models by the log densities that they give the same rows, best rows that neither was trained on.

    The comparison is of these rows and is not private, even of private models.

    one, other: fitted estimators with `score_samples` (of fedcore or scikit-learn), runs (`fedcore.load_run`), or the
        folders or URLs of runs
    data: (n, d) rows; or a population, or its folder or URL, which is read in parts and must be public for evaluation
    groups: (n,) the client of each row of an array; None: rows are independent. A population specifies its clients
    Returns a `Comparison`, whose text is one line.
    Raises ConfigError for a model that gives rows no density, and for groups with a population; PrivacyError for a
    population that is not public for evaluation; RunError, PopulationError.

    >>> import numpy as np, fedcore
    >>> from sklearn.mixture import GaussianMixture
    >>> x = np.concatenate([np.random.default_rng(0).normal(size=(200, 2)) + at for at in (-4, 4)])
    >>> one, two = (GaussianMixture(k, random_state=0).fit(x) for k in (1, 2))
    >>> fedcore.compare(two, one, x).clear
    True
    """
    models = [load_run(model) if isinstance(model, str) else model for model in (one, other)]
    sums = _Sums()
    for x, owners in _parts(data, groups):
        first, second = (_log_densities(model, x) for model in models)
        sums.add(first - second, owners)
    clients = None if groups is None and not isinstance(data, (str, Population)) else sums.clients
    return Comparison(sums.mean, sums.standard_error, sums.rows, clients, sums.left_out)


def _parts(data: Any, groups: Groups) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows, whose they are), with all rows of a client in the same part."""
    if isinstance(data, (str, Population)):
        if groups is not None:
            raise ConfigError("groups are given with a population, which names its clients.", "Leave them out.")
        population = data if isinstance(data, Population) else Population.open(data)
        check_public(population)
        for index in range(len(population.blocks)):
            for leaf in leaves(population.read(index), population.clients_per_leaf):
                if not isinstance(leaf, RowsBlock):
                    raise ConfigError(f"population {population.path.name!r} holds {population.kind}, not rows.")
                yield np.asarray(leaf.x), np.repeat(np.arange(leaf.clients), np.diff(leaf.ptr))
        return
    x = np.asarray(data)
    if x.ndim != 2:
        raise ConfigError(f"data have the shape {x.shape}.", "Give rows as an array of two axes.")
    if groups is not None:
        yield x, np.unique(checked_groups(groups, len(x)), return_inverse=True)[1]
        return
    for low in range(0, len(x), ROWS_AT_ONCE):
        part = x[low : low + ROWS_AT_ONCE]
        yield part, np.arange(len(part))


def _log_densities(model: Any, x: np.ndarray) -> np.ndarray:
    if not isinstance(model, Model):
        if not hasattr(model, "score_samples"):
            raise ConfigError(f"{type(model).__name__} gives rows no log density.", "Compare mixtures.")
        found: np.ndarray = model.score_samples(x)
        return found
    outputs = model.outputs(RowsBlock(0, 0, np.array([0, len(x)]), x))
    if "rows_log_density" not in outputs:
        raise ConfigError(
            f"run {model.id!r} of {model.info['method']} gives rows no log density.", "Compare mixtures of rows."
        )
    return of_rows(outputs, "log_density")


class _Sums:
    """Of the differences of rows and of clients, less the mean of the first part, so that no digits are lost."""

    def __init__(self) -> None:
        self.rows = self.clients = self.left_out = 0
        self.shift: float | None = None
        self.total = 0.0
        self.moments = np.zeros(3)  # sums over clients of s^2, s n and n^2, with s the sum of its n differences

    def add(self, differences: np.ndarray, owners: np.ndarray) -> None:
        """owners: (n,) numbers of the clients of this part, from 0."""
        known = ~np.isnan(differences)
        self.left_out += int(np.count_nonzero(~known))
        differences, owners = differences[known], owners[known]
        if not len(differences):
            return
        if self.shift is None:
            self.shift = float(differences.mean())
        differences = differences - self.shift
        n = np.bincount(owners).astype(np.float64)
        s = np.bincount(owners, differences)
        self.rows += len(differences)
        self.clients += int(np.count_nonzero(n))
        self.total += float(s.sum())
        self.moments += s @ s, s @ n, n @ n

    @property
    def mean(self) -> float:
        return (self.shift or 0.0) + self.total / self.rows if self.rows else float("nan")

    @property
    def standard_error(self) -> float | None:
        if self.clients < 2:
            return None
        off = self.total / self.rows
        squares = max(float(self.moments @ np.array([1.0, -2.0 * off, off * off])), 0.0)
        return math.sqrt(squares * self.clients / (self.clients - 1)) / self.rows
