"""Shrinkage by estimated differences: its proximal step, its limit, the estimate itself, second starts."""

import numpy as np
import pytest
from fedcore.papers.fedgrem.simulation import CENTRES, errors, simulated_clients
from scipy.optimize import minimize

from fedcore.methods.gradient_em import shrinkage
from fedcore.methods.gradient_em.shrinkage import EstimatedPenalty
from tests.gradient_em.run_in_memory import block_of, run
from tests.papers.fedgrem.run_in_memory import run as run_paper

FAST = {"starts": 3, "start_steps": 10}


def penalty_of(generator, clients=6, components=2, p=3, share=1.0):
    counts = generator.integers(5, 80, (clients, components)).astype(float)
    w = generator.uniform(0.1, 0.9, (clients, components))
    return EstimatedPenalty.of(counts, w, generator.uniform(0.01, 1.0, components), np.full(w.shape, share), p)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_it_is_the_proximal_step_of_the_penalty(share):
    generator = np.random.default_rng(0)
    penalty, v = penalty_of(generator, share=share), generator.normal(size=(2, 3))
    t = v + generator.normal(size=(6, 2, 3)) * np.array([0.1, 3.0])[:, None]
    found = penalty.proximal_step(t, v)
    for k in range(6):
        for r in range(2):
            alone = EstimatedPenalty(*(part[k : k + 1, r : r + 1] for part in penalty))

            def objective(theta, k=k, r=r, alone=alone):
                own = ((theta - t[k, r]) ** 2).sum() / (2.0 * penalty.step[k, r])
                return own + alone.value(theta[None, None], v[r : r + 1])[0]

            best = minimize(objective, t[k, r], tol=1e-12, options={"gtol": 1e-7})
            assert objective(found[k, r]) <= best.fun + 1e-6
            np.testing.assert_allclose(found[k, r], best.x, atol=1e-3)


def test_nobody_is_shrunk_farther_than_the_limit():
    penalty = penalty_of(np.random.default_rng(1))
    t = np.random.default_rng(2).normal(size=(6, 2, 3)) * 1e6
    moved = np.linalg.norm(penalty.proximal_step(t, np.zeros((2, 3))) - t, axis=2)
    np.testing.assert_allclose(moved, penalty.step * penalty.slope, rtol=1e-4)
    nothing = EstimatedPenalty.of(np.zeros((1, 2)), np.ones((1, 2)), np.ones(2), np.ones((1, 2)), 3)
    np.testing.assert_array_equal(nothing.proximal_step(t[:1], np.ones((2, 3))), np.ones((1, 2, 3)))
    assert np.isnan(nothing.deviations(t[:1], np.ones((2, 3)))).all()
    sums = nothing.sums(t[:1], np.ones((2, 3)))
    assert not sums.variance.any() and not sums.centre.any() and not sums.beyond.any()


@pytest.mark.filterwarnings("error")
def test_a_component_of_hardly_any_rows_is_that_of_all():
    counts, w = np.ones((1, 2)), np.array([[1e-310, 1.0]])
    penalty = EstimatedPenalty.of(counts, w, np.ones(2), np.ones((1, 2)), 3)
    t, v = np.full((1, 2, 3), 0.5), np.zeros((2, 3))
    moved = penalty.proximal_step(t, v)
    assert np.array_equal(moved[0, 0], v[0]) and (moved[0, 1] > 0).all()


def test_deviations_at_a_fixed_point_are_those_of_the_m_step():
    generator = np.random.default_rng(3)
    penalty, v, m = penalty_of(generator), np.zeros((2, 3)), generator.normal(size=(6, 2, 3)) * 2.0
    z = penalty.deviations(penalty.proximal_step(m, v), v)
    np.testing.assert_allclose(z, np.linalg.norm(m, axis=2) / np.sqrt(3 * (penalty.noise + penalty.between)), rtol=1e-9)


