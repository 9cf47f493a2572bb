"""A full disk, at every file that a run writes: a named error, and the resumed run ends in the same bits."""

import builtins
import errno
import io
import sqlite3
from collections import Counter

import pytest
from sqlalchemy.exc import OperationalError

from fedcore.errors import FedcoreError, LedgerError, RunError
from fedcore.methods.names import OWN
from fedcore.privacy.ledger import database as ledger_database
from fedcore.privacy.ledger import ledger
from fedcore.privacy.ledger.chain_writer import ChainWriter
from fedcore.runs.store import Run, load_run
from fedcore.training.session import abandon
from tests.faults.place import bits, same_result
from tests.sessions import to_end


class FullFile:
    """A file on a full disk: half of what is written still fits."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name):
        return getattr(self.__dict__["file"], name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


class Disk:
    """full: part of the path of files that do not fit any more; empty: everything fits."""

    def __init__(self, monkeypatch):
        self.full = ""
        self.refused = 0
        self.open = builtins.open
        monkeypatch.setattr(builtins, "open", self._open)
        monkeypatch.setattr(io, "open", self._open)

    def _open(self, file, mode="r", *arguments, **options):
        opened = self.open(file, mode, *arguments, **options)
        if self.full and set(mode) & set("wax+") and self.full in str(file):
            self.refused += 1
            return FullFile(opened)
        return opened


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


FILES = [
    ("plain", "state/"),
    ("plain", "metrics.jsonl"),
    ("plain", "head.json"),
    ("plain", "place/runs/"),
    ("test noise", "state/"),
    ("test noise", "releases/"),
    ("test noise", "metrics.jsonl"),
    ("test noise", "head.json"),
    ("test noise", "place/runs/"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "file"), FILES)
def test_a_disk_that_fills_in_a_round(place, undisturbed, disk, mode, file):
    here = place(mode)
    session = here.start()
    session.training.step()
    session.training.step()
    disk.full = file
    with pytest.raises(RunError, match="No space left") as caught:
        to_end(session)
    assert caught.value.remedy and disk.refused
    disk.full = ""
    assert load_run(here.run_path).head["round"] == 2
    to_end(here.resume())
    assert same_result(load_run(here.run_path), undisturbed[mode])
    here.check_no_litter()
    if here.private:
        here.check_ledger(forfeited=0)


def in_both_modes(*files: str) -> list[tuple[str, str]]:
    """Cases of (mode, file); a run that is not private has no ledger, and keeps no head of one."""
    return [
        (mode, file)
        for mode in ("plain", "test noise")
        for file in (*files, "ledger-head.json")
        if (mode, file) != ("plain", "ledger-head.json")
    ]


@pytest.mark.parametrize(("mode", "file"), in_both_modes("statement.json", "head.json"))
@pytest.mark.slow
def test_a_disk_that_is_full_at_the_end(place, undisturbed, disk, mode, file):
    here = place(mode)
    session = here.start()
    while session.training.step() is not None:
        pass
    disk.full = file
    with pytest.raises(FedcoreError, match="No space left") as caught:
        to_end(session)
    assert caught.value.remedy
    disk.full = ""
    to_end(here.resume())
    assert same_result(load_run(here.run_path), undisturbed[mode])
    assert (here.run_path / "statement.json").exists()
    if here.private:
        here.check_ledger(forfeited=0)


@pytest.mark.parametrize(("mode", "file"), in_both_modes("run.json", "state/", "head.json"))
def test_a_start_on_a_full_disk_leaves_nothing_behind(place, disk, mode, file):
    here = place(mode)
    left = here.ledger().balance(here.population().id).rho_left
    disk.full = file
    with pytest.raises(FedcoreError, match="No space left") as caught:
        here.start()
    assert caught.value.remedy and not here.run_path.exists()
    balance = here.ledger().verify(here.population().id)
    assert (balance.rho_spent, balance.rho_reserved, balance.rho_left) == (0, 0, left)


def test_a_ledger_that_cannot_grow(place, undisturbed, monkeypatch):
    """SQLite itself refuses the next page of the file, wherever in a round that is."""
    here = place("test noise")
    session = here.start()
    session.training.step()
    session.training.step()
    real = sqlite3.connect

    def connect(*arguments, **options):
        connection = real(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 1")  # that is: as many as there are
        return connection

    with monkeypatch.context() as full:
        full.setattr(ledger_database.sqlite3, "connect", connect)
        full.setattr(ledger, "PUBLISH_SECONDS", 0.0)
        with pytest.raises(LedgerError, match="disk is full") as caught:
            to_end(session)
    assert caught.value.remedy
    kinds = Counter(record["kind"] for record in here.ledger().history(here.population().id))
    to_end(here.resume())
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=kinds["charge"] - kinds["publish"])


@pytest.mark.parametrize(("kind", "forfeited"), [("charge", 0), ("publish", 1), ("finish", 0)])
def test_a_ledger_whose_disk_is_full_inside_a_transaction(place, undisturbed, monkeypatch, kind, forfeited):
    here = place("test noise")
    session = here.start()
    session.training.step()
    session.training.step()
    append = ChainWriter.append

    def full(self, appended, run_id, payload):
        if appended == kind:
            raise OperationalError("", {}, sqlite3.OperationalError("database or disk is full"))
        append(self, appended, run_id, payload)

    with monkeypatch.context() as patched:
        patched.setattr(ChainWriter, "append", full)
        patched.setattr(ledger, "PUBLISH_SECONDS", 0.0)
        with pytest.raises(LedgerError, match="disk is full") as caught:
            to_end(session)
    assert caught.value.remedy
    to_end(here.resume())
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=forfeited)


@pytest.mark.parametrize("kind", ["reserve", "acquire"])
def test_a_start_whose_ledger_is_full_reserves_nothing_or_can_be_given_up(place, monkeypatch, kind):
    here = place("secure")
    population = here.population().id
    left = here.ledger().balance(population).rho_left
    append = ChainWriter.append

    def full(self, appended, run_id, payload):
        if appended == kind:
            raise OperationalError("", {}, sqlite3.OperationalError("database or disk is full"))
        append(self, appended, run_id, payload)

    with monkeypatch.context() as patched:
        patched.setattr(ChainWriter, "append", full)
        with pytest.raises(LedgerError, match="disk is full"):
            here.start()
    assert here.run_path.exists() == (kind == "acquire")
    if kind == "acquire":
        abandon(here.run_path, ledger_url=here.url)
    balance = here.ledger().verify(population)
    assert (balance.rho_spent, balance.rho_reserved, balance.rho_left) == (0, 0, left)


def test_memory_that_does_not_fit(place, disk, monkeypatch):
    """A method whose clients remember: the round is not committed, and the next attempt writes all memory again."""
    monkeypatch.setitem(OWN, "toy", "tests.toy:Toy")
    here = place("plain")
    request = here.request() | {"method": "toy", "settings": {"rounds": 4}}
    monkeypatch.setattr(type(here), "request", lambda _: request)
    to_end(here.start())
    calm = load_run(here.run_path)
    here.run_path.rename(here.folder / "calm")
    session = here.start()
    session.training.step()
    disk.full = "memory/"
    with pytest.raises(RunError, match="No space left"):
        to_end(session)
    disk.full = ""
    to_end(here.resume())
    assert bits(load_run(here.run_path).state) == bits(calm.state)
    here.check_no_litter()
    assert Run.open(here.run_path).status == "finished"
