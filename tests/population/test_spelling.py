"""One name is one client, however it was typed: ids are in Unicode's normal form C, in every population made now."""

from __future__ import annotations

import json
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedcore.errors import IngestError, ManifestError, PopulationError
from fedcore.interface.data import checked_groups
from fedcore.population import identifiers, layout, manifest
from fedcore.population.conversion import begin_cohorts
from fedcore.population.describing import describe
from fedcore.population.erasing import compact, forget
from fedcore.population.identifiers import BLANKS, FOLDED, STRIPPED, UNSEEN, folded, spelled_or_why
from fedcore.population.ingest.ingest import ingest
from fedcore.population.manifest import Provenance
from fedcore.population.periods import BETWEEN, client_of, label_of, stored_ids
from fedcore.population.same_ids import SeenIds
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.command import works
from tests.population.contents import counts_of, ids_of, write_csv

FORMS = ("NFC", "NFD")
ACCENTED, APART = unicodedata.normalize("NFC", "Zoe\u0308"), unicodedata.normalize("NFD", "Zoe\u0308")
ODD = "aeoA=/\u0308\u030a\u0323\u0338\u0345\u1100\u1161\u11a8\u212b\u1e9b\ufb01\u00e9\u0958\u2126"
BLANK, HIDDEN = "\u00a0", ["Cs", "Cc", "Cf", "Cn", "Zl", "Zp"]
names = st.text(st.sampled_from(ODD) | st.characters(exclude_categories=HIDDEN), min_size=1, max_size=5).filter(
    lambda one: not spelled_or_why([one], STRIPPED)[1]
)


def parquet_of(file, rows):
    columns = zip(*rows, strict=True) if rows else ([], [])
    table = {name: pa.array(list(column)) for name, column in zip(("client", "token"), columns, strict=True)}
    parquet.write_table(pa.table(table), file)
    return file


def other(name: str) -> str:
    """Another spelling, if there is one."""
    apart = unicodedata.normalize("NFD", name)
    return f" {apart if apart != name else unicodedata.normalize('NFC', name)}{BLANK}"


def begun(population: Population) -> Population:
    return begin_cohorts(population, lambda version, checksum, token: token)


@pytest.mark.slow
@example(wanted=[ACCENTED])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(names, min_size=1, max_size=6))
def test_every_spelling_is_the_same_client_for_good(tmp_path_factory, wanted):
    """Ingest, append, forget and come back: one client and one cohort, whichever spelling each of them met."""
    folder = tmp_path_factory.mktemp("p")
    people = {*identifiers.spelled(wanted, STRIPPED), "always"}
    rows = [(one, 0) for one in [*wanted, "always"]] + [(other(one), 1) for one in wanted]
    population = begun(ingest(parquet_of(folder / "a.parquet", rows), folder / "p", features=3))
    assert (
        {*ids_of(population)} == people
        and population.n_clients == len(people)
        and population.manifest.id_rule == STRIPPED
    )
    assert sum(counts_of(population)[one].get(1, 0) for one in people) == len(wanted)
    more = ingest(parquet_of(folder / "b.parquet", [(other(one), 2) for one in wanted]), folder / "p", append=True)
    assert more.manifest.order == population.manifest.order and {*ids_of(more)} == people
    gone = forget(more, clients=[other(one) for one in wanted if one != "always"])
    assert gone.unknown == 0 and gone.clients == len(people - {"always"})
    back = ingest(parquet_of(folder / "c.parquet", [(one, 1) for one in wanted]), folder / "p", append=True)
    assert {cohort for cohort, _ in back.manifest.order} <= {0, 1}, "who comes back gets the old cohort"
    assert {*ids_of(back)} - {""} == people and back.verify().problems == ()
    if back.holes:
        assert compact(back).population.manifest.id_rule == STRIPPED


