"""Which clients are apart from all others, at most one in twenty of those that are not.

A client's squared Mahalanobis distance from the common centre of a component, given its own sampling error and the
estimated differences between clients, is chi-squared with d degrees of freedom if both are normal and known. Neither
holds for real clients: they differ more in some directions, tails are heavier, and errors are estimated. So the ratio
of the distance to d is taken as

    ratio ~ a F(d, nu),     nu from 5 to 10,

that of a multivariate Student t with nu degrees. a and nu follow from two quantiles of all clients, `LOW` and `HIGH`,
which outliers hardly move; a client with several components counts by its largest ratio. A client is apart in a
component where its ratio is beyond the limit that all components of such a client respect with probability 1 - `RATE`.

Source: Smyth 2004 for the scaled F distribution of variances that differ between units; Efron 2004 for an empirical
null distribution by central quantiles. Their use for clients is ours.
"""

from __future__ import annotations

import numpy as np
from scipy.special import fdtri

RATE = 0.05  # expected share of clients that are named among clients of which none is apart
LOW, HIGH = 0.3, 0.6
EDGES = np.linspace(-6.0, 10.0, 321)  # of the logarithms of ratios that are counted
TAILS = np.geomspace(10.0, 5.0, 30)  # nu


def counts_of_largest(ratios: np.ndarray) -> np.ndarray:
    """(320,) float64: how many clients have their largest ratio between two `EDGES`. ratios: (C, R) >= 0, NaN where a
    component does not count."""
    largest = np.fmax.reduce(ratios, axis=1)
    largest = largest[np.isfinite(largest)].clip(np.exp(EDGES[0]), np.exp(EDGES[-1]))
    return np.histogram(np.log(largest), EDGES)[0].astype(np.float64)


def limits(counts: np.ndarray, typical: float, degrees: np.ndarray, components: int, kinds: int = 1) -> np.ndarray:
    """The ratios beyond which clients are apart; the shape is that of `degrees`, d of the clients' own ratios.

    counts: (320,) of `counts_of_largest` over all clients, or (0,) if they were not counted: then a is 1.
    typical: d of a typical client; components: R. kinds: of ratios by each of which a client can be apart.
    """
    low, high, level = (u ** (1.0 / components) for u in (LOW, HIGH, (1.0 - RATE) ** (1.0 / kinds)))
    tail, scale = TAILS[0], 1.0
    if counts.sum() > 0:
        below = np.append(0.0, np.cumsum(counts))
        first, second = np.interp(np.array([LOW, HIGH]) * below[-1], below, EDGES)
        bases = np.log(fdtri(typical, TAILS, low))
        tail = np.interp(second - first, np.log(fdtri(typical, TAILS, high)) - bases, TAILS)
        scale = np.exp(first) / fdtri(typical, tail, low)
    found: np.ndarray = scale * fdtri(degrees, tail, level)
    return found
