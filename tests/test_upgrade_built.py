"""This version and the next minor one, each built as a wheel and installed in a folder of its own.

What a process of one version began and SIGKILL ended, a process of the other finishes: with the bits of a run that
nothing interrupted, and charged once. A version with another arithmetic refuses it, and its message finishes it.
"""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fedcore
from fedcore.methods.registry import method_class
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.runs.store import Run, load_run
from tests.command import private_population
from tests.conftest import small_counts, write_population
from tests.sessions import request_for
from tests.test_compatibility import contents
from tests.test_wheel import built, pip, tree_copied
from tests.training.test_session import SMALL, bits

pytestmark = pytest.mark.slow

OLD = fedcore.__version__
NEW = f"{OLD.split('.')[0]}.{int(OLD.split('.')[1]) + 1}.0"
OTHER = "of the next version"  # an arithmetic
METHODS = ("histograms", "federated_em")
EM = {"components": 2, "covariance": "diag", "algorithm": "em", "max_passes": 4, "tol": 0.0}
PATIENCE = 300  # seconds for a process

# Starts or resumes a run, says so after a round, and waits for the end of its input before it goes on.
STEPS = """
import json, sys
import fedcore
from fedcore.rounds import engine
from fedcore.training.request import TrainRequest
from fedcore.training.session import concluding, resume, start_run
engine.COMMIT_SECONDS = 0.0  # every round is committed
asked, backend = json.loads(sys.argv[1]), engine.InProcessBackend()
session = resume(asked, backend) if isinstance(asked, str) else start_run(TrainRequest(**asked), backend, stamp="then")
with concluding(session):
    session.training.step()
    print(fedcore.__version__, session.run.path, flush=True)
    sys.stdin.read()
    while session.training.step() is not None:
        pass
"""


@dataclass(frozen=True)
class Version:
    """number: of the version. packages: the folder in which it is installed."""

    number: str
    packages: Path

    def started(self, *words) -> subprocess.Popen:
        """Python with these words, in a folder without modules."""
        folder = self.packages.parent / "empty"
        folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(self.packages)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, *words) -> SimpleNamespace:
        """`fedcore WORDS`."""
        return ended(self.started("-m", "fedcore.cli", *words))

    def works(self, *words) -> str:
        """What the command prints."""
        done = self.command(*words)
        assert done.code == 0, done.err
        return done.out

    @contextmanager
    def holding(self, asked):
        """(process, path of the run), after one round of a run that is asked for or resumed. Killed at the end."""
        with self.started("-c", STEPS, json.dumps(asked)) as process:
            try:
                line = process.stdout.readline()
                if not line:
                    raise AssertionError(process.stderr.read()[-3000:])
                number, path = line.split(maxsplit=1)
                assert number == self.number
                yield process, Path(path.strip())
            finally:
                process.kill()


def ended(process: subprocess.Popen) -> SimpleNamespace:
    out, err = process.communicate(timeout=PATIENCE)
    return SimpleNamespace(code=process.returncode, out=out, err=err)