def test_another_spelling_is_the_same_client(tmp_path):
    population = begun(
        ingest(parquet_of(tmp_path / "a.parquet", [(ACCENTED, 0), (APART, 1)]), tmp_path / "p", features=3)
    )
    assert counts_of(population) == {ACCENTED: {0: 1, 1: 1}}
    more = ingest(parquet_of(tmp_path / "b.parquet", [(APART, 1), ("b", 1)]), tmp_path / "p", append=True)
    assert more.manifest.order == ((1, 1), (2, 1)) and more.manifest.id_rule == STRIPPED


@given(one=names)
def test_an_entry_is_spelled_as_its_client(one):
    """So that it does not matter whether an id is brought to normal form before it gets its period or after."""
    (entry,) = stored_ids([f"2026-03{BETWEEN}{one}"], STRIPPED, True)
    assert label_of(entry) == "2026-03" and [client_of(entry)] == identifiers.spelled([one], STRIPPED)
    assert stored_ids([entry], STRIPPED, True) == [entry]


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
    assert again.manifest.order == population.manifest.order and again.manifest.needs == (
        "cohorts",
        "stripped-ids",
        "periods",
    )
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


@pytest.mark.parametrize("needs", [None, [], ["nfc"], ["cohorts"]])
def test_a_population_without_a_rule_is_refused(tmp_path, needs):
    """One of its clients could be two, with two budgets. An unreleased version made it."""
    made = ingest(parquet_of(tmp_path / "a.parquet", [("a", 1)]), tmp_path / "p", features=3)
    file = layout.version_file(made.path, 1)
    content = {**json.loads(file.read_text()), "needs": needs}
    del content["checksum"]
    file.write_text(json.dumps({**content, "checksum": manifest.checksum_of(content)}))
    with pytest.raises(ManifestError, match="without a rule .* Or ingest the data again. What was spent"):
        Population.open(made.path)


def test_verify_finds_an_id_that_is_not_as_the_rule_says(tmp_path):
    with PopulationWriter(tmp_path / "p", "counts", 3, fold_ids=True) as writer:
        writer.write(["a"], sp.csr_matrix(np.ones((1, 3), int)))
        folds = writer.commit(Provenance())
    apart = ingest(parquet_of(tmp_path / "a.parquet", [("A", 1)]), tmp_path / "q", features=3)
    assert folds.verify().problems == apart.verify().problems == ()
    wrong = Population(apart.path, apart.manifest.model_copy(update={"needs": (FOLDED,)}))
    (problem,) = wrong.verify().problems
    assert "is not in normal form" in problem and "'A'" in problem


def test_a_reader_that_does_not_know_the_rule_refuses(tmp_path, monkeypatch):
    """It would append the other spelling as somebody new."""
    ingest(parquet_of(tmp_path / "a.parquet", [("a", 1)]), tmp_path / "p", features=3)
    monkeypatch.setattr(manifest, "KNOWN", tuple(name for name in manifest.KNOWN if name != STRIPPED))
    with pytest.raises(ManifestError, match=r"needs stripped-ids, .* does not know"):
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


# --- one person, one id ---------------------------------------------------------------------------------------------

SPELLINGS = ("C 1", " C 1 ", "\u00a0C 1\u2003", "\u3000C 1", "C 1\t")
UNSEEN_IDS = ("C\u200b1", "C\u200d1", "\ufeffC1", "C\u00ad1", "C\u20281", "C\x1f1", "C\t1", "C\ufe0f1", "C\u03781")
FAST, SLOW = ("csv", "matrix"), ("jsonl", "parquet", "npz", "npy", "text")
SOURCES = [*FAST, *(pytest.param(form, marks=pytest.mark.slow) for form in SLOW)]


