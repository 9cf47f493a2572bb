"""Clients who leave: nothing of them is left, everybody else is what and where they were, nobody's cohort changes."""

from __future__ import annotations

import re
import stat

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcore.errors import ChunkError, PopulationError, PopulationNotFound
from fedcore.population import layout
from fedcore.population.conversion import begin_cohorts, open_cohort
from fedcore.population.copying import copy_population
from fedcore.population.erasing import compact, forget
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.population.suppression import Suppression
from fedcore.population.writer import PopulationWriter
from fedcore.storage import files
from tests.command import works
from tests.conftest import write_population
from tests.population.conftest import names, some_counts, some_rows
from tests.population.contents import counts_of, everything_in, ids_of, rows_of, write_csv

LEAF, BLOCK = 2, 4


def made(path, clients: int, begun: bool = True, rows: bool = False) -> Population:
    kind, data = ("rows", some_rows(clients)) if rows else ("counts", some_counts(clients))
    heldout = some_rows(clients, seed=1) if rows else some_counts(clients, seed=1)
    features = 3 if rows else 7
    writer = PopulationWriter(path, kind, features, clients_per_leaf=LEAF, clients_per_block=BLOCK)
    with writer:
        writer.write(names(0, clients), data, heldout)
        population = writer.commit()
    return begin_cohorts(population, lambda version, checksum, token: token) if begun else population


def appended(population: Population, tmp_path, ids, count: int = 1) -> Population:
    rows = [(one, 1 + number % 3, count) for number, one in enumerate(ids)]
    return ingest(write_csv(tmp_path / "more.csv", ["client", "token", "count"], rows), population.path, append=True)


def cohort_of_each(population: Population) -> dict[str, int]:
    """{client id: cohort}, of those who are not forgotten."""
    order = population.manifest.order or ((1, population.n_clients),)
    each = [cohort for cohort, clients in order for _ in range(clients)]
    ids = ids_of(population)
    assert [one == "" for one in ids] == [cohort == 0 for cohort in each]
    return {one: cohort for one, cohort in zip(ids, each, strict=True) if cohort}


def there(contents: dict) -> dict:
    return {one: data for one, data in contents.items() if one}


# --- what is left -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [False, True])
def test_who_is_forgotten_leaves_nothing(tmp_path, rows):
    population = made(tmp_path / "p", 11, rows=rows)
    contents = rows_of if rows else counts_of
    before = {heldout: contents(population, heldout) for heldout in (False, True)}
    assert b"user 3" in everything_in(population.path) and b"user 10" in everything_in(population.path)
    done = forget(population, clients=["user 3", "user 10", "nobody"])
    after = done.population
    assert (done.clients, done.unknown) == (2, 1) and done.freed > 0
    assert after.versions() == [3] and Population.open(population.path) == after and after.verify().ok
    assert after.holes == ((3, 4), (10, 11)) and after.participants() == ((0, 3), (4, 10))
    assert after.manifest.needs == ("cohorts", "holes", "stripped-ids") and after.manifest.order == (
        (1, 3),
        (0, 1),
        (1, 6),
        (0, 1),
    )
    for heldout, was in before.items():
        assert there(contents(after, heldout)) == {k: v for k, v in was.items() if k not in ("user 3", "user 10")}
    assert not re.search(rb"user 3\b|user 10", everything_in(population.path))
    assert len(list((population.path / "blocks").iterdir())) - 1 == len(after.blocks)
    assert [old.slot == new.slot for old, new in zip(population.blocks, after.blocks, strict=True)] == [0, 1, 0]
    assert [(b.first, b.clients) for b in after.blocks] == [(b.first, b.clients) for b in population.blocks]


def test_rows_of_a_forgotten_client_are_in_no_array(tmp_path):
    """A value that nobody else has: 7.125."""
    with PopulationWriter(tmp_path / "p", "rows", 2, clients_per_leaf=2, clients_per_block=4) as writer:
        x = np.arange(12, dtype=np.float32).reshape(6, 2)
        x[2] = 7.125
        writer.write(names(0, 6), (np.arange(7), x))
        population = writer.commit()
    value = np.float32(7.125).tobytes()
    assert value in everything_in(population.path)
    forget(population, clients=["user 2"])
    assert value not in everything_in(population.path)