def replaced(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, (file.name, before)
    file.write_text(text.replace(before, after))


def installed(folder: Path, number: str, arithmetic: str = "") -> Version:
    """This tree as that version, and with an arithmetic of that name in METHODS."""
    tree = tree_copied(folder)
    replaced(tree / "pyproject.toml", f'\nversion = "{OLD}"', f'\nversion = "{number}"')
    replaced(tree / "fedcore/__init__.py", f'__version__ = "{OLD}"', f'__version__ = "{number}"')
    for name in METHODS if arithmetic else ():
        module = tree / f"fedcore/methods/{name}/method.py"
        replaced(module, f'"{method_class(name).arithmetic_version}"', f'"{arithmetic}"')
    pip("install", "--no-deps", "--no-index", "--target", folder / "packages", built(tree, folder))
    made = Version(number, folder / "packages")
    assert made.works("--version").split() == ["fedcore", number]
    return made


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Version:
    return installed(tmp_path_factory.mktemp("old"), OLD)


@pytest.fixture(scope="module")
def new(tmp_path_factory) -> Version:
    return installed(tmp_path_factory.mktemp("new"), NEW)


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> Version:
    return installed(tmp_path_factory.mktemp("changed"), NEW, OTHER)


@dataclass(frozen=True)
class Begun:
    """A run after its first round, and the same run without an interruption in a world of its own.

    asked: what was asked for, as JSON. bits, spent: of the uninterrupted run.
    """

    method: str
    asked: dict
    path: Path
    bits: dict
    spent: float

    def check_finished(self) -> None:
        """It ended as the uninterrupted run did, and each of its releases was charged once."""
        run = load_run(self.path)
        assert run.head["status"] == "finished" and bits(run) == self.bits
        if self.spent:
            balance = open_ledger(os.environ["FEDCORE_LEDGER"]).verify(Population.open(self.asked["population"]).id)
            assert balance.rho_spent == self.spent and balance.rho_reserved == 0 and not balance.open_runs
            assert set(balance.releases) == {"published"}


def world(folder: Path, method: str, monkeypatch) -> dict:
    """A population, its ledger if the method is private, and what to ask for, as JSON."""
    folder.mkdir()
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
    if method == "histograms":
        population, _ = private_population(folder / "p", small_counts(20), test=True)
        asked = request_for(population, folder, method, {"epsilon": 1.0, **SMALL}, test_noise="same")
    else:
        rows = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0.0], [6.0]], 30, axis=0)
        data = (np.arange(0, 61, 3), rows)
        population = write_population(folder / "p", "rows", 2, [f"c{number}" for number in range(20)], data)
        asked = request_for(population, folder, method, EM)
    return asked.model_dump(mode="json")


@pytest.fixture(params=METHODS)
def begun(request, old, tmp_path, monkeypatch) -> Begun:
    """This version began a run and was ended by SIGKILL after a round."""
    with old.holding(world(tmp_path / "whole", request.param, monkeypatch)) as (process, whole):
        assert ended(process).code == 0
    spent = 0.0
    if request.param == "histograms":
        population = Population.open(tmp_path / "whole" / "p")
        spent = open_ledger(os.environ["FEDCORE_LEDGER"]).verify(population.id).rho_spent
    asked = world(tmp_path / "parts", request.param, monkeypatch)
    with old.holding(asked) as (process, path):
        process.kill()
        assert process.wait() == -9
    assert Run.open(path).round == 1 and Run.open(path).head["status"] == "running"
    return Begun(request.param, asked, path, bits(load_run(whole)), spent)


def test_the_next_version_finishes_a_killed_run_with_the_same_bits(begun, new):
    done = json.loads(new.works("resume", begun.path, "--local", "--json"))
    assert done["status"] == "finished"
    begun.check_finished()


def test_a_changed_arithmetic_is_refused_with_the_command_that_finishes_the_run(begun, old, changed):
    before = contents(begun.path.parent.parent)
    refused = changed.command("resume", begun.path, "--local")
    assert refused.code == 2 and contents(begun.path.parent.parent) == before
    stated = re.search("Finish it with fedcore (.*), the version that started it: fedcore (.*)", refused.err)
    assert ("fedcore runs abandon" in refused.err) == (begun.method == "histograms")
    assert stated[1] == old.number
    old.works(*stated[2].split(), "--local")
    begun.check_finished()


def test_a_changed_arithmetic_gives_the_rest_of_the_budget_back(old, changed, tmp_path, monkeypatch):
    asked = world(tmp_path / "parts", "histograms", monkeypatch)
    with old.holding(asked) as (_, path):
        pass
    changed.works("runs", "abandon", path)
    balance = open_ledger(os.environ["FEDCORE_LEDGER"]).verify(Population.open(asked["population"]).id)
    assert not balance.open_runs and balance.rho_reserved == 0 < balance.rho_spent


