"""Rounds in natural units: what the server knows of clients, what it costs, and where it ends."""

import numpy as np
import pytest

from fedcore.errors import RunError
from fedcore.methods.federated_em import FederatedEM, models
from fedcore.methods.federated_em.differences import CODEC
from fedcore.methods.federated_em.resolution import COMPONENT_ERROR, component_step, first_resolution, next_resolution
from fedcore.randomness import client_dither, client_uniforms
from fedcore.rounds.statistics import values
from tests.federated_em.direct_em import three_components
from tests.federated_em.run_in_memory import answer, block_of, facts, run
from tests.federated_em.varied import Varied

GIVEN = dict(components=3, start="given", standardise=False, monitor_every=1)


@pytest.fixture(scope="module")
def sorted_clients():
    """40 clients of 0 to 100 rows, sorted by component, and a start."""
    y, start = three_components(1200)
    cuts = np.sort(np.random.default_rng(0).choice(1200, 38, replace=False))
    return block_of([y[:0], *np.split(y, cuts)]), start


def passes(config, block, start, seed=3):
    """(state before, message, statistics, memory after, state after) of every pass."""
    method, memory = FederatedEM(config), None
    state = method.init(facts(block, start=start, seed=seed))
    while (message := method.message(state)) is not None:
        statistics, memory = answer(method, message, block, 16, memory)
        before, (state, _) = state, method.server_update(state, values(statistics))
        yield before, message, values(statistics), memory, state


@pytest.mark.parametrize("weights", ["rows", "clients"])
def test_the_server_knows_of_each_client_what_it_sent_last(sorted_clients, weights):
    """Absent clients keep their memory; H is the mean over those who were heard; who has no rows is never heard.
    All clients answer until a step gains little."""
    block, start = sorted_clients
    config = Varied(**GIVEN, participation=0.3, weights=weights, rounds=12, gamma=0.5)
    sizes, before = np.diff(block.ptr), None
    w = sizes / sizes.sum() if weights == "rows" else (sizes > 0) / np.count_nonzero(sizes)
    for state, message, _, memory, after in passes(config, block, start):
        if state.phase != "rounds":
            continue
        assert message.threshold == (0.3 if state.settled else 1.0)
        taking = client_uniforms(3, "federated_em/participation", message.number, 0, len(sizes))[:, 0]
        taking = (taking <= message.threshold) & (sizes > 0)
        v, heard = memory["V"], memory["heard"]
        known = np.zeros(len(sizes), bool) if before is None else before["heard"]
        assert np.array_equal(heard, known | taking) and not heard[sizes == 0].any() and not v[~heard].any()
        if before is not None:
            assert np.array_equal(v[~taking], before["V"][~taking])
        assert message.everything == (not known.any()) and len(message.s) == 0
        np.testing.assert_allclose(after.heard, w[heard].sum())
        np.testing.assert_allclose(after.memory, w @ v, atol=1e-12)
        field = w @ v / w[heard].sum() - state.statistic
        moved = state.statistic + 0.5 * field
        if after.shortened == state.shortened:
            np.testing.assert_allclose(after.statistic, moved / moved[:3].sum(), atol=1e-12)
        before = memory
    assert after.settled and after.shortened < 3 and 0.9 < after.heard < 1 + 1e-12


def test_first_messages_say_how_a_client_differs_from_the_model(sorted_clients):
    block, start = sorted_clients
    config = Varied(**GIVEN, rounds=1)
    state, message, _, memory, _ = next(step for step in passes(config, block, start) if step[0].phase == "rounds")
    model, sizes = models.model_of(config, state.scaling()), np.diff(block.ptr)
    own = model.e_mean(message.theta, block.x, block.ptr)
    error = models.units_of(model, message.theta, message.s).forward((memory["V"] - own)[sizes > 0])
    assert np.abs(error).max() <= message.resolution / 2 * (1 + 1e-9) and message.everything


