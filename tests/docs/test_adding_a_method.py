"""docs/adding-a-method.md as it stands: its files are written and its commands run, in an empty folder, offline."""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedcore.testing import LAWS

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"
NOTES = PAGE.parent / "notes" / PAGE.name
MODULE = "my-methods/federated_pca.py"


@dataclass(frozen=True)
class Block:
    """A fenced block. language: "" for commands. file: that the text before it names, or ""."""

    language: str
    file: str
    content: str


def blocks() -> list[Block]:
    found = re.findall(r"(?:`([\w./-]+)`[^`\n]*:\n\n)?```(\w*)\n(.*?)```\n", PAGE.read_text(), re.DOTALL)
    return [Block(language, file, content) for file, language, content in found]


def environment(folder: Path) -> dict[str, str]:
    """Of a fresh virtual environment that sees the packages of this one. pip fetches and isolates nothing."""
    venv.create(folder, with_pip=False, symlinks=True)
    (own,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (own / "shared.pth").write_text("".join(lines))
    scripts = {
        "pip": "from pip._internal.cli.main import main; raise SystemExit(main())",
        "fedcore": "from fedcore.cli import main; main()",
    }
    for name, line in scripts.items():
        script = folder / "bin" / name
        script.write_text(f"#!{folder / 'bin' / 'python'}\n{line}\n")
        script.chmod(0o755)
    return os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # of an option that says "no": 0 is "no isolation"
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "COLUMNS": "200",
    }


@pytest.mark.slow
def test_the_page_works_as_it_stands(tmp_path):
    place, outputs = tmp_path / "empty", {}
    place.mkdir()
    around = environment(tmp_path / "environment")
    for block in blocks():
        if block.file:
            (place / block.file).parent.mkdir(parents=True, exist_ok=True)
            (place / block.file).write_text(block.content)
        elif not block.language:
            for command in block.content.splitlines():
                ran = subprocess.run(command, shell=True, cwd=place, env=around, capture_output=True, text=True)
                assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
                outputs[command] = ran.stdout
    (shown,) = (block.content for block in blocks() if block.language == "text")
    for method in ("federated_pca:FederatedPCA", "private_mean:PrivateMean"):
        assert outputs[f"python -m fedcore.testing {method}"] == shown
    scores = {
        row["method"]: row["mse"] for row in json.loads((place / "runs/first/evaluation.json").read_text())["rows"]
    }
    for method, mse in scores.items():
        assert f"| {method} | {mse:.3g} |" in PAGE.read_text()
    report = (place / "runs/first/report.html").read_text()
    assert all(text in report for text in ("Components", "component 2", "Variance explained", "privacy: none"))
    statement = json.loads((place / "runs/second/statement.json").read_text())
    assert statement["private"] and 3.99 < statement["epsilon"] <= 4
    made = {path.parts[0] for path in (each.relative_to(place) for each in place.rglob("*"))}
    assert made - {".pytest_cache", "__pycache__"} == {
        *("my-methods", "make_data.py", "train.csv", "heldout.csv", "shops", "runs", "personal")
    }


def test_the_page_counts_its_lines_and_names_every_law():
    (module,) = (block.content for block in blocks() if block.file == MODULE)
    counted = re.findall(r"(\d+) lines", PAGE.read_text())
    assert counted == [str(len(module.splitlines()))] and len(module.splitlines()) <= 90
    assert len(PAGE.read_text().split()) <= 1900
    rows = dict(re.findall(r"^\| `([\w -]+)` \| (.*) \|$", NOTES.read_text(), re.MULTILINE))
    assert rows == {name: " ".join((law.__doc__ or "").split()) for name, law in LAWS.items()}
