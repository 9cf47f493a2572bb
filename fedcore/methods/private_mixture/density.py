"""The density of a finished run: a mixture in standardised coordinates, so that columns in units far apart do no harm,
and a heavy tail, so that no finite row has a density of nearly nothing.

The tail is TAIL of the density. It is made of released values alone. Half of it is a product over columns, of Cauchy
distributions and of one that is uniform in log2 of the distance from the centre; half is the Cauchy distribution in the
coordinates of the mixture. It belongs to the background. Labels, groups and rounds of EM leave it out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from fedcore.methods.mixture_models.gaps import Components, completed
from fedcore.methods.private_mixture.layout import COPIES, LOG2_ENDS, Layout
from fedcore.methods.private_mixture.server import BROAD

TILE = 2**11  # rows at once, each of which is read as several
FURTHEST = 1e100  # scales of a column; its square is finite
TAIL = 0.01  # weight of the tail; a row loses at most -log(1 - TAIL) nats by it
FLAT = 0.1  # of a column's factor in the tail: uniform in log2 of the distance from the centre


@dataclass(frozen=True, slots=True)
class PrivateMixtureModel:
    """Everything is made of published values. k components and a background, the last of the weights.

    centre, scale: (d,) of the columns of numbers; linear: (d, d) and origin (d,): u = ((x - centre) / scale - origin)
    linear. weights: (k + 1,); means: (k, d), covariances: (k, d, d) of u; group: (k,) int64 of each component.
    layout: how rows are read. probabilities: (k + 1, values) of the values of all categories; None without categories.
    The tail of the density is in the module's text.

    Rows have the stored columns, (n, features). Where categories and numbers with steps are among them, densities are
    times the probabilities of the answers, and times the steps: of a column with steps the probability of its number.
    A zero that is an atom counts by its probability too. A column that stands alone has a separate factor: the share of
    its zeros, or else that of others times a density that is uniform in log2 of the size. NaN is a missing value: then
    the density is that of the observed entries of the row.
    """

    centre: np.ndarray
    scale: np.ndarray
    origin: np.ndarray
    linear: np.ndarray
    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    group: np.ndarray
    layout: Layout
    probabilities: np.ndarray | None = None

    @property
    def components(self) -> int:
        return len(self.means)

    def usable(self, x: np.ndarray) -> np.ndarray:
        """(n,) bool: whether a row has a number, and none that is infinite; it need not have answered categories."""
        numbers = x[:, self.layout.numeric]
        found: np.ndarray = np.isfinite(numbers).any(axis=1) & ~np.isinf(numbers).any(axis=1)
        return found

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """(n, d) of the numbers (n, d) of rows, in the units of the data; none is further out than FURTHEST."""
        standard = (np.asarray(x, np.float64) - self.centre) / self.scale
        z: np.ndarray = (np.clip(standard, -FURTHEST, FURTHEST) - self.origin) @ self.linear
        return z

    def _log_joint(self, x: np.ndarray) -> np.ndarray:
        """(n, k + 2) log of weight times density, in the units of the data; the tail is last."""
        x, layout = np.asarray(x, np.float64), self.layout
        if layout.moves:
            parts = [self._log_joint_of_moved(x[low : low + TILE]) for low in range(0, max(len(x), 1), TILE)]
            joint = np.concatenate(parts)
        else:
            joint = self._log_joint_of_numbers(layout.numbers(x, 1))
        if self.probabilities is not None:
            logs = np.append(np.log(self.probabilities), np.zeros((len(self.probabilities), 1)), axis=1)
            logs = np.concatenate([logs, logs[-1:]])  # the tail has the answers of all units
            for own in layout.codes(x).T:
                joint += logs[:, own].T
        return joint

    def _log_joint_of_moved(self, x: np.ndarray) -> np.ndarray:
        """(n, k + 2) of the numbers of rows (n, features), some of which are spread over a width or stand alone."""
        layout = self.layout
        copies = self._log_joint_of_numbers(layout.numbers(x, COPIES)).reshape(len(x), COPIES, self.components + 2)
        top = copies.max(axis=1)
        numbers = x[:, layout.numeric]
        widths = np.where(np.isnan(numbers), 0.0, layout.widths(numbers))
        factor = np.log(np.where(widths > 0, widths, 1.0)).sum(axis=1)
        factor += log_alone(numbers[:, layout.alone], layout.share[layout.alone]).sum(axis=1)
        joint: np.ndarray = top + np.log(np.exp(copies - top[:, None]).mean(axis=1)) + factor[:, None]
        return joint

    def _log_joint_of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """(n, k + 2) of the numbers (n, d) alone; NaN is a gap."""
        gapped = np.isnan(numbers).any(axis=1)
        if gapped.any():
            joint = np.empty((len(numbers), self.components + 2))
            joint[~gapped] = self._log_joint_of_numbers(numbers[~gapped])
            joint[gapped] = self._log_joint_of_seen(numbers[gapped])
            return joint
        u, d = self.coordinates(numbers), len(self.centre)
        volume = np.linalg.slogdet(self.linear)[1] - np.log(self.scale).sum()
        joint = np.empty((len(u), self.components + 2))
        for j, (mean, matrix) in enumerate(zip(self.means, self.covariances, strict=True)):
            values, vectors = np.linalg.eigh(matrix)
            own = ((u - mean) @ vectors) / np.sqrt(values)
            joint[:, j] = -0.5 * (own**2).sum(axis=1) - 0.5 * np.log(values).sum()
        joint[:, -2] = -0.5 * (u**2).sum(axis=1) / BROAD - 0.5 * d * math.log(BROAD)
        joint[:, :-1] += np.log(self.weights) + math.log1p(-TAIL) + volume - 0.5 * d * math.log(2 * math.pi)
        joint[:, -1] = math.log(TAIL) + self._log_tail(numbers, volume)
        return joint

    def _log_joint_of_seen(self, numbers: np.ndarray) -> np.ndarray:
        """(n, k + 2) of rows (n, d) with gaps: densities of the columns that they have."""
        d, back = len(self.centre), np.linalg.pinv(self.linear)
        covariances = np.concatenate([self.covariances, BROAD * np.eye(d)[None]])
        means = self.origin + np.append(self.means, np.zeros((1, d)), axis=0) @ back
        whiten = np.linalg.inv(np.linalg.cholesky(covariances)) @ self.linear.T
        parts = [Components(np.log(self.weights), means, whiten, _half_log_det(whiten), np.zeros((0, 0)), "full")]
        wide = self.linear.T[None]
        parts.append(Components(np.zeros(1), self.origin[None], wide, _half_log_det(wide), np.zeros((0, 0)), "full", 1))
        standard = np.clip((numbers - self.centre) / self.scale, -FURTHEST, FURTHEST)
        joint = np.empty((len(numbers), self.components + 2))
        for part, places in zip(parts, (slice(0, -1), slice(-1, None)), strict=True):
            for batch in completed(part, standard.T):
                joint[batch.columns, places] = batch.log_joint.T
        joint -= np.where(np.isnan(numbers), 0.0, np.log(self.scale)).sum(axis=1)[:, None]
        tails = self._log_tail_of_columns(np.where(np.isnan(numbers), self.centre, numbers))
        columns = np.where(np.isnan(numbers), 0.0, tails).sum(axis=1)
        joint[:, -1] = math.log(TAIL / 2) + np.logaddexp(columns, joint[:, -1])
        joint[:, :-1] += math.log1p(-TAIL)
        return joint

    def _log_tail_of_columns(self, numbers: np.ndarray) -> np.ndarray:
        """(n, d) log density of each column of numbers (n, d) in the half of the tail that is a product."""
        with np.errstate(divide="ignore"):
            distance = np.log(np.abs(numbers - self.centre))
        cauchy = -math.log(math.pi) - np.log(self.scale) - np.logaddexp(0.0, 2 * (distance - np.log(self.scale)))
        found: np.ndarray = np.logaddexp(math.log1p(-FLAT) + cauchy, math.log(FLAT) + log_uniform(distance))
        return found

    def _log_tail(self, numbers: np.ndarray, volume: float) -> np.ndarray:
        """(n,) log density of the tail at numbers (n, d), in logs of distances: none of them overflows. volume: log of
        what the coordinates multiply volumes by."""
        d, away = len(self.centre), numbers - self.centre
        with np.errstate(divide="ignore"):
            far = np.log(np.abs(away)) - np.log(self.scale)
        columns = self._log_tail_of_columns(numbers).sum(axis=1)
        # The norm of the coordinates, of which the furthest column is taken out before they are computed.
        top = np.maximum(far.max(axis=1, initial=0.0), 0.0)[:, None]
        u = (np.sign(away) * np.exp(far - top) - self.origin * np.exp(-top)) @ self.linear
        with np.errstate(divide="ignore"):
            norm = 2 * top[:, 0] + np.log((u**2).sum(axis=1))
        constant = math.lgamma((d + 1) / 2) - (d + 1) / 2 * math.log(math.pi) + volume
        together = constant - (d + 1) / 2 * np.logaddexp(0.0, norm)
        tail: np.ndarray = np.logaddexp(columns, together) - math.log(2)
        return tail

    def log_likelihood(self, x: np.ndarray) -> np.ndarray:
        """(n,) nats of rows (n, features), in the units of the data: of a row with gaps (NaN) that of the numbers that
        it has. Finite for every row without infinite numbers."""
        likelihood: np.ndarray = scipy.special.logsumexp(self._log_joint(x), axis=1)
        return likelihood

    def responsibilities(self, x: np.ndarray) -> np.ndarray:
        """(n, k + 1), the background's last, with that of the tail."""
        joint = self._log_joint(x)
        parts = np.exp(joint - joint.max(axis=1, keepdims=True))
        parts[:, -2] += parts[:, -1]
        shares: np.ndarray = parts[:, :-1] / parts[:, :-1].sum(axis=1, keepdims=True)
        return shares

    def labels(self, x: np.ndarray) -> np.ndarray:
        """(n,) int64 the most probable component of each row, the background and the tail left out."""
        return self._log_joint(x)[:, : self.components].argmax(axis=1).astype(np.int64)

    def sample(self, n: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(x (n, d) numbers of drawn rows, y (n,) int64 their components, k for the background), without the tail."""
        labels = generator.choice(len(self.weights), size=n, p=self.weights / self.weights.sum())
        u = generator.standard_normal((n, len(self.centre)))
        for j, (mean, matrix) in enumerate(zip(self.means, self.covariances, strict=True)):
            u[labels == j] = mean + u[labels == j] @ np.linalg.cholesky(matrix).T
        u[labels == self.components] *= math.sqrt(BROAD)
        return self.layout.as_stored(self.of_coordinates(u), generator), labels

    def of_coordinates(self, u: np.ndarray) -> np.ndarray:
        """(n, d) rows in the units of the data whose coordinates are u (n, d)."""
        rows: np.ndarray = self.centre + self.scale * (self.origin + u @ np.linalg.pinv(self.linear))
        return rows

    def means_of_data(self) -> np.ndarray:
        """(k, d) in the units of the data."""
        return self.of_coordinates(self.means)

    def covariances_of_data(self) -> np.ndarray:
        """(k, d, d) in the units of the data."""
        back = np.linalg.pinv(self.linear) * self.scale
        covariances: np.ndarray = np.einsum("ai,kab,bj->kij", back, self.covariances, back)
        return covariances


def _half_log_det(whiten: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.linalg.slogdet(whiten)[1]
    return found


def log_uniform(distance: np.ndarray) -> np.ndarray:
    """Log density of a number of either sign whose log2 is uniform between LOG2_ENDS, and -inf outside.

    distance: natural logs of absolute values, -inf for 0.
    """
    low, high = LOG2_ENDS
    inside = (distance >= low * math.log(2)) & (distance <= high * math.log(2))
    return np.where(inside, -distance - math.log(2 * (high - low) * math.log(2)), -np.inf)


def log_alone(numbers: np.ndarray, share: np.ndarray) -> np.ndarray:
    """(n, m) log probability of a zero, or log density of another number, in columns that stand alone. numbers: (n, m);
    share: (m,) of zeros. A gap has 0. The density has a tail of weight TAIL, the Cauchy distribution of scale 1."""
    with np.errstate(divide="ignore"):
        size = np.log(np.abs(np.where(np.isnan(numbers), 1.0, numbers)))
    cauchy = math.log(TAIL / math.pi) - np.logaddexp(0.0, 2 * size)
    other = np.log1p(-share) + np.logaddexp(math.log1p(-TAIL) + log_uniform(size), cauchy)
    return np.where(np.isnan(numbers), 0.0, np.where(numbers == 0, np.log(share), other))
