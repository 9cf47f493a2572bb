"""First parameters of a model, as pure functions of statistics that add up over leaves; the driver makes the passes.

    random_parameters  from the pooled mean and variance of the columns
    k-means++          one pass of `squared_distances` and `draw_row` for each seed (Arthur, Vassilvitskii 2007)
    Lloyd              a few passes of `cluster_sums` and `lloyd_step`, then `parameters_from_clusters`

**Not private.** A seed is the row of a client, and the sums carry no noise. A private run has a warm start.
"""

from __future__ import annotations

import numpy as np
import scipy

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.client_sums import divisors_of, row_tiles
from fedcore.methods.mixture_models.contract import CurvedEM, Rows, Theta, is_sparse
from fedcore.methods.mixture_models.counts import BernoulliMixture, CountMixture, MultinomialMixture, PoissonMixture
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputer import GaussianImputer
from fedcore.methods.mixture_models.mixture import Mixture
from fedcore.methods.mixture_models.regression import RegressionMixture
from fedcore.methods.mixture_models.student import DEGREES, StudentMixture
from fedcore.population.blocks import segment_sums
from fedcore.randomness import client_uniforms, stream
from fedcore.rounds.statistics import ArgMax

START = "em/start"
PICK = "em/start/pick"
NUMBERS_TOGETHER = 2**20  # in the rows whose differences from the centres are in RAM
PRIOR_ROWS = 5.0  # weight, in rows, of the pooled variance in a cluster's; of the pooled mean in its rates: 1


def random_parameters(model: CurvedEM, mean: np.ndarray, variance: np.ndarray, seed: int) -> Theta:
    """Parameters drawn around the pooled moments (d,), with equal weights.

    Gaussian: means N(mean, variance), pooled variances. Counts: the mean, each entry times exp(N(0, 1)). Regression:
    slopes N(0, var v / (p var u)) through the mean point, variance of the response. Imputer: the pooled moments.

    Raises ConfigError for a model of another kind.
    """
    generator = stream(seed, START)
    mean, variance = np.asarray(mean, np.float64), np.maximum(np.asarray(variance, np.float64), 1e-12)
    if isinstance(model, GaussianImputer):
        return model.maximise(model.statistic_of({"mean": mean, "covariance": np.diag(variance)}))
    if isinstance(model, GaussianMixture):
        means = mean + np.sqrt(variance) * generator.standard_normal((model.components, len(mean)))
        return _gaussian(model, _equal(model), means, np.tile(variance, (model.components, 1)))
    if isinstance(model, CountMixture):
        factors = np.exp(generator.standard_normal((model.components, len(mean))))
        return _counts(model, _equal(model), np.maximum(mean, 1e-6) * factors)
    if isinstance(model, RegressionMixture):
        slopes = model.features - 1
        scale = np.sqrt(variance[-1] / (variance[:-1] * max(slopes, 1)))
        b = scale * generator.standard_normal((model.components, slopes))
        if model.intercept:
            b = np.column_stack([b, mean[-1] - b @ mean[:-1]])
        return {"weights": _equal(model), "coefficients": b, "variances": np.full(model.components, variance[-1])}
    raise ConfigError(f"{type(model).__name__} has no random start.")


# --- k-means++ --------------------------------------------------------------------------------------------------------


def squared_distances(y: Rows, centres: np.ndarray) -> np.ndarray:
    """(N,) squared Euclidean distance of every row to the nearest of the centres (k, d). Of a row with missing entries
    (NaN) it is that of the others, scaled up to all columns."""
    if is_sparse(y):
        return _squares(y, centres).min(axis=0)
    nearest = np.empty(y.shape[0])
    for rows in row_tiles(y.shape[0], _rows_together(y)):
        nearest[rows] = _squares(np.asarray(y[rows]), centres).min(axis=0)
    return nearest


