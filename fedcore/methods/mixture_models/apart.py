"""Which clients are apart from all others: where all are similar, one in twenty is expected at most.

A client's squared Mahalanobis distance from the common centre of a component, given its own sampling error and the
estimated differences between clients, is chi-squared with d degrees of freedom if both are normal and known. Neither
holds for real clients: they differ more in some directions, tails are heavier, and errors are estimated. So the ratio
of the distance to d is taken as a F(d, nu), that of a multivariate Student t with nu degrees. Its scale a follows from
the median of all clients, which outliers hardly move; a client with several components counts by its largest ratio. A
client is apart in a component where its ratio is beyond the limit that all components of a client respect with
probability 1 - `RATE`.

Source: Smyth 2004 for the scaled F distribution of variances that differ between units; Efron 2004 for an empirical
null distribution by its centre. Their use for clients is ours.
"""

from __future__ import annotations

import numpy as np
import scipy

RATE = 0.05  # expected share of clients that are named among clients of which none is apart
EDGES = np.linspace(-6.0, 10.0, 321)  # of the logarithms of ratios that are counted


def counts_of_largest(ratios: np.ndarray) -> np.ndarray:
    """(320,) float64: how many clients have their largest ratio between two `EDGES`. ratios: (C, R) >= 0, NaN where a
    component does not count."""
    largest = np.fmax.reduce(ratios, axis=1)
    largest = largest[~np.isnan(largest)].clip(np.exp(EDGES[0]), np.exp(EDGES[-1]))
    return np.histogram(np.log(largest), EDGES)[0].astype(np.float64)


def limits(
    counts: np.ndarray, typical: float, degrees: np.ndarray, components: int, tail: float, kinds: int = 1
) -> np.ndarray:
    """The ratios beyond which clients are apart; the shape is that of `degrees`, d of the clients' own ratios.

    counts: (320,) of `counts_of_largest` over all clients, or (0,) if they were not counted: then a is 1.
    typical: d of a typical client; components: R; tail: nu. kinds: of ratios by each of which a client can be apart.
    """
    scale = 1.0
    if counts.sum() > 0:
        median = np.interp(0.5 * counts.sum(), np.append(0.0, np.cumsum(counts)), EDGES)
        scale = np.exp(median) / scipy.special.fdtri(typical, tail, 0.5 ** (1.0 / components))
    found: np.ndarray = scale * scipy.special.fdtri(degrees, tail, (1.0 - RATE) ** (1.0 / (kinds * components)))
    return found
