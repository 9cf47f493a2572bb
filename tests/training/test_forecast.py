"""When a budget ends: how many runs fit, until when, and which cohorts take part. And what the page shows of trends."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import SimpleNamespace

import pytest

from fedcore.evaluation.trend_figures import budget_over_time_figure, trend_figure
from fedcore.operations import forecast
from fedcore.operations.forecast import (
    PACE,
    SCHEDULE,
    STOPS,
    UNKNOWN,
    Payer,
    charges_ahead,
    foreseen,
    in_a_sentence,
    outlook,
    outlooks,
)
from fedcore.operations.population_page import population_page
from fedcore.operations.series import conclude
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.request import Series
from fedcore.training.session import start_run
from tests.command import private_population
from tests.conftest import small_counts, write_counts
from tests.growing import Growing
from tests.operations.test_operations import OPEN, PRIVATE, PUBLIC, train
from tests.sessions import to_end

DAY, NOW = timedelta(days=1), datetime(2026, 3, 10, 12, tzinfo=UTC)
PRICE = Fraction(1, 4)


def payer(name="nightly", price=PRICE, *, days=1, first=1, **more):
    starts = (NOW + first * DAY,) if days else ()
    every = timedelta(days=days) if days else None
    return Payer(name, price, Fraction(0), (price, Fraction(0)), starts=starts, every=every, because=SCHEDULE, **more)


# --- the simulation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left, runs", [(0.0, 0), (0.24, 0), (0.25, 1), (0.99, 3), (1.0, 4)])
def test_as_many_runs_fit_as_are_paid_for(left, runs):
    mine = outlook(left, 0.0, 0.0, [payer()])["nightly"]
    assert mine.runs == runs and mine.refused == NOW + (runs + 1) * DAY
    assert mine.last == (NOW + runs * DAY if runs else None)
    assert outlook(left, 0.0, 0.0, [payer(days=0)])["nightly"].runs == runs, "alone, if nothing is foreseen"


def test_what_is_reserved_for_spares_must_be_left_too():
    one = replace(payer(), reserved=(2 * PRICE, Fraction(0)))
    assert outlook(1.0, 0.0, 0.0, [one])["nightly"].runs == 3
    assert outlook(1.0, 0.0, 0.0, [replace(one, starts=(), every=None)])["nightly"].runs == 3


def test_thresholds_have_a_limit_of_their_own():
    one = replace(payer(), delta=Fraction(1, 100), reserved=(PRICE, Fraction(1, 100)))
    for each in (one, replace(one, starts=(), every=None)):
        assert outlook(1.0, 0.025, 0.0, [each])["nightly"].runs == 2


def test_deployments_draw_on_one_account_in_the_order_of_time():
    """Daily and every third day, 8 shares: on days 1 to 6 six of one and two of the other."""
    found = outlook(2.0, 0.0, 0.0, [payer(), payer("rare", days=3, first=3)])
    assert {name: mine.runs for name, mine in found.items()} == {"nightly": 6, "rare": 2}
    assert found["nightly"].refused == NOW + 7 * DAY and found["rare"].refused == NOW + 9 * DAY
    dear = outlook(1.0, 0.0, 0.0, [payer(), payer("dear", 2 * PRICE, days=2, first=2)])
    assert dear["nightly"].runs == 2 and dear["dear"].runs == 1, "day 1, day 2 both, then nothing is left"


def test_each_deployment_draws_on_the_share_that_it_names(tmp_path):
    """Of a budget of 2, half is divided; what one share has left is of no use to the other."""
    budget = SimpleNamespace(rho_max=2.0, epsilon_of=lambda rho: rho)
    left = (("a", 0.5), ("b", 0.3), (None, -1e-9))
    shares = [SimpleNamespace(name=name, rho_left=rho, delta_left=0.0) for name, rho in left]
    balance = SimpleNamespace(rho_left=2.0, delta_left=0.0, shares=shares, required_budget=lambda: budget)
    payers = [payer("x", share="a"), payer("y", share="b"), payer("z")]
    assert {name: mine.runs for name, mine in outlooks(balance, payers).items()} == {"x": 2, "y": 1, "z": 0}
    assert [rho for _, rho in charges_ahead(balance, payers)] == [0.25] * 3
    assert outlooks(balance, [payer("gone", share="c")])["gone"].runs == 0
    balance.shares = ()
    assert sum(mine.runs for mine in outlooks(balance, [payer("x"), payer("y")]).values()) == 8
    balance.shares = shares
    assert "divided into shares" in forecast.cohort_lines(None, balance, payers, "p")[0]


def test_a_run_that_takes_everything_leaves_nothing():
    found = outlook(1.0, 0.0, 1e-6, [payer(), payer("all", days=5, first=2, whole=True)])
    assert found["nightly"].runs == 2 and found["all"].runs == 1


def test_a_schedule_without_a_price_does_not_go_on_for_ever():
    assert outlook(1.0, 0.0, 0.0, [payer(price=Fraction(0))])["nightly"].refused is None


def test_how_starts_are_foreseen():
    hours = [NOW - timedelta(hours=h) for h in (1, 3, 5, 9)]
    later = [NOW + timedelta(hours=h) for h in (1, 2, 3)]
    starts, every, how = foreseen(hours, later, NOW)
    assert (starts, every, how) == (tuple(later), timedelta(hours=1), SCHEDULE)
    assert foreseen(hours, later[:1], NOW) == ((later[0],), timedelta(hours=2), SCHEDULE)
    starts, every, how = foreseen(hours, [NOW - DAY], NOW)
    assert (starts, every, how) == ((NOW + timedelta(hours=1),), timedelta(hours=2), PACE)
    assert foreseen(hours, [], NOW + DAY) == ((), None, STOPS), "silent for longer than three of its intervals"
    assert foreseen(hours[:1], [], NOW) == foreseen([None, None], [], NOW) == ((), None, UNKNOWN)


def test_no_start_is_foreseen_beyond_the_calendar():
    far = replace(payer(), every=timedelta(days=900_000))
    assert len(list(far.upcoming())) < 20


# --- the page ---------------------------------------------------------------------------------------------------------


def nightly(tmp_path, days=2, epsilon=4.0, **settings):
    population, ledger = private_population(tmp_path / "p", small_counts(100), epsilon=epsilon)
    for day in range(1, days + 1):
        train(population, tmp_path, f"d{day}", settings={**PRIVATE, **settings}, stamp=f"202603{day:02}T030000")
    return population, ledger


@pytest.mark.slow
def test_the_page_says_when_the_budget_ends(tmp_path):
    population, ledger = nightly(tmp_path)
    now = datetime(2026, 3, 2, 4, tzinfo=UTC)
    page = population_page(str(population.path), tmp_path / "runs", now=now, figures=False)
    balance = ledger.balance(population.id)
    price = balance.rho_spent / 2
    left = int(balance.rho_left / price + 1e-9)
    said = f"At the present pace {left} more runs fit, the last of them on 2026-03-{2 + left:02} 03:00 UTC."
    assert left > 2 and said in page and f"that of nightly on 2026-03-{3 + left:02} 03:00 UTC" in page
    soon = [now + timedelta(hours=12 * k) for k in (1, 2, 3)]
    page = population_page(str(population.path), tmp_path / "runs", starts={"nightly": soon}, now=now, figures=False)
    last = now + timedelta(hours=12 * left)
    assert f"At the present schedule {left} more runs fit, the last of them on {last:%Y-%m-%d %H:%M}" in page
    assert "no start is foreseen" in population_page(
        str(population.path), tmp_path / "runs", now=now + 30 * DAY, figures=False
    )


@pytest.mark.slow
def test_the_forecast_is_right(tmp_path):
    """As many runs as it foresees are made, and the next one is refused."""
    from fedcore.errors import BudgetExceeded

    population, ledger = nightly(tmp_path, epsilon=2.0)
    page = population_page(
        str(population.path), tmp_path / "runs", now=datetime(2026, 3, 2, 4, tzinfo=UTC), figures=False
    )
    left = int(page.split("At the present pace ")[1].split()[0])
    for day in range(3, 3 + left):
        train(population, tmp_path, f"d{day}", settings=PRIVATE, stamp=f"202603{day:02}T030000")
    with pytest.raises(BudgetExceeded):
        train(population, tmp_path, "more", settings=PRIVATE)
    page = population_page(
        str(population.path), tmp_path / "runs", now=datetime(2026, 3, 2 + left, 4, tzinfo=UTC), figures=False
    )
    assert "No run like the last one fits any more" in page


@pytest.mark.slow
def test_runs_that_are_not_private_or_by_hand_draw_nothing(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts(100), epsilon=4.0)
    train(population, tmp_path, "open", settings=OPEN)
    train(population, tmp_path, "hand", settings=PRIVATE, deployment=None)
    page = population_page(str(population.path), tmp_path / "runs", figures=False)
    assert "## Forecast" not in page and "| histograms, by hand |" in page and "| nightly |" in page


@pytest.mark.usefixtures("toy")
def test_the_page_says_which_cohorts_are_active(tmp_path):
    growing = Growing(tmp_path)
    for week in range(3):
        request = growing.request(f"w{week}", horizon=4).model_copy(update={"deployment": "weekly"})
        to_end(start_run(request, InProcessBackend(), stamp=f"202601{1 + 7 * week:02}T000000"))
        growing.append(f"n{week}")
    now = datetime(2026, 1, 16, tzinfo=UTC)
    page = population_page(str(growing.path), tmp_path / "runs", now=now, figures=False)
    assert "weekly: its next run is charged to cohorts 1-4 " in page and "which are all." in page
    assert "cohort 1 takes part for the last time on 2026-01-22 00:00 UTC" in page
    assert "the last run is that of 2026-02-12 00:00 UTC" in page, "cohort 4 pays for four"
    to_end(start_run(growing.request("w3", horizon=4), InProcessBackend(), stamp="20260122T000000"))
    page = population_page(str(growing.path), tmp_path / "runs", now=now + 7 * DAY, figures=False)
    assert "is charged to cohorts 2-4 " in page and "; not to 1." in page


@pytest.mark.slow
def test_scores_and_seconds_are_drawn_by_deployment(tmp_path):
    population = write_counts(tmp_path / "p", small_counts(40))
    public = write_counts(tmp_path / "public", small_counts(40, seed=2), heldout=small_counts(40, seed=3), **PUBLIC)
    runs = []
    for name, stamp in (("a", "20260301T030000"), ("b", "20260302T030000")):
        if runs:
            page = population_page(str(population.path), tmp_path / "runs")
            assert "## Trends" not in page, "one run is no trend"
        runs.append(train(population, tmp_path, name, settings={**OPEN, "rounds": 1 + len(runs)}, stamp=stamp))
        conclude(runs[-1], "nightly", Series(evaluate_on=str(public.path)), public, name)
    page = population_page(str(population.path), tmp_path / "runs")
    assert page.count("data:image/png;base64,") == 2 and "![Score on public, version 1" in page
    row = next(line for line in page.splitlines() if line.startswith("| nightly |") and "histograms | 2 |" in line)
    assert "| 2026-03-02 03:00 |" in row and "kl " in row and ("(-" in row or "(+" in row)
    assert "data:image" not in population_page(str(population.path), tmp_path / "runs", figures=False)


def test_figures_of_trends_are_drawn_of_anything():
    points = [(NOW, 1.0, 0.1), (NOW + DAY, 100.0, None)]
    for lines in ({"a": points}, {"a": points, "$x_|": [(NOW, 2.0, None)]}, {"a": [(NOW, -1.0, None)]}):
        assert trend_figure(lines, "title", "axis").startswith(b"\x89PNG")
    for spent, ahead in (([], []), ([(NOW, 0.1)], []), ([(NOW - DAY, 0.1)], [(NOW + DAY, 0.2)])):
        assert budget_over_time_figure(spent, ahead, 0.05, 1.0, NOW).startswith(b"\x89PNG")


def test_a_sentence_for_each_case(tmp_path):
    _, ledger = private_population(tmp_path / "p", small_counts(40), epsilon=1.0)
    balance = replace(ledger.balance(ledger_population(tmp_path)), rho_left=1.0)
    assert in_a_sentence(balance, []) == ""
    assert "alone: 4 of nightly" in in_a_sentence(balance, [payer(days=0)])
    assert "for as long as is foreseen" in in_a_sentence(balance, [payer(price=Fraction(0))])
    assert "1 more run fits" in in_a_sentence(balance, [payer(price=Fraction(1))])
    assert "fits any more" in in_a_sentence(balance, [payer(price=Fraction(2))])
    assert forecast.forecast_rows(balance, [payer(whole=True)])[0]["a run costs epsilon"] == "all that is left"


def ledger_population(tmp_path) -> str:
    from fedcore.population.store import Population

    return Population.open(tmp_path / "p").id
