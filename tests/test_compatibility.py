"""What earlier versions of fedcore wrote is read, verified, gone on with and used; what a newer one wrote is refused.

The files below tests/golden were made once by tests/golden/make.py, and are never made again.
"""

import getpass
import io
import json
import os
import platform
import re
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from fedcore.errors import LedgerError, ManifestError, RunError
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.methods.histograms.config import MOVED
from fedcore.methods.registry import method_class
from fedcore.operations.latest_runs import all_latest
from fedcore.population.manifest import Provenance, checksum_of
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import create_ledger, open_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, list_runs, load_run
from fedcore.storage.arrays import read_values
from fedcore.training.personalise import personalise
from fedcore.training.request import TrainRequest
from fedcore.training.session import abandon, resume, start_run
from tests.faults.place import to_end

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = sorted(path.name for path in GOLDEN.glob("schema*"))
TOTALS = [[26, 22, 21, 23, 28]]  # of each token in `counts`, looked at when they were made
RUNS = {"finished": "counts", "interrupted": "counts", "remembering": "rows"}  # name -> population


@pytest.fixture(params=SCHEMAS)
def golden(request, tmp_path, monkeypatch):
    """A copy of the files, in which the ledger is the one of the environment, as in any other place. Runs of histograms
    had settings that a method of its own has now; runs with them are refused.
    """
    folder = tmp_path / "golden"
    shutil.copytree(GOLDEN / request.param, folder)
    for file in folder.glob("trained/*/run.json"):
        content = json.loads(file.read_text())
        if content["method"] == "histograms":
            content["config"] = {k: v for k, v in content["config"].items() if k not in MOVED}
            file.write_text(json.dumps(content))
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
            "settings": {"clusters": 2, "rounds": 2, "epsilon": 2.0},
            "test_noise": "golden",
            "runs": str(golden / "trained"),
            **more,
        }
    )


def current_kernel(golden, name) -> bool:
    info = Run.open(golden / "trained" / name).info
    return method_class(info["method"]).arithmetic_version == info["kernel"]


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_golden_files_are_few_and_name_no_machine():
    assert SCHEMAS, "there are golden files"
    files = [path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert sum(path.stat().st_size for path in files) < 200 * 1024
    names = {name for name in (getpass.getuser(), platform.node(), str(Path.home())) if len(name) > 3}
    forbidden = re.compile(rb"/(tmp|home|root|Users|work|mnt|var)\b|\"(pid|host)\"|file://", re.IGNORECASE)
    for path in files:
        for content in unpacked(path):
            assert not forbidden.search(content), path
            assert not [name for name in names if name.encode() in content], path


def unpacked(path) -> list[bytes]:
    data = path.read_bytes()
    if not zipfile.is_zipfile(path):
        return [data]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [name.encode() + archive.read(name) for name in archive.namelist()]


# --- what was written is used -----------------------------------------------------------------------------------------


def test_populations_are_read_verified_and_grown(golden):
    counts, rows = Population.open(golden / "counts"), Population.open(golden / "rows")
    assert counts.versions() == [1, 2] and counts.n_clients == 24 and counts.vocabulary()[0] == "ash"
    assert Population.open(counts.path, version=1).n_clients == 12
    for population in (counts, rows):
        report = population.verify()
        assert report.ok and report.blocks == 2, report.problems
    assert sum(counts.read(index).csr.sum(axis=0) for index in range(2)).tolist() == TOTALS
    assert [str(name) for name in rows.client_ids(1)] == [f"client-{number}" for number in range(8, 12)]
    assert rows.read(0, heldout=True).heldout.x.shape == (16, 3)
    with PopulationWriter.extending(counts) as writer:
        for entry in counts.blocks:
            writer.keep(entry)
        writer.write(["new"], sp.csr_matrix(np.ones((1, 5), np.int32)))
        assert writer.commit(Provenance(sources=("new",))).version == 3
    assert Population.open(counts.path).verify().ok


def test_the_ledger_verifies_and_goes_on(golden):
    counts = Population.open(golden / "counts")
    ledger = open_ledger(os.environ["FEDCORE_LEDGER"], counts.manifest.ledger.id)
    before = ledger.verify(counts.id)
    assert ledger.is_test and before.budget.epsilon == 8.0
    assert before.releases == {"published": 5, "charged": 1, "reserved": 2}
    assert [record["kind"] for record in ledger.history(counts.id)][:4] == [
        "register",
        "budget set",
        "reserve",
        "acquire",
    ]
    for name, value in Run.open(golden / "trained" / "finished").releases().items():
        assert (ledger.published("finished", name) == value).all()
    to_end(start_run(request_of(golden), InProcessBackend(), stamp="now"))
    after = ledger.verify(counts.id)
    assert after.releases["published"] == 9 and after.rho_spent > before.rho_spent
    ledger.raise_budget(counts.id, 9.0, 1e-6)
    assert ledger.verify(counts.id).budget.epsilon == 9.0


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_read_and_used(golden, tmp_path, name):
    run = load_run(golden / "trained" / name)
    assert run.info["run_id"] == name and run.state and len(run.metrics) == run.head["round"]
    population = Population.open(golden / RUNS[name])
    assert personalise(run.path, population.path, tmp_path / "out")["clients"] == population.n_clients
    table = evaluate_run(run.path, population)
    assert all(np.isfinite(value) for row in table["rows"] for value in row.values() if isinstance(value, float))


def test_the_latest_run_of_a_deployment_is_found(golden):
    assert {run.id for run in list_runs(golden / "trained")} == set(RUNS)
    (latest,) = all_latest(golden / "trained")
    assert (latest.deployment, latest.run) == ("nightly", "finished")
    assert load_run(latest.path).info["run_id"] == "finished"
    again = start_run(
        request_of(
            golden,
            start_from="previous",
            deployment="nightly",
            test_noise="golden",
            public_start_because="it is made of random numbers",
        ),
        InProcessBackend(),
        stamp="x",
    )
    to_end(again)
    assert again.run.info["start"]["name"] == "finished"


@pytest.mark.parametrize("name", ["interrupted", "remembering"])
def test_interrupted_runs_go_on_or_are_refused_by_their_kernel(golden, name):
    """By the same arithmetic they end as they would have: up to the last digits, which may depend on the processor."""
    path, before = golden / "trained" / name, contents(golden)
    population = str(golden / RUNS[name])
    if not current_kernel(golden, name):
        with pytest.raises(RunError, match="kernel"):
            resume(path, InProcessBackend(), population=population)
        assert contents(golden) == before
        return
    to_end(resume(path, InProcessBackend(), population=population))
    found, expected = load_run(path).state, read_values(golden / "expected" / f"{name}.zip")
    assert expected.keys() <= found.keys()  # a state may have got fields since
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-12) if isinstance(value, np.ndarray) else None
    if name == "interrupted":
        counts = Population.open(population)
        balance = open_ledger(os.environ["FEDCORE_LEDGER"]).verify(counts.id)
        assert balance.releases == {"published": 8, "forfeited": 1}


