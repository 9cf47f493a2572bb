"""The first page of a report: for whoever answers for the data."""

import json
import math
from fractions import Fraction

import pytest

from fedcore.errors import RunError
from fedcore.evaluation.privacy_page import (
    ALSO_NOT_COVERED,
    ASKED,
    FIRST_PAGE,
    FOR_EACH,
    IN_SHORT,
    at_most,
    gains,
    hundredths,
    privacy_page,
    published,
    statement_in,
)
from fedcore.evaluation.report import write_report
from fedcore.evaluation.written import iso_date
from fedcore.privacy import odds
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.gdp import mu_of
from fedcore.privacy.statement import NOT_COVERED, RELATIONS, PrivacyStatement, no_privacy
from fedcore.privacy.statement_texts import CURRENT
from tests.evaluation.test_report import RELEASES, STATEMENT, VOCABULARY, Page, make

BUDGET = make_budget(4.0, 1e-6, 1e-7)
RHO, SPENT = 0.05, 0.2


def of(unit="client", relation="add_or_remove_one", budget=BUDGET, thresholds=0.0, **more) -> dict:
    """A statement of a run that cost RHO, after runs that cost SPENT in all."""
    values = {
        "epsilon": budget.epsilon_of(RHO),
        "delta": budget.delta_conv + thresholds,
        "rho": RHO,
        "mu": mu_of(RHO),
        "releases": RELEASES,
        "mechanism": "exact noise",
        "population": {**budget.to_json(), "rho_spent": SPENT, "epsilon_spent": budget.epsilon_of(SPENT)},
        "run": "run-1",
        "population_id": "p-77",
        "ledger": {"id": "l-1", "seq": 17, "hash": "ab" * 32},
    }
    made = {"private": True, "unit": unit, "relation": relation, **values, **more}
    return PrivacyStatement.from_json(made).in_version(CURRENT).to_json()


def text(tmp_path, statement, names=VOCABULARY, **info) -> str:
    run = make(tmp_path, private=True, statement=statement, **info)
    page = privacy_page(run, names)
    assert FIRST_PAGE.fullmatch(page.strip())
    return Page(page).text


def test_the_page_answers_every_question(tmp_path):
    statement = of(public_schema="words of a public dictionary", vouched=("the start is public because: it is",))
    page = text(tmp_path, statement)
    for words in (
        "Guarantee",
        RELATIONS["client", "add_or_remove_one"],
        "sees everything that was published, now or later",
        "finds presence and absence equally likely, guesses right at most",
        "clusters_001 to clusters_003 (3), redrawn 3 times",
        "One cell per client (docs/privacy/histograms.md)",
        "Read of each client: 6 words or other tokens: the,",
        "What the guarantee means",
        "this run",
        "all runs so far",
        "at most: the budget",
        *NOT_COVERED,
        *ALSO_NOT_COVERED,
        "Columns, vocabulary, bounds and thresholds are public. budget owner words of a public dictionary",
        "There are about 1,000 clients. data owner",
        *IN_SHORT,
        "The start is public because: it is.",
        "p-77",
        "number 17",
        "ab" * 32,
        "fedcore verify-statement",
    ):
        assert words in page, words


def test_the_numbers_are_those_of_the_curve_and_rounded_up():
    row, so_far, budget = gains(of())
    assert row["right"] == hundredths(odds.best_accuracy(mu_of(RHO))) and float(row["mu"]) >= mu_of(RHO)
    assert so_far["right"] == hundredths(odds.best_accuracy(mu_of(SPENT), BUDGET.delta_extra))
    assert budget["right"] == hundredths(odds.best_accuracy(mu_of(BUDGET.rho_max), BUDGET.delta_extra))
    assert float(row["right"]) < float(so_far["right"]) < float(budget["right"]) < 100
    assert float(row["epsilon"]) >= BUDGET.epsilon_of(RHO) and budget["epsilon"] == "4" and budget["factor"] == "54.6"
    assert row["factor"] == at_most(odds.odds_factor(BUDGET.epsilon_of(RHO)), 3)


