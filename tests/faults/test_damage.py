"""Damaged files in the middle of a run: a named error, nothing lost, and with the good file back the same bits."""

import json
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from fedcore.errors import (
    ChunkError,
    FedcoreError,
    LedgerError,
    LedgerMissing,
    LedgerRolledBack,
    LedgerTampered,
    PopulationError,
    RunError,
    RunNotFound,
)
from fedcore.privacy.ledger.ledger import create_ledger
from fedcore.rounds.caches import BLOCKS
from fedcore.rounds.clients import _populations
from fedcore.runs.store import Run, load_run
from fedcore.storage.arrays import read_values, write_values
from fedcore.training.session import abandon
from tests.faults.driver import Kill
from tests.faults.place import same_result
from tests.faults.test_two_processes import soon
from tests.sessions import to_end

ROUNDS = 3  # committed before the damage


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(b"\x93garbage\x00" * 500)


def remove(path: Path) -> None:
    path.unlink()


def no_object(path: Path) -> None:
    path.write_text("[1, 2]")


def changed(**values):
    """JSON with some keys changed; None removes one."""

    def change(path: Path) -> None:
        content = json.loads(path.read_text()) | values
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    change.__name__ = "changed-" + "-".join(f"{key}={value}" for key, value in values.items())
    return change


def another_state(path: Path) -> None:
    values = read_values(path)
    values.pop("centres")
    write_values(path, values)


def chunk(here) -> Path:
    return max(here.folder.glob("population/blocks/*/train/counts/c/*"), key=lambda path: path.stat().st_size)


def manifest(here) -> Path:
    return next(here.folder.glob("population/versions/*"))


def run_file(name: str):
    def find(here) -> Path:
        return here.run_path / name

    find.__name__ = name
    return find


HEAD, RUN, METRICS = run_file("head.json"), run_file("run.json"), run_file("metrics.jsonl")
STATE = run_file(f"state/{ROUNDS:06d}.zip")

DAMAGE = [
    *[(chunk, damage, ChunkError) for damage in (flip, cut, empty, remove)],
    *[(manifest, damage, PopulationError) for damage in (cut, garble, empty, remove, no_object)],
    *[(RUN, damage, RunError) for damage in (cut, garble, empty, no_object)],
    (RUN, remove, RunNotFound),
    *[
        (RUN, changed(**{name: None}), RunError)
        for name in ("run_id", "method", "plan", "population", "config", "kernel", "seed", "private")
    ],
    *[
        (RUN, damage, RunError)
        for damage in (
            changed(schema=99),
            changed(plan=[{"round": 1}]),
            changed(plan=7),
            changed(kernel="another"),
            changed(population="nothing"),
        )
    ],
    *[(HEAD, damage, RunError) for damage in (cut, garble, empty, remove, no_object)],
    *[
        (HEAD, damage, RunError)
        for damage in (
            changed(round=99),
            changed(round="3"),
            changed(round=True),
            changed(round=-7),
            changed(status="odd"),
            changed(metrics_bytes=10**6),
            changed(metrics_bytes=-1),
            changed(metrics_bytes=None),
        )
    ],
    *[(STATE, damage, RunError) for damage in (flip, cut, garble, empty, remove, another_state)],
    *[(METRICS, damage, RunError) for damage in (cut, garble, empty, remove)],
]


@pytest.fixture
def begun(place):
    """A run of `mode` with three rounds, whose process has ended."""

    def begin(mode: str):
        here = place(mode)
        session = here.start()
        for _ in range(ROUNDS):
            session.training.step()
        session.close()
        forget()
        return here

    yield begin
    forget()


def forget() -> None:
    """What this process remembers of populations, as if it were a new one."""
    BLOCKS.clear()
    _populations.clear()


def name_of(value) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "test noise"])
@pytest.mark.parametrize(("find", "damage", "error"), DAMAGE, ids=name_of)
def test_damage_is_named_and_the_good_file_mends_it(begun, undisturbed, mode, find, damage, error):
    here = begun(mode)
    victim = find(here)
    good = victim.read_bytes()
    damage(victim)
    with pytest.raises(error) as caught:
        to_end(here.resume())
    assert caught.value.message
    victim.write_bytes(good)
    forget()
    to_end(here.resume())
    assert same_result(load_run(here.run_path), undisturbed[mode])
    here.check_no_litter()
    if here.private:
        here.check_ledger(forfeited=0)


