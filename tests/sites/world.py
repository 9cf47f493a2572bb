"""Sites on one machine: identities, populations with ledgers of their own, a study and its runs, driven by one process.

No process waits: a site that lacks the answers of others raises PatienceOver, and is asked again in the next turn.
"""

import runpy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from fedcore.errors import PatienceOver
from fedcore.methods.registry import make_method
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import Ledger, create_ledger, open_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run
from fedcore.sites.identity import Identity
from fedcore.sites.mailbox import Header, Mailbox
from fedcore.sites.publisher import StudyPublishing, study_spec
from fedcore.sites.study import Schema, StudySite, read_study, write_study
from fedcore.testing.bits import difference
from fedcore.training.request import TrainRequest
from fedcore.training.session import Session, concluding, resume, start_run
from tests.conftest import small_counts, write_counts
from tests.sites.studies import identities, signer, study_of

KEY = "noise of the sites"
SETTINGS = {"clusters": 2, "rounds": 2}
RHO = 0.05
CLIENTS = 24  # of each site
NAMES = ("a", "b", "c")
REPLAY = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "verify" / "replay.py"))


class World:
    """A study of several sites over small counts. Everything is read from its folder, so that other processes can."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mailbox_place = folder / "mailbox"
        self.study = read_study(self.mailbox_place)
        self.names = [site.name for site in self.study.sites]
        self.mailbox = Mailbox(self.mailbox_place, self.study)
        self.identities = {name: Identity.load(folder / "identities" / name) for name in self.names}

    @classmethod
    def make(cls, folder: Path, names: Sequence[str] = NAMES, test: bool = True, **terms) -> "World":
        """test: whether noise is that of tests."""
        known = identities(folder / "identities", names)
        matrix, like = people(len(names)), None
        for number, name in enumerate(names):
            part = matrix[CLIENTS * number : CLIENTS * (number + 1)]
            like = populate(folder / name, part, test)
        method = make_method("histograms", SETTINGS)
        sites = tuple(StudySite(**signer(one).model_dump(), nominal=200) for one in known.values())
        asked = {
            "settings": method.config.model_dump(mode="json"),
            "schema": Schema.of(like, "client", "add_or_remove_one"),
            "rho": RHO,
            "sites": sites,
            **terms,
        }
        (folder / "mailbox").mkdir()
        write_study(known[names[0]], study_of(known, **asked), folder / "mailbox")
        return cls(folder)

    def population(self, name: str) -> Population:
        return Population.open(self.folder / name / "people")

    def ledger(self, name: str) -> Ledger:
        return open_ledger(url(self.folder / name))

    def publishing(self, name: str, number: int = 1, mailbox: Mailbox | None = None) -> StudyPublishing:
        return StudyPublishing(self.study, number, self.identities[name], mailbox or self.mailbox, waits=0.0)

    def request(self, name: str, number: int = 1, **changes) -> TrainRequest:
        asked = {
            "method": "histograms",
            "population": str(self.folder / name / "people"),
            "runs": str(self.folder / name / "runs"),
            "run_id": f"run-{number}",
            "test_noise": KEY if self.ledger(name).is_test else None,
        }
        return TrainRequest(**{**asked, **changes})

    def start(self, name: str, number: int = 1, mailbox: Mailbox | None = None, **changes) -> Session:
        request = self.request(name, number, **changes)
        spec = study_spec(self.study, number, self.identities[name], request)
        publisher = self.publishing(name, number, mailbox)
        return start_run(request, InProcessBackend(), stamp="then", spec=spec, publisher=publisher)

    def start_all(self, number: int = 1, **changes) -> dict[str, Session]:
        return {name: self.start(name, number, **changes) for name in self.names}

    def path(self, name: str, number: int = 1) -> Path:
        return self.folder / name / "runs" / f"run-{number}"

    def resume(self, name: str, number: int = 1, mailbox: Mailbox | None = None, **how) -> Session:
        publisher = self.publishing(name, number, mailbox)
        return resume(self.path(name, number), InProcessBackend(), publisher=publisher, **how)

    def header(self, kind: str, site: str, round: int = 0, number: int = 1) -> Header:
        return Header(self.study.digest, number, round, site, kind)

    def file(self, kind: str, site: str, round: int = 0, number: int = 1) -> Path:
        return self.mailbox_place / self.header(kind, site, round, number).name

    def replayed(self, name: str):
        """The site's account, from an independent replay of its ledger. It has no fault."""
        account = REPLAY["replay"](REPLAY["reader"](url(self.folder / name)), self.population(name).id)
        assert account.wrong == []
        return account

    def spent(self, name: str, number: int = 1) -> Fraction:
        """What a run has cost at a site, exactly."""
        run = self.replayed(name).runs[f"run-{number}"]
        states = {key: state for key, state in run["states"].items() if state not in ("reserved", "returned")}
        return sum((run["prices"][key[:2]][0] for key in states), Fraction(0))


def people(sites: int):
    return small_counts(clients=CLIENTS * sites)


def url(place: Path) -> str:
    return f"sqlite:///{place / 'ledger.sqlite'}"


def populate(place: Path, matrix, test: bool = True) -> Population:
    """Counts with a budget in a ledger of their own."""
    place.mkdir(parents=True)
    ledger = create_ledger(url(place), test=test)
    known = {"id": ledger.id, "url": ledger.url}
    population = write_counts(place / "people", matrix, block=8, nominal_clients=200, ledger=known)
    ledger.register(population.id)
    ledger.set_budget(population.id, 30.0, 1e-6)
    return population


def one_place(world: World, number: int = 1, **changes) -> Run:
    """The same run in one place, where all clients are one population: same plan, same noise in total."""
    name = world.names[0]
    spec = study_spec(world.study, number, world.identities[name], world.request(name, number, **changes))
    place = world.folder / "one place" / str(number)
    population = populate(place, people(len(world.names)))
    request = world.request(name, number, population=str(population.path), runs=str(place), **changes)
    spec = replace(spec, population=population, ledger=open_ledger(url(place)), study=None)
    with concluding(session := start_run(request, InProcessBackend(), stamp="then", spec=spec)):
        while session.training.step() is not None:
            pass
    return session.run


# --- driving ----------------------------------------------------------------------------------------------------------


def turn(session: Session) -> bool | None:
    """One step: whether a round was made; None if others have to answer first."""
    try:
        return session.training.step() is not None
    except PatienceOver:
        return None


def rounds_of(session: Session) -> bool:
    """As many rounds as can be made now. Whether the run is over."""
    while made := turn(session):
        pass
    return made is False


def end(session: Session) -> Run:
    with concluding(session):
        pass
    return session.run


def to_end(sessions: Iterable[Session]) -> list[Run]:
    """All rounds of all sites, in turn, and the end of each."""
    left, made = list(sessions), []
    for _ in range(100):
        for session in list(left):
            if rounds_of(session):
                made.append(end(session))
                left.remove(session)
        if not left:
            return made
    raise AssertionError(f"{len(left)} sites do not end")


def totals(run: Run) -> dict[str, np.ndarray]:
    return Run.open(run.path).releases()


def same_bits(first: Run, other: Run) -> bool:
    """Whether totals and states are the same."""
    pairs = [(totals(first), totals(other)), (Run.open(first.path).read_state(), Run.open(other.path).read_state())]
    return not any(difference(mine, theirs, "bits") for mine, theirs in pairs)
