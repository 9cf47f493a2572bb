"""FedEM against direct EM; what compression, absent clients and absent memories do; bits that do not depend on cuts."""

import dataclasses
import hashlib

import numpy as np
import pytest

from fedcore.errors import PopulationError, RunError, WorkerFailed
from fedcore.methods.federated_em import FederatedEM
from fedcore.methods.federated_em.clients import Weights
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.federated_em.server import damped_step
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.randomness import client_uniforms
from fedcore.rounds.statistics import values
from tests.federated_em.direct_em import em_step, loss, three_components, two_components
from tests.federated_em.run_in_memory import answer, block_of, facts, run
from tests.federated_em.varied import Varied

EXACT = dict(model="gaussian", components=3, start="given", regularisation=0.0, monitor_every=1)
KNOWN = dict(model="gaussian", covariance="known", components=2, start="given", norms_by_part=False)


def largest_difference(one, other) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in other)


# --- exactness ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        dict(algorithm="em"),
        dict(algorithm="fedem", codec="identity"),
        dict(algorithm="fedem", codec="identity", memories=False),
    ],
)
@pytest.mark.parametrize("sizes", ["equal", "unequal"])
def test_without_compression_it_is_em(config, sizes):
    y, start = three_components()
    cuts = 50 if sizes == "equal" else np.sort(np.random.default_rng(0).choice(len(y), 49, replace=False))
    block = block_of(np.array_split(y, cuts))
    ran = run(Varied(**EXACT, rounds=30, **config), block, facts(block, start=start), clients_per_leaf=16)
    theta, objectives = start, ran.column("objective")
    for number in range(30):
        assert abs(objectives[number] - loss(theta, y)) <= 1e-12
        theta = em_step(theta, y, np.ones(len(y)))
        (after,) = [s for s in ran.states if s.round == number + 1 and s.phase != "done"]
        assert largest_difference(after.parameters(), theta) <= 1e-10
    assert np.all(np.diff(objectives) <= 1e-12)


def test_exact_messages_do_not_care_what_clients_remember():
    """Random memories, a known V, no codec, everybody: H = sum w_i s_i - S_k, whatever the memories are. The driver
    does not even keep them then; here the client step is made to, by a participation of all but certain."""
    y, start = three_components(2000)
    block = block_of(np.array_split(y, 40))
    config = Varied(**EXACT, algorithm="fedem", codec="identity", participation=1 - 1e-12, rounds=3)
    method, state = FederatedEM(config), None
    state = method.init(facts(block, start=start))
    state, _ = method.server_update(state, values(answer(method, method.message(state), block, 8, None)[0]))
    v = np.random.default_rng(0).normal(size=(40, len(state.statistic)))
    weights = Weights(config.by_rows, state.clients, state.rows).of_clients(rows_of(block).sizes)
    state, memory = dataclasses.replace(state, phase="rounds", memory=weights @ v, gamma=1.0), {"V": v}
    theta = state.parameters()
    for _ in range(3):
        statistics, memory = answer(method, method.message(state), block, 8, memory)
        state, _ = method.server_update(state, values(statistics))
        theta = em_step(theta, y, np.ones(len(y)))
        assert largest_difference(state.parameters(), theta) <= 1e-10
    assert np.abs(weights @ memory["V"] - state.memory).max() <= 1e-12


def test_one_vote_for_each_client():
    y, start = three_components(3000)
    sizes = np.random.default_rng(2).integers(0, 200, 40)
    block = block_of(np.array_split(y, np.cumsum(sizes[:-1])))
    sizes = np.diff(block.ptr)
    ran = run(Varied(**EXACT, algorithm="em", weights="clients", rounds=5), block, facts(block, start=start))
    theta = start
    each = np.repeat(1 / (np.count_nonzero(sizes) * np.maximum(sizes, 1)), sizes)
    for _ in range(5):
        theta = em_step(theta, y, each)
    assert largest_difference(ran.state.parameters(), theta) <= 1e-10
    settings = dict(algorithm="fedem", codec="identity", weights="clients", participation=1 - 1e-12, gamma=1.0)
    told_apart = run(Varied(**EXACT, **settings, rounds=5), block, facts(block, start=start))
    assert largest_difference(told_apart.state.parameters(), theta) <= 1e-10


