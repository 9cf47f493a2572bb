"""Bayes estimates that know the parameters of a synthetic population: a bound for all estimates that must learn them.

    centre known   alpha / (alpha + m_u) P_c(u) + m_u / (alpha + m_u) q_u
    mixture        sum_c r_c(u) [alpha P_c + x_u] / (alpha + m_u),
                   ln r_c(u) = ln w_c + sum over x_ui > 0 of [lnGamma(alpha P_ci + x_ui) - lnGamma(alpha P_ci)] + const

Source: Setlur, Feldman, Talwar 2023, Lemma 2.2 and section 2.1. The first is the posterior mean if the
client's cluster is known as well as the centres and alpha, the second if it is not; both if the population is a mixture
of Dirichlets (`SyntheticSettings.beta` is None). They are one formula over responsibilities: that of a known cluster is
1.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, softmax

from fedcore.methods.histograms.clients import inverse_totals
from fedcore.methods.histograms.simplex import project
from fedcore.population.blocks import CountsBlock, segment_sums

SHAPE_FLOOR = 1e-9  # of a Dirichlet parameter alpha P


def known_clusters(clusters: np.ndarray, k: int) -> np.ndarray:
    """(C, k) float64 responsibilities of clients whose cluster is known. clusters: (C,) ints of 0 .. k - 1."""
    return np.eye(k)[clusters]


def posterior_clusters(block: CountsBlock, centres: np.ndarray, weights: np.ndarray, alpha: float) -> np.ndarray:
    """(C, k) float64: r_c(u). A client without tokens has the weights.

    centres: (k, d) true, floored so that alpha P >= 1e-9. weights: (k,) positive, sum 1. Cost: stored entries times k.
    """
    shapes = alpha * project(centres, SHAPE_FLOOR / alpha)
    logs = np.empty((block.clients, len(centres)))
    for c, shape in enumerate(shapes):
        at = shape[block.indices]
        logs[:, c] = np.log(weights[c]) + segment_sums(gammaln(at + block.data) - gammaln(at), block.indptr)
    return softmax(logs, axis=1)


def oracle_values(
    block: CountsBlock,
    client: np.ndarray,
    tokens: np.ndarray,
    responsibilities: np.ndarray,
    centres: np.ndarray,
    alpha: float,
) -> np.ndarray:
    """(len(tokens),) float64: the estimate of client[i] at tokens[i]; for scores that need few tokens of a client.

    client: positions in the block. responsibilities: (C, k), of either function above.
    """
    share = (alpha / (alpha + block.totals))[client]
    base = np.zeros(len(tokens))
    if len(tokens) == 0:
        return base
    for weight, row in zip(responsibilities.T, centres, strict=True):
        base += weight[client] * row[tokens]
    own = np.asarray(block.csr[client, tokens], np.float64).ravel() * inverse_totals(block)[client]
    return share * base + (1.0 - share) * own