def test_thresholding_steps_count_in_full():
    shares = [0.0, 1e-3, 0.1]
    right = [float(gains(of(thresholds=share))[0]["right"]) for share in shares]
    exact = [odds.best_accuracy(mu_of(RHO), share) for share in shares]
    assert right == sorted(right) and all(
        math.ceil(1000 * e) <= 10 * r + 1e-9 for e, r in zip(exact, right, strict=True)
    )


@pytest.mark.parametrize(("unit", "relation"), RELATIONS)
def test_every_unit_and_relation_has_words(tmp_path, unit, relation):
    periods = {
        "unit": "month",
        "window": 1,
        "lifetime": [{"periods": 12, "epsilon": 9.0, "delta": 1e-6, "rho": 1.0}] * 2,
    }
    start = "what run 'a' released" if relation == "replace_one" else ""
    statement = of(unit, relation, periods=periods if unit == "client_period" else {}, start=start)
    page = text(tmp_path, statement)
    assert RELATIONS[unit, relation] in page and "two neighbours" not in page
    assert ("not a whole client" in page) == (unit == "record")
    assert ("not a client for all time" in page) == (unit == "client_period")
    before_it_is_verified = page.split("Verify")[0]
    assert FOR_EACH[unit] in before_it_is_verified and ASKED[relation] in before_it_is_verified
    assert ("A client active for 12 months: at most epsilon = 9" in before_it_is_verified) == (unit == "client_period")
    assert ("comes in addition" in before_it_is_verified) == (relation == "replace_one")


def test_a_promise_that_is_next_to_none_is_called_weak(tmp_path):
    weak = {"epsilon": 15.0, "mu": 6.0}
    assert "the guarantee is weak" in text(tmp_path / "a", of(**weak)) and "weak" not in text(tmp_path / "b", of())


def test_nobody_said_why_the_schema_is_public(tmp_path):
    assert "No reason was given. If it is false, there is no guarantee." in text(tmp_path, of())


def test_a_lost_ledger_is_told(tmp_path):
    loss = {"at": 1.7e9, "reason": "the disk died", "seq": 4, "seen": []}
    assert "on 2023-11-14 its owner continued (the disk died)" in text(tmp_path, of(losses=(loss,)))


def test_a_run_over_several_sites_states_who_may_collude(tmp_path):
    sites = {"sites": 3, "collusion": 1, "study": "5" * 64, "rho": 2 * RHO, "mu": 2.0, "epsilon": 7.25}
    found = text(tmp_path / "a", of(sites=sites))
    assert "At most 1 of the 2 other sites collude with an attacker." in found
    assert "If all of them do, epsilon is 7.25." in found
    for name, other in (("b", {}), ("c", {"sites": {**sites, "collusion": 2}})):
        assert "collude with an attacker" not in text(tmp_path / name, of(**other))


def test_releases_of_one_kind_stand_together():
    other = {**RELEASES[0], "name": "counts", "round": 4, "composition": "another sum", "shape": [3], "delta": 1e-9}
    rows = list(published(of(releases=(*RELEASES, other))))
    assert [(row["names"], row["rounds"], row["count"], row["again"]) for row in rows] == [
        ("clusters_001 to clusters_003", "1 to 3", 3, 3),
        ("counts", "4", 1, 0),
    ]
    assert rows[0]["rho"] == "0.48" and rows[0]["noise"] == "2.5" and rows[0]["sensitivity"] == "65\u202f536"
    assert rows[1]["thresholded"] and rows[1]["shape"] == "3" and not rows[0]["thresholded"]
    assert next(published(of(releases=RELEASES[:2])))["names"] == "clusters_001 and clusters_002"


def test_the_statement_is_embedded_as_it_is(tmp_path):
    run = make(tmp_path, private=True, statement={**of(), "public_schema": "<b>&amp;</b> '\""})
    embedded = json.loads(statement_in(privacy_page(run)))
    assert embedded == json.loads((run.path / "statement.json").read_text())
    assert statement_in("<html></html>") is None


@pytest.mark.parametrize("private", [True, False])
def test_the_page_comes_first_then_the_result_then_the_settings(tmp_path, private):
    run = make(tmp_path, private=private, statement=of() if private else no_privacy("it adds no noise").to_json())
    page = write_report(run, VOCABULARY, {}).read_text()
    order = ["<h2>Result</h2>", '<section id="privacy">', "<h2>Result in full</h2>", "<summary>What was run</summary>"]
    assert [page.index(part) for part in order] == sorted(page.index(part) for part in order)
    assert "<dd>2026-01-02T03:04:00Z</dd>" in page


