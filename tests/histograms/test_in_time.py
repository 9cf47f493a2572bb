"""Four years of weekly runs, in the simplest model: cells are known, noise is Gaussian, pools and forgetting are real.

python -m tests.histograms.test_in_time      prints the table of docs/notes/privacy-cohorts.md
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fedcore.methods.histograms.pool import FORGETTING, SCORE_KEPT, Pool, empty, forecast_error, of_release

RHO_MAX = 0.30865  # about a tenth less than epsilon 4 allows at delta 1e-6
CLIENTS, ARRIVALS, LEAVING, WEEKS = 20_000, 0.03, 0.02, 208
FEATURES, CELLS, CLIP, DRIFT = 1000, 10, 3.0, 5e-4


@dataclass(frozen=True)
class Rule:
    """How a run is paid for: each cohort pays for `horizon` runs; or all clients together for `runs`."""

    horizon: int | None = None
    runs: int | None = None


def losses(rule: Rule, seed: int = 0) -> tuple[np.ndarray, int]:
    """(WEEKS,) mean KL(next week's law || the pooled estimate) of the cells in nats; how many runs were refused."""
    generator = np.random.default_rng(seed)
    zipf = 1 / (np.arange(1, FEATURES + 1) + 2.7)
    laws = np.maximum(generator.standard_gamma(2600 * zipf / zipf.sum(), (CELLS, FEATURES)), 1e-4)
    laws /= laws.sum(axis=1, keepdims=True)
    metric = laws.mean(axis=0)
    sizes, used = np.array([float(CLIENTS)]), np.array([0])
    pools, scores = [empty(CELLS, FEATURES) for _ in FORGETTING], np.zeros(len(FORGETTING))
    model, losses, refused = laws, [], 0
    for week in range(WEEKS):
        if week:
            new = ARRIVALS * sizes.sum()
            sizes, used = np.append(sizes * (1 - LEAVING), new), np.append(used, 0)
        pays = used < rule.horizon if rule.horizon is not None else np.full(len(used), week < (rule.runs or 0))
        used[pays] += 1
        if pays.any():
            rho = RHO_MAX / (rule.horizon or rule.runs or 1)
            variance = CLIP**2 / rho  # of either of two rounds
            exact, live = laws * sizes[pays].sum() / CELLS, np.ones(CELLS, bool)
            pools = [pool.forgotten(kept) for pool, kept in zip(pools, FORGETTING, strict=True)]
            for round in range(2):
                sums = exact + np.sqrt(variance * metric) * generator.standard_normal(laws.shape)
                if round:
                    errors = [forecast_error(model_of(pool), sums, variance, metric, live) for pool in pools]
                    scores = SCORE_KEPT * scores + errors
                pools = [pool + of_release(sums, variance) for pool in pools]
            model = model_of(pools[int(np.argmin(scores))])
        refused += not pays.any()
        laws = laws * np.exp(np.sqrt(2 * DRIFT) * generator.standard_normal(laws.shape))
        laws /= laws.sum(axis=1, keepdims=True)
        losses.append((laws * np.log(laws / model)).sum(axis=1).mean())
    return np.array(losses), refused


def model_of(pool: Pool) -> np.ndarray:
    """(CELLS, FEATURES) the histograms of the cells."""
    model = np.maximum(pool.one_release, 1e-5 * pool.one_release.sum(axis=1, keepdims=True))
    return model / model.sum(axis=1, keepdims=True)


def by_years(loss: np.ndarray) -> tuple[float, float, float]:
    """Mean of weeks 1 to 26, 27 to 104, 105 to 208."""
    return float(loss[:26].mean()), float(loss[26:104].mean()), float(loss[104:].mean())


@pytest.mark.parametrize("seed", [0, 1])
def test_a_horizon_never_ends(seed):
    loss, refused = losses(Rule(horizon=42), seed)
    first, second, later = by_years(loss)
    assert refused == 0
    assert first <= 0.045 and second <= 0.010 and later <= 0.006


def test_one_account_for_all_ends():
    loss, refused = losses(Rule(runs=104))
    assert refused == 104
    assert by_years(loss)[2] > 4 * by_years(losses(Rule(horizon=42))[0])[2]


def main() -> None:
    for rule in (Rule(runs=104), Rule(runs=208), Rule(horizon=26), Rule(horizon=42), Rule(horizon=78)):
        loss, refused = losses(rule)
        years = " | ".join(f"{one:.4f}" for one in by_years(loss))
        print(f"| {rule} | {refused} | {years} |")


if __name__ == "__main__":
    main()