@pytest.mark.parametrize("outliers", [0, 60])
@pytest.mark.parametrize("variance", [0.0, 0.05, 1.0])
def test_the_variance_of_normal_centres_is_found(variance, outliers):
    """200 clients, 10 coordinates; outliers far away have little say."""
    generator, p = np.random.default_rng(4), 10
    counts, w = generator.integers(50, 200, (200, 1)).astype(float), np.full((200, 1), 0.3)
    noise = 1.0 / (counts * w)
    m = np.sqrt(noise + variance)[:, :, None] * generator.normal(size=(200, 1, p))
    m[:outliers] += 12.0
    v = np.median(m, axis=0)
    found = shrinkage.first_variance(m, v, float((counts * w).mean()))
    for _ in range(200):
        sums = EstimatedPenalty.of(counts, w, found, np.ones_like(w), p).sums(m, v)
        v = sums.centre[:, :-1] / sums.centre[:, -1:]
        found = shrinkage.next_variance(found, sums.variance, 1e-6)
    # the centre follows outliers a little, as a Huber centre does, and the variance is about it
    most = 1.2 * variance + 0.003 if not outliers else 1.7 * variance + 0.015
    assert 0.7 * variance - 0.001 < found[0] < most
    assert np.linalg.norm(v) < (0.6 + 2.0 * np.sqrt(variance) if outliers else 0.3), "the outliers' mean is 38 away"


def test_pooling_gives_a_component_what_all_say():
    sums = np.array([[8.0, 2.0, 4.0], [0.0, 2.0, 4.0]])
    # the components have 4 clients each, and all of them 8 with a ratio of 2 together: 10 clients' worth are added
    square, scale = 10.0 * 8.0 / 8.0, 10.0 * 4.0 / 8.0
    expected = [(8.0 + square) / (2.0 + scale), square / (2.0 + scale)]
    np.testing.assert_allclose(shrinkage.next_variance(np.ones(2), sums, 1e-6), expected)
    np.testing.assert_array_equal(shrinkage.next_variance(np.ones(2), np.zeros((2, 3)), 1e-6), np.ones(2))


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_step_size():
    block = block_of(simulated_clients(1, h=1.0, outliers=0).rows)
    found = [
        run(
            block,
            given={"centres": CENTRES},
            start="given",
            rounds=400,
            tolerance=0.0,
            second_start=0,
            step_size=c,
            covariance="identity",
        ).outputs()["centres"]
        for c in (0.5, 1.0, 1.3)
    ]
    assert np.ptp(found[0], axis=0).max() > 1.0, "clients differ"
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)
    np.testing.assert_allclose(found[2], found[0], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("h", [0.0, 1.0, 2.0])
def test_never_worse_than_the_paper_or_alone(h):
    """Specification's bounds of the largest error are 0.75, 1.15, 1.35; three replications."""
    found = {name: [] for name in ("own", "paper", "alone")}
    for seed in range(3):
        tasks = simulated_clients(seed, h=h)
        for name, settings in (("own", {}), ("paper", {"preset": "paper"}), ("alone", {"algorithm": "local-em"})):
            out = run_paper(block_of(tasks.rows), rounds=50, **FAST, **settings).outputs()
            found[name].append(errors(out["centres"], tasks.theta, tasks.inlier))
    largest, rms = (
        {name: np.mean([getattr(e, of) for e in es]) for name, es in found.items()} for of in ("largest", "rms")
    )
    assert rms["own"] < 1.0 * min(rms["paper"], rms["alone"])
    assert largest["own"] < min(1.05 * min(largest["paper"], largest["alone"]), {0.0: 0.75, 1.0: 1.15, 2.0: 1.35}[h])


@pytest.mark.slow
def test_a_client_in_a_poor_optimum_takes_the_second_start():
    """In this replication a client's own fit has two components on one cluster and leaves another out."""
    tasks = simulated_clients(5, h=2.0)
    alone, without, ran = (
        run_paper(block_of(tasks.rows), seed=5, rounds=40, **settings)
        for settings in ({"algorithm": "local-fit"}, {"second_start": 0}, {})
    )
    seconds = ran.column("second_starts")
    assert seconds[9] >= 1 and not seconds[[0, 5, 20]].any() and not without.column("second_starts").any()
    worst, before, after = (
        errors(r.outputs()["centres"], tasks.theta, tasks.inlier).largest for r in (alone, without, ran)
    )
    assert worst > 4.0 and before > 4.0 and after < 1.6