def test_a_run_without_privacy_says_so_in_its_first_line(tmp_path):
    run = make(tmp_path, private=False, statement=no_privacy("it adds no noise").to_json())
    page = Page(write_report(run, None, {}).read_text()).text.split("Run run-1", 1)[1]  # after the document's title
    assert page.split()[:8] == "There is no privacy in this run (privacy:".split()
    assert "This run protects no person" in page and "attacker" not in page
    assert json.loads(statement_in((run.path / "report.html").read_text()))["private"] is False


def test_a_run_on_few_rows_says_so(tmp_path):
    run = make(tmp_path, private=True, statement=of())
    whole = privacy_page(run)
    assert "of the rows" not in Page(whole).text
    run.note(rows_used=[0.9412, 0.0021])
    page = Page(privacy_page(run)).text
    assert "This run has used about 94.1 % of the rows (± 0.2 %, one standard error of the privacy noise)." in page


def test_a_run_whose_statement_is_not_made_yet_has_a_page(tmp_path):
    page = privacy_page(make(tmp_path, private=True, status="running"))
    assert "No statement yet" in page and statement_in(page) is None


ENTRIES = ("population", "releases", "epsilon", "delta", "mu", "losses", "vouched", "ledger")


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("bad", [None, [], {}, 3, math.pi * 1e300])
def test_odd_entries_leave_a_page(tmp_path, entry, bad):
    if type(bad) in (int, float) and entry not in ("epsilon", "delta", "mu"):
        bad = None
    text(tmp_path, {**of(), entry: bad})


@pytest.mark.parametrize("damage", [{"releases": 3}, {"population": "x"}, {"losses": [{"at": 1e308, "reason": "x"}]}])
def test_a_damaged_statement_is_a_named_error(tmp_path, damage):
    with pytest.raises(RunError, match="statement.json of run 'run-1' is damaged"):
        text(tmp_path, {**of(), **damage})


def test_statements_of_the_report_tests_have_a_page(tmp_path):
    assert "(5.25, 1e-10)-differential privacy" in text(tmp_path, STATEMENT)


@pytest.mark.parametrize(
    ("value", "digits", "said"),
    [(2.7181, 3, "2.72"), (1e-6, 3, "1e-06"), (1.0000001, 3, "1.01"), (2981.0, 3, "2\u202f990"), (8.0, 4, "8")]
    + [(3.3e9, 3, "3.3e+09"), (math.inf, 3, "more than can be written"), (0.0, 3, "0")],
)
def test_numbers_are_rounded_up(value, digits, said):
    assert at_most(value, digits) == said


def test_shares_are_rounded_up():
    assert [hundredths(share) for share in (0.5, 0.50001, 0.9999, 1.0)] == ["50", "50.1", "100", "100"]
    assert Fraction(hundredths(0.123)) >= Fraction(0.123) * 100


@pytest.mark.parametrize(
    ("stamp", "date"),
    [("20261122T234623", "2026-11-22T23:46:23Z"), ("20260102-0304", "2026-01-02T03:04:00Z"), ("then", "then"), (3, 3)],
)
def test_dates_are_in_iso_8601(stamp, date):
    assert iso_date(stamp) == date


def test_releases_of_a_round_that_alternate_stand_together_too():
    alternating = [{**RELEASES[0], "name": name, "round": r} for r in (1, 2, 3) for name in (f"sum_{r}", f"count_{r}")]
    rows = list(published(of(releases=tuple(alternating))))
    assert [(row["names"], row["rounds"]) for row in rows] == [
        ("sum_1 to sum_3", "1 to 3"),
        ("count_1 to count_3", "1 to 3"),
    ]


def test_columns_of_rows_are_named(tmp_path):
    columns = [{"name": name, "unit": ""} for name in ("age", "size", "a", "b", "c", "d")]
    assert "Read of each client: 6 words or other tokens: age, size, a" in text(tmp_path, of(), None, columns=columns)
