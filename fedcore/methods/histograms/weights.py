"""The release `weights`: which weight of the base serves the clients, asked of two halves of each client's documents.

    lam_u = (a + c m_u) / (a + m_u)        of the base in client u's estimate, m_u its tokens

c is the share of the base that no amount of own tokens takes away: a new document of a client is never like its old
ones. What a and c should be differs between populations by much more than the noise of one release.

Every client fits its base to its first half, and says for each pair (a, c) of a public list by how much its second half
is less likely than under the pair REFERENCE. These losses are clipped, cut to the grid and added up: one release of as
many numbers as there are pairs. Clients with fewer than FEWEST tokens in either half say nothing.

A client's numbers depend on the message and on its own two halves, and on nothing else, to the last bit; entries have
both signs. docs/privacy/histograms.md argues from that. Not in the paper.

The weight of the base: whether a run asks its clients for it, and what it makes of their noisy answer.

The release is the sum over the clients of what they lose under each pair (a, c) of `PAIRS`. Its noise is of the
size of the differences that matter, so the pair with the lowest value is not the one to take. A Gaussian process over
log a and c says what the losses most likely are, between the pairs as well: losses differ smoothly, and those of usual
weights are rarely far from the best. Pure functions of released values and public facts: they cost no privacy.
"""

from __future__ import annotations

import math

import numpy as np

from fedcore.methods.histograms import sensitivities
from fedcore.methods.histograms.clients import assign_in_float32, inverse_totals
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.personal import base_weight, mixed_rows, mixes, mixture_weights, own_values, values_at
from fedcore.methods.histograms.simplex import assignment_logs, project
from fedcore.methods.histograms.sizes import effective_budget, expected_loss, series_before
from fedcore.methods.histograms.state import USUAL_WEIGHTS, HistogramsState, WeightsMessage
from fedcore.population.blocks import CountsBlock, segment_sums
from fedcore.privacy.grid import bound_norms, grid_step
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.statistics import IntegerSum, Statistics

WEIGHTS = "weights"
CLIP = 0.3  # L2, nats
FEWEST = 50  # tokens in either half of a client that counts
REFERENCE = (1000.0, 0.4)
USUAL_TOKENS = 800.0  # at which weights outside of LEAST .. MOST are not worth asking for
LEAST, MOST = 0.15, 0.92


def sensible(a: float | np.ndarray, c: float | np.ndarray) -> bool | np.ndarray:
    """Whether the weight of the base of a usual client is neither next to nothing nor next to all."""
    weight = base_weight(USUAL_TOKENS, a, c)
    return (weight >= LEAST) & (weight <= MOST)


PAIRS = tuple(
    (a, c)
    for a in (62.0, 125.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0)
    for c in (0.0, 0.2, 0.4, 0.6)
    if sensible(a, c) and (a, c) != REFERENCE
)


def client_update(message: WeightsMessage, block: CountsBlock) -> Statistics:
    """The leaf's exact sum on the grid. Zeros for a block without second halves."""
    return {message.release: IntegerSum(contributions(message, block).sum(axis=0).astype(np.int64))}


def contributions(message: WeightsMessage, block: CountsBlock) -> np.ndarray:
    """(C, len(PAIRS)) float64 whole numbers: what each client adds to the release, of a norm of at most 2**16."""
    other = block.heldout
    if other is None or not block.clients:
        return np.zeros((block.clients, len(PAIRS)))
    return on_grid(losses(message, block, other), (block.totals >= FEWEST) & (other.totals >= FEWEST))


def losses(message: WeightsMessage, block: CountsBlock, other: CountsBlock) -> np.ndarray:
    """(C, len(PAIRS)) nats a token of the second half, beyond those of REFERENCE.

    l_u(a, c) = -sum_t q2_ut ln(lam_u base_ut + (1 - lam_u) q1_ut)
    """
    client = other.rows_of_entries()
    share = other.data * inverse_totals(other)[client]
    own = own_values(block, client, other.indices)
    base = values_at(_mixtures(message, block), message.rows, client, other.indices)

    def loss(a: float, c: float) -> np.ndarray:
        weight = base_weight(block.totals, a, c)[client]
        return -segment_sums(share * np.log(weight * base + (1.0 - weight) * own), other.indptr)

    reference = loss(*REFERENCE)
    return np.stack([loss(a, c) - reference for a, c in PAIRS], axis=1)