def source(folder, form, ids):
    """(a source with one row or token for each id, the options to read it)"""
    folder.mkdir()
    numbers = list(range(len(ids)))
    if form == "text":
        for number, one in enumerate(ids):
            (folder / one).mkdir(exist_ok=True)
            (folder / one / f"{number}.txt").write_text("one")
        return folder, {"client": "folder", "vocabulary": ["one"]}
    if form == "csv":
        return write_csv(folder / "a.csv", ["client", "x"], zip(ids, numbers, strict=True)), {}
    if form == "jsonl":
        lines = (json.dumps({"client": one, "x": number}) for one, number in zip(ids, numbers, strict=True))
        (folder / "a.jsonl").write_text("\n".join(lines))
        return folder / "a.jsonl", {}
    if form == "parquet":
        parquet.write_table(pa.table({"client": list(ids), "x": numbers}), folder / "a.parquet")
        return folder / "a.parquet", {}
    if form == "matrix":
        wide = sp.csr_matrix(np.ones((len(ids), 1), int))
        arrays = {name: getattr(wide, name) for name in ("data", "indices", "indptr", "shape")}
        np.savez(folder / "a.npz", client=np.array(ids), **arrays)
        return folder / "a.npz", {"client": "client"}
    if form == "npy":
        np.save(folder / "ids.npy", np.array(ids))
        np.save(folder / "a.npy", np.ones((len(ids), 1)))
        return folder / "a.npy", {"client": "ids.npy"}
    np.savez(folder / "a.npz", x=np.ones((len(ids), 1)), client=np.array(ids))
    return folder / "a.npz", {}


@pytest.mark.parametrize("form", SOURCES)
def test_one_person_is_one_client_whatever_the_blanks(tmp_path, form):
    where, options = source(tmp_path / "a", form, SPELLINGS)
    population = begun(ingest(where, tmp_path / "p", **options))
    assert ids_of(population) == ["C 1"] and population.n_rows == len(SPELLINGS)
    assert population.manifest.provenance.alike_ids == 0 and describe(population)["alike_ids"] == 0
    where, options = source(tmp_path / "b", form, ["b\u2002", *reversed(SPELLINGS)])
    more = ingest(where, tmp_path / "p", append=True, **options)
    assert ids_of(more) == ["C 1", "b"] and more.manifest.order == ((1, 1), (2, 1))
    gone = forget(more, clients=["\u2009C 1", "nobody "])
    assert (gone.clients, gone.unknown) == (1, 1)
    back = ingest(where, tmp_path / "p", append=True, **options)
    assert ids_of(back) == ["", "b", "C 1"] and back.manifest.order == ((0, 1), (2, 1), (1, 1)), "the old cohort"
    assert back.verify().problems == ()


@pytest.mark.parametrize("form", SOURCES)
def test_unseen_characters_are_refused_and_counted(tmp_path, form):
    where, options = source(tmp_path / "a", form, ["C1", *UNSEEN_IDS])
    if form == "text":
        with pytest.raises(IngestError, match="cannot be the id of a client: the client id contains"):
            ingest(where, tmp_path / "p", **options)
        return
    with pytest.raises(IngestError, match=f"has {len(UNSEEN_IDS)} bad rows") as refused:
        ingest(where, tmp_path / "p", **options)
    places = str(refused.value).splitlines()[1:-1]
    assert len(places) == len(UNSEEN_IDS) and all("the client id contains" in place for place in places)
    assert [re.search(r"(?:line|row) (\d+)", place)[1] for place in places] == [
        str(number + {"csv": 2, "jsonl": 1}.get(form, 0)) for number in range(1, len(UNSEEN_IDS) + 1)
    ]
    assert "U+" not in str(refused.value.without_values)
    made = ingest(where, tmp_path / "p", tolerance=len(UNSEEN_IDS), **options)
    assert ids_of(made) == ["C1"] and made.manifest.provenance.bad_rows == len(UNSEEN_IDS)