@pytest.mark.parametrize("fold_ids", [False, True])
def test_ids_that_no_client_can_have_are_unknown(tmp_path, fold_ids):
    """The others of the list are forgotten. Folded, a tab would become the blank of another client's id."""
    rows = [(one, 1, 1) for one in ("c 1", "d", "e")]
    file = write_csv(tmp_path / "a.csv", ["client", "token", "count"], rows)
    population = ingest(file, tmp_path / "p", features=3, fold_ids=fold_ids)
    listed = tmp_path / "leaving.txt"
    listed.write_text("d\nc\t1\n d \nd\u200b\n  \nnobody\nd\u200b\n", "utf-8")
    told = works("population", "forget", population.path, "--clients", listed, "--json").json
    assert (told["forgotten"], told["unknown"]) == (1, 4)
    after = Population.open(population.path)
    assert {*ids_of(after)} == {"c 1", "e", ""} and after.verify().ok
    again = forget(after, clients=["d", "d\u200b", " "])
    assert (again.clients, again.unknown, again.population.version) == (0, 3, after.version)


def test_a_block_of_forgotten_clients_has_no_slot(tmp_path):
    population = made(tmp_path / "p", 12)
    before = counts_of(population)
    done = forget(population, clients=names(3, 6))
    after = done.population
    assert [block.void for block in after.blocks] == [False, True, False] and after.blocks[1].slot == ""
    assert b'"void": true' in layout.version_file(after.path, 3).read_bytes()
    for heldout in (False, True):
        block = after.read(1, heldout=heldout)
        assert (block.first, block.leaf, block.clients, block.csr.nnz) == (4, 2, 4, 0)
        assert not heldout or block.heldout.clients == 4
    assert after.client_ids(1).tolist() == [""] * 4 and after.decoded_bytes(1) == 0
    assert after.verify().ok and there(counts_of(after)) == without(before, names(3, 6))
    more = appended(after, tmp_path, ["user 2", "new 1"])
    assert more.blocks[1] == after.blocks[1] and cohort_of_each(more) == {
        **dict.fromkeys([*names(0, 3), *names(9, 3)], 1),
        "new 1": 2,
    }


def without(contents: dict, ids) -> dict:
    return {one: data for one, data in contents.items() if one not in set(ids)}


def test_dense_rows_of_a_void_block(tmp_path):
    population = made(tmp_path / "p", 10, rows=True)
    after = forget(population, clients=names(4, 4)).population
    assert after.blocks[1].void
    block = after.read(1, heldout=True)
    assert block.x.shape == (0, 3) and block.clients == 4 and block.heldout.clients == 4
    assert list(after.client_tiles(1, 0, 1 << 20)) == [] and after.stream(1).clients == 4
    assert after.client_bytes(1).tolist() == [0] * 4 and after.verify().ok


def test_the_last_block_may_be_void_and_fills_up(tmp_path):
    population = made(tmp_path / "p", 7)
    after = forget(population, clients=names(4, 3)).population
    assert after.blocks[-1].void and after.blocks[-1].clients == 3
    more = appended(after, tmp_path, ["new 1", "new 2"])
    assert more.verify().ok and [block.clients for block in more.blocks] == [4, 4, 1]
    assert cohort_of_each(more) == {**dict.fromkeys(names(0, 4), 1), "new 1": 2, "new 2": 2}


def test_nobody_to_forget_makes_no_version(tmp_path):
    population = made(tmp_path / "p", 5)
    done = forget(population, clients=["nobody"])
    assert (done.population, done.clients, done.unknown) == (population, 0, 1)
    assert not (population.path / layout.FORGET).exists() and not (population.path / layout.FORGOTTEN).exists()
    once = forget(population, clients=["user 1"]).population
    assert forget(once, clients=["user 1"]).population == once


def test_open_runs_are_not_bereft_of_their_data(tmp_path):
    population = made(tmp_path / "p", 5)
    with pytest.raises(PopulationError, match="1 runs .* not finished.*weekly"):
        forget(population, clients=["user 1"], open_runs=lambda: ["weekly"])
    assert Population.open(population.path) == population
    assert not (population.path / layout.FORGET).exists()


def test_what_the_ledger_refuses_is_undone(tmp_path):
    population = made(tmp_path / "p", 5)
    told = []

    def refuse(version, listed):
        told.append((version, listed))
        raise PopulationError("no")

    with pytest.raises(PopulationError, match="no"):
        forget(population, clients=["user 1"], record=refuse)
    assert told[0][0] == 3 and re.fullmatch("[0-9a-f]{64}", told[0][1])
    assert Population.open(population.path) == population and population.verify().ok
    assert (
        not (population.path / layout.FORGET).exists()
        and not (population.path / layout.FORGOTTEN).exists()
        or not [*(population.path / layout.FORGOTTEN).iterdir()]
    )


