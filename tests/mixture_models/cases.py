"""One small instance of every model, with rows that it can explain, for the laws that all models keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from fedcore.methods.mixture_models.counts import BernoulliMixture, MultinomialMixture, PoissonMixture
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputer import GaussianImputer
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables
from fedcore.methods.mixture_models.regression import RegressionMixture
from fedcore.methods.mixture_models.student import DEGREES, with_tails


@dataclass(frozen=True)
class Case:
    """each: rows of the arrays that make one observation of the model (a table's rows, otherwise 1)."""

    model: object
    y: object
    theta: dict[str, np.ndarray]
    free: tuple[str, ...]  # parameters that may be moved freely; the others follow from them
    each: int = 1

    @property
    def observations(self) -> int:
        return self.y.shape[0] // self.each

    def objective(self, theta) -> float:
        """F(theta)."""
        return -self.model.log_likelihood(theta, self.y).mean() + self.model.penalty(theta)


WEIGHTS = np.array([0.2, 0.3, 0.5])


def _gaussian(covariance: str, penalty: bool = False) -> Case:
    rng = np.random.default_rng(1)
    d, g = 3, 3
    means = rng.normal(0, 1.5, (g, d)) + 1.0
    y = means[rng.integers(0, g, 60)] + rng.standard_normal((60, d))
    spd = np.array([np.cov(rng.standard_normal((d, 8))) + 0.3 * np.eye(d) for _ in range(g)])
    covariances = {
        "spherical": np.array([0.7, 1.1, 1.6]),
        "diag": rng.uniform(0.5, 2, (g, d)),
        "tied": spd[0],
        "full": spd,
    }
    extra = {"nu": 0.3, "lam": np.diag([0.1, 0.2, 0.3]), "a": 0.05} if penalty else {}
    if penalty and covariance in ("tied", "full"):
        extra["lam"] = 0.2 * spd[1]
    if covariance == "known":
        extra = {"known": spd[1]} | ({"a": 0.05} if penalty else {})
    model = GaussianMixture(g, d, covariance, centre=np.ones(d) / 2, **extra)
    theta = {"weights": WEIGHTS, "means": means + rng.normal(0, 0.3, (g, d))}
    if covariance != "known":
        theta["covariances"] = covariances[covariance]
    return Case(model, y, theta, tuple(theta))


def _student(covariance: str, penalty: bool = False) -> Case:
    """The same rows, of which some are far away."""
    normal = _gaussian(covariance, penalty)
    y = normal.y.copy()
    y[::7] *= 4.0
    theta = {**normal.theta, DEGREES: np.array([4.0])}
    return Case(with_tails(normal.model, 4.0), y, theta, normal.free)


def _regression(intercept: bool) -> Case:
    rng = np.random.default_rng(2)
    b = rng.normal(0, 1, (3, 2 + intercept))
    u = rng.standard_normal((60, 2))
    full = np.hstack([u, np.ones((60, 1))]) if intercept else u
    v = np.einsum("ij,ij->i", full, b[rng.integers(0, 3, 60)]) + 0.3 * rng.standard_normal(60)
    model = RegressionMixture(3, 3, intercept, ridge=0.4, nu=0.1, lam=0.05, a=0.02)
    theta = {"weights": WEIGHTS, "coefficients": b + 0.2, "variances": np.array([0.2, 0.5, 0.9])}
    return Case(model, np.column_stack([u, v]), theta, tuple(theta))


def _counts(kind: str, sparse: bool) -> Case:
    rng = np.random.default_rng(3)
    v = 5
    if kind == "bernoulli":
        p = rng.uniform(0.1, 0.9, (3, v))
        y = (rng.random((60, v)) < p[rng.integers(0, 3, 60)]).astype(float)
        case = BernoulliMixture(3, v, a=0.1), {"weights": WEIGHTS, "probabilities": p[::-1]}
    elif kind == "poisson":
        rates = rng.uniform(0.3, 4, (3, v))
        y = rng.poisson(rates[rng.integers(0, 3, 60)]).astype(float)
        case = PoissonMixture(3, v, a=0.2, b=0.1), {"weights": WEIGHTS, "rates": rates * 1.2}
    else:
        p = rng.dirichlet(np.ones(v), 3)
        y = np.array([rng.multinomial(8, p[i]) for i in rng.integers(0, 3, 60)], float)
        case = MultinomialMixture(3, v, a=0.1, length=8.0), {"weights": WEIGHTS, "probabilities": 0.5 * p + 0.1}
    return Case(case[0], sp.csr_matrix(y) if sparse else y, case[1], tuple(case[1]))


def _tables(family: str) -> Case:
    rng = np.random.default_rng(4)
    j, columns = 5, 4
    natural = 0.8 * rng.standard_normal((j, 2)) @ rng.standard_normal((2, columns))
    shape = (8, j, columns)
    if family == "gaussian":
        x = natural + rng.standard_normal(shape)
    elif family == "poisson":
        x = rng.poisson(np.exp(natural), shape).astype(float)
    else:
        x = (rng.random(shape) < 1 / (1 + np.exp(-natural))).astype(float)
    x[rng.random(shape) < 0.5] = np.nan
    model = LowRankTables(j, columns, family, lam=0.15)
    return Case(model, x.reshape(-1, columns), {"natural": natural}, ("natural",), each=j)


def _imputer(rank: int | None) -> Case:
    rng = np.random.default_rng(5)
    d = 4
    y = rng.standard_normal((60, 2)) @ rng.standard_normal((2, d)) + 0.4 * rng.standard_normal((60, d)) + 1.0
    y[rng.random(y.shape) < 0.3] = np.nan
    y[0] = np.nan
    model = GaussianImputer(d, rank, centre=np.full(d, 0.5), nu=0.1, lam=0.05)
    covariance = np.cov(rng.standard_normal((d, 12))) + 0.4 * np.eye(d)
    if rank is not None:
        values, vectors = np.linalg.eigh(covariance)
        values[: d - rank] = values[: d - rank].mean()
        covariance = (vectors * values) @ vectors.T
    return Case(model, y, {"mean": rng.normal(1, 0.3, d), "covariance": covariance}, ("mean", "covariance"))


MAKERS: dict[str, Callable[[], Case]] = {
    **{
        f"{kind}{'-penalised' * p}": lambda kind=kind, p=p: _gaussian(kind, p)
        for kind in ("known", "spherical", "diag", "tied", "full")
        for p in (False, True)
    },
    **{
        f"student-{kind}{'-penalised' * p}": lambda kind=kind, p=p: _student(kind, p)
        for kind in ("spherical", "diag", "full")
        for p in (False, True)
    },
    "regression": lambda: _regression(False),
    "regression-intercept": lambda: _regression(True),
    **{
        f"{kind}{'-csr' * sparse}": lambda kind=kind, sparse=sparse: _counts(kind, sparse)
        for kind in ("poisson", "multinomial", "bernoulli")
        for sparse in (False, True)
    },
    **{f"tables-{family}": lambda family=family: _tables(family) for family in ("gaussian", "poisson", "bernoulli")},
    "imputer": lambda: _imputer(None),
    "ppca": lambda: _imputer(2),
}

_MADE: dict[str, Case] = {}


def case(name: str) -> Case:
    if name not in _MADE:
        _MADE[name] = MAKERS[name]()
    return _MADE[name]


def moved(theta: dict[str, np.ndarray], direction: dict[str, np.ndarray], by: float) -> dict[str, np.ndarray]:
    """theta moved along a direction, kept on its manifold to first order: weights by softmax, the rest as it is."""
    result = {}
    for name, value in theta.items():
        if name == "weights":
            result[name] = value * np.exp(by * direction[name])
            result[name] /= result[name].sum()
        else:
            result[name] = value + by * direction[name]
    return result


def directions(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A random tangent direction: symmetric for matrices, summing to zero over tokens of a multinomial."""
    result = {}
    for name, value in case.theta.items():
        step = rng.standard_normal(value.shape)
        if (
            name in ("covariance", "covariances")
            and value.ndim >= 2
            and value.shape[-1] == value.shape[-2]
            and (name == "covariance" or case.model.covariance in ("tied", "full"))
        ):
            step = (step + np.swapaxes(step, -1, -2)) / 2
        if isinstance(case.model, MultinomialMixture) and name == "probabilities":
            step -= step.mean(axis=1, keepdims=True)
        if name in ("probabilities", "covariances", "covariance"):
            step *= 0.1
        result[name] = step
    return result
