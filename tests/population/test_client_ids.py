"""Keys that are looked up are those that would be made."""

from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedcore.population import identifiers, layout, same_ids
from fedcore.population.ingest.client_ids import KnownKeys, chosen, encoded, plain_names, positions
from fedcore.population.ingest.indices import KnownClients
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.spill import keys_of
from tests.conftest import write_population
from tests.population.conftest import names, some_counts
from tests.population.contents import everything_in, write_csv


@pytest.mark.parametrize("memory", [1, 1 << 10, 1 << 16])
def test_looked_up_keys_are_those_of_the_ids(memory):
    """Ids of all lengths, of several bytes a letter, and more of them than the table holds."""
    generator = np.random.default_rng(memory)
    odd = ["a", "aé", "é" * 40, "x" * 64, "x" * 65, "x" * 300, "日本"]
    names = [*odd, *(f"client {number}" for number in range(300))]
    made = []

    def counted(ids):
        made.extend(ids)
        return keys_of(ids)

    known = KnownKeys(counted, memory)
    asked = 0
    for size in (300, 1, 0, 200, 250, 300):
        ids = [names[place] for place in generator.permutation(len(names))[:size]]
        before = len(made)
        keys, new = known(ids)
        np.testing.assert_array_equal(keys, keys_of(ids).reshape(-1, 2))
        assert [one for one, fresh in zip(ids, new, strict=True) if fresh] == made[before:]
        asked += size
    assert set(made) <= set(names) and (len(made) < asked / 2 if memory == 1 << 16 else len(made) > asked / 2)


def test_an_id_that_comes_again_is_not_new():
    known = KnownKeys(keys_of, 1 << 12)
    assert known(["a", "b"])[1].all()
    assert known(["b", "c"])[1].tolist() == [False, True]
    for odd in (["b\0", "b"], [""]):  # NUL is what words are filled up with
        keys, new = known(odd)
        assert new.all() and np.array_equal(keys, keys_of(odd))


@pytest.mark.parametrize("memory", [1 << 7, 1 << 16])
def test_what_begins_anew_has_no_ids_and_all_keys(memory):
    """Ids of every round are new in it, once, and their keys are made again only where they were forgotten."""
    made, ids = [], [f"client {number}" for number in range(200)]
    known = KnownKeys(lambda asked: made.extend(asked) or keys_of(asked), memory)
    for _ in range(3):
        known.begin_anew()
        seen = set()
        for wanted in (ids[:120], ids[80:]):
            keys, new = known(wanted)
            assert np.array_equal(keys, keys_of(wanted))
            assert seen.issuperset(one for one, fresh in zip(wanted, new, strict=True) if not fresh)
            seen.update(wanted)
        assert memory == 1 << 7 or not new[:40].any()
    assert (len(made) < 250) == (memory == 1 << 16)


def test_plain_names_are_those_of_the_text():
    """ASCII without NUL, each of a letter at least; also where Arrow begins in the middle."""
    texts = pa.array(["left out", "ann", "b", "and a longer one", "zoe"])[1:]
    names = plain_names(texts)
    assert [*names] == texts.to_pylist() and names[-1] == "zoe" and names[1:3] == ["b", "and a longer one"]
    assert chosen(names, np.array([0, 2])) == ["ann", "and a longer one"] and chosen(names, np.array([], int)) == []
    letters, lengths = encoded(names)
    assert letters.tobytes() == b"annband a longer onezoe" and lengths.tolist() == [3, 1, 16, 3]
    for odd in (["a", ""], ["a", "é"], ["a\0b"], []):
        assert plain_names(pa.array(odd, pa.string())) is None


@pytest.mark.parametrize("form", ["{:d}", "{:08d}", "client-{:09d}", "{:016d}", "{:d} of many and many clients"])
def test_ids_that_differ_little_have_places_of_their_own(form):
    known, ids = KnownKeys(keys_of, 4 << 20), [form.format(number) for number in range(3000)]
    known(ids)
    assert known(ids)[1].mean() < 0.1  # two in a place: 3000 / (2 * 2**16) = 2 % of 2**16 places