# --- who comes back ---------------------------------------------------------------------------------------------------


def test_who_comes_back_gets_the_old_cohort(tmp_path):
    population = made(tmp_path / "p", 5)
    population = appended(population, tmp_path, ["b 1", "b 2"])
    population = forget(population, clients=["user 1", "user 3", "b 1"]).population
    population = appended(population, tmp_path, ["new", "user 3", "b 1", "user 0"])
    assert population.manifest.order == ((1, 1), (0, 1), (1, 1), (0, 1), (1, 1), (0, 1), (2, 1), (1, 1), (2, 1), (3, 1))
    known = {**dict.fromkeys(["user 0", "user 2", "user 3", "user 4"], 1), "b 1": 2, "b 2": 2, "new": 3}
    assert cohort_of_each(population) == known
    population = forget(population, clients=["user 3"]).population
    population = appended(population, tmp_path, ["user 3", "user 1"])
    assert cohort_of_each(population) == {**known, "user 1": 1}
    assert population.verify().ok


def test_who_was_forgotten_before_cohorts_began_comes_back_as_a_founder(tmp_path):
    population = made(tmp_path / "p", 5, begun=False)
    population = forget(population, clients=["user 1"]).population
    assert population.manifest.needs == ("holes", "stripped-ids") and population.manifest.order == (
        (1, 1),
        (0, 1),
        (1, 3),
    )
    population = appended(population, tmp_path, ["before"])
    assert population.manifest.order == ((1, 1), (0, 1), (1, 4))
    population = begin_cohorts(population, lambda version, checksum, token: token)
    assert population.manifest.order == ((1, 1), (0, 1), (1, 4))
    population = appended(population, tmp_path, ["user 1", "new"])
    assert cohort_of_each(population)["user 1"] == 1 and cohort_of_each(population)["new"] == 2


def test_who_was_forgotten_without_trace_is_new(tmp_path):
    population = made(tmp_path / "p", 5)
    population = forget(population, clients=["user 1", "user 2"]).population
    population = appended(population, tmp_path, ["user 2"])
    population = forget(population, clients=["user 2", "user 3"], without_trace=True).population
    population = appended(population, tmp_path, ["user 1", "user 2", "user 3"])
    assert cohort_of_each(population) == {"user 0": 1, "user 1": 1, "user 2": 3, "user 3": 3, "user 4": 1}
    last = forget(made(tmp_path / "q", 5), clients=["user 1"], without_trace=True).population
    assert last.manifest.suppression is None and not (last.path / layout.FORGOTTEN).exists()


def test_the_list_tells_no_id_and_is_closed(tmp_path):
    population = forget(made(tmp_path / "p", 5), clients=["user 1"]).population
    folder = population.path / layout.FORGOTTEN
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert sorted(file.name for file in folder.iterdir()) == [f"{population.manifest.suppression}.txt", "key"]
    listed = Suppression.read(population.path, population.manifest.suppression)
    assert listed.cohorts_of(["user 0", "user 1", ""]).tolist() == [0, 1, 0]
    other = forget(made(tmp_path / "q", 5), clients=["user 1"]).population
    assert Suppression.read(other.path, other.manifest.suppression).hashes != listed.hashes


@pytest.mark.parametrize("damage", ["list", "key", "lost list", "lost key", "other key"])
def test_without_the_list_nothing_is_appended(tmp_path, damage):
    population = forget(made(tmp_path / "p", 5), clients=["user 1"]).population
    folder = population.path / layout.FORGOTTEN
    file = folder / ("key" if "key" in damage else f"{population.manifest.suppression}.txt")
    if damage.startswith("lost"):
        file.unlink()
    else:
        file.write_bytes(b"ab" * 32 if damage == "other key" else b"nonsense")
    with pytest.raises(PopulationError, match="backup"):
        appended(population, tmp_path, ["new"])
    assert Population.open(population.path) == population


# --- by age -----------------------------------------------------------------------------------------------------------


