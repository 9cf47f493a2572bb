"""Documents of clients, dealt to halves: by client and document alone, whatever the order, memory and appends."""

import hashlib
import random
from collections import Counter
from io import StringIO

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcore.errors import IngestError, ManifestError
from fedcore.operations.population_page import population_page
from fedcore.population import manifest as manifests
from fedcore.population.conversion import begin_cohorts, open_cohort
from fedcore.population.copying import copy_population
from fedcore.population.describing import describe
from fedcore.population.erasing import compact, forget
from fedcore.population.ingest import ingest as ingest_module
from fedcore.population.ingest import sources_text
from fedcore.population.ingest.batches import Account
from fedcore.population.ingest.documents import second_half
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.ingest.sources_table import TableSource
from fedcore.population.ingest.sources_text import TextSource
from fedcore.population.ingest.table_files import CsvFile
from fedcore.population.store import Population
from tests.command import works

from .contents import counts_of, everything_in, ids_of, rows_of, write_csv

MIB = 1 << 20
HEADER = ["client", "post", "token"]
POSTS = {"documents": "post", "features": 5}
TINY = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
rows_of_posts = st.lists(
    st.tuples(st.sampled_from(["ann", "b", "bo", "é"]), st.sampled_from("1 2 3 4 o1 oé x".split()), st.integers(0, 4)),
    min_size=1,
    max_size=60,
)


def half_of(client: str, document: str) -> int:
    """The rule, written down a second time."""
    text = len(client.encode()).to_bytes(8, "little") + client.encode() + document.encode()
    return hashlib.blake2b(text, digest_size=1, person=b"fedcore halves 1").digest()[0] % 2


def dealt(rows, name=lambda client, *_: client):
    """The slow, obvious answer: {client: counts} of each half."""
    halves = [{name(row[0], *row[3:]): Counter() for row in rows} for _ in range(2)]
    for client, document, token, *rest in rows:
        halves[half_of(client, document)][name(client, *rest)][token] += 1
    return [{client: dict(counts) for client, counts in half.items()} for half in halves]


def both(population):
    return [counts_of(population), counts_of(population, heldout=True)]


def some_rows(rows=300, clients=12, seed=1):
    draw = random.Random(seed)
    return [(f"c{draw.randrange(clients)}", f"d{draw.randrange(6)}", draw.randrange(5)) for _ in range(rows)]


def made(folder, rows, **options):
    folder.mkdir(parents=True, exist_ok=True)
    return ingest(write_csv(folder / "a.csv", HEADER, rows), folder / "p", **{**POSTS, **options})


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_halves_worked_by_hand():
    pairs = [("ann", "1"), ("ann", "2"), ("a", "nn1"), ("", ""), ("é", "ü")]
    assert second_half(pairs).tolist() == [bool(half_of(*pair)) for pair in pairs]
    assert second_half([]).tolist() == []
    documents = [f"post {number}" for number in range(4000)]
    of_ann, of_bob = (second_half((client, one) for one in documents) for client in ("ann", "bob"))
    for share in (of_ann.mean(), of_bob.mean(), (of_ann == of_bob).mean()):
        assert abs(share - 0.5) < 0.04, "halves, and a document that two clients share lies in unrelated ones: 5 sd"