@pytest.mark.parametrize(
    ("low", "high"), [(0, 2**64 - 1), (7 << 58, (8 << 58) - 1), (5, 400), (3 << 48, (3 << 48) + 9)]
)
@pytest.mark.parametrize("clients", [1, 2, 37, 900])
def test_places_of_keys_are_those_of_a_search(low, high, clients):
    """Of keys over all 64 bits, in the range of a file of records, with the same first bits, and of few values."""
    generator = np.random.default_rng(clients)
    made = np.unique(generator.integers(low, high, clients, np.uint64, endpoint=True))
    for rows in (0, 1, 5 * clients):
        keys = made[generator.integers(0, len(made), rows)]
        np.testing.assert_array_equal(positions(made, keys), np.searchsorted(made, keys))


def test_places_of_keys_that_come_in_heaps_are_those_of_a_search():
    """As entries of two calendar periods have: of so many keys with the same first bits each is searched."""
    heap = np.arange(100, dtype=np.uint64)
    made = np.concatenate([(np.uint64(1) << np.uint64(48)) + heap, (np.uint64(9) << np.uint64(48)) + heap])
    keys = np.repeat(made, 3)[::-1]
    np.testing.assert_array_equal(positions(made, keys), np.searchsorted(made, keys))


@example(["a"] * 9 + ["b" * 99, ""])
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)))
def test_stored_ids_come_back(ids):
    data, lengths = identifiers.encode(ids)
    found = identifiers.decode(data, np.concatenate([[0], np.cumsum(lengths)]))
    assert found.tolist() == ids and found.dtype.kind == "U"


@pytest.mark.parametrize("held", [2**20, 7], ids=["in memory", "in files"])
def test_known_clients_are_found(tmp_path, monkeypatch, held):
    monkeypatch.setattr(same_ids, "HELD", held)
    population = write_population(tmp_path / "p", "counts", 7, names(0, 60), some_counts(60), leaf=4, block=8)
    asked = [*names(50, 100), *names(0, 3)]
    keys = keys_of(asked)
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    with closing(KnownClients(population, tmp_path / "known")) as known:
        parts = np.array_split(order, 5)
        found = {asked[at]: index for part in parts for at, index in zip(part, known.look_up(keys[part]), strict=True)}
    assert found == {**dict.fromkeys(asked, -1), **{names(at, 1)[0]: at for at in (0, 1, 2, *range(50, 60))}}


def test_keys_are_in_the_population_alone(tmp_path, monkeypatch):
    """A guess of an id can be compared with its key, so no process may leave one where no writer removes it."""
    monkeypatch.setattr(same_ids, "HELD", 3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    population = write_population(tmp_path / "p", "counts", 7, names(0, 60), some_counts(60), leaf=4, block=8)
    key, seen, look_up = keys_of(["user 3"]).tobytes(), [], KnownClients.look_up

    def spied(known: KnownClients, keys: np.ndarray) -> np.ndarray:
        seen.append([key in everything_in(folder) for folder in (population.path / layout.SPILL, tmp_path / "t")])
        return look_up(known, keys)

    monkeypatch.setattr(KnownClients, "look_up", spied)
    rows = write_csv(tmp_path / "more.csv", ["client", "token", "count"], [("user 3", 1, 1), ("new", 2, 1)])
    ingest(rows, population.path, append=True)
    assert seen == [[True, False]]
    assert not (population.path / layout.SPILL).exists() and not [*(tmp_path / "t").iterdir()]


def test_known_clients_whose_keys_begin_alike_are_found_one_by_one(tmp_path, monkeypatch):
    """Also if the first 64 bits are the last of a part, and the second client is asked for on its own."""
    monkeypatch.setattr(same_ids, "HELD", 2)
    population = write_population(tmp_path / "p", "counts", 7, names(0, 3), some_counts(3), leaf=1, block=2)
    first = dict(zip(names(0, 3), [5, 9, 9], strict=True))

    def alike(ids: list[str]) -> np.ndarray:
        return np.array([[first[one], one == "user 1"] for one in ids], np.uint64).reshape(-1, 2)

    monkeypatch.setattr("fedcore.population.ingest.indices.keys_of", alike)
    with closing(KnownClients(population, tmp_path / "known")) as known:
        found = [known.look_up(alike([one])).tolist() for one in ("user 0", "user 2", "user 1", "user 1")]
    assert found == [[0], [2], [1], [1]]
