"""Ids that come twice, or are equal once folded, are found in memory and in files alike."""

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import PopulationError
from fedcore.population import same_ids
from fedcore.population.identifiers import folded
from fedcore.population.same_ids import SeenIds
from fedcore.population.store import Population
from tests.conftest import small_counts, write_counts

IDS = st.lists(st.sampled_from(["", "a", "A", "b", "B ", "B", "c", "d", "e", "f"]), min_size=1, max_size=30)


@pytest.fixture(params=[2**20, 3], ids=["in memory", "in files"])
def held(request, monkeypatch):
    monkeypatch.setattr(same_ids, "HELD", request.param)


def plainly(ids: list[str]) -> tuple[bool, int]:
    """Whether one of them comes twice, and how many groups of different ones are equal once folded."""
    there = [one for one in ids if one]
    groups: dict[str, set[str]] = {}
    for one, other in zip(there, folded(there), strict=True):
        groups.setdefault(other, set()).add(one)
    return len({*there}) < len(there), sum(len(group) > 1 for group in groups.values())


@given(st.lists(IDS, min_size=1, max_size=6), st.sampled_from([2**20, 3]))
def test_they_are_those_of_a_plain_count(blocks, limit):
    first = np.cumsum([0, *map(len, blocks)])[:-1]
    with pytest.MonkeyPatch.context() as patch, closing(SeenIds(folds=True)) as seen:
        patch.setattr(same_ids, "HELD", limit)
        for ids, start in zip(blocks, first.tolist(), strict=True):
            seen.add(ids, start)
        every = [one for ids in blocks for one in ids]
        twice = seen.twice(first, lambda number: np.array(blocks[number]))
        assert (twice is not None, seen.alike()) == plainly(every)
        assert twice is None or every.count(twice) > 1


def test_entries_are_compared_as_entries_and_their_clients_as_clients(held):
    with closing(SeenIds(folds=True)) as seen:
        seen.add(["1/a", "2/a", "2/b"], 0, ["a", "a", "b"])
        seen.add(["1/A", "2/c", "3/b"], 3, ["A", "c", "b"])
        assert seen.twice(np.array([0, 3]), lambda number: np.array(["never asked"])) is None and seen.alike() == 1


def test_equal_hashes_of_different_ids_are_no_equal_ids(held, monkeypatch):
    monkeypatch.setattr(same_ids, "_hashes", lambda texts: np.ones(len(texts), np.int64))
    with closing(SeenIds(folds=False)) as seen:
        seen.add(["a", "b"], 0)
        seen.add(["c", "d"], 2)
        blocks = [np.array(["a", "b"]), np.array(["c", "d"])]
        assert seen.twice(np.array([0, 2]), blocks.__getitem__) is None
        blocks[1][1] = "a"
        assert seen.twice(np.array([0, 2]), blocks.__getitem__) == "a"


def test_no_file_is_left(held, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    write_counts(tmp_path / "p", small_counts(40), leaf=4, block=8)
    assert Population.open(tmp_path / "p").verify().ok
    assert not [*(tmp_path / "t").iterdir()]


def test_no_room_for_files(tmp_path, monkeypatch):
    monkeypatch.setattr(same_ids, "HELD", 3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(PopulationError, match="ids of clients cannot be compared.*No such file") as refused:
        write_counts(tmp_path / "p", small_counts(40), leaf=4, block=8)
    assert "TMPDIR to a folder with 32 free bytes" in refused.value.remedy and not (tmp_path / "p").exists()
