"""Privacy statements: what a run may claim, in words and numbers."""

import json
from fractions import Fraction

import numpy as np
import pytest

from fedcore.privacy.ledger.ledger import create_ledger
from fedcore.privacy.statement import no_privacy, private_statement
from tests.privacy.conftest import open_books, release, total

FIRST, SECOND, THIRD = release(1, 15.0, delta=1e-12), release(2, 20.0), release(3, 20.0)


def interrupted(books):
    """A run that lost its first attempt at round 1 and published rounds 1 and 2; and a charge of another run."""
    run = books.reserve([FIRST, SECOND, THIRD], spares=1)
    lease = books.ledger.acquire(run)
    books.ledger.charge(lease, FIRST)
    for planned in (FIRST, SECOND):
        books.ledger.publish(lease, books.ledger.charge(lease, planned), np.zeros(3, np.int64))
    other = books.ledger.acquire(books.reserve([release(1, 30.0)]))
    books.ledger.charge(other, release(1, 30.0))
    return run, lease


def test_a_run_claims_what_its_own_charges_cost_forfeited_ones_included(books):
    run, lease = interrupted(books)
    books.ledger.finish(lease, "abandoned")
    statement = private_statement(books.ledger, books.population, run)
    budget = books.ledger.balance(books.population).budget
    assert statement.private and statement.ended
    assert statement.rho == total(FIRST, FIRST, SECOND)
    assert statement.epsilon == budget.epsilon_of(statement.rho)
    assert statement.delta == pytest.approx(budget.delta_conv + 2e-12, rel=1e-12)
    assert [(entry.planned.name, entry.attempts) for entry in statement.releases] == [("sums-1", 2), ("sums-2", 1)]
    assert statement.releases[0].rho == total(FIRST, FIRST)
    assert statement.population.epsilon == 2
    assert statement.population.rho_spent == total(FIRST, FIRST, SECOND, release(1, 30.0))


def test_the_text_names_everything(books):
    run, lease = interrupted(books)
    statement = private_statement(books.ledger, books.population, run)
    text = statement.text()
    for words in (
        *(f"({statement.epsilon:.4g}, {statement.delta:.3g})-differential privacy per client", "so far"),
        *("presence or absence of one client", "Gaussian, rounded to whole grid steps"),
        *("of Gaussian differential privacy (rho = mu^2 / 2 =", "its thresholding steps included"),
        *("which implies epsilon = 2, delta = 1e-10 over all runs", "Central curator", "Not covered"),
        *("Numbers of clients, rows", "Personalised outputs", "Side channels", "another population id"),
        *("noise multiplier 15", "sensitivity 64", "drawn 2 times", "one cell", "docs/privacy/"),
    ):
        assert words in text, words
    books.ledger.finish(lease, "abandoned")
    ended = private_statement(books.ledger, books.population, run).text()
    assert "run so far: mu" in text and "run so far" not in ended and "Privacy cost of this run:" in ended


def test_the_mu_that_is_shown_is_never_too_small(books):
    planned = release(1, 22.0)
    run = books.reserve([planned])
    books.ledger.charge(books.ledger.acquire(run), planned)
    statement = private_statement(books.ledger, books.population, run)
    assert Fraction(statement.mu) ** 2 / 2 >= Fraction(statement.rho) > Fraction((2 * statement.rho) ** 0.5) ** 2 / 2
    assert statement.mu == pytest.approx(1 / 22)


def test_the_headline_says_on_whose_word_the_schema_is_public(url):
    books = open_books(url, epsilon=None)
    books.ledger.set_budget(
        books.population, 2, 1e-10, delta_extra=1e-11, public_schema="words of a public dictionary."
    )
    run = books.reserve([FIRST])
    statement = private_statement(books.ledger, books.population, run, vouched=["'start.npz' is public (made up)"])
    headline, *rest = statement.text().splitlines()
    assert headline.endswith(
        ", assuming that columns, bounds, vocabulary and thresholds are public (declared by the budget owner, not "
        "verified: \"words of a public dictionary\"); and that 'start.npz' is public (made up) (declared, not verified)"
    )
    assert (
        "Public: columns, bounds, vocabulary and thresholds are taken as public. The budget owner declared"
        in "\n".join(rest)
    )
    nobody = open_books(url)
    text = private_statement(nobody.ledger, nobody.population, nobody.reserve([FIRST])).text()
    assert "no reason was declared why columns, bounds, vocabulary and thresholds are public" in text.splitlines()[0]
    assert "If they were made from the data of these people" in text


def test_a_statement_names_its_run_and_the_newest_record_and_can_be_made_again_as_of_it(books):
    run, lease = interrupted(books)
    statement = private_statement(books.ledger, books.population, run)
    head = books.ledger.head(books.population)
    assert (statement.run, statement.population_id) == (run, books.population)
    assert statement.ledger == head and statement.to_json()["ledger"]["id"] == head.ledger_id
    assert f"run {run} of population {books.population}" in statement.text() and head.hash in statement.text()
    books.ledger.finish(lease, "finished")
    later = books.reserve([release(1, 40.0)])
    books.ledger.charge(books.ledger.acquire(later), release(1, 40.0))
    assert private_statement(books.ledger, books.population, run) != statement
    assert private_statement(books.ledger, books.population, run, through=head.seq) == statement
    assert not private_statement(books.ledger, books.population, later, through=head.seq).private


def test_a_statement_is_plain_json(books):
    run, _ = interrupted(books)
    for statement in (private_statement(books.ledger, books.population, run), no_privacy("it adds no noise")):
        value = statement.to_json()
        assert json.loads(json.dumps(value, allow_nan=False)) == value
        assert value["text"] == statement.text()


def test_before_the_first_charge_nothing_is_spent(books):
    statement = private_statement(books.ledger, books.population, books.reserve([FIRST]))
    assert (statement.rho, statement.epsilon, statement.releases) == (0, 0, ())
    assert "none yet" in statement.text() and not statement.ended


def test_no_privacy_says_so_and_why():
    statement = no_privacy("it adds no noise")
    assert statement.to_json()["privacy"] == "none" and not statement.private
    assert statement.epsilon is None and statement.rho is None
    assert statement.text().startswith("privacy: none") and "it adds no noise" in statement.text()


@pytest.mark.parametrize("secure", [True, False])
def test_test_noise_and_test_ledgers_promise_nothing(tmp_path, secure):
    ledger = create_ledger(f"sqlite:///{tmp_path / 'tests.sqlite'}", test=True)
    ledger.register("p")
    ledger.set_budget("p", 2, 1e-10, delta_extra=1e-11)
    ledger.reserve("p", "run", [FIRST], 0, secure=secure)
    statement = private_statement(ledger, "p", "run")
    assert not statement.private and statement.epsilon is None
    assert ("test ledger" if secure else "test noise") in statement.reason


def test_a_run_that_the_ledger_does_not_know_promises_nothing(books):
    statement = private_statement(books.ledger, books.population, "unknown")
    assert not statement.private and "knows nothing" in statement.reason


def test_a_statement_under_another_relation_says_which(url):
    ledger = create_ledger(url)
    population = "replace" + url[-8:]
    ledger.register(population)
    if ledger.balance(population).budget is None:
        ledger.set_budget(population, 2, 1e-10, unit="record", relation="replace_one")
    run = f"run-{ledger.head(population).seq}-{population}"
    ledger.reserve(population, run, [release(1, 40.0)], 0, unit="record", relation="replace_one", secure=True)
    text = private_statement(ledger, population, run).text()
    assert "per record" in text and "one record, against any other in its place" in text