# --- compression, heterogeneity, participation ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def known():
    y, start = two_components()
    block = block_of(np.array_split(y, 100))
    theta = start
    for _ in range(300):
        theta = em_step(theta, y, np.ones(len(y)), known=True)
    return block, start, loss(theta, y), theta


def known_run(known, **settings):
    block, start, _, _ = known
    return run(Varied(**{**KNOWN, "monitor_every": 20, **settings}), block, facts(block, start=start))


@pytest.mark.slow
def test_em_converges_to_the_direct_fixed_point(known):
    ran = known_run(known, algorithm="em", rounds=300)
    assert ran.column("mean_field_norm")[0] > 0.1 and ran.column("mean_field_norm")[-1] < 1e-20
    assert abs(ran.column("objective")[-1] - known[2]) <= 1e-12
    assert largest_difference(ran.state.parameters(), known[3]) < 1e-9


slow = lambda **settings: pytest.param(settings, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        dict(codec=1, gamma=0.5, participation=0.75),
        slow(codec=1, gamma=1.0, participation=1.0),
        slow(codec=4, gamma=0.5, participation=0.5),
    ],
)
def test_memories_beat_heterogeneity(known, settings):
    """Thresholds of the specification: the field below 1e-20 after 600 rounds, the objective within 1e-9 of EM's."""
    ran = known_run(known, algorithm="fedem", rounds=600, **settings)
    assert np.median(ran.column("mean_field_norm")[-6:]) < 1e-20
    assert abs(ran.state.objective - known[2]) < 1e-9
    assert np.median(ran.column("field_norm")[-100:]) < 1e-18


@pytest.mark.slow
@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=pytest.mark.slow), 0.75])
def test_without_memories_it_stalls(known, participation):
    ran = known_run(known, memories=False, codec=1, gamma=0.5, participation=participation, rounds=600)
    assert np.median(ran.column("mean_field_norm")[-6:]) > 1e-4
    assert ran.state.objective > known[2] + 1e-5 and ran.memory is None


@pytest.mark.slow
def test_small_steps_converge_as_slowly_as_em_does_with_them(known):
    compressed = known_run(known, codec=1, gamma=0.1, rounds=400).column("mean_field_norm")
    exact = known_run(known, algorithm="em", gamma=0.1, rounds=400).column("mean_field_norm")
    np.testing.assert_allclose(np.log10(compressed[5:]), np.log10(exact[5:]), atol=0.5)


# --- participation and memories -------------------------------------------------------------------------------------


def test_those_who_do_not_take_part_keep_their_memory(known):
    block, start, _, _ = known
    config = Varied(**KNOWN, codec="dithering", participation=0.3, rounds=5)
    method = FederatedEM(config)
    state, memory, before = method.init(facts(block, start=start, seed=3)), None, None
    while (message := method.message(state)) is not None:
        statistics, memory = answer(method, message, block, 16, memory)
        result = values(statistics)
        if state.phase == "rounds" and state.round:  # in the first round memories are full, and nothing is left to send
            taking = client_uniforms(3, "federated_em/participation", state.round + 1, 0, 100)[:, 0] <= 0.3
            changed = (memory["V"] != before).any(axis=1)
            assert np.array_equal(changed, taking) and 0 < taking.sum() < 100
            assert result["costs"][0] == taking.sum()
        state, _ = method.server_update(state, result)
        before = memory["V"] if memory else None
        if memory is not None:
            assert np.abs(memory["V"].mean(axis=0) - state.memory).max() < 1e-14


def test_a_round_without_anybody_moves_by_the_memories(known):
    block, start, _, _ = known
    config = Varied(**KNOWN, codec="dithering", participation=1e-9, gamma=0.5, rounds=2)
    ran = run(config, block, facts(block, start=start))
    first, second, third = [s for s in ran.states if s.phase in ("rounds", "last") and s.theta.size][:3]
    assert set(ran.column("active_clients")) == {0.0}
    np.testing.assert_array_equal(second.statistic, first.statistic + 0.5 * first.memory)
    np.testing.assert_array_equal(third.memory, first.memory)


