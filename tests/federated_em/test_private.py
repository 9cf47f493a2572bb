"""DP-A: its plan, the sensitivity of every release in exact integers, and what the server makes of published values."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcore.errors import ConfigError
from fedcore.methods.federated_em import FederatedEM
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.federated_em.private import _clip, bounded_rows
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.privacy.grid import GRID_NORM, grid_step
from fedcore.rounds.statistics import IntegerSum
from tests.federated_em.direct_em import loss, three_components, two_components
from tests.federated_em.run_in_memory import answer, block_of, facts, rounded_normal, run
from tests.federated_em.varied import Varied

PRIVATE = Varied(algorithm="private", covariance="known", components=2, rounds=20, record_bound=8.0)


def two_component_facts(block, **changes):
    _, start = two_components(10)
    return facts(block, **{"start": start, "rho": 1.0, "nominal": 100, **changes})


def small_block(rows=600, clients=40):
    y, _ = two_components(rows)
    return block_of(np.array_split(y, clients))


# --- the plan -------------------------------------------------------------------------------------------------------


@given(st.floats(1e-9, 1e4), st.integers(1, 300))
def test_the_plan_never_exceeds_the_budget_and_wastes_none_of_it(rho, rounds):
    config = PRIVATE.model_copy(update={"rounds": rounds})
    releases = FederatedEM(config).plan(two_component_facts(small_block(4, 2), rho=rho))
    prices = [release.rho for release in releases]
    assert sum(prices) <= rho and math.fsum(prices) <= rho and math.fsum(prices) >= rho * (1 - 1e-9)
    assert [release.round for release in releases] == list(range(1, rounds + 1))
    assert len({release.name for release in releases}) == rounds
    assert all(release.shape == (6,) and release.sensitivity == 2**16 for release in releases)


def test_replacing_a_client_costs_twice_the_sensitivity():
    block = small_block(4, 2)
    one, two = (
        FederatedEM(PRIVATE).plan(two_component_facts(block, relation=relation))[0]
        for relation in ("add_or_remove_one", "replace_one")
    )
    assert (one.sensitivity, two.sensitivity) == (GRID_NORM, 2 * GRID_NORM)
    assert one.rho == two.rho and two.scale == 2 * one.scale


def test_the_plan_knows_config_and_public_facts_only():
    public, other = two_component_facts(small_block()), two_component_facts(small_block(100, 3), seed=4)
    assert FederatedEM(PRIVATE).plan(public) == FederatedEM(PRIVATE).plan(other)


@pytest.mark.parametrize(
    "changes, match",
    [
        (dict(rho=None), "needs a privacy budget"),
        (dict(nominal_clients=None), "declared number"),
        (dict(warm_start=None), "needs parameters"),
        (dict(warm_start={"weights": np.ones(2) / 2}), "means"),
        (dict(warm_start={"weights": np.ones(2) / 2, "means": np.full((2, 2), np.nan)}), "means"),
    ],
)
def test_what_a_private_run_needs(changes, match):
    public = dataclasses.replace(two_component_facts(small_block(4, 2)), **changes)
    with pytest.raises(ConfigError, match=match):
        FederatedEM(PRIVATE).plan(public)
        FederatedEM(PRIVATE).init(public)


@pytest.mark.parametrize(
    "wrong",
    [
        dict(participation=0.5),
        dict(codec="dithering"),
        dict(batch=5),
        dict(tol=1e-3),
        dict(restarts=2),
        dict(start="random"),
        dict(weights="rows"),
        dict(kind="counts", model="poisson"),
        dict(model="gaussian_tables", table_rows=3),
    ],
)
def test_settings_that_have_no_argument_are_refused(wrong):
    with pytest.raises(ValueError, match="private|one component|counts"):
        Varied(algorithm="private", **wrong)


# --- sensitivity ----------------------------------------------------------------------------------------------------


def messages_of(config, block, public, seed=0):
    """The messages of a whole noised run."""
    method, messages = FederatedEM(config), []
    noise, plan, state = rounded_normal(np.random.default_rng(seed)), method.plan(public), method.init(public)
    while (message := method.message(state)) is not None:
        messages.append(message)
        grid = method.release_values(message, answer(method, message, block, 16, None)[0])
        planned = plan[len(messages) - 1]
        state, _ = method.server_update(state, {planned.name: noise(planned, grid[planned.name])})
    return messages


def squared(values) -> int:
    """Squared L2 norm in Python integers."""
    return sum(int(value) ** 2 for value in values.ravel())


wild = st.one_of(st.floats(-20, 20), st.sampled_from([0.0, 1e-300, 1e8, -1e200, np.inf, -np.inf, np.nan, 1e308]))


@pytest.fixture(scope="module")
def noised_run():
    """A block and the messages of a run on it."""
    block = small_block(100, 12)
    return block, messages_of(PRIVATE, block, two_component_facts(block))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_one_client_moves_the_sum_by_at_most_the_clip(noised_run, data):
    """Any rows, also huge, infinite and missing ones: the squared norm of its part is at most 2**32, exactly."""
    block, message = noised_run[0], noised_run[1][data.draw(st.integers(0, 19))]
    newcomer = data.draw(arrays(np.float64, (data.draw(st.integers(0, 6)), 2), elements=wild))
    method = FederatedEM(PRIVATE)
    parts = [block.x[a:b] for a, b in zip(block.ptr[:-1], block.ptr[1:], strict=True)]
    place = data.draw(st.integers(0, len(parts)))
    joined = block_of([*parts[:place], newcomer, *parts[place:]])
    without, with_one, alone = (
        answer(method, message, rows, 16, None)[0][message.release].value()
        for rows in (block, joined, block_of([newcomer]))
    )
    assert np.array_equal(with_one - without, alone), "the others' parts do not depend on it"
    assert squared(alone) <= GRID_NORM**2


@pytest.mark.parametrize("covariance", ["diag", "full", "tied"])
def test_neighbours_change_no_bit_of_a_client(covariance):
    """Models whose matrix products, taken over all rows at once, round differently when a client joins."""
    generator = np.random.default_rng(4)
    d, g = 10, 8
    variances = {"diag": np.ones((g, d)), "full": np.tile(np.eye(d), (g, 1, 1)), "tied": np.eye(d)}
    start = {"weights": np.full(g, 1 / g), "means": generator.normal(size=(g, d)), "covariances": variances[covariance]}
    method = FederatedEM(Varied(algorithm="private", components=g, covariance=covariance, record_bound=50.0))
    parts = [generator.normal(size=(size, d)) for size in generator.integers(0, 40, 120)]
    public = facts(block_of(parts), start=start, rho=1.0, nominal=100)
    message = method.message(method.init(public))
    together = method.client_update(message, block_of(parts), None)[0][message.release].value()
    rest = method.client_update(message, block_of(parts[1:]), None)[0][message.release].value()
    alone = [method.client_update(message, block_of([part]), None)[0][message.release].value() for part in parts]
    assert np.array_equal(together, sum(alone)) and np.array_equal(together - rest, alone[0])


def test_a_long_statistic_is_clipped_alike_wherever_it_stands():
    """einsum begins a new sum every 8192 numbers of all rows together: a neighbour would move the norm by its last bit,
    and here an entry by a step."""
    q = 2**14  # whose root takes a row of equal entries to a whole number of steps
    message = SimpleNamespace(s=np.zeros(q), part_scales=np.ones(q), clip=1.0)
    for entry in np.linspace(0.1, 0.9, 9):
        means = np.full((3, q), entry)
        means[0] = np.linspace(0.1, 1.0, q)
        alone = means[1:2].copy()
        for held in (means, alone):
            _clip(held, np.ones(len(held), bool), message)
        assert np.array_equal(means[1], alone[0]) and np.array_equal(means[2], alone[0])


def test_the_bound_is_reached_so_that_a_smaller_one_would_be_wrong():
    block = small_block()
    config = PRIVATE.model_copy(update={"clip": 0.1})
    method = FederatedEM(config)
    message = messages_of(config, block, two_component_facts(block))[3]
    largest = 0
    for client in range(block.clients):
        own = block.slice(client, client + 1, client)
        largest = max(largest, squared(method.client_update(message, own, None)[0][message.release].value()))
    assert 0.999 * GRID_NORM**2 < largest <= GRID_NORM**2


def test_a_small_part_is_on_the_grid_within_a_step():
    """c = s_i - S_k where that is shorter than the clip, truncated towards zero."""
    block = small_block()
    method, state = FederatedEM(PRIVATE), None
    state = method.init(two_component_facts(block))
    message = method.message(state)
    own = block.slice(5, 6, 5)
    grid = method.client_update(message, own, None)[0][message.release].value()
    exact = GaussianMixture(2, 2, "known").e_mean(state.parameters(), own.x, own.ptr)[0] - state.statistic
    assert np.linalg.norm(exact) < 3.0
    off = exact / grid_step(3.0) - grid
    assert np.all(np.abs(off) < 1) and np.all(off * exact >= 0)


def test_rows_are_bounded_and_useless_ones_left_out():
    rows = [[[3.0, 4.0], [np.inf, 0.0]], [[np.nan, 1.0]], [[30.0, 40.0], [1e308, 1e308]]]
    block = block_of([np.array(own) for own in rows])
    leaf = bounded_rows(rows_of(block), 10.0, missing=False)
    assert leaf.sizes.tolist() == [1, 0, 2]
    np.testing.assert_allclose(leaf.y, [[3, 4], [6, 8], [0, 0]])
    kept = bounded_rows(rows_of(block), 10.0, missing=True)
    assert kept.sizes.tolist() == [1, 1, 2] and np.isnan(kept.y[1, 0])


def test_only_the_planned_integer_sum_leaves_the_clients():
    block = small_block()
    for message in messages_of(PRIVATE, block, two_component_facts(block)):
        statistics, memory = FederatedEM(PRIVATE).client_update(message, block, None)
        assert memory is None and set(statistics) == {message.release}
        assert isinstance(statistics[message.release], IntegerSum)


def test_rounds_and_what_is_told_do_not_depend_on_the_data():
    names = {"noise_multiplier", "field_norm", "gamma", "halvings", "movement"}
    for rows in (600, 40):
        block = small_block(rows, 20)
        ran = run(PRIVATE, block, two_component_facts(block), noise=rounded_normal(np.random.default_rng(1)))
        assert len(ran.infos) == 20 and all(set(info.scalars) == names for info in ran.infos)
        assert ran.state.objective is None and ran.state.population == 0 and ran.state.rows == 0


# --- what it learns -------------------------------------------------------------------------------------------------


def test_without_noise_it_follows_damped_em():
    """No client is clipped, the nominal number is the exact one: H is the field within a grid step for each client."""
    y, start = two_components(2000)
    block = block_of(np.array_split(y, 100))
    config = PRIVATE.model_copy(update={"clip": 50.0, "record_bound": 1e6, "gamma": 0.5})
    ran = run(config, block, two_component_facts(block, start=start))
    damped = Varied(algorithm="em", covariance="known", components=2, start="given", gamma=0.5, rounds=20)
    exact = run(damped, block, facts(block, start=start))
    assert np.abs(ran.state.statistic - exact.state.statistic).max() < 20 * grid_step(50.0)
    assert loss(ran.state.parameters(), y) < loss(start, y) - 0.1


@pytest.mark.slow
def test_noise_of_a_usual_budget_leaves_the_mixture_in_sight():
    """1000 clients of 10 rows, rho = 0.5 over 30 rounds: noise of sqrt(30) = 5.5 clips in every sum."""
    y, start = two_components(10_000)
    block = block_of(np.array_split(y, 1000))
    exact = run(
        Varied(algorithm="em", covariance="known", components=2, start="given", rounds=150),
        block,
        facts(block, start=start),
    ).state.objective
    config = PRIVATE.model_copy(update={"rounds": 30})
    excess = []
    for seed in range(3):
        public = two_component_facts(block, start=start, rho=0.5, nominal=1000, seed=seed)
        ran = run(config, block, public, noise=rounded_normal(np.random.default_rng(seed)))
        excess.append(loss(ran.state.parameters(), y) - exact)
    assert 0 < np.mean(excess) < 0.01 and loss(start, y) - exact > 0.3


def test_public_scaling_and_part_scales():
    """Standardised by public numbers; parts divided by D before the clip and multiplied after."""
    y, _ = three_components(1500)
    shift, scale = np.array([9.0, -4.0, 0.0, 1.0]), np.array([10.0, 1.0, 0.1, 5.0])
    start = {"weights": np.full(3, 1 / 3), "means": np.eye(3, 4), "covariances": np.tile(np.eye(4), (3, 1, 1))}
    config = Varied(algorithm="private", rounds=5, clip=100.0, record_bound=1e6)
    plain = run(config, block_of(np.array_split(y, 50)), facts(block_of([y]), start=start, rho=1.0, nominal=50))
    moved = block_of(np.array_split(y * scale + shift, 50))
    q = len(plain.state.statistic)
    given = {**start, "centre": shift, "scale": scale, "part_scales": np.linspace(0.5, 3.0, q)}
    ran = run(config, moved, facts(moved, start=given, rho=1.0, nominal=50))
    np.testing.assert_allclose(ran.state.statistic, plain.state.statistic, atol=1e-1)
    means, scaled = (FederatedEM(config).parameters(one.state)["means"] for one in (plain, ran))
    np.testing.assert_allclose((scaled - shift) / scale, means, atol=0.1)
    again = FederatedEM(config).warm_start_of(ran.state)
    np.testing.assert_array_equal(again["part_scales"], given["part_scales"])
    for bad in ({"centre": shift}, {"centre": shift, "scale": -scale}, {"part_scales": np.zeros(q)}):
        with pytest.raises(ConfigError):
            FederatedEM(config).init(facts(moved, start={**start, **bad}, rho=1.0, nominal=50))
