"""Given centres, votes, second moments, reduced tokens, the adaptive clip, weights, and the relation replace_one."""

import dataclasses
import math

import numpy as np
import pytest
from fedcore.methods.histograms.leaf import assign, clipped_on_grid
from fedcore.methods.histograms.private import ReleaseMessage, client_update, count_norms, own_cells, votes, weighted
from fedcore.methods.histograms.private_start import elected, filled_up, given_mean
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedcore.errors import ConfigError
from fedcore.methods.histograms import Histograms, HistogramsConfig, moments, sensitivities
from fedcore.methods.histograms.reduction import reduce_block
from fedcore.methods.histograms.simplex import assignment_logs, metric
from fedcore.privacy.grid import GRID_NORM
from fedcore.rounds.statistics import IntegerSum, values
from fedcore.storage.arrays import read_values, state_values, write_values
from tests.histograms.example_clients import block_of, counts_arrays, random_counts
from tests.histograms.run_in_memory import answer, facts, no_noise, rounded_normal, run

RELATIONS = ("add_or_remove_one", "replace_one")
D = 9
NEWCOMERS = [np.zeros(D, int), np.eye(D, dtype=int)[8], np.eye(D, dtype=int)[0] * 2**40, np.eye(D, dtype=int)[1] * 3]


def start_of(k: int, d: int = D, seed: int = 0, **more) -> dict:
    return {"centres": np.random.default_rng(seed).dirichlet(np.ones(d), k), **more}


def public(relation="add_or_remove_one", start=None, **given):
    base = facts(D, **{"rho": 0.5, "nominal": 60, **given})
    return dataclasses.replace(base, relation=relation, warm_start=start)


EVERYTHING = {  # each release that there is occurs in one of these
    "usual": (HistogramsConfig(clusters=2, rounds=5, overseed=4, merge_after=2), None),
    "moments and clip": (
        HistogramsConfig(
            clusters=2,
            rounds=4,
            overseed=2,
            reduction="eigenvectors",
            keep=4,
            adaptive_clip=True,
            half_weight_tokens=20.0,
        ),
        None,
    ),
    "votes": (HistogramsConfig(clusters=2, rounds=3, overseed=2, reduction="frequency", keep=5), start_of(7)),
    "warm, moments": (HistogramsConfig(clusters=2, reduction="eigenvectors", keep=3), start_of(2, seed=3)),
}


def messages_of(config, given, relation, block, seed=0) -> list[tuple[ReleaseMessage, dict]]:
    """Every message of a noised run, with the sensitivities of its releases by name."""
    method, met, known = Histograms(config), [], public(relation, given)
    noise, state = rounded_normal(np.random.default_rng(seed)), method.init(known)
    plan = {release.name: release for release in method.plan(known)}
    while (message := method.message(state)) is not None:
        grid = method.release_values(message, answer(method, message, block, 1024))
        met.append((message, {name: plan[name].sensitivity for name in grid}))
        state, _ = method.server_update(state, {name: noise(plan[name], value) for name, value in grid.items()})
    assert sorted(name for _, released in met for name in released) == sorted(plan)
    return met


def exact(array) -> list[int]:
    return [int(value) for value in np.asarray(array).ravel()]


def squared_change(one, other) -> int:
    """Squared L2 norm of the difference of two integer arrays, in Python integers."""
    return sum((a - b) ** 2 for a, b in zip(exact(one), exact(other), strict=True))


def released(message, counts) -> dict[str, np.ndarray]:
    return {name: s.value() for name, s in answer(Histograms(), message, block_of(counts), 4).items()}


# --- sensitivity ----------------------------------------------------------------------------------------------------


