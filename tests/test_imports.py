"""What a command and the bare package import: start-up is quick because they load only what they need."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedcore.methods.mixture_models import chi_squared
from fedcore.methods.names import OWN
from tests.conftest import small_counts, write_counts

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["methods"]])
def test_help_loads_no_orchestration(arguments):
    code = (
        "import sys; from fedcore.cli import app\n"
        f"try: app({arguments!r})\nexcept SystemExit: pass\n"
        "heavy = {'prefect', 'dask', 'distributed', 'flint', 'matplotlib', 'sqlalchemy'} & set(sys.modules)\n"
        "print('LOADED', sorted(heavy))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "LOADED []" in out.stdout


HEAVY = {"prefect", "dask", "distributed", "scipy.stats", "sklearn", "pandas", "pyarrow", "sqlalchemy", "flint"}


@pytest.mark.slow
def test_a_local_run_loads_only_what_it_needs(tmp_path):
    """tests/test_startup.py has the commands that only read."""
    write_counts(tmp_path / "people", small_counts(20))
    arguments = ["train", "paper_histograms", "people", "--local", "--set", "algorithm=fedavg"]
    code = (
        "import sys; from fedcore.cli import main\n"
        f"sys.argv = ['fedcore', *{arguments!r}]\n"
        "try: main()\nexcept SystemExit as end: print('EXIT', end.code)\n"
        f"print('LOADED', sorted({HEAVY!r} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "LOADED []", done.stdout[-500:]
    assert "EXIT 2" not in done.stdout, done.stderr[-500:]


@pytest.mark.slow
@pytest.mark.parametrize("room", OWN)
def test_no_method_loads_scipy_stats(room):
    code = (
        f"import sys; from fedcore.methods.registry import method_class; method_class({room!r})\n"
        "print('LOADED', sorted({'scipy.stats', 'zarr', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "LOADED []" in done.stdout


def test_the_chi_squared_distribution_is_that_of_scipy_stats():
    from scipy.stats import chi2

    degrees = np.concatenate([np.arange(1, 200), np.geomspace(200, 1e6, 50)])
    x = degrees * np.abs(np.random.default_rng(0).standard_cauchy(len(degrees)))
    assert np.array_equal(chi_squared.cdf(x, degrees), chi2.cdf(x, degrees))
    assert np.array_equal(chi_squared.sf(x, degrees), chi2.sf(x, degrees))
    for share in (0.01, 0.5, 0.99):
        assert np.array_equal(chi_squared.ppf(share, degrees), chi2.ppf(share, degrees))
    assert chi_squared.median(3) == chi2.median(3)


MODULES = {"google-crc32c": "google_crc32c", "scikit-learn": "sklearn", "python-flint": "flint"}
OF_COMMANDS = ("platform", "plots", "tables")  # extras
PINS = {"fastapi"}  # of Prefect, whose own bounds admit versions that break it


def test_the_package_imports_every_one_of_its_dependencies():
    """What only tests need is in their extra: every install would carry it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [line for extra in OF_COMMANDS for line in project["optional-dependencies"][extra]]
    wanted += project["dependencies"]
    names = {re.split(r"[\[<>=~!]", line)[0] for line in wanted} - PINS - {"fedcore"}
    sources = [path.read_text() for room in ("fedcore", "tasks", "flows") for path in (ROOT / room).rglob("*.py")]
    imported = set(re.findall(r"^\s*(?:from|import) ([a-zA-Z0-9_]+)", "\n".join(sources), re.MULTILINE))
    assert {name for name in names if MODULES.get(name, name) not in imported} == set()


def test_the_package_alone_is_quick_to_import():
    """`fedcore.load_run` is there, and is imported when it is asked for."""
    code = (
        "import sys, fedcore\n"
        "heavy = {'numpy', 'zarr', 'pydantic', 'fedcore.runs.store', 'fedcore.interface'} & set(sys.modules)\n"
        "assert 'load_run' in dir(fedcore) and not hasattr(fedcore, 'nothing')\n"
        "from fedcore.interface.model import load_run\n"
        "print('LOADED', sorted(heavy), fedcore.load_run is load_run)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "LOADED [] True" in out.stdout
