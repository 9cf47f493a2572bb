"""A workplace of one test: its own copy of a small population and its ledger, and what must hold of a run there."""

import json
import shutil
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from fedcore.methods.registry import make_method
from fedcore.population.store import Population
from fedcore.population.synthetic import synthesise
from fedcore.privacy.accounting import exact_sum, rounded_up
from fedcore.privacy.ledger.ledger import Ledger, create_ledger, open_ledger
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import LoadedRun, Run, load_run
from fedcore.training.budget import public_facts
from fedcore.training.request import TrainRequest
from fedcore.training.session import Session, resume, start_run
from tests.conftest import counts_method
from tests.faults.driver import PATIENCE, PROCESSES, Kill, train

KILLED = -9
SIZES = {"clients": 400, "features": 40, "clusters": 3, "tokens": 60, "test_tokens": 0, "heldout_clients": 0}
SETTINGS = {
    "plain": {"algorithm": "algorithm2", "start": "algorithm1", "clusters": 3, "rounds": 4, "temperature": 2.0},
    "test noise": {"clusters": 3, "rounds": 3, "epsilon": 4.0},
    "secure": {"clusters": 3, "rounds": 3, "epsilon": 4.0},
}
PRIVATE_ROUNDS = 5


def template(folder: Path, test: bool, clients_per_block: int = 64) -> Path:
    """A population of 400 clients in leaves of 16 and a ledger with a budget, to be copied."""
    ledger = create_ledger(f"sqlite:///{folder / 'ledger.sqlite'}", test=test)
    made = synthesise(
        folder / "population",
        "reddit-like",
        1,
        SIZES,
        clients_per_leaf=16,
        clients_per_block=clients_per_block,
        ledger={"id": ledger.id, "url": ledger.url},
    )
    ledger.register(made.id)
    ledger.set_budget(made.id, 20.0, 1e-6)
    return folder