def test_bounds_are_whole_numbers_above_the_true_ones():
    """In integers: S**2 against 2**32, 2**39 and twice as much."""
    for bound, square in ((sensitivities.clipped_sum, 2**32), (sensitivities.second_moment, 2**39)):
        for relation, factor in zip(RELATIONS, (1, 2), strict=True):
            value = bound(relation)
            assert type(value) is int and value**2 >= factor * square
            assert (value - 1) ** 2 < factor * square, "no larger than it must be"
        with pytest.raises(ConfigError, match="relation"):
            bound("replace_two")
    assert sensitivities.spread("add_or_remove_one") == 1.0
    assert 1.0 < sensitivities.spread("replace_one") / math.sqrt(2) < 1.0001


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("case", EVERYTHING)
def test_no_client_changes_a_release_by_more_than_its_sensitivity(case, relation):
    """With the message fixed: adding any client, or replacing one by any other, in exact integers."""
    config, given = EVERYTHING[case]
    generator = np.random.default_rng(1)
    counts = random_counts(generator, 14, D)
    newcomers = [*NEWCOMERS, *random_counts(generator, 5, D)]
    reached = {}
    for message, bounds in messages_of(config, given, relation, block_of(counts)):
        without = released(message, counts)
        joined = [released(message, np.insert(counts, 5, one, axis=0)) for one in newcomers]
        others = [without] if relation == "add_or_remove_one" else joined
        for one in joined:
            for other in others:
                for name, bound in bounds.items():
                    change = squared_change(one[name], other[name])
                    assert change <= bound**2, name
                    reached[name] = max(reached.get(name, 0.0), math.sqrt(change) / bound)
    assert min(reached.values()) > 0.5, "bounds of the right size"


@pytest.mark.parametrize("case", EVERYTHING)
def test_a_release_is_the_sum_of_what_clients_alone_give(case):
    """So that nobody's presence changes what another one contributes, whatever leaf or block they share."""
    config, given = EVERYTHING[case]
    counts = np.vstack([random_counts(np.random.default_rng(2), 11, D), NEWCOMERS])
    for message, bounds in messages_of(config, given, "replace_one", block_of(counts)):
        together = released(message, counts)
        alone = [released(message, row[None]) for row in counts]
        for name in bounds:
            assert np.array_equal(sum(one[name] for one in alone), together[name]), name


@pytest.mark.parametrize("case", EVERYTHING)
def test_only_planned_integer_sums_leave_a_leaf(case):
    config, given = EVERYTHING[case]
    block = block_of(random_counts(np.random.default_rng(0), 10, D))
    for message, bounds in messages_of(config, given, "add_or_remove_one", block):
        statistics, memory = Histograms(config).client_update(message, block, None)
        assert memory is None and statistics.keys() == bounds.keys()
        assert all(type(statistic) is IntegerSum for statistic in statistics.values())


def test_a_huge_count_of_one_client_moves_nobody_else():
    """A block with one count of 2**24 is stored in double precision, and scores in that precision fall elsewhere."""
    generator = np.random.default_rng(5)
    counts = generator.multinomial(3000, np.full(40, 1 / 40), size=4000)
    centre = generator.dirichlet(np.full(40, 50.0))
    nudged = centre * np.exp(1e-7 * generator.standard_normal((6, 40)))
    logs = assignment_logs(nudged / nudged.sum(axis=1, keepdims=True), 1e-6)
    crowded = np.vstack([counts, np.eye(40, dtype=int)[:1] * 2**30])
    small, large = block_of(counts), block_of(crowded)
    assert small.data.dtype != large.data.dtype
    assert np.array_equal(own_cells(small, logs), own_cells(large, logs)[:-1])
    assert not np.array_equal(assign(small, logs), assign(large, logs)[:-1]), "the precaution is needed"


# --- the parts ------------------------------------------------------------------------------------------------------


