"""What small commands must not import, and what is made only when it is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.methods.names import LISTED, METHODS, OWN
from fedcore.methods.registry import method_class, summary
from tests.command import private_population, works
from tests.conftest import small_counts, write_counts

ROOT = Path(__file__).parent.parent


def printed(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_private_run_in_this_process_imports_no_accountant_and_no_orchestration(tmp_path):
    private_population(tmp_path / "p", small_counts(60))
    place = f"{tmp_path / 'p'} --local --runs {tmp_path / 'runs'} --json"
    arguments = f"train histograms {place} --set clusters=2 --set rounds=2".split()
    out = printed(f"""
import sys
from fedcore.cli import main
sys.argv = ["fedcore", *{arguments!r}]
try:
    main()
except SystemExit:
    pass
heavy = ["prefect", "dask", "distributed", "scipy.signal", "scipy.stats", "sklearn", "dp_accounting",
         "pandas", "pyarrow", "matplotlib.pyplot"]
print("LOADED", [name for name in heavy if name in sys.modules])
""")
    assert '"status": "finished"' in out and out.splitlines()[-1] == "LOADED []"


def test_the_blas_of_scipy_takes_one_thread_too():
    """SciPy has a BLAS of its own, which is loaded when something of `scipy.linalg` is used."""
    out = printed("""
import os
os.environ.update(OPENBLAS_NUM_THREADS="2", OMP_NUM_THREADS="2")
import numpy, scipy
from threadpoolctl import ThreadpoolController
from fedcore.rounds.clients import one_blas_thread
with one_blas_thread():
    pass
with one_blas_thread():
    scipy.linalg.lapack.dtrtrs(numpy.eye(2), numpy.eye(2))
    print([library["num_threads"] for library in ThreadpoolController().info() if library["user_api"] == "blas"])
""")
    assert out.split() == ["[1,", "1]"]


@pytest.mark.slow
def test_flows_are_made_when_they_are_asked_for():
    out = printed("""
import sys
import fedcore.flows.train
from fedcore.methods.names import METHODS
rooms = {module.partition(":")[0] for module in METHODS.values()}
print(sorted(rooms & set(sys.modules)))
from fedcore.flows.train import FLOWS, train_histograms
print(train_histograms is FLOWS["histograms"] is FLOWS["histograms"], train_histograms.name, list(FLOWS) == [*METHODS])
print(sorted(rooms & set(sys.modules)), len(FLOWS) == len(METHODS), "no" in FLOWS)
print(hasattr(fedcore.flows.train, "train_no"))
from prefect import Flow
from fedcore.flows import evaluate, ingest, own_server, train
from fedcore.papers import flow as reproduce
made = [value for module in (evaluate, ingest, reproduce, train) for value in vars(module).values()
        if isinstance(value, Flow)] + list(FLOWS.values())
made += [flow.with_options(name="other") for flow in made]
print(len(made) > 10, {type(flow) is own_server.OwnServerFlow for flow in made})
""")
    assert out.splitlines() == [
        "[]",
        "True train-histograms True",
        "['fedcore.methods.histograms'] True False",
        "False",
        "True {True}",
    ]


METHOD_CODE = ["fedcore.rounds.method", "fedcore.methods.registry", "fedcore.methods.histograms"]
READS_FILES = ["fedcore.population.ingest.ingest", "pyarrow", "zarr"]
SCIPY = ["scipy.sparse", "scipy.special", "scipy.linalg", "scipy.optimize", "scipy.stats"]
PLATFORM = ["prefect", "dask", "distributed", "matplotlib", "pandas", "psutil", *SCIPY]
FILE_MODELS = ["fedcore.operations.deployment", "fedcore.operations.pipelines.steps", "fedcore.population.ingest"]
NOT_LOADED = {  # by a command that reads. p: a population with a budget; q: without a ledger; r: a private run on p
    "--help": ["numpy", "sqlalchemy", "rich"],
    "train --help": ["sqlalchemy", *PLATFORM],
    "methods": ["numpy", "scipy", "sqlalchemy", *METHOD_CODE, *PLATFORM],
    "methods histograms": ["sqlalchemy", *PLATFORM],
    "population describe p": [
        "scipy",
        "sqlalchemy",
        "fedcore.population.ingest",
        *METHOD_CODE,
        *READS_FILES,
        *PLATFORM,
    ],
    "population verify p": ["scipy", "sqlalchemy", "fedcore.training", *METHOD_CODE, *READS_FILES, *PLATFORM],
    "runs list": ["numpy", "scipy", "sqlalchemy", "fedcore.population", *METHOD_CODE, *PLATFORM],
    "runs latest": ["numpy", "scipy", "sqlalchemy", "fedcore.population", "fedcore.training", *METHOD_CODE, *PLATFORM],
    "runs show runs/r": ["scipy", "sqlalchemy", "flint", "fedcore.training", *READS_FILES, *PLATFORM],
    "budget show p": [
        "scipy",
        "fedcore.population.ingest",
        "fedcore.privacy.statement",
        *METHOD_CODE,
        *READS_FILES,
        *PLATFORM,
    ],
    "budget plan p --runs 2": [*READS_FILES, *PLATFORM],
    "ledger backup copy.sqlite": ["numpy", "scipy", "flint", *METHOD_CODE, *READS_FILES, *PLATFORM],
    "status": ["scipy", *FILE_MODELS, *READS_FILES, *PLATFORM],
    "verify p": ["scipy", "sqlalchemy", *READS_FILES, *PLATFORM],
    "verify runs/r": ["scipy", "flint", *READS_FILES, *PLATFORM],
    "verify-statement runs/r": ["scipy", *READS_FILES, *PLATFORM],
    "train paper_histograms q --local --set algorithm=fedavg": ["pyarrow", "sqlalchemy", "flint", "prefect", "dask"],
    "report runs/r": ["sqlalchemy", "prefect", "dask", "matplotlib.pyplot", *SCIPY, *READS_FILES],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a population, its ledger, and a finished private run."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder}/ledger.sqlite")
        private_population(folder / "p", small_counts(60))
        write_counts(folder / "q", small_counts(20))
        works("train histograms p --local --run-id r --set clusters=2 --set rounds=2 --set epsilon=1 --anyway --json")
    return folder


@pytest.mark.parametrize("command", NOT_LOADED)
def test_a_command_that_only_reads_imports_little(place, monkeypatch, command):
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{place}/ledger.sqlite")
    out = printed(f"""
