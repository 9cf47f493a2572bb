"""Runs on entries of one client and one calendar period: what a client moves, what is paid, and until when."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError, PrivacyError, Waiting
from fedcore.methods.registry import make_method
from fedcore.operations.population_page import population_page
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import create_ledger
from fedcore.rounds.clients import Answer, Source
from fedcore.rounds.engine import InProcessBackend
from fedcore.rounds.statistics import values
from fedcore.storage.ranges import ranges_of
from fedcore.training.budget import plan_within_budget, public_facts, set_budget
from fedcore.training.session import resume
from tests import sessions
from tests.command import works
from tests.growing import NOISE, price_of, ranges_of_run, to_end
from tests.population.contents import ids_of, write_csv
from tests.toy import GRID

pytestmark = pytest.mark.usefixtures("toy")
HEADER = ["client", "when", "token"]
HISTOGRAMS = {"clusters": 2, "rounds": 2, "nominal_clients": 100}
MONTHS = 6


def label(month: int) -> str:
    return f"{2025 + (month - 1) // 12}-{(month - 1) % 12 + 1:02d}"


def entries(client: str, tokens: dict[int, int], rows: int = 4):
    """Rows of a client, of one token in each of some months."""
    return [(client, f"{label(month)}-{day + 1:02d}", token) for month, token in tokens.items() for day in range(rows)]


class Calendar:
    """A population of entries with its ledger of test noise; each month some clients have rows in it. url: of the
    ledger; people: whether it is one for people, with real noise; stored: options of ingest
    """

    def __init__(
        self,
        folder,
        window: int = 3,
        months: int = 1,
        unit: str = "client_period",
        period: bool = True,
        url: str | None = None,
        people: bool = False,
        **stored,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.months, self.files, self.noise = folder, months, 0, None if people else NOISE
        self.ledger = create_ledger(url or f"sqlite:///{folder / 'ledger.sqlite'}", test=not people)
        options = {"period": "month", "time": "when", "first": label(1), "through": label(months)} if period else {}
        self.path = folder / "p"
        named = {"id": self.ledger.id, "url": self.ledger.url}
        rows = [row for month in range(1, months + 1) for row in self.of_month(month)]
        rows = rows if period else [(client, token) for client, _, token in rows]
        file = write_csv(folder / "first.csv", HEADER if period else ["client", "token"], rows)
        made = ingest(file, self.path, features=30, nominal_clients=100, ledger=named, **options, **stored)
        self.ledger.register(made.id)
        if unit:
            set_budget(made, self.ledger, 4.0, 1e-6, unit=unit, window=window)

    def of_month(self, month: int):
        return [row for n in range(12) for row in entries(f"u{n}", {month: (n * month) % 30})]

    @property
    def population(self) -> Population:
        return Population.open(self.path)

    @property
    def rho_max(self) -> Fraction:
        return Fraction(self.ledger.balance(self.population.id).budget.rho_max)

    def append(self, rows=(), months: int = 0) -> Population:
        """These rows, and `months` more of the calendar with their own."""
        new = [row for month in range(self.months + 1, self.months + months + 1) for row in self.of_month(month)]
        self.months, self.files = self.months + months, self.files + 1
        file = write_csv(self.folder / f"{self.files}.csv", HEADER, [*new, *rows])
        going_on = {"through": label(self.months), "nominal_clients": 100} if months else {}
        return ingest(file, self.path, append=True, **going_on)

    def begin(self, method: str = "toy", run_id=None, start_from=None, backend=None, **asked):
        asked = {**({"private": True, "rounds": 1, "spare_releases": 0} if method == "toy" else {}), **asked}
        more = {"run_id": run_id, "start_from": start_from, "test_noise": self.noise, "backend": backend}
        return sessions.begin(self.path, self.folder, method, asked, **more)

    def run(self, *named, **asked):
        return to_end(self.begin(*named, **asked))


# --- what a client moves ----------------------------------------------------------------------------------------------


def people(folder, rows) -> Population:
    folder.mkdir(parents=True, exist_ok=True)
    options = {"period": "month", "time": "when", "first": label(1), "through": label(MONTHS)}
    return ingest(
        write_csv(folder / "rows.csv", HEADER, rows), folder / "p", features=30, clients_per_leaf=4, **options
    )


def first_sums(method, population: Population, months) -> dict[str, np.ndarray]:
    """The exact sums of the first round of a run that reads these months."""
    public = public_facts(method, population, 0.1, 0)
    source = Source(str(population.path), population.version, ranges=population.participants(ranges_of(months)))
    message = method.message(method.init(public))
    return values(InProcessBackend().map_blocks(Answer(method, source), message, range(len(population.blocks))))


def moved(method, one, other) -> dict[str, float]:
    """By how many sensitivities two sums differ, of each release."""
    plan = {planned.name: planned.sensitivity for planned in method.plan(public_facts(method, PUBLIC, 0.1, 0))}
    found = {name: math.dist(one[name].ravel().tolist(), other[name].ravel().tolist()) for name in one}
    return {name: norm / plan[name] for name, norm in found.items()}


class PUBLIC:
    """Public facts of `people`."""

    kind, features, clients_per_leaf, n_clients = "counts", 30, 4, 0
    manifest = type("Manifest", (), {"nominal_clients": 100, "cohorts": (), "halves": None, "one_whole": False})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "asked"), [("toy", {"private": True, "nominal_clients": 100}), ("histograms", HISTOGRAMS)]
)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.dictionaries(st.integers(1, MONTHS), st.integers(0, 29), min_size=1),
    window=st.sets(st.integers(1, MONTHS), min_size=1, max_size=4),
)
def test_a_client_moves_a_sum_by_a_sensitivity_for_each_month_that_is_read(
    tmp_path_factory, name, asked, tokens, window
):
    """Bit-equal if none is; entry by entry, each moves it by one at most: what the argument adds up."""
    folder, method = tmp_path_factory.mktemp("p"), make_method(name, asked)
    others = [row for n in range(5) for row in entries(f"v{n}", {month: (7 * n + month) % 30 for month in range(1, 7)})]
    months = sorted(tokens)
    worlds = [
        people(folder / str(number), [*others, *entries("u", {month: tokens[month] for month in months[:number]})])
        for number in range(len(months) + 1)
    ]
    sums = [first_sums(method, world, window) for world in worlds]
    for month, one, other in zip(months, sums, sums[1:], strict=False):
        far = moved(method, one, other)
        assert all(norm <= 1 for norm in far.values()) and (month in window or not any(far.values()))
    assert all(norm <= len(window & set(months)) for norm in moved(method, sums[0], sums[-1]).values())


def test_it_can_move_it_by_as_many_and_the_bound_is_no_larger_than_needed(tmp_path):
    method, others = make_method("toy", {"private": True, "nominal_clients": 100}), entries("v", {1: 2, 2: 3})
    worlds = [
        people(tmp_path / "without", others),
        people(tmp_path / "with", [*others, *entries("u", {1: 5, 2: 5, 3: 5})]),
    ]
    for window in ({1}, {1, 3}, {1, 2, 3}, {4, 5}):
        one, other = (first_sums(method, world, window) for world in worlds)
        assert moved(method, one, other) == {"mean-1": len(window & {1, 2, 3})}
        assert np.abs(one["mean-1"] - other["mean-1"]).max() == GRID * len(window & {1, 2, 3})


# --- month by month ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_year_of_monthly_runs_with_a_window_of_three(tmp_path):
    """The budget of the first months ends while later ones go on; without new months the runs end in Waiting."""
    calendar = Calendar(tmp_path)
    sessions = []
    for month in range(1, 13):
        sessions.append(calendar.run(horizon=3))
        assert ranges_of_run(sessions[-1]) == ((max(month - 2, 1), month),)
        late = entries("late", {month: month}) if month % 3 == 0 else []
        calendar.append(late, months=1 if month < 12 else 0)
    spent = dict.fromkeys(range(1, 13), Fraction(0))
    lifetime = Fraction(0)
    for session in sessions:
        ((first, last),) = ranges_of_run(session)
        lifetime += (last - first + 1) ** 2 * price_of(session)
        for month in range(first, last + 1):
            spent[month] += price_of(session)
    balance = calendar.ledger.verify(calendar.population.id)
    assert max(spent.values()) <= calendar.rho_max < max(spent.values()) * Fraction(1 + 1e-6)
    pieces = [(piece.first, piece.last) for piece in balance.segments]
    assert pieces == [(1, 10), (11, 11), (12, 12)], "ten months have paid three times"
    assert lifetime <= Fraction(balance.lifetime_spent) <= lifetime * Fraction(1 + 1e-12)
    assert lifetime <= 3 * 12 * calendar.rho_max
    assert [ranges_of_run(calendar.run(horizon=3)) for _ in range(2)] == [((11, 12),), ((12, 12),)]
    with pytest.raises(Waiting, match="Nothing was charged"):
        calendar.run(horizon=3)
    calendar.append(entries("later", {1: 1}))  # a late row of a month that has retired brings no budget back
    with pytest.raises(Waiting):
        calendar.run(horizon=3)
    calendar.append(months=1)
    session = calendar.run(horizon=3)
    assert ranges_of_run(session) == ((13, 13),) and session.run.info["unit"] == "client_period"
    assert session.spec.public.unit == "client" and session.spec.public.nominal_clients == 100
    assert calendar.population.verify().problems == ()


def test_a_late_row_of_a_month_that_is_not_read_changes_no_sum(tmp_path):
    calendar = Calendar(tmp_path, months=4, window=2)
    method = make_method("toy", {"private": True, "nominal_clients": 100})
    before = first_sums(method, calendar.population, {3, 4})
    after = first_sums(method, calendar.append([*entries("new", {1: 4, 2: 4}), *entries("u1", {2: 8})]), {3, 4})
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    read = first_sums(method, calendar.append(entries("new", {3: 4})), {3, 4})
    assert any(read[name].tobytes() != after[name].tobytes() for name in read)


def test_a_run_is_resumed_with_the_months_that_it_has_reserved(tmp_path):
    calendar = Calendar(tmp_path, months=3, window=2)
    session = calendar.begin(rounds=3, horizon=4)
    session.training.step()
    session.close()
    calendar.append(months=2)
    again = resume(session.run.path, InProcessBackend())
    assert ranges_of_run(again) == ((2, 3),) and again.spec.participants.ranges == ((2, 3),)
    assert to_end(again).run.status in ("trained", "finished")
    kinds = [row["kind"] for row in calendar.ledger.history(calendar.population.id)]
    assert kinds.count("reserve") == 1


def test_which_months_a_run_reads(tmp_path):
    calendar = Calendar(tmp_path, months=5, window=2)
    assert ranges_of_run(calendar.run(horizon=9)) == ((4, 5),)
    assert ranges_of_run(calendar.run(horizon=9, recent_cohorts=4)) == ((4, 5),)
    assert ranges_of_run(calendar.run(horizon=9, recent_cohorts=1)) == ((5, 5),)
    assert ranges_of_run(calendar.run(horizon=9, cohorts="1,3")) == ((1, 1), (3, 3))
    with pytest.raises(ConfigError, match="3 calendar periods .* lets a run read 2"):
        calendar.run(horizon=9, cohorts="1-3")
    assert ranges_of_run(calendar.run()) == ((4, 5),)  # all that they have left
    assert ranges_of_run(calendar.run()) == ((3, 4),)  # the fifth is used up


def test_histograms_by_month(tmp_path):
    calendar = Calendar(tmp_path, months=3, window=2)
    session = calendar.run("histograms", clusters=2, rounds=2, horizon=2)
    assert ranges_of_run(session) == ((2, 3),)
    assert session.spec.public.nominal_clients == 200


def test_months_are_named_by_date(tmp_path):
    """In the statement of a run, in what `budget show` prints and on the page of the population."""
    calendar = Calendar(tmp_path, months=3, window=2, people=True)
    session = calendar.run(horizon=2)
    text = session.statement().text()
    assert "This run used months 2025-02 to 2025-03; others were not used" in text
    assert "The months that have spent most: 2025-02 to 2025-03, mu = " in text
    page, shown = population_page(calendar.path, calendar.folder / "runs"), works("budget", "show", calendar.path).out
    for found in (page, shown):
        assert "months" in found and "2025-02 to 2025-03" in found and "2025-01" in found
    assert "Months so far: 2025-01 to 2025-03." in page


# --- unit and population ----------------------------------------------------------------------------------------------


def test_unit_and_population_go_together(tmp_path):
    for name, unit, period, why in (
        ("a", "client", True, "would promise too much: a client may have many entries"),
        ("b", "record", True, "would promise too much"),
        ("c", "client_period", False, "does not deal clients to calendar periods"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises(ConfigError, match=why):
            Calendar(tmp_path / name, unit=unit, period=period)
    (tmp_path / "d").mkdir()
    with pytest.raises(ConfigError, match="a window is a number of calendar periods"):
        Calendar(tmp_path / "d", unit="client", period=False)


def test_a_budget_that_was_set_past_the_check_is_refused_by_training(tmp_path):
    calendar = Calendar(tmp_path, unit="")
    calendar.ledger.set_budget(calendar.population.id, 4.0, 1e-6)
    with pytest.raises(ConfigError, match="would promise too much"):
        calendar.run()


def test_thresholds_are_refused_before_anything_is_reserved(tmp_path, monkeypatch):
    calendar = Calendar(tmp_path)
    method = make_method("toy", {"private": True})
    planned = type(method).plan

    def with_threshold(self, public):
        first, *rest = planned(self, public)
        return [type(first)(**{**{n: getattr(first, n) for n in first.__slots__}, "delta": 1e-9}), *rest]

    monkeypatch.setattr(type(method), "plan", with_threshold)
    with pytest.raises(PrivacyError, match="'toy' with these settings thresholds .*'mean-1'.* no price per client and"):
        plan_within_budget(method, calendar.population, calendar.ledger.balance(calendar.population.id), 0)


def test_entries_of_one_client_are_clients_to_everything_else(tmp_path):
    calendar = Calendar(tmp_path, months=2)
    calendar.append(entries("u1", {1: 3}))
    ids = ids_of(calendar.population)
    assert {"2025-01/u1", "2025-02/u1"} <= {*ids} and len(ids) == len({*ids}) == 24
    session = calendar.run(private=False)
    assert session.population.n_clients == 24 and "cohorts" not in session.run.info
