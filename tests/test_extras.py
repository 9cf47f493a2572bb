"""What `pip install -e .` alone can do, and the message that names the extra for everything else.

Nothing is installed or removed: a finder refuses to import the packages of the extras.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedcore.errors import EXTRAS, ExtraMissing, needs

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/notes/dependencies.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {"upath": "universal-pathlib", "opentelemetry": "opentelemetry-sdk"}  # named unlike their package

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

BLOCKED = {blocked!r}

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())

def fedcore(*arguments):
    "Its exit code."
    from fedcore.cli import main
    sys.argv = ["fedcore", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return 0
"""
ROWS = """
import numpy as np
rng = np.random.default_rng(0)
x = np.concatenate([rng.normal(size=(200, 2)) + at for at in (-4, 4)])
np.savez("rows.npz", x=x, client=np.repeat(np.arange(40), 10))
np.savetxt("rows.csv", x, delimiter=",", header="a,b", comments="")
"""
INGEST = 'assert fedcore("population", "ingest", "rows.npz", "rows", "--client", "client") == 0\n'


def without_extras(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = WITHOUT.format(blocked=set(EXTRAS)) + ROWS + code
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)


@pytest.mark.slow
def test_the_core_fits_trains_and_reports_without_any_extra(tmp_path):
    done = without_extras(
        INGEST
        + """
import fedcore as package
for groups in (None, np.repeat(np.arange(40), 10)):
    means = package.FederatedMixture(2).fit(x, groups=groups).means_
    assert np.allclose(np.sort(means[:, 0]), [-4, 4], atol=0.5), means
model = package.train("federated_em", "rows", {"components": 2, "algorithm": "em"}, run_id="api")
assert model.status == "finished"
assert fedcore("--help") == fedcore("train", "--help") == 0
assert fedcore("train", "federated_em", "rows", "--local", "--run-id", "cli", "--set", "algorithm=em") == 0
assert fedcore("resume", "runs/cli", "--local") == 2  # it has ended
assert fedcore("runs", "list") == fedcore("runs", "show", "runs/cli") == 0
assert fedcore("export", "runs/cli", "out") == fedcore("export", "runs/cli", "out.joblib") == 0
assert fedcore("predict", "runs/cli", "rows", "personal") == 0
held = ("--option", 'heldout="rows.npz"', "--public-for-evaluation", "drawn")
assert fedcore("population", "ingest", "rows.npz", "public", "--client", "client", *held) == 0
assert fedcore("evaluate", "runs/cli", "public", "--local") == 0
assert fedcore("evaluate", "runs/cli", "public") == 0  # no flow without Prefect
print("LOADED", sorted(BLOCKED & set(sys.modules)))
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "LOADED []"
    page = (tmp_path / "runs/cli/report.html").read_text()
    assert "This page has no figures." in page and ".[plots]" in page and "<img" not in page


COMMANDS = {  # what names the extra, by the command; FILES in the folder: see below
    "train federated_em rows": ("Without --local this command needs Prefect", "platform"),
    "train federated_em rows --local --workers 2": ("This command needs Dask", "platform"),
    "pipeline run file.toml weekly": ("Without --local this command needs Prefect", "platform"),
    "serve file.toml": ("This command needs Prefect", "platform"),
    "reproduce fedem-synthetic --quick": ("This command needs Prefect", "platform"),
    "population ingest rows.csv other --unit record": ("A table needs PyArrow", "tables"),
    "population sketch rows.csv schema.toml": ("A table needs PyArrow", "tables"),
    "population ingest query.sql other --unit record --format sql": ("The SQL query needs DuckDB", "sql"),
    "export runs/done out.parquet --table components": ("The table 'out.parquet' needs PyArrow", "tables"),
    "predict runs/done rows out.csv": ("The table 'out.csv' needs PyArrow", "tables"),
    "population ingest film.mp4 other": ("The video film.mp4 needs PyAV", "video"),
    "population describe s3://bucket/rows": ("s3://bucket/rows needs universal-pathlib", "object-storage"),
    "population ingest rows.npz other --client client --ledger postgresql+psycopg://host/name": (
        "The ledger at postgresql+psycopg://host/name needs a driver of its database",
        "postgresql",
    ),
}
PYTHON = {
    "plot_components(None)": ("fedcore.plot_components needs Matplotlib", "plots"),
    "plot_scores(None, None)": ("fedcore.plot_scores needs Matplotlib", "plots"),
    "FederatedMixture(2).fit('rows.csv')": ("The table rows.csv needs PyArrow", "tables"),
    "FederatedMixture(2).fit('rows.csv', groups='a')": ("A table needs PyArrow", "tables"),
}


def test_all_names_of_the_package_are_there_without_any_extra(tmp_path):
    done = without_extras("from fedcore import *\nassert plot_scores and FederatedMixture and train\n", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_whatever_needs_an_extra_names_it(tmp_path):
    (tmp_path / "film.mp4").write_bytes(b"no film")
    (tmp_path / "query.sql").write_text("SELECT 1 AS a")
    (tmp_path / "file.toml").write_text(
        '[[deployment]]\nname = "d"\nmethod = "federated_em"\npopulation = "rows"\nruns = "runs"\n'
        '[[pipeline]]\nname = "weekly"\npopulation = "rows"\n[[pipeline.step]]\ndo = "train"\ndeployment = "d"\n'
    )
    done = without_extras(
        INGEST
        + f"""
import contextlib, io, json
import fedcore as package
assert fedcore("train", "federated_em", "rows", "--local", "--run-id", "done", "--set", "algorithm=em") == 0
found = {{}}
for command in {list(COMMANDS)!r}:
    with contextlib.redirect_stderr(io.StringIO()) as told:
        code = fedcore(*command.split())
    found[command] = (code, told.getvalue())
import os
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:9"
with contextlib.redirect_stderr(io.StringIO()) as told:
    assert fedcore("train", "federated_em", "rows", "--local", "--run-id", "sent", "--set", "algorithm=em") == 0
print(told.getvalue())
for call in {list(PYTHON)!r}:
    try:
        eval("package." + call)
        found[call] = (0, "")
    except package.errors.ExtraMissing as error:
        found[call] = (2, str(error))
print(json.dumps(found))
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "The OTLP endpoint needs OpenTelemetry, which is not installed." in done.stdout
    assert 'Install it in a clone: pip install -e ".[telemetry]".' in done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    for what, (subject, extra) in (COMMANDS | PYTHON).items():
        code, told = found[what]
        assert code == 2 and f"{subject}, which is not installed." in told, (what, code, told[-2000:])
        assert f'Install it in a clone: pip install -e ".[{extra}]".' in told and "Traceback" not in told


def names(requirements: list[str]) -> set[str]:
    """Of the packages, without fedcore's own extras."""
    return {re.split(r"[\[<>=~!]", line)[0] for line in requirements} - {"fedcore"}


def test_the_names_of_extras_are_those_of_the_project():
    wanted = {module: DISTRIBUTIONS.get(module, module) for module in EXTRAS}
    for module, (_, extra) in EXTRAS.items():
        assert wanted[module] in names(PROJECT["optional-dependencies"][extra])
    assert not names(PROJECT["dependencies"]) & set(wanted.values())


def test_the_page_of_dependencies_lists_those_of_the_project():
    tables = PAGE.read_text().partition("\n## Versions\n")[0]
    lines = [line.strip("| ").split(" | ") for line in tables.splitlines() if line.startswith("| ")]
    rows = [cells for cells in lines if cells[0] != "package"]
    assert all(all(cells) for cells in rows)
    listed = {(cells[0], "core" if len(cells) == 3 else cells[1]) for cells in rows}
    wanted = {(name, extra) for extra, each in PROJECT["optional-dependencies"].items() for name in names(each)}
    assert listed == wanted | {(name, "core") for name in names(PROJECT["dependencies"])}


MISSING = ModuleNotFoundError("No module named 'av'", name="av")
INSTALL = 'Install it in a clone: pip install -e ".[video]". Else.'


@pytest.mark.parametrize("package", ["", "av"])
def test_a_package_of_an_extra_that_is_missing_is_named(package):
    with pytest.raises(ExtraMissing) as refused, needs("This", package, "Else."):
        raise MISSING
    assert str(refused.value) == f"This needs PyAV, which is not installed. {INSTALL}"


@pytest.mark.parametrize(
    "error", [ImportError("libav.so is missing", name="av"), ModuleNotFoundError("No module named 'x'", name="x")]
)
def test_a_package_that_is_installed_and_broken_is_not_called_missing(error):
    with pytest.raises(ExtraMissing) as refused, needs("This", "av", "Else."):
        raise error
    assert str(refused.value) == f"This needs PyAV, which cannot be imported ({error}). {INSTALL}"
    with pytest.raises(ImportError) as passed, needs("This"):
        raise error
    assert passed.value is error


def test_a_missing_part_of_an_installed_package_is_no_missing_package():
    error = ModuleNotFoundError("No module named 'pyarrow.none'", name="pyarrow.none")
    with pytest.raises(ModuleNotFoundError) as passed, needs("This"):
        raise error
    assert passed.value is error
