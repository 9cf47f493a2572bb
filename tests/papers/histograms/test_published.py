"""Algorithm 3 as it was published: its formulas, its noise, and what it says about itself."""

from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers.histograms import PaperHistograms, published
from fedcore.papers.histograms.clients import clipped_deviations_by_cell
from fedcore.papers.histograms.published import Noise, noise_of, refined
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.methods.histograms.personal import clusters_of
from fedcore.methods.histograms.reduction import reduce_block
from fedcore.methods.histograms.scores import validation_clients
from fedcore.population.blocks import leaves
from fedcore.population.synthetic import SyntheticSettings
from fedcore.randomness import stream
from fedcore.rounds.statistics import values
from tests.histograms.example_clients import block_of, counts_arrays, dense_histograms, random_counts, synthetic
from tests.histograms.run_in_memory import answer, facts, run
from tests.papers.histograms.paper import in_two_orders, paper

PUBLISHED = dict(algorithm="published", clusters=3, rounds=2)


@pytest.fixture
def block():
    return block_of(random_counts(np.random.default_rng(1), 60, 17))


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(published, "noise_of", lambda config: Noise(0.0, 0.0))


def with_config(**settings) -> PaperHistograms:
    return paper(**{**PUBLISHED, **settings})


# --- clients --------------------------------------------------------------------------------------------------------


def test_deviations_worked_by_hand():
    """b1 = (.25, .64, .01), roots (.5, .8, .1), bound .3. Client q = (.2, .8, 0): (-.1, .2, -.1), nothing clipped.
    Client (1, 0, 0): 1.5 -> .3, -.8 -> -.3, -.1. The client without tokens takes no part.
    """
    block = block_of([[1, 4, 0], [7, 0, 0], [0, 0, 0]])
    got = clipped_deviations_by_cell(block, np.zeros(3, np.int64), np.array([[0.25, 0.64, 0.01]]), 0.3)
    np.testing.assert_allclose(got, [[0.2, -0.1, -0.2]], atol=1e-15)


@given(counts_arrays(), st.integers(0, 99), st.sampled_from([0.01, 0.3, 50.0]))
def test_deviations_are_those_of_the_dense_matrix(counts, seed, bound):
    block, generator = block_of(counts), np.random.default_rng(seed)
    cells = generator.integers(0, 3, block.clients)
    first = np.maximum(generator.dirichlet(0.3 * np.ones(block.features), 3), 1e-4)
    expected = np.zeros(first.shape)
    for q, m, k in zip(dense_histograms(block), block.totals, cells, strict=True):
        if m > 0:
            deviation = np.clip((q - first[k]) / np.sqrt(first[k]), -bound, bound)
            assert np.linalg.norm(deviation) <= bound * np.sqrt(block.features) + 1e-12
            expected[k] += deviation
    np.testing.assert_allclose(clipped_deviations_by_cell(block, cells, first, bound), expected, atol=1e-9)


# --- server ---------------------------------------------------------------------------------------------------------


def test_the_new_centre_worked_by_hand():
    """b1 + sqrt(b1) b2 / a = (.25 + .5 * .4 / 2, .16 - .4 * .5 / 2, .59) = (.35, .06, .59), which sums to 1."""
    got = refined(np.array([[0.25, 0.16, 0.59]]), np.array([[0.4, -0.5, 0.0]]), np.array([2.0]), 1e-5)
    np.testing.assert_allclose(got, [[0.35, 0.06, 0.59]], rtol=1e-14)


@pytest.mark.parametrize("floor", [1e-9, 1e-3, 0.2])
def test_without_noise_and_clip_a_round_is_that_of_algorithm_2(block, no_noise, monkeypatch, floor):
    """b1 + (mean - b1) is the mean, whatever the floor s made of b1; only the floor of the centres remains."""
    monkeypatch.setattr(published, "CENTRE_FLOOR", 1e-12)
    start = {"start": "perturbed_mean", "perturbation": 0.4}
    settings = {"published_clip": 1e3, "published_floor": floor, "rounds": 3, **start}
    state, infos = run(with_config(**settings), block, facts(17))
    plain = dict(algorithm="algorithm2", clusters=3, overseed=3, rounds=3, **start)
    expected, others = run(paper(**plain), block, facts(17))
    assert (expected.counts > 0).all()
    np.testing.assert_allclose(state.centres, expected.centres, atol=1e-9)
    objectives = [info.scalars["objective"] for info in infos if "objective" in info.scalars]
    assert objectives == pytest.approx([i.scalars["objective"] for i in others if "objective" in i.scalars], abs=1e-6)


def test_clipping_each_coordinate_is_biased(no_noise):
    """Every tenth of 100 clients has the second token, .05 of its tokens; b1 = .005, root .0707.

    Bound .2 / sqrt 3 = .1155: the 10 clients' .636 are cut to that, the 90 others' -.0707 are not. So the mean
    deviation is -.0521, and the token's .005 becomes .005 - .0707 * .0521 = .00132.
    """
    counts = np.array([[9, 1, 10]] * 10 + [[10, 0, 10]] * 90)
    means = [
        run(with_config(clusters=1, rounds=1, published_clip=c), block_of(counts), facts(3))[0].centres[0]
        for c in (0.2, 1e3)
    ]
    assert means[1][1] == pytest.approx(0.005, rel=1e-9) and means[0][1] == pytest.approx(0.00132, rel=0.01)


