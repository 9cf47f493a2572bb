"""The ledger in war: races, processes killed at the worst moment, damaged, edited, deleted and restored databases."""

import hashlib
import json
import multiprocessing
import shutil
import sqlite3
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import LedgerError, LedgerMissing, LedgerRolledBack, LedgerTampered
from fedcore.privacy.accounting import rounded_up
from fedcore.privacy.ledger import database as ledger_database
from fedcore.privacy.ledger import ledger as ledger_module
from fedcore.privacy.ledger.chain import ChainHead, link
from fedcore.privacy.ledger.ledger import create_ledger, open_ledger
from tests.privacy import processes
from tests.privacy.accounts import costing, divide, rho_max
from tests.privacy.conftest import open_books, release, total

VALUE = np.array([1, -2, 3])
spawn = multiprocessing.get_context("forkserver")  # of a process that has imported once what all of them need
spawn.set_forkserver_preload(["tests.privacy.processes"])


def together(target, *arguments):
    """Two processes at once, each with its own arguments; their answers."""
    barrier, answers = spawn.Barrier(2), spawn.Queue()
    children = [spawn.Process(target=target, args=(*mine, barrier, answers)) for mine in arguments]
    for child in children:
        child.start()
    got = [answers.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    return got


def shares_of(books):
    return books.ledger.verify(books.population).shares


# --- races ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [None, "a"])
def test_of_two_runs_that_fit_singly_exactly_one_is_refused(books, share):
    """Of a share too, where the account has room for both."""
    if share:
        divide(books, a=".6", b=".1")
    plan = [costing(rho_max(books) * Fraction(2 if share else 3, 5))]
    calls = ((books.url, books.population, books.run(), plan, share) for _ in range(2))
    answers = together(processes.reserve_or_divide_at_barrier, *calls)
    assert sorted(answer for _, answer in answers) == ["BudgetExceeded", "done"]
    assert books.spent() == (0, total(*plan)) and all(
        one.rho_reserved == (total(*plan) if one.name == share else 0) for one in shares_of(books)
    )


def test_of_two_publications_one_holds_and_both_return_it(books):
    run = books.reserve([release()])
    lease = books.ledger.acquire(run)
    charge = books.ledger.charge(lease, release())
    answers = together(processes.publish_at_barrier, *((books.url, lease, charge, value) for value in (1, 2)))
    stored = books.ledger.published(run, "sums-1").tolist()
    assert stored in ([1, 1, 1], [2, 2, 2])
    assert [returned for _, returned in answers] == [stored, stored]
    assert books.spent() == (total(release()), 0)
    published = [row for row in books.ledger.history(books.population) if row["kind"] == "publish"]
    assert len(published) == 1


def test_two_processes_that_both_charged_publish_one_value(books):
    """The second charge forfeits the first; whichever value is published, both were paid for."""
    run = books.reserve([release()], spares=1)
    lease = books.ledger.acquire(run)
    first, second = books.ledger.charge(lease, release()), books.ledger.charge(lease, release())
    books.ledger.publish(lease, second, VALUE)
    assert np.array_equal(books.ledger.publish(lease, first, VALUE + 1), VALUE)
    assert books.spent() == (total(release(), release()), 0)


def replayed(history, share_of=lambda run: None):
    """({share: exact rho of every charge, however it ended}, {(run, release): publications}) of the records alone."""
    spent, published = Counter(), Counter()
    for row in history:
        if row["kind"] == "charge":
            spent[share_of(row["run_id"])] += Fraction(row["rho"])
        elif row["kind"] == "publish":
            published[row["run_id"], row["name"]] += 1
    return spent, published


@pytest.mark.parametrize(
    ("kills", "share"),
    [
        *(pytest.param(8, share, marks=pytest.mark.slow) for share in (None, "team")),
        *(pytest.param(300, share, marks=pytest.mark.heavy) for share in (None, "team")),
    ],
)
def test_eight_processes_at_the_limit_spend_it_exactly_while_they_are_killed(books, tmp_path, kills, share):
    """They begin where the budget, or a share of it, has room for a few runs more; one after another is killed."""
    generator, runs = np.random.default_rng(kills), 12 + kills // 4
    books.ledger.divide(books.population, {"team": Fraction(1, 3)} if share else {})
    limit = Fraction(books.ledger.balance(books.population).budget.rho_max) * (Fraction(1, 3) if share else 1)
    scale = (2 * runs * 0.5 / float(limit)) ** 0.5 * (1 + 1e-9)
    plan = [release(1, scale), release(2, scale)]
    log, children, killed = tmp_path / "log", [], 0

    def begin():
        args = (books.url, books.population, plan, share, len(children), 600.0, str(log))
        children.append(spawn.Process(target=processes.spend_until_refused, args=args))
        children[-1].start()

    for _ in range(8):
        begin()
    while killed < kills and any(child.is_alive() for child in children):
        time.sleep(generator.uniform(0.0, 0.1))
        alive = [child for child in children if child.is_alive()]
        if alive:
            victim = alive[generator.integers(len(alive))]
            victim.kill()
            victim.join(60)
            killed += victim.exitcode == -9
            begin()
    for child in children:
        child.join(600)
        assert child.exitcode in (0, -9)

    history, balance = books.ledger.history(books.population), books.ledger.verify(books.population)
    shares = {row["run_id"]: row.get("share") for row in history if row["kind"] == "reserve"}
    spent, published = replayed(history, shares.get)
    assert set(spent) == {share} and spent[share] <= limit
    assert (balance.rho_spent, balance.rho_reserved, balance.open_runs) == (rounded_up(spent[share]), 0, ())
    assert limit - spent[share] < 2 * Fraction(plan[0].rho), "the last run that fitted was refused"
    assert set(published.values()) == {1}
    lines = [line for line in log.read_text().splitlines() if line.endswith("]")]
    for run, name, value in map(json.loads, lines):
        assert books.ledger.published(run, name).tolist() == value
    assert killed and published.keys() >= {(run, name) for run, name, _ in map(json.loads, lines)}


# --- death ----------------------------------------------------------------------------------------------------------

FIRST, SECOND = release(1, 15.0), release(2, 20.0)  # the spare costs as much as the dearer one


@pytest.mark.slow
@pytest.mark.parametrize("share", [None, "a"])
@pytest.mark.parametrize(
    ("when", "spent", "reserved", "in_the_end"),
    [
        ("reserved", (), (FIRST, SECOND, FIRST), (FIRST, SECOND)),
        ("charge", (), (FIRST, SECOND, FIRST), (FIRST, SECOND)),  # inside the transaction: nothing was charged
        ("charged", (FIRST,), (SECOND, FIRST), (FIRST, FIRST, SECOND)),  # noise may have been drawn: paid again
        ("publish", (FIRST,), (SECOND, FIRST), (FIRST, FIRST, SECOND)),  # inside the transaction: the value is lost
        ("published", (FIRST,), (SECOND, FIRST), (FIRST, SECOND)),
    ],
)
def test_a_killed_process_leaves_an_exact_balance_and_the_run_goes_on(books, when, spent, reserved, in_the_end, share):
    if share:
        divide(books, a=".6", b=".1")
    run, plan = books.run(), [FIRST, SECOND]

    def held(spent, reserved):
        assert books.spent() == (total(*spent), total(*reserved))
        for one in shares_of(books):
            assert (one.rho_spent, one.rho_reserved) == (books.spent() if one.name == share else (0, 0))

    child = spawn.Process(target=processes.work_and_die, args=(books.url, books.population, run, plan, 1, when, share))
    child.start()
    child.join(60)
    assert child.exitcode == -9
    held(spent, reserved)
    stored = books.ledger.published(run, FIRST.name)
    assert (stored is not None) == (when == "published")

    books.reserve(plan, spares=1, run=run, share=share)  # as a resumed run does
    lease = books.ledger.acquire(run)  # the holder is dead
    for planned in plan:
        charge = books.ledger.charge(lease, planned)
        if charge.stored is None:
            books.ledger.publish(lease, charge, VALUE)
    books.ledger.finish(lease, "finished")
    held(in_the_end, ())
    assert books.ledger.published(run, FIRST.name).tolist() == ([7, 7, 7] if when == "published" else VALUE.tolist())


# --- edited databases -----------------------------------------------------------------------------------------------


def used(books):
    """A population with two open runs, one of which published; returns the first run."""
    run = books.reserve([release(1), release(2)], spares=1)
    lease = books.ledger.acquire(run)
    books.ledger.publish(lease, books.ledger.charge(lease, release(1)), VALUE)
    books.reserve([release(3)])
    books.ledger.verify(books.population)
    return run


def edit(books, *statements):
    with sqlite3.connect(books.url.removeprefix("sqlite:///")) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement
    connection.close()


LAST = "SELECT max(seq) FROM fedcore_records"
ZEROS = hashlib.sha256(b"[3]" + bytes(24)).hexdigest()
EDITS = {  # what is done -> what the error names, and the statements
    "a charge made cheaper": (
        r"record 5 \(charge\).*hash",
        "UPDATE fedcore_records SET payload = replace(payload, '0.00125', '0.0') WHERE kind = 'charge'",
    ),
    "a budget made larger in the chain": (
        r"record 2 \(budget set\).*hash",
        "UPDATE fedcore_records SET payload = replace(payload, '\"rho_max\":0.0', '\"rho_max\":9.0') WHERE seq = 2",
    ),
    "the last record edited": (
        r"record 7 \(reserve\).*hash",
        f"UPDATE fedcore_records SET payload = replace(payload, '\"spares\":0', '\"spares\":1') WHERE seq = ({LAST})",
    ),
    "a record's kind edited": ("record 5", "UPDATE fedcore_records SET kind = 'acquire' WHERE seq = 5"),
    "a record removed": ("record 5 should stand here", "DELETE FROM fedcore_records WHERE seq = 5"),
    "two records exchanged": (
        r"record 4 \(charge\).*does not follow",
        "UPDATE fedcore_records SET seq = 100 WHERE seq = 5",
        "UPDATE fedcore_records SET seq = 5 WHERE seq = 4",
        "UPDATE fedcore_records SET seq = 4 WHERE seq = 100",
    ),
    "the chain cut": ("last", f"DELETE FROM fedcore_records WHERE seq = ({LAST})"),
    "the chain and its head cut": (
        "the runs are",
        "DELETE FROM fedcore_records WHERE seq = 7",
        "UPDATE fedcore_accounts SET seq = 6, hash = (SELECT hash FROM fedcore_records WHERE seq = 6)",
    ),
    "the budget raised in the table": ("the budget is", "UPDATE fedcore_accounts SET rho_max = 9"),
    "another relation": ("unit or relation", "UPDATE fedcore_accounts SET relation = 'replace_one'"),
    "a publication given back": (
        "release 'sums-1'",
        "UPDATE fedcore_releases SET state = 'returned' WHERE state = 'published'",
    ),
    "a price lowered": ("release 'sums-1'", "UPDATE fedcore_releases SET rho = 0 WHERE state = 'published'"),
    "a release removed": ("the list of releases", "DELETE FROM fedcore_releases WHERE state = 'reserved'"),
    "spares added": ("the entry of run", "UPDATE fedcore_runs SET spares = 5"),
    "a run closed": ("the entry of run", "UPDATE fedcore_runs SET status = 'finished'"),
    "a token lowered": ("the entry of run", "UPDATE fedcore_runs SET token = 0 WHERE token = 1"),
    "a plan edited": ("the entry of run", "UPDATE fedcore_runs SET plan = replace(plan, 'sums-2', 'sums-x')"),
    "a published value edited": ("published value", "UPDATE fedcore_published SET data = zeroblob(24)"),
    "a published value reshaped": ("published value", "UPDATE fedcore_published SET shape = '[3,1]'"),
    "a published value and its checksum edited": (
        "published value",
        f"UPDATE fedcore_published SET data = zeroblob(24), sha256 = '{ZEROS}'",
    ),
    "a published value removed": ("published value of 'sums-1'.*is missing", "DELETE FROM fedcore_published"),
}


@pytest.mark.parametrize("edited", EDITS)
def test_an_edited_ledger_is_refused(file_books, edited):
    named, *statements = EDITS[edited]
    run = used(file_books)
    edit(file_books, *statements)
    with pytest.raises(LedgerTampered, match=named):
        file_books.ledger.verify(file_books.population)
    if edited not in ("a published value edited", "a published value reshaped"):  # which no reservation reads
        with pytest.raises(LedgerTampered):
            file_books.reserve([release(4)])
    if edited.startswith("a published value") and "removed" not in edited:
        with pytest.raises(LedgerTampered, match="published value"):
            file_books.ledger.published(run, "sums-1")


def test_a_published_value_that_is_gone_is_not_drawn_again(file_books):
    run = used(file_books)
    edit(file_books, "DELETE FROM fedcore_published")
    lease = file_books.ledger.acquire(run, take_over=True)
    with pytest.raises(LedgerTampered, match="gone"):
        file_books.ledger.charge(lease, release(1))


@pytest.mark.parametrize("holder", ["nobody", "[]", '{"pid": 1}'])
def test_a_garbled_holder_is_a_named_error(file_books, holder):
    run = used(file_books)
    edit(file_books, f"UPDATE fedcore_runs SET holder = '{holder}'")
    with pytest.raises(LedgerTampered, match="holder"):
        file_books.ledger.acquire(run)


def test_a_chain_forged_from_its_start_is_caught_by_whoever_saw_it_before(file_books):
    """Hashes have no key: who can write the database can rewrite a whole chain. A head kept elsewhere tells."""
    ledger, population = file_books.ledger, file_books.population
    used(file_books)
    seen = ledger.head(population)
    first = link(ledger.id, population, 1, "register", None, {"at": 0}, "0" * 64)
    edit(
        file_books,
        "DELETE FROM fedcore_published",
        "DELETE FROM fedcore_releases",
        "DELETE FROM fedcore_runs",
        "DELETE FROM fedcore_records WHERE seq > 1",
        f"UPDATE fedcore_records SET payload = '{first.payload}', hash = '{first.hash}'",
        f"UPDATE fedcore_accounts SET seq = 1, hash = '{first.hash}', rho_max = NULL, unit = NULL, "
        "relation = NULL, currency = 'zcdp'",
    )
    ledger.verify(population)
    assert not ledger.contains(population, seen)
    with pytest.raises(LedgerRolledBack, match=f"record {seen.seq}"):
        ledger.check_not_rolled_back(population, seen)


def test_a_restored_old_copy_is_noticed(file_books, tmp_path):
    ledger, population, path = file_books.ledger, file_books.population, Path(file_books.url[len("sqlite:///") :])
    old = ledger.head(population)
    shutil.copy(path, tmp_path / "backup")
    used(file_books)
    new = ledger.head(population)
    ledger.check_not_rolled_back(population, old)
    ledger.check_not_rolled_back(population, new)
    assert not ledger.contains(population, ChainHead("another ledger", new.seq, new.hash))
    shutil.copy(tmp_path / "backup", path)
    ledger.verify(population)
    ledger.check_not_rolled_back(population, old)
    with pytest.raises(LedgerRolledBack):
        ledger.check_not_rolled_back(population, new)


# --- missing and unusable databases ---------------------------------------------------------------------------------


def test_a_deleted_ledger_is_noticed_at_once_and_not_made_again(file_books):
    path = Path(file_books.url[len("sqlite:///") :])
    lease = file_books.ledger.acquire(file_books.reserve([release()]))
    path.unlink()
    with pytest.raises(LedgerMissing):
        file_books.ledger.charge(lease, release())
    with pytest.raises(LedgerMissing):
        open_ledger(file_books.url)
    assert not path.exists()


def test_a_ledger_exchanged_for_another_is_noticed_at_once(file_books, tmp_path):
    path, other = Path(file_books.url[len("sqlite:///") :]), tmp_path / "other.sqlite"
    create_ledger(f"sqlite:///{other}").register(file_books.population)
    shutil.copy(other, path)
    with pytest.raises(LedgerMissing, match="is not ledger"):
        file_books.ledger.balance(file_books.population)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"this is not a database, but long enough to be taken for one" * 100)
    for function in (open_ledger, create_ledger):
        with pytest.raises(LedgerError, match="is not a ledger, or is damaged"):
            function(f"sqlite:///{path}")
    assert path.read_bytes().startswith(b"this is not")