def python_triangle(z: list[int]) -> list[int]:
    """Upper triangle of z z^T with the diagonal scaled down, in Python integers."""
    d = len(z)
    return [z[i] * z[i] * 46340 // 65536 if i == j else z[i] * z[j] for i in range(d) for j in range(i, d)]


@given(counts_arrays(max_clients=5), st.sampled_from([0.3, 1.0, 3.0]))
def test_second_moments_are_exact_and_bounded(counts, clip):
    block = block_of(counts)
    grid = clipped_on_grid(block, np.sqrt(np.arange(1.0, block.features + 1)), clip)
    expected = [0] * (block.features * (block.features + 1) // 2)
    for u in range(block.clients):
        z = [0] * block.features
        for entry in range(block.indptr[u], block.indptr[u + 1]):
            z[block.indices[entry]] = int(grid[entry]) // 64
        assert sum(value * value for value in z) <= 2**20
        mine = python_triangle(z)
        assert sum(value * value for value in mine) <= 2**39
        expected = [a + b for a, b in zip(expected, mine, strict=True)]
    assert exact(moments.moment_on_grid(block, grid)) == expected


@given(st.lists(st.integers(0, 1024), min_size=1, max_size=12))
def test_any_vector_of_the_allowed_norm_has_a_triangle_within_the_bound(z):
    square = sum(value * value for value in z)
    shrunk = z if square <= 2**20 else [value * 1024 // (math.isqrt(square) + 1) for value in z]
    norm = sum(value * value for value in python_triangle(shrunk))
    assert norm <= 2**39 <= sensitivities.second_moment("add_or_remove_one") ** 2


def test_second_moments_worked_by_hand():
    """One client with q = (1/2, 1/2): y = q, norm sqrt(1/2), clip sqrt(1/2), so z = (724, 724), 1024 / sqrt 2 = 724.08.

    Off the diagonal 724**2 = 524176; on it 524176 * 46340 / 65536 = 370640.8..., cut.
    """
    block = block_of([[1, 1]])
    grid = clipped_on_grid(block, np.ones(2), math.sqrt(0.5))
    assert exact(moments.moment_on_grid(block, grid)) == [370640, 524176, 370640]


def test_the_covariance_is_that_of_centred_clients():
    generator = np.random.default_rng(0)
    counts = generator.multinomial(50, generator.dirichlet(np.ones(6), 40).mean(axis=0), size=300)
    counts[::2, 0] += 30
    block = block_of(counts)
    q = counts / counts.sum(axis=1, keepdims=True)
    mean = q.mean(axis=0)
    w = metric(mean, 1e-5, 150.0)
    grid = clipped_on_grid(block, 1 / np.sqrt(w), 100.0)  # nobody is clipped, hence s = 1
    found = moments.covariance(moments.moment_on_grid(block, grid), w, mean, 100.0)
    centred = (q - mean) / np.sqrt(w)
    np.testing.assert_allclose(found, centred.T @ centred, atol=300 * 3 * 100 / 1024)
    assert np.allclose(found, found.T)
    assert np.abs(found @ np.sqrt(w)).max() < 1e-9 * np.abs(found).max(), "histograms sum to 1"


def test_the_noise_of_the_matrix_has_the_expected_norm():
    d, scale = 120, 5000.0
    noise = np.random.default_rng(0).normal(0, scale, d * (d + 1) // 2).round().astype(np.int64)
    flat = np.full(d, 1 / d)
    matrix = moments.covariance(noise, flat, np.full(d, 1 / d), 3.0)
    largest = np.linalg.eigvalsh(matrix)[-1]
    assert 0.8 < largest / moments.noise_norm(scale, 3.0, d) < 1.1


def test_tokens_are_chosen_by_clear_eigenvectors_only():
    d = 12
    direction = np.zeros(d)
    direction[[3, 7]] = [0.8, -0.6]
    mean = np.linspace(1, 2, d)
    matrix = 10 * np.outer(direction, direction) + 1e-3 * np.eye(d)
    kept, clear = moments.choose_tokens(matrix, mean, 1.0, 3, 2)
    assert (list(kept), clear) == ([3, 7], 1)
    kept, clear = moments.choose_tokens(matrix, mean, 11.0, 3, 2)
    assert (list(kept), clear) == ([10, 11], 0)


@given(counts_arrays(), st.sampled_from([0.5, 10.0, 1e12]))
def test_weights_keep_every_entry_whole_and_no_larger(counts, half):
    block = block_of(counts)
    grid = clipped_on_grid(block, np.ones(block.features), 0.2)
    light = weighted(block, grid, half)
    assert np.array_equal(light, np.trunc(light)) and np.all((light >= 0) & (light <= grid))
    factors = np.repeat(block.totals / (block.totals + half), np.diff(block.indptr))
    assert np.all(np.abs(light - grid * factors) <= 1)


def test_votes_and_norms_count_clients_with_tokens():
    block = block_of([[0, 0, 0], [5, 1, 0], [0, 1, 9], [0, 0, 1], [2, 2, 2]])
    logs = assignment_logs(np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]]), 1e-6)
    assert exact(votes(block, logs)) == [2, 2]
    # norms: -, sqrt(26)/6 = .85, sqrt(82)/10 = .91, 1, sqrt(12)/6 = .58
    assert exact(count_norms(block, np.ones(3), 0.87)) == [2, 2]
    assert exact(count_norms(block, np.full(3, 1e200), 1.0)) == [0, 4]  # overflow: beyond
    released = client_update(ReleaseMessage("votes", 2, logs, np.ones(3), 1.0, "votes"), block)
    assert exact(released["votes"].value()) == [2 * 2**16, 2 * 2**16]


# --- plans ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-6, 1e3),
    st.integers(1, 10**7),
    st.sampled_from(["none", "frequency", "eigenvectors"]),
    st.booleans(),
    st.sampled_from(RELATIONS),
    st.sampled_from([None, 1, 3, 10, 40]),
)
def test_plans_fit_and_waste_nothing_whatever_is_asked_for(rho, nominal, reduction, adaptive, relation, given_centres):
    config = HistogramsConfig(reduction=reduction, adaptive_clip=adaptive)
    start = None if given_centres is None else start_of(given_centres, 20)
    known = dataclasses.replace(facts(20, rho=rho, nominal=nominal), relation=relation, warm_start=start)
    plan = Histograms(config).plan(known)
    prices = [release.rho for release in plan]
    assert sum(prices) <= rho and math.fsum(prices) <= rho and math.fsum(prices) >= rho * (1 - 1e-9)
    rounds = [release.round for release in plan]
    assert sorted(set(rounds)) == list(range(1, max(rounds) + 1))
    assert len({release.name for release in plan}) == len(plan)
    state = Histograms(config).init(known)
    assert Histograms(config).total_rounds(state) == max(rounds)