def test_bits_are_those_of_the_messages(sorted_clients):
    """Every client's message is written and read again; the server's are counted by hand."""
    block, start = sorted_clients
    config = Varied(**GIVEN, rounds=3)
    known = None
    for state, message, result, memory, after in passes(config, block, start):
        if state.phase != "rounds":
            continue
        model = models.model_of(config, state.scaling())
        steps = message.resolution, message.everything, message.component_step
        codec = models.codec_of(config, model, message.theta, message.s, *steps)
        own = model.e_mean(message.theta, block.x, block.ptr)
        u = client_dither(3, CODEC, message.number, 0, block.clients, codec.draws)
        base = np.tile(model.statistic_of(message.theta), (block.clients, 1)) if known is None else known
        length = 0
        for i in np.flatnonzero(np.diff(block.ptr)):
            text, bits = codec.to_bits(own[i] - base[i], u[i])
            length += bits
            assert len(text) * 8 == bits
            np.testing.assert_array_equal(base[i] + codec.from_bits(text, u[i]), memory["V"][i])
        assert result["costs"][2] == length == after.bits_up - state.bits_up
        parameters = 3 + 3 * 4 + 3 * 16
        assert after.bits_down - state.bits_down == result["costs"][0] * 64 * (1 + 2 + parameters)
        known = memory["V"]


@pytest.mark.slow
def test_lost_memories_are_noticed(sorted_clients):
    block, start = sorted_clients
    config = Varied(**GIVEN, rounds=60, participation=0.5)
    method, memory = FederatedEM(config), None
    state = method.init(facts(block, start=start))
    while state.round < 49:
        statistics, memory = answer(method, method.message(state), block, 16, memory)
        state, _ = method.server_update(state, values(statistics))
    message = method.message(state)
    assert method.server_update(state, values(answer(method, message, block, 16, memory)[0]))[0].round == 50
    lost = memory | {"V": memory["V"].copy()}
    lost["V"][7] = 0.0
    with pytest.raises(RunError, match="memories add up"):
        method.server_update(state, values(answer(method, message, block, 16, lost)[0]))


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("known", "diag", "spherical")]


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["full", "tied", *SLOW])
def test_it_ends_where_em_does(covariance, sorted_clients):
    block, _ = sorted_clients
    common = dict(components=3, covariance=covariance, rounds=60, monitor_every=20, regularisation=0.01, restarts=1)
    exact = run(Varied(**common, algorithm="em"), block, facts(block, seed=1))
    config = Varied(**common)
    ran = run(config, block, facts(block, seed=1))
    assert config.codec_name == "natural"
    assert ran.state.objective < exact.state.objective + 0.005
    before = next(state.bits_up for state in ran.states if state.phase == "rounds")
    assert 20 * (ran.state.bits_up - before) < exact.state.bits_up


@pytest.mark.slow
@pytest.mark.parametrize("settings", [dict(batch=5), dict(algorithm="vr-fedem"), dict(participation=0.1)])
def test_with_batches_and_few_clients_it_falls(settings, sorted_clients):
    block, _ = sorted_clients
    ran = run(Varied(rounds=40, monitor_every=5, regularisation=0.01, restarts=1, **settings), block, facts(block))
    objective = ran.column("objective")
    assert objective[-1] < objective[0] - 0.1 and np.isfinite(ran.state.theta).all()


@pytest.mark.parametrize("clients, covariance", [(1, "full"), (2, "tied"), (3, "diag")])
def test_one_client_or_a_few(clients, covariance):
    """A first step of D = 1 would cost nats."""
    y, _ = three_components(600)
    block = block_of(np.array_split(y, clients))
    ran = run(Varied(covariance=covariance, rounds=30, monitor_every=1), block, facts(block))
    objective = ran.column("objective")
    assert objective[-1] <= objective[0] + 0.01 and np.diff(objective[1:]).max() < 0.05