def draw_row(y: Rows, ptr: np.ndarray, first: int, log_weights: np.ndarray, seed: int, step: int) -> ArgMax:
    """A leaf's candidate for a draw of one row of the population, with probability exp(log_weights) up to a factor.

    log_weights: (N,), -inf for rows that must not be drawn. k-means++: zeros for the first centre, then the logarithm
    of `squared_distances`; where rows have weights, those of them besides.
    first: the population's number of the leaf's first client; seed, step: name the draw

    Returns the best client and its payload {"row": (d,)}; the score of a leaf without rows is -inf. The maximum over
    clients of ln(sum of their weights) + Gumbel is a draw of a client, and a second uniform draws a row of it. This has
    the same distribution as one Gumbel for every row, but needs only two uniforms named (seed, step, client). Not
    private: the row is a client's data.
    """
    counts = np.diff(ptr)
    filled = np.flatnonzero(counts)
    totals = np.full(len(counts), -np.inf)
    top = np.zeros(len(counts))
    if len(filled):
        highest = np.maximum.reduceat(log_weights, np.asarray(ptr)[filled])
        top[filled] = np.where(np.isfinite(highest), highest, 0.0)
        sums = segment_sums(np.exp(log_weights - np.repeat(top, counts)), ptr)
        with np.errstate(divide="ignore"):
            totals = np.log(sums) + top
    uniforms = client_uniforms(seed, PICK, step, first, len(counts), draws=2)
    scores = totals - np.log(-np.log(uniforms[:, 0]))
    if not len(scores) or not np.isfinite(scores.max()):
        return ArgMax(-np.inf, first, {"row": np.zeros(y.shape[1])})
    client = int(scores.argmax())
    rows = slice(int(ptr[client]), int(ptr[client + 1]))
    cumulative = np.cumsum(np.exp(log_weights[rows] - top[client]))
    chosen = rows.start + int(np.searchsorted(cumulative, uniforms[client, 1] * cumulative[-1], "right"))
    chosen = min(chosen, rows.stop - 1)
    row = y[chosen : chosen + 1]
    row = row.toarray()[0] if is_sparse(row) else np.asarray(row)[0]
    return ArgMax(float(scores[client]), first + client, {"row": np.asarray(row, np.float64)})


# --- Lloyd ------------------------------------------------------------------------------------------------------------


def cluster_sums(y: Rows, centres: np.ndarray, gaps: bool = False, weights: np.ndarray | None = None) -> np.ndarray:
    """(k, 1 + 2 d) of a leaf: the number of rows nearest to every centre, the sum of their differences from it, and the
    sum of the squares of these. gaps: whether entries may be missing; then (k, 1 + 3 d), with the number of entries
    of every column last. weights: (N,), how often each row counts; None: once.
    """
    k, d = centres.shape
    sums = np.zeros((k, 1 + (3 if gaps else 2) * d))
    if not y.shape[0]:
        return sums
    if not is_sparse(y) and y.shape[0] > _rows_together(y):
        for rows in row_tiles(y.shape[0], _rows_together(y)):
            sums += cluster_sums(y[rows], centres, gaps, None if weights is None else weights[rows])
        return sums
    y = y if is_sparse(y) else np.asarray(y)
    labels = _squares(y, centres).argmin(axis=0)
    member = np.zeros((k, y.shape[0]))
    member[labels, np.arange(len(labels))] = 1.0 if weights is None else weights
    sums[:, 0] = member.sum(axis=1)
    if is_sparse(y):
        y = y.astype(np.float64)
        first, second = (y.T @ member.T).T, (y.multiply(y).tocsr().T @ member.T).T
        sums[:, 1 : 1 + d] = first - sums[:, :1] * centres
        sums[:, 1 + d :] = second - 2.0 * centres * first + sums[:, :1] * centres**2
        return sums
    x = y - centres[labels]
    if gaps:
        seen = ~np.isnan(x)
        x[~seen] = 0.0
        sums[:, 1 + 2 * d :] = member @ seen
    sums[:, 1 : 1 + d] = member @ x
    sums[:, 1 + d : 1 + 2 * d] = member @ (x * x)
    return sums


