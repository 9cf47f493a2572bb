"""Populations of words: what goes in comes out, in whatever order and memory; and the same clients encoded."""

import numpy as np
import pytest

from fedcore.errors import IngestError, PopulationError, WrongKind
from fedcore.population import erasing
from fedcore.population.encoding import encode
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.request import LEAST_MEMORY
from fedcore.population.store import Population
from fedcore.population.words import NO_WORD, OTHER, as_word, checked_words, records_of
from tests.population.contents import counts_of, everything_in, ids_of, write_csv

LINES = [
    ("ann", "tea", 3),
    ("bob", "tea", 1),
    ("ann", "secret of ann", 2),
    ("bob", "coffee", 4),
    ("cy", "café", 1),
    ("ann", "tea", 1),
    ("dee", "x" * 65, 7),
    ("dee", "two\nlines", 1),
    ("dee", OTHER, 2),
]


def words_of(population, heldout=False):
    """{client id: {word: count}}."""
    found = {}
    for index in range(len(population.blocks)):
        block = population.words(index, heldout)
        for number, one in enumerate(population.client_ids(index).tolist()):
            ptr, records = block.records(number, number + 1)
            assert ptr.tolist() == [0, len(records)]
            found[one] = {record["word"].decode(): int(record["count"]) for record in records}
    return found


@pytest.fixture
def source(tmp_path):
    return write_csv(tmp_path / "words.csv", ("client", "token", "count"), LINES)


@pytest.fixture
def words_population(tmp_path, source):
    return ingest(source, tmp_path / "open", kind="words", nominal_clients=10)


def test_words_come_out_as_they_went_in(words_population):
    assert words_of(words_population) == {
        "ann": {"tea": 4, "secret of ann": 2},
        "bob": {"tea": 1, "coffee": 4},
        "cy": {"café": 1},
        "dee": {"": 10},  # too long, of two lines, and the name of the cell of other words
    }
    assert words_population.n_rows == sum(count for *_, count in LINES)
    assert words_population.verify().ok


def test_a_word_is_one_line_of_at_most_64_bytes():
    assert as_word("x" * 64) == b"x" * 64 and as_word("é" * 32) == ("é" * 32).encode()
    for odd in ("", "x" * 65, "é" * 33, "a\0b", "a\n", "a\u2028b", "\x85", "\ud800", OTHER, "\x1c"):
        assert as_word(odd) == NO_WORD


def test_the_order_of_rows_and_the_memory_change_nothing(tmp_path):
    rng = np.random.default_rng(0)
    lines = [(f"c{rng.integers(300)}", f"w{rng.zipf(1.3) % 10**6}", int(rng.integers(1, 4))) for _ in range(20_000)]
    found = []
    for number, memory in enumerate((LEAST_MEMORY, 1 << 30)):
        file = write_csv(tmp_path / f"{number}.csv", ("client", "token", "count"), lines)
        rng.shuffle(lines)
        made = ingest(file, tmp_path / str(number), kind="words", memory=memory)
        found.append([(ids_of(made), words_of(made), [block.train for block in made.blocks])])
    assert found[0] == found[1]


def test_text_keeps_its_words_with_those_held_out(tmp_path):
    for folder, texts in (("train", ("The tea, the pot", "tea")), ("more", ("a pot", "a cup"))):
        (tmp_path / folder).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / folder / f"{number}.md").write_text(text)
    made = ingest(tmp_path / "train", tmp_path / "p", format="text", kind="words", heldout=tmp_path / "more")
    assert words_of(made) == {"0.md": {"the": 2, "tea": 1, "pot": 1}, "1.md": {"tea": 1}}
    assert words_of(made, heldout=True) == {"0.md": {"a": 1, "pot": 1}, "1.md": {"a": 1, "cup": 1}}
    encoded = encode(made, tmp_path / "encoded", ["pot", "tea"])
    assert counts_of(encoded) == {"0.md": {0: 1, 1: 1, 2: 2}, "1.md": {1: 1}}
    assert counts_of(encoded, heldout=True) == {"0.md": {0: 1, 2: 1}, "1.md": {2: 2}}


def test_a_large_client_needs_room_for_its_distinct_words_only(tmp_path):
    lines = [("one", f"w{number % 50}", 1) for number in range(60_000)] + [("two", "w1", 1)]
    file = write_csv(tmp_path / "s.csv", ("client", "token", "count"), lines)
    made = ingest(file, tmp_path / "p", kind="words", memory=LEAST_MEMORY)
    assert words_of(made) == {"one": {f"w{number}": 1200 for number in range(50)}, "two": {"w1": 1}}


