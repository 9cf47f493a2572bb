"""VR-FedEM against a direct SPIDER-EM, and how many passes over the rows it needs."""

import numpy as np
import pytest

from fedcore.methods.federated_em import FederatedEM
from fedcore.methods.federated_em.start import batch_sizes
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.randomness import client_uniforms
from fedcore.rounds.statistics import values
from tests.federated_em.direct_em import two_components
from tests.federated_em.run_in_memory import answer, block_of, facts, run
from tests.federated_em.varied import Varied

KNOWN = dict(model="gaussian", covariance="known", components=2, start="given", norms_by_part=False, monitor_every=1)


@pytest.mark.slow
def test_one_client_without_a_codec_is_spider_em():
    """S <- S + gamma (estimate - S), the estimate corrected by one batch at S_k and S_{k-1}, renewed every k_in."""
    y, start = two_components(3000)
    block, b, k_in, gamma = block_of([y]), 40, 15, 0.3
    config = Varied(**KNOWN, algorithm="vr-fedem", codec="identity", batch=b, inner_rounds=k_in, gamma=gamma, rounds=70)
    ran = run(config, block, facts(block, start=start, seed=8))
    assert set(ran.memory) == {"S"}, "without a codec V plays no part"
    model = GaussianMixture(2, 2, "known")
    s = before = model.statistic_of(start)
    ours = {state.round: state.statistic for state in ran.states if state.phase in ("rounds", "last")}
    for number in range(1, 71):
        if (number - 1) % k_in == 0:
            estimate = model.e_total(model.maximise(s), y) / len(y)
        else:
            rows = (client_uniforms(8, "federated_em/batch", number, 0, 1, b)[0] * len(y)).astype(int)
            now, then = (model.e_total(model.maximise(at), y[rows]) / b for at in (s, before))
            estimate = estimate + now - then
        s, before = s + gamma * (estimate - s), s
        assert np.abs(ours[number] - s).max() <= 1e-12


def epochs_to(ran, bound: float) -> float:
    """Passes over the rows until the running median of 5 exact fields is below the bound; inf if never."""
    field, epochs = ran.column("mean_field_norm"), ran.column("epochs")
    median = np.array([np.median(field[max(0, at - 2) : at + 3]) for at in range(len(field))])
    reached = np.flatnonzero(median <= bound)
    return float(epochs[reached[0]]) if len(reached) else np.inf


@pytest.fixture(scope="module")
def clients():
    y, start = two_components()
    block = block_of(np.array_split(y, 20))

    def trained(**settings):
        codec = {} if settings["algorithm"] == "em" else {"codec": 2}
        return run(Varied(**KNOWN, **codec, **settings), block, facts(block, start=start))

    return trained


@pytest.mark.slow
def test_batches_alone_get_stuck_where_variance_reduction_goes_on(clients):
    reduced = clients(algorithm="vr-fedem", batch=20, inner_rounds=25, gamma=0.6, rounds=100)
    batches = clients(algorithm="fedem", batch=20, gamma=0.1, rounds=100)
    assert np.median(reduced.column("mean_field_norm")[-5:]) < 1e-2 * np.median(batches.column("mean_field_norm")[-20:])


@pytest.mark.heavy
def test_it_needs_fewer_passes_than_em_and_batches_alone_never_arrive(clients):
    """The specification's thresholds: 1e-8 within 25 passes, where EM needs more than 50."""
    reduced = clients(algorithm="vr-fedem", batch=20, inner_rounds=25, gamma=0.6, rounds=250)
    assert epochs_to(reduced, 1e-8) < 25
    exact = clients(algorithm="em", rounds=80)
    assert 50 < epochs_to(exact, 1e-8) < 80
    batches = clients(algorithm="fedem", batch=20, gamma=0.1, rounds=500)
    assert np.median(batches.column("mean_field_norm")[-100:]) > 1e-6 and epochs_to(batches, 1e-8) == np.inf
    decreasing = clients(algorithm="fedem", batch=20, gamma=0.5, gamma_decay=50, rounds=500)
    assert 1e-8 < np.median(decreasing.column("mean_field_norm")[-100:]) < 1e-3


def test_costs_of_an_outer_round(clients):
    """10 000 rows for the full pass, then 2 * 20 rows of each of 20 clients; one more pass for the first memories."""
    ran = clients(algorithm="vr-fedem", batch=20, inner_rounds=4, rounds=9)
    assert ran.column("expectations").tolist() == [10_000, 800, 800, 800, 10_000, 800, 800, 800, 10_000]
    assert ran.state.expectations == 4 * 10_000 + 6 * 800


def test_the_estimate_starts_anew_and_the_memories_go_on(clients):
    y, start = two_components(2000)
    block = block_of(np.array_split(y, 20))
    config = Varied(**KNOWN, algorithm="vr-fedem", codec="dithering", batch=9, inner_rounds=5, rounds=12)
    method, memory = FederatedEM(config), None
    state = method.init(facts(block, start=start))
    model = GaussianMixture(2, 2, "known")
    while (message := method.message(state)) is not None:
        statistics, memory = answer(method, message, block, 7, memory)
        if state.phase == "rounds":
            fresh = model.e_mean(state.parameters(), y, block.ptr)
            off = np.abs(memory["S"] - fresh).max()
            if state.round % 5 == 0:
                assert message.oracle == "full" and message.previous is None and off < 1e-14
            else:
                assert message.oracle == "recursive" and 1e-6 < off < 0.5
        state, _ = method.server_update(state, values(statistics))
        if memory is not None:
            assert np.abs(memory["V"].mean(axis=0) - state.memory).max() < 1e-14
            assert state.phase == "memory" or memory["V"].any()


def test_sizes_of_batches():
    """A twentieth of the rows, at least 32, no more than there are; as many rounds as batches in a pass, 2 to 8."""
    settings = dict(algorithm="vr-fedem")
    assert batch_sizes(Varied(**settings), 5000) == (250, 8)
    assert batch_sizes(Varied(**settings), 200) == (32, 7)
    assert batch_sizes(Varied(**settings), 20.5) == (21, 2)
    assert batch_sizes(Varied(**settings, inner_rounds=30), 5000) == (250, 30)
    assert batch_sizes(Varied(**settings, batch=7), 30) == (7, 5)
    assert batch_sizes(Varied(**settings, batch=7, inner_rounds=3), 5000) == (7, 3)
    assert batch_sizes(Varied(**settings), 1.0) == (1, 2)
    assert batch_sizes(Varied(batch=7), 5000) == (7, 0)
