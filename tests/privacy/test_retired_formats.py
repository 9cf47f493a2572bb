"""Populations, runs and ledgers of before the first release are refused by name: which version wrote them, and which
commit can read them.
"""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from fedcore.errors import LAST_READER, LedgerRetired, ManifestError, RunError
from fedcore.operations.ledger_drill import drill
from fedcore.population import layout
from fedcore.population.manifest import checksum_of
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import GENESIS, link
from fedcore.privacy.ledger.copies import backup, restore
from fedcore.privacy.ledger.ledger import create_ledger, open_ledger
from fedcore.rounds.clients import ZIPPED, memory_file, read_memory
from fedcore.runs.store import Run
from fedcore.storage.arrays import write_values
from fedcore.training.budget import ledger_name
from tests.command import fedcore, private_population
from tests.conftest import small_counts, write_counts
from tests.privacy.conftest import release


def refuses(error, words, attempt):
    """By name, with the version that wrote it and the commit that reads it."""
    with pytest.raises(error, match=words) as refused:
        attempt()
    assert f"fedcore 0.1 wrote it, and commit {LAST_READER} is the last one" in refused.value.message
    assert "that commit" in refused.value.remedy
    return refused.value


# --- populations ------------------------------------------------------------------------------------------------------


def with_old_blocks(population, schema):
    """The newest manifest as schema 1 had it, or as a version of schema 2 that kept such blocks."""
    file = layout.version_file(population.path, population.version)
    content = json.loads(file.read_text())
    for block in content["blocks"]:
        block["sha256"] = block.pop("digest")
    for name in ("checksum", *(("secret", "needs") if schema == 1 else ())):
        content.pop(name)
    content["schema_version"] = schema
    file.write_text(json.dumps({**content, "checksum": checksum_of(content)}))
    return population.path


@pytest.mark.parametrize(
    ("schema", "words"),
    [(1, "of schema version 1. An unreleased"), (2, "of schema version 2 with blocks of schema version 1")],
)
def test_a_population_of_schema_1(tmp_path, schema, words):
    path = with_old_blocks(write_counts(tmp_path / "p", small_counts(20)), schema)
    refused = refuses(ManifestError, words, lambda: Population.open(path))
    assert "000001.json" in refused.message and "ledger.md" in refused.remedy
    done = fedcore("population", "describe", str(path))
    assert done.code == 2 and LAST_READER in done.err and "Traceback" not in done.err


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_of_schema_1(tmp_path):
    path = tmp_path / "runs" / "old"
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"schema": 1, "run_id": "old", "method": "histograms"}))
    refuses(RunError, "run 'old' is of schema 1", lambda: Run.open(path))
    done = fedcore("runs", "show", path)
    assert done.code == 2 and LAST_READER in done.err and "Traceback" not in done.err
    listed = fedcore("runs", "list", "--runs", path.parent)
    assert listed.code == 0 and LAST_READER in listed.err, "a run that is left out is named"


def test_zipped_memories_of_clients(tmp_path):
    folder = tmp_path / "000007"
    zipped = memory_file(folder, 2, ZIPPED)
    digest = write_values(zipped, {"V": np.zeros((3, 1))})
    for known in (None, {zipped.name: digest}):
        refuses(RunError, "'000002.zip' .* is a zip file", lambda known=known: read_memory(folder, 2, 3, known))


# --- ledgers ----------------------------------------------------------------------------------------------------------


def edit(ledger, *statements):
    with closing(sqlite3.connect(ledger.url.removeprefix("sqlite:///"))) as connection, connection:
        for statement, *values in statements:
            connection.execute(statement, *values)


def rewritten(ledger, population_id, change):
    """The chain with changed records, whose hashes are right: change(kind, payload), in place."""
    history, before, rows = ledger.history(population_id), GENESIS, []
    for row in history:
        payload = {name: value for name, value in row.items() if name not in ("seq", "kind", "run_id", "hash")}
        kind = change(row["kind"], payload) or row["kind"]
        record = link(ledger.id, population_id, row["seq"], kind, row["run_id"], payload, before)
        before = record.hash
        rows.append((record.kind, record.payload, record.prev_hash, record.hash, record.seq))
    update = "UPDATE fedcore_records SET kind = ?, payload = ?, prev_hash = ?, hash = ? WHERE seq = ?"
    edit(ledger, *((update, row) for row in rows), ("UPDATE fedcore_accounts SET hash = ?", (before,)))


def in_zcdp(ledger, population_id):
    edit(ledger, ("UPDATE fedcore_accounts SET currency = 'zcdp'",))


def recounted(ledger, population_id):
    ledger.say_public_schema(population_id, "public")
    rewritten(ledger, population_id, lambda kind, payload: "recount" if kind == "public schema" else None)


