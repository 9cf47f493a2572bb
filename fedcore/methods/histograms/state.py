"""What the next round of a histograms run needs; arrays and scalars only, so that a checkpoint is Zarr and JSON.

What the server sends to the clients: one frozen dataclass for each kind of question.

Everything in them is published or public. log_centres are the logarithms of smoothed centres, transposed,
as `fedcore.methods.histograms.simplex.assignment_logs` makes them: (d, k) float32. `kept` holds the tokens of a reduced
problem (`fedcore.methods.histograms.reduction`), (r,) int64 ascending; if it is not empty, d stands for r + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedcore.methods.histograms.pool import History, Pool, best_history, empty
from fedcore.methods.histograms.sizes import Sizes
from fedcore.rounds.messages import EVERY, POSITIVE, between
from fedcore.rounds.method import PublicFacts, RoundInfo

MOST_STEPS = 1000  # of a mixture; the limit of the setting


def all_tokens() -> np.ndarray:
    """The empty `kept`, which stands for the whole vocabulary."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class ReleaseMessage:
    """Asks for the clients' contributions to one release.

    release:     its planned name
    cells:       k
    log_centres: (d, k); zeros if there is one cell
    whitening:   (d,) float64, 1 / sqrt(w)
    clip:        C, L2 bound of a client's whitened histogram
    one_whole:   whether a client's counts are those of both halves of its documents
    """

    release: str
    cells: int
    log_centres: np.ndarray
    whitening: np.ndarray = field(metadata=between(0.0, EVERY[1]))
    clip: float = field(metadata=POSITIVE)
    kept: np.ndarray = field(default_factory=all_tokens)
    one_whole: bool = False


@dataclass(frozen=True, slots=True)
class WeightsMessage:
    """Asks what weights of the base serve the clients' second halves (`fedcore.methods.histograms.weights`).

    release:     its planned name
    rows:        (r, d) float64 positive: what bases are made of
    log_centres: (d, r) if a base is the nearest row; (0, 0) if it is a client's own mixture of all of them
    mixture_prior, mixture_steps: of that mixture
    """

    release: str
    rows: np.ndarray
    log_centres: np.ndarray
    mixture_prior: float
    mixture_steps: int = field(metadata=between(0, MOST_STEPS))


# --- state ------------------------------------------------------------------------------------------------------------


USUAL_WEIGHTS = (800.0, 0.35)  # a and c of the weight of the base, unless somebody knows better


