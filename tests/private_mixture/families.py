"""Families of data with one group in truth, on which claimed groups are counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Family = Callable[[int, int, np.random.Generator], np.ndarray]


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