@pytest.mark.slow
@pytest.mark.parametrize("value", [{}, 5, {"ledger_id": "x", "seq": 1, "hash": "y"}, {"ledger_id": 3}], ids=str)
def test_a_damaged_memory_of_the_ledger_is_not_passed_over(begun, undisturbed, value):
    here = begun("test noise")
    for path, kind in (
        (HEAD(here), (RunError, LedgerRolledBack)),
        (here.folder / "population" / "ledger-head.json", LedgerRolledBack),
    ):
        good = path.read_bytes()
        changed(ledger_head=value)(path) if path == HEAD(here) else path.write_text(json.dumps(value))
        with pytest.raises(kind):
            here.resume()
        path.write_bytes(good)
    to_end(here.resume())
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=0)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip, cut, garble, empty, remove])
def test_a_damaged_copy_of_a_release_does_not_stop_the_run(begun, undisturbed, damage):
    """The ledger has the value, and the copy is made again of it; until then nobody reads another value."""
    here = begun("test noise")
    copy = here.run_path / "releases" / "whitened_mean.zip"
    good = copy.read_bytes()
    damage(copy)
    with pytest.raises(RunError, match="copies of released values"):
        Run.open(here.run_path).releases()
    to_end(here.resume())
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    assert copy.read_bytes() == good
    here.check_ledger(forfeited=0)


# --- the ledger -----------------------------------------------------------------------------------------------------


def at(share: float):
    def cut_at(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    cut_at.__name__ = f"cut-at-{share}"
    return cut_at


def another_ledger(path: Path) -> None:
    path.unlink()
    create_ledger(f"sqlite:///{path}", test=True)


def statement(sql: str, name: str):
    def execute(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(sql)
            connection.commit()

    execute.__name__ = name
    return execute


LEDGER = [
    (garble, LedgerError),
    (empty, LedgerMissing),
    (remove, LedgerMissing),
    (another_ledger, LedgerMissing),
    *[(at(share), LedgerError) for share in (0.001, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9)],
    (statement("DELETE FROM fedcore_records WHERE seq > 5", "short-chain"), LedgerError),
    (statement("DROP TABLE fedcore_runs", "no-runs"), LedgerMissing),
]


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "error"), LEDGER, ids=name_of)
def test_a_damaged_ledger_stops_the_run_before_the_next_release(begun, undisturbed, damage, error):
    here = begun("test noise")
    path, before = here.folder / "ledger.sqlite", here.published()
    good = path.read_bytes()
    damage(path)
    with pytest.raises(error) as caught:
        to_end(here.resume())
    assert caught.value.remedy
    restore(path, good)
    assert here.published() == before
    to_end(here.resume(take_over=True))
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=0)


TAMPERED = [
    statement("DELETE FROM fedcore_releases WHERE round > 3", "no-releases"),
    statement("UPDATE fedcore_releases SET state = 'reserved' WHERE round < 3", "not-spent"),
    statement("DELETE FROM fedcore_published WHERE round = 1", "no-value"),
    statement("UPDATE fedcore_published SET data = zeroblob(320) WHERE round = 1", "another-value"),
    statement("UPDATE fedcore_records SET payload = replace(payload, 'rho', 'roh') WHERE seq = 5", "another-record"),
]


@pytest.mark.slow
@pytest.mark.parametrize("damage", TAMPERED, ids=name_of)
def test_a_ledger_that_was_tampered_with_does_not_verify(begun, damage):
    """Whether the run notices depends on what it needs; the chain tells in any case, and nothing is drawn twice."""
    here = begun("test noise")
    damage(here.folder / "ledger.sqlite")
    with suppress(LedgerTampered):
        to_end(here.resume())
    with pytest.raises(LedgerTampered):
        here.ledger().verify(here.population().id)


@pytest.mark.slow
def test_a_published_value_that_was_changed_is_not_used(place):
    here = place("secure")
    here.kill_at(Kill("publish", "after", 3))
    statement("UPDATE fedcore_published SET data = zeroblob(960) WHERE round = 3", "")(here.folder / "ledger.sqlite")
    with pytest.raises(LedgerTampered, match="clusters_001"):
        to_end(here.resume())
    assert load_run(here.run_path).head["round"] == 2