@pytest.mark.slow
def test_memories_are_audited(known):
    block, start, _, _ = known
    config = Varied(**KNOWN, codec="dithering", participation=0.5, rounds=60)
    method = FederatedEM(config)
    state, memory = method.init(facts(block, start=start)), None
    while state.round < 49:
        statistics, memory = answer(method, method.message(state), block, 16, memory)
        state, _ = method.server_update(state, values(statistics))
    message = method.message(state)
    assert message.audit and not memory["V"][7].all() == 0
    after, _ = method.server_update(state, values(answer(method, message, block, 16, memory)[0]))
    assert after.round == 50
    lost = {"V": memory["V"].copy()}
    lost["V"][7] = 0.0
    with pytest.raises(RunError, match="memories add up"):
        method.server_update(state, values(answer(method, message, block, 16, lost)[0]))


@pytest.mark.slow
def test_clients_without_rows_are_nobody():
    y, start = two_components(2000)
    parts = np.array_split(y, 20)
    empty = np.zeros((0, 2))
    mixed = [part for own in parts for part in (empty, own)] + [empty]
    settings = dict(KNOWN, gamma=1.0, rounds=60, monitor_every=100)
    for weights in ("rows", "clients"):
        config = Varied(**settings, codec="dithering", weights=weights)
        block = block_of(mixed)
        ran = run(config, block, facts(block, start=start), clients_per_leaf=3)
        exact = Varied(**{**settings, "algorithm": "em", "weights": weights})
        theta = run(exact, block_of(parts), facts(block, start=start)).state.parameters()
        assert ran.state.clients == 20 and set(ran.column("active_clients")) == {20.0}
        assert not ran.memory["V"][::2].any()
        assert largest_difference(ran.state.parameters(), theta) < 1e-3


# --- costs ----------------------------------------------------------------------------------------------------------


def test_costs_worked_by_hand(known):
    """100 clients of 100 rows, q = 6, P = 2 + 4. Down: 64 + 64 * 12 bits. Identity up: 384 bits."""
    ran = known_run(known, codec=1, rounds=3)
    assert set(ran.column("bits_down")) == {83200.0} and ran.state.bits_down == 4 * 83200
    assert np.all(ran.column("bits_up") < 100 * (1 + 32 + 1 + 6 + 3 * 6))
    assert ran.state.bits_up == 100 * 384 + ran.column("bits_up").sum()
    assert ran.state.expectations == 40_000 and ran.column("epochs").tolist() == [2, 3, 4]
    exact = known_run(known, algorithm="em", rounds=3)
    assert set(exact.column("bits_up")) == {38400.0} and exact.state.expectations == 30_000
    batches = known_run(known, codec="dithering", rounds=3, batch=7)
    assert batches.column("expectations").tolist() == [700] * 3
    trials = known_run(known, algorithm="em", rounds=3, start="random", restarts=4, trial_rounds=2)
    assert trials.state.expectations == 3 * 10_000 + 8 * 10_000


# --- the domain -----------------------------------------------------------------------------------------------------


def test_steps_are_halved_until_they_are_inside():
    model = GaussianMixture(2, 1, "known")
    s, field = np.array([0.5, 0.5, 0.0, 0.0]), np.array([-1.0, 1.0, 0.0, 0.0])
    assert damped_step(model, s, field, 1.0)[1:] == (0.25, 2)  # 0.5 would reach the boundary itself
    assert damped_step(model, s, field, 0.4)[1:] == (0.4, 0)
    moved, gamma, halvings = damped_step(model, s, 1e9 * field, 1.0)
    assert gamma == 0.0 and halvings == 12 and np.array_equal(moved, s)
    assert damped_step(model, s, np.full(4, np.nan), 1.0)[1] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings, often", [(dict(norms_by_part=True, gamma=1.0), False), (dict(norms_by_part=False, gamma=0.3), True)]
)
def test_cut_back_steps_keep_the_mixture_alive(settings, often):
    """4 levels; the objective ends within 0.001 of EM's, with a norm for each part even at gamma 1."""
    y, start = three_components(4000, seed=2)
    block = block_of(np.array_split(y, 40))
    common = dict(EXACT, monitor_every=50, rounds=200)
    exact = run(Varied(**common, algorithm="em"), block, facts(block, start=start))
    config = Varied(**common, codec="dithering", safeguards=False, **settings)
    ran = run(config, block, facts(block, start=start))
    assert abs(ran.state.objective - exact.state.objective) < 0.001
    assert ((ran.column("halvings") > 0).sum() > 10) == often


