"""People who are in several populations of one ledger: found for the operator, declared by the budget owner."""

import os
import pty
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing, contextmanager

import numpy as np
import pytest

from fedcore.cli import shared_ids as on_the_terminal
from fedcore.errors import BudgetExists, ConfigError, LedgerError, LedgerTampered, SharedIds
from fedcore.operations.forgetting import compact, forget
from fedcore.population.ingest.ingest import ingest
from fedcore.privacy import id_sketch
from fedcore.privacy.id_sketch import Sketch
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.copies import backup, restore
from fedcore.privacy.ledger.ledger import Ledger, create_ledger, default_ledger_url, open_ledger
from fedcore.privacy.statement import PrivacyStatement, private_statement
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.budget import ledger_name, ledger_of, set_budget
from fedcore.training.request import TrainRequest
from fedcore.training.session import resume, start_run
from fedcore.training.shared_ids import register
from tests.command import fedcore, works
from tests.privacy.conftest import SERVER, release

WHY = "the same patients as in the weekly export"
BUDGET = ("--epsilon", 2, "--delta", 1e-6, "--public-schema", "columns of a form")


def people(first: int, stop: int, spell=str) -> list[str]:
    return [spell(f"Patient {number}") for number in range(first, stop)]


def table(path, ids, seed=0):
    """A CSV with a row for each id."""
    values = np.random.default_rng(seed).random((len(ids), 2))
    rows = [f"{one},{x:.4f},{y:.4f}" for one, (x, y) in zip(ids, values, strict=True)]
    path.write_text("\n".join(["client,x,y", *rows, ""]), "utf-8")
    return path


def made(folder, name, ids, seed=0, **options):
    """(population, its ledger) of a table with these ids."""
    folder.mkdir(exist_ok=True)
    file, again = table(folder / f"{name}.csv", ids, seed), options.get("append", False)
    named = {} if again else {"ledger": ledger_name(), "nominal_clients": 1000}
    given = {"client": "client", **named, **options}
    population = ingest(file, folder / name, **{key: value for key, value in given.items() if value is not None})
    return population, ledger_of(population)


def reserve(population, ledger, run):
    ledger.reserve(population.id, run, [release()], 0, secure=True)


def start(population, run="run", **more):
    """Start a private run on the population, as `fedcore train` does."""
    settings = {"epsilon": 0.5, "anyway": True}
    runs = population.path.parent / "runs"
    asked = {"method": "private_mixture", "population": str(population.path), "settings": settings}
    request = TrainRequest(**asked, **more, runs=str(runs), run_id=run)
    session = start_run(request, InProcessBackend(), stamp="now")
    session.close()
    return session.run.path


def two_with_budgets(folder):
    """(one, two, ledger): populations of other people."""
    one, ledger = made(folder, "one", people(0, 900))
    set_budget(one, ledger, 2.0, 1e-6)
    two, _ = made(folder, "two", people(2000, 2900), seed=1)
    set_budget(two, ledger, 2.0, 1e-6)
    return one, two, ledger


@contextmanager
def edited():
    """The database of the ledger."""
    with closing(sqlite3.connect(default_ledger_url().removeprefix("sqlite:///"))) as connection:
        yield connection
        connection.commit()


# --- found and declared ---------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch):
    """Standard error is one."""
    monkeypatch.setattr(on_the_terminal, "is_terminal", lambda: True)


def test_the_same_file_as_a_second_population_needs_a_declaration(tmp_path, monkeypatch, terminal):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "a.csv", people(0, 700))
    for name in ("one", "two"):
        last = works("population", "ingest", "a.csv", name, "--client", "client", "--nominal-clients", 700, "--json")
    assert "about " in last.err and "block with the same ids and data with 'one'" in last.err and "add up" in last.err
    assert "about" not in last.out and "shared" not in last.json
    works("budget", "set", "one", *BUDGET)
    refused = fedcore("budget", "set", "two", *BUDGET, "--json")
    assert refused.code == 2 and refused.err.count("about ") == 1 and "--shared-ids REASON" in refused.err
    assert "has a budget" in refused.err and "No budget was set" in refused.err
    assert "about " not in refused.out
    assert fedcore("budget", "show", "two", "--json").json["budget"] is None
    declared = works("budget", "set", "two", *BUDGET, "--shared-ids", f" {WHY}. ", "--json")
    record = declared.json["history"][-1]
    assert (record["kind"], record["reason"]) == ("shared ids", f"{WHY}.") and "about" not in declared.out
    assert set(record) == {"kind", "reason", "seq", "run_id", "hash", "at"}
    assert "about" in declared.err and "declaration" not in declared.err
    shown = works("budget", "shared-ids", "two")
    assert "about" in shown.err and "declaration" not in shown.err and WHY in shown.out