def test_components_without_rows_and_rows_without_spread():
    """More components than distinct places, no penalty to speak of: singular covariances are floored, not met."""
    y = np.repeat(np.array([[0.0, 0.0], [5.0, 1.0], [9.0, 2.0], [1.0, 7.0]]), 25, axis=0)
    y += 1e-9 * np.random.default_rng(0).normal(size=y.shape)
    block = block_of(np.array_split(y, 10))
    for covariance in ("full", "tied", "diag", "spherical"):
        config = Varied(components=4, covariance=covariance, regularisation=1e-9, rounds=15)
        ran = run(config, block, facts(block))
        assert np.isfinite(ran.state.theta).all() and np.isfinite(ran.state.objective)


def test_nobody_answers_at_first(sorted_clients):
    """Rounds of batches without any client change nothing, and the first who come send everything."""
    block, start = sorted_clients
    config = Varied(**GIVEN, participation=0.002, batch=1000, rounds=30)
    silent = 0
    for state, message, _, _, after in passes(config, block, start, seed=0):
        if state.phase == "rounds" and not after.heard:
            silent += 1
            assert np.array_equal(after.statistic, state.statistic) and after.resolution == state.resolution
            assert message.everything
    assert 0 < silent


def test_steps_of_the_codec_by_hand():
    """n messages of q numbers cost q D^2 / (24 n) nats: a quarter of a nat at most in a first round."""
    assert first_resolution(420, 100.0) == 1.0
    assert first_resolution(2310, 100.0) == pytest.approx(np.sqrt(6 * 100 / 2310))
    for p in (1.0, 0.5):
        assert next_resolution(Varied(), 0.5, 9, 9.0, p) == pytest.approx(0.3 * np.sqrt(12 * 9 * p / 9) * 0.5)
        assert next_resolution(Varied(batch=5), 0.5, 9, 9.0, p) == pytest.approx(0.25 * np.sqrt(12 * 9 * p / 9) * 0.5)
    assert next_resolution(Varied(), 0.0, 9, 9.0, 1.0) == 0.003
    assert component_step(4, 100.0) == pytest.approx(COMPONENT_ERROR * np.sqrt(12 * 100 / 16))


def test_a_small_component_has_a_finer_step(sorted_clients):
    """Of a component of a hundredth of the rows a tenth of that of a component of all rows; by hand."""
    theta = {"weights": np.array([0.01, 0.99]), "means": np.zeros((2, 1)), "covariances": np.ones((2, 1))}
    config = Varied(components=2, covariance="diag")
    model = models.model_of(config, models.Scaling(*(np.ones(1),) * 5))
    codec = models.codec_of(config, model, theta, np.zeros(0), 0.5, True, 0.3)
    large = min(0.5, 0.3 * np.sqrt(0.99))
    np.testing.assert_allclose(codec.steps, [0.03, large] * 3)
    assert set(models.codec_of(config, model, theta, np.zeros(0), 0.5, True).steps) == {0.5}


def test_steps_beyond_em_come_when_steps_gain_little(sorted_clients):
    """gamma is 1 until |A H|^2 / 2 falls below the limit, and 1.5 after that unless a variance would be halved."""
    block, start = sorted_clients
    config, rounds = Varied(**GIVEN, rounds=30), []
    for state, message, _, _, after in passes(config, block, start):
        if state.phase != "rounds":
            continue
        model = models.model_of(config, state.scaling())
        field = after.memory / after.heard - state.statistic
        z = models.units_of(model, message.theta, message.s).forward(field[None])
        assert after.settled == (state.settled or float(np.sum(z**2)) / 2 < 0.05)
        beyond = model.maximise(state.statistic + 1.5 * field)
        far = after.settled and model.least_ratio(message.theta, beyond) >= 0.5
        moved = state.statistic + (1.5 if far else 1.0) * field
        if after.shortened == state.shortened:
            np.testing.assert_allclose(after.statistic, moved / moved[:3].sum(), atol=1e-12)
            rounds.append(far)
    assert not rounds[0] and rounds[-1] and len(rounds) > 27


@pytest.mark.parametrize(
    "settings, why",
    [
        (dict(model="gaussian_imputer", codec="natural"), "of mixtures"),
        (dict(memories=False, codec="natural"), "need memories"),
    ],
)
def test_settings_that_contradict_it(settings, why):
    with pytest.raises(ValueError, match=why):
        Varied(**settings)