@pytest.mark.heavy
@pytest.mark.slow
@settings(TINY, max_examples=25)
@given(
    rows=rows_of_posts,
    data=st.data(),
    places=st.lists(st.integers(0, 60), max_size=3),
    size=st.tuples(st.integers(1, 3), st.integers(1, 6)),
    memory=st.sampled_from([60, 500, 10**7]),
)
def test_order_files_and_memory_change_nothing(tmp_path_factory, rows, data, places, size, memory):
    rows = data.draw(st.permutations(rows))
    bounds = [0, *sorted(min(place, len(rows)) for place in places), len(rows)]
    folder = tmp_path_factory.mktemp("in")
    parts = [rows[low:high] for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
    files = [write_csv(folder / f"{number}.csv", HEADER, part) for number, part in enumerate(parts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest_module, "SPILL_SHARE", 16 * MIB // memory)
        population = ingest(
            files, folder / "p", memory=16 * MIB, clients_per_leaf=size[0], clients_per_block=size[1], **POSTS
        )
    assert both(population) == dealt(rows)
    assert population.manifest.halves == "document" and population.manifest.needs == ("stripped-ids", "halves")


def test_batches_and_careful_parsing_change_nothing(tmp_path):
    """Rows of one document lie in several batches; a quoted line break goes through the other parser."""
    rows = some_rows(3000)
    whole = dealt(rows)
    file = write_csv(tmp_path / "a.csv", HEADER, rows)
    source = TableSource([CsvFile(file, ",")], IngestRequest(features=5, documents="post"), memory=24 * 4096)
    found, batches = [{}, {}], list(source.batches(Account()))
    for batch in batches:
        for code, token, amount in zip(
            batch.codes.tolist(), batch.tokens.tolist(), batch.amounts.tolist(), strict=True
        ):
            found[batch.heldout].setdefault(batch.ids[code], Counter())[token] += amount
    assert len(batches) > 8
    assert [{client: dict(counts) for client, counts in half.items()} for half in found] == whole
    odd = [("q, q", "d\n1", 1), ("q, q", 'd"2"\n', 2), *rows[:50]]
    assert both(made(tmp_path / "odd", odd)) == dealt(odd)


@pytest.mark.slow
@TINY
@given(rows=rows_of_posts, place=st.integers(1, 59), memory=st.sampled_from([60, 500, 10**7]))
def test_appending_is_ingest_of_everything(tmp_path_factory, rows, place, memory):
    folder = tmp_path_factory.mktemp("p")
    with pytest.MonkeyPatch.context() as patch:
        for share in ("SPILL_SHARE", "RANGE_SHARE"):
            patch.setattr(ingest_module.appending, share, 16 * MIB // memory)
        population = made(folder, rows[:place], clients_per_leaf=2, clients_per_block=2)
        first = both(population)
        if rows[place:]:
            file = write_csv(folder / "b.csv", HEADER, rows[place:])
            population = ingest(file, folder / "p", append=True, documents="post", memory=16 * MIB)
    assert both(population) == dealt(rows)
    assert both(Population.open(population.path, 1)) == first and population.verify().ok


@pytest.mark.parametrize("number", [int, str])
def test_dense_rows_of_parquet(tmp_path, number):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rows = [("ann", 1, 0.5), ("bob", 1, 1.5), ("ann", 2, 2.5), ("ann", 1, 3.5), ("bob", 7, 4.5)]
    columns = {
        "client": [row[0] for row in rows],
        "visit": [number(row[1]) for row in rows],
        "x": [row[2] for row in rows],
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    population = ingest(tmp_path / "a.parquet", tmp_path / "p", documents="visit")
    expected = [{"ann": [], "bob": []}, {"ann": [], "bob": []}]
    for client, visit, x in rows:
        expected[half_of(client, str(visit))][client].append((x,))
    assert [rows_of(population), rows_of(population, heldout=True)] == expected and population.features == 1


def test_a_lone_document_lies_in_one_half_and_stays_there(tmp_path):
    rows = [(f"c{number}", "only", 1) for number in range(40)]
    population = made(tmp_path, rows)
    first, second = both(population)
    empty = {client for client, counts in first.items() if not counts}
    assert empty == {client for client, counts in second.items() if counts} and 5 < len(empty) < 35
    again = [*rows, *((f"c{number}", "another", 2) for number in range(40))]
    population = ingest(write_csv(tmp_path / "b.csv", HEADER, again), population.path, append=True, documents="post")
    assert both(population) == dealt(rows + again)


def test_no_id_of_a_document_is_stored(tmp_path):
    population = made(tmp_path, [("ann", f"secret-post-{number}", 1) for number in range(4)])
    assert b"secret-post" not in everything_in(population.path)
    assert population.manifest.provenance.options["documents"] == "post"


# --- text -------------------------------------------------------------------------------------------------------------

WORDS = ["alpha", "beta", "gamma", "delta"]


def test_files_of_a_clients_folder_are_its_documents(tmp_path):
    expected = [{"ann": {}, "bob": {}}, {"ann": {}, "bob": {}}]
    for client in ("ann", "bob"):
        for number in range(6):
            file = tmp_path / "in" / client / "sub" / f"{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{WORDS[number % 4]} unknown")
            half = expected[half_of(client, f"sub/{number}.txt")][client]
            half[number % 4] = half.get(number % 4, 0) + 1
    population = ingest(tmp_path / "in", tmp_path / "p", vocabulary=WORDS, client="folder", documents="file")
    assert both(population) == expected and all(expected[0].values()) and all(expected[1].values())
    assert population.manifest.halves == "document"


def long_text(seed=1, lines=400):
    draw = random.Random(seed)
    return "".join(" ".join(draw.choices(WORDS, k=draw.randrange(0, 20))) + "\n" for _ in range(lines))


def test_sections_of_a_file(monkeypatch):
    text = long_text()
    cut = list(sources_text.sections(StringIO(text)))
    assert "".join(cut) == text and len(cut) > 5 and all(one.endswith("\n") for one in cut)
    assert all(len(one) >= sources_text.SECTION > len(one[: one[:-1].rfind("\n") + 1]) for one in cut[:-1])
    assert list(sources_text.sections(StringIO("no line ends here"))) == ["no line ends here"]
    assert list(sources_text.sections(StringIO(""))) == []
    monkeypatch.setattr(sources_text, "PIECE", 64)
    monkeypatch.setattr(sources_text, "SECTION", 100)
    one_line = " ".join(text.split())
    cut = list(sources_text.sections(StringIO(one_line)))
    assert "".join(cut) == one_line and max(map(len, cut)) <= 200
    assert Counter(word for part in cut for word in part.split()) == Counter(one_line.split()), "no word is cut"


@pytest.mark.parametrize("piece", [64, 1 << 20])
def test_sections_are_dealt_and_nothing_is_lost(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(sources_text, "PIECE", piece)
    (tmp_path / "in").mkdir()
    texts = {"a.txt": long_text(1), "b.txt": long_text(2), "short.txt": "alpha", "empty.txt": ""}
    for name, text in texts.items():
        (tmp_path / "in" / name).write_text(text)
    population = ingest(tmp_path / "in", tmp_path / "p", vocabulary=WORDS, documents="section")
    expected = [{name: Counter() for name in texts} for _ in range(2)]
    for name in texts:
        for text in sources_text.sections(StringIO(texts[name])):
            expected[half_of(name, text)][name].update(WORDS.index(word) for word in text.split())
    assert both(population) == [{name: dict(counts) for name, counts in half.items()} for half in expected]
    assert all(both(population)[half]["a.txt"] for half in (0, 1))
    whole = counts_of(ingest(tmp_path / "in", tmp_path / "whole", vocabulary=WORDS))
    summed = {name: dict(expected[0][name] + expected[1][name]) for name in texts}
    assert whole == summed


# --- calendar periods, cohorts, forgetting, copies --------------------------------------------------------------------


def test_a_document_that_spans_two_periods_lies_in_one_half(tmp_path):
    draw = random.Random(3)
    dates = [f"2026-0{draw.choice((1, 2, 3))}-0{draw.randrange(1, 9)}" for _ in range(300)]
    rows = [(*row, when) for row, when in zip(some_rows(300), dates, strict=True)]
    calendar = {"period": "month", "time": "when", "first": "2026-01", "through": "2026-03"}
    header = [*HEADER, "when"]
    file = write_csv(tmp_path / "a.csv", header, rows[:200])
    population = ingest(file, tmp_path / "p", **POSTS, **calendar)
    file = write_csv(tmp_path / "b.csv", header, rows[200:])
    population = ingest(file, tmp_path / "p", append=True, documents="post")
    assert both(population) == dealt(rows, lambda client, when: f"{when[:7]}/{client}")
    assert population.manifest.needs == ("cohorts", "stripped-ids", "periods", "halves") and population.verify().ok
    later = open_cohort(population, through="2026-04")
    assert later.manifest.halves == "document"


@pytest.mark.slow
def test_cohorts_forgetting_and_copies_keep_the_fact(tmp_path):
    rows = some_rows()
    population = begin_cohorts(made(tmp_path, rows, clients_per_leaf=2), lambda *_: "0" * 32)
    assert population.manifest.halves == "document" and population.manifest.needs == (
        "cohorts",
        "stripped-ids",
        "halves",
    )
    file = write_csv(tmp_path / "b.csv", HEADER, [("new", "d1", 1)])
    population = ingest(file, population.path, append=True, documents="post")
    population = open_cohort(population)
    population = forget(population, clients=["c3"]).population
    assert population.manifest.needs == ("cohorts", "holes", "stripped-ids", "halves")
    population = compact(population).population
    expected = [
        {one: counts for one, counts in half.items() if one != "c3"} for half in dealt([*rows, ("new", "d1", 1)])
    ]
    assert both(population) == expected and population.manifest.halves == "document"
    back = write_csv(tmp_path / "c.csv", HEADER, [row for row in rows if row[0] == "c3"])
    population = ingest(back, population.path, append=True, documents="post")
    assert both(population) == dealt([*rows, ("new", "d1", 1)])
    copy_population(population.path, tmp_path / "copy")
    assert Population.open(tmp_path / "copy").manifest == population.manifest


def test_what_is_shown(tmp_path):
    population = made(tmp_path, some_rows(20), public_for_evaluation="made up")
    assert describe(population)["halves"] == "document"
    assert works("population", "describe", population.path, "--json").json["halves"] == "document"
    assert "yes, dealt by document" in population_page(str(population.path), tmp_path / "runs")


def test_the_command_line(tmp_path):
    rows = some_rows(40)
    file = write_csv(tmp_path / "a.csv", HEADER, rows)
    options = ("--documents", "post", "--option", "features=5", "--json")
    shown = works("population", "ingest", file, tmp_path / "p", *options)
    assert shown.json["halves"] == "document" and both(Population.open(tmp_path / "p")) == dealt(rows)


# --- what is refused --------------------------------------------------------------------------------------------------


def csr_parts():
    return {"data": [2], "indices": [1], "indptr": [0, 1], "shape": [1, 3]}


def refused(match, *args, **kwargs):
    with pytest.raises(IngestError, match=match) as caught:
        ingest(*args, **kwargs)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("", "the document id is missing"),
        ("  ", "the document id is missing"),
        ("NaN", "the document id is 'NaN', which stands for a missing one"),
        ("null", "the document id is 'null', which stands for a missing one"),
    ],
)
@pytest.mark.parametrize("careful", [False, True])
def test_rows_without_a_document_are_bad_rows(tmp_path, document, why, careful):
    head = 'eve,"x\ny",1\n' if careful else "eve,x,1\n"
    (tmp_path / "a.csv").write_text(f"client,post,token\n{head}ann,{document},1\nbob,d,2\n")
    line = 4 if careful else 3
    refused(rf"(?s)1 bad row:.*a\.csv, line {line}: {why}", tmp_path / "a.csv", tmp_path / "p", **POSTS)
    population = ingest(tmp_path / "a.csv", tmp_path / "p", tolerance=1, **POSTS)
    assert both(population) == dealt([("eve", "x\ny" if careful else "x", 1), ("bob", "d", 2)])


def test_parquet_without_a_document(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"client": ["a", "b"], "post": ["x", None], "token": [1, 2]}), tmp_path / "a.parquet")
    refused("row 1: the document id is missing", tmp_path / "a.parquet", tmp_path / "p", **POSTS)
    parquet.write_table(pa.table({"client": ["a"], "post": [1.0], "token": [1]}), tmp_path / "b.parquet")
    refused("column 'post' is of type double", tmp_path / "b.parquet", tmp_path / "p", **POSTS)


def test_columns_that_do_not_go_together(tmp_path):
    file = write_csv(tmp_path / "a.csv", [*HEADER, "when"], [("ann", "1", 1, "2026-01-05")])
    refused("no column 'thread'", file, tmp_path / "p", **{**POSTS, "documents": "thread"})
    for name in ("client", "token"):
        refused("that of the document and as another", file, tmp_path / "p", **{**POSTS, "documents": name})
    calendar = {"period": "month", "time": "when", "first": "2026-01", "through": "2026-03"}
    refused("that of the document and", file, tmp_path / "p", **calendar, **{**POSTS, "documents": "when"})
    refused("split into halves here", file, tmp_path / "p", heldout=file, **POSTS)
    refused("split into halves here", file, tmp_path / "p", halves="entry", **POSTS)
    refused("source has no held-out part", file, tmp_path / "p", features=5, halves="document")
    assert not (tmp_path / "p").exists()


def test_text_and_arrays_that_do_not_go_together(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("alpha")
    refused(
        "documents are each section, not 'post'", tmp_path / "in", tmp_path / "p", vocabulary=WORDS, documents="post"
    )
    with pytest.raises(IngestError, match="documents are each file"):
        TextSource(tmp_path / "in", tuple(WORDS), client="folder", documents="section")
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2)), client=np.array(["a", "b"]))
    refused("belongs to another format", tmp_path / "a.npz", tmp_path / "p", documents="post")