def test_replace_one_costs_the_same_and_adds_more_noise():
    config = HistogramsConfig(clusters=2, rounds=3, overseed=2)
    usual, replaced = (Histograms(config).plan(public(relation)) for relation in RELATIONS)
    assert [r.rho for r in usual] == [r.rho for r in replaced]
    ratios = [after.scale / before.scale for before, after in zip(usual, replaced, strict=True)]
    np.testing.assert_allclose(ratios, math.sqrt(2), rtol=1e-4)
    with pytest.raises(ConfigError, match="relation"):
        Histograms(config).plan(public("replace_some"))


def test_a_smaller_effective_budget_under_replace_one_buys_no_more():
    for rho in (0.001, 0.01, 0.1, 1.0):
        sizes = [
            len(Histograms().plan(dataclasses.replace(facts(1000, rho=rho, nominal=20_000), relation=relation)))
            for relation in RELATIONS
        ]
        assert sizes[1] <= sizes[0]


def names(config, start, **given) -> list[str]:
    return [release.name for release in Histograms(config).plan(public(start=start, **given))]


def test_what_a_start_saves():
    two = HistogramsConfig(clusters=2)
    assert names(two, start_of(2)) == ["clusters_001", "clusters_002"]
    assert names(HistogramsConfig(clusters=2, rounds=1), start_of(2)) == ["clusters_001"]
    assert names(two, start_of(5))[0] == "votes"
    strong = {"rho": 2.0, "nominal": 10**6}
    assert names(two, start_of(5), **strong)[0] == "clusters_001", "all given centres fit into the first cells"
    assert names(two, start_of(1)) == names(two, None)[2:], "the other centre has to find its place"
    both = HistogramsConfig(clusters=2, reduction="eigenvectors", keep=3)
    assert names(both, start_of(5))[:3] == ["votes", "second_moment", "clusters_001"]
    assert names(both, None)[:3] == ["flat_mean", "whitened_mean", "second_moment"]


def test_norms_are_counted_while_the_clip_can_still_move():
    config = HistogramsConfig(clusters=2, rounds=5, overseed=2, adaptive_clip=True, clip_share=0.1)
    plan = {release.name: release for release in Histograms(config).plan(public())}
    assert [name for name in plan if name.startswith("norms")] == ["norms_001", "norms_002", "norms_003"]
    assert plan["norms_001"].round == plan["clusters_001"].round and plan["norms_001"].shape == (2,)
    share = plan["clusters_005"].rho
    assert plan["clusters_001"].rho == pytest.approx(0.9 * share)
    assert plan["norms_001"].rho == pytest.approx(0.1 * share)


