"""Pieces that threads make ahead: in order, few at a time, and what goes wrong is told when its turn comes."""

import threading

import numpy as np
import pytest

from fedcore.population import writer
from fedcore.population.ingest import reading_ahead
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.reading_ahead import made_ahead, nothing_ahead, pieces_held, read_ahead
from fedcore.population.ingest.spill import Spill


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_pieces_come_in_order_and_few_are_held(monkeypatch, cores):
    monkeypatch.setattr(reading_ahead, "usable_cores", lambda: cores)
    taken = 0

    def raw():
        nonlocal taken
        for number in range(30):
            taken += 1
            yield number

    for done, (one, made) in enumerate(made_ahead(raw(), lambda number: (number**2, threading.get_ident()))):
        assert (one, made[0]) == (done, done**2) and taken - done <= cores + 1
        assert (made[1] == threading.get_ident()) == (cores == 1)
    assert taken == 30


def test_no_more_are_held_than_allowed(monkeypatch):
    monkeypatch.setattr(reading_ahead, "usable_cores", lambda: 4)
    taken = []
    for done, (one, _) in enumerate(made_ahead((taken.append(n) or n for n in range(9)), str, most=1)):
        assert one == done and len(taken) - done <= 2
    assert taken == [*range(9)]


@pytest.mark.parametrize("cores", [2, 4])
def test_whoever_would_wait_makes_a_later_piece_itself(monkeypatch, cores):
    """In order all the same; what goes wrong with a piece is told in its turn, whoever made it."""
    monkeypatch.setattr(reading_ahead, "usable_cores", lambda: cores)
    here, taken, makers = threading.get_ident(), [], set()

    def make(number):
        makers.add(threading.get_ident() == here)
        threading.Event().wait(0.002)
        return 1 / (number - 25)

    with pytest.raises(ZeroDivisionError):
        for done, (one, made) in enumerate(made_ahead((taken.append(n) or n for n in range(50)), make, helping=True)):
            assert (one, made) == (done, 1 / (done - 25)) and len(taken) - done <= cores + 2 == pieces_held()
    assert done == 24 and makers == {True, False}


@pytest.mark.parametrize("cores", [1, 2])
def test_what_is_read_ahead_comes_in_order(monkeypatch, cores):
    monkeypatch.setattr(reading_ahead, "usable_cores", lambda: cores)
    readers = set()

    def raw():
        for number in range(9):
            readers.add(threading.get_ident() == here)
            yield number
        raise OSError("damaged")

    here, seen = threading.get_ident(), []
    with pytest.raises(OSError, match="damaged"):
        seen.extend(read_ahead(raw()))
    assert seen == [*range(9)] and readers == {cores == 1}
    with nothing_ahead():
        assert pieces_held() == 1 and next(read_ahead(raw())) == 0 and (cores == 1) in readers
    assert pieces_held() == (1 if cores == 1 else 4)


@pytest.mark.parametrize("cores", [1, 3])
def test_a_failure_waits_for_its_turn(monkeypatch, cores):
    monkeypatch.setattr(reading_ahead, "usable_cores", lambda: cores)

    def raw():
        yield from range(3)
        raise ValueError("the fourth")

    seen = []
    with pytest.raises(ValueError, match="the fourth"):
        for one, _ in made_ahead(raw(), str):
            seen.append(one)
    assert seen == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        [*made_ahead(iter([1, 0, 2]), lambda number: 1 / number)]


@pytest.mark.slow
def test_a_file_of_many_pieces_is_the_same_population_on_any_number_of_cores(tmp_path, monkeypatch):
    """Bad rows in several pieces, one of which is read record by record, with their lines."""
    lines = [f"u{number % 97:02d},{number % 11},{number % 5}" for number in range(6_000)]
    lines[2_000] = '"u,x",3,2'  # a quoted delimiter, which Arrow takes as well
    lines[3_000], lines[5_500] = "u01,3,-1", "u02,three,1"
    (tmp_path / "a.csv").write_text("client,token,count\n" + "\n".join(lines) + "\n")
    found = []
    for cores in (1, 4):
        monkeypatch.setattr(reading_ahead, "usable_cores", lambda cores=cores: cores)
        with pytest.raises(Exception, match="2 bad rows") as refused:
            ingest(tmp_path / "a.csv", tmp_path / f"no{cores}", features=11, memory=16 << 20)
        assert "a.csv, line 3002: " in str(refused.value) and "a.csv, line 5502: " in str(refused.value)
        made = ingest(tmp_path / "a.csv", tmp_path / f"p{cores}", features=11, memory=16 << 20, tolerance=2)
        found.append([(block.train, made.client_ids(at).tolist()) for at, block in enumerate(made.blocks)])
    assert found[0] == found[1]


@pytest.mark.slow
def test_buckets_and_blocks_are_the_same_on_any_number_of_cores(tmp_path, monkeypatch):
    """In blocks of a leaf, more rows than may be held without files; then with more memory, which holds all of them."""
    generator = np.random.default_rng(5)
    rows = zip(generator.integers(0, 900, 250_000).tolist(), generator.normal(size=250_000).tolist(), strict=True)
    (tmp_path / "a.csv").write_text("client,x\n" + "".join(f"u{client},{x:.3f}\n" for client, x in rows))
    distributed, found = [], []
    monkeypatch.setattr(Spill, "_distribute", lambda self, real=Spill._distribute: distributed.append(real(self)))
    for cores, memory, files in ((1, 16 << 20, True), (4, 16 << 20, True), (4, 128 << 20, False)):
        for module in (reading_ahead, writer):
            monkeypatch.setattr(module, "usable_cores", lambda cores=cores: cores)
        place, before = tmp_path / f"p{cores}-{memory}", len(distributed)
        made = ingest(tmp_path / "a.csv", place, memory=memory, clients_per_leaf=100, clients_per_block=100)
        found.append([(block.slot, block.first, block.digest) for block in made.blocks])
        assert made.verify().ok and (len(distributed) - before > 1) == files
    assert len(found[0]) == 9 and found[0] == found[1] == found[2]
