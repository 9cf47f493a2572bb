"""The commands that are walked, on a population so small that each of them takes milliseconds.

A command is run in a `Workplace`, once undisturbed and then with every fault. What a person does afterwards is `again`;
what must be the same as in the undisturbed workplace is `outcome`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from fedcore.cli import budgets
from fedcore.cli import populations as population_commands
from fedcore.cli import runs as run_commands
from fedcore.cli.ingesting import population_ingest
from fedcore.cli.training import in_process
from fedcore.errors import FedcoreError, LedgerMissing, PopulationError, PopulationNotFound, RunError, RunNotFound
from fedcore.operations.latest_runs import all_latest
from fedcore.population.cohorts import FOUNDERS
from fedcore.population.conversion import begin_cohorts
from fedcore.population.copying import copy_population
from fedcore.population.store import Population
from fedcore.privacy.accounting import exact_sum, rounded_up
from fedcore.privacy.ledger.ledger import create_ledger, open_ledger
from fedcore.runs.client_memories import FORGOTTEN
from fedcore.runs.run_files import HOLDER
from fedcore.runs.store import Run, list_runs, load_run
from fedcore.storage import files
from fedcore.storage.arrays import read_values
from fedcore.storage.files import place
from fedcore.storage.ranges import holds
from fedcore.training.budget import ledger_of, remember_head
from fedcore.training.request import Series, TrainRequest
from fedcore.training.session import resume, start_run
from tests.faults import pipelines
from tests.faults.machine import RANDOM, Machine
from tests.faults.place import bits, told
from tests.population.contents import everything_in, ids_below
from tests.sessions import to_end

CLIENTS, NEW_CLIENTS, LEAF = 8, 5, 4
ROUNDS = 2
HORIZON = 3
URL = "s3://bucket"
HOLDERS = (f"/{HOLDER}", "/.operations.json")  # a lock that nobody gives back is outlived; it is in nobody's way
PARTIALS = r"population/(versions|vocabularies)/\..*\.partial"
NEXT = "run-next"  # another name, where the first one cannot be used again; it is compared as "run"
DEPLOYMENT = "nightly"


@dataclass(frozen=True)
class Workplace:
    """Where a command is run. remote: populations and runs are in object storage.

    writes_data: whether the data of populations are to be looked at, which takes time. by_cohort: private runs are paid
    by cohort, with a horizon.
    """

    machine: Machine
    remote: bool = False
    private: bool = False
    writes_data: bool = False
    by_cohort: bool = False
    warm: bool = False

    @property
    def root(self) -> Path:
        return self.machine.root

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.root / 'ledger.sqlite'}"

    def at(self, name: str) -> str:
        return f"{URL}/{name}" if self.remote else str(self.root / name)

    @property
    def population(self) -> str:
        return self.at("population")

    @property
    def run(self) -> str:
        return f"{self.at('runs')}/run"

    def request(self, run_id: str) -> TrainRequest:
        private = {"private": True, "nominal_clients": CLIENTS, "spare_releases": 2}
        private |= {"horizon": HORIZON} if self.by_cohort else {"epsilon": 1.0}
        return TrainRequest(
            method="toy",
            population=self.population,
            settings={"rounds": ROUNDS, **(private if self.private else {})},
            runs=self.at("runs"),
            run_id=run_id,
            seed=5,
            start_from=f"{self.at('runs')}/before" if self.warm and run_id != "before" else None,
            test_noise="a key" if self.private else None,
            deployment=DEPLOYMENT,
            series=Series(promote="always", retention=1),
        )

    # --- commands -----------------------------------------------------------------------------------------------------

    def source(self, name: str, first: int, clients: int) -> Path:
        rows = [
            f"c{i:02d},{'abc'[(i + k) % 3]},{1 + (i * k) % 4}" for i in range(first, first + clients) for k in (0, 1)
        ]
        path = self.root / name
        path.write_text("\n".join(["client,token,count", *rows]) + "\n")
        return path

    def ingest(self) -> None:
        quietly(
            population_ingest,
            str(self.root / "source.csv"),
            str(self.root / "population"),
            vocabulary=self.root / "words.txt",
            option=[f"clients_per_leaf={LEAF}"],
        )

    def train(self, run_id: str = "run") -> None:
        self._rounds(lambda backend: start_run(self.request(run_id), backend, stamp="then"))

    def resume(self, take_over: bool = False) -> None:
        self._rounds(lambda backend: resume(self.run, backend, take_over=take_over))

    def _rounds(self, begin: Callable) -> None:
        with redirect_stderr(io.StringIO()):  # a report that was not written is told there
            in_process(begin, None, None, self.private, True)

    def take_over(self) -> None:
        """Go on with the run though a process seems to be at work on it."""
        try:
            ended = Run.open(self.run).status == "finished"
        except RunNotFound:  # not made yet: there is nothing to take
            return
        if not ended:
            self.resume(take_over=True)

    def finish(self) -> None:
        """Train to the end, whatever there is of the run, and do what the next day's run does."""
        try:
            status = Run.open(self.run).status
        except RunNotFound:
            # One that was taken back before its first state left its name in the ledger.
            taken = self.private and open_ledger(self.ledger_url).run_status("run") is not None
            self.train(NEXT if taken else "run")
        else:
            if status != "finished":
                self.resume()
            if not all(files.is_file(place(self.run) / name) for name in ("report.html", "result.json")):
                report(self)
        prune(self)

    # --- looking ------------------------------------------------------------------------------------------------------

    def tree(self) -> list[str]:
        """The names of all files, without those of the ledger and the locks that a dead process leaves in a bucket."""
        names = [path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()]
        names += self.machine.bucket.objects
        return sorted(
            RANDOM.sub("*", known_as(name)) for name in names if "sqlite" not in name and not name.endswith(HOLDERS)
        )

    def outcome_of_run(self, path: str) -> dict[str, Any]:
        run = Run.open(path)
        found = {"status": run.status, "round": run.round, "pruned": run.pruned, "metrics": told(load_metrics(run))}
        found["releases"] = bits(run.releases())
        found["start"] = run.head.get("files", {}).get("start")
        if run.pruned or run.round < 0:
            return found
        found["state"] = bits(run.read_state())
        if FORGOTTEN in run.head:
            return {**found, "memories": FORGOTTEN}
        if run.memories() is not None:
            kept = files.listing(run.memories())
            found["memories"] = {name: bits(read_values(run.memories() / name)) for name in kept}
        return found

    def outcome(self) -> dict[str, Any]:
        """What must be the same after every fault."""
        found: dict[str, Any] = {"files": self.tree()}
        for run in list_runs(self.at("runs")):
            found[f"run {known_as(run.id)}"] = self.outcome_of_run(str(run.path))
        found["latest"] = [(item.deployment, known_as(item.run)) for item in all_latest(self.at("runs"))]
        for where in (self.population, self.at("copy")):
            try:
                store = Population.open(where)
            except PopulationNotFound:
                continue
            assert not self.writes_data or store.verify().ok
            found[f"population {where}"] = (
                [(block.slot, block.fingerprint, block.clients) for block in store.blocks],
                [(cohort.number, cohort.nominal) for cohort in store.manifest.cohorts],
                store.manifest.order,
                store.manifest.deliveries,
                store.versions(),
            )
        found["balance"] = self.balance()
        return found

    def balance(self) -> dict[str, Any]:
        """What the ledger says, checked against its own chain. What was charged and lost is `forfeited`."""
        try:
            ledger = open_ledger(self.ledger_url)
            store = Population.open(self.population)
            ledger.head(store.id)
        except (PopulationNotFound, FedcoreError):
            return {}
        balance, history = ledger.verify(store.id), ledger.history(store.id)
        assert balance == ledger.balance(store.id)
        charges = [record for record in history if record["kind"] == "charge"]
        published = [(known_as(record["run_id"]), record["name"]) for record in history if record["kind"] == "publish"]
        assert len(set(published)) == len(published), "a release was published twice"
        attempts = [(known_as(record["run_id"]), record["name"], record["attempt"]) for record in charges]
        assert len(set(attempts)) == len(attempts), "a release was charged twice"
        assert set(published) <= {(run, name) for run, name, _ in attempts}, "a release that was never charged"
        cohorts = range(FOUNDERS, max(len(store.manifest.cohorts), FOUNDERS) + 1)
        assert balance.rho_spent == rounded_up(max(spent_by(cohort, history) for cohort in cohorts))
        budget = balance.budget
        if budget is not None:
            assert Fraction(balance.rho_spent) <= Fraction(budget.rho_max)
        return {
            "budget": None if budget is None else (budget.epsilon, budget.delta),
            "published": sorted(published),
            "kinds": sorted({record["kind"] for record in history} - {"acquire", "forfeit"}),
            "cohorts": len(balance.segments) and balance.segments[-1].last,
            "reserved": balance.rho_reserved,
            "lost": len(charges) - len(published),
        }

    def look(self) -> None:
        """Whatever a fault left is whole, absent, or a named error."""
        for path in (self.population, self.at("copy")):
            try:
                store = Population.open(path)
                assert not self.writes_data or store.verify().ok
            except (PopulationNotFound, LedgerMissing):
                pass
        for run in list_runs(self.at("runs")):
            try:
                if run.round >= 0 and not run.pruned:
                    load_run(run.path)
            except RunError as error:
                raise AssertionError(f"run {run.id} cannot be read: {error}") from error
        for item in all_latest(self.at("runs")):
            assert item.open().status in ("trained", "finished")
        self.balance()