def test_a_newer_schema_is_refused(file_books):
    edit(file_books, "UPDATE fedcore_ledger SET schema = 99")
    with pytest.raises(LedgerError, match="schema 99"):
        open_ledger(file_books.url)


def limit_pages(monkeypatch, pages):
    """Every new connection believes that the disk ends after `pages` pages."""
    connect = sqlite3.connect

    def limited(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(ledger_database.sqlite3, "connect", limited)


def test_a_full_disk_is_one_clear_message_and_the_charge_can_still_be_published(file_books, monkeypatch):
    large = release(shape=(200_000,))
    run = file_books.reserve([large])
    lease = file_books.ledger.acquire(run)
    charge = file_books.ledger.charge(lease, large)
    with monkeypatch.context() as patch:
        patch.setattr(ledger_module, "PUBLISH_SECONDS", 0.0)
        limit_pages(patch, 40)
        with pytest.raises(LedgerError, match="the disk is full") as caught:
            file_books.ledger.publish(lease, charge, np.zeros(200_000, np.int64))
        assert caught.value.remedy and caught.value.__suppress_context__
    assert file_books.spent() == (total(large), 0)
    file_books.ledger.publish(lease, charge, np.ones(200_000, np.int64))
    assert file_books.ledger.published(run, large.name).sum() == 200_000


def test_a_locked_ledger_is_one_clear_message(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_database, "BUSY_SECONDS", 0.05)
    books = open_books(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked by another process"):
        books.reserve([release()])
    assert books.ledger.balance(books.population).rho_reserved == 0  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    books.reserve([release()])


def test_a_read_only_ledger_is_one_clear_message(file_books, monkeypatch):
    connect = sqlite3.connect

    def read_only(address, **options):
        return connect(address.replace("mode=rw", "mode=ro"), **options)

    monkeypatch.setattr(ledger_database.sqlite3, "connect", read_only)
    with pytest.raises(LedgerError, match="may not be written") as caught:
        file_books.reserve([release()])
    assert "permission" in caught.value.remedy


def test_a_ledger_in_an_impossible_place_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError):
        create_ledger(f"sqlite:///{tmp_path / 'file' / 'ledger.sqlite'}")