@pytest.mark.parametrize("where", ["sum", "mean"])
def test_where_the_first_noise_goes(block, monkeypatch, where):
    """Lines 3 and 4, with the noise of the stream that the round is named by."""
    monkeypatch.setattr(published, "noise_of", lambda config: Noise(2.0, 5.0))
    method = with_config(published_noise=where, start="perturbed_mean", published_floor=1e-3)
    state = method.init(facts(17, seed=9))
    state, _ = method.server_update(state, values(answer(method, method.message(state), block, 8)))
    result = values(answer(method, method.message(state), block, 8))
    after, info = method.server_update(state, result)
    generator = stream(9, "histograms/published", 1)
    sizes = np.maximum(result["counts"] + generator.laplace(0, 5.0, 3), 1.0)
    noise = 2.0 * generator.normal(size=(3, 17))
    if where == "sum":
        expected = (result["sums"] + noise) / sizes[:, None]
    else:
        expected = result["sums"] / sizes[:, None] + noise
    np.testing.assert_allclose(after.sums, np.maximum(expected, 1e-3), rtol=1e-12)
    np.testing.assert_allclose(after.counts, sizes)
    assert after.phase == "centring" and after.round == 0 and np.array_equal(after.centres, state.centres)
    assert info.scalars["noise_multiplier"] == 2.0

    message = method.message(after)
    assert message.bound == pytest.approx(3 / np.sqrt(17)) and np.array_equal(message.first, after.sums)
    deviations = values(answer(method, message, block, 8))
    last, _ = method.server_update(after, deviations)
    generator = stream(9, "histograms/published", 2)
    noised = deviations["deviations"] + 3.0 * 2.0 * generator.normal(size=(3, 17))
    np.testing.assert_allclose(last.centres, refined(after.sums, noised, sizes, 1e-5), rtol=1e-12)
    assert last.phase == "rounds" and last.round == 1 and last.sums.shape == (0, 17)


def test_a_step_of_ifca_is_one_release_of_sums_and_counts(block, monkeypatch):
    monkeypatch.setattr(published, "noise_of", lambda config: Noise(2.0, 0.0))
    method = with_config(algorithm="published_ifca", start="uniform", rounds=1, learning_rate=0.5)
    state = method.init(facts(17, seed=9))
    state, _ = method.server_update(state, values(answer(method, method.message(state), block, 8)))
    result = values(answer(method, method.message(state), block, 8))
    after, info = method.server_update(state, result)
    noise = 2.0 * stream(9, "histograms/published", 1).normal(size=(3, 18))
    sums, counts = result["sums"] + noise[:, :17], result["counts"] + noise[:, 17]
    steps = np.minimum(0.5 / state.clients, 1 / np.maximum(counts, 1))[:, None]
    expected = np.maximum(state.centres + steps * (sums - counts[:, None] * state.centres), 1e-5)
    np.testing.assert_allclose(after.centres, expected / expected.sum(axis=1, keepdims=True), rtol=1e-12)
    assert after.phase == "done" and info.scalars["movement"] > 0


def test_a_cluster_that_nobody_chose_becomes_a_live_centre_of_noise(monkeypatch):
    monkeypatch.setattr(published, "noise_of", lambda config: Noise(3.0, 0.0))
    method, block = with_config(clusters=2, rounds=1), block_of([[9, 1, 0, 0]] * 5)
    state = method.init(facts(4))
    state, _ = method.server_update(state, values(answer(method, method.message(state), block, 2)))
    state = replace(state, phase="rounds", centres=np.array([[0.9, 0.1, 0, 0], [0, 0, 0.5, 0.5]]), counts=np.zeros(2))
    result = values(answer(method, method.message(state), block, 2))
    assert result["counts"].tolist() == [5, 0]
    state, _ = method.server_update(state, result)
    assert state.counts.tolist() == [5, 1] and state.sums[1].max() > 0.1


# --- noise ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, sigma, count",
    [
        ({}, 87.95, 11.78),
        ({"accounting": "exact"}, 4.791, 20.0),
        ({"accounting": "exact", "published_epsilon": 1.0}, 58.68, 20.0),
        ({"published_rounds": 1}, 1.384, 0.2),  # Algorithm 3 alone: eps_0 = 5
        ({"published_rounds": 1, "accounting": "exact"}, 0.6775, 20.0),
        # sums with their counts have the sensitivity sqrt 2: sqrt(2) sqrt(50) / 2.0874
        ({"algorithm": "published_ifca", "accounting": "exact"}, 4.791, 0.0),
        ({"algorithm": "published_ifca"}, 40.54, 0.0),
    ],
)
def test_the_noise_of_a_budget(settings, sigma, count):
    noise = noise_of(with_config(**settings).config.algorithm)
    assert noise.sigma == pytest.approx(sigma, rel=3e-4) and noise.count == pytest.approx(count, rel=1e-3)


