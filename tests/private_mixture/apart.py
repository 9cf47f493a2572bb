"""Ten generators that no choice in the method was made with, for the forecast."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import sklearn.datasets

ROWS, HELD_OUT, COMPONENTS = 8000, 2000, 8


def _skewed(n: int, generator: np.random.Generator) -> np.ndarray:
    """Five columns of one factor, skewed by different powers."""
    z = generator.normal(size=(n, 5)) + generator.normal(size=(n, 1))
    return np.sign(z) * np.abs(z) ** np.array([1.0, 1.5, 2.0, 2.5, 3.0]) + np.exp(0.5 * z)


def _series(n: int, generator: np.random.Generator) -> np.ndarray:
    """Windows of six steps of a random walk that is drawn back."""
    x, found = generator.normal(size=n), []
    for _ in range(6):
        x = 0.9 * x + 0.4 * generator.normal(size=n)
        found.append(x)
    return np.column_stack(found)


def _counts(n: int, generator: np.random.Generator) -> np.ndarray:
    """Six counts of one rate for each row."""
    return generator.poisson(generator.gamma(1.5, 4.0, (n, 1)) * np.geomspace(0.3, 6.0, 6)).astype(np.float64)


def _shares(n: int, generator: np.random.Generator) -> np.ndarray:
    """Four of five shares of a whole."""
    return generator.dirichlet([0.7, 1.0, 2.0, 4.0, 8.0], n)[:, :4]


def _unequal(n: int, generator: np.random.Generator) -> np.ndarray:
    """Four groups of Student's t with 3 degrees of freedom, of different sizes and scales."""
    group = generator.choice(4, n, p=[0.5, 0.25, 0.15, 0.1])
    centres = 8 * generator.normal(size=(4, 7))
    return centres[group] + np.array([0.5, 1.0, 2.0, 4.0])[group, None] * generator.standard_t(3, (n, 7))


def _board(n: int, generator: np.random.Generator) -> np.ndarray:
    """The dark fields of a board, and a column of noise."""
    field = generator.integers(0, 8, n)
    x = np.column_stack([field % 4, 2 * (field // 4) + field % 2]) + generator.random((n, 2))
    return np.column_stack([x, generator.normal(size=n)])


def _curve(n: int, generator: np.random.Generator) -> np.ndarray:
    """A sheet that is bent to an S."""
    return sklearn.datasets.make_s_curve(n, noise=0.05, random_state=int(generator.integers(2**31)))[0]


def _response(n: int, generator: np.random.Generator) -> np.ndarray:
    """Ten even columns, and a response to five of them."""
    x, y = sklearn.datasets.make_friedman1(n, noise=1.0, random_state=int(generator.integers(2**31)))
    return np.column_stack([x, y])


def _bills(n: int, generator: np.random.Generator) -> np.ndarray:
    """Visits, many of them zero, and what they cost, with age and sums that depend on it."""
    age = generator.uniform(18, 90, n)
    visits = generator.poisson(np.exp(0.02 * (age - 60)))
    costs = np.where(visits > 0, np.round(generator.gamma(2.0, 50.0, n) * visits, 2), 0.0)
    return np.column_stack([age, visits, costs, 100 + 0.5 * age + 15 * generator.normal(size=n)])


def _uneven(n: int, generator: np.random.Generator) -> np.ndarray:
    """Noise that grows with the first of eight columns."""
    x = generator.normal(size=(n, 8))
    x[:, 1:] *= np.exp(0.8 * x[:, :1])
    return x


TABLES: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "5 skewed columns": _skewed,
    "6 steps of a walk": _series,
    "6 counts": _counts,
    "4 shares": _shares,
    "4 groups with heavy tails": _unequal,
    "fields of a board": _board,
    "a bent sheet": _curve,
    "10 even columns and a response": _response,
    "visits and costs": _bills,
    "8 columns of uneven noise": _uneven,
}


def sets() -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """Rows to train, rows held out, components."""
    found = {}
    for name, make in TABLES.items():
        x = make(ROWS + HELD_OUT, np.random.default_rng([*name.encode()]))
        found[name] = (x[:ROWS], x[ROWS:], COMPONENTS)
    return found
