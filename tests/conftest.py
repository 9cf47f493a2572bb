"""Small populations, a ledger of test noise, and the toy method for every test that asks."""

import gc
import json
import logging
import os
import sqlite3
import subprocess
import sys
import uuid
from functools import cache
from importlib import metadata

import numpy as np
import pytest
import scipy.sparse as sp
import sqlalchemy
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from fedcore.methods.names import OWN
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger import database
from fedcore.rounds import engine
from fedcore.runs import digests as run_digests
from fedcore.storage import digests

# Property tests draw the same examples in every CI run, in every pytest-xdist worker. Elsewhere they draw new ones.
# Every `@settings` that is made later inherits from the profile that is loaded here.
settings.register_profile(
    "reproducible",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
if "CI" in os.environ:
    settings.load_profile("reproducible")
    # Hypothesis also draws constants that it finds in the modules imported so far, which depend on the tests that a
    # process ran before. No setting turns that off.
    providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_modifyitems(items):
    """Heavy tests measure, for as long as it takes. All others have the limit of pyproject.toml."""
    for item in items:
        if item.get_closest_marker("heavy"):
            item.add_marker(pytest.mark.timeout(0))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_collection():
    """Modules and items are there until the end. Looking through them for garbage, while they are made and ever again,
    is much of the time of a fast test.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


class Unsynchronised(sqlite3.Connection):
    """A connection of fedcore's ledgers that does not wait for the disk."""

    def execute(self, statement, *arguments):
        return super().execute(statement.replace("synchronous = FULL", "synchronous = OFF"), *arguments)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """A process that is killed leaves what it wrote to the system. Only a loss of power needs files to be flushed, and
    `tests/faults/disk.py` simulates that with calls of its own.
    """
    connect = sqlite3.connect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(sqlite3, "connect", lambda *given, **more: connect(*given, **{"factory": Unsynchronised, **more}))
        yield


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once():
    """Every test has ledgers of its own, each with an engine that would compile the same statements once more."""
    first, made = sqlalchemy.create_engine("sqlite://"), database.create_engine
    first.connect().close()

    def sharing(*given, **more):
        engine = made(*given, **more)
        if engine.name == "sqlite":
            engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "create_engine", sharing)
        yield


@pytest.fixture(scope="session", autouse=True)
def versions_read_once():
    """Every run records the versions of six packages. Their metadata is parsed once in a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "version", cache(metadata.version))
        yield


@pytest.fixture(autouse=True)
def own_ledger(request, tmp_path_factory, monkeypatch):
    """No test touches the user's ledger. Only tests that ask for a folder have one: pytest looks through all folders to
    name the next one, and there are thousands.
    """
    if "tmp_path" in request.fixturenames:
        path = request.getfixturevalue("tmp_path") / "ledger.sqlite"
    else:
        path = tmp_path_factory.getbasetemp() / f"ledger-{uuid.uuid4().hex}.sqlite"
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{path}")


@pytest.fixture(autouse=True)
def every_round_committed(monkeypatch):
    """Tests make a few rounds and look at what is kept of each. Shared commits: `tests/runs/test_commits.py`."""
    monkeypatch.setattr(engine, "COMMIT_SECONDS", 0.0)


@pytest.fixture
def few_repetitions(monkeypatch):
    """Standard errors of private mixtures come of 3 repetitions instead of 8 to 24. For tests that look at none."""
    for name in ("MOST_RUNS", "LEAST_RUNS"):
        monkeypatch.setattr(f"fedcore.methods.private_mixture.renoised.{name}", 3)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(OWN, "toy", "tests.toy:Toy")


def small_counts(clients: int = 50, features: int = 7, seed: int = 0) -> sp.csr_matrix:
    """Random counts; every ninth client is empty."""
    generator = np.random.Generator(np.random.Philox(seed))
    counts = generator.poisson(0.8, (clients, features))
    counts[::9] = 0
    return sp.csr_matrix(counts)


def write_population(path, kind, features, ids, data, heldout=None, *, provenance=None, **options):
    """A population of one call of `write`; options: of the writer, but leaf and block for its clients_per_*."""
    sizes = {f"clients_per_{name}": options.pop(name) for name in ("leaf", "block") if name in options}
    with PopulationWriter(path, kind, features, **sizes, **options) as writer:
        writer.write(ids, data, heldout)
        return writer.commit(provenance)


def write_counts(path, matrix, *, heldout=None, ids=None, **options):
    """A population of the rows of `matrix`."""
    ids, options = ids or [f"c{i}" for i in range(matrix.shape[0])], {"leaf": 4, "block": 8, **options}
    source = Provenance(sources=("test",))
    return write_population(path, "counts", matrix.shape[1], ids, matrix, heldout, provenance=source, **options)


def spec_of(request):
    """What the request comes to, with its inputs opened for it alone."""
    from fedcore.training.spec import open_inputs, resolve

    return resolve(request, open_inputs(request))


def edit_record(path, change):
    """Edit run.json of a run, as somebody who also makes its head anew: change(content)."""
    content = json.loads((path / "run.json").read_text())
    change(content)
    (path / "run.json").write_text(json.dumps(content))
    seal_anew(path)


def seal_anew(path):
    """Make the head of a run anew of the record, state and memories that lie there now."""
    head = json.loads((path / "head.json").read_text())
    head["files"]["run"] = digests.of_document((path / "run.json").read_bytes())
    head["files"]["state"] = run_digests.of_place(path / "state" / f"{head['round']:06d}.zip")
    if head["files"]["memory"] is not None:
        found = run_digests.of_folder(path / "memory" / f"{head['round']:06d}")
        run_digests.write_list(path / "memory" / f"{head['round']:06d}.json", found)
        head["files"]["memory"] = digests.of_files(found)
    (path / "head.json").write_text(json.dumps(run_digests.sealed(head)))


@pytest.fixture(scope="session")
def prefect_database(tmp_path_factory):
    """Prefect's database after all of its migrations, which take a server longer than to start. To be copied into an
    empty PREFECT_HOME.
    """
    home = tmp_path_factory.mktemp("migrated")
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    subprocess.run(command, env=os.environ | {"PREFECT_HOME": str(home)}, check=True, capture_output=True)
    return home / "prefect.db"


# --- object storage ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def server():
    """The URL of an S3 server with one bucket."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    found = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    found.start()
    host, port = found.get_host_and_port()
    yield f"http://{host}:{port}"
    found.stop()


@pytest.fixture
def s3(server, monkeypatch, tmp_path):
    """A fresh folder of the bucket."""
    import fsspec

    from tests.population.remote_places import BUCKET, forget_connections, sign_on

    sign_on(monkeypatch, server)
    storage = fsspec.filesystem("s3")
    if not storage.exists(BUCKET):
        storage.mkdir(BUCKET)
    yield f"s3://{BUCKET}/{tmp_path.name}"
    monkeypatch.undo()
    forget_connections()


@pytest.fixture(params=["memory", "s3"])
def base(request, tmp_path):
    """A fresh folder behind a URL: in this process, or on a server."""
    return request.getfixturevalue("s3") if request.param == "s3" else f"memory://{tmp_path.name}"


@pytest.fixture
def memory(tmp_path):
    return f"memory://{tmp_path.name}"


def counts_method(settings) -> str:
    """The method of counts that has these settings: the private one has no algorithms."""
    return "paper_histograms" if "algorithm" in settings else "histograms"