def test_unseen_characters_are_refused_everywhere_else(tmp_path):
    with PopulationWriter(tmp_path / "p", "rows", 1) as writer:
        for one in (*UNSEEN_IDS, "C\ud8001", " ", "\u3164"):
            with pytest.raises(PopulationError, match="the client id"):
                writer.write([one], (np.array([0, 1]), np.ones((1, 1))))
            with pytest.raises(PopulationError, match="the client id"):
                writer.write_large(one, [np.ones((1, 1))])
        writer.write(["C1", "\ue000"], (np.array([0, 1, 1]), np.ones((1, 1))))
        population = writer.commit()
    unknown = forget(population, clients=[*UNSEEN_IDS, "C\ud8001", " ", ""])
    assert (unknown.clients, unknown.unknown) == (0, len(UNSEEN_IDS) + 3)
    assert Population.open(population.path).version == 1, "no client of a population has such an id"
    np.savez(tmp_path / "a.npz", x=np.ones((2, 1)), client=np.array([b"C\xff", b"C\xfe"]))
    with pytest.raises(IngestError, match="has 2 bad rows"):
        ingest(tmp_path / "a.npz", tmp_path / "q")  # or both would be C and the same replacement character
    with pytest.raises(PopulationError, match="control character"):
        checked_groups(["C1", "C\x001"], 2)
    assert checked_groups(["C1 ", "C1"], 2).tolist() == ["C1", "C1"]
    assert checked_groups([2, 1], 2).tolist() == [2, 1]


ALIKE = ("C 1", "c 1", "\uff23 1", "C\u00a01", "C  1", "B", "b", "D", "e")  # two groups


@pytest.mark.parametrize("form", SOURCES)
def test_ids_that_differ_in_case_or_width_are_counted_and_joined_on_request(tmp_path, form):
    where, options = source(tmp_path / "a", form, ALIKE)
    apart = ingest(where, tmp_path / "apart", **options)
    assert apart.n_clients == len(ALIKE) and apart.manifest.provenance.alike_ids == 2
    assert describe(apart)["alike_ids"] == 2 and apart.verify().ok
    population = begun(ingest(where, tmp_path / "p", fold_ids=True, **options))
    assert {*ids_of(population)} == {"c 1", "b", "d", "e"} and population.n_rows == len(ALIKE)
    assert population.manifest.id_rule == FOLDED and population.manifest.provenance.alike_ids == 0
    more = ingest(where, tmp_path / "p", append=True, **options)
    assert ids_of(more) == ids_of(population) and more.n_rows == 2 * len(ALIKE) and more.verify().ok
    gone = forget(more, clients=["C\u20041", "E"])
    assert (gone.clients, gone.unknown) == (2, 0)
    where, options = source(tmp_path / "b", form, ["  \uff43  1", "f"])
    back = ingest(where, tmp_path / "p", append=True, **options)
    founders = describe(back)["cohorts"][0]
    assert founders["clients"] == 3 and back.manifest.order[-1] == (3, 1), "the old cohort, whatever the spelling"
    assert compact(back).population.manifest.id_rule == FOLDED
    with pytest.raises(PopulationError, match="are not folded"):
        ingest(where, tmp_path / "apart", append=True, fold_ids=True, **options)


def test_groups_are_counted_over_all_blocks_and_versions(tmp_path):
    rows = parquet_of(tmp_path / "a.parquet", [(f"u{number}", 0) for number in range(50)])
    made = ingest(rows, tmp_path / "p", features=1, clients_per_leaf=4, clients_per_block=4)
    assert made.manifest.provenance.alike_ids == 0 and b"alike_ids" not in manifest.encode(made.manifest)
    more = ingest(parquet_of(tmp_path / "b.parquet", [("U7", 0), ("U7 x", 0)]), made.path, append=True)
    assert more.manifest.provenance.alike_ids == 1
    assert begun(more).manifest.provenance.alike_ids == 1  # a version with the same ids


