"""The code is formatted, and its types are right, by the tools and settings of pyproject.toml."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWN = ["benchmarks", "deployments", "fedcore", "flows", "papers", "tasks", "tests"]
ELSEWHERE = ["flows", "tasks", "deployments", "papers"]  # they are installed in fedcore


def ran(*arguments, cwd: Path = ROOT) -> None:
    done = subprocess.run([sys.executable, "-m", *map(str, arguments)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_the_linter_finds_nothing():
    ran("ruff", "check", "--quiet", ".")


def test_everything_is_formatted():
    ran("ruff", "format", "--quiet", "--check", ".")
    switches = [f"fmt: {word}" for word in ("skip", "off")]
    for folder in OWN:
        for path in sorted((ROOT / folder).rglob("*.py")):
            assert not any(switch in path.read_text() for switch in switches), path


@pytest.mark.slow
def test_the_types_are_right(tmp_path):
    """Seen by mypy as they are installed, in a tree of links."""
    tree = tmp_path / "fedcore"
    tree.mkdir()
    for path in [*(ROOT / "fedcore").iterdir(), *(ROOT / name for name in ELSEWHERE)]:
        if path.name != "__pycache__":
            (tree / path.name).symlink_to(path)
    ran("mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", ROOT / ".mypy_cache", "fedcore", cwd=tmp_path)