def sums_of_clients(y: Rows, ptr: np.ndarray, centres: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """(C, k, 1 + 2 d) `cluster_sums` of each client, of dense rows. A missing entry counts as if at its centre.

    Client i owns the rows ptr[i] .. ptr[i + 1] - 1.
    """
    (k, d), clients = centres.shape, len(ptr) - 1
    sums, owners = np.zeros((clients * k, 1 + 2 * d)), np.repeat(np.arange(clients), np.diff(ptr))
    for rows in row_tiles(y.shape[0], _rows_together(y)):
        own = np.asarray(y[rows], np.float64)
        labels = _squares(own, centres).argmin(axis=0)
        x = np.nan_to_num(own - centres[labels], nan=0.0)
        counted = np.ones(len(x)) if weights is None else weights[rows]
        members = scipy.sparse.csr_matrix(
            (counted, (owners[rows] * k + labels, np.arange(len(x)))), shape=(len(sums), len(x))
        )
        sums[:, 0] += members @ np.ones(len(x))
        sums[:, 1 : 1 + d] += members @ x
        sums[:, 1 + d :] += members @ (x * x)
    return sums.reshape(clients, k, 1 + 2 * d)


def lloyd_step(centres: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The means of the clusters (k, d); an empty cluster keeps its centre, and so does a column without entries."""
    d = centres.shape[1]
    return centres + sums[:, 1 : 1 + d] / divisors_of(_entries(sums, d))


def parameters_from_clusters(
    model: CurvedEM, centres: np.ndarray, sums: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> Theta:
    """theta from the `cluster_sums` about these centres (G, d) and the pooled moments (d,). Weights and variances are
    shrunken towards equal and pooled ones, so that a small cluster is not degenerate.

    Raises ConfigError for a model whose components are not clusters of rows.
    """
    counts, d = sums[:, :1], centres.shape[1]
    weights = (counts[:, 0] + 1.0) / (counts.sum() + len(counts))
    entries = _entries(sums, d)
    shift = sums[:, 1 : 1 + d] / divisors_of(entries)
    if isinstance(model, GaussianMixture):
        within = np.maximum(sums[:, 1 + d : 1 + 2 * d] - entries * shift**2, 0.0)
        pooled = np.maximum(np.asarray(variance, np.float64), 1e-12)
        return _gaussian(model, weights, centres + shift, (within + PRIOR_ROWS * pooled) / (entries + PRIOR_ROWS))
    if isinstance(model, CountMixture):
        return _counts(model, weights, (counts * (centres + shift) + np.maximum(mean, 1e-6)) / (counts + 1.0))
    raise ConfigError(f"{type(model).__name__} has no start from clusters of rows.", "Use a random start.")


def _entries(sums: np.ndarray, d: int) -> np.ndarray:
    """The entries that the `cluster_sums` are of: (k, d), or (k, 1) if none is missing."""
    return sums[:, 1 + 2 * d :] if sums.shape[1] > 1 + 2 * d else sums[:, :1]


# --- parts ------------------------------------------------------------------------------------------------------------


def _squares(y: Rows, centres: np.ndarray) -> np.ndarray:
    """(k, N)."""
    squares = np.empty((len(centres), y.shape[0]))
    if is_sparse(y):
        y = scipy.sparse.csr_matrix(y, dtype=np.float64)
        norms = np.asarray(y.multiply(y).sum(axis=1)).ravel()
        for i, centre in enumerate(centres):
            squares[i] = np.maximum(norms - 2.0 * (y @ centre) + centre @ centre, 0.0)
        return squares
    missing = np.isnan(y)
    gaps = missing.any()
    for i, centre in enumerate(centres):
        # differences before squares: a row has distance 0 from itself
        x = y - centre
        if gaps:
            x[missing] = 0.0
        squares[i] = np.einsum("ij,ij->i", x, x)
    if gaps:
        squares *= y.shape[1] / np.maximum(y.shape[1] - np.count_nonzero(missing, axis=1), 1)
    return squares


def _rows_together(y: Rows) -> int:
    return max(NUMBERS_TOGETHER // max(y.shape[1], 1), 1)


def _equal(model: Mixture) -> np.ndarray:
    return np.full(model.components, 1.0 / model.components)


def _gaussian(model: GaussianMixture, weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> Theta:
    theta = {"weights": weights, "means": means}
    if model.covariance == "known":
        return theta
    if model.covariance == "diag":
        covariances = variances
    elif model.covariance == "spherical":
        covariances = variances.mean(axis=1)
    elif model.covariance == "tied":
        covariances = np.diag(weights @ variances)
    else:
        covariances = variances[:, :, None] * np.eye(means.shape[1])
    tails = {DEGREES: np.array([model.degrees])} if isinstance(model, StudentMixture) else {}
    return theta | {"covariances": covariances} | tails


def _counts(model: CountMixture, weights: np.ndarray, means: np.ndarray) -> Theta:
    if isinstance(model, PoissonMixture):
        return {"weights": weights, "rates": means}
    if isinstance(model, MultinomialMixture):
        return {"weights": weights, "probabilities": means / means.sum(axis=1, keepdims=True)}
    if isinstance(model, BernoulliMixture):
        return {"weights": weights, "probabilities": np.clip(means, 0.01, 0.99)}
    raise ConfigError(f"{type(model).__name__} has no start.")
