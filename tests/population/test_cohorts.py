"""Cohorts in a manifest, and ranges of numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import IngestError, ManifestError, PopulationBranched, PopulationError
from fedcore.population import identifiers
from fedcore.population import manifest as manifests
from fedcore.population.cohorts import FOUNDERS, HOLE, Cohort, clients_of, covered, fault, holes_of, joined, mask
from fedcore.population.conversion import begin_cohorts, open_cohort
from fedcore.population.copying import copy_population
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.storage.ranges import holds, in_words, merged, numbers_in, parsed, ranges_of
from tests.conftest import write_population
from tests.population.conftest import names, some_counts, some_rows
from tests.population.contents import counts_of, ids_of, write_csv

ORDERS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=12).map(joined)


def cohorts(number: int) -> tuple[Cohort, ...]:
    return tuple(Cohort(number=n, token=f"{n:032x}", opened="2026-01-01") for n in range(1, number + 1))


@given(st.sets(st.integers(0, 60)))
def test_ranges_hold_exactly_their_numbers(numbers):
    ranges = ranges_of(numbers)
    assert numbers_in(ranges) == sorted(numbers)
    assert all(holds(ranges, n) == (n in numbers) for n in range(62))
    assert merged(ranges) == ranges and (not ranges or parsed(in_words(ranges)) == ranges)


@pytest.mark.parametrize("text", ["", "a", "3-1", "-2", "1,,2"])
def test_ranges_that_are_none(text):
    with pytest.raises(ValueError):
        parsed(text)


@given(ORDERS, st.sets(st.integers(1, 5)))
def test_clients_of_cohorts_are_those_with_its_number(order, chosen):
    each = [cohort for cohort, clients in order for _ in range(clients)]
    asked = [i for i, cohort in enumerate(each) if cohort in chosen and cohort != HOLE]
    ranges = clients_of(order, ranges_of(chosen))
    assert [i for first, stop in ranges for i in range(first, stop)] == asked
    assert all(stop < following for (_, stop), (following, _) in zip(ranges, ranges[1:], strict=False))


@given(ORDERS)
def test_ranges_are_covered_that_hold_holes_alone(order):
    clients = sum(clients for _, clients in order)
    there, holes = [(first, stop) for stop in range(clients + 1) for first in range(stop)], holes_of(order)
    wanted = [bool(mask(holes, first, stop - first).all()) for first, stop in there]
    first, stop = np.array(there, np.int64).reshape(-1, 2).T
    assert covered(holes, first, stop).tolist() == wanted


@given(ORDERS)
def test_an_order_of_known_cohorts_is_no_fault(order):
    assert fault(cohorts(5), order, sum(clients for _, clients in order)) is None


@pytest.mark.parametrize(
    ("made", "order", "clients"),
    [
        ((), ((1, 3),), 3),
        (cohorts(2)[1:], ((2, 3),), 3),
        (cohorts(2), ((1, 3),), 4),
        (cohorts(2), ((1, 1), (1, 2)), 3),
        (cohorts(2), ((1, 1), (3, 2)), 3),
        (cohorts(2), ((1, 0), (2, 3)), 3),
        ((*cohorts(1), cohorts(1)[0].model_copy(update={"number": 2})), ((1, 3),), 3),
    ],
)
def test_faults_of_an_order(made, order, clients):
    assert fault(made, order, clients)


def test_a_manifest_with_cohorts_comes_back(counts_population):
    old = counts_population.manifest
    clients = old.n_clients
    fields = {"needs": ("cohorts", "stripped-ids"), "cohorts": cohorts(2), "order": ((1, clients - 1), (2, 1))}
    made = manifests.build(**{**dict(old), **fields})
    assert manifests.decode(manifests.encode(made), "here") == made
    assert manifests.checksum(made) != manifests.checksum(old)
    with pytest.raises(ManifestError, match="need"):
        manifests.build(**{**dict(old), **fields, "needs": ()})


# --- beginning, appending ---------------------------------------------------------------------------------------------


def begun(population: Population, token: str | None = None) -> Population:
    return begin_cohorts(population, lambda version, checksum, new: token or new)


def source(tmp_path, ids, name="more.csv"):
    return write_csv(tmp_path / name, ["client", "token", "count"], [(one, 1, 1) for one in ids])


def cohort_of_each(population: Population) -> dict[str, int]:
    """{client id: cohort}, of those who are not forgotten."""
    each = [cohort for cohort, clients in population.manifest.order for _ in range(clients)]
    return {one: cohort for one, cohort in zip(ids_of(population), each, strict=True) if cohort != HOLE}


def test_beginning_cohorts_changes_no_block(counts_population):
    told = []

    def record(*asked):
        told.append(asked)
        return "ab" * 16

    made = begin_cohorts(counts_population, record)
    assert told == [(1, counts_population.checksum, told[0][2])] and len(told[0][2]) == 32
    assert Population.open(made.path) == made and made.version == 2 and made.blocks == counts_population.blocks
    (founders,) = made.manifest.cohorts
    assert (founders.number, founders.token, founders.nominal) == (FOUNDERS, "ab" * 16, None)
    assert made.manifest.order == ((FOUNDERS, 23),) and made.manifest.needs == ("cohorts", "stripped-ids")
    assert made.verify().ok and counts_of(made) == counts_of(counts_population)
    assert begin_cohorts(made, record) is made and len(told) == 1
    with pytest.raises(PopulationError, match="moved on"):
        begin_cohorts(counts_population, record)
    assert len(told) == 1


def test_nothing_happens_if_the_ledger_refuses(counts_population):
    def refuse(*asked):
        raise PopulationBranched("no")

    with pytest.raises(PopulationBranched):
        begin_cohorts(counts_population, refuse)
    assert Population.open(counts_population.path) == counts_population
    assert begun(counts_population).version == 2  # the lock is free again


def test_founders_have_the_declared_size(tmp_path):
    made = write_population(tmp_path / "p", "counts", 7, names(0, 23), some_counts(23), nominal_clients=20)
    made = begun(made)
    assert made.manifest.cohorts[0].nominal == 20


def test_every_append_opens_a_cohort(counts_population, tmp_path):
    path = counts_population.path
    first = begun(counts_population)
    second = ingest(source(tmp_path, ["new 1", "user 3", "new 2"]), path, append=True)
    third = ingest(source(tmp_path, []), path, append=True)
    fourth = open_cohort(third)
    fifth = ingest(source(tmp_path, ["new 1", "new 3"]), path, append=True)
    assert [made.version for made in (first, second, third, fourth, fifth)] == [2, 3, 4, 5, 6]
    assert fifth.manifest.cohorts[:3] == third.manifest.cohorts and fourth.blocks == third.blocks == second.blocks
    assert [one.number for one in fifth.manifest.cohorts] == [1, 2, 3, 4, 5]
    assert len({one.token for one in fifth.manifest.cohorts}) == 5
    assert fifth.manifest.order == ((1, 23), (2, 2), (5, 1))
    assert cohort_of_each(fifth) == {**dict.fromkeys(names(0, 23), 1), "new 1": 2, "new 2": 2, "new 3": 5}
    assert fifth.participants() == ((0, 26),) and fifth.participants(((2, 4),)) == ((23, 25),)
    assert fifth.participants(((3, 4),)) == () and fifth.participants(((1, 1), (5, 5))) == ((0, 23), (25, 26))
    with pytest.raises(PopulationError, match="cohorts 4-6"):
        fifth.participants(((4, 6),))
    assert fifth.verify().ok and Population.open(path, 3) == second


def test_a_population_without_cohorts_has_everybody(counts_population):
    assert counts_population.participants() == counts_population.participants(((1, 1),)) == ((0, 23),)
    with pytest.raises(PopulationError, match="no cohorts"):
        open_cohort(counts_population)


@pytest.mark.parametrize(
    ("totals", "sizes"),
    [
        ((20, 25, 25, 31), [20, 5, 0, 6]),
        ((20, None, 25, None), [20, None, 5, None]),
        ((None, None, 9, 12), [None, None, None, 3]),
    ],
)
def test_a_cohorts_declared_size_is_what_the_total_grew_by(tmp_path, totals, sizes):
    made = write_population(tmp_path / "p", "counts", 7, names(0, 23), some_counts(23), nominal_clients=totals[0])
    made = begun(made)
    for number, total in enumerate(totals[1:]):
        if number % 2:
            made = open_cohort(made, total)
        else:
            made = ingest(source(tmp_path, [f"new {number}"]), made.path, append=True, nominal_clients=total)
    assert [one.nominal for one in made.manifest.cohorts] == sizes
    assert made.manifest.nominal_clients == [total for total in totals if total is not None][-1]


def test_a_smaller_total_is_refused(tmp_path):
    made = write_population(tmp_path / "p", "counts", 7, names(0, 23), some_counts(23), nominal_clients=20)
    made = begun(made)
    for append in (
        lambda: open_cohort(made, 19),
        lambda: ingest(source(tmp_path, ["x"]), made.path, append=True, nominal_clients=19),
    ):
        with pytest.raises(PopulationError, match="fewer than the 20"):
            append()
    assert Population.open(made.path) == made


def test_a_matrix_without_ids_opens_no_cohort(counts_population, tmp_path):
    made = begun(counts_population)
    sp.save_npz(tmp_path / "more.npz", some_counts(3))
    with pytest.raises(IngestError, match="no client ids"):
        ingest(tmp_path / "more.npz", made.path, append=True)
    assert Population.open(made.path) == made


@pytest.mark.parametrize("form", ["csv", "parquet", "npz", "npy"])
def test_sources_that_name_nobody_open_a_cohort(tmp_path, form):
    columns = ["client", "a", "b", "c"]
    made = write_population(tmp_path / "p", "rows", 3, names(0, 10), some_rows(10), dtype="float64", leaf=4)
    made = begun(made)
    nobody, options = tmp_path / f"nobody.{form}", {}
    if form == "csv":
        write_csv(nobody, columns, [])
    elif form == "parquet":
        types = [pa.string(), *[pa.float64()] * 3]
        parquet.write_table(pa.table([pa.array([], kind) for kind in types], columns), nobody)
    elif form == "npz":
        np.savez(nobody, x=np.zeros((0, 3)), client=np.zeros(0, "U1"))
    else:
        np.save(nobody, np.zeros((0, 3)))
        np.save(tmp_path / "ids.npy", np.zeros(0, "U1"))
        options = {"client": "ids.npy"}
    after = ingest(nobody, made.path, append=True, **options)
    assert after.blocks == made.blocks and len(after.manifest.cohorts) == 2 and after.manifest.order == ((1, 10),)


def test_copies_keep_cohorts(counts_population, tmp_path):
    begun(counts_population)
    made = ingest(source(tmp_path, ["new 1"]), counts_population.path, append=True)
    copy_population(made.path, tmp_path / "copy")
    there = Population.open(tmp_path / "copy")
    assert there.manifest == made.manifest and there.verify().ok
    assert len(open_cohort(there).manifest.cohorts) == 3


# --- ids that come twice ----------------------------------------------------------------------------------------------


def test_verify_finds_an_id_that_is_there_twice(tmp_path, monkeypatch):
    with PopulationWriter(tmp_path / "p", "counts", 7, clients_per_leaf=4, clients_per_block=8) as writer:
        writer.write([*names(0, 20), "user 3"], some_counts(21))
        with monkeypatch.context() as patched:
            patched.setattr(PopulationWriter, "_refuse_duplicates", lambda self: None)
            made = writer.commit()
    report = made.verify()
    assert report.problems == ("The client id 'user 3' is there twice.",)


def test_verify_finds_a_client_without_an_id(tmp_path, monkeypatch):
    with PopulationWriter(tmp_path / "p", "counts", 7, clients_per_leaf=4, clients_per_block=8) as writer:
        with monkeypatch.context() as patched:
            patched.setattr(identifiers, "as_text", lambda ids, holes=None: list(ids))
            writer.write([*names(0, 10), ""], some_counts(11))
        made = writer.commit()
    (problem,) = made.verify().problems
    assert problem.startswith("Block 1 ") and "without an id" in problem