import os, sys
os.chdir({str(place)!r})
from fedcore.cli import main
sys.argv = ["fedcore", *{command.split()!r}]
code = 0
try:
    main()
except SystemExit as end:
    code = end.code or 0
from fedcore.cli.later import Later
loaded = {{name for name, module in sys.modules.items() if not isinstance(module, Later)}}
print("LOADED", code, sorted(loaded & {{*{NOT_LOADED[command]!r}}}))
""")
    assert out.splitlines()[-1] == "LOADED 0 []"


@pytest.mark.slow
def test_no_method_loads_scipy_stats():
    out = printed(f"""
import sys
from fedcore.methods.registry import method_class
for name in {list(OWN)!r}:
    method_class(name)
    print(name, [heavy for heavy in ("scipy.stats", "zarr", "sklearn", "matplotlib") if heavy in sys.modules])
""")
    assert out.splitlines() == [f"{name} []" for name in OWN]


def test_the_list_of_methods_says_what_the_classes_say():
    classes = {name: method_class(name) for name in METHODS}
    assert {name: (cls.kinds[0], summary(cls)) for name, cls in classes.items()} == LISTED


def test_the_first_collection_comes_late_and_later_ones_as_usual():
    out = printed("""
import gc
from fedcore.cli.terminal import FIRST, collect_late
usual, callbacks = gc.get_threshold(), [*gc.callbacks]
collect_late()
collect_late()
print(gc.get_threshold()[0] == FIRST, len(gc.callbacks) - len(callbacks), gc.get_freeze_count())
made = [[] for _ in range(2 * FIRST)]
print(gc.get_threshold() == usual, gc.callbacks == callbacks, gc.get_freeze_count() >= FIRST // 2)
""")
    assert out.splitlines() == ["True 1 0", "True True True"]


def test_a_package_is_imported_at_its_first_use_once_and_whole():
    out = printed("""
import sys, threading
from fedcore.cli import later
later.import_later()
import numpy, numpy as np, psutil, scipy
print([type(one) is later.Later for one in (np, psutil, scipy)], "numpy.linalg" in sys.modules)
found = []
threads = [threading.Thread(target=lambda: found.append(np.float64(2.0) + np.pi)) for _ in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print(len(found), len({*found}), type(np) is type(sys), type(scipy) is later.Later)
from scipy import special
print(special.expit(0.0), type(scipy) is type(sys), type(psutil) is later.Later)
before = sys.modules["numpy"]
later.import_later()
print(sys.modules["numpy"] is before is numpy, np.testing.assert_equal(1, 1), np.f2py.__name__)
try:
    np.no_such_name
except AttributeError as error:
    print("no_such_name" in str(error))
""")
    assert out.splitlines() == [
        "[True, True, True] False",
        "8 1 True True",
        "0.5 True True",
        "True None numpy.f2py",
        "True",
    ]


@pytest.mark.slow
def test_flows_need_no_other_extra():
    """What `pip install -e ".[platform]"` brings is enough to train with Prefect."""
    code = (
        "import sys\n"
        "for name in ('opentelemetry.exporter', 'mkdocs', 'pytest', 'sklearn', 'statsmodels', 'av', 'duckdb'):\n"
        "    sys.modules[name] = None\n"
        "import fedcore.flows.train, fedcore.flows.serve, fedcore.flows.ingest, fedcore.flows.pipeline\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