def test_numbers_are_shown_on_a_terminal_only(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 900))
    set_budget(one, ledger, 2.0, 1e-6)
    two, _ = made(tmp_path, "two", people(0, 900), seed=1)
    kept = works("budget", "shared-ids", two.path, "--json").err
    assert f"Run `fedcore budget shared-ids {two.path}` on a terminal to see how many." in kept
    left = kept.replace(str(two.path), "")
    assert "shares people" in left and not any(character.isdigit() for character in left), left
    shown = on_a_terminal("budget", "shared-ids", two.path, "--json")
    assert "about " in shown and "ids (standard error" in shown and "on a terminal to see" not in shown


def on_a_terminal(*arguments):
    """What `fedcore ARGUMENTS` writes on standard error, which is a pseudo-terminal."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", "from fedcore.cli import main; main()", *map(str, arguments)]
    with os.fdopen(leader, "rb", buffering=0) as screen:
        with os.fdopen(follower, "wb") as error:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=error)
        written = b""
        try:
            while some := screen.read(4096):
                written += some
        except OSError:  # the end, on Linux
            pass
        assert process.wait() == 0, written
    return written.decode()


def test_an_error_and_a_flow_never_say_how_many(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 900))
    set_budget(one, ledger, 2.0, 1e-6)
    two, _ = made(tmp_path, "two", people(0, 900), seed=1)
    with pytest.raises(SharedIds) as refused:
        set_budget(two, ledger, 2.0, 1e-6)
    set_budget(two, ledger, 2.0, 1e-6, shared_ids=WHY)
    with edited() as connection:
        connection.execute("UPDATE fedcore_id_sketches SET undeclared = '[\"x\"]'")
    with pytest.raises(SharedIds) as stopped:
        reserve(two, ledger, "run")
    for told in (refused.value, stopped.value):
        left = str(told).replace(one.id, "").replace(two.id, "")
        assert not any(character.isdigit() for character in left), left


def test_a_few_people_are_found_by_their_blocks(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 12))
    set_budget(one, ledger, 2.0, 1e-6)
    two, _ = made(tmp_path, "two", people(0, 12))
    with pytest.raises(SharedIds):
        set_budget(two, ledger, 2.0, 1e-6)
    other, _ = made(tmp_path, "other", people(0, 12), seed=1)  # the same ids, other values: too few to be found
    set_budget(other, ledger, 2.0, 1e-6)


@pytest.mark.parametrize(
    ("ids", "many"),
    [(people(200, 1100, spell=lambda text: f" {text.upper()}  ".replace("7", "７")), True), (people(900, 1800), False)],
    ids=["most of them, spelled otherwise", "other people"],
)
def test_who_is_found(tmp_path, ids, many):
    one, ledger = made(tmp_path, "one", people(0, 900))
    set_budget(one, ledger, 2.0, 1e-6)
    two, _ = made(tmp_path, "two", ids, seed=1)
    compared = register(two, ledger)
    assert [found.population_id for found in compared.found] == ([one.id] if many else [])
    if many:
        assert abs(compared.found[0].ids.ids - 700) < 5 * compared.found[0].ids.error
        with pytest.raises(SharedIds):
            set_budget(two, ledger, 2.0, 1e-6)
    else:
        set_budget(two, ledger, 2.0, 1e-6)
        reserve(two, ledger, "run")


@pytest.mark.slow
def test_a_population_without_a_budget_or_with_public_data_is_no_obstacle(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 900))
    register(one, ledger)
    public, _ = made(tmp_path, "public", people(0, 900), seed=2, public_for_evaluation="a published register")
    set_budget(public, ledger, 2.0, 1e-6)
    two, _ = made(tmp_path, "two", people(0, 900), seed=1)
    set_budget(two, ledger, 2.0, 1e-6)
    assert ledger.kept_sketch(public.id).sketch is None
    with pytest.raises(SharedIds):  # the second budget is the one that needs it
        set_budget(one, ledger, 2.0, 1e-6)


# --- statements -----------------------------------------------------------------------------------------------------


def test_statements_quote_the_declaration(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 30))
    set_budget(one, ledger, 2.0, 1e-6, shared_ids=WHY)
    reserve(one, ledger, "run")
    before = private_statement(ledger, one.id, "run")
    ledger.declare_shared_ids(one.id, "and since March those of the ward")
    statement = private_statement(ledger, one.id, "run")
    assert (before.shared_ids, statement.shared_ids) == ((WHY,), (WHY, "and since March those of the ward"))
    assert f"other populations: {WHY}. A person in several populations loses the sum" in statement.text()
    assert statement.to_json()["shared_ids"] == [*statement.shared_ids]
    assert "Shared ids" not in PrivacyStatement(False, "a test").text()
    with pytest.raises(ConfigError, match="a reason has"):
        ledger.declare_shared_ids(one.id, " ")
    ledger.verify(one.id)


# --- appends --------------------------------------------------------------------------------------------------------


def test_an_append_that_shares_people_stops_new_runs_until_it_is_declared(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 900))
    set_budget(one, ledger, 2.0, 1e-6)
    two, _ = made(tmp_path, "two", people(2000, 2900), seed=1)
    set_budget(two, ledger, 2.0, 1e-6)
    reserve(two, ledger, "before")
    two, _ = made(tmp_path, "two", people(0, 900), seed=2, append=True)
    assert register(two, ledger).undeclared == (one.id,)
    reserve(two, ledger, "before")  # one that has reserved goes on
    with pytest.raises(SharedIds, match="fedcore budget shared-ids"):
        reserve(two, ledger, "after")
    works("budget", "shared-ids", two.path, WHY)
    reserve(two, ledger, "after")
    two, _ = made(tmp_path, "two", people(0, 901), seed=3, append=True)
    assert register(two, ledger).undeclared == ()  # that they are in both is declared
    assert register(one, ledger).undeclared == ()  # by one owner


def test_a_flag_stays_until_it_is_declared(tmp_path):
    one, two, ledger = two_with_budgets(tmp_path)
    two, _ = made(tmp_path, "two", people(0, 900), seed=2, append=True)
    assert register(two, ledger).undeclared == (one.id,)
    two, _ = made(tmp_path, "two", people(5000, 30_000), seed=3, append=True)  # too many strangers to see it any more
    compared = register(two, ledger)
    assert (compared.found, compared.undeclared) == ((), (one.id,))
    with pytest.raises(SharedIds):
        start(two)
    works("budget", "shared-ids", two.path, WHY)
    assert register(two, ledger).undeclared == ()
    reserve(two, ledger, "run")


def test_a_new_key_of_another_owner_removes_no_flag(tmp_path):
    one, two, ledger = two_with_budgets(tmp_path)
    two, _ = made(tmp_path, "two", people(0, 900), seed=2, append=True)
    register(two, ledger)
    ledger.sketch_key_file.unlink()
    three, _ = made(tmp_path, "three", people(7000, 7900), seed=3)
    set_budget(three, ledger, 2.0, 1e-6, shared_ids="other people: the key was lost")
    assert register(two, ledger).undeclared == (one.id,)
    with pytest.raises(SharedIds):
        reserve(two, ledger, "run")
    works("budget", "shared-ids", two.path, WHY)
    reserve(two, ledger, "run")


@pytest.mark.slow
def test_a_sketch_gets_new_ids_once_they_are_many_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(id_sketch, "noise", lambda cells: np.zeros(cells, np.int64))
    one, ledger = made(tmp_path, "one", people(0, 800))
    register(one, ledger)
    for stop, clients, parts in ((890, 800, 1), (900, 900, 2), (900, 900, 2), (1000, 900, 2)):
        one, _ = made(tmp_path, "one", people(stop - 300, stop), append=True)
        register(one, ledger)
        kept = ledger.kept_sketch(one.id)
        assert (kept.version, kept.clients, kept.sketch.parts) == (one.version, clients, parts)
        assert kept.sketch.ids == clients
        whole = Sketch(np.zeros_like(kept.sketch.cells), 0, 0)
        key = ledger.sketch_key()
        names = id_sketch.keyed_names(people(0, 1000), key)
        if stop == 900:
            np.testing.assert_array_equal(kept.sketch.cells, whole.with_ids(names[:900]).cells)


@pytest.mark.slow
def test_a_larger_sketch_is_made_of_a_population_that_grew(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 100))
    register(one, ledger)
    for stop in (2200, 2600):
        one, _ = made(tmp_path, "one", people(0, stop), append=True)
        register(one, ledger)
    kept = ledger.kept_sketch(one.id)
    assert (len(kept.sketch.cells), kept.sketch.ids, kept.sketch.parts) == (1024, 2600, 1)


@pytest.mark.slow
def test_forgotten_clients_leave_the_sketch_and_blocks_stay(tmp_path, monkeypatch):
    one, ledger = made(tmp_path, "one", people(0, 300))
    set_budget(one, ledger, 2.0, 1e-6)
    monkeypatch.setattr(id_sketch, "noise", lambda cells: np.zeros(cells, np.int64))
    blocks = ledger.kept_sketch(one.id).blocks
    forget(one, clients=people(0, 100), stamp="now")
    kept = ledger.kept_sketch(one.id)
    names = id_sketch.keyed_names(people(100, 300), ledger.sketch_key())
    np.testing.assert_array_equal(kept.sketch.cells, Sketch.empty(200).with_ids(names).cells)
    assert kept.blocks > blocks  # of all versions: what was published of an older one is not public for this one
    compacted = compact(type(one).open(one.path)).population
    register(compacted, ledger)
    assert ledger.kept_sketch(one.id).clients == 200


@pytest.mark.slow
def test_of_calendar_periods_a_client_counts_once(tmp_path, monkeypatch):
    monkeypatch.setattr(id_sketch, "noise", lambda cells: np.zeros(cells, np.int64))
    rows = [f"{one},{month},1.0" for month in ("2025-01-03", "2025-02-04") for one in people(0, 600)]
    (tmp_path / "a.csv").write_text("\n".join(["client,when,x", *rows, ""]))
    options = {"client": "client", "period": "month", "time": "when", "first": "2025-01", "through": "2025-02"}
    one = ingest(tmp_path / "a.csv", tmp_path / "one", ledger=ledger_name(), nominal_clients=600, **options)
    ledger = ledger_of(one)
    register(one, ledger)
    assert (one.n_clients, ledger.kept_sketch(one.id).sketch.ids) == (1200, 600)
    rows = [f"{one},2025-03-01,1.0" for one in people(300, 900)]
    (tmp_path / "b.csv").write_text("\n".join(["client,when,x", *rows, ""]))
    one = ingest(tmp_path / "b.csv", tmp_path / "one", through="2025-03", append=True)
    register(one, ledger)
    kept = ledger.kept_sketch(one.id).sketch
    names = id_sketch.keyed_names(people(0, 900), ledger.sketch_key())
    np.testing.assert_array_equal(kept.cells, Sketch(np.zeros_like(kept.cells), 0, 0).with_ids(names).cells)
    two, _ = made(tmp_path, "two", people(0, 900))
    assert [found.population_id for found in register(two, ledger).found] == [one.id]


@pytest.mark.slow
def test_records_have_no_ids_of_people(tmp_path):
    options = {"client": None, "unit": "record", "columns": ["x", "y"]}
    found = [made(tmp_path / place, "r", people(0, 900), **options) for place in "ab"]
    (one, ledger), (two, _) = found
    register(one, ledger)
    shared = register(two, ledger).found
    assert ledger.kept_sketch(one.id).sketch is None
    assert [(found.ids, found.blocks) for found in shared] == [(None, 1)]


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_compares_what_no_command_has_compared(tmp_path):
    """An append through the library, or by a process that died before it made the new version known to the ledger."""
    one, two, ledger = two_with_budgets(tmp_path)
    path = start(two)
    two, _ = made(tmp_path, "two", people(0, 900), seed=2, append=True)
    with pytest.raises(SharedIds, match="'two' are also in another.*Nothing was released") as refused:
        start(two, "another")
    assert f"fedcore budget shared-ids {two.path}" in str(refused.value) and two.id not in str(refused.value)
    assert not any(character.isdigit() for character in str(refused.value).replace(str(two.path), ""))
    assert not (tmp_path / "runs" / "another").exists() and ledger.run_status("another") is None
    resume(path, InProcessBackend()).close()  # it has reserved
    works("budget", "shared-ids", two.path, WHY)
    start(two, "another")


def test_a_run_compares_with_an_older_copy_of_the_ledger(tmp_path):
    one, two, ledger = two_with_budgets(tmp_path)
    with edited() as connection:
        rows = connection.execute("SELECT version, manifest, undeclared, population_id FROM fedcore_id_sketches")
        old = rows.fetchall()
    two, _ = made(tmp_path, "two", people(0, 900), seed=2, append=True)
    register(two, ledger)
    with edited() as connection:
        change = "UPDATE fedcore_id_sketches SET version = ?, manifest = ?, undeclared = ? WHERE population_id = ?"
        connection.executemany(change, old)
    with pytest.raises(SharedIds):
        start(two)


def test_a_run_compares_a_population_without_a_sketch(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 900))
    set_budget(one, ledger, 2.0, 1e-6)
    two, _ = made(tmp_path, "two", people(0, 900), seed=1)  # of a version that knew no sketches
    ledger.register(two.id)
    ledger.set_budget(two.id, 2.0, 1e-6)
    with pytest.raises(SharedIds):
        start(two)
    start(one)  # compared before


def test_a_process_that_dies_before_it_has_compared(tmp_path, monkeypatch):
    one, two, ledger = two_with_budgets(tmp_path)
    two, _ = made(tmp_path, "two", people(0, 900), seed=2, append=True)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Ledger, "note_shared", raised(KeyboardInterrupt))
        register(two, ledger)
    assert ledger.kept_sketch(two.id).version == two.version
    with pytest.raises(SharedIds):
        reserve(two, ledger, "run")
    with pytest.raises(SharedIds):
        start(two)
    assert register(two, ledger).undeclared == (one.id,)


def raised(error):
    def fails(*_, **__):
        raise error

    return fails


def test_a_run_on_a_known_version_opens_no_data_and_compares_nothing(tmp_path, monkeypatch):
    one, two, ledger = two_with_budgets(tmp_path)
    ledger.sketch_key_file.unlink()  # it is not needed
    monkeypatch.setattr(Ledger, "note_shared", raised(AssertionError))
    monkeypatch.setattr(type(two), "client_ids", raised(AssertionError))
    start(two)


def test_a_run_that_cannot_be_compared_is_refused(tmp_path, caplog):
    one, two, ledger = two_with_budgets(tmp_path)
    key = ledger.sketch_key_file
    kept = key.read_bytes()
    two, _ = made(tmp_path, "two", people(3000, 3900), seed=2, append=True)
    key.unlink()
    with pytest.raises(SharedIds, match="'two' cannot be compared.*is missing") as refused:
        start(two)
    told = str(refused.value)
    assert f"Restore {str(key)!r}" in told and f"fedcore budget shared-ids {two.path} REASON" in told
    assert not key.exists()
    key.write_bytes(kept)
    key.chmod(0o600)
    start(two)
    two, _ = made(tmp_path, "two", people(4000, 4900), seed=2, append=True)
    key.unlink()
    works("budget", "shared-ids", two.path, "the key was lost; these are other people")
    start(two, "another")
    assert "standard error" not in caplog.text


@pytest.mark.slow
def test_public_populations_and_test_ledgers_keep_no_sketch_for_a_run(tmp_path, monkeypatch):
    one, ledger = made(tmp_path, "one", people(0, 900))
    set_budget(one, ledger, 2.0, 1e-6)
    public, _ = made(tmp_path, "public", people(0, 900), seed=2, public_for_evaluation="a published register")
    ledger.register(public.id)
    ledger.set_budget(public.id, 2.0, 1e-6)
    start(public)
    assert ledger.kept_sketch(public.id).sketch is None
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'test.sqlite'}")
    tests = create_ledger(default_ledger_url(), test=True)
    two = made(tmp_path, "two", people(0, 900), ledger={"id": tests.id, "url": tests.url})[0]
    tests.register(two.id)
    tests.set_budget(two.id, 2.0, 1e-6)
    start(two, "test", test_noise="k")
    assert tests.sketched() == [] and not tests.sketch_key_file.exists()


def test_a_branch_of_a_population_is_compared(tmp_path):
    """A copy to which other people were appended than to the original, of which the ledger knows a later version."""
    one, two, ledger = two_with_budgets(tmp_path)
    works("population", "copy", two.path, tmp_path / "copy" / "two")
    works("population", "copy", two.path, tmp_path / "branch" / "two")
    for seed in (2, 3):
        two, _ = made(tmp_path, "two", people(3000, 3300), seed=seed, append=True)
    register(two, ledger)
    start(type(two).open(tmp_path / "copy" / "two"))  # an older version
    start(two, "older", version=1)
    assert ledger.kept_sketch(two.id).version == 3
    branch, _ = made(tmp_path / "branch", "two", people(0, 900), seed=4, append=True)
    with pytest.raises(SharedIds):
        start(branch)


# --- two budgets at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["new", "compared before"])
def test_of_two_budgets_that_are_set_at_once_one_needs_a_declaration(tmp_path, monkeypatch, known):
    one, ledger = made(tmp_path, "one", people(0, 900))
    two, _ = made(tmp_path, "two", people(0, 900), seed=1)
    if known:
        register(one, ledger)
        register(two, ledger)
    setting, calls = Ledger.set_budget, []

    def slow(self, population_id, *args, **terms):
        calls.append(population_id)
        if len(calls) == 1:
            set_budget(two, ledger, 2.0, 1e-6)  # by another process, meanwhile
        setting(self, population_id, *args, **terms)

    monkeypatch.setattr(Ledger, "set_budget", slow)
    set_budget(one, ledger, 2.0, 1e-6)
    assert calls == [one.id, two.id]
    refused = []
    for population in (one, two):
        try:
            reserve(population, ledger, population.id)
        except SharedIds:
            refused.append(population)
    assert refused
    ledger.declare_shared_ids(refused[0].id, WHY)  # by one of the owners
    for number, population in enumerate((one, two)):
        reserve(population, ledger, f"declared-{number}")


# --- the key --------------------------------------------------------------------------------------------------------


def test_the_key_is_private_and_in_no_copy(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 30))
    set_budget(one, ledger, 2.0, 1e-6)
    key = ledger.sketch_key_file
    assert key == tmp_path / "ledger.sqlite.ids.key" and len(key.read_bytes()) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    works("population", "copy", one.path, tmp_path / "copies" / "one")
    copy = backup(ledger, tmp_path / "copies" / "ledger.sqlite")
    stored = [file for folder in ("one", "copies") for file in (tmp_path / folder).rglob("*") if file.is_file()]
    secret = key.read_bytes()
    assert stored and not any(secret in file.read_bytes() or file.name.endswith(".key") for file in stored)
    assert copy.sketch_key() is None and copy.kept_sketch(one.id).key == id_sketch.key_name(secret)
    assert secret not in (tmp_path / "ledger.sqlite").read_bytes()


def test_ids_and_digests_of_blocks_are_not_in_the_ledger(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 40))
    register(one, ledger)
    ledger.verify(one.id)
    for file in tmp_path.glob("ledger.sqlite*"):
        content = file.read_bytes()
        assert b"atient" not in content and bytes.fromhex(one.blocks[0].fingerprint) not in content
        assert one.blocks[0].fingerprint.encode() not in content


@pytest.mark.slow
def test_a_lost_key(tmp_path, caplog):
    one, ledger = made(tmp_path, "one", people(0, 900))
    set_budget(one, ledger, 2.0, 1e-6)
    key, kept = ledger.sketch_key_file, tmp_path / "kept"
    key.rename(kept)
    two, _ = made(tmp_path, "two", people(5000, 5900))
    with pytest.raises(SharedIds, match="key of the ledger's sketches is missing.*ledger.sqlite.ids.key"):
        set_budget(two, ledger, 2.0, 1e-6)
    assert "ids are not compared" in caplog.text and not key.exists()
    shutil.copy(kept, key)
    set_budget(two, ledger, 2.0, 1e-6)  # other people
    key.unlink()
    three, _ = made(tmp_path, "three", people(5000, 5900), seed=1)
    set_budget(three, ledger, 2.0, 1e-6, shared_ids=WHY)  # lost for good: a declaration makes a new one
    assert key.exists() and key.read_bytes() != kept.read_bytes()
    four, _ = made(tmp_path, "four", people(5000, 5900), seed=1)
    with pytest.raises(SharedIds, match="are also in"):
        set_budget(four, ledger, 2.0, 1e-6)
    four, _ = made(tmp_path, "five", people(9000, 9900), seed=1)
    with pytest.raises(SharedIds, match="2 other populations with a budget.*another one"):
        set_budget(four, ledger, 2.0, 1e-6)
    for population in (one, two):  # whose sketches are made again
        register(population, ledger)
    set_budget(four, ledger, 2.0, 1e-6)


def test_populations_whose_sketch_has_another_key_are_listed(tmp_path, monkeypatch):
    one, two, ledger = two_with_budgets(tmp_path)
    ledger.sketch_key_file.unlink()
    lost = fedcore("budget", "raise", one.path, "--epsilon", 3, "--delta", 1e-6)
    assert "Not compared" in lost.err and "the key" in lost.err and two.id in lost.err
    three, _ = made(tmp_path, "three", people(7000, 7900), seed=3)
    set_budget(three, ledger, 2.0, 1e-6, shared_ids="the key was lost")
    for command in (("shared-ids", three.path), ("raise", three.path, "--epsilon", 3, "--delta", 1e-6)):
        told = works("budget", *command).err
        assert "Not compared: another key" in told and one.id in told and two.id in told
        assert "fedcore budget shared-ids" in told
    works("budget", "shared-ids", one.path)
    told = works("budget", "shared-ids", three.path).err
    assert one.id not in told and two.id in told


def test_a_command_that_fails_makes_no_key(tmp_path, monkeypatch):
    one, two, ledger = two_with_budgets(tmp_path)
    three, _ = made(tmp_path, "three", people(5000, 5300), seed=3)
    key = ledger.sketch_key_file
    key.unlink()
    for refused in (
        ("shared-ids", two.path, " "),
        ("shared-ids", three.path, WHY),  # which has no budget
        ("set", two.path, *BUDGET, "--shared-ids", WHY),  # which has one
        ("set", three.path, *BUDGET, "--shared-ids", " "),
        ("set", three.path, *BUDGET[:-1], " ", "--shared-ids", WHY),
        ("set", three.path, *BUDGET, "--shared-ids", WHY, "--unit", "person"),
        ("set", three.path, *BUDGET, "--shared-ids", WHY, "--epsilon", -1),
        ("set", three.path, *BUDGET, "--shared-ids", WHY, "--window", 2),
    ):
        assert fedcore("budget", *refused).code == 2, refused
        assert not list(tmp_path.rglob("*.key*")), refused
    with pytest.raises(BudgetExists):
        set_budget(two, ledger, 2.0, 1e-6, shared_ids=WHY)
    assert not key.exists()
    works("budget", "set", three.path, *BUDGET, "--shared-ids", WHY)
    assert key.exists() and ledger.kept_sketch(three.id).key == id_sketch.key_name(key.read_bytes())


def test_the_first_budget_of_a_ledger_makes_its_key_once_it_is_set(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 30))
    assert fedcore("budget", "set", one.path, "--epsilon", 2, "--delta", 1e-6, "--public-schema", " ").code == 2
    assert not ledger.sketch_key_file.exists()
    works("budget", "set", one.path, *BUDGET)
    assert ledger.sketched() == [one.id] and ledger.sketch_key_file.exists()


def test_a_budget_reads_the_sketches_once(tmp_path, monkeypatch):
    one, two, ledger = two_with_budgets(tmp_path)
    three, _ = made(tmp_path, "three", people(5000, 5300), seed=3)
    read, calls = Ledger.kept_sketch, []

    def counted(self, population_id):
        calls.append(population_id)
        return read(self, population_id)

    monkeypatch.setattr(Ledger, "kept_sketch", counted)
    works("budget", "set", three.path, *BUDGET)
    assert sorted(calls) == sorted([one.id, two.id, three.id])


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_a_key_that_others_may_read_is_refused(tmp_path, mode):
    one, ledger = made(tmp_path, "one", people(0, 30))
    register(one, ledger)
    ledger.sketch_key_file.chmod(mode)
    with pytest.raises(LedgerError, match="other users") as refused:
        register(one, ledger)
    assert "chmod 600" in refused.value.remedy
    ledger.sketch_key_file.chmod(0o400)
    register(one, ledger)


def test_a_key_is_written_to_a_new_file(tmp_path, monkeypatch):
    """Not to one, or through a link, that is there under a name that could be foreseen."""
    one, ledger = made(tmp_path, "one", people(0, 30))
    key, victim = ledger.sketch_key_file, tmp_path / "victim"
    victim.write_text("precious")
    opened, flags = os.open, []

    def seen(path, given, *mode, **more):
        if ".ids.key." in str(path):
            flags.append(given)
        return opened(path, given, *mode, **more)

    key.with_name(f".{key.name}.{os.getpid()}.partial").symlink_to(victim)
    monkeypatch.setattr(os, "open", seen)
    register(one, ledger)
    assert victim.read_text() == "precious" and len(key.read_bytes()) == 32
    assert flags and all(given & os.O_EXCL and given & os.O_NOFOLLOW for given in flags)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and key.stat().st_nlink == 1


@pytest.mark.slow
def test_a_damaged_key_is_an_error(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 30))
    register(one, ledger)
    ledger.sketch_key_file.write_bytes(b"short")
    with pytest.raises(LedgerError, match="damaged"):
        register(one, ledger)


# --- damaged rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["{", '{"a": 1}', "[1]", "7"])
@pytest.mark.parametrize("column", ["undeclared", "declared"])
def test_damaged_lists_are_not_overwritten(tmp_path, column, value):
    one, two, ledger = two_with_budgets(tmp_path)
    with edited() as connection:
        connection.execute(f"UPDATE fedcore_id_sketches SET {column} = ? WHERE population_id = ?", (value, two.id))
    raised = fedcore("budget", "raise", two.path, "--epsilon", 3, "--delta", 1e-6)
    assert raised.code != 0 and "Restore the ledger" in raised.err
    for attempt in (lambda: register(two, ledger), lambda: ledger.declare_shared_ids(two.id, WHY)):
        with pytest.raises(LedgerTampered):
            attempt()
    with edited() as connection:
        kept = connection.execute(f"SELECT {column} FROM fedcore_id_sketches WHERE population_id = ?", (two.id,))
        assert kept.fetchall() == [(value,)]


def test_blocks_of_an_odd_length_are_damage(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 30))
    register(one, ledger)
    with edited() as connection:
        connection.execute("UPDATE fedcore_id_sketches SET blocks = substr(blocks, 2)")
    with pytest.raises(LedgerTampered, match="digests"):
        ledger.kept_sketch(one.id)


# --- ledgers of before, servers, races ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_ledger_without_the_table_gets_it_and_old_populations_a_sketch(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 900))
    ledger.register(one.id)
    ledger.set_budget(one.id, 2.0, 1e-6)
    with edited() as connection:
        connection.execute(f"DROP TABLE {tables.sketches.name}")
    reserve(one, ledger, "run")
    assert ledger.sketched() == [] and ledger.kept_sketch(one.id) is None
    backup(ledger, tmp_path / "copy")
    restore(open_ledger(f"sqlite:///{tmp_path / 'copy'}"), f"sqlite:///{tmp_path / 'new.sqlite'}").verify(one.id)
    two, _ = made(tmp_path, "two", people(0, 900), seed=1)
    told = works("budget", "set", two.path, "--epsilon", 2, "--delta", 1e-6, "--public-schema", "s").err
    assert "Not compared" in told and one.id in told and "fedcore budget shared-ids" in told
    works("budget", "raise", one.path, "--epsilon", 3, "--delta", 1e-6)
    assert ledger.sketched() == sorted([one.id, two.id])
    with pytest.raises(SharedIds):
        reserve(one, ledger, "another")


@pytest.mark.slow
def test_another_process_that_is_first_is_not_overwritten(tmp_path, monkeypatch):
    one, ledger = made(tmp_path, "one", people(0, 400))
    keep, calls = Ledger.keep_sketch, []

    def late(self, kept, before):
        calls.append(before)
        if len(calls) == 1:
            assert keep(self, kept, before)
        return keep(self, kept, before)

    monkeypatch.setattr(Ledger, "keep_sketch", late)
    register(one, ledger)
    assert calls == [None] and ledger.kept_sketch(one.id).sketch.parts == 1


@pytest.mark.skipif(SERVER is None, reason="FEDCORE_TEST_DATABASE names no server")
def test_on_a_server(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", SERVER)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    create_ledger(SERVER)
    one, ledger = made(tmp_path, "one", people(0, 900))
    with ledger._engine.begin() as connection:  # a ledger of before, without sketches of other tests
        connection.exec_driver_sql(f"DROP TABLE {tables.sketches.name}")
    ledger = open_ledger(SERVER)
    set_budget(one, ledger, 2.0, 1e-6)
    assert ledger.sketch_key_file.is_relative_to(tmp_path / "data")
    two, _ = made(tmp_path, "two", people(0, 900), seed=1)
    with pytest.raises(SharedIds):
        set_budget(two, ledger, 2.0, 1e-6)
    set_budget(two, ledger, 2.0, 1e-6, shared_ids=WHY)
    copy = backup(ledger, tmp_path / "copy.sqlite")
    np.testing.assert_array_equal(copy.kept_sketch(one.id).sketch.cells, ledger.kept_sketch(one.id).sketch.cells)
