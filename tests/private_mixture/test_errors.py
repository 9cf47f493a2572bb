"""Standard errors of what a run shows, by noise alone: against whole runs with other noise on the same rows."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from fedcore.methods.private_mixture import PrivateMixtureConfig, errors, renoised
from fedcore.methods.private_mixture.errors import errors_of, wider
from fedcore.methods.private_mixture.result import model_of
from fedcore.methods.private_mixture.state import NORMAL
from fedcore.rounds.results import Features
from tests.private_mixture.coverage import FAMILIES, coverage
from tests.private_mixture.mixed import mixed
from tests.private_mixture.worlds import mixture, records, run

CONFIG = PrivateMixtureConfig(components=2)


@pytest.fixture(scope="module")
def parted():
    generator = np.random.default_rng(1)
    x, _ = mixture(4, 2, 6.0, generator).sample(3000, generator)
    return records(x), *run(records(x), CONFIG, 1.0)


def tables_of(method, state, features=4):
    return {table.name: table for table in method.result(state, Features(features)).tables}


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_intervals_hold_in_many_fits(name):
    """Of the intervals of 200 fits. Those of `python -m tests.private_mixture.gates errors`."""
    found = coverage(name, range(200))
    assert found.runs >= 170  # others end with another number of components
    assert 0.93 <= found.all_inside <= 0.97


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("name", ["categories", "series"])
def test_intervals_hold_about_as_often_as_they_should(name):
    """Eight fits, with all their numbers together. Numbers of one fit share noise, so the bounds are wide."""
    found = coverage(name, range(8))
    assert found.runs == 8
    assert found.all_inside >= 0.85
    assert set(found.inside) >= {"shares", "means", "deviations"} and ("answers" in found.inside) == (
        name == "categories"
    )
    assert all(0.4 < ratio < 1.8 for ratio in found.ratio.values())  # so they are not merely wide


@pytest.mark.slow
def test_categories_have_errors_and_do_not_take_those_of_numbers_away():
    generator = np.random.default_rng(2)
    truth = mixed(2, 2, 8.0, (3, 2), generator)
    x, _ = truth.sample(4000, generator)
    config = PrivateMixtureConfig(components=2, categories=truth.categories)
    method, state = run(records(x), config, 2.0)
    tables = tables_of(method, state, x.shape[1])
    assert tables["components"].note == ""
    for name, columns in (("components", ["share"]), ("means", ["A", "B"])):
        found = {column.name: column for column in tables[name].columns}
        assert all(error is not None and error > 0 for column in columns for error in found[column].errors)
    for column in tables["categories"].columns[2:]:
        assert all(0 < error < 0.2 for error in column.errors)
    assert tables["categories"].note == "Of those who have answered."


def test_one_normal_distribution_has_errors_of_its_mean_and_deviations():
    x = np.random.default_rng(3).normal(size=(3000, 3)) * [1.0, 10.0, 0.1] + [0.0, 50.0, -3.0]
    config = PrivateMixtureConfig(components=3)
    method, state = run(records(x), config, 1.0)
    assert state.outcome == NORMAL
    tables = tables_of(method, state, 3)
    assert tables["components"].note == errors.SET
    assert tables["components"].columns[1].errors is None
    for name in ("means", "standard_deviations"):
        found = np.array(tables[name].columns[-1].errors)
        assert (found > 0).all() and (found < [0.2, 2.0, 0.02]).all()


@pytest.mark.slow
def test_numbers_of_a_series_have_errors_and_they_fall(parted):
    block, method, state = parted
    _, after = run(block, CONFIG, 1.0, seed=1, start=method.warm_start_of(state))
    first, second = (errors_of(CONFIG, each, model_of(CONFIG, each)) for each in (state, after))
    assert second.why == errors.IN_SERIES
    assert np.isfinite(second.weights[:-1]).all() and np.isnan(second.weights[-1])
    assert np.median(second.means / first.means) < 0.9
    normal = replace(after, outcome=NORMAL, means=after.means[:1] * 0, covariances=after.covariances[:1])
    normal = replace(normal, weights=np.array([0.9, 0.1]), group=np.zeros(1, np.int64), known=after.known[:1])
    assert errors_of(CONFIG, normal, model_of(CONFIG, normal)).why == errors.LOST


def test_no_errors_are_given_where_components_are_not_parted():
    generator = np.random.default_rng(1)
    x, _ = mixture(3, 3, 2.0, generator).sample(3000, generator)
    config = PrivateMixtureConfig(components=3)
    method, state = run(records(x), config, 1.0, seed=3)
    group = model_of(config, state).group
    assert len(set(group)) < 3
    tables = tables_of(method, state, 3)
    which = [str(j) for j in range(3) if (group == group[j]).sum() > 1]
    assert tables["components"].note.startswith(
        "These numbers have no error bars: no density dip separates components "
    )
    assert all(number in tables["components"].note for number in which)
    assert all(column.errors is None for column in tables["means"].columns)


def test_the_other_reasons(parted, monkeypatch):
    _, method, state = parted
    model = model_of(CONFIG, state)
    monkeypatch.setattr(errors, "MOST_WORK", 1)
    assert errors_of(CONFIG, state, model).why == errors.TOO_LARGE
    monkeypatch.setattr(errors, "MOST_WORK", 100)
    monkeypatch.setattr(errors, "LEAST_FOUND", 1.1)
    found = errors_of(CONFIG, state, model)
    assert found.why.startswith("There are no error bars of components 0 and 1: more than 1 of 10 repetitions")
    assert np.isnan(found.means).all()


def test_large_runs_are_repeated_less_often_and_few_repetitions_make_wider_errors():
    assert renoised.runs_of(2, 4) == 24 and renoised.runs_of(8, 20) == 18 and renoised.runs_of(32, 35) == 8
    for runs in (8, 24):
        assert wider(runs) == pytest.approx(t.ppf(0.975, runs - 1) / 1.959964, rel=1e-5)
