"""Answers of the clients who take part in a private run, where others of their population do not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from fedcore.tasks.dask_backend import DaskBackend, dask_client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.rounds import clients as side
from fedcore.rounds.caches import BLOCKS
from fedcore.rounds.clients import Answer, Source, answer_block, within
from fedcore.rounds.engine import InProcessBackend
from fedcore.rounds.statistics import merge_all, values
from fedcore.storage.ranges import ranges_of
from tests.conformance.cases import case

PRIVATE = ["histograms/private", "histograms/private-frequency-replace-one", "federated_em/private-diag"]
PRIVATE += ["federated_em/private-imputer", "private_gmm/diag", "private_gmm/full-records", "private_gmm/two-levels"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The population of a case, or one of these clients of it alone; in a folder."""
    folder = tmp_path_factory.mktemp("participants")

    @cache
    def write(name: str, block: int | None = None, clients: tuple[int, ...] | None = None) -> Population:
        people = case(name).population
        chosen = range(len(people.clients)) if clients is None else clients
        matrix = people.matrix()
        if clients is not None:
            some = type(people)(
                people.kind, people.features, tuple(people.clients[i] for i in clients), (), people.dtype, people.leaf
            )
            matrix = some.matrix()
        options = {} if people.kind == "counts" else {"dtype": people.dtype}
        where = folder / f"{name.replace('/', '-')}-{block}-{len(list(folder.iterdir()))}"
        with PopulationWriter(
            where,
            people.kind,
            people.features,
            clients_per_leaf=people.leaf,
            clients_per_block=block or people.block,
            **options,
        ) as writer:
            writer.write([f"c{i}" for i in chosen], matrix)
            return writer.commit(Provenance())

    return write


def half_open(numbers):
    return tuple((first, last + 1) for first, last in ranges_of(numbers))


def answers(name, population, ranges, backend=None, blocks=None):
    """The sums of each round of the case's run, of these clients."""
    source = Source(str(population.path), population.version, ranges=ranges)
    backend, found = backend or InProcessBackend(), []
    chosen = range(len(population.blocks)) if blocks is None else blocks
    for made in case(name).history.rounds:
        found.append(values(backend.map_blocks(Answer(case(name).method, source), made.message, chosen)))
    return found


def same(one, other):
    def equal(a, b):
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
        return a.dtype == b.dtype == np.int64 and a.tobytes() == b.tobytes()

    return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))


@given(st.sets(st.integers(0, 40)), st.integers(0, 20), st.integers(1, 20))
def test_what_lies_within(numbers, first, length):
    inside = within(half_open(numbers), first, first + length)
    assert [i for low, high in inside for i in range(low, high)] == sorted(numbers & set(range(first, first + length)))


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("parts", [side.MOST_PARTS, 0])
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.slow
def test_sums_of_participants_are_those_of_a_population_of_them_alone(stored, monkeypatch, name, parts, data):
    """Bit for bit, whatever the leaves, and whether parts of a leaf are put together; and those of the clients one by
    one, added up.
    """
    monkeypatch.setattr(side, "MOST_PARTS", parts)
    clients = len(case(name).population.clients)
    chosen = data.draw(st.sets(st.integers(0, clients - 1), min_size=1))
    answered = answers(name, stored(name), half_open(chosen))
    assert same(answered, answers(name, stored(name, None, tuple(sorted(chosen))), None))
    if len(chosen) < 12:
        method, source = case(name).method, str(stored(name).path)
        for made, whole in zip(case(name).history.rounds, answered, strict=True):
            each = [
                answer_block(method, Source(source, 1, ranges=((i, i + 1),)), made.message, index)
                for i in chosen
                for index, entry in enumerate(stored(name).blocks)
                if entry.first <= i < entry.first + entry.clients
            ]
            assert same([values(merge_all(each))], [whole])


@pytest.mark.parametrize("name", PRIVATE)
def test_participants_and_the_others_add_up_to_everybody(stored, name):
    clients = len(case(name).population.clients)
    chosen = {i for i in range(clients) if i % 3 == 1 or 5 <= i < 11}
    some, others = (answers(name, stored(name), half_open(c)) for c in (chosen, set(range(clients)) - chosen))
    everybody = answers(name, stored(name), None)
    for one, other, whole in zip(some, others, everybody, strict=True):
        for key, value in whole.items():
            assert np.array_equal(one[key] + other[key], value)


@pytest.mark.parametrize("name", PRIVATE)
def test_blocks_of_others_are_not_read(stored, name, monkeypatch):
    """Their answer is that of nobody: sums of the same names and shapes, all zero."""
    population = stored(name)
    middle = population.blocks[1]
    ranges = ((middle.first, middle.first + middle.clients),)
    expected = answers(name, population, ranges, blocks=[1])
    BLOCKS.clear()
    read, asked = Population.read, []
    monkeypatch.setattr(Population, "read", lambda self, index, *a: asked.append(index) or read(self, index, *a))
    whole = answers(name, population, ranges)
    monkeypatch.undo()
    assert same(whole, expected) and set(asked) == {1}
    nobody = answers(name, population, ranges, blocks=[0])
    assert all(not np.any(value) for found in nobody for value in found.values())
    assert [{k: v.shape for k, v in found.items()} for found in nobody] == [
        {k: v.shape for k, v in found.items()} for found in whole
    ]


@pytest.mark.slow
def test_workers_answer_by_ranges_too(stored):
    with dask_client(2) as client:
        for name in PRIVATE:
            ranges = half_open({*range(2, 9), 12, *range(17, 21)})
            expected = answers(name, stored(name), ranges)
            assert same(answers(name, stored(name, 3), ranges, DaskBackend(client)), expected)


@pytest.mark.parametrize("name", [PRIVATE[0], next(n for n in PRIVATE if case(n).population.kind == "rows")])
def test_parts_of_a_leaf_put_together(stored, monkeypatch, name):
    """In one piece, with the data of the pieces one after the other."""
    population = stored(name)
    block, leaf, ranges = population.read(0), population.clients_per_leaf, ((0, 1), (2, 3))
    apart = list(side.participating(block, leaf, ranges))
    monkeypatch.setattr(side, "MOST_PARTS", 1)
    (together,) = side.participating(block, leaf, ranges)
    assert len(apart) == 2 and together.clients == 2 and (together.first, together.leaf) == (0, 0)
    for data, ptr in (("data", "indptr"), ("indices", "indptr"), ("x", "ptr")):
        if hasattr(together, data):
            pieces = [getattr(part, data) for part in apart]
            assert np.array_equal(getattr(together, data), np.concatenate(pieces), equal_nan=True)
            assert getattr(together, ptr).tolist() == [0, len(pieces[0]), len(pieces[0]) + len(pieces[1])]


def test_a_part_of_a_leaf_keeps_its_place(stored):
    population = stored(PRIVATE[0])
    block, leaf = population.read(1), population.clients_per_leaf
    first = block.first + 1
    parts = list(side.participating(block, leaf, ((0, 1), (first, first + leaf), (first + leaf + 1, 10**6))))
    assert [part.first for part in parts] == sorted(part.first for part in parts)
    assert all(part.leaf == part.first // leaf for part in parts)
    assert sum(part.clients for part in parts) == block.clients - 2