def on_grid(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """(C, p) float64 whole numbers of both signs: rows clipped at CLIP in L2, in grid steps, cut towards zero.

    counted: (C,) bool; the rows of the others are zeros. The bound 2**16 is checked on the whole numbers.
    """
    clients, pairs = values.shape
    rows = np.arange(clients + 1) * pairs
    flat = np.where(counted[:, None], values, 0.0).ravel()
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        squares = segment_sums(flat * flat, rows)
        usable = np.isfinite(squares)
        factors = np.where(usable, np.minimum(1.0, CLIP / np.sqrt(squares)) / grid_step(CLIP), 0.0)
    grid = np.trunc(np.where(np.repeat(usable, pairs), flat, 0.0) * np.repeat(factors, pairs))
    return bound_norms(grid, rows).reshape(clients, pairs)


def _mixtures(message: WeightsMessage, block: CountsBlock) -> np.ndarray:
    """(C, r) weights over message.rows of each client's base, from its first half."""
    if len(message.rows) == 1:
        return np.ones((block.clients, 1))
    if not message.log_centres.size:
        return mixture_weights(block, message.rows, message.mixture_prior, message.mixture_steps)
    weights = np.zeros((block.clients, len(message.rows)))
    weights[np.arange(block.clients), assign_in_float32(block, message.log_centres)] = 1.0
    return weights


LEAST_SHARE, MOST_SHARE = 0.03, 0.05  # of the budget
LEAST_SIGNAL = 50.0  # clients times mu over the clip; the choice still paid at it, and was not tried below
ENOUGH = 700.0  # the signal that a larger share than the least is spent for
LITTLE, USUAL_OF_LITTLE = 0.6, (500.0, 0.2)  # b below which bases are so noisy that other weights are usual
DIFFERENCES, OFFSET = 0.02, 0.03  # standard deviations of the process: of losses among pairs, and of all alike
SLOPE = 0.004  # nats that a pair is expected to lose at two octaves, or .3 of c, from the usual one
LEAST_NOISE = 3e-4  # nats, standard deviation
LARGEST_FLOOR = 0.5
CANDIDATES = tuple(
    (float(round(62 * 2 ** (step / 16))), hundredths / 100)
    for step in range(97)
    for hundredths in range(round(100 * LARGEST_FLOOR) + 1)
    if sensible(round(62 * 2 ** (step / 16)), hundredths / 100)
)


# --- before the run -------------------------------------------------------------------------------------------------


def why_not_released(config: HistogramsConfig, public: PublicFacts) -> str:
    """Why a private run makes no release of weights; empty if it makes one. Known from settings and public facts."""
    if config.prior_tokens is not None or config.floor is not None:
        return "the settings name them"
    if config.weights == "local":
        return "each client chooses its own"
    if public.halves == "entry":
        return "the two halves of the clients' data were dealt token by token, which tells nothing of new documents"
    if public.halves != "document":
        return "nobody declared that the population holds two halves of each client's documents"
    signal = _signal(config, public)
    if signal < LEAST_SIGNAL:
        return f"the budget is too small for it: its signal is {signal:.3g} of the {LEAST_SIGNAL:g} that are needed"
    return ""


def in_words(config: HistogramsConfig, public: PublicFacts) -> str:
    """Whether there will be a release of weights, or why not."""
    because = why_not_released(config, public)
    return f"weights of the base: not released, because {because}" if because else "weights of the base: released"


def share_of(config: HistogramsConfig, public: PublicFacts) -> float:
    """What the release takes of the budget of a run that makes it: more than the least where that leaves it noisy."""
    missing = ENOUGH / _signal(config, public)
    return min(max(LEAST_SHARE * missing**2, LEAST_SHARE), MOST_SHARE)


def _signal(config: HistogramsConfig, public: PublicFacts) -> float:
    """n mu / clip, mu that of the release at the least share. Another relation doubles the noise."""
    nominal, _, _ = effective_budget(config, public)
    mu = math.sqrt(2 * LEAST_SHARE * (public.rho or 0.0))
    return nominal * mu / (CLIP * sensitivities.signed_factor(public.relation))


def usual_weights(config: HistogramsConfig, public: PublicFacts) -> tuple[float, float]:
    """(a, c) of a run that releases none: those that the series has chosen before, else usual ones."""
    before = series_before(config, public)
    if before is not None and "base_weights" in before:
        a, c = before["base_weights"].tolist()
        return a, c
    return USUAL_OF_LITTLE if expected_loss(config, public)[0] < LITTLE else USUAL_WEIGHTS


# --- the release ----------------------------------------------------------------------------------------------------


def message(config: HistogramsConfig, state: HistogramsState) -> WeightsMessage:
    """Asks every client what it loses, with the bases that the run's estimates have."""
    centres, _ = state.usable_centres()
    if mixes(config.outputs, centres):
        rows, logs = mixed_rows(config.outputs, state), np.zeros((0, 0), np.float32)
    else:
        rows = project(centres, config.centre_floor)
        logs = assignment_logs(centres, config.assignment_smoothing)
    return WeightsMessage(WEIGHTS, rows, logs, config.mixture_prior, config.mixture_steps)


def chosen(
    released: np.ndarray, clients: float, scale: float, usual: tuple[float, float]
) -> tuple[tuple[float, float], float]:
    """((a, c), margin): the pair of CANDIDATES with the least expected loss, or the usual one unless that loses more by
    at least the noise of a loss: a smaller difference is as likely to be noise. margin: by how much the best pair wins
    over the usual one, in units of that noise; the usual pair is kept up to 1.

    released: (len(PAIRS),) noisy, grid steps. clients: of the population, as declared. scale: of the noise, grid
    steps.
    """
    step = grid_step(CLIP) / clients
    losses = np.append(released * step, 0.0)  # of REFERENCE nothing has to be asked
    deviation = max(scale * step, LEAST_NOISE)
    noise = np.append(np.full(len(PAIRS), deviation), LEAST_NOISE)
    candidates = np.array([*CANDIDATES, usual])
    expected = posterior_mean(np.array([*PAIRS, REFERENCE]), losses, noise, candidates)
    best = int(np.argmin(expected[:-1]))
    margin = (expected[-1] - expected[best]) / deviation
    a, c = candidates[best if margin > 1.0 else -1]
    return (float(a), float(c)), float(margin)


def posterior_mean(pairs: np.ndarray, losses: np.ndarray, noise: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """(w,) what the losses of `wanted` most likely are. pairs: (p, 2), wanted: (w, 2) of a and c; noise: (p,)."""
    covariance = _kernel(pairs, pairs) + np.diag(noise**2)
    surprise = np.linalg.solve(covariance, losses - _expected(pairs))
    mean: np.ndarray = _expected(wanted) + _kernel(wanted, pairs) @ surprise
    return mean


def _expected(pairs: np.ndarray) -> np.ndarray:
    """(p,) loss beyond that of usual weights, before anything is known."""
    (a, c), (usual_a, usual_c) = pairs.T, USUAL_WEIGHTS
    mean: np.ndarray = SLOPE * ((np.log2(a / usual_a) / 2) ** 2 + ((c - usual_c) / 0.3) ** 2)
    return mean


def _kernel(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(o, p) covariances of the losses."""
    places = [np.column_stack([np.log2(pairs[:, 0]) / 1.5, pairs[:, 1] / 0.3]) for pairs in (one, other)]
    squares = ((places[0][:, None] - places[1][None]) ** 2).sum(axis=2)
    kernel: np.ndarray = DIFFERENCES**2 * np.exp(-squares / 2) + OFFSET**2
    return kernel
