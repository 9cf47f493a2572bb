"""A run that starts from a profile: it leaves out what the profile has released."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcore.errors import ConfigError, NothingLeft
from fedcore.methods.mixture_models.profiled import CENTRE, REACH
from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig
from fedcore.methods.private_mixture.feasibility import words_of
from fedcore.methods.private_mixture.plan import plan
from fedcore.runs.store import load_run
from tests.private_gmm.test_run import begin, population, rows
from tests.private_mixture.from_profile import bounds_of, profile_start
from tests.private_mixture.worlds import adjusted_rand, facts, mixture, records, run
from tests.sessions import to_end

D, K, N = 4, 2, 4000
CONFIG = PrivateMixtureConfig(components=K)
GIVEN = {CENTRE: np.array([0.0, 1.0, -2.0, 5.0]), REACH: np.array([1.0, 2.0, 3.0, 4.0])}


@pytest.fixture(scope="module")
def world():
    generator = np.random.default_rng(3)
    truth = mixture(D, K, 6.0, generator)
    x, labels = truth.sample(N, generator)
    return 100.0 + 7.0 * x, labels


def test_centres_and_spans_are_left_out_and_the_budget_is_spent():
    alone = facts(D, N, 1.0)
    started = replace(alone, warm_start=GIVEN)
    before, after = plan(CONFIG, alone), plan(CONFIG, started)
    left_out = [name for release in before if (name := release.name).startswith(("centres", "spans"))]
    assert len(left_out) == 6
    assert [release.name for release in after] == [r.name for r in before if r.name not in left_out]
    assert 0.999999 * alone.rho < sum(release.rho for release in after) <= alone.rho
    price = {release.name: release.rho for release in before}
    for release in after:
        expected = pytest.approx(price[release.name], rel=1e-6) if release.name in ("count", "columns") else None
        assert release.rho == expected or release.rho > 1.04 * price[release.name]


def test_a_run_begins_where_the_profile_says(world):
    x, labels = world
    start = profile_start(x, bounds_of(x), facts(D, N, 0.3).rho, 1)
    seen = []
    method, state = run(records(x), CONFIG, 1.0, 1, start=start, watch=lambda message, after: seen.append(after))
    spread = x.std(axis=0)
    assert state.profiled and seen[0].told.all()
    assert (np.abs(seen[0].centre - np.median(x, axis=0)) < 0.2 * spread).all()
    assert (seen[0].scale == start[REACH] / 2).all() and (np.abs(seen[0].scale / spread - 1.0) < 0.4).all()
    assert adjusted_rand(labels, method.model(state).labels(x)) > 0.9
    assert words_of(CONFIG, state)[0] == method.worth(replace(facts(D, N, 1.0), warm_start=start)).word == "good"


def test_many_zeros_are_still_found(world):
    x = world[0].copy()
    x[: 3 * N // 4, 1] = 0.0
    start = profile_start(x, bounds_of(x), facts(D, N, 1.0).rho, 1)
    method, state = run(records(x), CONFIG, 4.0, 1, start=start)
    assert (state.atoms > 0).tolist() == [False, True, False, False]
    assert np.isfinite(method.model(state).log_likelihood(x)).all()


def test_columns_of_categories_need_no_range():
    config = PrivateMixtureConfig(components=K, categories=((1, 2),))
    given = {CENTRE: np.array([5.0, 0.0, 0.0, 7.0]), REACH: np.array([1.0, 0.0, 0.0, 2.0])}
    method = PrivateMixture(config)
    assert method.checked_warm_start(given, "it", 4).keys() == given.keys()
    state = method.init(replace(facts(4, N, 1.0), warm_start=given))
    assert state.centre.tolist() == [5.0, 7.0] and state.scale.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("knows no range of column 2", {REACH: np.array([1.0, 1.0, 0.0, 1.0])}),
        ("what no profile leaves", {REACH: np.array([1.0, -1.0, 1.0, 1.0])}),
        ("what no profile leaves", {CENTRE: np.array([np.nan, 0.0, 0.0, 0.0])}),
        ("what no profile leaves", {CENTRE: np.array([np.inf, 0.0, 0.0, 0.0])}),
        ("what no profile leaves", {REACH: np.full(4, 1e308)}),
        ("does not hold what a profile", {REACH: np.ones(3)}),
        ("does not hold what a profile", {"weights": np.ones(3)}),
        ("does not hold what a profile", {CENTRE: np.array(["a", "b", "c", "d"])}),
    ],
)
def test_a_start_is_what_a_profile_leaves_or_refused(message, changed):
    with pytest.raises(ConfigError, match=message):
        PrivateMixture(CONFIG).checked_warm_start(GIVEN | changed, "it", D)


def test_a_profile_without_bounds_leaves_nothing(world):
    with pytest.raises(ConfigError, match="knows no range of a column"):
        profile_start(world[0], None, facts(D, N, 1.0).rho, 1)


def test_bounds_are_needed_of_every_column(world):
    some = (None, *bounds_of(world[0])[1:])
    start = profile_start(world[0], some, facts(D, N, 1.0).rho, 1)
    assert start[REACH][0] == 0 and (start[REACH][1:] > 0).all()
    with pytest.raises(ConfigError, match="knows no range of column 0"):
        PrivateMixture(CONFIG).checked_warm_start(start, "it", D)


@pytest.mark.slow
def test_both_runs_are_charged_to_one_budget(tmp_path):
    """Through session, ledger and run store."""
    made, ledger = population(tmp_path / "p")
    settings = {"components": 2, "epsilon": 3.0}
    bounds = {"bounds": [[low, high] for low, high in bounds_of(rows()[1])]}
    first = to_end(begin(made, tmp_path, "profile", bounds | {"epsilon": 1.0}, run_id="first"))
    paid = ledger.balance(made.id).rho_spent
    second = to_end(begin(made, tmp_path, "private_mixture", settings, run_id="second", start_from=str(first.path)))
    state, balance = load_run(second.path).state, ledger.balance(made.id)
    assert state["profiled"] and not state["warm"] and second.status == "finished"
    planned = sum(item["rho"] for item in ledger.recorded("second", "reserve")["plan"])
    assert balance.rho_spent == pytest.approx(paid + planned, rel=1e-6) and balance.rho_reserved == 0
    none = to_end(begin(made, tmp_path, "profile", {"epsilon": 0.5}, run_id="none"))
    with pytest.raises(NothingLeft, match="knows no range of a column"):
        begin(made, tmp_path, "private_mixture", settings, run_id="third", start_from=str(none.path))