def restore(path: Path, good: bytes) -> None:
    for other in path.parent.glob(f"{path.name}-*"):
        other.unlink()
    path.write_bytes(good)


@pytest.mark.parametrize("mode", ["test noise", "secure"])
def test_an_older_ledger_is_refused(place, undisturbed, mode):
    here = place(mode)
    session = here.start()
    session.training.step()
    session.close()
    older = (here.folder / "ledger.sqlite").read_bytes()
    session = here.resume()
    session.training.step()
    session.close()
    newer = (here.folder / "ledger.sqlite").read_bytes()
    restore(here.folder / "ledger.sqlite", older)
    with pytest.raises(LedgerRolledBack):
        here.resume()
    restore(here.folder / "ledger.sqlite", newer)
    to_end(here.resume())
    here.check_ledger(forfeited=0)
    here.check_state_follows_from_releases()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "forfeited", "damage"),
    [
        (Kill("charge", "before", 4), 0, garble),
        (Kill("charge", "before", 4), 0, at(0.7)),
        (Kill("publish", "before", 4), 1, remove),
        (Kill("publish", "before", 4), 1, at(0.3)),
    ],
    ids=name_of,
)
def test_a_ledger_that_is_damaged_while_the_run_goes_on(place, undisturbed, point, forfeited, damage):
    here = place("test noise")
    on, path = here.folder / "on", here.folder / "ledger.sqlite"
    child = here.launch(wait_at=point, until=on)
    soon(lambda: on.with_suffix(".here").exists())
    good = path.read_bytes()
    damage(path)
    on.touch()
    outcome = here.wait(child)
    assert outcome["error"] in ("LedgerError", "LedgerMissing", "LedgerTampered") and outcome["remedy"]
    restore(path, good)
    here.finish()
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=forfeited)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [garble, remove], ids=name_of)
def test_a_ledger_that_comes_back_finds_the_value_that_waits(place, undisturbed, damage):
    here = place("test noise")
    on, path = here.folder / "on", here.folder / "ledger.sqlite"
    child = here.launch(wait_at=Kill("publish", "before", 4), until=on, publish_seconds=60.0)
    soon(lambda: on.with_suffix(".here").exists())
    good = path.read_bytes()
    damage(path)
    on.touch()
    time.sleep(1.0)
    restore(path, good)
    assert here.wait(child)["error"] is None
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=0)


@pytest.mark.slow
def test_a_ledger_that_may_not_be_written(begun, undisturbed):
    here = begun("test noise")
    path = here.folder / "ledger.sqlite"
    path.chmod(0o444)
    outcome = here.wait(here.launch(resuming=True, not_root=True))
    assert outcome["error"] == "LedgerError" and "may not be written" in outcome["message"] and outcome["remedy"]
    path.chmod(0o644)
    here.finish()
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=0)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["runs/run", "population"])
def test_a_folder_that_may_not_be_written(begun, undisturbed, folder):
    here = begun("test noise")
    path = here.folder / folder
    path.chmod(0o555)
    outcome = here.wait(here.launch(resuming=True, not_root=True))
    assert outcome["error"] in ("RunError", "PopulationError") and outcome["remedy"]
    assert "Permission denied" in outcome["message"]
    path.chmod(0o755)
    here.finish()
    assert same_result(load_run(here.run_path), undisturbed["test noise"])
    here.check_ledger(forfeited=0)


@pytest.mark.parametrize("lost", ["head.json", f"state/{ROUNDS:06d}.zip", "metrics.jsonl"])
def test_a_run_that_cannot_go_on_can_be_given_up(begun, lost):
    """Without a backup of its files a run is lost, but not what it reserved."""
    here = begun("secure")
    population, before = here.population().id, here.published()
    (here.run_path / lost).unlink()
    with pytest.raises(FedcoreError):
        to_end(here.resume())
    abandon(here.run_path, ledger_url=here.url)
    here.check_ledger(forfeited=0, status="abandoned")
    assert here.published() == before and here.ledger().balance(population).open_runs == ()
    with pytest.raises(RunError, match="abandoned"):
        here.resume()
