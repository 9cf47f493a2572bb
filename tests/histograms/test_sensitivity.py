"""The sensitivity of every release of the private pipeline, for both relations, in exact integers."""

import math

import numpy as np
import pytest

from fedcore.errors import ConfigError
from fedcore.methods.histograms import Histograms, sensitivities
from fedcore.methods.histograms.clients import assign, assign_in_float32
from fedcore.methods.histograms.simplex import assignment_logs
from fedcore.methods.histograms.state import ReleaseMessage
from fedcore.privacy.grid import GRID_NORM
from fedcore.rounds.statistics import IntegerSum
from tests.histograms.example_clients import (
    EVERYTHING,
    RELATIONS,
    SMALL,
    D,
    block_of,
    public,
    random_counts,
    squared_change,
)
from tests.histograms.run_in_memory import answer, rounded_normal

NEWCOMERS = [np.zeros(D, int), np.eye(D, dtype=int)[8], np.eye(D, dtype=int)[0] * 2**40, np.eye(D, dtype=int)[1] * 3]


def messages_of(config, start, relation, block, seed=0) -> list[tuple[ReleaseMessage, dict]]:
    """Every message of a noised run, with the sensitivities of its releases by name."""
    method, met, known = Histograms(config), [], public(relation, start)
    noise, state = rounded_normal(np.random.default_rng(seed)), method.init(known)
    plan = {release.name: release for release in method.plan(known)}
    while (message := method.message(state)) is not None:
        grid = method.release_values(message, answer(method, message, block, 1024))
        met.append((message, {name: plan[name].sensitivity for name in grid}))
        state, _ = method.server_update(state, {name: noise(plan[name], value) for name, value in grid.items()})
    assert sorted(name for _, released in met for name in released) == sorted(plan)
    return met


def released(message, counts) -> dict[str, np.ndarray]:
    return {name: s.value() for name, s in answer(Histograms(), message, block_of(counts), 4).items()}


def test_bounds_are_whole_numbers_above_the_true_ones():
    """In integers: S**2 against 2**32 and twice as much."""
    for relation, square in zip(RELATIONS, (2**32, 2**33), strict=True):
        value = sensitivities.clipped_sum(relation)
        assert type(value) is int and value**2 >= square
        assert (value - 1) ** 2 < square, "no larger than it must be"
    with pytest.raises(ConfigError, match="relation"):
        sensitivities.clipped_sum("replace_two")
    assert sensitivities.sensitivity_factor("add_or_remove_one") == 1.0
    assert 1.0 < sensitivities.sensitivity_factor("replace_one") / math.sqrt(2) < 1.0001


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("case", EVERYTHING)
def test_no_client_changes_a_release_by_more_than_its_sensitivity(case, relation):
    """With the message fixed: adding any client, or replacing one by any other, in exact integers."""
    config, start = EVERYTHING[case]
    generator = np.random.default_rng(1)
    counts = random_counts(generator, 14, D)
    newcomers = [*NEWCOMERS, *random_counts(generator, 5, D)]
    reached = {}
    for message, bounds in messages_of(config, start, relation, block_of(counts)):
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


@pytest.mark.parametrize("seed", range(4))
def test_one_client_changes_no_release_by_more_than_the_planned_sensitivity(seed):
    """With the message fixed, adding any client (empty, one-token, usual, huge) moves the array by at most 2**16."""
    generator = np.random.default_rng(seed)
    counts = random_counts(generator, 25, 9)
    one = np.eye(9, dtype=int)
    newcomers = [0 * one[0], one[8], one[0] * 2**40, *random_counts(generator, 8, 9)]
    method, reached = Histograms(SMALL), 0
    for message, _ in messages_of(SMALL, None, "add_or_remove_one", block_of(counts), seed):
        without = method.release_values(message, answer(method, message, block_of(counts), 4))[message.release]
        for newcomer in newcomers:
            place = generator.integers(0, 26)
            joined = block_of(np.insert(counts, place, newcomer, axis=0))
            with_one = method.release_values(message, answer(method, message, joined, 4))[message.release]
            change = squared_change(with_one, without)
            assert change <= GRID_NORM**2
            assert np.sum((with_one != without).any(axis=1)) <= 1, "a client is in one cell"
            assert (change == 0) == (not newcomer.any())
            reached = max(reached, change)
    assert reached > 0.999 * GRID_NORM**2, "the bound is tight, so a smaller declared sensitivity would be wrong"


@pytest.mark.parametrize("case", EVERYTHING)
def test_a_release_is_the_sum_of_what_clients_alone_give(case):
    """So that nobody's presence changes what another one contributes, whatever leaf or block they share."""
    config, start = EVERYTHING[case]
    counts = np.vstack([random_counts(np.random.default_rng(2), 11, D), NEWCOMERS])
    for message, bounds in messages_of(config, start, "replace_one", block_of(counts)):
        together = released(message, counts)
        alone = [released(message, row[None]) for row in counts]
        for name in bounds:
            assert np.array_equal(sum(one[name] for one in alone), together[name]), name


@pytest.mark.parametrize("case", EVERYTHING)
def test_only_planned_integer_sums_leave_a_leaf(case):
    config, start = EVERYTHING[case]
    block = block_of(random_counts(np.random.default_rng(0), 10, D))
    for message, bounds in messages_of(config, start, "add_or_remove_one", block):
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
    assert np.array_equal(assign_in_float32(small, logs), assign_in_float32(large, logs)[:-1])
    assert not np.array_equal(assign(small, logs), assign(large, logs)[:-1]), "the precaution is needed"