def test_old_cohorts_go_as_a_whole(tmp_path):
    with PopulationWriter(tmp_path / "p", "counts", 7, nominal_clients=9, clients_per_leaf=2, clients_per_block=4) as w:
        w.write(names(0, 9), some_counts(9))
        population = w.commit()
    population = begin_cohorts(population, lambda version, checksum, token: token)
    population = open_cohort(population, 12)
    population = ingest(
        write_csv(tmp_path / "c.csv", ["client", "token", "count"], [("c 1", 1, 1)]),
        population.path,
        append=True,
        nominal_clients=15,
    )
    done = forget(population, cohorts_to=2)
    after = done.population
    assert done.clients == 9 and after.manifest.order == ((0, 9), (3, 1)) and after.participants(((1, 2),)) == ()
    assert [one.nominal for one in after.manifest.cohorts] == [0, 0, 3] and after.manifest.nominal_clients == 3
    assert [block.void for block in after.blocks] == [True, True, False]
    assert [one.token for one in after.manifest.cohorts] == [one.token for one in population.manifest.cohorts]
    again = appended(after, tmp_path, ["user 4", "d"])
    assert cohort_of_each(again) == {"c 1": 3, "user 4": 1, "d": 4}
    for wrong in (0, 4, 9):
        with pytest.raises(PopulationError, match="cohorts 1-4"):
            forget(again, cohorts_to=wrong)
    with pytest.raises(PopulationError, match="no cohorts"):
        forget(made(tmp_path / "q", 5, begun=False), cohorts_to=1)


def test_declared_sizes_go_with_cohorts_whether_anybody_was_in_them(tmp_path):
    """Else the declared size, by which private runs are planned, would tell whether the only client was there."""
    left = []
    for one in (True, False):
        population = made(tmp_path / f"{one}", 4)
        population = appended(population, tmp_path, ["single"]) if one else open_cohort(population)
        population = forget(open_cohort(population), clients=names(0, 4)).population
        done = forget(population, cohorts_to=2).population.manifest
        left.append([(cohort.nominal, cohort.number) for cohort in done.cohorts])
        again = forget(Population.open(population.path), cohorts_to=2)
        assert again.population.version == done.version and again.clients == 0
    assert left[0] == left[1] == [(0, 1), (0, 2), (None, 3)]


# --- compaction ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_compaction_takes_the_holes_out(tmp_path, rows, begun):
    population = made(tmp_path / "p", 13, rows=rows, begun=begun)
    contents = rows_of if rows else counts_of
    before = {heldout: contents(population, heldout) for heldout in (False, True)}
    gone = ["user 2", *names(4, 4), "user 12"]
    done = forget(population, clients=gone)
    assert done.worth_compacting and done.holes == 6 / 13
    after = compact(done.population).population
    assert after.versions() == [after.version] and not after.holes and after.n_clients == 7
    assert after.manifest.needs == (("cohorts", "stripped-ids") if begun else ("stripped-ids",))
    assert after.manifest.order == (((1, 7),) if begun else ())
    assert after.manifest.suppression == done.population.manifest.suppression
    for heldout, was in before.items():
        assert contents(after, heldout) == without(was, gone)
    assert ids_of(after) == [one for one in names(0, 13) if one not in gone]
    assert after.verify().ok and compact(after).population == after


def test_nobody_left_is_not_compacted(tmp_path):
    population = forget(made(tmp_path / "p", 5), clients=names(0, 5)).population
    assert population.participants() == () and population.verify().ok
    with pytest.raises(PopulationError, match="No client is left"):
        compact(population)
    assert cohort_of_each(appended(population, tmp_path, ["new", "user 3"])) == {"user 3": 1, "new": 2}


# --- who still reads --------------------------------------------------------------------------------------------------


def test_a_reader_of_a_version_that_is_gone_is_told(tmp_path):
    population = made(tmp_path / "p", 9)
    forget(population, clients=["user 1"])
    with pytest.raises(ChunkError, match="Version 2 of .* was removed.*forgotten"):
        population.read(0)
    population.read(1)  # a slot that both versions name
    with pytest.raises(PopulationNotFound, match="no version 2.*It has 3"):
        Population.open(population.path, 2)


def test_versions_that_are_gone_are_known_by_their_checksums(tmp_path):
    """Runs and the ledger name them: conversion asks whether every run was made on this population's own versions."""
    population = made(tmp_path / "p", 9)
    known = {1: Population.open(population.path, 1).checksum, 2: population.checksum}
    assert population.checksums() == known
    population = forget(population, clients=["user 1"]).population
    assert population.checksums() == {**known, 3: population.checksum} and population.manifest.removed
    population = appended(compact(population).population, tmp_path, ["new"])
    assert population.versions() == [4, 5] and population.checksums().keys() == {1, 2, 3, 4, 5}
    assert {**population.checksums(), **known} == population.checksums()


# --- what a kill leaves -----------------------------------------------------------------------------------------------


