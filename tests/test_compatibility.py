"""What a newer version of fedcore wrote is refused by name, before a byte is written; and a run that another arithmetic
began is refused, and still of use.
"""

import json
import os
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import zarr

from fedcore.errors import LedgerError, ManifestError, RunError
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.methods.registry import method_class
from fedcore.operations.latest_runs import all_latest, promote
from fedcore.population.manifest import checksum_of
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import create_ledger, open_ledger
from fedcore.rounds import engine
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, list_runs, load_run
from fedcore.training.personalise import personalise
from fedcore.training.request import TrainRequest
from fedcore.training.session import abandon, resume, start_run
from tests.command import private_population
from tests.conftest import seal_anew, small_counts
from tests.sessions import to_end

PRIVATE = {"clusters": 2, "rounds": 2, "epsilon": 2.0}
REMEMBERING = {"components": 2, "covariance": "diag", "codec": 2, "participation": 0.75, "rounds": 2}
RUNS = {"finished": "counts", "interrupted": "counts", "remembering": "rows"}  # name -> population


def make(folder: Path) -> None:
    """Two populations; a finished run, a deployment's latest one; and one of each of two methods, interrupted."""
    public = {"clients_per_leaf": 4, "clients_per_block": 8, "public_for_evaluation": "made of random numbers"}
    heldout = small_counts(24, 5, seed=1)
    private_population(
        folder / "counts", small_counts(24, 5), heldout=heldout, public_for_evaluation="random", test=True
    )
    values = np.random.default_rng(3).normal(size=(72, 3)).astype(np.float32)
    with PopulationWriter(folder / "rows", "rows", 3, **public) as writer:
        names, ptr = [f"client-{number}" for number in range(12)], np.arange(13)
        writer.write(names, (6 * ptr, values), (2 * ptr, values[:24]))
        writer.commit()
    session = start_run(request_of(folder, run_id="finished", deployment="nightly"), InProcessBackend(), stamp="s")
    to_end(session)
    promote(session.run, "nightly", "the first", "s")
    rows = {"method": "federated_em", "population": str(folder / "rows"), "settings": REMEMBERING, "test_noise": None}
    for name, rounds, more in (("interrupted", 1, {}), ("remembering", 8, rows)):
        session = start_run(request_of(folder, run_id=name, **more), InProcessBackend(), stamp="s")
        while session.run.round < rounds:
            session.training.step()
        session.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    url = f"sqlite:///{folder / 'ledger.sqlite'}"
    with mock.patch.dict(os.environ, FEDCORE_LEDGER=url), mock.patch.object(engine, "COMMIT_SECONDS", 0.0):
        make(folder)
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder


@pytest.fixture
def golden(files, tmp_path, monkeypatch):
    """A copy of the files, in which the ledger is the one of the environment."""
    folder = tmp_path / "copy"
    shutil.copytree(files, folder)
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Without locks and what SQLite keeps beside a database that is open."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in ("lock", ".operations.lock", ".writer.lock")
        and not path.name.endswith(("-wal", "-shm"))
    }


def request_of(golden, **more) -> TrainRequest:
    return TrainRequest(
        **{
            "method": "histograms",
            "population": str(golden / "counts"),
            "run_id": "new",
            "settings": PRIVATE,
            "test_noise": "golden",
            "runs": str(golden / "trained"),
            **more,
        }
    )


@pytest.mark.parametrize("name", ["interrupted", "remembering"])
def test_an_older_kernel_is_refused_and_its_run_is_still_of_use(golden, tmp_path, monkeypatch, name):
    path, population = golden / "trained" / name, golden / RUNS[name]
    monkeypatch.setattr(method_class(Run.open(path).info["method"]), "arithmetic_version", "of another version")
    before = contents(golden)
    with pytest.raises(RunError, match="kernel.*continuing with others") as refused:
        resume(path, InProcessBackend(), population=str(population))
    info = Run.open(path).info
    assert f"Finish it with the version of {info['method']} that started it: fedcore resume" in refused.value.remedy
    assert ("fedcore runs abandon" in refused.value.remedy) == info["private"]
    assert contents(golden) == before
    assert load_run(path).state and personalise(path, population, tmp_path / "out")["outputs"]


# --- what a newer version wrote is refused ----------------------------------------------------------------------------


