"""Who may import whom (docs/architecture.md)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.methods.registry import METHODS

ROOT = Path(__file__).parent.parent
ROOMS = {module.split(":")[0].split(".")[1] for module in METHODS.values()}
FORBIDDEN = {
    "fedcore": {"prefect", "dask", "distributed", "prefect_dask", "flows", "tasks", "deployments"},
    "tasks": {"flows"},
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            name = node.args[0]
            found.add(name.value if isinstance(name, ast.Constant) else "")
    return found


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_run_downwards(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        roots = {name.split(".")[0] for name in imports(path)}
        allowed = {"flows", "tasks"} if path.parent == ROOT / "fedcore" / "cli" else set()
        assert not roots & (FORBIDDEN[package] - allowed), path


def test_a_method_room_imports_no_other_room():
    for room in ROOMS:
        for path in (ROOT / "fedcore" / room).rglob("*.py"):
            others = {name.split(".")[1] for name in imports(path) if name.startswith("fedcore.")} & (ROOMS - {room})
            assert not others, path


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["methods"]])
def test_help_loads_no_orchestration(arguments):
    code = (
        "import sys; from fedcore.cli import app\n"
        f"try: app({arguments!r})\nexcept SystemExit: pass\n"
        "heavy = {'prefect', 'dask', 'distributed', 'opendp', 'matplotlib', 'sqlalchemy'} & set(sys.modules)\n"
        "print('LOADED', sorted(heavy))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "LOADED []" in out.stdout


def test_the_package_alone_is_quick_to_import():
    """`fedcore.load_run` is there, and is imported when it is asked for."""
    code = (
        "import sys, fedcore\n"
        "heavy = {'numpy', 'zarr', 'pydantic', 'fedcore.runs.store'} & set(sys.modules)\n"
        "assert 'load_run' in dir(fedcore) and not hasattr(fedcore, 'nothing')\n"
        "from fedcore.runs.store import load_run\n"
        "print('LOADED', sorted(heavy), fedcore.load_run is load_run)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "LOADED [] True" in out.stdout
