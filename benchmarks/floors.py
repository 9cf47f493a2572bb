"""Hand-written rounds: one process, all data in memory as one SciPy matrix, nothing else in the way."""

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment

from fedcore.population.store import Population


def counts_in_memory(population: Population) -> sp.csr_matrix:
    """(n, d) float32 counts of everybody."""
    return sp.vstack([population.read(index).csr for index in range(len(population.blocks))], format="csr")


def clustering(counts: sp.csr_matrix, centres: np.ndarray):
    """A round of Algorithm 2 in KL: returns a function without arguments."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    q = sp.diags(1 / np.maximum(totals, 1)) @ counts
    q = sp.csr_matrix(q, dtype=np.float32)
    clusters = len(centres)
    rows = np.arange(q.shape[0] + 1)

    def round():
        logs = np.log(centres + 1e-6).T.astype(np.float32)
        cells = (q @ logs).argmax(axis=1)
        one_hot = sp.csr_matrix((np.ones(q.shape[0], np.float32), cells, rows), shape=(q.shape[0], clusters))
        sums = (one_hot.T @ q).toarray()
        return sums / np.maximum(np.bincount(cells, minlength=clusters), 1)[:, None]

    return round


def clustering_by_bincount(counts: sp.csr_matrix, centres: np.ndarray):
    """The same round with float64 sums over (cell, token) keys."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    q = sp.csr_matrix(sp.diags(1 / np.maximum(totals, 1)) @ counts, dtype=np.float32)
    clusters, d = centres.shape
    lengths = np.diff(q.indptr)

    def round():
        logs = np.log(centres + 1e-6).T.astype(np.float32)
        cells = (q @ logs).argmax(axis=1).astype(np.int32)
        keys = np.repeat(cells * d, lengths) + q.indices
        sums = np.bincount(keys, q.data, clusters * d).reshape(clusters, d)
        return sums / np.maximum(np.bincount(cells, minlength=clusters), 1)[:, None]

    return round


def grid_sums(counts: sp.csr_matrix, centres: np.ndarray, weights: np.ndarray, clip: float = 3.0):
    """The private round: assign, whiten, clip, truncate to the grid, add exactly."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    q = sp.csr_matrix(sp.diags(1 / np.maximum(totals, 1)) @ counts, dtype=np.float32)
    clusters, d = centres.shape
    lengths = np.diff(q.indptr)
    filled = lengths > 0
    whitening = 1 / np.sqrt(weights)

    def round():
        logs = np.log(centres + 1e-6).T.astype(np.float32)
        cells = (q @ logs).argmax(axis=1).astype(np.int32)
        y = q.data * whitening[q.indices]
        squares = np.zeros(q.shape[0])
        squares[filled] = np.add.reduceat(y * y, q.indptr[:-1][filled])
        scale = np.minimum(1.0, clip / np.sqrt(np.maximum(squares, 1e-300))) * (2**16 / clip)
        z = np.trunc(y * np.repeat(scale, lengths))
        keys = np.repeat(cells * d, lengths) + q.indices
        return np.bincount(keys, z, clusters * d).astype(np.int64).reshape(clusters, d)

    return round


def mixture(rows: np.ndarray, weights: np.ndarray, means: np.ndarray, variances: np.ndarray):
    """E-step sums of a Gaussian mixture with diagonal covariances, as one writes it: a function that returns
    s0 (K,), s1 (K, D), s2 (K, D). rows: (N, D) float64, standardised."""

    def round():
        precisions = 1 / variances
        logs = np.log(weights) - 0.5 * (np.log(variances) + means**2 * precisions).sum(axis=1)
        joint = logs + rows @ (means * precisions).T - 0.5 * (rows**2 @ precisions.T)
        r = np.exp(joint - joint.max(axis=1, keepdims=True))
        r /= r.sum(axis=1, keepdims=True)
        return r.sum(axis=0), r.T @ rows, r.T @ rows**2

    return round


def _natural(weights, means, variances):
    """(K, 1 + 2 D): ln pi_g f_g(x) = phi (1, x, x^2) up to a constant."""
    precisions = 1 / variances
    logs = np.log(weights) - 0.5 * (np.log(variances) + means**2 * precisions).sum(axis=1)
    return np.hstack([logs[:, None], means * precisions, -0.5 * precisions])


def _tile(rows: np.ndarray, phi: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Responsibilities (K, n); features are left in z (1 + 2 D, n)."""
    d = rows.shape[1]
    np.copyto(z[1 : 1 + d], rows.T)
    np.multiply(z[1 : 1 + d], z[1 : 1 + d], out=z[1 + d :])
    r = phi @ z
    r -= r.max(axis=0)
    np.exp(r, out=r)
    r /= r.sum(axis=0)
    return r