@pytest.mark.parametrize("name", ["interrupted", "remembering"])
def test_an_older_kernel_is_refused_and_its_run_is_still_of_use(golden, tmp_path, monkeypatch, name):
    path, population = golden / "trained" / name, golden / RUNS[name]
    monkeypatch.setattr(method_class(Run.open(path).info["method"]), "arithmetic_version", "of another version")
    before = contents(golden)
    with pytest.raises(RunError, match="kernel.*going on with others") as refused:
        resume(path, InProcessBackend(), population=str(population))
    assert "version that started it" in refused.value.remedy and contents(golden) == before
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
    counts, file = Population.open(path), path / "versions" / "000002.json"

    def newer(content):
        content.pop("checksum")
        content |= {"schema_version": 3, "surprise": True}
        content["checksum"] = checksum_of(content)

    rewrite(file, newer)
    refused(
        golden,
        ManifestError,
        "schema version 3; this fedcore reads 1 to 2",
        lambda: Population.open(path),
        lambda: start_run(request_of(golden), InProcessBackend(), stamp="now"),
        lambda: resume(golden / "trained" / "interrupted", InProcessBackend(), population=str(path)),
        lambda: personalise(golden / "trained" / "finished", path, tmp_path / "out"),
        lambda: PopulationWriter.extending(counts).__enter__(),
    )
    assert Population.open(path, version=1).verify().ok, "older versions stay of use"


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


def of_today(path):
    """The run says that it was made by the arithmetic of this version, so that `resume` gets as far as its files."""
    rewrite(path / "run.json", lambda record: record.update(kernel=method_class(record["method"]).arithmetic_version))
    return path


def test_an_earlier_arithmetic_is_read_and_not_resumed(golden):
    path, rows = golden / "trained" / "remembering", golden / "rows"
    assert load_run(path).state["round"]
    with pytest.raises(RunError, match="made with kernel 'federated-em-2'"):
        resume(path, InProcessBackend(), population=str(rows))


def test_a_newer_state(golden, tmp_path):
    path, rows = of_today(golden / "trained" / "remembering"), golden / "rows"
    newer_values(path / "state" / "000006.zip")
    refused(
        golden,
        RunError,
        "'000006.zip' has the unknown schema 2",
        lambda: load_run(path),
        lambda: resume(path, InProcessBackend(), population=str(rows)),
        lambda: personalise(path, rows, tmp_path / "out"),
        lambda: evaluate_run(path, Population.open(rows)),
    )


def test_newer_memories(golden, tmp_path):
    path, rows = of_today(golden / "trained" / "remembering"), golden / "rows"
    newer_values(path / "memory" / "000006" / "000001.zip")
    assert personalise(path, rows, tmp_path / "out")["clients"]  # outputs of this method need no memories
    session = resume(path, InProcessBackend(), population=str(rows))
    with pytest.raises(RunError, match="block 1 .* unknown schema 2"):
        session.training.step()
    session.close()
    assert Run.open(path).round == 6


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
        lambda: abandon_moved(golden),
    )


def abandon_moved(golden) -> None:
    """The run names its population relative to where it was made."""
    here = os.getcwd()
    os.chdir(golden)
    try:
        abandon(golden / "trained" / "interrupted")
    finally:
        os.chdir(here)
