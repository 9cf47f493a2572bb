"""What is installed, and where: everything is below the name `fedcore`, so that users may have `flows` and `tasks` too.
Deployments that know a flow by its old name in `flows.train` are run all the same.
"""

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
from tests.faults.month import Server
from tests.faults.test_cancel import within
from tests.test_prefect import end

ROOT = Path(__file__).parent.parent
INSTALLED = {"fedcore": "fedcore"} | {name: f"fedcore/{name}" for name in ("flows", "tasks", "papers", "deployments")}
FORWARDED = ROOT / "deployments" / "forwarded"
OLD = "flows.train.train_histograms"  # what `fedcore deploy` registered before there was `fedcore.flows`


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


# --- the name that was given up -------------------------------------------------------------------------------------


def imported(code: str, *more: Path) -> list[str]:
    """What code prints in a process that has the folder on its PYTHONPATH; `more`: searched after everything else."""
    program = f"import sys; sys.path += {[str(folder) for folder in more]!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(FORWARDED)},
        cwd=ROOT / "docs",  # where there are no modules
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.slow
def test_the_old_name_leads_to_the_flows_of_today():
    code = "from prefect.utilities.importtools import import_object as find\n"
    code += f"import fedcore.flows.train as new; print(find({OLD!r}) is new.train_histograms)\n"
    assert imported(code) == ["True"]


@pytest.mark.parametrize("package", [True, False], ids=["package", "folder"])
def test_a_users_own_flows_come_first_wherever_they_are(tmp_path, package):
    (tmp_path / "flows").mkdir()
    if package:
        (tmp_path / "flows" / "__init__.py").write_text("")
    (tmp_path / "flows" / "train.py").write_text("owner = 'the-user'")
    code = "import flows; from flows import train; import flows.train as again; print(train.owner, train is again)"
    assert imported(code, tmp_path) == ["the-user", "True"]


def test_a_mistake_in_a_users_own_flows_is_not_hidden(tmp_path):
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").write_text("import not_there")
    code = "try: import flows\nexcept ImportError as error: print(error.name, 'flows' in sys.modules)"
    assert imported(code, tmp_path) == ["not_there", "False"]


def test_what_a_worker_loads_adds_the_folder_once_and_imports_nothing():
    code = "import os; import fedcore.deployments.forwarding as it; it.forward(); print(os.environ['PYTHONPATH'])\n"
    code += "print(*(name for name in sys.modules if name.startswith(('fedcore.', 'flows', 'prefect'))))"
    path, *modules = imported(code)
    assert path == str(FORWARDED)
    assert modules == ["fedcore.deployments", "fedcore.deployments.forwarding"]


# --- the wheel ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in INSTALLED:
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "tree")
    (made,) = folder.glob("*.whl")
    return made


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
    assert "fedcore = fedcore.cli:main" in points and "fedcore = fedcore.deployments.forwarding" in points


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
    assert run["auto_scheduled"] and run["name"].startswith("histograms-population-")
    finished = [run for run in list_runs(user.folder / "runs") if run.status == "finished"]
    assert finished and (finished[0].path / "report.html").exists()
    user.check_own_modules()
    code = "import flows.train, tasks, fedcore.flows.train as ours; print(tasks.owner, flows.train is ours)"
    assert user.does("python", "-B", "-c", code).split() == ["the", "user", "False"]


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_deployments_with_the_old_entry_point_are_run(user, tmp_path):
    """By a worker, which runs a user's own `flows.train` too. Registered again, they get the new entry point."""
    (user.folder / "often.toml").write_text(FILE.format(interval=86400))
    server = Server(tmp_path / "server")
    server.start()
    try:
        user.environment |= {"PREFECT_API_URL": server.api, "PREFECT_WORKER_QUERY_SECONDS": "1"}
        deployments_with_the_old_entry_point(server.api, user)
    finally:
        server.kill()


def deployments_with_the_old_entry_point(api: str, user: User) -> None:
    def deployed() -> str:
        return json.loads(user.does("fedcore", "deploy", "often.toml", "--json"))["deployments"][0]["id"]

    def entrypoint() -> str:
        return ask(api, f"/deployments/{old}")["entrypoint"]

    old, today = deployed(), f"fedcore.{OLD}"
    assert entrypoint() == today
    ask(api, f"/deployments/{old}", {"entrypoint": OLD}, "PATCH")
    assert entrypoint() == OLD
    theirs = ask(
        api,
        "/deployments/",
        {
            "name": "theirs",
            "flow_id": ask(api, "/flows/", {"name": "mine"})["id"],
            "entrypoint": "flows.train.mine",
            "work_pool_name": "fedcore",
            "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(user.folder)}}],
        },
    )["id"]
    with user.running("python", "-m", "prefect", "worker", "start", "--pool", "fedcore"):
        for deployment in (old, theirs):
            ask(api, f"/deployments/{deployment}/create_flow_run", {})
        within(150, lambda: completed(api, "often") and completed(api, "theirs"))
    assert [run.status for run in list_runs(user.folder / "runs")] == ["finished"]
    assert Path((user.folder / "was-here").read_text()) == user.folder / "flows" / "train.py"

    assert deployed() == old and entrypoint() == today
    for path in ("flows/train.py:train_histograms", OLD):  # as `fedcore serve` registered it, and `fedcore deploy`
        ask(api, f"/deployments/{old}", {"entrypoint": path}, "PATCH")
        with user.running("fedcore", "serve", "often.toml"):
            within(60, lambda: entrypoint() == today)
    assert len(ask(api, "/deployments/filter", {})) == 2
