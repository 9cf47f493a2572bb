"""Rows with gaps (NaN): each gap is filled by a draw from what is known of its column, given the rest of its row.

Before the first whitening that is the released centre and scale of the column; then the normal distribution of all
rows; from the starts on the mixture that was released last. A part of it has mean m and precision P. Of a row with
observed columns o and missing ones g, with r = x - m that is 0 in g, h = (P r)_g and P_gg = L L',

    ln N(x_o) = ln|P| / 2 - ln|L| - (r' P r - |L^-1 h|^2) / 2 + a constant
    x_g | x_o ~ m_g - P_gg^-1 h + L'^-1 z,     z normal

A fill is a function of the message and of the row's own bits: of neither its place nor other rows. So all sums
are made column by column, in a fixed order, by additions, products, quotients and roots. That gives the same bits in
any tile, on any machine.

Source: Little, Rubin, "Statistical analysis with missing data", chapter 11; draws in place of expectations as in
Celeux, Diebolt 1985, "The SEM algorithm".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.methods.mixture_models.fixed_functions import log, normal_quantile, shares
from fedcore.methods.mixture_models.row_draws import uniforms_of
from fedcore.methods.mixture_models.whole_rows import STEP, standardised
from fedcore.methods.private_mixture.em import roots_of
from fedcore.methods.private_mixture.state import PrivateMixtureState

SURE = 1e12  # precision of a column that noise drowned: its gaps are filled with its centre


@dataclass(frozen=True, slots=True)
class Guess:
    """What gaps are filled from, in standardised columns. logs: (m,) of weight times root of |P|; means: (m, d);
    precisions: (m, d, d)."""

    logs: np.ndarray
    means: np.ndarray
    precisions: np.ndarray

    def without_last(self) -> Guess:
        return Guess(self.logs[:-1], self.means[:-1], self.precisions[:-1])


def of_columns(known: np.ndarray) -> Guess:
    """Columns by themselves, about their centres. known: (d,) bool, whether the scale of a column is."""
    d = len(known)
    return Guess(np.zeros(1), np.zeros((1, d)), np.diag(np.where(known, 1.0, SURE))[None])


def of_parts(
    logs: np.ndarray, means: np.ndarray, inverse_roots: np.ndarray, origin: np.ndarray, linear: np.ndarray
) -> Guess:
    """Of normal parts in coordinates u = (s - origin) linear. logs: (m,) of weight over root of the determinant; means
    (m, d) and inverse_roots (m, d, d) of their covariances, in these coordinates."""
    whiten = linear @ inverse_roots
    return Guess(logs, origin + means @ np.linalg.pinv(linear), whiten @ np.swapaxes(whiten, 1, 2))


def guess_of(state: PrivateMixtureState, broad: float) -> Guess:
    """What gaps are filled from: columns by themselves before the first whitening, then one normal distribution; from
    the starts on the mixture and its background, with the normal distribution as the last part.

    broad: covariance of the background, in that of all rows.
    """
    whole, d = state.map, state.features
    if not len(state.means) and not whole.centre.any() and np.array_equal(whole.linear(), np.eye(d)):
        return of_columns(state.told)
    means, covariances, logs = np.zeros((1, d)), np.eye(d)[None], np.zeros(1)
    if len(state.means):
        inverse, _ = roots_of(np.concatenate([state.covariances, broad * covariances]))
        logs = np.append(np.log(np.maximum(state.weights, 1e-12)) + np.linalg.slogdet(inverse)[1], 0.0)
        means, inverse = np.concatenate([state.means, means, means]), np.concatenate([inverse, np.eye(d)[None]])
        return of_parts(logs, means, inverse, whole.centre * STEP, whole.linear())
    return of_parts(logs, means, covariances, whole.centre * STEP, whole.linear())


def _sum(terms: np.ndarray) -> np.ndarray:
    """Over the last axis, in order."""
    total = np.zeros(terms.shape[:-1])
    for column in range(terms.shape[-1]):
        total += terms[..., column]
    return total


@dataclass(frozen=True, slots=True)
class _Given:
    """One part, given rows with k gaps each. gaps: (n, k) which columns. lower: (n, k, k) L; pull: (n, k) L^-1 h;
    joint: (n,) log density of what is there, but for constants."""

    gaps: np.ndarray
    lower: np.ndarray
    pull: np.ndarray
    joint: np.ndarray

    def filled(self, mean: np.ndarray, z: np.ndarray) -> np.ndarray:
        """(n, k) draws. mean: (d,) of the part; z: (n, k) normal."""
        rest = z - self.pull
        for column in reversed(range(rest.shape[1])):
            rest[:, column] /= self.lower[:, column, column]
            rest[:, :column] -= self.lower[:, column, :column] * rest[:, column, None]
        found: np.ndarray = mean[self.gaps] + rest
        return found


def _given(guess: Guess, part: int, s: np.ndarray, missing: np.ndarray, gaps: np.ndarray) -> _Given:
    """s: (n, d) rows, of any numbers where missing (n, d)."""
    precision = guess.precisions[part]
    r = np.where(missing, 0.0, s - guess.means[part])
    pulled = np.zeros(r.shape)
    for column in range(r.shape[1]):
        pulled += r[:, column, None] * precision[column]
    patterns, number = np.unique(gaps, axis=0, return_inverse=True)
    lower = _cholesky(precision[patterns[:, :, None], patterns[:, None, :]])[number.reshape(-1)]
    pull = np.take_along_axis(pulled, gaps, axis=1)
    for column in range(pull.shape[1]):
        pull[:, column] /= lower[:, column, column]
        pull[:, column + 1 :] -= lower[:, column + 1 :, column] * pull[:, column, None]
    squares = _sum(r * pulled) - _sum(pull * pull)
    half_log_det = _sum(log(np.diagonal(lower, axis1=1, axis2=2)))
    return _Given(gaps, lower, pull, guess.logs[part] - half_log_det - 0.5 * squares)


def _cholesky(matrices: np.ndarray) -> np.ndarray:
    """(p, k, k) lower factors, column by column."""
    rest, lower = matrices.copy(), np.zeros(matrices.shape)
    for column in range(rest.shape[1]):
        diagonal = np.sqrt(np.maximum(rest[:, column, column], 1e-12 * matrices[:, column, column]))
        lower[:, column, column] = diagonal
        lower[:, column + 1 :, column] = rest[:, column + 1 :, column] / diagonal[:, None]
        below = lower[:, column + 1 :, column]
        rest[:, column + 1 :, column + 1 :] -= below[:, :, None] * below[:, None, :]
    return lower


def _by_number(missing: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows that miss the same number of columns, (n,) each, and which columns, (n, k). missing: (N, d) bool."""
    counts = missing.sum(axis=1)
    found = []
    for k in np.unique(counts[counts > 0]):
        rows = np.flatnonzero(counts == k)
        found.append((rows, np.nonzero(missing[rows])[1].reshape(len(rows), k)))
    return found


