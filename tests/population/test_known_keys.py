"""Keys that are looked up are those that would be made."""

import numpy as np
import pytest

from fedcore.population.ingest.known_keys import KnownKeys
from fedcore.population.ingest.spill import keys_of


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


@pytest.mark.parametrize("form", ["{:d}", "{:08d}", "client-{:09d}", "{:016d}", "{:d} of many and many clients"])
def test_ids_that_differ_little_have_places_of_their_own(form):
    known, ids = KnownKeys(keys_of, 4 << 20), [form.format(number) for number in range(3000)]
    known(ids)
    assert known(ids)[1].mean() < 0.1  # two in a place: 3000 / (2 * 2**16) = 2 % of 2**16 places