@dataclass(frozen=True, slots=True)
class HistogramsState:
    """State after a round. d tokens, k cells; k changes when over-seeded cells are merged.

    phase:    of the round that comes next: "flat", "whitened", "rounds", "weights", "done".
              `paper_histograms` keeps its runs in the same state, and has other phases
    round:    clustering rounds finished
    seed:     of the streams of simulation randomness
    rounds, clusters, overseed, merge_after, perturbation: the `Sizes` of the run
    multipliers: (rounds of the run,) noise multiplier of every round but that of the weights, the T clustering rounds
              last; (0,) if not private
    mean:     (d,) F, the (noisy) mean histogram; uniform until it is known
    mean_precision: squared ratio of F's noisy count to the noise in it; 0 in a run that is not private
    metric:   (d,) w, positive, sums to 1; of the whitened releases and of Ward merges; (r + 1,) in a private run that
              clusters on fewer tokens, and then sums are (k, r + 1)
    centres:  (k, d) on the simplex; during Algorithm 1 the rows chosen so far
    counts:   (k,) clients of each cell; noisy, weighted by their clips and possibly negative in a private run
    sums:     (0, d), except (1, d) between the two releases of a mean, the sums of the first, and between the two
              passes of a round of Algorithm 3, whose first estimate b1 it holds
    reseed:   (e,) int64 empty cells that wait for a client's row (never in a private run)
    entropy:  sum over clients of sum q ln q, nats; 0 in a private run
    clients:  clients with at least one token; 0 in a private run, which does not know it
    kept:     (r,) int64 ascending, the tokens that a reduction keeps; (0,) without one. Centres are lifted, (k, d)
    spread:   sensitivity factor: sensitivity of a clipped sum in units of its clip, 1 or a hair above sqrt(2)
    pool_sums, pool_weights, pool_variances, pool_mean_noise: (h, c + 1, d), (h, c + 1), (h, c + 1), (h, d): `History`,
              h of them: one, or one for each factor of forgetting in a run that continues a series. The last row is
              that of all clients, from which F is made; before it come the c = k cells, or none while their sums are
              not kept. Empty without privacy; r + 1 in place of d on fewer tokens. Runs of version 0.1 have one
              history without the first axis, whose noise in the mean was that of its variance in the metric
    pool_scores: (h,) of the histories, lower is better
    pool_score_noise: (h,) variance of the noise in the difference of a score to that of the history in use, whose own
              is 0. States of before have none, and use the history with the lowest score
    prior_tokens, floor: a and c of the weight of the base where the settings name none: released, or usual ones. States
              of before have neither, and their settings name a
    weights_multiplier: noise multiplier of the release `weights` that comes last; 0: there is none
    weights_clients: declared number of clients, by which it is divided
    margin:   of the chosen weights over the usual ones, in units of the noise of a loss; 0 if none were released
    one_whole: whether all releases but `weights` are made of both halves of the clients' documents
    """

    phase: str
    round: int
    seed: int
    rounds: int
    clusters: int
    overseed: int
    merge_after: int
    perturbation: float
    multipliers: np.ndarray
    mean: np.ndarray
    mean_precision: float
    metric: np.ndarray
    centres: np.ndarray
    counts: np.ndarray
    sums: np.ndarray
    reseed: np.ndarray
    entropy: float
    clients: float
    kept: np.ndarray = field(default_factory=all_tokens)
    spread: float = 1.0
    pool_sums: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    pool_weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    pool_variances: np.ndarray = field(default_factory=lambda: np.zeros(0))
    pool_mean_noise: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    pool_scores: np.ndarray = field(default_factory=lambda: np.zeros(0))
    pool_score_noise: np.ndarray = field(default_factory=lambda: np.zeros(0))
    prior_tokens: float = 1500.0
    floor: float = 0.0
    weights_multiplier: float = 0.0
    weights_clients: float = 0.0
    margin: float = 0.0
    one_whole: bool = False

    @property
    def histories(self) -> list[History]:
        """At least one."""
        pools = (self.pool_sums, self.pool_weights, self.pool_variances)
        return histories_of(*pools, mean_noise=self.pool_mean_noise, metric=self.metric)

    @property
    def best(self) -> int:
        """Number of the history in use."""
        return best_history({"pool_scores": self.pool_scores, "pool_score_noise": self.pool_score_noise})

    def using(self, number: int) -> HistogramsState:
        """With this history in use."""
        noise = np.full(len(self.pool_scores), np.finfo(np.float64).tiny)
        noise[number : number + 1] = 0.0
        return replace(self, pool_score_noise=noise)

    @property
    def history(self) -> History:
        return self.histories[self.best]

    def remembering(self, histories: Sequence[History]) -> HistogramsState:
        """With these histories."""
        both = [history.cells.joined(history.everybody) for history in histories]
        scored = self
        if not len(self.pool_scores) == len(self.pool_score_noise) == len(both):
            scored = replace(self, pool_scores=np.zeros(len(both))).using(0)
        return replace(
            scored,
            pool_sums=np.stack([pool.sums for pool in both]),
            pool_weights=np.stack([pool.weights for pool in both]),
            pool_variances=np.stack([pool.variances for pool in both]),
            pool_mean_noise=np.stack([history.noise for history in histories]),
        )

    @property
    def first_cells(self) -> int:
        """Cells of the first clustering round."""
        return self.overseed if self.merge_after else self.clusters

    def usable_centres(self) -> tuple[np.ndarray, np.ndarray]:
        """Centres (k, d) and their non-negative weights (k,), sum 1: those of a run that may have stopped early.

        Before the first clustering round the centres are starting points, which the mean serves better.
        """
        if self.round == 0:
            return self.mean[None, :], np.ones(1)
        weights = np.maximum(self.counts, 0.0)
        total = weights.sum()
        return self.centres, weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


def histories_of(
    sums: np.ndarray, weights: np.ndarray, variances: np.ndarray, *, mean_noise: np.ndarray | None, metric: np.ndarray
) -> list[History]:
    """The histories that are kept in these arrays of a state or a warm start; one without releases if there is none."""
    d = len(metric)
    if not weights.size:
        return [History(empty(0, d), empty(1, d), np.zeros(d))]  # before the first release that is whitened
    sums, weights = sums.reshape(-1, sums.shape[-2], d), weights.reshape(-1, weights.shape[-1])
    variances = variances.reshape(weights.shape)
    noise = variances[:, -1:] * metric if mean_noise is None or not mean_noise.size else mean_noise.reshape(-1, d)
    pools = [Pool(*arrays) for arrays in zip(sums, weights, variances, strict=True)]
    return [
        History(pool.chosen(range(len(pool) - 1)), pool.chosen([len(pool) - 1]), own)
        for pool, own in zip(pools, noise, strict=True)
    ]


Step = tuple[HistogramsState, RoundInfo]  # what the server makes of a round: the next state, and what a person reads


def initial_state(phase: str, sizes: Sizes, public: PublicFacts) -> HistogramsState:
    """The state of a run that knows nothing yet: the mean, the metric and the only centre are uniform."""
    uniform = np.full(public.features, 1.0 / public.features)
    return HistogramsState(
        phase=phase,
        round=0,
        seed=public.seed,
        rounds=sizes.rounds,
        clusters=sizes.clusters,
        overseed=sizes.overseed,
        merge_after=sizes.merge_after,
        perturbation=sizes.perturbation,
        multipliers=np.zeros(0),
        mean=uniform,
        mean_precision=0.0,
        metric=uniform,
        centres=uniform[None, :],
        counts=np.zeros(1),
        sums=np.zeros((0, public.features)),
        reseed=np.zeros(0, np.int64),
        entropy=0.0,
        clients=0.0,
        prior_tokens=USUAL_WEIGHTS[0],
        floor=USUAL_WEIGHTS[1],
    )