def rewrite(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refused(golden, error, words, *attempts) -> None:
    """Each of the attempts, by its name, with a remedy, and without a byte written."""
    before = contents(golden)
    for attempt in attempts:
        with pytest.raises(error, match=words) as told:
            attempt()
        assert told.value.remedy
    assert contents(golden) == before


def test_a_newer_manifest(golden, tmp_path):
    path = golden / "counts"
    counts, file = Population.open(path), path / "versions" / "000001.json"

    def newer(content):
        content.pop("checksum")
        content |= {"schema_version": 3, "surprise": True}
        content["checksum"] = checksum_of(content)

    rewrite(file, newer)
    refused(
        golden,
        ManifestError,
        "schema version 3; this fedcore reads 2",
        lambda: Population.open(path),
        lambda: start_run(request_of(golden), InProcessBackend(), stamp="now"),
        lambda: resume(golden / "trained" / "interrupted", InProcessBackend(), population=str(path)),
        lambda: personalise(golden / "trained" / "finished", path, tmp_path / "out"),
        lambda: PopulationWriter.extending(counts).__enter__(),
    )


@pytest.mark.parametrize("file", ["run.json", "head.json"])
def test_a_newer_run(golden, tmp_path, file):
    path = golden / "trained" / "interrupted"
    rewrite(path / file, lambda content: content.update(schema=3))
    counts = golden / "counts"
    refused(
        golden,
        RunError,
        "unknown schema 3; this version of fedcore knows",
        lambda: Run.open(path),
        lambda: load_run(path),
        lambda: abandon(path),
        lambda: resume(path, InProcessBackend(), population=str(counts)),
        lambda: personalise(path, counts, tmp_path / "out"),
        lambda: evaluate_run(path, Population.open(counts)),
    )
    assert "interrupted" not in {run.id for run in list_runs(path.parent)}


def newer_values(file: Path) -> None:
    """The same file, said to be of schema 2."""
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    group = json.loads(entries["zarr.json"])
    group["attributes"]["schema"] = 2
    entries["zarr.json"] = json.dumps(group).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    assert zarr.open_group(zarr.storage.ZipStore(file, mode="r"), mode="r").attrs["schema"] == 2


def test_a_newer_state(golden, tmp_path):
    path, rows = golden / "trained" / "remembering", golden / "rows"
    newer_values(Run.open(path).state_file(Run.open(path).round))
    seal_anew(path)
    refused(
        golden,
        RunError,
        "has the unknown schema 2",
        lambda: load_run(path),
        lambda: resume(path, InProcessBackend(), population=str(rows)),
        lambda: personalise(path, rows, tmp_path / "out"),
        lambda: evaluate_run(path, Population.open(rows)),
    )


def test_newer_memories(golden, tmp_path):
    path, rows = golden / "trained" / "remembering", golden / "rows"
    file = Run.open(path).memories() / "000001.arrays"
    file.write_bytes(file.read_bytes().replace(b'{"schema": 1,', b'{"schema": 2,'))
    seal_anew(path)
    assert personalise(path, rows, tmp_path / "out")["clients"]  # outputs of this method need no memories
    session = resume(path, InProcessBackend(), population=str(rows))
    with pytest.raises(RunError, match="block 1 .* unknown schema 2"):
        session.training.step()
    session.close()
    assert Run.open(path).round == 8


def test_a_newer_pointer(golden):
    path = golden / "trained" / "latest-nightly.json"
    rewrite(path, lambda content: content.update(schema=2))
    refused(
        golden,
        RunError,
        "latest-nightly.json has the unknown schema 2",
        lambda: load_run(path),
        lambda: all_latest(path.parent),
    )


def test_a_newer_ledger(golden, monkeypatch):
    """It may have other tables, and those of this version are not added to it."""
    info = Run.open(golden / "trained" / "interrupted").info
    monkeypatch.setattr(method_class(info["method"]), "arithmetic_version", info["kernel"])
    url, file = os.environ["FEDCORE_LEDGER"], golden / "ledger.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE fedcore_ledger SET schema = 3")
        connection.execute("ALTER TABLE fedcore_published RENAME TO fedcore_values")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    refused(
        golden,
        LedgerError,
        "has schema 3; this version of fedcore knows 2",
        lambda: open_ledger(url),
        lambda: create_ledger(url, test=True),
        lambda: start_run(request_of(golden), InProcessBackend(), stamp="now"),
        lambda: resume(golden / "trained" / "interrupted", InProcessBackend(), population=str(golden / "counts")),
        lambda: abandon(golden / "trained" / "interrupted"),
    )
