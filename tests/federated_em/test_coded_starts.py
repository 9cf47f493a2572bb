"""Several starts of FedEM, side by side in rounds of their own: each is what it is alone, and the best one goes on."""

import numpy as np
import pytest

from fedcore.methods.federated_em import FederatedEM, coded_starts, models
from fedcore.rounds.statistics import values
from tests.federated_em.direct_em import three_components
from tests.federated_em.run_in_memory import answer, block_of, facts, run
from tests.federated_em.varied import Varied

SETTINGS = dict(components=3, restarts=3, trial_rounds=4, rounds=5, participation=0.6)


@pytest.fixture(scope="module")
def block():
    y, _ = three_components(600)
    return block_of([y[:0], *np.split(y, np.arange(40, 600, 50))])


def passes(config, block, per_leaf=16):
    """(state before, message, statistics, memory after, state after) of every pass."""
    method, memory = FederatedEM(config), None
    state = method.init(facts(block, seed=3))
    while (message := method.message(state)) is not None:
        statistics, memory = answer(method, message, block, per_leaf, memory)
        before, (state, _) = state, method.server_update(state, values(statistics))
        yield before, message, values(statistics), memory, state


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_each_start_answers_as_if_it_were_alone(block, covariance):
    """Its messages, memories and statistics in one pass are those of a round of it alone."""
    config = Varied(**SETTINGS, covariance=covariance)
    method, known, met = FederatedEM(config), None, 0
    for state, message, _, memory, after in passes(config, block):
        if state.phase == "starts":
            for number, own in enumerate(message.rounds):
                alone = None if known is None else coded_starts.of_start(known, number)
                found, kept = answer(method, own, block, 16, alone)
                state_of = coded_starts.apart(config, state)[number]
                np.testing.assert_array_equal(own.theta["means"], state_of.parameters()["means"])
                for name, array in kept.items():
                    np.testing.assert_array_equal(memory[f"{name}_{number}"], array)
                weights = np.diff(block.ptr) / block.ptr[-1]
                if after.phase == "starts":
                    np.testing.assert_allclose(after.start_memories[number], weights @ kept["V"], atol=1e-12)
                met += len(own.theta["weights"])
        known = memory
    assert met == 4 * 3 * 3


def test_the_best_start_goes_on_with_its_memories(block):
    config = Varied(**SETTINGS)
    steps = list(passes(config, block))
    race = [step for step in steps if step[0].phase == "starts"]
    state, message, result, memory, after = race[-1]
    assert len(race) == 4 and [one.monitor for one in message.rounds] == [True] * 3
    assert not any(one.monitor for step in race[:-1] for one in step[1].rounds)
    model = models.model_of(config, state.scaling())
    losses = [float(result[f"loss_{r}"]) + model.penalty(message.rounds[r].theta) for r in range(3)]
    best = int(np.argmin(losses))
    assert after.won == best and after.phase == "rounds" and after.round == 0 and after.heard > 0.9
    first = steps[steps.index(race[-1]) + 1]
    assert first[1].won == best and not first[1].everything and set(first[3]) == {"V", "heard"}
    answers = coded_starts.of_start(memory, best)
    silent = ~(np.abs(first[3]["V"] - answers["V"]).max(axis=1) > 0)
    assert np.array_equal(first[3]["heard"], answers["heard"]) and 0 < silent.sum() < len(silent)
    assert [step[1].won for step in steps if step[0].phase == "rounds"] == [best, -1, -1, -1, -1]
    weights = np.diff(block.ptr) / block.ptr[-1]
    np.testing.assert_allclose(steps[-1][4].memory, weights @ steps[-1][3]["V"], atol=1e-12)


def test_every_bit_is_counted_and_no_stream_is_used_twice(block):
    config = Varied(**SETTINGS)
    numbers = []
    for state, message, result, _, after in passes(config, block):
        if state.phase == "starts":
            bits = sum(result[f"costs_{r}"][2] for r in range(3))
            assert after.bits_up - state.bits_up == bits > 0
            down = sum(result[f"costs_{r}"][0] for r in range(3)) * 64 * (1 + 2 + 3 + 3 * 4 + 3 * 16)
            assert after.bits_down - state.bits_down == down
            numbers += [one.number for one in message.rounds]
        elif state.phase == "rounds":
            numbers.append(message.number)
    assert len(set(numbers)) == len(numbers) == 3 * 4 + 5


def test_the_same_bits_in_any_leaves(block):
    """Of 16 clients, and of 2: what is summed in floats differs by rounding alone, memories not at all."""
    config = Varied(**SETTINGS)
    one, other = (run(config, block, facts(block, seed=3), clients_per_leaf=each) for each in (16, 16))
    assert np.array_equal(one.state.theta, other.state.theta)
    backwards = run(config, block, facts(block, seed=3), clients_per_leaf=2, order=lambda n: range(n)[::-1])
    forwards = run(config, block, facts(block, seed=3), clients_per_leaf=2)
    assert np.array_equal(backwards.state.theta, forwards.state.theta)
    assert np.array_equal(backwards.memory["V"], forwards.memory["V"])
