"""Small populations and starts, drawn by NumPy alone: nothing here changes when fedcore does.

Clients have no rows, one row or dozens; a leaf has few clients and a block few leaves, so that there are several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp


@dataclass(frozen=True)
class People:
    """matrix: a CSR matrix of counts, or (ptr, x) of rows. leaf, block: clients of each. heldout: a matrix likewise, of
    other documents of the same clients; None: nothing is held out. image: height and width of rows that are pictures.
    """

    kind: str
    features: int
    clients: int
    matrix: object
    dtype: str = "float32"
    leaf: int = 4
    block: int = 8
    heldout: object = None
    image: tuple[int, int] | None = None


def random(number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(number))


def of_counts(counts: np.ndarray) -> People:
    return People("counts", counts.shape[1], len(counts), sp.csr_matrix(counts.astype(np.int32)))


def of_rows(sizes: np.ndarray, x: np.ndarray, dtype: str = "float32", leaf: int = 4, block: int = 8) -> People:
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return People("rows", x.shape[1], len(sizes), (ptr, x.astype(dtype)), dtype, leaf, block)


def sizes_of(generator: np.random.Generator, clients: int, most: int) -> np.ndarray:
    """Of the clients; one has nothing, one has a single row."""
    sizes = generator.integers(most // 2, most, clients)
    sizes[3], sizes[7] = 0, 1
    return sizes


# --- counts -----------------------------------------------------------------------------------------------------------


def counts(features: int = 6, clients: int = 26, number: int = 1) -> People:
    """Three kinds of clients; two have no tokens, one very many."""
    generator = random(number)
    rates = generator.gamma(0.6, 2.0, (3, features)) + 0.05
    found = generator.poisson(rates[np.arange(clients) % 3] * generator.uniform(0.5, 3.0, (clients, 1)))
    found[4::11] = 0
    found[9] *= 1000
    return of_counts(found)


def counts_wide() -> People:
    """More tokens than floors and smoothing are meant for."""
    return counts(1200, 14, 2)


def counts_in_halves() -> People:
    """Enough tokens for clients to tell how alike their two halves are."""
    people, generator = counts(), random(4)
    matrix = 16 * people.matrix
    other = sp.csr_matrix(generator.poisson(matrix.toarray() * generator.uniform(0.2, 3.0, matrix.shape)))
    return replace(people, matrix=matrix, heldout=other.astype(np.int32))


def counts_binary() -> People:
    generator = random(3)
    shares = generator.uniform(0.1, 0.9, (3, 6))
    return of_counts(generator.random((26, 6)) < shares[np.arange(26) % 3])


# --- rows -------------------------------------------------------------------------------------------------------------


def gaussians(dtype: str = "float32") -> People:
    """Three components in four columns of unequal scale; the last client is an outlier."""
    generator = random(10)
    sizes = sizes_of(generator, 22, 36)
    centres = np.array([[0.0, 0.0, 3.0, 1.0], [4.0, 0.0, -3.0, -1.0], [-4.0, 3.0, 0.0, 0.0]])
    x = centres[generator.integers(0, 3, sizes.sum())] + generator.normal(size=(sizes.sum(), 4))
    x[-sizes[-1] :] += 25.0
    return of_rows(sizes, x * np.array([1.0, 2.0, 1.0, 0.5]), dtype)


def gaussians_float64() -> People:
    return gaussians("float64")


def gaussians_with_gaps() -> People:
    """A fifth of the entries missing, but no whole row."""
    people = gaussians()
    ptr, x = people.matrix
    missing = random(19).random(x.shape) < 0.2
    missing[:, 0] &= ~missing.all(axis=1)
    return replace(people, matrix=(ptr, np.where(missing, np.float32(np.nan), x)))


def gaussians_few() -> People:
    """Few clients and two components, so that all alignments can be tried."""
    generator = random(11)
    sizes = np.array([30, 24, 1, 28, 0, 26])
    centres = np.array([[2.0, 0.0, 1.0], [-2.0, 1.0, 0.0]])
    x = centres[generator.integers(0, 2, sizes.sum())] + 0.7 * generator.normal(size=(sizes.sum(), 3))
    return of_rows(sizes, x, "float64", 2, 4)


def regressions() -> People:
    """Two lines over two inputs; the response is the last column."""
    generator = random(12)
    sizes = sizes_of(generator, 20, 36)
    inputs = generator.normal(size=(sizes.sum(), 2))
    slopes = np.array([[2.0, -1.0], [-2.0, 1.5]])[generator.integers(0, 2, sizes.sum())]
    response = (inputs * slopes).sum(axis=1) + 0.5 + 0.4 * generator.normal(size=len(inputs))
    return of_rows(sizes, np.column_stack([inputs, response]))


def incomplete() -> People:
    """Two factors behind five columns, a third of the entries missing, a row without any."""
    generator = random(13)
    sizes = sizes_of(generator, 18, 24)
    loadings = generator.normal(size=(2, 5))
    factors = generator.normal(size=(sizes.sum(), 2))
    x = factors[:, :1] * loadings[0] + factors[:, 1:] * loadings[1] + 0.4 * generator.normal(size=(len(factors), 5))
    x[generator.random(x.shape) < 0.3] = np.nan
    x[5] = np.nan
    return of_rows(sizes, x + 1.0)


def rows_of_counts() -> People:
    generator = random(14)
    sizes = sizes_of(generator, 18, 20)
    rates = generator.uniform(0.3, 5.0, (3, 5))
    return of_rows(sizes, generator.poisson(rates[generator.integers(0, 3, sizes.sum())]))


def tables(family: str) -> People:
    """Each client has a few tables of five consecutive rows; half of the entries are missing."""
    generator = random(15)
    number = generator.integers(0, 4, 18)
    natural = 0.8 * (generator.normal(size=(5, 1)) * generator.normal(size=(1, 4)))
    natural = np.broadcast_to(natural, (number.sum(), 5, 4))
    draw = {
        "gaussian": lambda: natural + generator.normal(size=natural.shape),
        "poisson": lambda: generator.poisson(np.exp(natural)),
        "bernoulli": lambda: generator.random(natural.shape) < 1 / (1 + np.exp(-natural)),
    }
    x = draw[family]().astype(np.float64)
    x[generator.random(x.shape) < 0.5] = np.nan
    return of_rows(5 * number, x.reshape(-1, 4))


def cameras() -> People:
    """Frames of two scenes, whose clients take turns."""
    parts = [of_camera(random(6 + scene)) for scene in range(2)]
    starts = [np.cumsum([0, *sizes]) for sizes, _ in parts]
    order = [(scene, client) for client in range(len(parts[0][0])) for scene in range(2)]
    rows = [parts[s][1][starts[s][c] : starts[s][c + 1]] for s, c in order]
    return of_rows(np.array([len(own) for own in rows]), np.concatenate(rows))


def frames() -> People:
    return of_rows(*of_camera(random(5)))


def shaken_frames() -> People:
    """Frames of 12 x 16 pixels of a scene that is larger, from other places of it; one object."""
    generator = random(8)
    sizes = sizes_of(generator, 14, 6)
    scene = np.kron(generator.random((10, 12)), np.ones((2, 2)))
    scene = (scene[1:, 1:] + scene[:-1, 1:] + scene[1:, :-1] + scene[:-1, :-1]) / 4
    x = np.empty((sizes.sum(), 12, 16))
    for frame in x:
        down, across = generator.integers(0, 5, 2)
        between = generator.random() / 2
        frame[:] = (1 - between) * scene[down : down + 12, across : across + 16]
        frame += between * scene[down + 1 : down + 13, across : across + 16]
        left = generator.integers(0, 14)
        frame[4:7, left : left + 2] = 0.9
    x += 0.01 * generator.standard_normal(x.shape)
    return replace(of_rows(sizes, x.reshape(len(x), -1), "float64"), image=(12, 16))


def of_camera(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of frames of clients, and frames of one scene by gains and offsets, a tenth of the pixels covered."""
    sizes = sizes_of(generator, 14, 6)
    seen = generator.uniform(0.8, 1.2, (sizes.sum(), 1)) * generator.random(40) + 0.05 * generator.random((1, 40))
    seen += 0.01 * generator.standard_normal(seen.shape)
    return sizes, np.where(generator.random(seen.shape) < 0.1, generator.random(seen.shape), seen)


