"""A statement computed again from its own numbers, and compared with another one."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedcore.errors import ConfigError
from fedcore.privacy.statement import PrivacyStatement, no_privacy, private_statement
from fedcore.privacy.statement_check import differences, own_contradictions, read_statement
from tests.privacy.conftest import release


def made(books) -> PrivacyStatement:
    """Of a run with a lost draw and a thresholding step."""
    plan = [release(1, 15.0, delta=1e-12), release(2, 20.0)]
    run = books.reserve(plan, spares=1)
    lease = books.ledger.acquire(run)
    books.ledger.charge(lease, plan[0])
    for planned in plan:
        books.ledger.publish(lease, books.ledger.charge(lease, planned), np.zeros(3, np.int64))
    books.ledger.finish(lease, "finished")
    return private_statement(books.ledger, books.population, run)


def again(statement) -> tuple[PrivacyStatement, dict]:
    return read_statement(json.dumps(statement.to_json()))


@pytest.fixture
def statement(books):
    return made(books)


def test_a_statement_is_read_as_it_was_written_and_agrees_with_itself(statement):
    said, value = again(statement)
    assert said.to_json() == value == statement.to_json()
    assert own_contradictions(said, value) == [] and differences(said, statement) == {}
    nothing = no_privacy("it adds no noise")
    assert own_contradictions(*again(nothing)) == [] and differences(again(nothing)[0], nothing) == {}


@pytest.mark.parametrize(
    "edit", [lambda budget: budget.pop("currency"), lambda budget: budget.update(currency="zcdp", discrete=0.01)]
)
def test_a_statement_of_an_account_in_zcdp_is_refused_by_name(statement, edit):
    value = statement.to_json()
    edit(value["population"])
    with pytest.raises(ConfigError, match=r"about an account in zero-concentrated .*6fae4f3"):
        read_statement(json.dumps(value))


def changed(value, path, new):
    value = json.loads(json.dumps(value))
    *outer, last = path
    where = value
    for key in outer:
        where = where[key]
    where[last] = new if not callable(new) else new(where[last])
    return value


def smaller(number):
    return number * (1 - 1e-12)


CHANGES = [
    (("epsilon",), smaller),
    (("delta",), smaller),
    (("rho",), smaller),
    (("mu",), smaller),
    (("mu",), None),
    (("releases", 0, "rho"), smaller),
    (("releases", 0, "attempts"), 1),
    (("releases", 0, "attempts"), 0),
    (("releases", 0, "delta"), 0.0),
    (("releases", 1, "noise_multiplier"), 25.0),
    (("population", "epsilon"), 1.0),
    (("population", "delta"), 1e-11),
    (("population", "rho_max"), lambda rho: 1.01 * rho),
    (("population", "rho_spent"), smaller),
    (("population", "epsilon_spent"), smaller),
    (("text",), lambda text: text.replace("add_or_remove_one", "replace_one")),
    (("privacy",), "none"),
]


@pytest.mark.parametrize(("path", "new"), CHANGES, ids=[".".join(map(str, path)) for path, _ in CHANGES])
def test_every_change_of_a_number_is_a_contradiction(statement, path, new):
    value = changed(statement.to_json(), path, new)
    said, value = read_statement(json.dumps(value))
    assert own_contradictions(said, value)
    if path[0] not in ("text", "privacy"):
        assert path[0] in differences(said, statement)


def started(books) -> PrivacyStatement:
    """Of a run that started from what another one of the same account released."""
    runs = []
    for multiplier in (30.0, 40.0):
        plan = [release(1, multiplier)]
        run = books.reserve(plan)
        lease = books.ledger.acquire(run)
        books.ledger.publish(lease, books.ledger.charge(lease, plan[0]), np.zeros(3, np.int64))
        books.ledger.finish(lease, "finished")
        runs.append(run)
    first, run = runs
    return private_statement(books.ledger, books.population, run, start="what the first released", started_from=first)


def test_a_run_and_the_one_that_it_started_from_add_up(books):
    statement = started(books)
    both, rho = statement.together, 0.5 / 30**2 + 0.5 / 40**2
    assert both.rho == pytest.approx(rho, rel=1e-12) and both.rho >= statement.population.rho_spent > 0
    assert both.mu == pytest.approx((2 * rho) ** 0.5) and both.epsilon > statement.epsilon
    assert f"add up to mu = {both.mu:.6g}" in statement.text() and "same account" in statement.text()
    said, value = again(statement)
    assert own_contradictions(said, value) == [] and differences(said, statement) == {}
    for name in ("rho", "mu", "epsilon"):
        said, value = read_statement(json.dumps(changed(statement.to_json(), ("together", name), lambda x: 0.9 * x)))
        assert own_contradictions(said, value) and "together" in differences(said, statement)
    less, value = read_statement(json.dumps(changed(statement.to_json(), ("together", "rho"), 0.1 * statement.rho)))
    assert any("less than this run alone" in line for line in own_contradictions(less, value))
    less, value = read_statement(json.dumps(changed(statement.to_json(), ("together", "delta"), 0.1 * statement.delta)))
    less, value = again(less)
    assert any("Delta of both runs" in line for line in own_contradictions(less, value))
    assert "together" in differences(replace(statement, together=None), statement)
    assert not private_statement(books.ledger, books.population, statement.run, started_from="nobody").together


WORDS = [("unit", "record"), ("relation", "replace_one"), ("mechanism", "none"), ("start", "nothing"), ("ended", False)]
WORDS += [("not_covered", []), ("trust_model", "nobody"), ("public_schema", "it is"), ("vouched", ["x"]), ("run", "x")]


@pytest.mark.parametrize(("name", "new"), WORDS)
def test_every_change_of_a_word_is_a_difference(statement, name, new):
    """Also where somebody wrote the text anew."""
    said, value = read_statement(json.dumps(changed(statement.to_json(), (name,), new)))
    said, value = again(said)
    assert own_contradictions(said, value) == [], "it agrees with itself"
    assert list(differences(said, statement)) == [name]


def test_what_is_left_out_is_a_difference(statement):
    fewer = replace(statement, releases=statement.releases[:1])
    assert "charged it, and the statement leaves it out" in differences(fewer, statement)["releases"]
    assert "has no charge for it" in differences(statement, fewer)["releases"]


def test_a_promise_and_none_differ(statement):
    told = differences(statement, no_privacy("the ledger knows nothing of this run"))
    assert list(told) == [""] and "knows nothing" in told[""]


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"{}", b'{"private": 1}', b"\xff", b'{"private": true, "unknown": 1}', b'{"private": NaN}']
)
def test_what_is_no_statement_is_refused(content):
    with pytest.raises(ConfigError):
        read_statement(content)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["releases", "population", "unit", "not_covered", "epsilon", "periods", "losses"])
@pytest.mark.parametrize("bad", [None, "x", 3, [3], {"a": 1}])
def test_garbage_in_a_statement_is_noticed_and_no_crash(statement, entry, bad):
    try:
        said, value = read_statement(json.dumps({**statement.to_json(), entry: bad}))
    except ConfigError:
        return
    assert own_contradictions(said, value) or bad is None
    assert entry in differences(said, statement)
