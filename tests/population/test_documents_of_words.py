"""Documents of populations of words, and what encoding keeps."""

from fedcore.population.encoding import encode
from fedcore.population.ingest.ingest import ingest

from .contents import counts_of, write_csv
from .test_documents import HEADER, dealt, some_rows


def test_words_are_dealt_by_document_and_stay_so_when_they_are_encoded(tmp_path):
    words = ["ale", "bun", "cat", "dog", "emu"]
    rows = some_rows(200)
    file = write_csv(tmp_path / "a.csv", HEADER, [(client, post, words[token]) for client, post, token in rows])
    population = ingest(file, tmp_path / "p", kind="words", documents="post")
    assert population.manifest.halves == "document"
    encoded = encode(population, tmp_path / "e", words)
    assert encoded.manifest.halves == "document"
    assert [counts_of(encoded), counts_of(encoded, heldout=True)] == dealt(rows)
    again = write_csv(tmp_path / "b.csv", HEADER, [("new", "p", "cat")])
    more = ingest(again, encoded.path, append=True, documents="post")
    assert [counts_of(more), counts_of(more, heldout=True)] == dealt([*rows, ("new", "p", 2)])


def test_text_by_section(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("alpha beta gamma\n" * 1000)
    population = ingest(tmp_path / "in", tmp_path / "p", kind="words", documents="section")
    assert population.manifest.halves == "document" and population.has_heldout
