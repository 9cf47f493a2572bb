"""What is installed, and where: everything is below the name `fedcore`, so users may have `flows` and `tasks` too."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from fedcore.runs.store import list_runs
from tests.faults.test_cancel import within
from tests.flows.test_prefect import end

ROOT = Path(__file__).parent.parent
INSTALLED = {"fedcore": "fedcore"} | {name: f"fedcore/{name}" for name in ("flows", "tasks", "papers", "deployments")}


def sources(pattern: str) -> dict[str, Path]:
    """The files of the packages that fit the pattern, by where they are installed."""
    return {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}": path
        for folder, place in INSTALLED.items()
        for path in (ROOT / folder).rglob(pattern)
    }


def test_the_list_of_packages_is_that_of_the_folders():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    with_init = {place.removesuffix("/__init__.py").replace("/", ".") for place in sources("__init__.py")}
    assert len(listed) == len(set(listed)) and set(listed) == with_init
    alone = {place for place, path in sources("*.py").items() if not (path.parent / "__init__.py").exists()}
    assert not alone, "modules in folders that are no packages"


# --- what workers load ----------------------------------------------------------------------------------------------


def test_what_a_worker_loads_imports_nothing_else():
    code = "import sys; import fedcore.deployments.worker_logs\n"
    code += "print(*(name for name in sys.modules if name.startswith(('fedcore.', 'flows', 'prefect'))))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["fedcore.deployments", "fedcore.deployments.worker_logs"], done.stderr[-2000:]


# --- the wheel ------------------------------------------------------------------------------------------------------


def tree_copied(folder: Path) -> Path:
    """What a wheel is built from, in the folder "tree"."""
    for name in INSTALLED:
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree")
    return folder / "tree"


def built(tree: Path, folder: Path) -> Path:
    """The wheel of a tree, in the folder."""
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, tree)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return built(tree_copied(folder), folder)


def pip(*arguments) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_the_wheel_holds_everything_and_owns_one_name(wheel):
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
        (points,) = (opened.read(name).decode() for name in opened.namelist() if name.endswith("entry_points.txt"))
    assert {name.split("/")[0] for name in held} == {"fedcore"}
    expected = {
        *sources("*.py"),
        *sources("*.toml"),
        *sources("*.json"),
        *sources("Dockerfile"),
        *sources("*.html"),
        *sources("*.npy"),
        *sources("py.typed"),
        *sources("*.pyi"),
    }
    assert held == expected
    assert {"fedcore/py.typed", "fedcore/evaluation/report.html", "fedcore/deployments/histograms.toml"} < held
    assert "fedcore = fedcore.cli:main" in points and "fedcore = fedcore.deployments.worker_logs" in points


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """The programs of a fresh virtual environment with the wheel; everything else is that of this environment."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    others = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "zz-others.pth").write_text("\n".join(others))
    return folder / "bin"


class User:
    """Somebody with a folder that has `flows` and `tasks` of its own, and a population."""

    def __init__(self, programs: Path, folder: Path):
        self.programs, self.folder = programs, folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PREFECT"))}
        self.environment = kept | {
            "PREFECT_HOME": str(folder.parent / "prefect"),
            "FEDCORE_LEDGER": f"sqlite:///{folder.parent / 'users-ledger.sqlite'}",
            "DO_NOT_TRACK": "1",
        }
        self.own = {
            folder / "flows" / "__init__.py": "",
            folder / "flows" / "train.py": OWN_FLOW,
            folder / "tasks" / "__init__.py": "owner = 'the user'\n",
        }
        for path, text in self.own.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        rows = "".join(f"u{i},{'abc'[(i + j) % 3]},{1 + i % 4}\n" for i in range(60) for j in range(2))
        (folder / "counts.csv").write_text(f"client,token,count\n{rows}")
        (folder / "words.txt").write_text("a\nb\nc\n")
        columns = [word for name in ("client", "token", "count") for word in (f"--{name}", name)]
        self.does("fedcore", "population", "ingest", "counts.csv", "population", *columns, "--vocabulary", "words.txt")

    def does(self, program: str, *arguments) -> str:
        done = subprocess.run(
            [str(self.programs / program), *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    @contextmanager
    def running(self, program: str, *arguments):
        """The file that it writes to; ended with all that it started."""
        log = self.folder.parent / f"{program}-{time.monotonic_ns()}.log"
        with open(log, "w") as file:
            command = [str(self.programs / program), *map(str, arguments)]
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=file, stderr=file)
            try:
                yield log
            except AssertionError as error:
                raise AssertionError(f"{error}\n{log.read_text()[-3000:]}") from error
            finally:
                family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
                end(process)
                for child in family:
                    with suppress(psutil.NoSuchProcess):
                        child.kill()

    def check_own_modules(self) -> None:
        """They are as they were, and nothing of fedcore's imported them."""
        there = {path for name in ("flows", "tasks") for path in (self.folder / name).rglob("*") if path.is_file()}
        assert there == set(self.own) and all(path.read_text() == text for path, text in self.own.items())


OWN_FLOW = """from pathlib import Path
from prefect import flow

@flow
def mine():
    Path("was-here").write_text(__file__)
"""


@pytest.fixture
def user(environment, tmp_path) -> User:
    return User(environment, tmp_path / "user")


FILE = """
[[deployment]]
name = "often"
method = "paper_histograms"
population = "population"
schedule = {{ interval = {interval} }}
config = {{ algorithm = "algorithm2", clusters = 2, rounds = 2 }}
"""
SECRET = b"name:a password"  # of the server that `fedcore serve` starts; others do not mind it


def ask(api: str, path: str, body: dict | None = None, how: str = "POST"):
    """The answer of a Prefect server. It says 503 when its SQLite database is busy for long, and is asked again."""
    headers = {"content-type": "application/json", "Authorization": f"Basic {base64.b64encode(SECRET).decode()}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{api}{path}", data, headers, method="GET" if body is None else how)

    def answered():
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return [json.loads(answer.read() or "null")]
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise

    return within(60, answered)[0]


def completed(api: str, deployment: str) -> list[dict]:
    states = {"state": {"type": {"any_": ["COMPLETED"]}}}
    body = {"deployments": {"name": {"any_": [deployment]}}, "flow_runs": states}
    return ask(api, "/flow_runs/filter", body)


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_a_schedule_is_served_beside_a_users_own_flows_and_tasks(user):
    """With the server that `fedcore serve` starts, on loopback."""
    (user.folder / "often.toml").write_text(FILE.format(interval=15))
    user.environment["PREFECT_SERVER_API_AUTH_STRING"] = SECRET.decode()
    with user.running("fedcore", "serve", "often.toml") as log:
        (base,) = within(120, lambda: re.findall(r"^Prefect UI: (http://127\.0\.0\.1:\d+)$", log.read_text(), re.M))
        (run, *_) = within(150, lambda: completed(f"{base}/api", "often"))
    assert run["auto_scheduled"] and run["name"].startswith("paper_histograms-population-")
    finished = [run for run in list_runs(user.folder / "runs") if run.status == "finished"]
    assert finished and (finished[0].path / "report.html").exists()
    user.check_own_modules()
    code = "import flows.train, tasks, fedcore.flows.train as ours; print(tasks.owner, flows.train is ours)"
    assert user.does("python", "-B", "-c", code).split() == ["the", "user", "False"]
