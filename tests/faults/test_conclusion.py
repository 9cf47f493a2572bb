"""What follows the last round: `kill -9` at every step between it and "finished", and a report that cannot be written.

The run is the third of a deployment: it is compared with the second, promoted, and the second is pruned. Wherever it
was killed, `resume` ends in the files that an undisturbed run leaves, for itself and for its series.
"""

import errno
import json
import re
import shutil
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp

import fedcore.evaluation.report
from fedcore.cli.training import _rounds
from fedcore.errors import BudgetExceeded, RunError, WorkerFailed
from fedcore.methods.registry import make_method
from fedcore.operations.latest_runs import latest
from fedcore.operations.retention import prune
from fedcore.operations.series import conclude
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, load_run
from fedcore.storage.arrays import read_values
from fedcore.training.request import Series, TrainRequest
from fedcore.training.session import abandon, concluding, start_run
from fedcore.training.warm_start import previous_runs
from tests.command import fedcore as command
from tests.command import works
from tests.conftest import write_counts
from tests.faults.driver import Kill
from tests.faults.place import SIZES, Place, bits, template

TIMES = re.compile(
    r"seconds.*|peak_memory.*|since|pruned|ledger_head|metrics_bytes|digest"
)  # and what hashes or counts them
SERIES = {"promote": "if_better", "tolerance": 9.0, "retention": 1}


class Deployed(Place):
    """The run of a place is the third of a deployment."""

    def request(self) -> dict:
        series = {**SERIES, "evaluate_on": str(self.folder / "public")}
        return super().request() | {"deployment": "nightly", "series": series}

    def earlier(self, run_id: str) -> None:
        request = TrainRequest(**self.request() | {"run_id": run_id})
        _rounds(start_run(request, InProcessBackend(), stamp=run_id, ledger_url=self.url), InProcessBackend(), True)

    def whole_run(self) -> None:
        assert self.wait(self.launch(conclude=True))["error"] is None

    def go_on(self) -> None:
        outcome = self.wait(self.launch(resuming=(self.run_path / "run.json").exists(), conclude=True))
        assert outcome["error"] is None or "nothing to resume" in outcome["message"], outcome

    def files(self) -> dict[str, object]:
        """What lies in the folder of runs, by name: JSON without times and places, a report by its headings."""
        found = {}
        for path in sorted((self.folder / "runs").rglob("*")):
            if path.is_dir() or path.name in ("lock", ".operations.lock"):
                continue
            name = str(path.relative_to(self.folder / "runs"))
            found[name] = self._content(path) if path.suffix != ".zip" else bits(read_values(path))
        return found

    def _content(self, path: Path) -> object:
        text = path.read_text().replace(str(self.folder), "HERE")
        if path.suffix == ".html":
            return re.findall("<h[123].*?</h[123]>", text)
        return [timeless(json.loads(part)) for part in (text.splitlines() if path.suffix == ".jsonl" else [text])]