def test_what_is_appended_is_dealt_likewise(tmp_path):
    rows = some_rows(30)
    file = write_csv(tmp_path / "b.csv", HEADER, rows)
    by_document = made(tmp_path / "documents", rows).path
    refused("of the appended data are unknown", file, by_document, append=True)
    refused("of the appended data are unknown", file, by_document, append=True, heldout=file, halves="entry")
    plain = ingest(file, tmp_path / "plain", features=5).path
    refused("It is unknown how the clients' halves of .* were split", file, plain, append=True, documents="post")
    entries = ingest(file, tmp_path / "entries", features=5, heldout=file, halves="entry").path
    refused("are split by entry, but the appended data are not", file, entries, append=True)
    refused("are split by entry", file, entries, append=True, documents="post")
    assert ingest(file, entries, append=True, heldout=file, halves="entry").manifest.halves == "entry"
    said = ingest(file, by_document, append=True, heldout=file, halves="document")
    assert said.manifest.halves == "document" and said.version == 2
    nobody = write_csv(tmp_path / "none.csv", HEADER, [])
    assert ingest(nobody, by_document, append=True, documents="post").version == 3


def test_what_is_said_of_two_matrices(tmp_path):
    parts = {f"{half}_{name}": part for half in ("train", "test") for name, part in csr_parts().items()}
    np.savez(tmp_path / "a.npz", **parts)
    population = ingest(tmp_path / "a.npz", tmp_path / "p", halves="document")
    assert population.manifest.halves == "document" and population.has_heldout
    refused("source has no held-out part", tmp_path / "a.npz", tmp_path / "q", prefix="train", halves="document")


