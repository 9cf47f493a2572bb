"""Who remembers the ledger: an old copy of it is noticed by the population, by its runs and by an anchor outside."""

import json
import os
import shutil
import sqlite3
from dataclasses import asdict

import numpy as np
import pytest
import scipy.sparse as sp
from sqlalchemy import event

from fedcore.errors import ConfigError, LedgerError, LedgerRolledBack, LedgerTampered
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import Ledger, create_ledger, default_ledger_url, open_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.storage import files
from fedcore.training.budget import ledger_of
from fedcore.training.session import resume
from fedcore.training.witness import accept_loss, check_runs, missing_witness, remember_head
from tests import sessions
from tests.command import private_population
from tests.conftest import write_population
from tests.sessions import to_end

WITNESS = "ledger-head.json"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A population with a budget and no run yet."""
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    monkeypatch.delenv("FEDCORE_ANCHOR", raising=False)
    matrix = np.random.Generator(np.random.Philox(1)).poisson(1.0, (12, 4))
    private_population(tmp_path / "p", sp.csr_matrix(matrix), test=True)
    return tmp_path


def start(place, run="r", **more):
    settings = {"clusters": 2, "rounds": 2, "epsilon": 0.5}
    return sessions.begin(place / "p", place, settings=settings, run_id=run, test_noise="k", **more)


def population(place):
    return Population.open(place / "p")


def keep(place):
    shutil.copy(place / "ledger.sqlite", place / "copy")


def put_back(place):
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
        (place / name).unlink(missing_ok=True)
    shutil.copy(place / "copy", place / "ledger.sqlite")


def settled(place):
    """The ledger in one file, so that it can be copied."""
    with sqlite3.connect(place / "ledger.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    keep(place)


# --- the population's own -------------------------------------------------------------------------------------------


def test_a_population_has_a_witness_from_its_first_day(place):
    assert json.loads((place / "p" / WITNESS).read_text())["seq"] == 0
    to_end(start(place))
    assert json.loads((place / "p" / WITNESS).read_text())["seq"] > 2


def test_a_population_without_a_ledger_has_none(place):
    write_population(place / "q", "rows", 2, ["a"], (np.array([0, 1]), np.ones((1, 2), np.float32)))
    assert not (place / "q" / WITNESS).exists()


@pytest.mark.parametrize("when", ["before the first run", "after a run"])
def test_a_missing_witness_stops_whatever_would_charge(place, when):
    """Not only an old ledger: nobody can tell."""
    if when == "after a run":
        to_end(start(place))
    (place / "p" / WITNESS).unlink()
    for attempt in (lambda: start(place, "s"), lambda: ledger_of(population(place))):
        with pytest.raises(LedgerRolledBack, match=r"ledger-head.json .* is missing.*accept-loss"):
            attempt()
    shown = ledger_of(population(place), to_show=True)
    assert shown.balance(population(place).id).budget and "is missing" in missing_witness(population(place), shown)
    assert not (place / "runs" / "s").exists()


def test_a_deleted_witness_does_not_let_an_old_ledger_forget(place):
    """What an old ledger, a deleted note and a new folder of runs used to give: a second budget."""
    settled(place)
    to_end(start(place))
    put_back(place)
    (place / "p" / WITNESS).unlink()
    with pytest.raises(LedgerRolledBack):
        start(place, None, runs=str(place / "elsewhere"))


def test_a_population_has_a_witness_before_its_budget(place):
    ledger = create_ledger(default_ledger_url(), test=True)
    with PopulationWriter(place / "q", "counts", 2, ledger={"id": ledger.id, "url": ledger.url}) as writer:
        writer.write(["a"], sp.csr_matrix(np.ones((1, 2), np.int32)))
        made = writer.commit()
    (place / "q" / WITNESS).unlink()
    ledger.register(made.id)
    with pytest.raises(LedgerRolledBack, match="missing"):
        ledger_of(made)


def test_a_deleted_witness_does_not_let_a_ledger_forget_that_there_was_a_budget(place):
    """An old ledger of the days before the budget, which would be set once more."""
    ledger = create_ledger(default_ledger_url(), test=True)
    with PopulationWriter(place / "q", "counts", 2, ledger={"id": ledger.id, "url": ledger.url}) as writer:
        writer.write(["a"], sp.csr_matrix(np.ones((1, 2), np.int32)))
        made = writer.commit()
    ledger.register(made.id)
    settled(place)
    ledger.set_budget(made.id, 1.0, 1e-6)
    remember_head(made, ledger)
    put_back(place)
    (place / "q" / WITNESS).unlink()
    with pytest.raises(LedgerRolledBack, match=r"ledger-head.json .* is missing.*accept-loss"):
        ledger_of(made)
    accept_loss(made, _opened(place), "nobody knows", place / "runs")
    found = ledger_of(made)
    found.set_budget(made.id, 1.0, 1e-6)
    assert found.balance(made.id).loss.reason == "nobody knows"


def test_a_new_version_does_not_make_a_lost_witness_again(place):
    (place / "p" / WITNESS).unlink()
    parent = population(place)
    with PopulationWriter.extending(parent) as writer:
        for entry in parent.blocks:
            writer.keep(entry)
        writer.commit()
    with pytest.raises(LedgerRolledBack):
        ledger_of(population(place))


# --- runs -----------------------------------------------------------------------------------------------------------


def test_runs_of_the_folder_remember(place):
    """Population and ledger were put back together, as from one backup."""
    settled(place)
    shutil.copy(place / "p" / WITNESS, place / "witness")
    to_end(start(place))
    put_back(place)
    shutil.copy(place / "witness", place / "p" / WITNESS)
    with pytest.raises(LedgerRolledBack, match="seen before by run 'r'"):
        start(place, "s")
    assert not (place / "runs" / "s").exists()


def test_runs_on_other_populations_and_unreadable_ones_do_not_matter(place):
    to_end(start(place))
    shutil.copytree(place / "runs" / "r", place / "runs" / "other")
    info = json.loads((place / "runs" / "other" / "run.json").read_text())
    info["population"]["id"] = "0" * 32
    (place / "runs" / "other" / "run.json").write_text(json.dumps(info))
    head = json.loads((place / "runs" / "other" / "head.json").read_text())
    head["ledger_head"]["hash"] = "1" * 64
    (place / "runs" / "other" / "head.json").write_text(json.dumps(head))
    (place / "runs" / "broken").mkdir()
    (place / "runs" / "broken" / "run.json").write_text("[")
    to_end(start(place, "s"))


# --- accepting a loss -----------------------------------------------------------------------------------------------


def lost(place):
    """An old ledger and a deleted witness; run r was made in between."""
    settled(place)
    to_end(start(place))
    put_back(place)
    (place / "p" / WITNESS).unlink()


def test_an_accepted_loss_is_recorded_shown_and_said_by_later_statements(place):
    lost(place)
    ledger = ledger_of(population(place), to_show=True)
    heads = accept_loss(population(place), ledger, "the disk  died\n", place / "runs")
    assert [head.seq for head in heads] == [json.loads((place / "runs/r/head.json").read_text())["ledger_head"]["seq"]]
    record = ledger.history(population(place).id)[-1]
    assert (record["kind"], record["reason"]) == ("accept loss", "the disk died")
    assert record["seen"] == [{"seq": heads[0].seq, "hash": heads[0].hash}]
    to_end(start(place, "s"))  # on its own history
    balance = ledger_of(population(place)).verify(population(place).id)
    assert balance.loss.reason == "the disk died" and balance.to_json()["loss"]["seq"] == record["seq"]
    with pytest.raises(ConfigError, match="nothing is lost"):
        accept_loss(population(place), ledger, "again", place / "runs")


def test_a_run_whose_releases_were_lost_is_not_gone_on_with(place):
    settled(place)
    session = start(place)
    session.training.step()
    session.close()
    put_back(place)
    (place / "p" / WITNESS).unlink()
    accept_loss(population(place), ledger_of(population(place), to_show=True), "gone", place / "runs")
    with pytest.raises(LedgerRolledBack):
        resume(str(place / "runs" / "r"), InProcessBackend())
    start(place, "s").close()


def test_an_accepted_loss_is_not_one_for_ever(place):
    """The ledger goes back a second time, behind the accepted loss."""
    lost(place)
    accept_loss(population(place), ledger_of(population(place), to_show=True), "gone", place / "runs")
    settled(place)
    to_end(start(place, "s"))
    put_back(place)
    with pytest.raises(LedgerRolledBack):
        start(place, "t")
    (place / "p" / WITNESS).unlink()
    with pytest.raises(LedgerRolledBack):
        start(place, "t")


def test_a_damaged_witness_may_be_accepted_as_lost(place):
    (place / "p" / WITNESS).write_text("{")
    with pytest.raises(LedgerRolledBack, match="damaged"):
        start(place)
    with pytest.raises(ConfigError, match="a reason has"):
        accept_loss(population(place), _opened(place), " ", place / "runs")
    assert accept_loss(population(place), _opened(place), "torn", place / "runs") == []
    start(place).close()


def _opened(place):
    return open_ledger(os.environ["FEDCORE_LEDGER"])


@pytest.mark.parametrize(
    "garbage",
    ["", "[]", "null", '{"seq": 1}', '{"ledger_id": 1, "seq": 1, "hash": "a"}', "[" * 100000, '{"seq": ' + "9" * 5000]
    + [json.dumps({"ledger_id": "a", "seq": seq, "hash": "b"}) for seq in (-1, 1.5, "1", True, 10**400, None)],
)
def test_a_garbled_witness_is_a_named_error(place, garbage):
    (place / "p" / WITNESS).write_text(garbage)
    with pytest.raises(LedgerRolledBack, match="damaged"):
        ledger_of(population(place))


# --- an anchor outside ----------------------------------------------------------------------------------------------


@pytest.fixture
def anchor(place, monkeypatch):
    (place / "anchor").mkdir()
    monkeypatch.setenv("FEDCORE_ANCHOR", str(place / "anchor"))
    return place / "anchor"


def test_an_anchor_notices_what_was_put_back_everywhere_else(place, anchor):
    settled(place)
    shutil.copy(place / "p" / WITNESS, place / "witness")
    to_end(start(place))
    kept, beside = (json.loads(path.read_bytes()) for path in (recorded(place, anchor), place / "p" / WITNESS))
    assert beside == {**kept, "anchored": str(anchor)}
    put_back(place)
    shutil.copy(place / "witness", place / "p" / WITNESS)
    shutil.rmtree(place / "runs")
    with pytest.raises(LedgerRolledBack, match="by the anchor"):
        start(place)
    accept_loss(population(place), _opened(place), "burnt", place / "runs")
    to_end(start(place))


def recorded(place, anchor):
    return anchor / f"{population(place).id}.json"


def test_an_empty_folder_in_place_of_the_anchor_is_not_the_first_time(place, anchor):
    """A mount point whose file system is not mounted is an empty folder."""
    settled(place)
    shutil.copy(place / "p" / WITNESS, place / "witness")
    to_end(start(place))
    before = recorded(place, anchor).read_bytes()
    recorded(place, anchor).unlink()
    with pytest.raises(LedgerRolledBack, match="the anchor has no record of population 'p'"):
        start(place, "again")
    recorded(place, anchor).write_bytes(before)
    to_end(start(place, "again"))
    recorded(place, anchor).unlink()
    accept_loss(population(place), _opened(place), "the disk of the anchor burnt", place / "runs")
    to_end(start(place, "more"))
    assert recorded(place, anchor).exists()


def test_who_works_without_the_anchor_does_not_forget_that_there_is_one(place, anchor, monkeypatch):
    remember_head(population(place), _opened(place))
    with monkeypatch.context() as elsewhere:
        elsewhere.delenv("FEDCORE_ANCHOR")
        remember_head(population(place), _opened(place))
    recorded(place, anchor).unlink()
    with pytest.raises(LedgerRolledBack, match="the anchor has no record"):
        ledger_of(population(place))


def test_the_recorded_place_of_the_anchor_counts_where_the_variable_is_not_set(place, anchor, monkeypatch):
    """Everything else was put back, and the variable is not set: a second budget was spent this way."""
    to_end(start(place))
    settled(place)
    shutil.copytree(place / "p", place / "q")
    to_end(start(place, "more"))
    spent = _opened(place).balance(population(place).id).rho_spent
    monkeypatch.delenv("FEDCORE_ANCHOR")
    assert _opened(place).anchor(population(place).id) == str(anchor)
    to_end(start(place, "third"))  # it goes on, and the anchor sees it
    assert _opened(place).balance(population(place).id).rho_spent > spent
    put_back(place)
    shutil.rmtree(place / "p")
    shutil.copytree(place / "q", place / "p")
    shutil.rmtree(place / "runs")
    with pytest.raises(LedgerRolledBack, match="by the anchor"):
        start(place, "fourth")


def test_a_lost_anchor_is_refused_until_its_owner_acknowledges_it(place, anchor, monkeypatch):
    to_end(start(place))
    shutil.rmtree(anchor)
    for variable in (str(anchor), None):
        monkeypatch.setenv("FEDCORE_ANCHOR", variable) if variable else monkeypatch.delenv("FEDCORE_ANCHOR")
        with pytest.raises(LedgerError, match=r"the anchor .* is no folder.* unset FEDCORE_ANCHOR, .*accept-loss"):
            start(place, "s")
    assert accept_loss(population(place), _opened(place), "its disk died", place / "runs") == []
    loss, moved = _opened(place).history(population(place).id)[-2:]
    assert (loss["kind"], loss["seen"], moved["kind"], moved["place"]) == ("accept loss", [], "anchor", None)
    assert "anchored" not in json.loads((place / "p" / WITNESS).read_text())
    to_end(start(place, "s"))
    monkeypatch.setenv("FEDCORE_ANCHOR", str(place / "runs"))  # a new one is used as for the first time
    to_end(start(place, "t"))
    assert _opened(place).anchor(population(place).id) == str(place / "runs")
    assert _opened(place).verify(population(place).id).loss.reason == "its disk died"


def test_another_place_of_the_anchor_is_recorded_before_it_counts(place, anchor, monkeypatch):
    to_end(start(place))
    settled(place)
    shutil.copytree(place / "p", place / "q")
    (place / "new").mkdir()
    monkeypatch.setenv("FEDCORE_ANCHOR", str(place / "new"))
    with pytest.raises(LedgerRolledBack, match=r"has recorded the anchor .* at .*anchor.*accept-loss"):
        start(place, "s")
    assert accept_loss(population(place), _opened(place), "moved to another host", place / "runs") == []
    moved = _opened(place).history(population(place).id)[-1]
    assert (moved["kind"], moved["place"], moved["reason"]) == ("anchor", str(place / "new"), "moved to another host")
    assert _opened(place).verify(population(place).id).loss is None, "nothing is lost"
    to_end(start(place, "s"))
    put_back(place)  # to before the move: the old place refuses it
    for name in ("p", "runs"):
        shutil.rmtree(place / name)
    shutil.copytree(place / "q", place / "p")
    monkeypatch.delenv("FEDCORE_ANCHOR")
    with pytest.raises(LedgerRolledBack, match="by the anchor"):
        start(place, "t")


def test_a_witness_that_only_states_that_there_is_an_anchor_needs_the_variable(place, anchor, monkeypatch):
    """As earlier versions wrote it, and none recorded the place."""
    head = asdict(_opened(place).head(population(place).id))
    (place / "p" / WITNESS).write_text(json.dumps({**head, "anchored": True}))
    with pytest.raises(LedgerRolledBack, match="the anchor has no record"):
        start(place)
    monkeypatch.delenv("FEDCORE_ANCHOR")
    with pytest.raises(LedgerRolledBack, match="FEDCORE_ANCHOR is not set"):
        start(place)
    accept_loss(population(place), _opened(place), "nobody knows where it was", place / "runs")
    start(place).close()


def test_a_process_that_dies_at_the_first_use_of_an_anchor_leaves_no_loss(place, anchor, monkeypatch):
    write, calls = files.write_whole, []

    def dying(path, content, **options):
        if len(calls) == dies_before and anchor in path.parents:
            raise KeyboardInterrupt
        calls.append(path)
        write(path, content, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", dying)
        for number in (0, 1):
            dies_before = number
            calls.clear()
            with pytest.raises(KeyboardInterrupt):
                remember_head(population(place), _opened(place))
            ledger_of(population(place))
    to_end(start(place))


def test_an_edited_place_of_the_anchor_is_noticed(place, anchor):
    to_end(start(place))
    with sqlite3.connect(place / "ledger.sqlite") as connection:
        connection.execute("UPDATE fedcore_records SET payload = replace(payload, '/anchor', '/nowhere')")
    connection.close()
    with pytest.raises(LedgerTampered, match="does not match its hash"):
        start(place, "s")


@pytest.mark.slow
def test_a_place_that_only_the_witness_states_is_not_dropped(place, anchor, monkeypatch):
    """Neither by a ledger without its record, nor by an edited record that is older than the newest checkpoint."""
    to_end(start(place))
    monkeypatch.delenv("FEDCORE_ANCHOR")
    with monkeypatch.context() as patch, pytest.raises(LedgerRolledBack, match="has no record of it"):
        patch.setattr(Ledger, "anchor", lambda *_: None)
        start(place, "without")
    book = ledger_of(population(place))
    for number in range(260):
        book.say_public_schema(population(place).id, f"reason {number}")
    to_end(start(place, "checkpoint"))
    with sqlite3.connect(place / "ledger.sqlite") as connection:
        connection.execute("UPDATE fedcore_records SET kind = 'public schema' WHERE kind = 'anchor'")
    book = ledger_of(population(place))
    assert book.anchor(population(place).id) == str(anchor)
    shutil.rmtree(anchor)
    with pytest.raises(LedgerError, match="is no folder"):
        start(place, "later")
    assert json.loads((place / "p" / WITNESS).read_text())["anchored"] == str(anchor)


def test_an_anchor_that_cannot_be_reached_stops_a_start_before_anything_is_charged(place, anchor):
    before = _opened(place).head(population(place).id)
    anchor.rmdir()
    with pytest.raises(LedgerError, match="the anchor .* is no folder"):
        start(place)
    anchor.mkdir()
    (anchor / f"{population(place).id}.json").mkdir()
    with pytest.raises(LedgerError, match="cannot be read"):
        start(place)
    assert _opened(place).head(population(place).id) == before and not (place / "runs" / "r").exists()


def test_an_anchor_that_cannot_be_written_takes_the_reservation_back(place, anchor, monkeypatch):
    write = files.write_whole

    def full(path, content):
        if anchor in path.parents:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(files, "write_whole", full)
    with pytest.raises(LedgerError, match="cannot be written: No space"):
        start(place)
    balance = _opened(place).verify(population(place).id)
    assert (balance.rho_spent, balance.rho_reserved) == (0, 0) and not (place / "runs" / "r").exists()


def test_a_thousand_runs_are_asked_quickly(place):
    """Not a time: what is read, two small files for each run, and few statements."""
    to_end(start(place))
    for number in range(30):
        (place / "runs" / f"r{number}").mkdir()
        for name in ("run.json", "head.json"):
            shutil.copy(place / "runs" / "r" / name, place / "runs" / f"r{number}" / name)
    statements = []
    ledger = _opened(place)
    event.listen(ledger._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    check_runs(place / "runs", population(place), ledger)
    assert len(statements) <= 3