def timeless(value):
    if isinstance(value, dict):
        held = {name: item for name, item in value.items() if not TIMES.fullmatch(name)}
        if isinstance(digests := held.get("files"), dict):  # those of files that hold times
            held["files"] = {name: digest for name, digest in digests.items() if name not in ("run", "metrics")}
        return {name: timeless(item) for name, item in held.items()}
    return [timeless(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """They take long to draw."""
    monkeypatch.setattr(fedcore.evaluation.report, "run_figures", lambda *_: {})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """world(mode): the folder of a population, a public one, and two runs of the deployment that are concluded."""

    @cache
    def make(mode: str) -> Path:
        folder = template(tmp_path_factory.mktemp("deployed"), mode == "test noise")
        counts = sp.csr_array(np.random.default_rng(1).integers(0, 3, (40, SIZES["features"])))
        write_counts(folder / "public", counts, heldout=counts, public_for_evaluation="made up")
        here = Deployed(folder, mode)
        with mock.patch.dict("os.environ", {"FEDCORE_LEDGER": here.url}):
            here.earlier("a")
            here.earlier("b")
        return folder

    return make


@pytest.fixture
def deployed(world, tmp_path, monkeypatch):
    """deployed(mode): a workplace of this test, in which the third run of the deployment is to come."""

    def make(mode: str, name: str = "place") -> Deployed:
        folder = tmp_path / name
        shutil.copytree(world(mode), folder)
        monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
        return Deployed(folder, mode)

    return make


@pytest.fixture(scope="module")
def calm(world, tmp_path_factory):
    """calm(mode): the files that an undisturbed run leaves."""

    @cache
    def make(mode: str) -> dict[str, object]:
        folder = tmp_path_factory.mktemp("calm") / "place"
        shutil.copytree(world(mode), folder)
        here = Deployed(folder, mode)
        here.whole_run()
        return here.files()

    return make


def points(*steps: tuple[str, int]) -> list[Kill]:
    return [Kill(step, when, round) for step, round in steps for when in ("before", "after")]


# In the order of the steps. Nothing is written between the end of one and the beginning of those that are left out.
KILLS = points(("settle", 0))
KILLS += [Kill(step, "after") for step in ("statement", "finish", "compare")]
KILLS += points(("decided", 0), ("decided", 1), ("prune", 0), ("remove", 0))
KILLS += [Kill("report", "after"), Kill("finish", "after", 1)]
CASES = [("test noise", kill) for kill in KILLS]
CASES += [("plain", Kill("decided", "after", 1)), ("plain", Kill("finish", "before", 1))]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "kill"), CASES, ids=str)
def test_a_kill_after_the_last_round(deployed, calm, mode, kill):
    here = deployed(mode)
    here.kill_at(kill, conclude=True)
    here.go_on()
    assert here.files() == calm(mode)
    assert Run.open(here.run_path).status == "finished" and latest(here.folder / "runs", "nightly").run == "run"
    if here.private:
        ledger, population = here.ledger(), here.population().id
        assert ledger.run_status("run") == "finished" and ledger.verify(population).rho_reserved == 0


@pytest.mark.slow
def test_two_kills_while_a_run_is_concluded(deployed, calm):
    here = deployed("test noise")
    here.kill_at(Kill("compare", "after"), conclude=True)
    here.kill_at(Kill("decided", "after", 1), conclude=True, resuming=True)
    here.kill_at(Kill("remove", "before"), conclude=True, resuming=True)
    here.go_on()
    assert here.files() == calm("test noise")


# --- trained, and not concluded -------------------------------------------------------------------------------------


@pytest.fixture
def trained(deployed) -> Deployed:
    """The process of the run was interrupted when nothing of its conclusion was done."""
    here = deployed("plain")

    def dies(_: Run) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), concluding(session := here.start(), dies):
        while session.training.step() is not None:
            pass
    assert Run.open(here.run_path).status == "trained"
    return here


def test_a_trained_run_can_be_used_by_who_names_it(trained):
    assert load_run(trained.run_path).state
    population = trained.folder / "population"
    assert works("predict", trained.run_path, population, trained.folder / "out", "--json").json["clients"] == 400
    asked = ["train", "paper_histograms", population, "--local", "--json", "--runs", trained.folder / "runs"]
    settings = ["--set", "algorithm=algorithm2", "--set", "clusters=3", "--set", "rounds=1"]
    assert works(*asked, *settings, "--start-from", trained.run_path).json["status"] == "finished"


def test_a_series_takes_a_run_into_account_once_it_is_concluded(trained):
    runs, path = trained.folder / "runs", trained.run_path
    asked = trained.request()
    method = make_method(asked["method"], asked["settings"])
    assert latest(runs, "nightly").run == "b"
    assert previous_runs(runs, method.name, False, trained.population(), "nightly")[0].id == "b"
    assert prune(runs, 1, "now", "nightly") == [] and (path / "state").exists()
    refused = command("runs", "promote", path, "--json")
    assert refused.code == 2 and "it is trained" in refused.json["message"] and "resume" in refused.json["remedy"]
    listed = {item["run"]: item["status"] for item in works("runs", "list", "--runs", runs, "--json").json["runs"]}
    assert listed[str(path)] == "trained"
    assert works("resume", path, "--local", "--json").json["status"] == "finished"
    assert latest(runs, "nightly").run == "run" and not (runs / "b" / "state").exists()
    assert previous_runs(runs, method.name, False, trained.population(), "nightly")[0].id == "run"
    refused = command("resume", path, "--local", "--json")
    assert refused.code == 2 and "has ended (finished)" in refused.json["message"]