def atoms(few: bool = False) -> People:
    """Sparse codes of eight orthonormal atoms, three of which all clients share; the last client has only noise.

    The shared atoms are rows of a Hadamard matrix; each client turns the others by angles of its own. few: a client
    has no samples, one has a single one, and one has fewer than there are columns.
    """
    generator = random(20)
    frame = np.ones((1, 1))
    for _ in range(3):
        frame = np.block([[frame, frame], [frame, -frame]])
    frame = frame / np.sqrt(8.0)
    clients, parts = 14, []
    sizes = generator.integers(20, 40, clients)
    if few:
        sizes[3], sizes[7], sizes[8] = 0, 1, 6
    for client, size in enumerate(sizes):
        turn = generator.uniform(0.0, 2 * np.pi, 3)[:, None]
        local = np.cos(turn) * frame[3:6] + np.sin(turn) * np.roll(frame[5:8], 1, axis=0)
        codes = np.where(generator.random((size, 6)) < 0.35, generator.normal(size=(size, 6)), 0.0)
        own = np.concatenate([frame[:3], local])
        x = (codes[:, :, None] * own[None]).sum(axis=1) + 0.02 * generator.normal(size=(size, 8))
        parts.append(generator.normal(size=(size, 8)) if client == clients - 1 else x)
    return of_rows(sizes, np.concatenate(parts))