def test_entries_are_folded_by_their_client(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("client,when,token\n C1,2026-01-05,1\nc1,2026-01-06,1\nc1,2026-01-13,2\nd,2026-01-13,2\n")
    calendar = {"period": "week", "time": "when", "first": "2026-W02", "through": "2026-W03"}
    apart = ingest(file, tmp_path / "apart", features=3, **calendar)
    assert apart.n_clients == 4 and apart.manifest.provenance.alike_ids == 1 and apart.verify().ok
    folds = ingest(file, tmp_path / "p", features=3, fold_ids=True, **calendar)
    assert counts_of(folds) == {"2026-W02/c1": {1: 2}, "2026-W03/c1": {2: 1}, "2026-W03/d": {2: 1}}
    again = ingest(file, tmp_path / "p", append=True)
    assert ids_of(again) == ids_of(folds) and again.verify().problems == ()
    assert forget(again, clients=["C1 "]).clients == 2


def test_records_have_no_ids_to_fold(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    with pytest.raises(IngestError, match="no id to fold"):
        ingest(tmp_path / "a.csv", tmp_path / "p", unit="record", fold_ids=True)
    (tmp_path / "A.csv").write_text("x\n3\n")
    made = ingest([tmp_path / "a.csv", tmp_path / "A.csv"], tmp_path / "p", unit="record")
    assert made.n_clients == 3 and made.manifest.provenance.alike_ids == 0


def test_a_document_stays_in_its_half_whatever_the_blanks(tmp_path):
    rows = [(f"{blank}c{number}", f"d{number % 7}", 0) for number in range(60) for blank in ("", " ", "\u2003")]
    parquet.write_table(
        pa.table(dict(zip(("client", "doc", "token"), zip(*rows, strict=True), strict=True))), tmp_path / "a.parquet"
    )
    made = ingest(tmp_path / "a.parquet", tmp_path / "p", features=1, documents="doc")
    train, heldout = counts_of(made), counts_of(made, heldout=True)
    assert {(len(train[one]), len(heldout[one])) for one in train} == {(0, 1), (1, 0)} and made.n_clients == 60


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{}", "a{}B"])
def test_the_rule_is_stable_for_every_character(form):
    """A stored id is stored in the same way again, folded or not; nothing that is refused comes of folding."""
    codes = [*range(0x40000), *range(0xE0000, 0xE1000), 0xF0000, 0x10FFFF]  # nothing between is assigned
    texts = [form.format(chr(code)) for code in codes]
    made, faults = spelled_or_why(texts, STRIPPED)
    for code, text, fault in zip(codes, texts, faults, strict=True):
        unseen = unicodedata.category(chr(code)) in HIDDEN or UNSEEN.search(text)
        assert bool(fault) == bool(unseen or (text in BLANKS)), f"{code:x}"
    kept = [one for one, fault in zip(made, faults, strict=True) if not fault]
    assert identifiers.spelled(kept, STRIPPED) == kept and len(kept) > 140_000
    small = folded(kept)
    assert folded(small) == small and all(small) and spelled_or_why(small, FOLDED) == (small, [])


@settings(max_examples=100, deadline=None)
@given(one=names, two=names)
def test_folding_is_a_rule_of_its_own(one, two):
    stored = identifiers.spelled([one, two], STRIPPED)
    small = folded(stored)
    assert folded(small) == small == identifiers.spelled(small, FOLDED) == identifiers.spelled([one, two], FOLDED)
    assert identifiers.spelled(stored, STRIPPED) == stored
    seen = SeenIds(folds=True)
    seen.add(stored, 0)
    assert seen.alike() == (stored[0] != stored[1] and small[0] == small[1])


@pytest.mark.slow
def test_the_commands(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("client,token\nA,1\na,1\n A ,1\n")
    told = works("population", "ingest", file, tmp_path / "p", "--option", "features=3").out
    groups = "Groups of client ids that differ only in case, width or inner blanks: 1."
    assert groups in told
    assert groups in works("population", "describe", tmp_path / "p").out
    told = works("population", "ingest", file, tmp_path / "f", "--option", "features=3", "--fold-ids").out
    assert "roups of client ids" not in told and ids_of(Population.open(tmp_path / "f")) == ["a"]
    works("population", "ingest", file, tmp_path / "f", "--append")


@pytest.mark.parametrize("order", ["<", ">"])
def test_an_array_of_ids_beyond_unicode_is_refused(tmp_path, order):
    ids = np.array([0x61, 0x110000, 0x62], f"{order}u4").view(f"{order}U1")
    np.savez(tmp_path / "a.npz", x=np.eye(3), client=ids)
    with pytest.raises(IngestError, match="truncated or damaged"):
        ingest(tmp_path / "a.npz", tmp_path / "p")
    assert not (tmp_path / "p").exists()