@dataclass(frozen=True)
class Place:
    """folder: everything of this test. mode: "plain", "test noise" or "secure". whole: whether the run takes all that
    is left of the budget.
    """

    folder: Path
    mode: str
    spares: int = 1
    whole: bool = False

    @classmethod
    def copy(cls, source: Path, folder: Path, mode: str) -> "Place":
        shutil.copytree(source, folder)
        return cls(folder, mode)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'ledger.sqlite'}"

    @property
    def run_path(self) -> Path:
        return self.folder / "runs" / "run"

    @property
    def private(self) -> bool:
        return self.mode != "plain"

    def population(self) -> Population:
        return Population.open(self.folder / "population")

    def ledger(self) -> Ledger:
        return open_ledger(self.url)

    def request(self) -> dict:
        settings = SETTINGS[self.mode] | ({"spare_releases": self.spares} if self.private else {})
        settings |= {"epsilon": None} if self.whole else {}
        return {
            "method": counts_method(settings),
            "population": str(self.folder / "population"),
            "settings": settings,
            "runs": str(self.folder / "runs"),
            "run_id": "run",
            "seed": 5,
            "test_noise": "a key" if self.mode == "test noise" else None,
        }

    # --- doing --------------------------------------------------------------------------------------------------

    def start(self, backend=None) -> Session:
        return start_run(
            TrainRequest(**self.request()), backend or InProcessBackend(), stamp="then", ledger_url=self.url
        )

    def resume(self, backend=None, **options) -> Session:
        return resume(self.run_path, backend or InProcessBackend(), ledger_url=self.url, **options)

    def launch(self, kill: Kill | None = None, *, resuming: bool = False, **options):
        """A started process that trains or resumes; its `outcome` is the file it writes at its end."""
        outcome = self.folder / f"outcome-{uuid.uuid4().hex}.json"
        request = str(self.run_path) if resuming else self.request()
        child = PROCESSES.Process(
            target=train, args=(request, self.url, self.folder / "tally", outcome, kill), kwargs=options
        )
        child.start()
        child.outcome = outcome
        return child

    def wait(self, child) -> dict | None:
        """How the process ended; None if it was killed."""
        child.join(PATIENCE)
        if child.exitcode is None:
            child.kill()
            raise AssertionError(f"a process was still running after {PATIENCE:.0f} s")
        if child.exitcode == KILLED:
            return None
        assert child.exitcode == 0, "a process ended with a traceback instead of a named error"
        return json.loads(child.outcome.read_text())

    def kill_at(self, kill: Kill, **options) -> None:
        assert self.wait(self.launch(kill, **options)) is None, f"the step {kill} was never reached"

    def finish(self, **options) -> None:
        """Resume in a fresh process, to the end; start again if there is no run."""
        resuming = (self.run_path / "run.json").exists()
        ended = resuming and Run.open(self.run_path).status == "finished"
        outcome = self.wait(self.launch(resuming=resuming, **options))
        assert outcome["error"] == ("RunError" if ended else None), outcome

    def tally(self) -> Counter:
        """Calls of steps by "when step round", over all processes of this place."""
        path = self.folder / "tally"
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()

    # --- what must hold -----------------------------------------------------------------------------------------

    def plan(self) -> list[PlannedRelease]:
        return [*map(PlannedRelease.from_json, Run.open(self.run_path).info["plan"])]

    def published(self) -> dict[str, bytes]:
        """The values in the ledger, by name."""
        ledger, found = self.ledger(), {}
        if (self.run_path / "run.json").exists():
            found = {p.name: ledger.published("run", p.name) for p in self.plan()}
        return {name: value.tobytes() for name, value in found.items() if value is not None}

    def check_ledger(self, *, forfeited: int, status: str = "finished") -> None:
        """Chain and tables agree; each planned release is published once; every price is counted, exactly."""
        ledger, population = self.ledger(), self.population()
        balance = ledger.verify(population.id)
        assert balance == ledger.balance(population.id)
        assert ledger.run_status("run") == status
        history = ledger.history(population.id)
        charges = [record for record in history if record["kind"] == "charge"]
        publications = Counter(record["name"] for record in history if record["kind"] == "publish")
        prices = {planned.name: planned.rho for planned in self.plan()}
        assert all(record["rho"] == prices[record["name"]] for record in charges)
        assert balance.rho_spent == rounded_up(exact_sum(record["rho"] for record in charges))
        assert balance.rho_reserved == 0 and balance.delta_reserved == 0
        spent = exact_sum(record["rho"] for record in charges)
        assert Fraction(balance.rho_left) <= Fraction(balance.budget.rho_max) - spent
        assert Fraction(balance.rho_spent) <= Fraction(balance.budget.rho_max)
        assert balance.releases.get("forfeited", 0) == forfeited
        assert balance.releases.get("charged", 0) == balance.releases.get("reserved", 0) == 0
        assert set(publications.values()) <= {1}
        assert len(charges) == balance.releases.get("published", 0) + forfeited
        if status == "finished":
            given_up = [record["round"] for record in history if record["kind"] == "give up"]
            made = {planned.name for planned in self.plan() if planned.round < min(given_up, default=planned.round + 1)}
            assert set(publications) == made
        copies = Run.open(self.run_path).releases()
        assert {name: value.tobytes() for name, value in copies.items()} == self.published()

    def check_state_follows_from_releases(self) -> None:
        """The final state is what the server makes of the published values in the ledger, bit for bit."""
        run, population = load_run(self.run_path), self.population()
        method = make_method(run.info["method"], run.info["config"])
        state = method.init(public_facts(method, population, run.info["rho"], run.info["seed"]))
        for planned in self.plan()[: run.head["round"]]:
            state, _ = method.server_update(state, {planned.name: self.ledger().published("run", planned.name)})
        assert bits(fields_of(state)) == bits(run.state)

    def check_no_litter(self) -> None:
        """No half-written file is left in a finished run."""
        assert not [path for path in self.run_path.rglob("*") if "partial" in path.name]


def fields_of(state) -> dict:
    return {name: getattr(state, name) for name in state.__dataclass_fields__}


def bits(state: dict) -> dict:
    """A state by value: arrays as (dtype, shape, bytes)."""
    return {
        name: (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
        for name, value in state.items()
    }


def told(run: LoadedRun) -> list[dict]:
    """The metrics without the seconds."""
    return [{name: value for name, value in row.items() if not name.startswith("seconds_")} for row in run.metrics]


def same_result(run: LoadedRun, reference: LoadedRun) -> bool:
    return (
        (run.head["status"], run.head["round"]) == (reference.head["status"], reference.head["round"])
        and bits(run.state) == bits(reference.state)
        and told(run) == told(reference)
    )


__all__ = ["PRIVATE_ROUNDS", "Place", "bits", "replace", "same_result", "template", "told"]