# --- manifests --------------------------------------------------------------------------------------------------------


def test_manifests_of_before_have_no_halves_and_others_need_them(tmp_path):
    file = write_csv(tmp_path / "a.csv", HEADER, [("ann", "1", 1)])
    plain = ingest(file, tmp_path / "plain", features=5, heldout=file).manifest
    assert plain.halves is None and plain.needs == ("stripped-ids",) and b'"halves"' not in manifests.encode(plain)
    by_document = made(tmp_path / "p", [("ann", "1", 1)]).manifest
    assert manifests.decode(manifests.encode(by_document), "here") == by_document
    for needs, halves in (((), "document"), (("halves",), None)):
        with pytest.raises(ManifestError, match="halves go with the need"):
            manifests.build(
                **{
                    **{name: getattr(plain, name) for name in type(plain).model_fields},
                    "needs": needs,
                    "halves": halves,
                }
            )


def test_a_reader_that_does_not_know_halves_says_so(tmp_path, monkeypatch):
    data = manifests.encode(made(tmp_path, [("ann", "1", 1)]).manifest)
    monkeypatch.setattr(manifests, "KNOWN", tuple(name for name in manifests.KNOWN if name != "halves"))
    with pytest.raises(ManifestError, match="needs halves, which this fedcore does not know") as caught:
        manifests.decode(data, "here")
    assert "newer fedcore" in caught.value.remedy


def test_ids_are_those_of_clients(tmp_path):
    population = made(tmp_path, some_rows(50))
    assert len(ids_of(population)) == len(set(ids_of(population))) == len({row[0] for row in some_rows(50)})


def test_a_document_lies_in_one_half_however_its_client_is_spelled():
    composed, apart = "Zo\u00eb", "Zoe\u0308"
    documents = [f"caf\u00e9 {number}" for number in range(40)]
    first = second_half((composed, document) for document in documents)
    again = second_half((apart, document.replace("\u00e9", "e\u0301")) for document in documents)
    assert first.any() and not first.all() and np.array_equal(first, again)
