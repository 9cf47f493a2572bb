"""The data on which private mixtures are measured: mixtures that touch, families with one group, and published sets.

Synthetic data are nobody's. Of the published sets, held-out rows are the set's own test part, or a fifth of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from fedcore.papers.data import needed_data

CONDITION = 30.0  # of the covariances of a mixture
TRAINING = 0.8  # share of the rows of a set without a test part of its own

Family = Callable[[int, int, np.random.Generator], np.ndarray]

# --- mixtures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """A mixture of normal distributions. weights (k,), means (k, d), covariances (k, d, d)."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray

    def log_joint(self, x: np.ndarray) -> np.ndarray:
        """(n, k) log of weight times density of rows (n, d)."""
        found = []
        for weight, mean, matrix in zip(self.weights, self.means, self.covariances, strict=True):
            lower = np.linalg.cholesky(matrix)
            own = np.linalg.solve(lower, (x - mean).T)
            found.append(
                np.log(weight)
                - 0.5 * (own**2).sum(axis=0)
                - np.log(np.diag(lower)).sum()
                - 0.5 * x.shape[1] * np.log(2 * np.pi)
            )
        return np.array(found).T

    def sample(self, n: int, generator: np.random.Generator, degrees: float | None = None):
        """(n, d) rows and their labels. degrees: of freedom of Student's t in place of normal components."""
        labels = generator.choice(len(self.weights), size=n, p=self.weights)
        z = generator.normal(size=(n, self.means.shape[1]))
        if degrees is not None:
            z /= np.sqrt(generator.chisquare(degrees, n) / degrees)[:, None]
        lower = np.linalg.cholesky(self.covariances)
        return self.means[labels] + np.einsum("nij,nj->ni", lower[labels], z), labels


def mixture(d: int, k: int, separation: float, generator: np.random.Generator) -> Truth:
    """Random directions, weights from .1 to .4, covariances of condition 30; the nearest two means lie `separation`
    of the largest standard deviation apart."""
    weights = generator.uniform(0.1, 0.4, k)
    covariances = []
    for _ in range(k):
        basis = np.linalg.qr(generator.normal(size=(d, d)))[0]
        values = np.geomspace(1.0, 1 / CONDITION, d)
        covariances.append((basis * values) @ basis.T)
    means = generator.normal(size=(k, d))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    means *= generator.uniform(0.8, 1.2, (k, 1))
    gaps = np.linalg.norm(means[:, None] - means, axis=2)[np.triu_indices(k, 1)]
    return Truth(weights / weights.sum(), means * separation / gaps.min(), np.array(covariances))


# --- one group ------------------------------------------------------------------------------------------------------


def _shape(z: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The rows under a random linear map of condition about 10."""
    d = z.shape[1]
    left, right = (np.linalg.qr(generator.normal(size=(d, d)))[0] for _ in range(2))
    return z @ ((left * np.geomspace(1.0, 0.1, d)) @ right)


def _directions(n: int, d: int, generator: np.random.Generator) -> np.ndarray:
    z = generator.normal(size=(n, d))
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def normal(n, d, generator):
    return _shape(generator.normal(size=(n, d)), generator)


def student(degrees):
    def rows(n, d, generator):
        z = generator.normal(size=(n, d)) / np.sqrt(generator.chisquare(degrees, (n, 1)) / degrees)
        return _shape(z, generator)

    return rows


def line(n, d, generator):
    return generator.uniform(-1, 1, (n, 1)) * _directions(1, d, generator) * 20 + generator.normal(size=(n, d))


def cube(n, d, generator):
    return generator.uniform(-1, 1, (n, d))


def banana(n, d, generator):
    x = generator.normal(size=(n, d))
    x[:, 0] *= 3
    x[:, 1] += 0.25 * x[:, 0] ** 2
    return x


def contaminated(n, d, generator):
    x = generator.normal(size=(n, d))
    wild = generator.random(n) < 0.1
    x[wild] += 5 * generator.standard_cauchy((int(wild.sum()), d))
    return x


def pair(n, d, generator):
    x = generator.normal(size=(n, d))
    return x + (generator.random((n, 1)) < 0.5) * 2.0 * _directions(1, d, generator)


def lognormal(n, d, generator):
    return np.exp(generator.normal(size=(n, d)))


def ring(n, d, generator):
    x = 0.1 * generator.normal(size=(n, d))
    angle = generator.uniform(0, 2 * np.pi, n)
    x[:, 0] += np.cos(angle)
    x[:, 1] += np.sin(angle)
    return x


def two_scales(n, d, generator):
    return generator.normal(size=(n, d)) * np.where(generator.random((n, 1)) < 0.5, 1.0, 6.0)


def shells(n, d, generator):
    radius = np.where(generator.random((n, 1)) < 0.5, 1.0, 3.0)
    return _directions(n, d, generator) * radius * (1 + 0.1 * generator.normal(size=(n, 1)))


CALM: dict[str, Family] = {
    "normal": normal,
    "t3": student(3),
    "t1.5": student(1.5),
    "line": line,
    "cube": cube,
    "banana": banana,
    "10 % Cauchy": contaminated,
    "pair 2 sd apart": pair,
}
HARD: dict[str, Family] = {"lognormal": lognormal, "ring": ring, "two scales": two_scales, "two shells": shells}
FAMILIES = CALM | HARD

# --- published sets -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """file: below the folder of data sets; components: asked for; unit: of a column, in which losses are told."""

    file: tuple[str, str]
    components: int
    unit: float


SETS = {
    "mnist": Published(("mnist", "mnist.npz"), 10, 1.0),
    "pendigits": Published(("pendigits", "pendigits.npz"), 10, 50.0),
    "gvhd_flow": Published(("tabular", "gvhd_flow.npz"), 4, 512.0),
    "satellite": Published(("tabular", "satellite.npz"), 6, 128.0),
    "letter": Published(("tabular", "letter.npz"), 26, 7.5),
    "shuttle": Published(("tabular", "shuttle.npz"), 7, 1.0),
}


@dataclass(frozen=True, slots=True)
class Split:
    """train: (n, d) rows; test: (m, d) rows that are held out; classes: (m,) of these, None if there are none."""

    train: np.ndarray
    test: np.ndarray
    classes: np.ndarray | None


def split_of(name: str) -> Split:
    """A set of SETS; of mnist the ten leading principal components. Raises ConfigError without the data."""
    with np.load(needed_data(*SETS[name].file), allow_pickle=False) as found:
        arrays = {key: found[key] for key in found.files}
    if "x_train" in arrays:
        x, test = (arrays[key].reshape(len(arrays[key]), -1).astype(np.float64) for key in ("x_train", "x_test"))
        if name == "mnist":
            mean = x.mean(axis=0)
            basis = np.linalg.eigh(np.cov((x - mean).T / 255))[1][:, ::-1][:, :10] / 255
            x, test = (x - mean) @ basis, (test - mean) @ basis
        return Split(x, test, _codes(arrays["y_test"]))
    x = arrays["x"].astype(np.float64)
    order = np.random.default_rng(0).permutation(len(x))
    cut = int(TRAINING * len(x))
    classes = _codes(arrays["y"])[order[cut:]] if "y" in arrays else None
    return Split(x[order[:cut]], x[order[cut:]], classes)


def _codes(labels: np.ndarray) -> np.ndarray:
    return np.unique(labels, return_inverse=True)[1]