def test_the_naive_variant_lives_on_the_boundary():
    y, start = three_components(4000, seed=2)
    block = block_of(np.array_split(y, 40))
    common = dict(EXACT, monitor_every=50, rounds=100)
    exact = run(Varied(**common, algorithm="em"), block, facts(block, start=start))
    naive = Varied(**common, memories=False, codec=1, norms_by_part=False, gamma=1.0)
    wild = run(naive, block, facts(block, start=start))
    assert (wild.column("halvings") > 0).sum() > 50
    assert np.all(np.isfinite(wild.state.theta)) and wild.state.objective > exact.state.objective + 0.01


@pytest.mark.slow
def test_an_automatic_step_is_halved_for_good_where_it_is_often_cut_back():
    y, start = three_components(2000)
    block = block_of(np.array_split(y, 40))
    settings = dict(EXACT, memories=False, codec=1, norms_by_part=False, rounds=100)
    ran = run(Varied(**settings), block, facts(block, start=start))
    assert ran.state.gamma < 0.5 * ran.states[1].gamma
    given = run(Varied(**settings, gamma=0.9), block, facts(block, start=start))
    assert given.state.gamma == 0.9


def test_decreasing_steps(known):
    gammas = known_run(known, algorithm="em", gamma=0.8, gamma_decay=10, rounds=5).column("gamma")
    np.testing.assert_allclose(gammas, 0.8 / (1 + np.arange(5) / 10))


def test_the_practical_step():
    step = Varied(codec="dithering").step
    assert step(0.0, 10) == 1.0
    assert Varied(gamma=0.2).step(1.0, 10) == 0.2
    assert step(3.0, 4.0) == pytest.approx(0.5 * 2 / (4 * np.sqrt(3)))
    # omega_p = 3 + 4 * 3 = 15 at p = 1/4
    assert Varied(codec="dithering", participation=0.25).step(3.0, 4.0) == pytest.approx(0.125 * 2 / (4 * np.sqrt(15)))
    assert Varied(codec="dithering", batch=5).step(0.0, 10) == 0.3
    natural = Varied().step
    assert natural(0.0, 1.0) == Varied(participation=0.25).step(0.0, 1.0) == 1.5
    assert Varied(batch=5).step(0.0, 10) == 0.3
    assert Varied(algorithm="vr-fedem").step(0.0, 10) == 0.5


# --- starts, ends ---------------------------------------------------------------------------------------------------


def test_the_run_ends_when_the_objective_stops_falling(known):
    ran = known_run(known, algorithm="em", rounds=500, monitor_every=10, tol=1e-7)
    assert 20 < ran.state.round < 100 and ran.state.phase == "done"
    assert ran.state.round % 10 == 1 and abs(ran.state.objective - known[2]) < 1e-5
    last = ran.column("objective")
    assert last[-3] - last[-2] < 1e-6 <= last[-4] - last[-3]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["random", "kmeans++"])
def test_starts_are_rows_and_do_not_depend_on_the_cut(start):
    y, _ = three_components(600)
    block = block_of(np.array_split(y, 37))
    config = Varied(algorithm="em", components=5, start=start, restarts=3, standardise=False, rounds=1)
    one = run(config, block, facts(block, seed=4), clients_per_leaf=64)
    other = run(config, block, facts(block, seed=4), clients_per_leaf=5)
    for mine, same in zip(one.states[:7], other.states, strict=False):
        assert np.array_equal(mine.picked, same.picked)
    picked = one.states[6].picked
    assert picked.shape == (3, 5, 4) and all((y == row).all(axis=1).any() for row in picked.reshape(-1, 4))
    assert len(np.unique(picked.reshape(-1, 4), axis=0)) > 9, "different starts"
    elsewhere = run(config, block, facts(block, seed=5))
    assert not np.array_equal(elsewhere.states[6].picked, picked)


