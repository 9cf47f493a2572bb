"""Natural units of a Gaussian mixture: differences of statistics, measured by the likelihood that they cost.

Let S be a statistic with T(S) = theta and d a difference of statistics, of which the weights' part adds up to 0. To
first order the M-step moves the parameters by

    delta pi = d0,    delta mu = (d1 - mu d0) / pi,    delta Sigma = (c2 - Sigma d0) / pi,
    c2 = d2 - mu d1' - d1 mu' + mu mu' d0     (the second moment about mu)

and the expected log-likelihood of the complete data at S falls by half the Fisher information of that step,

    1/2 sum_g [ d0^2 / pi + pi delta mu' Sigma^-1 delta mu + pi/2 tr (Sigma^-1 delta Sigma)^2 ] + o(|d|^2).

So with Sigma = L L' the numbers

    z0 = d0 / sqrt(pi)
    z1 = L^-1 (d1 - mu d0) / sqrt(pi)
    z2 = pack(L^-1 c2 L^-T - d0 I) / sqrt(2 pi)

have half their squared norm as that loss, and an error of one size in any of them costs the same likelihood. The map
from d to z is linear, lower triangular by kinds, and inverted in closed form. With

    M = [ d0  d1' ]     B = [    1       0   ]     B M B' = [       d0           (L^-1 (d1 - mu d0))' ]
        [ d1  d2  ]         [ -L^-1 mu  L^-1 ]              [ L^-1 (d1 - mu d0)     L^-1 c2 L^-T      ]

it is one product of small matrices on either side, and so is its inverse. The square root of the Fisher information of
the other covariances:

    diag        z2 = (c2 - sigma^2 d0) / (sigma^2 sqrt(2 pi))   for each column: the information of a variance is
                pi / (2 sigma^4)
    spherical   z2 = (c2 - d sigma^2 d0) / (sigma^2 sqrt(2 d pi)), c2 the squared distance from mu: delta sigma^2 =
                (c2 - d sigma^2 d0) / (d pi), of information d pi / (2 sigma^4)
    tied        z2 = pack(L^-1 d2 L^-T) / sqrt(2), once. It is not recentred: the mean of x x' does not depend on theta,
                so a client's never changes, and what never changes should have no difference. Hence |z|^2 / 2 is the
                loss only of a difference that leaves sum_g (mu d1' + d1 mu' - mu mu' d0) at 0; in general the last term
                is |L^-1 (d2 - that sum) L^-T|^2 / 4
    known       no z2

Second moments are about the model's centre, so mu stands for mu - centre. The other mixtures have theirs in
`natural_counts` and `natural_regression`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, Protocol

import numpy as np
import scipy

from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.counts import CountMixture
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.mixture import Mixture
from fedcore.methods.mixture_models.natural_counts import CountUnits
from fedcore.methods.mixture_models.natural_regression import RegressionUnits
from fedcore.methods.mixture_models.packing import WEIGHT_FLOOR, pack_symmetric, triangle, unpack_symmetric
from fedcore.methods.mixture_models.regression import RegressionMixture


class Units(Protocol):
    """A linear map between differences of a mixture's statistics and natural units at theta, exactly invertible. A
    client's numbers depend only on the client's row. order: layout of their arrays in memory."""

    @property
    def model(self) -> Mixture: ...

    @property
    def theta(self) -> Theta: ...

    @property
    def order(self) -> Literal["C", "F"]: ...

    def forward(self, differences: np.ndarray) -> np.ndarray:
        """z (C, q) float64 of packed differences (C, q)."""

    def backward(self, z: np.ndarray) -> np.ndarray:
        """Packed differences (C, q) float64 of z (C, q)."""

    def possible(self, s: np.ndarray) -> np.ndarray:
        """s (q,), a statistic with errors in it, with the parts cut back that no rows can have."""


def units_at(model: Mixture, theta: Theta, s: np.ndarray) -> Units:
    """Natural units at theta = T(s). s: (q,), needed for regressions alone; else empty will do. Raises TypeError for a
    mixture that has none."""
    match model:
        case GaussianMixture():
            return NaturalUnits(model, theta)
        case RegressionMixture():
            return RegressionUnits(model, theta, s)
        case CountMixture():
            return CountUnits(model, theta)
    raise TypeError(f"{type(model).__name__} has no natural units")


@dataclass(frozen=True, eq=False)
class NaturalUnits:
    """The map between differences of statistics of Gaussians and natural units at theta; what both sides know.

    Weights below `WEIGHT_FLOOR` count as that.
    """

    model: GaussianMixture
    theta: Theta

    @property
    def order(self) -> Literal["C", "F"]:
        return "F" if self.model.covariance == "diag" else "C"

    def forward(self, differences: np.ndarray) -> np.ndarray:
        """z (C, q) float64 of packed differences of statistics (C, q), one row for each client."""
        if self.model.covariance == "full":
            return self._whole_forward(differences)
        if self.model.covariance == "diag":
            return self._axes_forward(differences)
        counts, first, second = self._split(differences)
        root, mu = self._root, self._mu
        own = self._whiten(first - mu * counts[..., None])
        match self.model.covariance:
            case "tied":
                second = self._sandwich(self._inverse, second) / np.sqrt(2.0)
            case "spherical":
                centred = second[..., 0] - np.sum(mu * (2 * first - mu * counts[..., None]), axis=-1)
                d = self.model.features
                second = ((centred / self._variances[:, 0] - d * counts) / (np.sqrt(2.0 * d) * root))[..., None]
        return self._join(counts / root, own / root[:, None], second)

    def backward(self, z: np.ndarray) -> np.ndarray:
        """Packed differences of statistics (C, q) float64 of z (C, q): the inverse of `forward`."""
        if self.model.covariance == "full":
            return self._whole_backward(z)
        if self.model.covariance == "diag":
            return self._axes_backward(z)
        counts, own, second = self._split(z)
        root, mu = self._root, self._mu
        counts, own = counts * root, own * root[:, None]
        first = self._colour(own) + mu * counts[..., None]
        match self.model.covariance:
            case "tied":
                second = self._sandwich(self._factor, second * np.sqrt(2.0))
            case "spherical":
                d = self.model.features
                centred = (second[..., 0] * (np.sqrt(2.0 * d) * root) + d * counts) * self._variances[:, 0]
                second = (centred + np.sum(mu * (2 * first - mu * counts[..., None]), axis=-1))[..., None]
        return self._join(counts, first, second)

    def possible(self, s: np.ndarray) -> np.ndarray:
        """As it is: what errors do to second moments is undone by smaller steps."""
        return s

    def squared_sizes(self) -> np.ndarray:
        """(q,) the squared norm of z for a difference of 1 in one packed number and 0 in all others: half of it is the
        loss in nats of an error of variance 1 there."""
        covariance, (g, d) = self.model.covariance, self._mu.shape
        mu, weights = self._mu, self._root**2
        if covariance in ("diag", "spherical"):
            inverse, own = 1.0 / np.broadcast_to(self._variances, (g, d)), 1.0 / self._variances
            counts, first = 1.0 + (mu**2 * inverse).sum(axis=1), inverse
            if covariance == "diag":
                counts = counts + ((mu**2 * own - 1.0) ** 2).sum(axis=1) / 2
                first, second = first + 2.0 * (mu * own) ** 2, own**2 / 2
            else:
                counts = counts + ((mu**2).sum(axis=1) * own[:, 0] - d) ** 2 / (2 * d)
                first, second = first + 2.0 * (mu * own) ** 2 / d, own**2 / (2 * d)
            return np.concatenate([(part / weights[:, None]).ravel() for part in (counts[:, None], first, second)])
        precision = np.swapaxes(self._inverse, -1, -2) @ self._inverse
        along = _times(precision, mu[None])[0]  # of mu - centre
        square = (mu * along).sum(axis=1)
        diagonal = np.broadcast_to(np.diagonal(precision, axis1=-2, axis2=-1), (g, d))
        counts, first = 1.0 + square, diagonal
        if covariance == "full":
            counts = counts + ((square - 1.0) ** 2 + d - 1) / 2  # |a a' - I|^2 for a of squared norm `square`
            first = first + square[:, None] * diagonal + along**2
        parts = [counts / weights, (first / weights[:, None]).ravel()]
        if covariance != "known":
            second = _squared_sizes_of_products(precision)
            parts.append((second / weights[:, None]).ravel() if covariance == "full" else second)
        return np.concatenate(parts)

    # --- diagonal covariances: one number of all clients after the other ----------------------------------------------

    # A component has few columns, and NumPy is slow along short axes. So clients are the last axis here, and what is
    # returned is in memory number by number (Fortran's order).

    def _axes_forward(self, differences: np.ndarray) -> np.ndarray:
        z = np.array(differences.T, np.float64, order="C")
        known, first, second = self._axes(z)
        mu, twice, squared = self._axis_shifts
        shift = mu * known
        first -= shift
        second -= np.multiply(twice, first, out=shift)
        second -= np.multiply(squared, known, out=shift)
        z *= 1.0 / self._axis_sizes
        return z.T

    def _axes_backward(self, z: np.ndarray) -> np.ndarray:
        moments = np.multiply(z.T, self._axis_sizes, order="C")
        known, first, second = self._axes(moments)
        mu, twice, squared = self._axis_shifts
        shift = squared * known
        second += shift
        second += np.multiply(twice, first, out=shift)
        first += np.multiply(mu, known, out=shift)
        return moments.T

    @cached_property
    def _axis_shifts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(G, d, 1) each: mu, 2 mu, mu^2 + v. With c1 = d1 - mu d0, d2 - mu (2 d1 - mu d0) - v d0 is
        d2 - 2 mu c1 - (mu^2 + v) d0."""
        mu = self._mu[:, :, None]
        return mu, 2 * mu, mu * mu + self._variances[:, :, None]

    def _axes(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Views of (q, C): (G, 1, C), (G, d, C) and (G, d, C)."""
        g, d = self._mu.shape
        low = g + g * d
        return columns[:g, None], columns[g:low].reshape(g, d, -1), columns[low:].reshape(g, d, -1)

    # --- full covariances: every component by one matrix --------------------------------------------------------------

    def _whole_forward(self, differences: np.ndarray) -> np.ndarray:
        z = self._congruent(self._bordered_inverse, differences)
        z[:, self._diagonals] -= np.repeat(z[:, : self.model.components], self.model.features, axis=1)
        z /= self._unit_sizes
        return z

    def _whole_backward(self, z: np.ndarray) -> np.ndarray:
        moments = z * self._unit_sizes
        moments[:, self._diagonals] += np.repeat(moments[:, : self.model.components], self.model.features, axis=1)
        return self._congruent(self._bordered_factor, moments)

    # --- what follows from theta --------------------------------------------------------------------------------------

    @cached_property
    def _root(self) -> np.ndarray:
        """(G,) sqrt(pi)."""
        return np.sqrt(np.maximum(self.theta["weights"], WEIGHT_FLOOR))

    @cached_property
    def _mu(self) -> np.ndarray:
        return np.asarray(self.theta["means"]) - self.model.centre

    @cached_property
    def _bordered_inverse(self) -> np.ndarray:
        """(G, d + 1, d + 1) B, full covariances only."""
        return _bordered(-_times(self._inverse, self._mu), self._inverse)

    @cached_property
    def _bordered_factor(self) -> np.ndarray:
        """(G, d + 1, d + 1) B^-1."""
        return _bordered(self._mu, self._factor)

    @property
    def _diagonals(self) -> np.ndarray:
        """(G d,) where the diagonals of second moments are."""
        return _places_of(self.model.components, self.model.features).diagonals

    @cached_property
    def _unit_sizes(self) -> np.ndarray:
        """(q,) what B M B', less d0 I, is divided by."""
        d = self.model.features
        return np.concatenate([self._root, np.repeat(self._root, d), np.repeat(np.sqrt(2.0) * self._root, triangle(d))])

    @cached_property
    def _axis_sizes(self) -> np.ndarray:
        """(q, 1) what moments about mu are divided by, diagonal covariances only."""
        own = self._root[:, None] * np.sqrt(self._variances)
        second = np.sqrt(2.0) * self._root[:, None] * self._variances
        return np.concatenate([self._root, own.ravel(), second.ravel()])[:, None]

    @cached_property
    def _variances(self) -> np.ndarray:
        """(G, d), or (G, 1) for spheres."""
        variances = np.asarray(self.theta["covariances"])
        return variances[:, None] if self.model.covariance == "spherical" else variances

    @cached_property
    def _factor(self) -> np.ndarray:
        """L, (G, d, d) or (d, d)."""
        matrices = self.model.known if self.model.covariance == "known" else self.theta["covariances"]
        return np.linalg.cholesky(np.asarray(matrices, np.float64))

    @cached_property
    def _inverse(self) -> np.ndarray:
        """L^-1, of the shape of L."""
        eye, d = np.eye(self.model.features), self.model.features
        factors = self._factor.reshape(-1, d, d)
        inverses = [scipy.linalg.solve_triangular(factor, eye, lower=True, check_finite=False) for factor in factors]
        return np.stack(inverses).reshape(self._factor.shape)

    def _whiten(self, own: np.ndarray) -> np.ndarray:
        """L^-1 v of vectors (C, G, d)."""
        if self.model.covariance == "spherical":
            return own / np.sqrt(self._variances)
        return _times(self._inverse, own)

    def _colour(self, own: np.ndarray) -> np.ndarray:
        """L v of vectors (C, G, d)."""
        if self.model.covariance == "spherical":
            return own * np.sqrt(self._variances)
        return _times(self._factor, own)

    def _congruent(self, outer: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """Packed A M A' (C, q) of packed M (C, q): A (G, d + 1, d + 1). Products are of one client."""
        places = _places_of(self.model.components, self.model.features)
        matrices = np.take(packed * places.unscaled, places.whole, axis=1)
        matrices = matrices.reshape(len(packed), *outer.shape)
        matrices = np.matmul(outer @ matrices, np.swapaxes(outer, -1, -2), out=matrices)
        result = np.take(matrices.reshape(len(packed), outer.size), places.packed, axis=1)
        result /= places.unscaled
        return result

    def _sandwich(self, outer: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """Packed A M A' of packed symmetric M (..., d (d + 1) / 2), of the clients and perhaps components, and A."""
        matrices = outer @ unpack_symmetric(packed, self.model.features)
        return pack_symmetric(matrices @ np.swapaxes(outer, -1, -2))

    # --- packing ------------------------------------------------------------------------------------------------------

    def _split(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Views of (C, q): (C, G), (C, G, d) and the rest, (C, G, n), (C, n) if shared, or nothing."""
        clients, g, d = len(packed), self.model.components, self.model.features
        counts, first, rest = np.split(packed, [g, g + g * d], axis=1)
        if self.model.covariance in ("full", "diag", "spherical"):
            rest = rest.reshape(clients, g, rest.shape[1] // g)
        return counts, first.reshape(clients, g, d), rest

    def _join(self, counts: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        parts = (counts, first, second)
        return np.concatenate([part.reshape(len(part), int(np.prod(part.shape[1:]))) for part in parts], axis=1)


def _times(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """A v: A (G, d, d) or (d, d), v (C, G, d). Products are of one client, whose bits no other client changes."""
    if matrices.ndim == 2:
        return vectors @ matrices.T
    return (matrices @ vectors[..., None])[..., 0]


def _squared_sizes_of_products(precision: np.ndarray) -> np.ndarray:
    """(..., d (d + 1) / 2) half of |L^-1 E L^-T|^2 for each packed matrix E of one number 1. precision: (..., d, d)."""
    rows, columns = np.triu_indices(precision.shape[-1])
    diagonal = np.diagonal(precision, axis1=-2, axis2=-1)
    both, across = diagonal[..., rows] * diagonal[..., columns], precision[..., rows, columns] ** 2
    sizes: np.ndarray = np.where(rows == columns, both, both + across) / 2
    return sizes


def _bordered(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(G, d + 1, d + 1) [[1, 0], [first, second]] of (G, d) and (G, d, d)."""
    g, d = first.shape
    whole = np.zeros((g, d + 1, d + 1))
    whole[:, 0, 0], whole[:, 1:, 0], whole[:, 1:, 1:] = 1.0, first, second
    return whole


class _Places(NamedTuple):
    """Between packed statistics (q,) and symmetric matrices (G, d + 1, d + 1) of all moments of a component.

    whole: (G (d + 1)^2,) the packed number that is in each place of the matrices. packed: (q,) where each packed number
    is in them. unscaled: (q,) by what packed numbers are multiplied there. diagonals: (G d,) packed numbers that are
    second moments of one column.
    """

    whole: np.ndarray
    packed: np.ndarray
    unscaled: np.ndarray
    diagonals: np.ndarray


@lru_cache(maxsize=8)
def _places_of(g: int, d: int) -> _Places:
    low, (rows, columns) = g + g * d, np.triu_indices(d)
    numbers = np.empty((g, d + 1, d + 1), np.int64)
    numbers[:, 0, 0] = np.arange(g)
    numbers[:, 0, 1:] = numbers[:, 1:, 0] = np.arange(g, low).reshape(g, d)
    second = np.arange(low, low + g * len(rows)).reshape(g, len(rows))
    numbers[:, 1 + rows, 1 + columns] = numbers[:, 1 + columns, 1 + rows] = second
    whole = numbers.ravel()
    packed = np.empty(low + second.size, np.int64)
    packed[whole[::-1]] = np.arange(whole.size)[::-1]  # the first of two places: above the diagonal
    unscaled = np.ones(len(packed))
    unscaled[low:] = np.tile(np.where(rows == columns, 1.0, np.sqrt(0.5)), g)
    return _Places(whole, packed, unscaled, second[:, rows == columns].ravel())
