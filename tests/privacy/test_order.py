"""Charged, then drawn, then published, then shown: every release, at the price and for the relation of the plan. And
chains of records that no ledger would have written.
"""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.errors import BudgetExceeded, LeaseLost, LedgerError, LedgerTampered
from fedcore.methods.registry import make_method
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.ledger.chain import GENESIS, canonical, digest, link
from fedcore.privacy.ledger.ledger import Charge
from fedcore.privacy.ledger.replay import replay
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.privacy.plan import ROUNDED, PlannedRelease
from fedcore.rounds.statistics import IntegerSum
from fedcore.training.budget import fit_plan, plan_within_budget, public_facts
from fedcore.training.publishing import LedgerPublisher
from fedcore.training.request import TrainRequest
from tests.command import private_population
from tests.conftest import small_counts, spec_of
from tests.privacy.conftest import release
from tests.rounds.test_engine import Recorder, begin, to_end
from tests.toy import GRID, Toy, ToyConfig

pytestmark = pytest.mark.slow

SMALL = {"clusters": 2, "rounds": 2, "epsilon": 1.0}


# --- one release ----------------------------------------------------------------------------------------------------


class Watched:
    """A ledger and a noise source that note in which order they are asked, and what they were given."""

    def __init__(self):
        self.steps, self.drawn = [], []

    def published(self, run_id, name):
        return None

    def ready(self, planned, values):
        self.steps.append("ready")

    def charge(self, lease, planned):
        self.steps.append("charge")
        return Charge("run", planned.round, planned.name, 0)

    def draw(self, planned, run_key, values):
        self.steps.append("draw")
        self.drawn.append(values + len(self.drawn) + 1)
        return self.drawn[-1]

    def publish(self, lease, charge, noised):
        self.steps.append("publish")
        assert noised is self.drawn[-1]
        return noised + 1000


def test_a_release_is_charged_before_its_noise_is_drawn_and_leaves_after_it_is_published():
    watched = Watched()
    publisher = LedgerPublisher(watched, None, SimpleNamespace(id="run"), None, watched)
    left = publisher.release(release(), np.zeros(3, np.int64))
    assert watched.steps == ["ready", "charge", "draw", "publish"]
    assert left.tolist() == [1001, 1001, 1001], "what the ledger says holds, and nothing else"


def test_what_was_given_up_is_not_drawn(monkeypatch):
    watched = Watched()
    monkeypatch.setattr(watched, "charge", lambda lease, planned: None)
    publisher = LedgerPublisher(watched, None, SimpleNamespace(id="run"), None, watched)
    assert publisher.release(release(), np.zeros(3, np.int64)) is None
    assert watched.steps == ["ready"]


def test_what_was_given_up_ends_the_round(monkeypatch):
    watched = Watched()
    monkeypatch.setattr(watched, "charge", lambda lease, planned: None if planned.name == "a" else pytest.fail("paid"))
    publisher = LedgerPublisher(watched, None, SimpleNamespace(id="run"), None, watched)
    planned = [release(name="a"), release(name="b")]
    assert publisher.release_round(planned, {"a": np.zeros(3, np.int64), "b": np.zeros(3, np.int64)}) is None
    assert watched.steps == ["ready"]


def test_a_release_that_cannot_be_published_is_drawn_once(monkeypatch):
    def full(lease, charge, noised):
        watched.steps.append("publish")
        raise LedgerError("the disk is full.")

    watched = Watched()
    monkeypatch.setattr(watched, "publish", full)
    publisher = LedgerPublisher(watched, None, SimpleNamespace(id="run"), None, watched)
    with pytest.raises(LedgerError):
        publisher.release(release(), np.zeros(3, np.int64))
    assert watched.steps == ["ready", "charge", "draw", "publish"]


def test_nothing_is_published_that_was_not_charged(books):
    run = books.reserve([release()], spares=1)
    lease = books.ledger.acquire(run)
    with pytest.raises(LeaseLost):
        books.ledger.publish(lease, Charge(run, 1, "sums-1", 0), np.zeros(3, np.int64))
    assert books.ledger.published(run, "sums-1") is None
    assert books.spent()[0] == 0


def test_what_a_run_reserved_is_not_left_for_others(books):
    left = books.ledger.balance(books.population).rho_left
    plan = [release(sigma=(0.5 / (0.6 * left)) ** 0.5)]
    books.reserve(plan)
    with pytest.raises(BudgetExceeded):
        books.reserve(plan)


def test_a_record_of_the_right_number_and_another_hash_was_not_seen(books):
    head = books.ledger.head(books.population)
    other = replace(head, hash=head.hash[::-1])
    assert books.ledger.lacks(books.population, [head, other]) == [other]


def test_nothing_is_charged_on_top_of_an_edited_record(file_books):
    run = file_books.reserve([release()])
    lease = file_books.ledger.acquire(run)
    with closing(sqlite3.connect(file_books.url.removeprefix("sqlite:///"))) as connection, connection:
        last = "seq = (SELECT max(seq) FROM fedcore_records)"
        edit = f"UPDATE fedcore_records SET payload = replace(payload, 'false', 'true') WHERE {last}"
        assert connection.execute(edit).rowcount == 1
    with pytest.raises(LedgerTampered, match="hash"):
        file_books.ledger.charge(lease, release())