def test_a_decision_is_not_kept_if_another_run_became_the_latest_meanwhile(trained):
    runs = trained.folder / "runs"
    told = conclude(Run.open(trained.run_path), "nightly", Series(promote="never"), None, "then")
    assert not told["promoted"] and told["latest_before"] == "b"
    works("runs", "promote", runs / "b", "--deployment", "weekly")  # of no concern
    (trained.run_path / "comparison.json").write_text(json.dumps({**told, "latest_before": "a"}))
    assert works("resume", trained.run_path, "--local", "--json").json["status"] == "finished"
    again = json.loads((trained.run_path / "comparison.json").read_text())
    assert again["promoted"] and again["latest_before"] == "b" and latest(runs, "nightly").run == "run"


def test_a_trained_run_can_be_given_up(trained):
    assert abandon(trained.run_path).status == "abandoned" and load_run(trained.run_path).state
    assert latest(trained.folder / "runs", "nightly").run == "b"


def test_a_conclusion_that_fails_says_what_is_left(trained, monkeypatch):
    def unreachable(*_, **__):
        raise WorkerFailed("no worker answers.", "Start one.")

    with monkeypatch.context() as patched:
        patched.setattr(fedcore.operations.series, "evaluate_run", unreachable)
        refused = command("resume", trained.run_path, "--local", "--json")
    assert refused.code == 2 and refused.json["error"] == "WorkerFailed"
    assert f"`fedcore resume {trained.run_path}`" in refused.json["remedy"] and "Start one." in refused.json["remedy"]
    assert Run.open(trained.run_path).status == "trained" and latest(trained.folder / "runs", "nightly").run == "b"
    assert works("resume", trained.run_path, "--local", "--json").json["status"] == "finished"


def test_a_run_that_cannot_be_scored_is_finished_and_not_promoted(trained, monkeypatch):
    def no_result(*_, **__):
        raise RunError("the run found no mixture.", "There is nothing to score.")

    with monkeypatch.context() as patched:
        patched.setattr(fedcore.operations.series, "evaluate_run", no_result)
        assert works("resume", trained.run_path, "--local", "--json").json["status"] == "finished"
    told = json.loads((trained.run_path / "comparison.json").read_text())
    assert not told["promoted"] and "could not be scored: the run found no mixture" in told["because"]
    assert latest(trained.folder / "runs", "nightly").run == "b"


# --- a report that cannot be written ----------------------------------------------------------------------------------

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
@pytest.mark.parametrize("error", [FULL, pytest.param(ValueError("matplotlib broke"), marks=pytest.mark.slow)], ids=str)
def test_a_report_that_cannot_be_written_fails_no_run(place, monkeypatch, error):
    here = place("plain")

    def fails(*_, **__):
        raise error

    settings = ["--set", "algorithm=algorithm2", "--set", "clusters=3", "--set", "rounds=2"]
    where = ["--runs", here.folder / "runs", "--run-id", "run"]
    with monkeypatch.context() as patched:
        patched.setattr(fedcore.evaluation.report, "write_whole", fails)
        told = works("train", "paper_histograms", here.folder / "population", "--local", "--json", *where, *settings)
        refused = command("report", here.run_path, "--json") if isinstance(error, OSError) else None
    assert told.json["status"] == "finished" and "warning: report.html" in told.err
    assert f"`fedcore report {here.run_path}`" in told.err and str(error).split("]")[-1].strip() in told.err
    assert not (here.run_path / "report.html").exists()
    assert refused is None or (refused.code == 2 and "No space left" in refused.json["message"])
    works("report", here.run_path)
    assert "finished" in (here.run_path / "report.html").read_text()


def test_a_run_whose_budget_is_exhausted_has_a_report(place):
    here = place("secure")
    session = here.start()

    def exhausted(*_):
        raise BudgetExceeded("nothing is left")

    session.training.publisher.release = exhausted
    with pytest.raises(BudgetExceeded):
        _rounds(session, InProcessBackend(), quiet=True)
    assert Run.open(here.run_path).status == "budget exhausted"
    assert "budget exhausted" in (here.run_path / "report.html").read_text()
