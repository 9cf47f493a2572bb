"""Documents of populations of words, and what encoding keeps."""

from collections import Counter

import numpy as np
import pytest

from fedcore.population.encoding import encode
from fedcore.population.ingest.ingest import ingest
from fedcore.population.words import WORD
from fedcore.training.vocabulary import Known, Lists
from tests.privacy.word_lists import sums_of

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


@pytest.mark.parametrize("public", [None, "made up"])
def test_lists_are_made_of_all_documents_of_a_client(tmp_path, public):
    """One list, whose weights have the norm of one client's, also of a word in both halves. But where somebody scores
    by the second halves, they are no source of words.
    """
    words = ["ale", "bun", "cat", "dog", "emu"]
    rows = some_rows(200, clients=20)
    file = write_csv(tmp_path / "a.csv", HEADER, [(client, post, words[token]) for client, post, token in rows])
    population = ingest(
        file, tmp_path / "p", kind="words", documents="post", clients_per_leaf=4, public_for_evaluation=public
    )
    asked, known = Lists(population, None), Known(np.empty(0, WORD))
    answers = [asked(known, index)["words"].value() for index in range(len(population.blocks))]
    found = sum((Counter(dict(zip(*(part.tolist() for part in one), strict=True))) for one in answers), Counter())
    halves = dealt(rows)
    clients = [Counter(halves[0][name]) + (Counter() if public else Counter(halves[1][name])) for name in halves[0]]
    assert found == sums_of([{words[token].encode(): n for token, n in client.items()} for client in clients])
    of_first = [{words[token].encode(): n for token, n in one.items()} for one in halves[0].values()]
    assert (found == sums_of(of_first)) == bool(public)


def test_text_by_section(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("alpha beta gamma\n" * 1000)
    population = ingest(tmp_path / "in", tmp_path / "p", kind="words", documents="section")
    assert population.manifest.halves == "document" and population.has_heldout