def test_an_append_adds_to_known_clients(tmp_path, words_population):
    more = write_csv(tmp_path / "more.csv", ("client", "token", "count"), [("ann", "tea", 5), ("eve", "milk", 1)])
    made = ingest(more, tmp_path / "open", append=True)
    found = words_of(made)
    assert found["ann"] == {"tea": 9, "secret of ann": 2} and found["eve"] == {"milk": 1}
    assert made.id == words_population.id and made.verify().ok


def test_a_forgotten_client_leaves_no_word(tmp_path, words_population):
    assert b"secret of ann" in everything_in(tmp_path / "open")
    erasing.forget(words_population, clients=["ann"])
    assert b"secret of ann" not in everything_in(tmp_path / "open")
    left = Population.open(tmp_path / "open")
    assert words_of(left)["bob"] == {"tea": 1, "coffee": 4}
    encoded = encode(left, tmp_path / "encoded", ["tea"])
    assert counts_of(encoded)["bob"] == {0: 1, 1: 4} and encoded.holes == left.holes
    assert encoded.verify().ok


def test_nothing_reads_words_as_counts(words_population, tmp_path, source):
    with pytest.raises(WrongKind, match="population encode"):
        words_population.read(0)
    with pytest.raises(IngestError, match="without a vocabulary"):
        ingest(source, tmp_path / "p", kind="words", vocabulary=["tea"])
    with pytest.raises(WrongKind, match="already"):
        encode(ingest(source, tmp_path / "counts", vocabulary=["tea"]), tmp_path / "e", ["tea"])


def test_the_encoded_population_is_the_same_one(tmp_path, words_population):
    encoded = encode(words_population, tmp_path / "encoded", ["tea", "café"])
    assert counts_of(encoded) == {"ann": {0: 4, 2: 2}, "bob": {0: 1, 2: 4}, "cy": {1: 1}, "dee": {2: 10}}
    assert encoded.vocabulary() == ("tea", "café", OTHER)
    assert encoded.id == words_population.id and encoded.version == words_population.version + 1
    assert encoded.manifest.ledger == words_population.manifest.ledger
    assert encoded.manifest.nominal_clients == 10
    assert encoded.checksums()[words_population.version] == words_population.checksum
    assert b"secret of" not in everything_in(tmp_path / "encoded")
    with pytest.raises(PopulationError, match="already"):
        encode(words_population, tmp_path / "encoded", ["tea"])


def test_what_is_appended_to_the_encoded_population_falls_into_the_cell_of_others(tmp_path, words_population):
    encode(words_population, tmp_path / "encoded", ["tea"])
    more = write_csv(tmp_path / "more.csv", ("client", "token", "count"), [("ann", "tea", 5), ("eve", "milk", 2)])
    made = ingest(more, tmp_path / "encoded", append=True)
    assert counts_of(made)["ann"] == {0: 9, 1: 2} and counts_of(made)["eve"] == {1: 2}


def test_a_public_list_may_count_all_other_words_too(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("tea milk milk")
    made = ingest(tmp_path / "texts", tmp_path / "p", format="text", vocabulary=["tea", OTHER])
    assert counts_of(made) == {"a.md": {0: 1, 1: 2}}


@pytest.mark.parametrize("vocabulary", [[], [OTHER], ["tea", "tea"], ["tea", "x" * 65]])
def test_a_vocabulary_that_cannot_be_is_refused(tmp_path, words_population, vocabulary):
    with pytest.raises(PopulationError):
        encode(words_population, tmp_path / "encoded", vocabulary)


def test_words_are_checked_as_they_are_written():
    records = records_of(np.array([b"b", b"a", b"b", b"c"], "S64"), np.array([1, 2, 3, 0]))
    ptr, made = checked_words((np.array([0, 3, 4]), records), 2)
    assert ptr.tolist() == [0, 2, 2] and made.tolist() == [(b"a", 2), (b"b", 4)]
    for bad in ((np.array([0, 1]), records), (np.array([0, 4]), records["word"]), records):
        with pytest.raises(PopulationError):
            checked_words(bad, 1)
    with pytest.raises(PopulationError, match="2\\*\\*53"):
        checked_words((np.array([0, 2]), records_of(np.array([b"a", b"b"], "S64"), np.array([2**53, 2]))), 1)