def rare_words(model: str, seed: int = 0) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """60 clients with 20 rows each, of mostly one kind, over 300 words of which most are met in less than one row of a
    hundred; and a start."""
    rng = np.random.default_rng(seed)
    means = np.arange(1, 301) ** -1.5 * np.exp(rng.normal(0, 1, (3, 300)))
    means *= 8.0 / means.sum(axis=1, keepdims=True)
    if model == "bernoulli":
        means = np.minimum(means, 0.9)
    y = rng.poisson(means[np.repeat(np.arange(3), 400)]).astype(float)
    if model == "bernoulli":
        y = np.minimum(y, 1.0)
    blurred = 0.5 * means + 0.5 * means.mean(axis=0)
    name = "rates" if model == "poisson" else "probabilities"
    if model == "multinomial":
        blurred /= blurred.sum(axis=1, keepdims=True)
    return np.split(y, 60), {"weights": np.full(3, 1 / 3), name: blurred}


@pytest.mark.parametrize("model", ["poisson", "multinomial", "bernoulli"])
def test_with_rare_words_it_ends_where_em_ends(model):
    """The errors of messages are larger than most of the counts; no step is cut back for it."""
    rows, start = rare_words(model)
    block = block_of(rows)
    common = dict(model=model, components=3, start="given", rounds=30, monitor_every=30)
    public = facts(block, start=start)
    exact = run(Varied(**common, algorithm="em", restarts=1), block, public)
    ours = run(Varied(**common), block, public)
    assert abs(ours.state.objective - exact.state.objective) < 0.02
    assert ours.state.shortened == 0 and ours.column("halvings").sum() == 0
    assert ours.column("bits_up").sum() < exact.column("bits_up").sum() / 10


@pytest.mark.slow
def test_regressions_end_where_em_ends_and_the_server_sends_s():
    """Inputs of very different sizes, with means far from 0 in some components: units follow from S."""
    rng = np.random.default_rng(2)
    of = np.repeat(np.arange(3), 400)
    u = (
        rng.normal(size=(1200, 4)) * np.array([1.0, 0.1, 2.0, 1.0])
        + np.array([[0, 0, 0, 0], [3, 0, 0, 0], [0, 1, 0, 0]])[of]
    )
    b = rng.normal(size=(3, 4))
    y = np.column_stack([u, (u * b[of]).sum(axis=1) + 0.3 * rng.normal(size=1200)])
    start = {
        "weights": np.full(3, 1 / 3),
        "coefficients": np.column_stack([b + 0.2, np.zeros(3)]),
        "variances": np.ones(3),
    }
    block = block_of(np.array_split(y, 40))
    common = dict(model="regression", components=3, start="given", standardise=False, rounds=40, monitor_every=40)
    exact = run(Varied(**common, algorithm="em", restarts=1), block, facts(block, start=start))
    config = Varied(**common)
    steps = list(passes(config, block, start))
    messages = [message for state, message, *_ in steps if state.phase == "rounds"]
    q, last = 3 * (1 + 15 + 5 + 1), steps[-1][-1]
    assert all(len(message.s) == q for message in messages)
    assert last.bits_down == pytest.approx(
        40 * 40 * 64 * (1 + 2 + q + 3 + 3 * 5 + 3) + 40 * 64
    )  # and a header for the moments
    assert abs(last.objective - exact.state.objective) < 0.005
    assert last.bits_up < exact.state.bits_up / 10


def test_what_it_is_the_default_of():
    names = {algorithm: Varied(algorithm=algorithm).codec_name for algorithm in ("fedem", "vr-fedem", "em", "private")}
    assert names == {"fedem": "natural", "vr-fedem": "natural", "em": "identity", "private": "identity"}
    for mixture in ("regression", "poisson", "multinomial", "bernoulli"):
        assert Varied(model=mixture).codec_name == "natural", mixture
    imputer = dict(model="gaussian_imputer")
    for other in (imputer, dict(codec=8), dict(memories=False)):
        assert Varied(**other).codec_name == "dithering", other
