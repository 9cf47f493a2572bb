"""Several starts of FedEM, side by side in rounds of their own: each is what it is alone, and the best one goes on."""

import dataclasses

import numpy as np
import pytest

from fedcore.methods.federated_em import FederatedEM, coded_starts, models, seeding
from fedcore.methods.federated_em.resolution import COMPONENT_ERROR
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


# --- passes before the rounds -----------------------------------------------------------------------------------------


def test_passes_before_the_rounds_are_counted(block):
    """13 of 14 clients have rows, of 4 columns; 3 starts of 3 components. Moments and 3 sizes, scores and the
    rows of those who win, coded sums of clusters."""
    config, counted = Varied(**SETTINGS), {"moments": [], "pick": [], "clusters": []}
    for state, _, result, _, after in passes(config, block):
        if state.phase in counted:
            counted[state.phase].append(after.bits_up - state.bits_up)
            if state.phase == "clusters":
                assert counted["clusters"][-1] == result["costs"][0]
    assert counted["moments"] == [64 * 13 * (3 + 3 * 4)]
    assert counted["pick"] == [64 * (13 * 3 + 3 * 4)] * 3
    assert all(0 < bits < 13 * 3 * 3 * 9 * 64 / 8 for bits in counted["clusters"]) and len(counted["clusters"]) == 3


@pytest.mark.parametrize("weights", ["rows", "clients"])
def test_coded_clusters_are_near_the_exact_ones(block, weights):
    """Of each number the error has the standard deviation of its step, in units of the pooled variances."""
    config = Varied(**SETTINGS, weights=weights)
    for state, message, result, _, _ in passes(config, block):
        if state.phase != "clusters":
            continue
        exact = values(seeding.sum_clusters(config, dataclasses.replace(message, component_step=0.0), block))[
            "clusters"
        ]
        found = result["clusters"] * state.rows
        rows, deviations = state.rows, np.sqrt(np.tile(state.variance, 3))
        step = min(1.0, message.component_step / np.sqrt(3))
        largest = step * np.sqrt(1 / 3) * np.sqrt((np.diff(block.ptr) ** 2).sum()) * np.sqrt(1 / 12)
        assert np.abs(found - exact)[..., 0].max() < 5 * largest
        assert (np.abs(found - exact)[..., 1:5] / deviations[:4]).max() < 5 * largest
        assert (np.abs(found - exact)[..., 5:] / deviations[:4] ** 2).max() < 5 * largest * np.sqrt(3)
        assert np.abs(found - exact).max() > 0 and rows == 600


def test_sums_with_errors_by_hand():
    """100 rows, 2 clusters: one with a count that errors leave, one with a variance below that of errors."""
    sums = np.array([[[0.01, 0.3, 9.0], [0.99, 0.99, 0.98]]])
    found = seeding.decoded_sums(sums, 100.0, np.array([2.0]))
    np.testing.assert_allclose(found, [[[0, 0, 0], [99.0, 99.0, 99.0 + COMPONENT_ERROR * 2.0 * 99.0]]])


def test_rows_with_gaps_send_sums_as_they_are(block):
    y = block.x.copy()
    y[3, 1] = np.nan
    config = Varied(**SETTINGS)
    steps = passes(config, dataclasses.replace(block, x=y))
    messages = [message for state, message, *_ in steps if state.phase == "clusters"]
    assert len(messages) == 3 and not any(message.component_step for message in messages)