def of_discrete_noise(ledger, population_id):
    def change(kind, payload):
        if kind == "reserve":
            payload["noise"] = "discrete gaussian"

    rewritten(ledger, population_id, change)
    edit(ledger, ("UPDATE fedcore_runs SET noise = 'discrete gaussian'",))


def restored_from_a_checkpoint(ledger, population_id):
    """What a checkpoint holds of a recounted account."""

    def change(kind, payload):
        if kind == "public schema":
            payload.pop("reason")
            payload["state"] = {"budget": {"discrete": 0.01}, "currency": "gdp", "runs": {}}
            return "checkpoint"

    ledger.say_public_schema(population_id, "public")
    rewritten(ledger, population_id, change)


ACCOUNTS = {
    "in zcdp": (in_zcdp, "the budget of population .* is an account in zero-concentrated"),
    "recounted": (recounted, "is of an account that was recounted from zCDP"),
    "discrete noise": (of_discrete_noise, "is of discrete Gaussian noise"),
    "a checkpoint": (restored_from_a_checkpoint, "is of an account that was recounted from zCDP"),
}


@pytest.mark.parametrize("old", ACCOUNTS)
def test_an_account_of_a_retired_form(tmp_path, monkeypatch, old):
    """It is refused before anything is charged, also in a ledger whose tables are those of today."""
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    population, ledger = private_population(tmp_path / "p", small_counts(20))
    lease = ledger.acquire(_reserved(ledger, population.id))
    make, words = ACCOUNTS[old]
    make(ledger, population.id)
    for attempt in (
        lambda: ledger.verify(population.id),
        lambda: ledger.balance(population.id),
        lambda: ledger.raise_budget(population.id, 9.0, 1e-6),
    ):
        refused = refuses(LedgerRetired, words, attempt)
        assert "--spent-before" in refused.remedy
    if old in ("in zcdp", "discrete noise"):  # a run of another one has ended, or its account was read before
        refuses(LedgerRetired, "zero-concentrated|discrete Gaussian", lambda: ledger.charge(lease, release()))
    shown = fedcore("budget", "show", population.path)
    assert shown.code == 2 and LAST_READER in shown.err and "Traceback" not in shown.err


def _reserved(ledger, population_id):
    ledger.reserve(population_id, "run", [release()], 0, secure=True)
    return "run"


@pytest.mark.parametrize("old", ["in zcdp", "recounted"])
def test_a_ledger_with_such_an_account_is_copied_and_restored_with_the_others(tmp_path, monkeypatch, old):
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    population, ledger = private_population(tmp_path / "p", small_counts(20))
    make, words = ACCOUNTS[old]
    make(ledger, population.id)
    ledger.register("others")
    ledger.set_budget("others", 1.0, 1e-6)
    for _ in range(2):  # the second one replaces the first
        copy = backup(ledger, tmp_path / "copy")
    restored = restore(copy, f"sqlite:///{tmp_path / 'new.sqlite'}")
    assert restored.verify_all().keys() == {"others"} and restored.populations() == ledger.populations()
    refuses(LedgerRetired, words, lambda: restored.verify(population.id))
    found = drill(str(tmp_path / "copy"), ledger.url)
    assert found.verdict == "whole" and [item["population_id"] for item in found.populations] == ["others"]
    assert any(LAST_READER in remark for remark in found.remarks)


def test_an_account_without_a_budget_has_no_currency(tmp_path, monkeypatch):
    """In ledgers of before the table says zcdp of each population until it has a budget."""
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    population, ledger = private_population(tmp_path / "p", small_counts(20), epsilon=None)
    in_zcdp(ledger, population.id)
    ledger.set_budget(population.id, 1.0, 1e-6)
    assert ledger.verify(population.id).budget.epsilon == 1.0


def schema_1(path):
    """A ledger of schema 1, as far as it is looked at before it is refused."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE fedcore_ledger (only INTEGER, id TEXT, schema INTEGER, test BOOLEAN)")
        connection.execute("INSERT INTO fedcore_ledger VALUES (1, ?, 1, 0)", ("a" * 32,))
    return f"sqlite:///{path}"


def test_a_ledger_of_schema_1(tmp_path, monkeypatch):
    url = schema_1(tmp_path / "ledger.sqlite")
    before = (tmp_path / "ledger.sqlite").read_bytes()
    for attempt in (lambda: open_ledger(url), lambda: create_ledger(url), lambda: ledger_name(url)):
        refused = refuses(LedgerRetired, "the ledger .* is of schema 1", attempt)
        assert "--spent-before" in refused.remedy
    monkeypatch.setenv("FEDCORE_LEDGER", url)
    (tmp_path / "rows.csv").write_text("client,a\nu,1\nv,2\n")
    done = fedcore("population", "ingest", tmp_path / "rows.csv", tmp_path / "p", "--client", "client")
    assert done.code == 2 and LAST_READER in done.err and not (tmp_path / "p").exists()
    assert (tmp_path / "ledger.sqlite").read_bytes() == before
