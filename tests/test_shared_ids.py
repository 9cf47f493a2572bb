"""People who are in several populations of one ledger: found for the operator, declared by the budget owner."""

import shutil
import sqlite3
import stat
from contextlib import closing, contextmanager

import numpy as np
import pytest

from fedcore.errors import ConfigError, LedgerError, SharedIds
from fedcore.operations.forgetting import compact, forget
from fedcore.population.ingest.ingest import ingest
from fedcore.privacy import id_sketch
from fedcore.privacy.id_sketch import Sketch
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.copies import backup, restore
from fedcore.privacy.ledger.ledger import Ledger, create_ledger, default_ledger_url, open_ledger
from fedcore.privacy.statement import PrivacyStatement, private_statement
from fedcore.training.budget import ledger_name, ledger_of, set_budget
from fedcore.training.shared_ids import register
from tests.command import fedcore, works
from tests.privacy.conftest import SERVER, release

WHY = "the same patients as in the weekly export"


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


@contextmanager
def edited():
    """The database of the ledger."""
    with closing(sqlite3.connect(default_ledger_url().removeprefix("sqlite:///"))) as connection:
        yield connection
        connection.commit()


# --- found and declared ---------------------------------------------------------------------------------------------


def test_the_same_file_as_a_second_population_needs_a_declaration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "a.csv", people(0, 700))
    budget = ("--epsilon", 2, "--delta", 1e-6, "--public-schema", "columns of a form")
    for name in ("one", "two"):
        last = works("population", "ingest", "a.csv", name, "--client", "client", "--nominal-clients", 700, "--json")
    assert "about " in last.err and "block with the same ids and data with 'one'" in last.err and "add up" in last.err
    assert "about" not in last.out and "shared" not in last.json
    works("budget", "set", "one", *budget)
    refused = fedcore("budget", "set", "two", *budget, "--json")
    assert refused.code == 2 and refused.err.count("about ") == 1 and "--shared-ids REASON" in refused.err
    assert "has a budget" in refused.err and "No budget was set" in refused.err
    assert "about " not in refused.out
    assert fedcore("budget", "show", "two", "--json").json["budget"] is None
    declared = works("budget", "set", "two", *budget, "--shared-ids", f" {WHY}. ", "--json")
    record = declared.json["history"][-1]
    assert (record["kind"], record["reason"]) == ("shared ids", f"{WHY}.") and "about" not in declared.out
    assert set(record) == {"kind", "reason", "seq", "run_id", "hash", "at"}
    shown = works("budget", "shared-ids", "two")
    assert "about" in shown.err and "declaration" not in shown.err and WHY in shown.out


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
    [(people(450, 1350, spell=lambda text: f" {text.upper()}  ".replace("7", "７")), True), (people(900, 1800), False)],
    ids=["half of them, spelled otherwise", "other people"],
)
def test_who_is_found(tmp_path, ids, many):
    one, ledger = made(tmp_path, "one", people(0, 900))
    set_budget(one, ledger, 2.0, 1e-6)
    two, _ = made(tmp_path, "two", ids, seed=1)
    compared = register(two, ledger)
    assert [found.population_id for found in compared.found] == ([one.id] if many else [])
    if many:
        assert abs(compared.found[0].ids.ids - 450) < 5 * compared.found[0].ids.error
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
def test_forgotten_clients_leave_the_sketch(tmp_path, monkeypatch):
    one, ledger = made(tmp_path, "one", people(0, 300))
    set_budget(one, ledger, 2.0, 1e-6)
    monkeypatch.setattr(id_sketch, "noise", lambda cells: np.zeros(cells, np.int64))
    blocks = ledger.kept_sketch(one.id).blocks
    forget(one, clients=people(0, 100), stamp="now")
    kept = ledger.kept_sketch(one.id)
    names = id_sketch.keyed_names(people(100, 300), ledger.sketch_key())
    np.testing.assert_array_equal(kept.sketch.cells, Sketch.empty(200).with_ids(names).cells)
    assert not kept.blocks & blocks
    compacted = compact(type(one).open(one.path)).population
    register(compacted, ledger)
    assert ledger.kept_sketch(one.id).clients == 200


@pytest.mark.slow
def test_of_calendar_periods_a_client_counts_once(tmp_path, monkeypatch):
    monkeypatch.setattr(id_sketch, "noise", lambda cells: np.zeros(cells, np.int64))
    rows = [f"{one},{month},1.0" for month in ("2025-01-03", "2025-02-04") for one in people(0, 200)]
    (tmp_path / "a.csv").write_text("\n".join(["client,when,x", *rows, ""]))
    options = {"client": "client", "period": "month", "time": "when", "first": "2025-01", "through": "2025-02"}
    one = ingest(tmp_path / "a.csv", tmp_path / "one", ledger=ledger_name(), nominal_clients=200, **options)
    ledger = ledger_of(one)
    register(one, ledger)
    assert (one.n_clients, ledger.kept_sketch(one.id).sketch.ids) == (400, 200)
    rows = [f"{one},2025-03-01,1.0" for one in people(100, 300)]
    (tmp_path / "b.csv").write_text("\n".join(["client,when,x", *rows, ""]))
    one = ingest(tmp_path / "b.csv", tmp_path / "one", through="2025-03", append=True)
    register(one, ledger)
    kept = ledger.kept_sketch(one.id).sketch
    names = id_sketch.keyed_names(people(0, 300), ledger.sketch_key())
    np.testing.assert_array_equal(kept.cells, Sketch(np.zeros_like(kept.cells), 0, 0).with_ids(names).cells)
    two, _ = made(tmp_path, "two", people(0, 300))
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


@pytest.mark.slow
def test_a_damaged_key_is_an_error(tmp_path):
    one, ledger = made(tmp_path, "one", people(0, 30))
    register(one, ledger)
    ledger.sketch_key_file.write_bytes(b"short")
    with pytest.raises(LedgerError, match="damaged"):
        register(one, ledger)


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
    assert "Not compared" in told and one.id in told
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
    assert ledger.migrate() == 2
    set_budget(one, ledger, 2.0, 1e-6)
    assert ledger.sketch_key_file.is_relative_to(tmp_path / "data")
    two, _ = made(tmp_path, "two", people(0, 900), seed=1)
    with pytest.raises(SharedIds):
        set_budget(two, ledger, 2.0, 1e-6)
    set_budget(two, ledger, 2.0, 1e-6, shared_ids=WHY)
    copy = backup(ledger, tmp_path / "copy.sqlite")
    np.testing.assert_array_equal(copy.kept_sketch(one.id).sketch.cells, ledger.kept_sketch(one.id).sketch.cells)