def test_the_noise_is_that_of_all_rounds_however_many_are_run():
    assert noise_of(with_config(rounds=1).config.algorithm) == noise_of(with_config().config.algorithm)


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, passes",
    [
        ({}, 1 + 2 + 2 * 2),
        ({"clusters": 1}, 1 + 2 * 2),
        ({"start": "perturbed_mean", "published_noise": "mean"}, 1 + 2 * 2),
        ({"start": "uniform", "algorithm": "published_ifca"}, 1 + 2),
        ({"reduction": "eigenvectors", "keep": 5}, 2 + 2 + 2 * 2),
        ({"reduction": "frequency", "keep": 5, "accounting": "exact"}, 1 + 2 + 2 * 2),
    ],
)
def test_leaves_in_any_groups_give_the_same_bits_and_histograms(block, settings, passes):
    method = with_config(**settings)
    parts, state = list(leaves(block, 8)), method.init(facts(17))
    assert method.total_rounds(state) == passes
    while (message := method.message(state)) is not None:
        one, two = in_two_orders(method, message, parts, 3)
        for name, value in one.items():
            assert name == "pick" or np.array_equal(value, two[name])
        state, _ = method.server_update(state, one)
        passes -= 1
    assert passes == 0 and state.round == 2
    assert state.centres.shape == (settings.get("clusters", 3), 17)
    np.testing.assert_allclose(state.centres.sum(axis=1), 1.0)


def test_a_reduced_run_asks_for_few_tokens(block):
    method = with_config(reduction="frequency", keep=5, start="perturbed_mean")
    state = method.init(facts(17))
    for _ in range(2):
        state, _ = method.server_update(state, values(answer(method, method.message(state), block, 8)))
    message = method.message(state)
    assert message.first.shape == (3, 6) and message.bound == pytest.approx(3 / np.sqrt(6))
    few = reduce_block(block, state.kept)
    cells = clusters_of(state.centres, block, 1e-12)
    expected = clipped_deviations_by_cell(few, np.maximum(cells, 0), message.first, message.bound)
    np.testing.assert_allclose(values(answer(method, message, block, 8))["deviations"], expected, atol=1e-9)


def test_the_seed_is_the_noise(block):
    centres = [run(with_config(), block, facts(17, seed=seed))[0].centres for seed in (1, 1, 2)]
    assert np.array_equal(centres[0], centres[1]) and not np.allclose(centres[0], centres[2])


def test_it_says_exactly_why_it_is_not_private():
    method = with_config(reduction="frequency")
    assert not method.private and method.plan(facts(17)) == []
    for words in ("rows of clients", "without noise", "simulated in floating point", "exact mean"):
        assert words in method.not_private_because
    text = with_config(start="uniform").not_private_because
    assert "rows of clients" not in text and "tokens" not in text and "simulated" in text
    assert "made from the exact mean" in with_config(start="perturbed_mean").not_private_because


def test_a_budget_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="delta"):
        with_config(published_delta=0.0)


# --- utility --------------------------------------------------------------------------------------------------------


def loss(block, centres) -> float:
    """Mean KL of the held-out histograms to the centre of the client's cluster, nats."""
    use = (block.heldout.totals > 0) & ~validation_clients(0, block.clients)
    t = dense_histograms(block.heldout)[use]
    rows = centres[clusters_of(centres, block, 1e-6)[use]]
    return float(np.sum(t * (np.log(np.where(t > 0, t, 1)) - np.log((rows + 1e-10) / (1 + 1e-7)))) / use.sum())


@pytest.mark.slow
def test_the_order_of_the_methods_on_a_small_preset():
    """4000 clients of the preset. Non-private: clusters help, a reduction gives some of it back, IFCA needs a start
    near the mean. As published: noise of the paper's composition costs more than clusters bring, the exact one less of
    it, and noise on the mean destroys everything.
    """
    block, _ = synthetic(SyntheticSettings(clients=4000, heldout_clients=1500), 3)

    def score(**settings):
        return loss(block, run(paper(**settings), block, facts(1000, seed=1))[0].centres)

    fedavg, algorithm2 = score(algorithm="fedavg"), score(algorithm="algorithm2", start="perturbed_mean")
    reduced = score(algorithm="algorithm2", start="perturbed_mean", reduction="eigenvectors")
    near, far = (score(algorithm="ifca", start=start) for start in ("perturbed_mean", "uniform"))
    assert algorithm2 < near < far < fedavg
    assert algorithm2 < reduced < fedavg - 0.03
    once, many, exact = (
        score(algorithm="published", clusters=1, rounds=1, **more)
        for more in ({"published_rounds": 1}, {}, {"accounting": "exact"})
    )
    assert fedavg < once < exact < many
    kov, exact = (score(algorithm="published", rounds=3, accounting=accounting) for accounting in ("kov", "exact"))
    few = score(algorithm="published", rounds=3, reduction="eigenvectors")
    literal = score(algorithm="published", rounds=3, published_noise="mean")
    assert fedavg < exact < kov < literal and few < kov