def mixture_in_tiles(rows: np.ndarray, weights, means, variances, tile: int = 8000):
    """The same sums, (K, 1 + 2 D), as fast as we could write them: tiles that stay in the cache, rows last."""
    z = np.ones((1 + 2 * rows.shape[1], tile))

    def round():
        phi, sums = _natural(weights, means, variances), 0.0
        for low in range(0, len(rows), tile):
            part = rows[low : low + tile]
            features = z[:, : len(part)]
            sums = sums + _tile(part, phi, features) @ features.T
        return sums

    return round


def mixture_by_client(rows: np.ndarray, each: int, weights, means, variances, tile: int = 8000):
    """The mean of every client, (C, K, 1 + 2 D), clients of `each` rows: what a round needs that tells them apart."""
    d, tile = rows.shape[1], tile // each * each
    z, turned = np.ones((1 + 2 * d, tile)), np.empty((tile, 1 + 2 * d))

    def round():
        phi, sums = _natural(weights, means, variances), np.empty((len(rows) // each, len(weights), 1 + 2 * d))
        for low in range(0, len(rows), tile):
            part = rows[low : low + tile]
            features, clients = z[:, : len(part)], len(part) // each
            r = _tile(part, phi, features).reshape(len(weights), clients, each).transpose(1, 0, 2)
            np.copyto(turned[: len(part)], features.T)
            np.matmul(r, turned[: len(part)].reshape(clients, each, -1), out=sums[low // each : low // each + clients])
        sums /= each
        return sums

    return round


# --- penalised gradient EM ------------------------------------------------------------------------------------------


def _shares(x: np.ndarray, theta: np.ndarray, w: np.ndarray) -> np.ndarray:
    """(..., R, m) posterior probabilities for rows x (..., m, p), unit covariance, theta (..., R, p), w (..., R)."""
    g = theta @ np.swapaxes(x, -1, -2)
    g += (np.log(np.maximum(w, 1e-12)) - 0.5 * (theta * theta).sum(axis=-1))[..., None]
    g -= g.max(axis=-2, keepdims=True)
    np.exp(g, out=g)
    g /= g.sum(axis=-2, keepdims=True)
    return g


def _lengths(differences: np.ndarray) -> np.ndarray:
    return np.maximum(np.sqrt((differences * differences).sum(axis=-1)), 1e-12)


def gradient_step(x, theta, w, step):
    """One gradient step of one client, or of several with equally many rows: (estimate, weights). x: (..., m, p);
    theta: (..., R, p); w, step: (..., R)."""
    g, m = _shares(x, theta, w), x.shape[-2]
    mass = g.sum(axis=-1)
    return theta + step[..., None] * (g @ x - mass[..., None] * theta) / m, mass / m


class GradientEM:
    """FedGrEM with the schedule of its paper (C .95), as one writes it. rows: (m, p) of each client; begins at the
    common centres (R, p). together: clients that are computed at once, which must have equally many rows; 1: a loop."""

    def __init__(self, rows, centres: np.ndarray, together: int = 1):
        self.parts = _parts(rows, together)
        self.n = np.concatenate([np.full(len(part), part.shape[1], np.float64) for part in self.parts])
        self.v, self.penalty = centres, 1.0
        self.theta = np.tile(centres, (len(self.n), 1, 1))
        self.w = np.full(self.theta.shape[:2], 1 / len(centres))
        self.step = 0.95 / self.w

    def round(self) -> None:
        sent, low = np.empty_like(self.theta), 0
        for part in self.parts:
            at = low if len(part) == 1 else slice(low, low + len(part))
            x = part[0] if len(part) == 1 else part
            sent[at], self.w[at] = gradient_step(x, self.theta[at], self.w[at], self.step[at])
            low += len(part)
        self.penalty = 0.1 * self.penalty + 2.0 * np.sqrt(sent.shape[2] + np.log(len(sent)))
        tau = (self.penalty / np.sqrt(self.n))[:, None]
        for _ in range(500):
            a = self.n[:, None] * np.minimum(1.0, tau / _lengths(sent - self.v))
            new = (a[:, :, None] * sent).sum(axis=0) / a.sum(axis=0)[:, None]
            moved, self.v = np.sqrt(((new - self.v) ** 2).sum(axis=1)).max(), new
            if moved <= 1e-9 * (1 + np.abs(new).max()):
                break
        kept = np.maximum(0.0, 1.0 - tau / _lengths(sent - self.v))[:, :, None]
        self.theta = self.v + kept * (sent - self.v)


class EstimatedGradientEM:
    """The default of `gradient_em` without second starts: shrinkage and a common covariance that are estimated. As in
    `GradientEM`. rows must not lose a component."""

    limit, pooling = 1.3, 10.0

    def __init__(self, rows, centres: np.ndarray, together: int = 1):
        self.parts, (components, p) = _parts(rows, together), centres.shape
        clients = sum(len(part) for part in self.parts)
        self.n = np.concatenate([np.full(len(part), part.shape[1], np.float64) for part in self.parts])
        self.sent, self.v = np.tile(centres, (clients, 1, 1)), centres
        self.w = np.full((clients, components), 1 / components)
        self.spread, self.covariance, self.rounds = np.ones(components), np.eye(p), 0

    def client(self, x, sent, w, n, v, inverse, spread):
        """What one client, or several of equally many rows, answer; x, sent and the estimate in the data's units."""
        x, t = x @ inverse.T, sent @ inverse.T
        p, scatter = x.shape[-1], (np.zeros((x.shape[-1],) * 2), 0.0, 0.0)
        theta, shares = t, None
        if self.rounds:
            noise = 1 / (n * w)
            slope = self.limit * np.sqrt(p / (noise + spread))
            r = _lengths(t - v)
            kept = np.where(r <= (spread + noise) * slope, spread / (spread + noise), 1 - noise * slope / r)
            theta = v + kept[..., None] * (t - v)
            r = _lengths(theta - v)
            z = (r + noise * np.minimum(r / spread, slope)) / np.sqrt(p * (noise + spread))
            shares = np.clip(3 - z / self.limit, 0, 1)
        g = _shares(x, theta, w)
        mass, first = g.sum(axis=-1), g @ x
        if shares is not None:
            g *= shares[..., None]
            weighted, centres = (g @ x).reshape(-1, p), theta.reshape(-1, p)
            cross, held = weighted.T @ centres, shares * mass
            whole = (x * g.sum(axis=-2)[..., None]).reshape(-1, p).T @ x.reshape(-1, p)
            scatter = (
                whole - cross - cross.T + (centres * held.reshape(-1, 1)).T @ centres,
                held.sum(),
                (shares * spread / (spread + noise)).sum(),
            )
        m, w = first / mass[..., None], mass / n
        variance = 1 / mass + spread
        z = _lengths(m - v) / np.sqrt(p * variance)
        u, h = np.minimum(1, self.limit / np.maximum(z, 1e-12)), np.clip(3 - z / self.limit, 0, 1)
        a = u / variance
        centre = np.concatenate([a[..., None] * m, a[..., None]], axis=-1)
        moments = np.stack([h * (u * z) ** 2 / variance, h * u / variance, h], axis=-1)
        shape = (-1, *centre.shape[-2:])
        return m, w, scatter, centre.reshape(shape).sum(axis=0), moments.reshape(-1, *moments.shape[-2:]).sum(axis=0)

    def round(self) -> None:
        factor = np.linalg.cholesky(self.covariance)
        inverse = np.linalg.inv(factor)
        v, spread, low = self.v @ inverse.T, self.spread, 0
        scatter, held, fitted, centre, moments = 0.0, 0.0, 0.0, 0.0, 0.0
        for part in self.parts:
            at = low if len(part) == 1 else slice(low, low + len(part))
            x, n = (part[0], self.n[low]) if len(part) == 1 else (part, self.n[at][:, None])
            m, self.w[at], parts, sums, spreads = self.client(x, self.sent[at], self.w[at], n, v, inverse, spread)
            self.sent[at] = m @ factor.T
            scatter, held, fitted = scatter + parts[0], held + parts[1], fitted + parts[2]
            centre, moments, low = centre + sums, moments + spreads, low + len(part)
        self.v = centre[:, :-1] / centre[:, -1:] @ factor.T
        square, scale, counted = moments.sum(axis=0)
        below = moments[:, 1] + self.pooling * scale / counted
        smallest = 1e-5 * len(self.n) * len(self.v) / self.n.sum()
        self.spread = np.clip(spread * (moments[:, 0] + self.pooling * square / counted) / below, smallest, 1e6)
        if self.rounds:
            self.covariance = factor @ (scatter / max(held - fitted, 0.5 * held)) @ factor.T
        self.rounds += 1


def _parts(rows, together: int) -> list[np.ndarray]:
    """(c, m, p) of `together` clients each."""
    return [
        np.stack([np.asarray(own, np.float64) for own in rows[low : low + together]])
        for low in range(0, len(rows), together)
    ]


# --- dictionaries ---------------------------------------------------------------------------------------------------


def own_dictionary(x: np.ndarray, atoms: np.ndarray, common: np.ndarray, threshold: float):
    """One step of one client of PerMA (Algorithm 4, then the choice of the shared atoms): (shared, own) atoms. x:
    (m, d); atoms: (r, d), orthonormal; common: (g, d)."""
    codes = x @ atoms.T
    codes[np.abs(codes) < threshold] = 0
    left, _, right = np.linalg.svd(codes.T @ x, full_matrices=False)
    return chosen(left @ right, common)


def chosen(atoms: np.ndarray, common: np.ndarray):
    products = common @ atoms.T
    distances = np.sqrt(np.maximum(2 - 2 * np.abs(products), 0))
    index = linear_sum_assignment(distances)[1]
    signs = np.where(products[np.arange(len(common)), index] < 0, -1.0, 1.0)
    return atoms[index] * signs[:, None], np.delete(atoms, index, axis=0)


def polar_step(x: np.ndarray, atoms: np.ndarray, sparsity: int) -> np.ndarray:
    """Algorithm 4 with the `sparsity` largest correlations of a sample as codes. x: (m, d); atoms: (r, d)."""
    products = x @ atoms.T
    small = np.argpartition(np.abs(products), -sparsity, axis=1)[:, :-sparsity]
    np.put_along_axis(products, small, 0.0, axis=1)
    left, _, right = np.linalg.svd(products.T @ x, full_matrices=False)
    return left @ right


def in_turn(atoms: np.ndarray, common: np.ndarray) -> np.ndarray:
    """Atom after atom of the common ones the nearest that is left, turned to its side."""
    products = common @ atoms.T
    near, found = np.abs(products), np.empty_like(common)
    for number, row in enumerate(near):
        at = int(row.argmax())
        near[:, at] = -1.0
        found[number] = np.copysign(1.0, products[number, at]) * atoms[at]
    return found


class Dictionaries:
    """PerMA's rounds from a shared (g, d) and the clients' own atoms (C, l, d); mean of the clients, scaled to norm 1.

    together: 0 for a loop over clients, else so many at once, whose polar factors are found by r x r matrices.
    """

    def __init__(self, rows: np.ndarray, common: np.ndarray, own: np.ndarray, threshold: float, together: int = 0):
        """rows: (C, m, d)."""
        self.rows, self.common, self.own, self.threshold, self.together = rows, common, own.copy(), threshold, together

    def round(self) -> None:
        total = np.zeros_like(self.common)
        for low in range(0, len(self.rows), max(self.together, 1)):
            if not self.together:
                atoms = np.concatenate([self.common, self.own[low]])
                shared, self.own[low] = own_dictionary(self.rows[low], atoms, self.common, self.threshold)
                total += shared
                continue
            x = self.rows[low : low + self.together]
            atoms = np.concatenate(
                [np.broadcast_to(self.common, (len(x), *self.common.shape)), self.own[low : low + len(x)]], axis=1
            )
            codes = x @ atoms.swapaxes(1, 2)
            codes[np.abs(codes) < self.threshold] = 0
            a = codes.swapaxes(1, 2) @ x
            values, vectors = np.linalg.eigh(a @ a.swapaxes(1, 2))
            found = (vectors / np.sqrt(values)[:, None]) @ vectors.swapaxes(1, 2) @ a
            for client, updated in enumerate(found):
                shared, self.own[low + client] = chosen(updated, self.common)
                total += shared
        self.common = total / np.linalg.norm(total, axis=1, keepdims=True)
