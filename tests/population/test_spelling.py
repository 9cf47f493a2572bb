"""One name is one client, however it was typed: ids are in Unicode's normal form C, in every population made now."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedcore.errors import ManifestError, PopulationError
from fedcore.population import identifiers, manifest, versions
from fedcore.population.conversion import begin_cohorts
from fedcore.population.erasing import compact, forget
from fedcore.population.ingest.ingest import ingest
from fedcore.population.manifest import Provenance
from fedcore.population.periods import BETWEEN, client_of, label_of
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.population.contents import counts_of, ids_of

FORMS = ("NFC", "NFD")
ACCENTED, APART = unicodedata.normalize("NFC", "Zoe\u0308"), unicodedata.normalize("NFD", "Zoe\u0308")
ODD = "aeoA=/\u0308\u030a\u0323\u0338\u0345\u1100\u1161\u11a8\u212b\u1e9b\ufb01\u00e9\u0958\u2126"
names = st.text(st.sampled_from(ODD) | st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)


def parquet_of(file, rows):
    columns = zip(*rows, strict=True) if rows else ([], [])
    table = {name: pa.array(list(column)) for name, column in zip(("client", "token"), columns, strict=True)}
    parquet.write_table(pa.table(table), file)
    return file


def other(name: str) -> str:
    """Another spelling, if there is one."""
    apart = unicodedata.normalize("NFD", name)
    return apart if apart != name else unicodedata.normalize("NFC", name)


def begun(population: Population) -> Population:
    return begin_cohorts(population, lambda version, checksum, token: token)


def of_before(path, ids) -> Population:
    """A population that an earlier fedcore made."""
    with PopulationWriter(path, "counts", features=3) as writer:
        writer.nfc = False
        writer.write(ids, sp.csr_matrix(np.ones((len(ids), 3), int)))
        return writer.commit(Provenance())


@pytest.mark.slow
@example(wanted=[ACCENTED])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(names, min_size=1, max_size=6))
def test_every_spelling_is_the_same_client_for_good(tmp_path_factory, wanted):
    """Ingest, append, forget and come back: one client and one cohort, whichever spelling each of them met."""
    folder = tmp_path_factory.mktemp("p")
    people = {unicodedata.normalize("NFC", one) for one in wanted} | {"always"}
    rows = [(one, 0) for one in [*wanted, "always"]] + [(other(one), 1) for one in wanted]
    population = begun(ingest(parquet_of(folder / "a.parquet", rows), folder / "p", features=3))
    assert {*ids_of(population)} == people and population.n_clients == len(people) and population.manifest.nfc
    assert sum(counts_of(population)[one].get(1, 0) for one in people) == len(wanted)
    more = ingest(parquet_of(folder / "b.parquet", [(other(one), 2) for one in wanted]), folder / "p", append=True)
    assert more.manifest.order == population.manifest.order and {*ids_of(more)} == people
    gone = forget(more, clients=[other(one) for one in wanted if one != "always"])
    assert gone.unknown == 0 and gone.clients == len(people - {"always"})
    back = ingest(parquet_of(folder / "c.parquet", [(one, 1) for one in wanted]), folder / "p", append=True)
    assert {cohort for cohort, _ in back.manifest.order} <= {0, 1}, "who comes back gets the old cohort"
    assert {*ids_of(back)} - {""} == people and back.verify().problems == ()
    if back.holes:
        assert compact(back).population.manifest.nfc


def test_another_spelling_is_the_same_client(tmp_path):
    population = begun(
        ingest(parquet_of(tmp_path / "a.parquet", [(ACCENTED, 0), (APART, 1)]), tmp_path / "p", features=3)
    )
    assert counts_of(population) == {ACCENTED: {0: 1, 1: 1}}
    more = ingest(parquet_of(tmp_path / "b.parquet", [(APART, 1), ("b", 1)]), tmp_path / "p", append=True)
    assert more.manifest.order == ((1, 1), (2, 1)) and more.manifest.nfc


@given(one=names)
def test_an_entry_is_spelled_as_its_client(one):
    """So that it does not matter whether an id is brought to normal form before it gets its period or after."""
    (entry,) = identifiers.spelled([f"2026-03{BETWEEN}{one}"], True)
    assert label_of(entry) == "2026-03" and [client_of(entry)] == identifiers.spelled([one], True)
    assert identifiers.spelled([entry], True) == [entry] and identifiers.spelled([one], False) == [one]


def test_nothing_joins_the_mark_between_label_and_client():
    marks = [chr(code) for code in range(0x110000) if unicodedata.combining(chr(code))]
    assert len(marks) > 800
    for mark in marks:
        assert unicodedata.normalize("NFC", BETWEEN + mark) == BETWEEN + unicodedata.normalize("NFC", mark)


def test_entries_of_calendar_periods(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text(
        f"client,when,token\n{ACCENTED},2026-01-05,1\n{APART},2026-01-07,1\n{APART},2026-02-01,2\n", "utf-8"
    )
    calendar = {"period": "month", "time": "when", "first": "2026-01", "through": "2026-02"}
    population = ingest(file, tmp_path / "p", features=3, **calendar)
    assert counts_of(population) == {f"2026-01/{ACCENTED}": {1: 2}, f"2026-02/{ACCENTED}": {2: 1}}
    again = ingest(file, tmp_path / "p", append=True)
    assert again.manifest.order == population.manifest.order and again.manifest.needs == ("cohorts", "nfc", "periods")
    gone = forget(again, clients=["nobody", APART, ACCENTED])
    assert gone.unknown == 1 and gone.clients == 2


def test_texts_matrices_and_arrays(tmp_path):
    """File names too: a file system may take one spelling apart."""
    for number, name in enumerate((ACCENTED, APART)):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_text("one two")
    made = ingest(tmp_path / "0", tmp_path / "p", vocabulary=["one", "two"])
    assert ids_of(ingest(tmp_path / "1", tmp_path / "p", append=True)) == ids_of(made) == [ACCENTED]
    wide = sp.csr_matrix(np.ones((2, 3), int))
    sp.save_npz(tmp_path / f"{APART}.npz", wide)
    assert ids_of(ingest(tmp_path / f"{APART}.npz", tmp_path / "m"))[0] == f"{ACCENTED}.npz:0"
    (tmp_path / "again").mkdir()
    sp.save_npz(tmp_path / "again" / f"{ACCENTED}.npz", wide)
    with pytest.raises(PopulationError, match="are in .* already"):
        ingest(tmp_path / "again" / f"{ACCENTED}.npz", tmp_path / "m", append=True)
    np.savez(tmp_path / "d.npz", x=np.ones((3, 2)), client=np.array([ACCENTED, APART, "7"]))
    dense = ingest(tmp_path / "d.npz", tmp_path / "d")
    assert {*ids_of(dense)} == {ACCENTED, "7"} and dense.n_rows == 3


def test_the_writer_takes_a_client_once(tmp_path):
    with PopulationWriter(tmp_path / "p", "rows", 2) as writer:
        writer.write([APART], (np.array([0, 1]), np.ones((1, 2))))
        writer.write_large(ACCENTED, [np.ones((1, 2))])
        with pytest.raises(PopulationError, match="was written twice"):
            writer.commit()


def test_a_population_of_before_keeps_its_rule(tmp_path):
    """Or one of its clients would be two, with two budgets."""
    population = begun(of_before(tmp_path / "p", [APART]))
    assert population.manifest.needs == ("cohorts",)
    more = ingest(parquet_of(tmp_path / "a.parquet", [(APART, 1), (ACCENTED, 1)]), population.path, append=True)
    assert ids_of(more) == [APART, ACCENTED] and more.manifest.order == ((1, 1), (2, 1)) and not more.manifest.nfc
    gone = forget(more, clients=[ACCENTED])
    assert gone.clients == 1 and ids_of(gone.population)[0] == APART
    packed = compact(gone.population).population
    assert ids_of(packed) == [APART] and packed.manifest.needs == ("cohorts",) and packed.verify().problems == ()


def test_verify_finds_an_id_that_is_not_in_normal_form(tmp_path):
    population = of_before(tmp_path / "p", [ACCENTED, APART])
    assert population.verify().problems == ()
    made = versions.following(population.manifest, Provenance())
    wrong = Population(population.path, made.model_copy(update={"needs": ("nfc",)}))
    (problem,) = wrong.verify().problems
    assert "is not in normal form" in problem and repr(APART) in problem


def test_a_reader_that_does_not_know_the_rule_refuses(tmp_path, monkeypatch):
    """It would append the other spelling as somebody new."""
    ingest(parquet_of(tmp_path / "a.parquet", [("a", 1)]), tmp_path / "p", features=3)
    monkeypatch.setattr(manifest, "KNOWN", tuple(name for name in manifest.KNOWN if name != manifest.NFC))
    with pytest.raises(ManifestError, match=r"needs nfc, .* does not know"):
        Population.open(tmp_path / "p")


@pytest.mark.parametrize("form", FORMS)
def test_digits_are_text(tmp_path, form):
    """7 and 07 are two clients, and 7 the number is 7 the text."""
    rows = parquet_of(tmp_path / "a.parquet", [(unicodedata.normalize(form, "07"), 1), ("7", 1)])
    population = ingest(rows, tmp_path / "p", features=3)
    assert {*ids_of(population)} == {"07", "7"}
    assert ids_of(ingest(parquet_of(tmp_path / "b.parquet", [(7, 1)]), tmp_path / "p", append=True)) == ids_of(
        population
    )