def test_what_cannot_be_planned():
    wide = dataclasses.replace(facts(2049, rho=1.0, nominal=1000))
    with pytest.raises(ConfigError, match="2049"):
        Histograms(HistogramsConfig(reduction="eigenvectors")).plan(wide)
    assert Histograms(HistogramsConfig(reduction="frequency")).plan(wide)
    with pytest.raises(ConfigError, match="cannot be kept"):
        Histograms(HistogramsConfig(reduction="frequency", keep=D)).plan(public())
    with pytest.raises(ValidationError, match="leave nothing"):
        HistogramsConfig(reduction="eigenvectors", moment_share=0.8, first_share=0.1, second_share=0.1)


# --- runs -----------------------------------------------------------------------------------------------------------


def two_groups(n: int = 400, d: int = 12, seed: int = 0):
    """(block, truth): clients of two well separated clusters, 60 tokens each."""
    generator = np.random.default_rng(seed)
    truth = np.vstack([np.linspace(1, 4, d), np.linspace(4, 1, d)]) ** 2
    truth /= truth.sum(axis=1, keepdims=True)
    counts = np.vstack([generator.multinomial(60, row, size=n // 2) for row in truth])
    return block_of(counts), truth


def distance(centres, truth) -> float:
    """The largest total variation of a true centre from the nearest found one."""
    return float(np.max(0.5 * np.abs(truth[:, None] - centres[None]).sum(axis=2).min(axis=1)))


def known_of(d, rho=5.0, **more):
    return dataclasses.replace(facts(d, rho=rho, nominal=400), **more)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"reduction": "frequency", "keep": 8},
        {"reduction": "eigenvectors", "keep": 8, "moment_share": 0.5},
        {"adaptive_clip": True},
        {"half_weight_tokens": 20.0},
    ],
    ids=["plain", "frequency", "eigenvectors", "clip", "weights"],
)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_two_clusters_are_found(relation, settings_, warm):
    block, truth = two_groups()
    start = {"centres": 0.7 * truth + 0.3 * truth.mean(axis=0)} if warm else None
    sizes = {} if warm else {"rounds": 5, "overseed": 4, "merge_after": 2}
    config = HistogramsConfig(clusters=2, **sizes, **settings_)
    known = known_of(12, relation=relation, warm_start=start)
    state, infos = run(Histograms(config), block, known, rounded_normal(np.random.default_rng(0)))
    assert state.phase == "done" and state.centres.shape == (2, 12) and state.mean.shape == (12,)
    np.testing.assert_allclose(state.centres.sum(axis=1), 1.0)
    # sampling moves a centre by about sqrt(d / (200 * 60)) / 2 = .016; a lift adds what F gets wrong in the bucket
    assert distance(state.centres, truth) < (0.25 if "reduction" in settings_ else 0.08)
    start_apart = distance(np.tile(truth.mean(axis=0), (2, 1)), truth)
    assert distance(state.centres, truth) < start_apart
    assert (len(state.kept) > 0) == ("reduction" in settings_)


def test_a_warm_start_spends_everything_on_its_two_rounds():
    block, truth = two_groups()
    start = {"centres": truth, "mean": truth.mean(axis=0), "counts": np.array([3.0, 1.0])}
    state, infos = run(Histograms(HistogramsConfig(clusters=2)), block, known_of(12, start=start))
    assert len(infos) == 2 and state.rounds == 2
    cold = Histograms(HistogramsConfig(clusters=2, rounds=2, overseed=2)).init(known_of(12))
    assert state.multipliers[-1] < cold.multipliers[-1]


def test_the_mean_of_a_start():
    centres = np.array([[0.5, 0.5, 0.0], [0.1, 0.1, 0.8]])
    np.testing.assert_allclose(given_mean({"centres": centres}, 1e-9), [0.3, 0.3, 0.4])
    np.testing.assert_allclose(given_mean({"centres": centres, "counts": np.array([3.0, 1.0])}, 1e-9), [0.4, 0.4, 0.2])
    np.testing.assert_allclose(given_mean({"centres": centres, "counts": np.zeros(2)}, 1e-9), [0.3, 0.3, 0.4])
    mean = np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(given_mean({"centres": centres, "mean": mean}, 1e-9), mean)


