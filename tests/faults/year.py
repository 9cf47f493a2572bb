"""A simulated year: a private run and an append a week on a population kept by cohort, from which people leave, while
something dies.

    python -m tests.faults.year --weeks 52 --seed 1

Each week an append opens a cohort: newcomers, known clients with more, people who were forgotten and come back, in some
weeks nobody. In some weeks clients are forgotten: by name, without trace, by age. Then comes a run that starts from the
one before, paid by horizon. Most of these operations are met by faults: they run in a process of their own that ends by
SIGKILL, or on the simulated machine of `tests.faults.machine`, which loses power, or whose disk fails or is full. In
some weeks the population grows while the run lies dead, and nobody can be forgotten then. What ended early is taken up
again as a person would. At the end the same year is made again in an ordinary process with nothing killed. What must
hold is `check`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

from fedcore.errors import FedcoreError, PopulationError, RunNotFound, Waiting
from fedcore.operations.forgetting import forget
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.privacy.accounting import exact_sum, rounded_up
from fedcore.privacy.ledger.ledger import Ledger, create_ledger, open_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import LoadedRun, Run, load_run
from fedcore.storage.ranges import holds
from fedcore.training.budget import begin_cohorts, ledger_of
from fedcore.training.request import TrainRequest
from fedcore.training.session import resume, start_run
from tests.faults.driver import PROCESSES
from tests.faults.machine import Fault, Killed, Machine, Point
from tests.faults.place import KILLED, bits, same_result
from tests.faults.walk import MEMORY, world
from tests.faults.year_plan import NOMINAL, TOKENS, Books, Person, Week, plan
from tests.population.contents import counts_of, ids_below, ids_of, write_csv
from tests.sessions import to_end

EPSILON, DELTA = 6.0, 1e-6
HORIZON, SPARES, AT_LEAST = 4, 2, 3 * NOMINAL
SETTINGS = {"clusters": 2, "rounds": 2, "overseed": 2, "spare_releases": SPARES}
BEFORE = "before"  # the run of the founders, before cohorts
SIGKILL, READ = "SIGKILL", "EIO, reading"
KINDS = (SIGKILL, "power", "torn", "EIO", "answer lost", "power, names kept", "ENOSPC", READ)
PATIENCE = 120.0


# --- the operations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Home:
    """A folder with population, ledger and runs, and what is done there."""

    root: Path

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.root / 'ledger.sqlite'}"

    @property
    def population(self) -> Population:
        return Population.open(self.root / "population")

    @property
    def ledger(self) -> Ledger:
        return open_ledger(self.ledger_url)

    def run(self, run_id: str) -> LoadedRun:
        return load_run(self.root / "runs" / run_id)

    def begin(self, week: Week) -> None:
        """The founders, with a budget, and their first run."""
        self.root.mkdir(parents=True, exist_ok=True)
        ledger = create_ledger(self.ledger_url, test=True)
        made = self._ingest(
            week, NOMINAL * len(week.come), features=TOKENS, ledger={"id": ledger.id, "url": ledger.url}
        )
        ledger.register(made.id)
        ledger.set_budget(made.id, EPSILON, DELTA)
        to_end(start_run(self._request(0, BEFORE, None, epsilon=1.5), InProcessBackend(), stamp="then"))

    def convert(self, week: Week) -> None:
        begin_cohorts(self.population, ledger_of(self.population))

    def append(self, week: Week, total: int) -> None:
        """total: clients declared, of those who were there and those who come."""
        if len(self.population.manifest.cohorts) <= week.number:
            self._ingest(week, total, append=True)

    def _ingest(self, week: Week, total: int, **options) -> Population:
        rows = [(client, token, count) for client, given in week.come.items() for token, count in given.items()]
        source = write_csv(self.root.parent / "come.csv", ["client", "token", "count"], rows)
        options |= {} if options.get("append") else {"clients_per_leaf": 4, "clients_per_block": 8}
        return ingest(source, self.root / "population", nominal_clients=total, **options)

    def forget(self, week: Week) -> None:
        if week.leave:
            forget(self.population, clients=week.leave, without_trace=week.untraced, stamp="then")
        if week.aged:
            forget(self.population, cohorts_to=week.aged, stamp="then")

    def train(self, week: Week, run_id: str, before: str) -> None:
        """The run of the week, or the rest of it. Cohorts that take part are named if the week names them."""
        try:
            status = Run.open(self.root / "runs" / run_id).status
        except RunNotFound:
            named = {"cohorts": in_words(week.cohorts)} if week.cohorts else {"at_least": AT_LEAST}
            request = self._request(week.number, run_id, before, horizon=HORIZON, **named)
            to_end(start_run(request, InProcessBackend(), stamp="then"))
        else:
            if status != "finished":
                to_end(resume(self.root / "runs" / run_id, InProcessBackend()))

    def _request(self, number: int, run_id: str, before: str | None, **settings) -> TrainRequest:
        return TrainRequest(
            method="histograms",
            population=str(self.root / "population"),
            settings={**SETTINGS, **settings},
            runs=str(self.root / "runs"),
            run_id=run_id,
            start_from=None if before is None else str(self.root / "runs" / before),
            seed=number,
            test_noise=f"week {number}",
        )


def in_words(cohorts: list[list[int]]) -> str:
    return ",".join(f"{first}-{last}" for first, last in cohorts)


# --- faults -----------------------------------------------------------------------------------------------------------


def steps(points: list[Point]) -> dict[str, list[Point]]:
    """Points by what they belong to: a transaction of the ledger, by its tables, or a kind of file."""
    found: dict[str, list[Point]] = {}
    transaction: list[Point] = []
    for point in points:
        if point.part_of != "ledger":
            where, *below = point.what.split("/")
            inside = below[where == "runs" :]
            name = f"{where}/{inside[0].removeprefix('.').split('.')[0]}" if inside else where
            found.setdefault(name, []).append(point)
            continue
        transaction.append(point)
        if point.kind == "commit":
            rows = " ".join(one.what for one in transaction if one.kind == "row")
            tables = sorted({table.removeprefix("fedcore_") for table in rows.split() if table.startswith("fedcore_")})
            found.setdefault(f"ledger: {', '.join(tables)}", []).extend(transaction)
            transaction = []
    return found


def die_at(root: Path, pid: int, operation: str, arguments: tuple, number: int) -> None:
    """A process that dies by SIGKILL before a point of an operation."""
    home, machine = Home(root), Machine(root)
    machine.begin_with(pid)

    def die(point: Point) -> None:
        if point.number == number:
            os.kill(os.getpid(), signal.SIGKILL)

    with world(machine, home.ledger_url), machine.process() as process:
        process.gate = die
        getattr(home, operation)(*arguments)


@dataclass
class Life:
    """The disturbed year in a folder. met: by (operation, kind of fault); hit: by (operation, step); outcomes: what
    became of operations that met a fault.
    """

    folder: Path
    seed: int
    met: Counter = field(default_factory=Counter)
    hit: Counter = field(default_factory=Counter)
    outcomes: Counter = field(default_factory=Counter)
    refused_to_forget: int = 0
    grown_meanwhile: int = 0

    def __post_init__(self) -> None:
        self.machine = Machine(self.folder / "home")
        self.home = Home(self.machine.root)
        self.draw, self.kinds = random.Random(self.seed), list(KINDS)

    def live(self, weeks: list[Week], tell: Callable[[Week], None] = lambda week: None) -> None:
        self.machine.root.mkdir(parents=True)
        books, before, appended = Books(), BEFORE, 0

        def append(number: int) -> None:
            nonlocal appended
            if number > appended and number < len(weeks):
                books.open_cohort(weeks[number].come)
                self.do(weeks[number], "append", sum(books.nominal))
                appended = number

        with world(self.machine, self.home.ledger_url):
            self.home.begin(weeks[0])
            books.open_cohort(weeks[0].come)
            self.do(weeks[0], "convert")
            for week in weeks[1:]:
                append(week.number)
                books.forget(week)
                self.do(week, "forget")
                before = self.train(week, before, append if week.early else None)
                tell(week)
        assert not self.machine.bypassed, self.machine.bypassed

    def train(self, week: Week, before: str, append: Callable[[int], None] | None) -> str:
        """The run of the week to its end. Returns the name of the last run."""
        run_id = f"week-{week.number:02d}"
        week.version = self.home.population.version
        try:
            for _ in range(week.faults["train"]):
                if self.disturb("train", week, run_id, before) == "unnoticed":
                    break
                run_id = self.name_for(run_id)
                if append is not None and run_id in self.home.ledger.balance(self.home.population.id).open_runs:
                    self.cannot_forget()
                    append(week.number + 1)
                    self.grown_meanwhile += 1
            with self.machine.process():
                self.home.train(week, run_id, before)
        except Waiting:
            return before
        week.run_id, week.cohorts = run_id, self.home.run(run_id).info["cohorts"]
        return run_id

    def name_for(self, run_id: str) -> str:
        """Another name, if a run was taken back before its first state and left its own in the ledger."""
        there = (self.home.root / "runs" / run_id / "run.json").exists()
        return run_id if there or self.home.ledger.run_status(run_id) is None else f"{run_id}b"

    def cannot_forget(self) -> None:
        try:
            with self.machine.process():
                forget(self.home.population, clients=["nobody"], stamp="then")
        except PopulationError:
            self.refused_to_forget += 1
        else:
            raise AssertionError("forgotten although a run is open")

    def do(self, week: Week, operation: str, *arguments) -> None:
        """An operation with its faults, and then until it is done."""
        for _ in range(week.faults.get(operation, 0)):
            self.disturb(operation, week, *arguments)
        with self.machine.process():
            getattr(self.home, operation)(week, *arguments)

    def disturb(self, operation: str, week: Week, *arguments) -> str:
        """The operation once more with a fault at one of its steps, if it has any. Returns what became of it."""
        points, reads = self.rehearse(operation, week, *arguments)
        by_step = {**steps(points), "reading": reads}
        kind = next((kind for kind in self.kinds if any(offers(one, kind) for one in (*points, *reads))), None)
        if kind is None or not points:
            return "nothing to do"
        self.kinds.remove(kind)
        self.kinds.append(kind)
        step = self.draw.choice([name for name, found in by_step.items() if any(offers(one, kind) for one in found)])
        point = self.draw.choice([one for one in by_step[step] if offers(one, kind)])
        if kind == SIGKILL:
            outcome = self.die(operation, (week, *arguments), point.number)
        else:
            outcome = self.meet(operation, (week, *arguments), point, "EIO" if kind == READ else kind)
        self.met[operation, kind] += 1
        self.hit[operation, step] += 1
        self.outcomes[outcome] += 1
        return outcome

    def rehearse(self, operation: str, *arguments) -> tuple[list[Point], list[Point]]:
        """The points of the operation undisturbed, which is then undone."""
        kept, root = self.folder / "kept", self.machine.root
        root.rename(kept)
        shutil.copytree(kept, root)  # twice, so that folders list their files in the same order
        try:
            with self.machine.process() as process:
                getattr(self.home, operation)(*arguments)
        finally:
            shutil.rmtree(root)
            shutil.copytree(kept, root)
            shutil.rmtree(kept)
            self.machine.disk.forget()
        return process.points, process.reads

    def die(self, operation: str, arguments: tuple, number: int) -> str:
        with self.machine.process() as nobody:  # whose number nobody else gets
            asked = (self.machine.root, nobody.pid, operation, arguments, number)
        child = PROCESSES.Process(target=die_at, args=asked)
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == KILLED, f"{operation} ended with {child.exitcode}"
        self.machine.disk.forget()
        return "died"

    def meet(self, operation: str, arguments: tuple, point: Point, kind: str) -> str:
        told = False
        with self.machine.process(Fault(kind, point.number, point.reads)) as process:
            try:
                getattr(self.home, operation)(*arguments)
            except Killed:
                assert process.dead
            except FedcoreError:
                assert process.struck, f"{operation} failed before {point}"
                told = True
        assert process.struck == point, f"{process.struck or 'no point'} was met instead of {point}"
        return "died" if process.dead else "told" if told else "unnoticed"


def offers(point: Point, kind: str) -> bool:
    """Whether the fault can happen at the point."""
    if kind == READ:
        return point.reads
    return not point.reads and (kind == SIGKILL or kind in point.faults())


# --- the same, undisturbed --------------------------------------------------------------------------------------------


def calm(folder: Path, weeks: list[Week]) -> Home:
    """The same versions and the same runs. Cohorts that take part are named: a draw that was lost was paid for by those
    who took part, and they retire earlier.
    """
    home, books, before = Home(folder / "home"), Books(), BEFORE
    with mock.patch.dict(os.environ, {"FEDCORE_LEDGER": home.ledger_url}):
        home.begin(weeks[0])
        books.open_cohort(weeks[0].come)
        home.convert(weeks[0])
        for week in weeks[1:]:
            books.open_cohort(week.come)
            home.append(week, sum(books.nominal))
            books.forget(week)
            home.forget(week)
            if week.run_id is not None:
                home.train(week, week.run_id, before)
                before = week.run_id
    return home


# --- what must hold ---------------------------------------------------------------------------------------------------


def check(home: Home, reference: Home, weeks: list[Week]) -> dict[str, Any]:
    """Runs, data and cohorts are those of the undisturbed year, bit for bit, and those of the books; each client has
    spent what an independent replay says, exactly, and at most what it was promised. Returns counts.
    """
    books, spend = Books(), Spend(home)
    books.open_cohort(weeks[0].come)
    spend.of(BEFORE, books)
    waited = 0
    for week in weeks[1:]:
        books.open_cohort(week.come)
        books.forget(week)
        able = spend.able(len(books.nominal))
        assert (week.run_id is None) == (sum(books.nominal[one - 1] for one in able) < AT_LEAST), week
        if week.run_id is None:
            waited += 1
            continue
        run, twin = home.run(week.run_id), reference.run(week.run_id)
        assert run.head["status"] == "finished" and run.info["population"]["version"] == week.version, week
        assert [one for one in numbers(books) if holds(week.cohorts, one)] == able, f"{week}: {able} could pay"
        assert same_result(run, twin), week
        assert bits(Run.open(run.path).releases()) == bits(Run.open(twin.path).releases()), week
        spend.of(week.run_id, books)
    population, twin_population = home.population, reference.population
    assert population.verify().ok and population.version == twin_population.version
    assert blocks_of(population) == blocks_of(twin_population)
    for one in (population, twin_population):
        found = counts_of(one)
        found.pop("", None)
        assert found == books.data()
        assert cohort_of_each(one) == books.cohort_of_each()
        assert ids_below(one.path) - {""} == books.data().keys(), "an id that was forgotten is still there"
    told = {"weeks": len(weeks) - 1, "runs": len(weeks) - 1 - waited, "waited": waited, **spend.check(books)}
    return {**told, "people": len(books.cohort), "there": len(books.there), "cohorts": len(books.nominal)}


def numbers(books: Books) -> range:
    return range(1, len(books.nominal) + 1)


def blocks_of(population: Population) -> list[tuple]:
    return [(block.slot, block.first, block.clients, block.fingerprint) for block in population.blocks]


def cohort_of_each(population: Population) -> dict[str, int]:
    each = [cohort for cohort, clients in population.manifest.order for _ in range(clients)]
    return {one: cohort for one, cohort in zip(ids_of(population), each, strict=True) if one}


class Spend:
    """An independent replay: what each client and each cohort has spent, from the records of the runs that it was in
    and from how often the ledger charged each release of theirs.
    """

    def __init__(self, home: Home) -> None:
        self.home, self.ledger, self.id = home, home.ledger, home.population.id
        history = self.ledger.history(self.id)
        self.charges = Counter((one["run_id"], one["name"]) for one in history if one["kind"] == "charge")
        balance = self.ledger.verify(self.id)
        assert balance == self.ledger.balance(self.id) and not balance.open_runs
        assert balance.budget is not None
        self.balance, self.limit = balance, Fraction(balance.budget.rho_max)
        self.by_cohort: dict[int, Fraction] = {}
        self.by_person: dict[Person, Fraction] = {}
        self.absent: set[Person] = set()  # from a run that its cohort paid for
        self.lost, self.dearest, self.seen = 0, Fraction(0), set[tuple[str, str]]()

    def of(self, run_id: str, books: Books) -> None:
        """A run that read those who are in the books."""
        info = self.home.run(run_id).info
        prices = {item["name"]: Fraction(item["rho"]) for item in info["plan"]}
        attempts = {name: self.charges[run_id, name] for name in prices}
        assert all(attempts.values()), f"{run_id} published what it was not charged"
        price = sum(prices[name] * times for name, times in attempts.items())
        self.lost += sum(attempts.values()) - len(attempts)
        self.seen |= {(run_id, name) for name in prices}
        reserved = rounded_up(exact_sum([*prices.values()] + [max(prices.values())] * SPARES))
        if run_id != BEFORE:
            self.cost, self.dearest = Fraction(reserved), max(self.dearest, Fraction(reserved))
        ranges = info["cohorts"] if run_id != BEFORE else [[1, 1]]
        for cohort in numbers(books):
            self.by_cohort[cohort] = self.by_cohort.get(cohort, Fraction(0)) + price * holds(ranges, cohort)
        for person, cohort in books.cohort.items():
            if holds(ranges, cohort) and person in books.there:
                self.by_person[person] = self.by_person.get(person, Fraction(0)) + price
            elif holds(ranges, cohort):
                self.absent.add(person)

    def able(self, cohorts: int) -> list[int]:
        """Those who can pay for a run as dear as the last one."""
        cost = getattr(self, "cost", self.limit / HORIZON)
        return [one for one in range(1, cohorts + 1) if self.limit - self.by_cohort.get(one, Fraction(0)) >= cost]

    def check(self, books: Books) -> dict[str, Any]:
        assert self.charges.keys() <= self.seen, f"{self.charges.keys() - self.seen} were charged for nothing"
        assert max(self.by_cohort.values()) <= self.limit and max(self.by_person.values()) <= self.limit
        for person, cohort in books.cohort.items():
            spent, paid = self.by_person.get(person, Fraction(0)), self.by_cohort.get(cohort, Fraction(0))
            assert spent < paid if person in self.absent else spent == paid, (person, cohort)
        segments = self.balance.segments
        assert [segment.first for segment in segments] == [1, *(one.last + 1 for one in segments[:-1])]
        for segment in segments:
            assert segment.rho_reserved == 0 and segment.rho_spent <= float(self.limit)
            inside = {self.by_cohort.get(one, Fraction(0)) for one in range(segment.first, segment.last + 1)}
            assert {rounded_up(spent) for spent in inside} == {segment.rho_spent}, segment
        whole = sum(spent > self.limit - self.dearest for spent in self.by_person.values())
        return {"lost draws": self.lost, "clients who gave all but a run": whole, "rho_max": float(self.limit)} | {
            "largest rho of a client": float(max(self.by_person.values()))
        }


def year(folder: Path, count: int, seed: int, tell: Callable[[Week], None] = lambda week: None) -> dict[str, Any]:
    weeks = plan(count, seed)
    life = Life(folder / "disturbed", seed)
    life.live(weeks, tell)
    reference = calm(folder / "calm", weeks)
    told = check(life.home, reference, weeks)
    kinds, operations = Counter[str](), Counter[str]()
    for (operation, kind), times in life.met.items():
        kinds[kind] += times
        operations[operation] += times
    hit: dict[str, dict[str, int]] = {}
    for (operation, step), times in sorted(life.hit.items()):
        hit.setdefault(operation, {})[step] = times
    more = {"faults": dict(kinds), "operations": dict(operations), "steps": hit, "outcomes": dict(life.outcomes)}
    return told | more | {"refused to forget": life.refused_to_forget, "grown meanwhile": life.grown_meanwhile}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weeks", type=int, default=52)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()

    def tell(week: Week) -> None:
        took = in_words(week.cohorts) if week.run_id else "waits"
        moved = f"{len(week.come)} came, {len(week.leave)} left{f', and cohorts 1-{week.aged}' if week.aged else ''}"
        print(f"week {week.number:2}  {moved:40} {took}", flush=True)

    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        print(json.dumps(year(Path(folder).resolve(), chosen.weeks, chosen.seed, tell), indent=1))


if __name__ == "__main__":
    main()
