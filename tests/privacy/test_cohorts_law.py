"""The law of one account, of accounts by cohort and by calendar period, and of shares: whatever is divided, reserved,
charged, lost, drawn again, given up or raised in any order, no client loses more than the budget, no share has more
than its part, and what is refused would have been too much. The ledger says what an independent replay says, which adds
up pairs of (client, run) in fractions.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from fedcore.errors import BudgetExceeded, ConfigError, LeaseLost, PrivacyError, RunError
from fedcore.privacy.accounting import exact_sum, rounded_up
from fedcore.privacy.ledger import reservations
from fedcore.privacy.ledger.sums import Sums
from fedcore.storage.ranges import numbers_in, ranges_of
from tests.privacy.accounts import begin, on, optional, rho_max, spend, took, with_periods
from tests.privacy.conftest import open_books, release

PARTS = [Fraction(0), Fraction(1, 10), Fraction(1, 3), Fraction(1, 2), Fraction(2, 3)]
NAMES = ("a", "b", None)
WINDOW = 3
PLANS = {  # epsilon = 2 buys rho = 0.0497
    0: ([release(1, 7.0), release(2, 15.0), release(2, 30.0, name="other")], 1),
    1: ([release(1, 10.0), optional(2, 10.0), optional(3, 12.0)], 0),
    2: ([release(1, 9.0)], 0),
    3: ([release(1, 12.0), optional(2, 12.0)], 1),
}


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(reservations, "CHECKPOINT_AFTER", 12)


# --- an independent replay ------------------------------------------------------------------------------------------


def replayed(history):
    """(spent, reserved, cohorts or None) of every run, in fractions, from the records alone."""
    runs = {}
    for row in history:
        run = runs.get(row["run_id"])
        match row["kind"]:
            case "reserve":
                waiting = {item["name"]: (item["round"], Fraction(item["rho"])) for item in row["plan"]}
                named = row.get("cohorts")
                cohorts = None if named is None else numbers_in(tuple(map(tuple, named["ranges"])))
                spares = [Fraction(row["spare_rho"])] * row["spares"]
                runs[row["run_id"]] = {"waiting": waiting, "spares": spares, "spent": Fraction(0), "cohorts": cohorts}
                runs[row["run_id"]]["extended"] = False
            case "extend":
                run["extended"] = True
            case "charge":
                run["spent"] += Fraction(row["rho"])
                if run["waiting"].pop(row["name"], None) is None and not run["extended"]:
                    run["spares"].pop()
                run["extended"] = False
            case "give up":
                run["waiting"] = {name: item for name, item in run["waiting"].items() if item[0] < row["round"]}
            case "finish":
                run["waiting"], run["spares"] = {}, []
    return {
        name: (run["spent"], sum((rho for _, rho in run["waiting"].values()), sum(run["spares"], 0)), run["cohorts"])
        for name, run in runs.items()
    }


class People:
    """A population: of each client its cohort and the runs it really took part in."""

    def __init__(self):
        self.cohort, self.took_part, self.cohorts_opened = [1, 1], [[], []], 1

    def come(self, cohort):
        self.cohort += [cohort, cohort]
        self.took_part += [[], []]

    def run(self, name, cohorts):
        for cohort, runs in zip(self.cohort, self.took_part, strict=True):
            if cohorts is None or cohort in cohorts:
                runs.append(name)


class World:
    """One population; what its accounts should hold is added up from its records alone. cohorts: how many there are, 0
    before they begin. kind: "periods" for an account by calendar period, whose numbers are treated as cohorts
    """

    def __init__(self, url, kind):
        self.periods, self.shares = kind == "periods", kind in ("periods", "shares")
        self.books, self.people = with_periods(url, WINDOW) if self.periods else open_books(url), People()
        self.cohorts, self.raised, self.parts = int(self.periods), 0, {}
        self.plans, self.asked, self.leases, self.ended = {}, {}, {}, set()
        self.charges, self.paid, self.values = {}, {}, {}
        self.rho_max = rho_max(self.books)

    # --- what may happen ----------------------------------------------------------------------------------------------

    def divide(self, name, part, _):
        name, part = ("a", "b")[name % 2], PARTS[part % len(PARTS)]
        new = {key: value for key, value in {**self.parts, name: part}.items() if value}
        used = self.used()
        try:
            self.books.ledger.divide(self.books.population, {name: part})
        except (BudgetExceeded, ConfigError):
            opened = any(share == name and run not in self.ended for run, share in self.shares_of_open())
            too_small = [
                sum(used[share, cohort]) > self.part(new, share) * self.rho_max
                for share in (("a", "b") if self.cohorts else NAMES)
                for cohort in self.numbers()
            ]
            assert sum(new.values()) > 1 or any(too_small) or (not part and opened)
            return
        self.parts = new

    def reserve(self, run, plan, detail):
        name = f"{self.books.population}-{run}"
        if run in self.plans:  # the same plan again is the same run
            try:
                self.books.reserve(*PLANS[plan], run=name, **self.asked[run])
            except (BudgetExceeded, PrivacyError):
                assert plan != self.plans[run]
            else:
                assert plan == self.plans[run]
            return
        share, chosen = NAMES[detail % 3] if self.shares else None, detail // 3
        asked = {"bound": on(1), "share": share, **({"unit": "client_period"} if self.periods else {})}
        payers = [1]
        if self.cohorts:
            payers = [cohort for cohort in self.numbers() if chosen >> (cohort % 6) & 1] or [1]
            payers = payers[-WINDOW:] if self.periods else payers
            asked["cohorts"] = took(*ranges_of(payers), of=self.cohorts)
        used = self.used()
        try:
            self.books.reserve(*PLANS[plan], run=name, **asked)
        except ConfigError:
            assert share not in self.parts
            return
        except BudgetExceeded:
            releases, spares = PLANS[plan]
            price = exact_sum(p.rho for p in releases) + spares * Fraction(max(p.rho for p in releases))
            of_account = max(sum(sum(used[other, cohort]) for other in NAMES) for cohort in payers)
            of_share = max(sum(used[share, cohort]) for cohort in payers)
            assert of_account + price > self.rho_max or of_share + price > self.part(self.parts, share) * self.rho_max
            return
        assert share is None or share in self.parts
        self.plans[run], self.asked[run], self.leases[run] = plan, asked, self.books.ledger.acquire(name)
        self.people.run(name, payers if self.cohorts else None)

    def work(self, run, which, pattern):
        """The releases of a run from number `which` on; the bits of `pattern` say which draws are lost."""
        for planned in PLANS[self.plans[run]][0][which:] if run in self.plans else ():
            for _ in range(3):
                try:
                    charge = self.books.ledger.charge(self.leases[run], planned)
                except BudgetExceeded:
                    break
                except RunError:
                    assert run in self.ended
                    return
                pattern, lost = pattern >> 1, pattern & 1
                if charge is None:
                    break
                if charge.stored is not None:
                    assert np.array_equal(charge.stored, self.values[run, planned.name])
                    break
                self.paid[run] = self.paid.get(run, Fraction(0)) + Fraction(planned.rho)
                self.charges.setdefault(run, []).append(charge)
                if not lost:
                    self.publish(run, -1)
                    break

    def publish(self, run, which, *_):
        """Of several values of a release the first is kept; nothing is, of a draw that was given up as lost."""
        if not self.charges.get(run):
            return
        charge = self.charges[run][which % len(self.charges[run])]
        try:
            stored = self.books.ledger.publish(self.leases[run], charge, np.full(3, len(self.values)))
        except LeaseLost:
            assert which >= 0
            return
        assert np.array_equal(stored, self.values.setdefault((run, charge.name), stored))

    def crash(self, run, keeps_charges, *_):
        """Another process takes the run over; it may have the charges of the first one, or not."""
        if run in self.leases and run not in self.ended:
            self.leases[run] = self.books.ledger.acquire(self.leases[run].run_id, take_over=True)
            if not keeps_charges % 2:
                self.charges[run] = []

    def finish(self, run, *_):
        if run in self.leases and run not in self.ended:
            self.books.ledger.finish(self.leases[run], "abandoned")
            self.leases[run] = self.books.ledger.acquire(self.leases[run].run_id)
            self.ended.add(run)

    def larger(self, *_):
        if self.raised < 2:
            self.raised += 1
            self.books.ledger.raise_budget(self.books.population, 2 + self.raised / 4, 1e-10)
            self.rho_max = rho_max(self.books)

    def come(self, *_):
        """New clients; before cohorts begin they are founders."""
        self.cohorts += self.cohorts > 0
        self.people.come(max(self.cohorts, 1))

    def begin(self, *_):
        if not self.cohorts:
            begin(self.books)
            self.cohorts = 1

    # --- what should be so --------------------------------------------------------------------------------------------

    def part(self, parts, share):
        return 1 - sum(parts.values()) if share is None else parts.get(share, Fraction(0))

    def numbers(self):
        return range(1, max(self.cohorts, 1) + 1)

    def shares_of_open(self):
        names = {lease.run_id: run for run, lease in self.leases.items()}
        history = self.books.ledger.history(self.books.population)
        return [(names[row["run_id"]], row.get("share")) for row in history if row["kind"] == "reserve"]

    def used(self, history=None):
        """(spent, reserved) by share and cohort, in fractions; a run that names no cohort was paid by the founders."""
        history = self.books.ledger.history(self.books.population) if history is None else history
        shares = {row["run_id"]: row.get("share") for row in history if row["kind"] == "reserve"}
        found = {(share, cohort): [Fraction(0), Fraction(0)] for share in NAMES for cohort in self.numbers()}
        for run, (spent, reserved, cohorts) in replayed(history).items():
            for cohort in cohorts or [1]:
                found[shares[run], cohort][0] += spent
                found[shares[run], cohort][1] += reserved
        return {key: tuple(pair) for key, pair in found.items()}

    def check(self):
        ledger, population = self.books.ledger, self.books.population
        balance, history = ledger.verify(population), ledger.history(population)
        assert balance == ledger.balance(population)
        assert set(balance.open_runs) == {self.leases[run].run_id for run in self.leases if run not in self.ended}
        assert balance.releases.get("published", 0) == len(self.values)
        runs, used = replayed(history), self.used(history)
        assert {run: runs[lease.run_id][0] for run, lease in self.leases.items() if runs[lease.run_id][0]} == self.paid
        pairs = {
            cohort: tuple(sum(used[share, cohort][i] for share in NAMES) for i in (0, 1)) for cohort in self.numbers()
        }
        self.check_accounts(balance, pairs)
        self.check_shares(balance, used, pairs)
        self.check_people(runs, pairs)

    def check_values(self):
        ledger, population = self.books.ledger, self.books.population
        assert ledger.account(population).balance() == ledger.balance(population)
        for (run, name), value in self.values.items():
            assert np.array_equal(ledger.published(self.leases[run].run_id, name), value)

    def check_accounts(self, balance, pairs):
        for cohort, (spent, reserved) in pairs.items():
            assert spent + reserved <= self.rho_max
            held = [s for s in balance.segments if s.first <= cohort <= s.last]
            if held:
                assert (held[0].rho_spent, held[0].rho_reserved) == (rounded_up(spent), rounded_up(reserved))
            elif self.cohorts:
                assert spent == reserved == 0, "a cohort that no reservation has named"
        assert balance.rho_spent == rounded_up(max(spent for spent, _ in pairs.values()))

    def check_shares(self, balance, used, pairs):
        assert {share.name: share.part for share in balance.shares if share.name} == self.parts
        for cohort in self.numbers():
            for share in ("a", "b", *(() if self.cohorts else (None,))):
                assert sum(used[share, cohort]) <= self.part(self.parts, share) * self.rho_max
        for share in balance.shares:
            mine = [used[share.name, cohort] for cohort in self.numbers()]
            assert share.rho_spent == rounded_up(max(spent for spent, _ in mine))
            assert share.rho_reserved == rounded_up(max(reserved for _, reserved in mine))
            for segment in share.segments:
                for cohort in range(segment.first, segment.last + 1):
                    spent, reserved = used[share.name, cohort]
                    assert (segment.rho_spent, segment.rho_reserved) == (rounded_up(spent), rounded_up(reserved))
                    left = self.part(self.parts, share.name) * self.rho_max - spent - reserved
                    of_account = self.rho_max - sum(pairs[cohort])
                    assert segment.rho_left <= min(left, of_account) <= segment.rho_left + 1e-15

    def check_people(self, prices, pairs):
        """What each client lost in the runs that it really took part in is what its cohort was charged."""
        lost = [sum((prices[run][0] for run in runs), Fraction(0)) for runs in self.people.took_part]
        for cohort, own in zip(self.people.cohort, lost, strict=True):
            assert own <= pairs[cohort][0] and (cohort == 1 or own == pairs[cohort][0])
        assert lost[0] == pairs[1][0]


runs, numbers, details = st.integers(0, 6), st.integers(0, 63), st.integers(0, 191)
RESERVE = st.tuples(st.just("reserve"), runs, st.integers(0, 3), details)
WORK = (
    st.tuples(st.just("work"), runs, st.integers(0, 2), numbers),
    st.tuples(st.just("work"), runs, st.just(0), numbers),
)
DIVIDE = st.tuples(st.just("divide"), numbers, numbers, numbers)
COME, BEGIN, LARGER = (st.tuples(st.just(name), numbers, numbers, numbers) for name in ("come", "begin", "larger"))
FINISH, CRASH, PUBLISH = (st.tuples(st.just(name), runs, numbers, numbers) for name in ("finish", "crash", "publish"))
STEPS = {
    "one account": (RESERVE, RESERVE, RESERVE, RESERVE, *WORK, PUBLISH, CRASH, FINISH),
    "cohorts": (RESERVE, RESERVE, *WORK, PUBLISH, CRASH, COME, BEGIN, FINISH),
    "periods": (RESERVE, RESERVE, RESERVE, *WORK, COME, COME, DIVIDE, LARGER, FINISH),
    "shares": (DIVIDE, DIVIDE, RESERVE, RESERVE, RESERVE, *WORK, COME, BEGIN, LARGER, FINISH),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('law') / 'ledger.sqlite'}"


def sequences(kind):
    return st.lists(st.one_of(*STEPS[kind]), min_size=20, max_size=40)


@pytest.mark.parametrize("kind", STEPS)
@given(data=st.data())
@settings(max_examples=7, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_client_loses_more_than_the_budget_and_the_ledger_says_what_pairs_add_up_to(place, kind, data):
    world = World(place, kind)
    for step, *details in data.draw(sequences(kind)):
        getattr(world, step)(*details)
    world.check()
    world.check_values()


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_same_after_every_step(place, kind, data):
    world, seen = World(place, kind), None
    for step, *details in data.draw(sequences(kind)):
        getattr(world, step)(*details)
        now = (world.books.ledger.head(world.books.population), world.cohorts, len(world.people.cohort))
        if now != seen:  # else the step was refused, or there was nothing to do
            world.check()
        seen = now
    world.check()
    world.check_values()


# --- a schedule that never ends -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.heavy
def test_four_years_of_weekly_runs_are_paid_by_who_is_there_and_nobody_loses_more(tmp_path):
    """Each run is paid by the cohorts of the last H appends, at a share of which H fit: none is refused, and a client
    who stayed for H runs has spent all but less than one of them.
    """
    horizon, weeks = 26, 208
    books = open_books(f"sqlite:///{tmp_path / 'ledger.sqlite'}", epsilon=4.0)
    begin(books)
    rho_max = Fraction(books.ledger.balance(books.population).budget.rho_max)
    sigma = float(np.sqrt(0.5 * horizon / float(rho_max))) * (1 + 1e-14)
    plan = [release(1, sigma)]
    assert horizon * Fraction(plan[0].rho) <= rho_max < (horizon + 1) * Fraction(plan[0].rho)
    for week in range(1, weeks + 1):
        spend(books, plan, took((max(1, week - horizon + 1), week), of=week))
    balance = books.ledger.verify(books.population)
    runs = replayed(books.ledger.history(books.population))
    lost = [sum((run[0] for run in runs.values() if cohort in run[2]), Fraction(0)) for cohort in range(1, weeks + 1)]
    assert max(lost) <= rho_max < max(lost) + Fraction(plan[0].rho) and balance.rho_spent == rounded_up(max(lost))
    for segment in balance.segments:
        held = {rounded_up(rho) for rho in lost[segment.first - 1 : segment.last]}
        assert held == {segment.rho_spent}
    last = weeks - horizon + 1
    with pytest.raises(BudgetExceeded, match=f"each of cohorts 1-{last} of population"):
        books.reserve(plan, cohorts=took((last, weeks), of=weeks))


@pytest.mark.slow
def test_verification_does_for_a_cohort_what_it_does_for_a_run(tmp_path, monkeypatch):
    """Sums change where a range begins and where it ends, whatever lies between; there are as many statements."""
    counted, statements = [], []
    real = Sums._step
    monkeypatch.setattr(Sums, "_step", lambda *arguments: counted.append(1) or real(*arguments))
    cost = []
    for by_cohort, weeks in ((False, 20), (True, 20), (True, 40)):
        books = open_books(f"sqlite:///{tmp_path / f'{by_cohort}-{weeks}.sqlite'}", epsilon=4.0)
        if by_cohort:
            begin(books)
        for week in range(1, weeks + 1):
            spend(books, [release(1, 50.0)], took((1, week), of=week) if by_cohort else None)
        event.listen(books.ledger._engine, "before_cursor_execute", lambda *_: statements.append(1))
        counted.clear(), statements.clear()
        balance = books.ledger.verify(books.population)
        assert len(balance.segments) == by_cohort * weeks
        cost.append((len(counted), len(statements)))
    (_, alone), (of_20, first), (of_40, second) = cost
    assert alone == first == second and of_40 == 2 * of_20 == 2 * 2 * 20