def test_elected_centres():
    centres = np.array([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])
    chosen, live = elected(centres, np.array([30.0, 10.0, 20.0, 5.0]), 6.0, np.full(3, 1 / 3), 2)
    assert list(live) == [0, 1, 2]
    np.testing.assert_allclose(chosen, [[0.775, 0.125, 0.1], [0.1, 0.1, 0.8]])
    few, live = elected(centres, np.array([1.0, 9.0, 2.0, 3.0]), 6.0, np.full(3, 1 / 3), 2)
    assert list(live) == [1] and np.array_equal(few, centres[1:2])
    none, live = elected(centres, np.zeros(4), 6.0, np.full(3, 1 / 3), 2)
    assert none.shape == (0, 3) and len(live) == 0
    mean = np.full(3, 1 / 3)
    filled = filled_up(none, 3, mean, 0.3, seed=1)
    assert filled.shape == (3, 3) and np.array_equal(filled[1:], filled_up(centres[:1], 3, mean, 0.3, 1)[1:])


@pytest.mark.parametrize("relation", RELATIONS)
def test_votes_choose_the_candidates_that_clients_are_near_to(relation):
    block, truth = two_groups()
    strangers = np.random.default_rng(1).dirichlet(np.full(12, 0.1), 20)
    start = {"centres": np.vstack([strangers[:10], truth, strangers[10:]])}
    method = Histograms(HistogramsConfig(clusters=2, overseed=2, rounds=2))
    known = known_of(12, relation=relation, warm_start=start)
    state, noise = method.init(known), rounded_normal(np.random.default_rng(0))
    planned = method.plan(known)[0]
    assert (planned.name, planned.shape) == ("votes", (22,))
    message = method.message(state)
    assert message.kind == "votes" and message.release == "votes"
    grid = method.release_values(message, answer(method, message, block, 1024))
    state, info = method.server_update(state, {"votes": noise(planned, grid["votes"])})
    assert state.phase == "rounds" and state.centres.shape == (2, 12) and distance(state.centres, truth) < 0.15
    assert info.scalars["live_cells"] < 22


def test_the_clip_moves_towards_the_median_norm():
    """All clients beyond a small clip: the share within is 0 and C grows by exp(0.1) a round; then it is frozen."""
    block, _ = two_groups()
    config = HistogramsConfig(clusters=2, rounds=5, overseed=2, adaptive_clip=True, clip=0.5)
    _, infos = run(Histograms(config), block, known_of(12), no_noise)
    clips = [info.scalars["clip"] for info in infos if "clip" in info.scalars]
    np.testing.assert_allclose(clips, 0.5 * np.exp(0.1 * np.array([0, 1, 2, 3, 3])))
    large = HistogramsConfig(clusters=2, rounds=5, overseed=2, adaptive_clip=True, clip=50.0)
    _, infos = run(Histograms(large), block, known_of(12), no_noise)
    assert infos[-1].scalars["clip"] == pytest.approx(50 * math.exp(-0.3))


def test_a_count_of_norms_that_noise_explains_moves_nothing():
    block = block_of(np.zeros((5, 12)))
    config = HistogramsConfig(clusters=2, rounds=5, overseed=2, adaptive_clip=True)
    _, infos = run(Histograms(config), block, known_of(12, rho=0.01), rounded_normal(np.random.default_rng(0)))
    assert infos[-1].scalars["clip"] == 3.0


def test_weights_favour_clients_with_many_tokens():
    """99 clients with one token each and one with 10 000: with m_0 = 100 their weights are 99 / 101 and .99."""
    block = block_of(np.vstack([np.tile([1, 0, 0], (99, 1)), [[0, 0, 10_000]]]))
    message = ReleaseMessage("flat_mean", 1, np.zeros((3, 1), np.float32), np.ones(3), 1.0, half_weight=100.0)
    sums = client_update(message, block)["flat_mean"].value()[0] / GRID_NORM
    np.testing.assert_allclose(sums, [99 / 101, 0, 10_000 / 10_100], atol=100 / GRID_NORM)