def spent_by(cohort: int, history: list[dict[str, Any]]) -> Fraction:
    """What the ledger's records say that a cohort was charged; a run without cohorts is one of the founders."""
    who = {record["run_id"]: record.get("cohorts") for record in history if record["kind"] == "reserve"}
    pays = {run for run, taking in who.items() if holds(taking["ranges"] if taking else [[FOUNDERS] * 2], cohort)}
    return exact_sum(record["rho"] for record in history if record["kind"] == "charge" and record["run_id"] in pays)


def known_as(name: str) -> str:
    return name.replace(NEXT, "run")


def load_metrics(run: Run) -> Any:
    class Loaded:
        metrics = run.metrics()

    return Loaded


def quietly(command: Callable, *arguments, **options) -> dict[str, Any]:
    """What the command prints as JSON."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        command(*arguments, as_json=True, **options)
    return json.loads(out.getvalue().splitlines()[-1])


@dataclass(frozen=True)
class Command:
    """prepare: what was there before; run: the command; again: what a person does after it died or failed.

    private: with a ledger for test noise and a budget; remote: in object storage; writes_data: of populations;
    by_cohort: the run is paid by cohort; warm: it starts from another one.
    goes_on: takes the run over from a process that hangs; None: nobody can.
    swept_later: names of files that may be left, because the next writer there removes them.
    only: kinds of faults that are met; all without.
    """

    prepare: Callable[[Workplace], None]
    run: Callable[[Workplace], Any]
    again: Callable[[Workplace], Any]
    private: bool = False
    remote: bool = False
    writes_data: bool = False
    by_cohort: bool = False
    warm: bool = False
    swept_later: str = "-"
    only: tuple[str, ...] = ()
    goes_on: Callable[[Workplace], Any] | None = None


# --- what was there before --------------------------------------------------------------------------------------------


def sources(here: Workplace) -> None:
    (here.root / "words.txt").write_text("a\nb\nc\n")
    here.source("source.csv", 0, CLIENTS)
    create_ledger(here.ledger_url, test=True)


def populated(here: Workplace) -> None:
    sources(here)
    Workplace(here.machine).ingest()
    if here.remote:
        copy_population(here.root / "population", here.population)
    if here.private:
        quietly(budgets.budget_set, here.population, 8.0, 1e-6, public_schema="words of a dictionary")


def trained_before(here: Workplace) -> None:
    """One run is there, and is the latest."""
    populated(here)
    here.train("before")


def converted(here: Workplace) -> None:
    """The founders have paid for a run, and have company since."""
    grown(here)
    before = Workplace(here.machine, private=True).request("before")
    run_to_end(before.model_copy(update={"deployment": None, "series": None}), "then")
    begin(here)
    append(here)


def interrupted(here: Workplace) -> None:
    """A run that stopped after its first round, beside one that is the latest."""
    trained_before(here)
    from fedcore.rounds.engine import InProcessBackend

    session = start_run(here.request("run"), InProcessBackend(), stamp="then")
    session.training.step()
    session.close()


def two_runs(here: Workplace) -> None:
    """Two finished runs, of which neither was pruned or promoted."""
    populated(here)
    for name in ("before", "run"):
        request = here.request(name).model_copy(update={"deployment": None, "series": None})
        run_to_end(request, f"then {name == 'run'}")


def run_to_end(request: TrainRequest, stamp: str) -> None:
    from fedcore.rounds.engine import InProcessBackend

    to_end(start_run(request, InProcessBackend(), stamp=stamp))


def grown(here: Workplace) -> None:
    populated(here)
    here.source("more.csv", CLIENTS - 3, NEW_CLIENTS + 3)


def old_and_new(here: Workplace) -> None:
    """Founders and a cohort after them, and a run that remembers its clients."""
    grown(here)
    ledger, store = open_ledger(here.ledger_url), Population.open(here.population)

    def record(version: int, manifest: str, token: str) -> str:
        return ledger.begin_cohorts(store.id, version=version, manifest=manifest, token=token, chain={1: manifest})

    begin_cohorts(store, record)
    append(here)
    plain = Workplace(here.machine)
    request = plain.request("before").model_copy(update={"deployment": None, "series": None})
    run_to_end(request, "then")
    first = Population.open(here.population).client_ids(0).tolist()  # a whole block and some others, of both cohorts
    leaving = [*first, *(one for one in ("c02", "c09", "c11") if one not in first)]
    (here.root / "leaving.txt").write_text("\n".join(leaving) + "\n")


def pipeline_ready(here: Workplace) -> None:
    """Founders with a budget by cohort, and files that have come."""
    grown(here)
    begin(here)
    pipelines.prepare(here)


def half_empty(here: Workplace) -> None:
    old_and_new(here)
    forget(here)


# --- the commands -----------------------------------------------------------------------------------------------------


def ingest_again(here: Workplace) -> None:
    """Once more, unless it is there: then the next command registers it."""
    try:
        Population.open(here.population)
    except PopulationNotFound:
        here.ingest()
    else:
        population_commands.register(Population.open(here.population), None)


def append(here: Workplace) -> None:
    quietly(population_ingest, str(here.root / "more.csv"), str(here.root / "population"), append=True)


def append_again(here: Workplace) -> None:
    if Population.open(here.population).version == 1:
        append(here)


def forget(here: Workplace) -> None:
    quietly(population_commands.population_forget, here.population, here.root / "leaving.txt", runs=here.at("runs"))


def forget_again(here: Workplace) -> None:
    forget(here)
    leaving = {*(here.root / "leaving.txt").read_text().split()}
    found = leaving & ids_below(here.root / "population")
    left = everything_in(here.root / "population")  # also of what is no slot
    found |= {one for one in leaving if re.search(rb"(?<![0-9a-f])%s(?![0-9a-f])" % one.encode(), left)}
    assert not found, f"{found} are still there"
    assert not list((here.root / "runs").rglob("memory")), "the run still remembers them"


def compact(here: Workplace) -> None:
    quietly(population_commands.population_compact, here.population)


def personalise(here: Workplace) -> None:
    quietly(run_commands.predict, here.run, here.population, str(here.root / "personal"))


def personalise_again(here: Workplace) -> None:
    with suppress(PopulationError):  # if it is there; and then what a dead process left beside it goes
        personalise(here)


def promote(here: Workplace) -> None:
    quietly(run_commands.runs_promote, here.run, DEPLOYMENT)


def prune(here: Workplace) -> None:
    quietly(run_commands.runs_prune, 1, runs=here.at("runs"))


def report(here: Workplace) -> None:
    quietly(run_commands.report, here.run)


def give_up(here: Workplace) -> None:
    quietly(run_commands.runs_abandon, here.run)


def give_up_again(here: Workplace) -> None:
    if Run.open(here.run).status != "abandoned":
        give_up(here)


def copy(here: Workplace) -> None:
    quietly(population_commands.population_copy, str(here.root / "population"), here.at("copy"))


def budget_set(here: Workplace) -> None:
    quietly(budgets.budget_set, here.population, 8.0, 1e-6, public_schema="words of a dictionary")


def budget_set_again(here: Workplace) -> None:
    ledger, store = open_ledger(here.ledger_url), Population.open(here.population)
    if ledger.balance(store.id).budget is None:
        budget_set(here)
    budget_show(here)
    remember_head(store, ledger_of(store))  # as the next private command does


def begin(here: Workplace) -> None:
    quietly(budgets.budget_cohorts, here.population)


def begin_again(here: Workplace) -> None:
    begin(here)
    store = Population.open(here.population)
    remember_head(store, ledger_of(store))  # as the next private command does


def budget_raise(here: Workplace) -> None:
    quietly(budgets.budget_raise, here.population, 9.0, 1e-6)


def budget_raise_again(here: Workplace) -> None:
    ledger, store = open_ledger(here.ledger_url), Population.open(here.population)
    if ledger.balance(store.id).budget.epsilon < 9:
        budget_raise(here)
    budget_show(here)
    remember_head(store, ledger_of(store))  # as the next private command does


def budget_divide(here: Workplace) -> None:
    quietly(budgets.budget_divide, here.population, ["a=1/2", "b=.25"])


def budget_divide_again(here: Workplace) -> None:
    budget_divide(here)  # the same division twice is one


def budget_show(here: Workplace) -> None:
    quietly(budgets.budget_show, here.population)


def in_both(name: str, command: Command) -> dict[str, Command]:
    from dataclasses import replace

    return {name: command, f"{name} (objects)": replace(command, remote=True)}


COMMANDS: dict[str, Command] = {
    **in_both("train", Command(trained_before, Workplace.train, Workplace.finish, goes_on=Workplace.take_over)),
    **in_both(
        "train private",
        Command(trained_before, Workplace.train, Workplace.finish, private=True, goes_on=Workplace.take_over),
    ),
    "train by cohort": Command(
        converted,
        Workplace.train,
        Workplace.finish,
        private=True,
        by_cohort=True,
        warm=True,
        goes_on=Workplace.take_over,
    ),
    **in_both(
        "train on", Command(trained_before, Workplace.train, Workplace.finish, warm=True, goes_on=Workplace.take_over)
    ),
    **in_both("resume", Command(interrupted, Workplace.resume, Workplace.finish, goes_on=Workplace.take_over)),
    **in_both(
        "resume private",
        Command(interrupted, Workplace.resume, Workplace.finish, private=True, goes_on=Workplace.take_over),
    ),
    "ingest": Command(sources, Workplace.ingest, ingest_again, writes_data=True, swept_later=PARTIALS),
    "append": Command(grown, append, append_again, writes_data=True, swept_later=PARTIALS),
    "forget": Command(old_and_new, forget, forget_again, private=True, writes_data=True, swept_later=PARTIALS),
    "compact": Command(half_empty, compact, compact, private=True, writes_data=True, swept_later=PARTIALS),
    **in_both("copy", Command(populated, copy, copy, writes_data=True)),
    **in_both("personalise", Command(two_runs, personalise, personalise_again)),
    **in_both("promote", Command(two_runs, promote, promote)),
    **in_both("prune", Command(two_runs, prune, prune)),
    **in_both("report", Command(two_runs, report, report)),
    **in_both("abandon private", Command(interrupted, give_up, give_up_again, private=True)),
    **in_both("budget set", Command(populated, budget_set, budget_set_again)),
    **in_both("budget raise", Command(populated, budget_raise, budget_raise_again, private=True)),
    "pipeline": Command(
        pipeline_ready,
        pipelines.run,
        pipelines.run,
        private=True,
        writes_data=True,
        swept_later=PARTIALS,
        only=pipelines.FAULTS,
    ),
    "budget divide": Command(populated, budget_divide, budget_divide_again, private=True),
    "budget cohorts": Command(trained_before, begin, begin_again, private=True, swept_later=PARTIALS),
    **in_both("budget show", Command(populated, budget_show, budget_show, private=True)),
}