@pytest.mark.parametrize("which", ["new", "changed"])
def test_the_next_version_does_not_disturb_a_run_that_is_under_way(begun, old, which, request):
    with old.holding(str(begun.path)) as (process, path):
        refused = request.getfixturevalue(which).command("resume", path, "--local")
        assert refused.code == 2 and refused.err.startswith("RunBusy"), refused.err
        assert ended(process).code == 0
    begun.check_finished()


def test_this_version_does_not_disturb_the_next_one(begun, old, new):
    with new.holding(str(begun.path)) as (process, path):
        refused = old.command("resume", path, "--local")
        assert refused.code == 2 and refused.err.startswith("RunBusy"), refused.err
        assert ended(process).code == 0
    begun.check_finished()


def test_two_versions_that_resume_a_run_at_the_same_time_end_with_the_same_bits(begun, old, new):
    """One of them does, or one after the other. The one that comes too late is refused by name."""
    both = [one.started("-m", "fedcore.cli", "resume", begun.path, "--local") for one in (old, new)]
    done = [ended(process) for process in both]
    assert sorted(one.code for one in done) in ([0, 0], [0, 2]), [one.err for one in done]
    assert all(one.err.startswith(("RunBusy", "RunError")) for one in done if one.code), [one.err for one in done]
    begun.check_finished()


FILE = """
[[deployment]]
name = "nightly"
method = "histograms"
population = "POPULATION"
runs = "RUNS"
config = { clusters = 2, rounds = 2, epsilon = 0.5, anyway = true }

[[pipeline]]
name = "weekly"
population = "POPULATION"
runs = "RUNS"
step = [{ do = "train", deployment = "nightly" }]
"""


def test_what_this_version_wrote_opens_in_the_next_one_and_back(old, new, tmp_path, monkeypatch):
    """Population, ledger, run, statement and deployment file: both versions read the same in them, and add to them."""
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    rows = "".join(f"u{i},{'abc'[(i + j) % 3]},{1 + i % 4}\n" for i in range(60) for j in range(2))
    (tmp_path / "counts.csv").write_text(f"client,token,count\n{rows}")
    (tmp_path / "words.txt").write_text("a\nb\nc\n")
    people, runs, file = tmp_path / "people", tmp_path / "runs", tmp_path / "file.toml"
    file.write_text(FILE.replace("POPULATION", str(people)).replace("RUNS", str(runs)))
    columns = [word for name in ("client", "token", "count") for word in (f"--{name}", name)]
    old.works("population", "ingest", tmp_path / "counts.csv", people, *columns, "--vocabulary", tmp_path / "words.txt")
    old.works("budget", "set", people, "--epsilon", 4, "--delta", 1e-6, "--public-schema", "a test")
    train = ("train", "histograms", people, "--runs", runs, "--local", "--anyway", "--set", "clusters=2")
    train += ("--set", "rounds=2", "--set", "epsilon=1", "--set", "nominal_clients=1000", "--run-id")
    old.works(*train, "first")
    looks = [
        ("population", "describe", people),
        ("population", "verify", people),
        ("budget", "show", people),
        ("runs", "show", runs / "first"),
        ("verify", people),
        ("verify", runs / "first"),
        ("verify-statement", runs / "first" / "statement.json"),
        ("pipeline", "show", file, "--at", "2026-03-01T03:00:00Z"),
    ]
    seen = [json.loads(old.works(*look, "--json")) for look in looks]
    assert [json.loads(new.works(*look, "--json")) for look in looks] == seen
    new.works(*train, "second", "--start-from", "previous")
    new.works("ledger", "backup", tmp_path / "copy.sqlite")
    assert old.command("ledger", "restore", tmp_path / "copy.sqlite", "--check", "--runs", runs).code == 0
    for look in (("verify", people), ("verify", runs / "second"), ("budget", "show", people)):
        old.works(*look)
    old.works(*train, "third", "--start-from", "previous")
