"""Runs of a series: what is known before a run and what it finds are averaged; a series that is lost begins anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcore.errors import ConfigError, NothingLeft
from fedcore.methods.mixture_models.whole_rows import LIMIT
from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig, em, series
from fedcore.methods.private_mixture.plan import plan
from fedcore.methods.private_mixture.state import MIXTURE, NORMAL
from fedcore.runs.store import load_run
from tests.private_gmm.test_run import begin, population
from tests.private_mixture.worlds import facts, mixture, records, run
from tests.sessions import to_end

K, D = 3, 5
CONFIG = PrivateMixtureConfig(components=K)


@pytest.fixture(scope="module")
def world():
    generator = np.random.default_rng(2)
    truth = mixture(D, K, 4.0, generator)
    return truth, truth.sample(4000, generator)[0], truth.sample(3000, generator)[0]


@pytest.fixture(scope="module")
def first(world):
    return run(records(world[1]), CONFIG, 0.5, 1)


def loss(world, method, state) -> float:
    truth, _, test = world
    return float((np.logaddexp.reduce(truth.log_joint(test), axis=1) - method.model(state).log_likelihood(test)).mean())


def test_each_run_of_a_series_is_nearer_to_the_truth(world, first):
    method, state = first
    losses = [loss(world, method, state)]
    for seed in range(2, 6):
        method, state = run(records(world[1]), CONFIG, 0.5, seed, start=method.warm_start_of(state))
        assert state.warm and state.outcome == MIXTURE
        losses.append(loss(world, method, state))
    assert losses[1] < 0.5 * losses[0] and losses[-1] < 0.7 * losses[1], losses


def test_a_run_that_goes_on_has_rounds_of_em_alone_and_spends_the_budget(first):
    method, state = first
    public = replace(facts(D, 4000, 0.5), warm_start=method.warm_start_of(state))
    releases = plan(CONFIG, public)
    assert {release.name.split("_")[0] for release in releases} == {"em", "guard", "valleys"}
    assert len({release.round for release in releases}) == CONFIG.rounds + 2
    assert 0.999999 * public.rho < sum(release.rho for release in releases) <= public.rho
    assert len(plan(CONFIG, replace(public, warm_start=method.likely_warm_start(public)))) == len(releases)
    assert method.worth(public).word == "good" and "3 components" in method.worth(public).expect


def test_movements_are_averaged_by_inverse_variance_unless_they_are_more_than_noise():
    """Four estimates of one mean with known noise: as far from the truth as the variance that is said."""
    generator, noise, ends, left = np.random.default_rng(0), np.array([0.04]), [], 0.0
    for _ in range(2000):
        at, known = generator.normal(size=D) * 0.2, noise
        for _ in range(3):
            delta = generator.normal(size=D) * 0.2 - at
            found = em.believed((delta**2).sum()[None], noise, known, D)
            at, known = at + found.share[0] * delta, found.known
        ends.append(at)
        left = float(known[0])
    assert left == pytest.approx(0.01, rel=0.01) and np.var(ends) == pytest.approx(0.01, rel=0.1)
    far = em.believed(np.array([100.0]), noise, noise, D)
    assert far.share[0] > 0.99 and far.known[0] == noise[0]
    assert em.believed(np.array([0.1]), noise, None, D).share[0] == 0


def test_a_series_that_is_lost_begins_anew(world, first):
    """Its clients are others now, all of one kind and elsewhere."""
    method, state = first
    elsewhere = world[1].mean(axis=0) + 60.0 + np.random.default_rng(0).normal(size=(4000, D)) * [9, 1, 1, 1, 1]
    method, state = run(records(elsewhere), CONFIG, 0.5, 2, start=method.warm_start_of(state))
    left = method.warm_start_of(state)
    assert state.warm and left["pooled_lost"][0] == 1
    again = replace(facts(D, 4000, 0.5), warm_start=left)
    assert not method.init(again).warm and "columns" in {release.name for release in plan(CONFIG, again)}


def test_a_first_run_without_components_leaves_nothing():
    method, state = run(records(np.random.default_rng(0).normal(size=(2000, 3))), CONFIG, 1.0)
    assert state.outcome == NORMAL
    with pytest.raises(ConfigError, match="has not found components"):
        method.warm_start_of(state)


def broken(arrays):
    yield "does not hold what", {name: arrays[name] for name in series.SERIES_NAMES[:-1]}
    yield "does not hold what", {}
    yield "not of finite numbers", arrays | {"pooled_means": np.full((K, D), np.nan)}
    yield "not of at most", arrays | {"pooled_means": np.zeros((K, D + 1))}
    yield "not of at most", arrays | {"pooled_means": np.array(3.0)}
    yield "no run leaves", arrays | {"pooled_known": -arrays["pooled_known"]}
    yield "no run leaves", arrays | {"pooled_known": np.full_like(arrays["pooled_known"], 1e308)}
    yield "no run leaves", arrays | {"pooled_map_matrix": arrays["pooled_map_matrix"] * 2.0**20}
    yield "no run leaves", arrays | {"pooled_map_matrix": arrays["pooled_map_matrix"] + 0.5}
    yield "no run leaves", arrays | {"pooled_map_centre": np.full(D, 2 * LIMIT)}
    yield "no run leaves", arrays | {"pooled_scale": np.zeros(D)}
    yield "no run leaves", arrays | {"pooled_covariances": -arrays["pooled_covariances"]}


def test_a_start_is_what_a_run_leaves_or_refused(first):
    method, state = first
    arrays = method.warm_start_of(state)
    assert method.checked_warm_start(arrays, "it", D).keys() == set(series.SERIES_NAMES)
    for message, wrong in broken(arrays):
        with pytest.raises(ConfigError, match=message):
            method.checked_warm_start(wrong, "it", D)
    with pytest.raises(ConfigError, match="not of at most"):
        PrivateMixture(PrivateMixtureConfig(components=2)).checked_warm_start(arrays, "it", D)


@pytest.mark.slow
def test_runs_go_on_under_one_budget(tmp_path):
    """Through session, ledger and run store; not with what a run on another population has left."""
    made, ledger = population(tmp_path / "p")
    settings = {"components": 2, "epsilon": 3.0}
    one = to_end(begin(made, tmp_path, "private_mixture", settings, run_id="one"))
    two = to_end(begin(made, tmp_path, "private_mixture", settings, run_id="two", start_from=str(one.path)))
    state, balance = load_run(two.path).state, ledger.balance(made.id)
    assert state["warm"] and state["outcome"] == MIXTURE and two.status == "finished"
    assert balance.rho_reserved == 0 and 0 < balance.rho_spent < balance.budget.rho_max
    other, _ = population(tmp_path / "q")
    with pytest.raises((ConfigError, NothingLeft), match="does not hold what"):
        begin(other, tmp_path, "private_mixture", settings, run_id="three", start_from=str(one.path))
