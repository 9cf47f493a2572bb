"""What a command and the bare package import: start-up is quick because they load only what they need."""

import subprocess
import sys
from pathlib import Path

import pytest

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
