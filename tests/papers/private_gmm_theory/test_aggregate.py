"""Sample and aggregate: learners of blocks, sensitivity of a block, recovery at the smallest cell of the comparison."""

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation as sim
from fedcore.papers.private_gmm.theory import aggregate
from fedcore.papers.private_gmm.theory import aggregate as agg

from fedcore.errors import ConfigError


def right(truth, means, separation):
    return np.mean(
        [np.isfinite(found).all() and sim.scores(truth, found).mean_errors.max() < separation / 2 for found in means]
    )


@pytest.mark.parametrize(
    "learner, size, least", [(aggregate.spherical_em, 16, 0.93), (aggregate.vempala_wang, 60, 0.8)]
)
def test_learners_of_blocks(learner, size, least):
    truth = sim.mixture(20, 3, 10.0, 1)
    rows, _ = sim.sample(truth, 150 * size, 2)
    means, weights = learner(rows.reshape(150, size, 20), 3, np.random.default_rng(1))
    assert means.shape == (150, 3, 20) and weights == pytest.approx(weights / weights.sum(axis=1, keepdims=True))
    assert right(truth, means, 10.0) >= least


def test_spherical_em_is_maximum_likelihood_on_an_easy_block():
    truth = sim.mixture(5, 2, 30.0, 1, scales=(1, 2), weights=(0.3, 0.7))
    rows, labels = sim.sample(truth, 400, 2)
    means, weights = aggregate.spherical_em(rows[None], 2, np.random.default_rng(0))
    order = sim.scores(truth, means[0]).order
    expected = np.array([rows[labels == i].mean(axis=0) for i in range(2)])
    assert means[0][order] == pytest.approx(expected, abs=1e-9)
    assert weights[0][order] == pytest.approx([np.mean(labels == i) for i in range(2)])


@pytest.mark.parametrize("learner", [aggregate.spherical_em, aggregate.vempala_wang])
def test_absent_rows_are_as_if_they_were_not_there(learner):
    rows, _ = sim.sample(sim.mixture(4, 2, 12.0, 1), 60, 2)
    block = np.full((2, 40, 4), np.nan)
    block[0, 5:35], block[1, :1] = rows[:30], rows[:1]
    means, _ = learner(block, 2, np.random.default_rng(1))
    assert np.isfinite(means[0]).all() and np.isnan(means[1]).all()
    alone, _ = learner(rows[None, :30], 2, np.random.default_rng(1))
    assert (
        sim.scores(sim.Truth(np.full(2, 0.5), alone[0], np.eye(4)[None].repeat(2, 0)), means[0]).mean_errors.max()
        < 1e-6
    )


def test_a_record_is_in_one_block_and_stays_there():
    rows = np.arange(23.0)[:, None]
    cut = agg.cut_into_blocks(rows, 5, np.random.default_rng(3))
    assert cut.shape == (5, 5, 1) and sorted(cut[np.isfinite(cut)].tolist()) == rows[:, 0].tolist()
    fewer = rows.copy()
    fewer[7] = np.nan
    other = agg.cut_into_blocks(fewer, 5, np.random.default_rng(3))
    assert (~((cut == other) | (np.isnan(cut) & np.isnan(other)))).sum() == 1


@pytest.fixture(scope="module")
def smallest():
    """(10, 2, 8): blocks of 12 rows, some of which are learnt wrongly."""
    truth = sim.mixture(10, 2, 8.0, 1)
    rows, _ = sim.sample(truth, 1600 * 12, 5)
    return truth, rows, *aggregate.spherical_em(rows.reshape(1600, 12, 10), 2, np.random.default_rng(1))


def test_boxes_recover_the_smallest_cell(smallest):
    truth, rows, _, _ = smallest
    told = sim.prior(truth)
    for seed in range(3):
        found = agg.sample_and_aggregate(
            rows[: 800 * 12],
            2,
            800,
            1.0,
            1e-6,
            np.random.default_rng(seed),
            radius=told.radius,
            finest=2 * told.sigma_min,
        )
        assert sim.scores(truth, found.means).mean_errors.max() < 2.0
        assert found.weights.sum() == pytest.approx(1) and np.abs(found.weights - 0.5).max() < 0.2


def test_boxes_find_nothing_in_few_blocks_or_little_budget(smallest):
    truth, _, means, weights = smallest
    told = sim.prior(truth)
    options = {"radius": told.radius, "finest": 2 * told.sigma_min}
    assert agg.aggregate_boxes(means[:60], weights[:60], 1.0, 1e-6, np.random.default_rng(0), **options) is None
    assert agg.aggregate_boxes(means, weights, 0.01, 1e-6, np.random.default_rng(0), **options) is None
    with pytest.raises(ConfigError):
        agg.aggregate_boxes(means[:1], weights[:1], 1.0, 1e-6, np.random.default_rng(0), **options)


@pytest.mark.slow
def test_published_aggregation_pays_for_k_points_a_block(smallest):
    truth, _, means, weights = smallest
    told = sim.prior(truth)
    options = {"radius": told.radius, "finest": 1.0, "inflation": 1.5}
    found = agg.aggregate_clusters(means, weights, 400.0, 1e-6, np.random.default_rng(0), **options)
    assert sim.scores(truth, found.means).mean_errors.max() < 4.0
    assert agg.aggregate_clusters(means, weights, 1.0, 1e-6, np.random.default_rng(0), **options) is None