class Pair(Toy):
    """Two releases in every round."""

    def plan(self, public):
        wide = [
            PlannedRelease(f"more-{planned.round}", planned.round, (2,), GRID, planned.noise_multiplier, "toy", "one")
            for planned in super().plan(public)
        ]
        return [*super().plan(public), *wide]

    def client_update(self, message, block, memory):
        answer, after = super().client_update(message, block, memory)
        return {**answer, f"more-{message.step + 1}": IntegerSum(np.zeros(2, np.int64))}, after


def test_every_release_of_a_round_is_charged_and_published(tmp_path):
    publisher = Recorder()
    to_end(begin(tmp_path, Pair(ToyConfig(private=True)), publisher=publisher))
    assert publisher.released == [f"{name}-{number}" for number in (1, 2, 3) for name in ("mean", "more")]


# --- the plan of a run ----------------------------------------------------------------------------------------------


def test_a_private_method_is_told_no_exact_count(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts())
    method = make_method("histograms", SMALL)
    assert public_facts(method, population, 1.0, 0).clients is None
    assert public_facts(method, population, 1.0, 0).nominal_clients == 1000


@pytest.mark.parametrize("spares", [0, 3])
def test_a_plan_fits_with_its_spares(tmp_path, spares):
    population, _ = private_population(tmp_path / "p", small_counts())
    method = make_method("histograms", SMALL | {"spare_releases": spares})
    plan, _ = fit_plan(method, lambda rho: public_facts(method, population, rho, 0), 0.25)
    prices = [planned.rho for planned in plan]
    assert 0.2 < sum(prices) + spares * max(prices) <= 0.25


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_a_run_is_planned_for_the_relation_of_the_budget(tmp_path, relation):
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=None)
    ledger.set_budget(population.id, 4.0, 1e-6, relation=relation)
    spec = spec_of(TrainRequest(method="histograms", population=str(population.path), settings=SMALL))
    assert spec.public.relation == relation


def test_a_run_that_asks_for_more_than_is_left_is_told_what_fits(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=0.5)
    with pytest.raises(BudgetExceeded, match=r"a run of epsilon = 0\.499"):
        plan_within_budget(make_method("histograms", SMALL), population, ledger.balance(population.id), 0)


# --- chains that no ledger writes -----------------------------------------------------------------------------------

BUDGET, LOWER = make_budget(2.0, 1e-10).numbers(), make_budget(1.0, 1e-10).numbers()
SET = ("budget set", None, {"budget": BUDGET, "currency": "gdp", "unit": "client", "relation": "add_or_remove_one"})


def reserved(*planned: PlannedRelease, run: str = "run", spares: int = 0):
    payload = {
        "plan": json.loads(canonical([item.to_json() for item in planned])),
        "plan_digest": digest("plan"),
        "spares": spares,
        "spare_rho": max(item.rho for item in planned),
        "spare_delta": 0.0,
        "unit": "client",
        "relation": "add_or_remove_one",
        "secure": True,
        "statement": None,
        "noise": ROUNDED,
    }
    return ("reserve", run, payload)


def charged(planned: PlannedRelease, attempt: int = 0, **other):
    price = {"rho": planned.rho, "delta": planned.delta, "token": 1}
    return ("charge", "run", {"round": planned.round, "name": planned.name, "attempt": attempt, **price, **other})


def forfeited(planned: PlannedRelease, attempt: int = 0):
    return ("forfeit", "run", {"round": planned.round, "name": planned.name, "attempt": attempt})


def extended(planned: PlannedRelease, attempt: int = 1, **other):
    return ("extend", "run", {**charged(planned, attempt)[2], **other})


LOST = [charged(release()), forfeited(release())]
ENDED = ("finish", "run", {"status": "finished"})
OPTIONAL = replace(release(2), optional=True)
ACQUIRED = ("acquire", "run", {"token": 1, "take_over": False})
BEGUN, GIVEN_UP = (SET, reserved(release()), ACQUIRED), ("give up", "run", {"round": 2})


def chain_of(*steps, ledger: str = "ledger", population: str = "people"):
    """Records whose hashes are right, whatever they say."""
    records, before = [], GENESIS
    for number, (kind, run, payload) in enumerate([("register", None, {}), *steps], start=1):
        records.append(link(ledger, population, number, kind, run, payload, before))
        before = records[-1].hash
    return records