@pytest.mark.parametrize("case", EVERYTHING)
def test_every_state_survives_the_run_store_and_serves_all_tokens(tmp_path, case):
    config, given = EVERYTHING[case]
    method, block = Histograms(config), block_of(random_counts(np.random.default_rng(0), 30, D))
    known = public(start=given)
    state, plan = method.init(known), {release.name: release for release in method.plan(known)}
    noise = rounded_normal(np.random.default_rng(0))
    for number in range(100):
        write_values(tmp_path / str(number), state_values(state))
        again = type(state)(**read_values(tmp_path / str(number)))
        for name, value in state_values(state).items():
            assert np.array_equal(getattr(again, name), value), name
        outputs = method.personalise(again, block, None)
        assert outputs["estimate"].shape == (30, D)
        np.testing.assert_allclose(outputs["estimate"].sum(axis=1), 1.0, atol=1e-4)
        message = method.message(again)
        if message is None:
            break
        grid = method.release_values(message, answer(method, message, block, 1024))
        state, info = method.server_update(again, {name: noise(plan[name], value) for name, value in grid.items()})
        assert all(math.isfinite(value) for value in info.scalars.values())
    assert state.phase == "done"


def test_clients_of_a_reduced_run_answer_with_the_reduced_vocabulary():
    block, _ = two_groups()
    config = HistogramsConfig(clusters=2, rounds=2, overseed=2, reduction="frequency", keep=4)
    method = Histograms(config)
    known = known_of(12, start=start_of(2, 12))
    message = method.message(method.init(known))
    assert len(message.kept) == 4 and message.whitening.shape == (5,) and message.log_centres.shape == (5, 2)
    sums = answer(method, message, block, 1024)["clusters_001"].value()
    assert sums.shape == (2, 5) == method.plan(known)[0].shape
    plain = dataclasses.replace(message, kept=None)
    assert np.array_equal(sums, client_update(plain, reduce_block(block, message.kept))["clusters_001"].value())


# --- Algorithm 2 from given centres ---------------------------------------------------------------------------------


def test_algorithm_2_starts_where_it_is_told_to():
    block, truth = two_groups()
    known = dataclasses.replace(facts(12), warm_start={"centres": truth})
    config = HistogramsConfig(algorithm="algorithm2", clusters=2)
    state, infos = run(Histograms(config), block, known)
    assert distance(state.centres, truth) < 0.05 and state.phase == "done"
    assert len(infos) <= 6, "one pass for the mean, and few rounds, since the start is good"
    reduced, _ = run(Histograms(config.model_copy(update={"reduction": "frequency", "keep": 8})), block, known)
    assert reduced.centres.shape == (2, 12) and len(reduced.kept) == 8


@pytest.mark.parametrize("given_centres, clusters, cells", [(5, 2, 5), (1, 3, 3), (4, None, 4), (12, None, 12)])
def test_algorithm_2_merges_and_fills_up(given_centres, clusters, cells):
    block, _ = two_groups()
    config = HistogramsConfig(algorithm="algorithm2", clusters=clusters)
    known = dataclasses.replace(facts(12), warm_start=start_of(given_centres, 12))
    method = Histograms(config)
    state = method.init(known)
    assert method.total_rounds(state) >= 1 + state.rounds
    message = method.message(state)
    state, _ = method.server_update(state, values(answer(method, message, block, 1024)))
    assert state.phase == "rounds" and len(state.centres) == cells and state.clients == block.clients
    last, _ = run(method, block, known)
    assert len(last.centres) == (clusters or min(given_centres, 10))


@pytest.mark.parametrize(
    "config, words",
    [
        ({"algorithm": "fedavg"}, "fedavg"),
        ({"algorithm": "ifca"}, "ifca"),
        ({"algorithm": "published"}, "published"),
        ({"algorithm": "algorithm2", "reduction": "eigenvectors"}, "eigenvectors"),
        ({"algorithm": "algorithm2", "clusters": 2, "rounds": 2}, "cannot be merged"),
    ],
)
def test_what_does_not_start_from_given_centres(config, words):
    with pytest.raises(ConfigError, match=words) as refused:
        Histograms(HistogramsConfig(**config)).init(dataclasses.replace(facts(12), warm_start=start_of(5, 12)))
    assert refused.value.remedy
