"""What a run shows: centres and tokens, and in a private run the errors of what was released, by its known noise."""

from dataclasses import replace

import numpy as np
import pytest

from fedcore.methods.histograms.pool import History, of_release
from fedcore.methods.histograms.result import result_of
from fedcore.methods.histograms.sizes import Sizes
from fedcore.methods.histograms.state import initial_state
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.results import Features

D, DRAWS = 6, 400
TRUTH = np.array([[0.4, 0.2, 0.2, 0.1, 0.05, 0.05], [0.05, 0.05, 0.1, 0.2, 0.2, 0.4]])
COUNTS = np.array([600.0, 400.0])
W = np.full(D, 1.0 / D)


def sizes():
    return Sizes(rounds=2, clusters=2, overseed=2, merge_after=0, perturbation=0.1)


def state_of(sums, variance, kept=()):
    """The last state of a run that released these sums of the cells twice. sums: two arrays (2, D)."""
    first = initial_state("done", sizes(), PublicFacts("counts", D, 1024, 1000, None, 1.0, 0))
    pool = of_release(sums[0], variance) + of_release(sums[1], variance)
    every = of_release(sums[0].sum(axis=0)[None], 2 * variance)
    made = replace(
        first,
        round=2,
        mean=TRUTH.mean(axis=0),
        metric=W,
        centres=TRUTH,
        counts=pool.counts,
        kept=np.array(kept, np.int64),
    )
    return made.remembering([History(pool, every, W / (2 * variance))])


def column(result, table, name):
    found = next(each for each in result.tables if each.name == table)
    return next(each for each in found.columns if each.name == name)


@pytest.mark.parametrize("deviation", [5.0, 20.0])
def test_errors_hold_the_truth_as_often_as_they_say(deviation):
    """Of shares of centres, of tokens in centres and of tokens in the mean: 95 %, up to four standard deviations of a
    binomial of all draws (numbers of one draw move together, hence four)."""
    generator = np.random.default_rng(0)
    exact, variance = TRUTH * COUNTS[:, None], deviation**2
    inside = {"centres": [], "tokens": [], "mean": []}
    for _ in range(DRAWS):
        sums = [exact + deviation * np.sqrt(W) * generator.standard_normal(exact.shape) for _ in range(2)]
        result = result_of(state_of(sums, variance), Features(D))
        share = column(result, "profiles", "share")
        order = np.array(column(result, "profiles", "centre").values)
        inside["centres"].append(np.abs(share.values - COUNTS[order] / 1000) <= 1.96 * np.array(share.errors))
        released, token = column(result, "tokens", "released"), column(result, "tokens", "token").values
        cells = np.array(column(result, "tokens", "centre").values)
        true = TRUTH[cells, [int(name.split()[1]) for name in token]]
        inside["tokens"].append(np.abs(np.array(released.values) - true) <= 1.96 * np.array(released.errors))
        released, token = column(result, "mean", "released"), column(result, "mean", "token").values
        true = (exact.sum(axis=0) / 1000)[[int(name.split()[1]) for name in token]]
        inside["mean"].append(np.abs(np.array(released.values) - true) <= 1.96 * np.array(released.errors))
    for found in inside.values():
        assert abs(np.mean(np.concatenate(found)) - 0.95) <= 4 * np.sqrt(0.95 * 0.05 / DRAWS)


def test_what_was_not_released_has_no_error():
    state = state_of([TRUTH * 500, TRUTH * 500], 1.0)
    without = replace(state, pool_sums=np.zeros((0, 0)), pool_weights=np.zeros(0), pool_variances=np.zeros(0))
    result = result_of(replace(without, pool_mean_noise=np.zeros((0, 0))), Features(D))
    assert all(each.errors is None for table in result.tables for each in table.columns)
    assert result_of(replace(state, round=0, phase="rounds"), Features(D)).tables == ()
    assert [table.name for table in result_of(replace(state, round=0), Features(D)).tables] == ["mean"]