def _standard(x: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """(n, d) standardised, in units."""
    return standardised(np.where(np.isnan(x), centre, x), centre, scale) * STEP


def joint_of(guess: Guess, x: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """(m, n) logs of weight times density of what rows x (n, d) with gaps hold, but for what all parts share.

    centre, scale: (d,) of the columns.
    """
    s, missing, joint = _standard(x, centre, scale), np.isnan(x), np.zeros((len(guess.logs), len(x)))
    for rows, gaps in _by_number(missing):
        for part in range(len(joint)):
            joint[part, rows] = _given(guess, part, s[rows], missing[rows], gaps).joint
    return joint


def filled(
    guess: Guess,
    x: np.ndarray,
    centre: np.ndarray,
    scale: np.ndarray,
    words: np.ndarray,
    first: np.ndarray,
    answers: np.ndarray | None = None,
) -> np.ndarray:
    """(n, d) the rows x (n, d), each of which has gaps, with draws in these; in the units of the data.

    centre, scale: (d,) of the columns. words: (n,) uint64 random bits of each row; first: (n,) int64, from which on its
    numbers of draws are free. answers: (m, n) log probabilities of what categories hold, or None.
    """
    s, missing, d = _standard(x, centre, scale), np.isnan(x), x.shape[1]
    chosen = np.zeros(len(x), np.int64)
    if len(guess.logs) > 1:
        joint = joint_of(guess, x, centre, scale)
        part, _ = shares(joint if answers is None else joint + answers)
        reached = uniforms_of(words, first + d)
        total = np.zeros(len(x))
        for own in part[:-1]:
            total += own
            chosen += total < reached
    found = x.copy()
    for rows, gaps in _by_number(missing):
        z = normal_quantile(uniforms_of(words[rows, None], first[rows, None] + gaps))
        for part in np.unique(chosen[rows]):
            own = chosen[rows] == part
            at = rows[own]
            draws = _given(guess, part, s[at], missing[at], gaps[own]).filled(guess.means[part], z[own])
            found[at[:, None], gaps[own]] = centre[gaps[own]] + scale[gaps[own]] * draws
    return found
