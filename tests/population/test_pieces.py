"""Words as pieces of a public list: by hand, against another implementation, in text folders and in populations of
words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import PopulationError
from fedcore.population.encoding import encode
from fedcore.population.ingest.ingest import ingest
from fedcore.population.pieces import splitter
from fedcore.population.words import OTHER
from tests.population.contents import counts_of, write_csv

LIST = ("un", "##afford", "##able", "##a", "able", "a", "##b", "unable")


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("unaffordable", ["un", "##afford", "##able"]),
        ("unable", ["unable"]),  # a word of the list stays whole
        ("able", ["able"]),
        ("ab", ["a", "##b"]),
        ("abb", ["a", "##b", "##b"]),
        ("unafford", ["un", "##afford"]),
        ("b", []),  # no piece begins a word with it
        ("unaffordableness", []),  # its end cannot be spelled
        ("", []),
        ("un'able", ["un", "able"]),  # no piece has an apostrophe
        ("able_able", ["able", "able"]),
        ("able'z", []),
        ("'", []),
    ],
)
def test_a_word_is_its_longest_pieces_from_the_start(word, pieces):
    assert splitter(LIST)(word) == tuple(map(LIST.index, pieces))
    with_other = (*LIST, OTHER)
    assert splitter(with_other)(word) == (tuple(map(LIST.index, pieces)) or (len(LIST),))


def test_words_of_a_plain_list_and_of_one_from_clients_stay_whole():
    assert splitter(("un", "able"))("unable") == ()
    assert splitter(("un", "##able", OTHER), split=False)("unable") == (2,)
    assert splitter(("un", "##able", OTHER), split=False)("un") == (0,)
    assert splitter(("#", "##"))("ab") == ()


@given(st.text("ab", max_size=30), st.sets(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=12))
def test_pieces_spell_their_word(word, chosen):
    """And without them, or with the letters in the list, none is left out."""
    listed = tuple(sorted(chosen) + ["##" + one for one in sorted(chosen)])
    spelled = "".join(listed[feature].removeprefix("##") for feature in splitter(listed)(word))
    assert spelled in ("", word)
    letters = tuple(dict.fromkeys((*listed, "a", "b", "##a", "##b")))
    assert "".join(letters[feature].removeprefix("##") for feature in splitter(letters)(word)) == word


def test_a_folder_of_text_and_its_words_encoded_give_the_same_counts(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/ann.txt").write_text("Unaffordable! unable; able, able\nzebra")
    (tmp_path / "texts/bob.txt").write_text("ab a")
    listed = tmp_path / "pieces.txt"
    listed.write_text("\n".join([*LIST, OTHER]) + "\n")
    direct = ingest(tmp_path / "texts", tmp_path / "direct", vocabulary=listed, nominal_clients=2)
    words = ingest(tmp_path / "texts", tmp_path / "words", kind="words", nominal_clients=2)
    encoded = encode(words, tmp_path / "encoded", LIST, split=True)
    wanted = {"ann.txt": {0: 1, 1: 1, 2: 1, 4: 2, 7: 1, 8: 1}, "bob.txt": {5: 2, 6: 1}}
    for population in (direct, encoded):
        assert population.vocabulary() == (*LIST, OTHER)
        assert counts_of(population) == wanted
    whole = encode(words, tmp_path / "whole", LIST)
    assert counts_of(whole)["bob.txt"] == {5: 1, 8: 1}


def test_appended_text_is_split_as_before(tmp_path):
    for name, text in (("one", "unaffordable"), ("two", "unaffordable ab")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ann.txt").write_text(text)
    listed = tmp_path / "pieces.txt"
    listed.write_text("\n".join(LIST))
    ingest(tmp_path / "one", tmp_path / "p", vocabulary=listed, nominal_clients=1)
    grown = ingest(tmp_path / "two", tmp_path / "p", append=True)
    assert counts_of(grown)["ann.txt"] == {0: 2, 1: 2, 2: 2, 5: 1, 6: 1}


def test_counts_of_pieces_that_are_too_large_are_refused(tmp_path):
    source = write_csv(tmp_path / "w.csv", ("client", "token", "count"), [("ann", "abb", 2**53)])
    words = ingest(source, tmp_path / "words", kind="words", nominal_clients=1)
    with pytest.raises(PopulationError, match=r"2\*\*53"):
        encode(words, tmp_path / "encoded", LIST, split=True)
    assert not (tmp_path / "encoded" / "manifest.json").exists()
    assert counts_of(encode(words, tmp_path / "whole", ["abb"])) == {"ann": {0: 2**53}}
