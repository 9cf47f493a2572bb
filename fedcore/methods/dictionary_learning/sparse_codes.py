"""Moves of atoms by sums of codes and samples, which need no sample.

Source: Mairal, Bach, Ponce, Sapiro 2010, Algorithm 2.

Orthogonal matching pursuit by batch: many samples, and many dictionaries, in the same few products.

Of a sample only its correlations with the atoms are needed, and of a dictionary its Gram matrix (Rubinstein,
Zibulevsky, Elad, "Efficient implementation of the K-SVD algorithm using batch orthogonal matching pursuit", 2008).
Instead of the Cholesky factor L of the Gram matrix of the atoms chosen, whose solves are not vectorised over samples,
its inverse is carried on: a new atom adds a row to it, and a multiple of that row to the codes.
"""

from __future__ import annotations

import numpy as np
import scipy

from fedcore.methods.dictionary_learning.operators import normalise

UNUSED = 1e-12  # an atom with less than this share of the mean energy of codes is unused
DOUBLE = 0.985  # likeness of two unit atoms, beyond which one of them is wasted
WEAK = 0.02  # share of the mean energy, below which an atom is wasted
SPLIT = 0.01  # by how much the two halves of a doubled atom differ


def descend(atoms: np.ndarray, xx: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Every atom in turn to its exact minimum of |Y - X D|^2 given the others and the codes, then scaled to norm 1.

    atoms, xy: (r, d); xx: (r, r). Unused atoms stay. Returns (r, d).
    """
    atoms = np.array(atoms, np.float64)
    if not len(atoms):
        return atoms
    energy = np.diagonal(xx)
    used = np.flatnonzero(energy > UNUSED * max(float(energy.mean()), np.finfo(float).tiny))
    for j in used:
        new = atoms[j] + (xy[j] - xx[j] @ atoms) / energy[j]
        norm = np.linalg.norm(new)
        if norm > 0:
            atoms[j] = new / norm
    return atoms


def without_unused(
    common: np.ndarray, energy: np.ndarray, generator: np.random.Generator, wasted: bool = False
) -> tuple[np.ndarray, int]:
    """(dictionary, number of replaced atoms): an atom that no code uses becomes a slightly moved copy of the most used
    one that has not been copied yet. The next codes separate the two. This needs no samples.

    common: (rg, d); energy: (rg,) sum of squared codes of each atom; wasted: also replace atoms that are hardly
    used, and those that are nearly another one.
    """
    if not len(common):
        return common, 0
    unused = energy <= (WEAK if wasted else UNUSED) * max(float(energy.mean()), np.finfo(float).tiny)
    dead = np.flatnonzero(unused | doubles(common, energy) if wasted else unused)
    if not len(dead) or len(dead) == len(energy):
        return common, 0
    common = common.copy()
    order = np.setdiff1d(np.argsort(-energy, kind="stable"), dead, assume_unique=True)
    for at, source in zip(dead, np.resize(order, len(dead)), strict=True):
        noise = generator.standard_normal(common.shape[1]) / np.sqrt(common.shape[1])
        common[at] = normalise(common[source] + SPLIT * noise)[0]
    return common, len(dead)


def doubles(atoms: np.ndarray, energy: np.ndarray, likeness_from: float = DOUBLE) -> np.ndarray:
    """(r,) bool: the atoms (r, d) that are nearly another one of at least as much energy (r,), up to the sign."""
    likeness = np.abs(atoms @ atoms.T)
    louder = (energy[None] > energy[:, None]) | (
        (energy[None] == energy[:, None]) & np.tri(len(atoms), k=-1, dtype=bool)
    )
    return ((likeness > likeness_from) & louder).any(1)


APART = 4  # samples of a client whose codes may not depend on others: a multiple of this, filled up with zeros
TILE_NUMBERS = 2**18  # float64 numbers in the correlations of the samples worked on at a time
FACTOR_NUMBERS = 2**20  # in their factors
NEXT = 1e-12  # share by which an atom's correlation has to exceed that of the atom before it to be the larger one
LEFT = 1e-14  # correlations below this share of the sample's norm are rounding
INDEPENDENT = 1e-10  # squared distance of an atom from the span of those chosen, below which it is in it


def omp(samples: np.ndarray, atoms: np.ndarray, k: int | np.ndarray) -> np.ndarray:
    """Codes with at most k atoms a sample, each atom the one of largest correlation with what is left.

    samples: (..., n, d); atoms: (..., r, d), whose leading axes broadcast with those of the samples; k: a number, or
    one for each sample, (..., n) int or what broadcasts to it. Returns (..., n, r) float64.

    Atoms need not have norm 1: the choice is by the correlation with the atom divided by its norm, and atoms of zero
    are never chosen. Of correlations that are equal to rounding the lowest atom's is the largest. A sample ends before
    k when its residual is orthogonal to all atoms, or the next atom is in the span of those chosen.
    """
    return omp_with_errors(samples, atoms, k)[0]


def omp_with_errors(
    samples: np.ndarray, atoms: np.ndarray, k: int | np.ndarray, gains: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """As `omp`, and the squared residual of every sample, (..., n), for nothing: its squared norm less what each atom
    takes of it, so that rounding is a share of the squared norm.

    gains: (..., n, t) float64 zeros without gaps between them, t at least the largest k: each sample gets there by how
    much its first, second, ... atom lowers its squared residual
    """
    n, d = samples.shape[-2:]
    r = atoms.shape[-2]
    if atoms.ndim == 2 < samples.ndim:  # one dictionary, and one Gram matrix
        flat_k = k if np.ndim(k) == 0 else np.broadcast_to(k, samples.shape[:-1]).ravel()
        flat_gains = None if gains is None else gains.reshape(-1, gains.shape[-1])
        codes, errors = omp_with_errors(samples.reshape(-1, d), atoms, flat_k, flat_gains)
        return codes.reshape(*samples.shape[:-1], r), errors.reshape(samples.shape[:-1])
    lead = np.broadcast_shapes(samples.shape[:-2], atoms.shape[:-2])
    codes, errors = np.zeros((*lead, n, r)), np.broadcast_to(_squares(samples), (*lead, n)).copy()
    most = min(int(np.max(k, initial=0)), r, d)
    if most <= 0 or not codes.size:
        return codes, errors
    y = np.broadcast_to(samples, (*lead, n, d)).reshape(-1, n, d)
    a = np.broadcast_to(atoms, (*lead, r, d)).reshape(-1, r, d)
    wanted = None if np.ndim(k) == 0 else np.minimum(np.broadcast_to(k, (*lead, n)), most).reshape(-1, n)
    flat, left = codes.reshape(-1, n, r), errors.reshape(-1, n)
    by_step = None if gains is None else gains.reshape(-1, n, gains.shape[-1])
    rows = max(min(TILE_NUMBERS // r, FACTOR_NUMBERS // most**2), 16)
    together = max(min(rows // n, TILE_NUMBERS // r**2), 1)
    for first in range(0, len(a), together):
        some = slice(first, first + together)
        dictionaries = _Dictionaries(np.asarray(a[some], np.float64))
        for low in range(0, n, rows):
            part = slice(low, low + rows)
            each = None if wanted is None else wanted[some, part].ravel()
            each_gain = None if by_step is None else by_step[some, part]
            taken = flat[some, part], left[some, part], each_gain
            _code(np.asarray(y[some, part], np.float64), dictionaries, each, most, *taken)
    return codes, errors


def omp_apart(samples: np.ndarray, atoms: np.ndarray, k: int) -> np.ndarray:
    """Codes as of `omp`, (c, m, r), of the samples (c, m, d) of c clients, m a multiple of APART, by atoms (r, d).

    Those of a client do not depend, to the last bit, on how many others there are, who they are, or where it stands:
    products of matrices are made client by client, and everything else is of one sample by itself. Sums over anything
    but the features run along an axis in front of the samples', of which there are several, so that NumPy adds entry
    to entry, in order.
    """
    c, m, d = samples.shape
    r = len(atoms)
    codes = np.zeros((c, m, r))
    most = min(k, r, d)
    if most <= 0 or not codes.size:
        return codes
    dictionary = _Dictionaries(np.asarray(atoms, np.float64)[None])
    squares = np.add.reduce(samples * samples, axis=2)
    rows = max(min(TILE_NUMBERS // r, FACTOR_NUMBERS // most**2) // APART, 4) * APART
    together = max(rows // m, 1)
    for first in range(0, c, together):
        some = slice(first, first + together)
        for low in range(0, m, rows):
            part = slice(low, low + rows)
            mine = np.zeros((len(samples[some]), len(samples[0, part]), r))
            _code(samples[some, part], dictionary, None, most, mine, squares[some, part].copy())
            codes[some, part] = mine
    return codes


class _Dictionaries:
    """What is needed of a stack of dictionaries (b, r, d).

    scaled:  (b, d, r) atoms of norm 1, times `weight`; gram: (b * r, r) their products with the atoms of norm 1
    weight:  (r,) falls with the atom's number, so that plain argmax breaks ties
    inverse: (b * r,) one over the atoms' norms; 0 of atoms of zero
    """

    def __init__(self, atoms: np.ndarray) -> None:
        r = atoms.shape[1]
        norms = np.linalg.norm(atoms, axis=2)
        inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
        unit = atoms * inverse[..., None]
        self.weight = 1.0 - NEXT * np.arange(r)
        self.scaled = (unit * self.weight[:, None]).swapaxes(1, 2)
        self.gram = (unit @ self.scaled).reshape(-1, r)
        self.inverse = inverse.ravel()


def _squares(samples: np.ndarray) -> np.ndarray:
    """(..., n) squared norms."""
    samples = np.asarray(samples, np.float64)
    return np.einsum("...d,...d->...", samples, samples)


def _code(
    samples: np.ndarray,
    of: _Dictionaries,
    k: np.ndarray | None,
    most: int,
    codes: np.ndarray,
    errors: np.ndarray,
    gains: np.ndarray | None = None,
) -> None:
    """Writes into codes (b, m, r), zeros before, those of samples (b, m, d) by b dictionaries or by one, and takes what
    they explain from errors (b, m); what each atom explains goes to gains (b, m, t), if they are given. k: (b * m,), at
    most `most`; None: all have `most`. State of the samples is kept with these along the last axis, so that every step
    is vectorised."""
    b, m, r = codes.shape
    count, atoms = b * m, len(of.gram)
    # Correlations with what is left: those of the sample less codes times the Gram matrix. As one product of a sparse
    # matrix with both, they are made in a single pass.
    both = np.empty((atoms + count, r))
    both[:atoms] = of.gram
    np.matmul(samples, of.scaled, out=both[atoms:].reshape(b, m, r))
    rounding = LEFT * np.sqrt(errors.ravel())
    place = np.arange(count)
    if k is not None:
        # Those of most atoms first, so that the remaining ones are always the first ones.
        place = np.argsort(-k, kind="stable")
        k, rounding = k[place], rounding[place]
    shift = place // m * r % atoms  # of the sample's dictionary in the stack
    rows = np.tile(shift.astype(np.int32), (most + 1, 1))  # of `both`: the sample, then the atoms chosen
    rows[0] = atoms + place
    terms = np.zeros((most + 1, count))  # 1 for the sample, then its codes times -1
    terms[0] = 1.0
    chosen, values = rows[1:], terms[1:]
    inverse = np.zeros((most, most, count))  # of the Cholesky factors
    explained = np.zeros(count)
    going = np.ones(count, bool)
    active = count
    for t in range(most):
        if k is not None:
            active = int(np.count_nonzero(k > t))
        if t == 0:
            left = both[atoms:] if k is None else both[rows[0, :active]]
        else:
            ends = np.arange(0, (t + 1) * active + 1, t + 1)
            weights, places = terms[: t + 1, :active].T.ravel(), rows[: t + 1, :active].T.ravel()
            left = scipy.sparse.csr_array((weights, places, ends), shape=(active, len(both))) @ both
        at = np.arange(active)
        high, low = left.argmax(1), left.argmin(1)  # less than a copy of absolute values and its argmax
        j = np.where(left[at, high] >= -left[at, low], high, low)
        weight = of.weight[j]
        correlation = left[at, j] / weight
        going = going[:active] & (np.abs(correlation) > rounding[:active])
        known = inverse[:t, :t, :active]
        direction = np.einsum("sum,um->sm", known, of.gram[chosen[:t, :active], j] / weight)
        square = 1.0 - np.einsum("sm,sm->m", direction, direction)
        going &= square > INDEPENDENT
        if not going.any():
            break
        length = np.divide(1.0, np.sqrt(np.where(going, square, 1.0)), out=np.zeros(active), where=going)
        np.einsum("sum,sm->um", known, -length * direction, out=inverse[t, :t, :active])
        inverse[t, t, :active] = length
        chosen[t, :active] = shift[:active] + j
        gain = correlation * length  # in the direction of the new atom that is orthogonal to those before it
        values[: t + 1, :active] -= gain * inverse[t, : t + 1, :active]
        explained[:active] += gain**2
        if gains is not None:
            gains[place[:active] // m, place[:active] % m, t] = gain**2
    out = codes.reshape(-1)
    values *= -of.inverse[chosen]
    for atom, found in zip(chosen, values, strict=True):
        out[place * r + (atom - shift)] += found  # an atom of value 0 may be there twice
    errors.reshape(-1)[place] -= explained
    np.maximum(errors, 0.0, out=errors)
