"""What the next round of a histograms run needs; arrays and scalars only, so that a checkpoint is Zarr and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class HistogramsState:
    """State after a round. d tokens, k cells; k changes when over-seeded cells are merged.

    phase:    private: "flat", "whitened", "votes", "moment", "rounds", "done"; else "mean", "given", "covariance",
              "start", "rounds", "reseed", "centring", "done"
    round:    clustering rounds finished
    seed:     of the streams of simulation randomness
    rounds, clusters, overseed, merge_after, perturbation: the sizes of the run
    (`fedcore.methods.histograms.sizes.Sizes`)
    multipliers: (rounds of the run,) noise multiplier of the first planned release of every round, the T clustering
              rounds last; (0,) if not private
    mean:     (d,) F, the (noised) mean histogram; uniform until it is known
    mean_precision: squared ratio of F's noised count to the noise in it; 0 in a run that is not private
    metric:   (d,) w, positive, sums to 1; of the whitened releases and of Ward merges; (r + 1,) in a private run that
              clusters on fewer tokens, and then sums are (k, r + 1)
    centres:  (k, d) on the simplex; during Algorithm 1 the rows chosen so far
    counts:   (k,) clients of each cell; noised, weighted by their clips and possibly negative in a private run
    sums:     (k, d) unnormalised sums of the last round, kept for pooling; (0, d) if not private, but for `published`
              the first estimate b1 between the two passes of a round
    reseed:   (e,) int64 empty cells that wait for a client's row (never in a private run)
    entropy:  sum over clients of sum q ln q, nats; 0 in a private run
    clients:  clients with at least one token; 0 in a private run, which does not know it
    kept:     (r,) int64 ascending, the tokens that a reduction keeps; (0,) without one. Centres are lifted, (k, d)
    clip:     L2 clip of the clustering rounds; 0: the config's (private runs only, as are the next two)
    spread:   sensitivity of a clipped sum in units of its clip: 1, or a hair above sqrt 2 under replace_one
    norms_multiplier: noise multiplier of the counts of norms; 0 unless the clip is adaptive
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
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    clip: float = 0.0
    spread: float = 1.0
    norms_multiplier: float = 0.0

    def usable_centres(self) -> tuple[np.ndarray, np.ndarray]:
        """Centres (k, d) and their non-negative weights (k,), sum 1: those of a run that may have stopped early.

        Before the first clustering round the centres are starting points, which the mean serves better.
        """
        if self.round == 0:
            return self.mean[None, :], np.ones(1)
        weights = np.maximum(self.counts, 0.0)
        total = weights.sum()
        return self.centres, weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))