def test_the_best_start_goes_on():
    y, _ = three_components(1500)
    block = block_of(np.array_split(y, 30))
    config = Varied(algorithm="em", start="random", restarts=6, trial_rounds=5, rounds=1)
    ran = run(config, block, facts(block))
    looks = [info.scalars for info in ran.infos if "spread_of_starts" in info.scalars]
    assert len(looks) == 5 and looks[-1]["spread_of_starts"] > 0
    assert ran.column("objective")[5] <= looks[-1]["objective"] + 1e-12, "the first round begins where the best ended"


def test_fewer_rows_than_components():
    block = block_of([np.array([[0.0, 1.0]] * 5), np.array([[2.0, 1.0]])])
    with pytest.raises(PopulationError, match="fewer than 3 different rows"):
        run(Varied(components=3, start="random"), block, facts(block))
    nobody = block_of([np.zeros((0, 2))] * 3)
    with pytest.raises(PopulationError, match="any rows"):
        run(Varied(), nobody, facts(nobody))


def test_rows_that_the_model_cannot_read():
    block = block_of([np.array([[0.0, np.inf]])])
    with pytest.raises(PopulationError, match="infinite"):
        run(Varied(), block, facts(block))
    huge = block_of([np.array([[1e200, 0.0], [0.0, 1.0], [5.0, 1.0], [1.0, 1.0]])])
    with pytest.raises(PopulationError, match="column 0 are too large"):
        run(Varied(standardise=False, components=2, codec="dithering"), huge, facts(huge))
    large = block_of([np.array([[1e30, 0.0], [0.0, 1.0], [5.0, 1.0], [1.0, 1.0]])])
    with pytest.raises(WorkerFailed, match="message of client 0"):  # squares of 1e30 do not fit into float32
        settings = dict(codec="dithering", standardise=False, components=2)
        run(Varied(**settings), large, facts(large))


@pytest.mark.slow
def test_standardised_rows_give_the_same_model():
    """Columns of very different scales; parameters are in standardised units, the state says which."""
    y, _ = three_components(1500)
    shift, scale = np.array([100.0, -5.0, 0.0, 3.0]), np.array([1e3, 1.0, 1e-3, 10.0])
    block, other = (block_of(np.array_split(rows, 30)) for rows in (y, y * scale + shift))
    config = Varied(algorithm="em", rounds=20)
    one, two = run(config, block, facts(block)), run(config, other, facts(other))
    np.testing.assert_allclose(two.state.scale, one.state.scale * scale, rtol=1e-6)
    np.testing.assert_allclose(two.state.parameters()["means"], one.state.parameters()["means"], atol=1e-6)
    near, far = FederatedEM(config).parameters(one.state), FederatedEM(config).parameters(two.state)
    np.testing.assert_allclose(far["means"], near["means"] * scale + shift, rtol=1e-5)
    np.testing.assert_allclose(far["covariances"], near["covariances"] * np.outer(scale, scale), rtol=1e-5)


# --- the same bits --------------------------------------------------------------------------------------------------


def digest(ran) -> str:
    arrays = [ran.state.statistic, ran.state.theta, ran.state.memory, *(ran.memory or {}).values()]
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        dict(codec="dithering", participation=0.75),
        dict(codec="natural", participation=0.75),
        dict(codec="dithering", participation=0.5, batch=7),
        dict(algorithm="vr-fedem", batch=5, inner_rounds=4),
        dict(memories=False),
        dict(algorithm="em"),
    ],
)
def test_bits_do_not_depend_on_blocks_order_or_repetition(settings):
    """Leaves of 8 clients in blocks of any size, answered in any order, some of them twice: one hash."""
    y, _ = three_components(1200)
    sizes = np.random.default_rng(5).integers(0, 30, 90)
    block = block_of(np.array_split(y[: sizes.sum()], np.cumsum(sizes)[:-1]))
    config = Varied(**{"rounds": 12, "start": "random", **settings})
    generator = np.random.default_rng(6)
    orders = [None, lambda count: range(count - 1, -1, -1), lambda count: generator.permutation(count)]
    digests = {digest(run(config, block, facts(block, seed=2), clients_per_leaf=8, order=order)) for order in orders}
    assert len(digests) == 1
    assert digest(run(config, block, facts(block, seed=3), clients_per_leaf=8)) not in digests
