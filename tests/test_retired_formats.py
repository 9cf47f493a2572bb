"""Populations, runs and ledgers of before the first release are refused by name: which version wrote them, and which
commit can read them.
"""

import json

import numpy as np
import pytest

from fedcore.errors import LAST_READER, ManifestError, RunError
from fedcore.population import layout
from fedcore.population.manifest import checksum_of
from fedcore.population.store import Population
from fedcore.rounds.clients import ZIPPED, memory_file, read_memory
from fedcore.runs.store import Run
from fedcore.storage.arrays import write_values
from tests.command import fedcore
from tests.conftest import small_counts, write_counts


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