def separated(features: int = 4, clients: int = 1200, scale: float = 1.0) -> People:
    """Two far groups, of which one is two near ones; clients of 0 to 3 rows."""
    generator = random(30)
    sizes = generator.integers(0, 4, clients)
    centres = np.zeros((3, features))
    centres[:, 0], centres[1:, 1] = [30.0, -30.0, -30.0], [6.0, -6.0]
    x = centres[generator.choice([0, 0, 1, 2], sizes.sum())] + scale * generator.normal(size=(sizes.sum(), features))
    return of_rows(sizes, x, "float32", 128, 512)


def separated_narrow() -> People:
    return separated(2)


def separated_with_gaps() -> People:
    """One number in seven is missing; some rows have none."""
    people, generator = separated(), random(32)
    ptr, x = people.matrix
    x = np.where(generator.random(x.shape) < 0.15, np.float32(np.nan), x)
    x[::50] = np.nan
    return replace(people, matrix=(ptr, x))


def separated_not() -> People:
    """One group."""
    generator = random(31)
    return of_rows(np.full(200, 2), generator.normal(size=(400, 4)), "float32", 64, 128)


def table_with_gaps() -> People:
    """Two numbers, one of them with many zeros, a category of three values, a boolean, and gaps in all of them."""
    generator = random(21)
    sizes = sizes_of(generator, 22, 12)
    n = int(sizes.sum())
    answers = np.eye(3)[generator.integers(0, 3, n)]
    answers[generator.random(n) < 0.1] = np.nan
    x = np.column_stack(
        [
            np.rint(generator.uniform(0, 100, n)),
            np.where(generator.random(n) < 0.4, 0.0, generator.normal(0, 50, n)),
            answers,
            generator.integers(0, 2, n),
        ]
    )
    x[generator.random(n) < 0.1, 0] = np.nan
    x[generator.random(n) < 0.1, 1] = np.nan
    return of_rows(sizes, x, "float64")


POPULATIONS: dict[str, Callable[[], People]] = {
    "counts": counts,
    "counts_wide": counts_wide,
    "counts_binary": counts_binary,
    "counts_in_halves": counts_in_halves,
    "gaussians": gaussians,
    "gaussians_float64": gaussians_float64,
    "gaussians_few": gaussians_few,
    "regressions": regressions,
    "incomplete": incomplete,
    "gaussians_with_gaps": gaussians_with_gaps,
    "rows_of_counts": rows_of_counts,
    "tables_gaussian": lambda: tables("gaussian"),
    "tables_poisson": lambda: tables("poisson"),
    "tables_bernoulli": lambda: tables("bernoulli"),
    "atoms": atoms,
    "frames": frames,
    "cameras": cameras,
    "shaken_frames": shaken_frames,
    "atoms_few_samples": lambda: atoms(few=True),
    "separated": separated,
    "separated_narrow": separated_narrow,
    "separated_with_gaps": separated_with_gaps,
    "separated_not": separated_not,
    "table_with_gaps": table_with_gaps,
}


# --- starts -----------------------------------------------------------------------------------------------------------


def histograms(centres: int, features: int = 6) -> dict[str, np.ndarray]:
    rows = random(40).gamma(0.7, 1.0, (centres, features)) + 0.01
    rows /= rows.sum(axis=1, keepdims=True)
    return {"centres": rows, "counts": np.arange(1.0, centres + 1.0)}


SHARES = np.array([0.5, 0.3, 0.2])
MEANS = np.array([[0.0, 0.5, 2.0, 0.5], [3.0, 0.0, -2.0, 0.0], [-3.0, 4.0, 0.0, 0.0]])
SCALING = {"centre": np.array([0.5, 0.0, 0.0, 0.1]), "scale": np.array([3.0, 4.0, 3.0, 1.0])}
GAUSSIAN = {"weights": SHARES, "means": MEANS, "covariances": np.tile(2.0 * np.eye(4), (3, 1, 1))}
GLOBAL = np.array([[1.0] * 8, [1.0, -1.0] * 4, [1.0, 1.0, -1.0, -1.0] * 2])

STARTS: dict[str, dict[str, np.ndarray]] = {
    "three histograms": histograms(3),
    "seven histograms": histograms(7),
    "gaussian full": GAUSSIAN,
    "gaussian full scaled": {**GAUSSIAN, **SCALING},
    "gaussian diag": {**GAUSSIAN, "covariances": np.full((3, 4), 2.0)},
    "gaussian tied": {**GAUSSIAN, "covariances": 2.0 * np.eye(4)},
    "gaussian spherical": {**GAUSSIAN, "covariances": np.full(3, 2.0)},
    "gaussian known": {"weights": SHARES, "means": MEANS},
    "regression": {
        "weights": np.array([0.5, 0.5]),
        "coefficients": np.array([[1.5, -0.5, 0.0], [-1.5, 1.0, 0.2]]),
        "variances": np.ones(2),
    },
    "poisson": {"weights": SHARES, "rates": random(41).uniform(0.5, 4.0, (3, 5))},
    "imputer": {"mean": np.ones(5), "covariance": np.eye(5) + 0.3},
    "centres": {"centres": MEANS},
    "coefficients": {"centres": np.array([[1.5, -0.5], [-1.5, 1.0]])},
    "atoms": {"global": GLOBAL},
}