def test_a_chain_of_this_form_is_accepted():
    steps = [SET, reserved(release(), spares=1), ACQUIRED, charged(release()), charged(release(), 1)]
    account = replay("ledger", "people", chain_of(*steps))
    assert account.runs["run"].used == 1
    steps = [SET, reserved(release(), OPTIONAL), ACQUIRED, *LOST, ("give up", "run", {"round": 2})]
    account = replay("ledger", "people", chain_of(*steps, extended(release()), charged(release(), 1)))
    assert account.runs["run"].given_up == 2 and float(account.totals()[0]) == 2 * release().rho
    steps = [SET, reserved(release(), OPTIONAL), ACQUIRED, charged(OPTIONAL), ("give up", "run", {"round": 2})]
    assert float(replay("ledger", "people", chain_of(*steps)).totals()[0]) == OPTIONAL.rho


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([*BEGUN, charged(release(), rho=0.0)], "another cost than planned"),
        ([SET, ("budget raise", None, {"budget": LOWER, "before": BUDGET})], "a lowered budget"),
        ([SET, SET], "a second budget"),
        ([SET, reserved(release(1, 0.5)), reserved(release(1, 0.5), run="more")], "spend more than the budget"),
        ([SET, reserved(release(1, 5.0), spares=1000)], "spend more than the budget"),
        ([*BEGUN, charged(release()), charged(release(), 1)], "no spare release left"),
        ([*BEGUN, charged(release()), charged(release())], "is not reserved"),
        ([*BEGUN, ACQUIRED], "tokens count by one"),
        ([SET, reserved(release()), reserved(release())], "a run reserved twice"),
        ([*BEGUN, *LOST, extended(release(), rho=0.0)], "another cost than planned"),
        ([*BEGUN, charged(release()), extended(release())], "an extension without need"),
        ([SET, reserved(release(), spares=1), ACQUIRED, *LOST, extended(release())], "an extension without need"),
        ([*BEGUN, *LOST, extended(release(), 2)], "cannot follow"),
        ([*BEGUN, *LOST, ENDED, extended(release())], "an extension without need"),
        ([*BEGUN, *LOST, extended(release()), charged(release(), 1), extended(release())], "an extension without need"),
        (
            [
                SET,
                reserved(release(1, 4.0)),
                ACQUIRED,
                charged(release(1, 4.0)),
                forfeited(release()),
                extended(release(1, 4.0)),
            ],
            "spend more than the budget",
        ),
        ([SET, reserved(release(), release(2)), ACQUIRED, GIVEN_UP], "that the run needs"),
        ([SET, reserved(release(), OPTIONAL), ACQUIRED, GIVEN_UP, charged(OPTIONAL)], "a round that was given up"),
        (
            [
                SET,
                reserved(release(), OPTIONAL, spares=1),
                ACQUIRED,
                charged(OPTIONAL),
                forfeited(OPTIONAL),
                GIVEN_UP,
                charged(OPTIONAL, 1),
            ],
            "a round that was given up",
        ),
        ([SET, reserved(release(), OPTIONAL), *[GIVEN_UP] * 2], "given up before"),
        ([SET, reserved(release(), OPTIONAL), ENDED, GIVEN_UP], "a run that has ended"),
        ([*BEGUN, ENDED, charged(release())], "a charge to a closed run"),
    ],
)
def test_records_that_cannot_be_are_refused(steps, why):
    with pytest.raises(LedgerTampered, match=why):
        replay("ledger", "people", chain_of(*steps))


def test_a_chain_that_was_forged_in_the_middle_is_refused():
    """The records after the exchanged one still hash, and no longer follow it."""
    honest, other = chain_of(SET, reserved(release())), chain_of(SET, reserved(release(2)))
    forged = [honest[0], chain_of(("budget set", None, {**SET[2], "budget": LOWER}))[1], honest[2]]
    with pytest.raises(LedgerTampered, match="does not follow"):
        replay("ledger", "people", forged)
    assert replay("ledger", "people", [*honest[:2], other[2]]).seq == 3, "before it they may be shared"


def test_a_record_is_bound_to_its_population():
    records = chain_of(SET)
    for ledger, population in (("ledger", "others"), ("another", "people")):
        with pytest.raises(LedgerTampered, match="does not match its hash"):
            replay(ledger, population, records)


def test_the_head_of_a_run_is_of_its_own_chain_although_another_run_published_last(books):
    """Two runs of one process may share a ledger."""
    other = books.run()
    books.ledger.register(other)
    books.ledger.set_budget(other, 2.0, 1e-10, delta_extra=1e-11)
    runs = [books.reserve([release()]), books.run()]
    books.ledger.reserve(other, runs[1], [release()], 0, secure=True)
    mine, last = (
        LedgerPublisher(books.ledger, None, SimpleNamespace(id=run), books.ledger.acquire(run), SecureNoise())
        for run in runs
    )
    last.release(release(), np.zeros(3, np.int64))
    assert mine.head()["hash"] == books.ledger.head(books.population).hash
    assert last.head()["hash"] == books.ledger.head(other).hash


def test_a_run_that_was_taken_over_has_no_head_to_keep(books):
    run = books.reserve([release(), release(2)])
    publisher = LedgerPublisher(books.ledger, None, SimpleNamespace(id=run), books.ledger.acquire(run), SecureNoise())
    publisher.release(release(), np.zeros(3, np.int64))
    publisher.head()
    books.ledger.acquire(run, take_over=True)
    with pytest.raises(LeaseLost):
        publisher.head()
    with pytest.raises(LeaseLost):
        publisher.release(release(2), np.zeros(3, np.int64))