def test_verify_tells_that_forgetting_is_not_finished(tmp_path, monkeypatch):
    from fedcore.population import versions

    population = made(tmp_path / "p", 9)
    with monkeypatch.context() as patched:
        sweeps = iter([versions.sweep])
        patched.setattr(versions, "sweep", lambda path: next(sweeps, lambda path: 1 / 0)(path))
        with pytest.raises(ZeroDivisionError):
            forget(population, clients=["user 1"])
    left = Population.open(population.path)
    assert left.version == 3 and left.versions() == [1, 2, 3]
    assert left.verify().ok and "interrupted" in left.verify().remarks[0]
    done = forget(left, clients=["user 1"])
    assert done.clients == 0 and left.versions() == [3] and left.verify().ok and not left.verify().remarks
    assert not re.search(rb"user 1\b", everything_in(population.path))


# --- copies -----------------------------------------------------------------------------------------------------------


def test_copies_of_a_population_that_has_forgotten(tmp_path):
    population = made(tmp_path / "p", 9)
    copy_population(population.path, tmp_path / "copy")
    after = forget(population, clients=["user 1", *names(4, 4)]).population
    assert any(block.void for block in after.blocks)
    copied = copy_population(after.path, tmp_path / "copy")
    there_now = Population.open(tmp_path / "copy")
    assert there_now.manifest == after.manifest and there_now.versions() == [2, 3] and there_now.verify().ok
    assert copied.pruned == 0 and b"user 1" in everything_in(tmp_path / "copy")
    copied = copy_population(after.path, tmp_path / "copy", prune=True)
    assert copied.pruned == 1 and there_now.versions() == [3] and there_now.verify().ok
    assert not re.search(rb"user 1\b", everything_in(tmp_path / "copy"))
    assert cohort_of_each(appended(there_now, tmp_path, ["user 1"]))["user 1"] == 1


def test_pruning_keeps_the_versions_that_the_source_has(tmp_path):
    population = made(tmp_path / "p", 9)
    copy_population(population.path, tmp_path / "copy", version=1)
    open_cohort(population)
    assert copy_population(population.path, tmp_path / "copy", prune=True).pruned == 0
    assert Population.open(tmp_path / "copy").versions() == [1, 3]


# --- any order of events ----------------------------------------------------------------------------------------------

CLIENTS = st.lists(st.integers(0, 11), max_size=5, unique=True)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), CLIENTS),
        st.tuples(st.just("forget"), CLIENTS),
        st.tuples(st.just("without trace"), CLIENTS),
        st.tuples(st.just("age"), st.integers(1, 3)),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("begin"), st.none()),
    ),
    max_size=9,
)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EVENTS)
def test_nobodys_cohort_changes(tmp_path_factory, events):
    """Against a model that knows nothing of indices: who is there, with how many tokens, and in which cohort."""
    folder = tmp_path_factory.mktemp("events")
    population = write_population(folder / "p", "counts", 7, names(0, 5), some_counts(5), leaf=LEAF, block=BLOCK)
    counts = counts_of(population)
    cohort_of, cohorts, ever = dict.fromkeys(counts, 1), 0, dict.fromkeys(counts, 1)
    for what, value in events:
        ids = [f"user {one}" for one in value] if isinstance(value, list) else []
        if what == "append":
            population = appended(population, folder, ids)
            cohorts += cohorts > 0
            for number, one in enumerate(ids):
                cohort_of[one] = ever.setdefault(one, cohorts or 1)
                held = counts.setdefault(one, {})
                held[1 + number % 3] = held.get(1 + number % 3, 0) + 1
        elif what in ("forget", "without trace"):
            population = forget(population, clients=ids, without_trace=what != "forget").population
            for one in ids:
                if cohort_of.pop(one, None) and what != "forget":
                    del ever[one]
                counts.pop(one, None)
        elif what == "age" and value < cohorts:
            population = forget(population, cohorts_to=value).population
            for one in [one for one, cohort in cohort_of.items() if cohort <= value]:
                del cohort_of[one], counts[one]
        elif what == "compact" and cohort_of:
            population = compact(population).population
            assert not population.holes
        elif what == "begin" and not cohorts:
            population, cohorts = begin_cohorts(population, lambda version, checksum, token: token), 1
        assert cohort_of_each(population) == cohort_of and there(counts_of(population)) == counts
        for cohort in range(1, cohorts + 1):
            index = [i for first, stop in population.participants(((cohort, cohort),)) for i in range(first, stop)]
            ids = ids_of(population)
            assert sorted(ids[i] for i in index) == sorted(one for one, c in cohort_of.items() if c == cohort)
    assert population.verify().ok and Population.open(population.path) == population
    assert files.size(population.path) > 0
