"""Rows with gaps: fills against the formulas, what each release makes of them, their density, and whole runs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import multivariate_normal

from fedcore.methods.mixture_models.fixed_functions import normal_quantile
from fedcore.methods.mixture_models.whole_rows import ONE
from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig, errors, gaps
from fedcore.methods.private_mixture.errors import errors_of
from fedcore.methods.private_mixture.feasibility import words_of
from fedcore.methods.private_mixture.result import model_of
from fedcore.methods.private_mixture.scores import score_block
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.results import Features
from tests.private_mixture.missing import gapped
from tests.private_mixture.test_density import model_by_hand
from tests.private_mixture.test_sensitivity import CENTRES, RELATIONS, UNITS, D, check, rounds_of, usual
from tests.private_mixture.worlds import adjusted_rand, block_of, facts, mixture, records, run, sums

NAN = np.nan


def test_a_normal_quantile_is_right_and_the_same_in_any_company():
    u = np.linspace(1e-9, 1 - 1e-9, 10_001)
    assert np.allclose(normal_quantile(u), ndtri(u), rtol=2e-3, atol=1e-4)
    assert np.isfinite(normal_quantile(np.array([0.0, 1 - 2.0**-53]))).all()
    for size in (1, 3, 8, 9):
        assert np.array_equal(normal_quantile(u[5 : 5 + size]), normal_quantile(u)[5 : 5 + size])


def test_gaps_are_filled_from_components_in_any_coordinates():
    """Also in those that leave rows as they are, where a start may have components: rows with gaps made it fail."""
    method, public = PrivateMixture(PrivateMixtureConfig(components=2)), facts(3, 10_000, 4.0)
    state = method.init(replace(public, warm_start=method.likely_warm_start(public)))
    block = records(np.array([[1.0, NAN, 2.0], [0.5, 1.0, 2.0]]))
    assert len(gaps.guess_of(state, 9.0).means) == 2 + 2  # the background, and one normal distribution
    assert sums(method, method.message(state), block)["em_p_0"].sum() > 1.9 * ONE


# --- fills ------------------------------------------------------------------------------------------------------------


def parts(d: int, m: int, seed: int = 0):
    """Weights, means and covariances of normal parts, and the guess of them, in columns of scale 1 about 0."""
    generator = np.random.default_rng(seed)
    means, roots = generator.normal(size=(m, d)) * 2, generator.normal(size=(m, d, d)) / np.sqrt(d) + np.eye(d)
    covariances, weights = roots @ np.swapaxes(roots, 1, 2), generator.dirichlet(np.ones(m))
    precisions = np.linalg.inv(covariances)
    logs = np.log(weights) + 0.5 * np.linalg.slogdet(precisions)[1]
    return weights, means, covariances, gaps.Guess(logs, means, precisions)


def test_the_density_of_what_a_row_has_is_the_marginal_one():
    weights, means, covariances, guess = parts(4, 3)
    x = np.random.default_rng(1).normal(size=(60, 4)) * 2
    x[np.random.default_rng(2).random(x.shape) < 0.4] = NAN
    x = x[np.isnan(x).any(axis=1) & ~np.isnan(x).all(axis=1)]
    joint = gaps.joint_of(guess, x, np.zeros(4), np.ones(4))
    for row, found in zip(x, joint.T, strict=True):
        seen = ~np.isnan(row)
        exact = [
            np.log(weight) + multivariate_normal.logpdf(row[seen], mean[seen], covariance[np.ix_(seen, seen)])
            for weight, mean, covariance in zip(weights, means, covariances, strict=True)
        ]
        assert np.ptp(found - exact) < 1e-3  # rows are whole numbers of 2^-16


def test_draws_have_the_mean_and_covariance_given_the_rest():
    _, means, covariances, guess = parts(4, 1)
    row, n = np.array([NAN, 0.7, NAN, -1.2]), 40_000
    words = np.random.default_rng(0).integers(0, 2**63, n).astype(np.uint64)
    found = gaps.filled(guess, np.tile(row, (n, 1)), np.zeros(4), np.ones(4), words, np.zeros(n, np.int64))
    assert (found[:, [1, 3]] == [0.7, -1.2]).all()
    seen, gone = np.array([1, 3]), np.array([0, 2])
    s = covariances[0]
    fill = s[np.ix_(gone, seen)] @ np.linalg.inv(s[np.ix_(seen, seen)])
    left = s[np.ix_(gone, gone)] - fill @ s[np.ix_(seen, gone)]
    assert np.allclose(found[:, gone].mean(axis=0), means[0][gone] + fill @ (row[seen] - means[0][seen]), atol=0.03)
    assert np.allclose(np.cov(found[:, gone].T), left, rtol=0.05, atol=0.03)


def test_a_draw_is_of_the_part_that_the_rest_of_the_row_tells():
    guess = gaps.Guess(np.zeros(2), np.array([[-5.0, -5.0], [5.0, 5.0]]), np.tile(np.eye(2) * 4, (2, 1, 1)))
    x = np.array([[-5.0, NAN], [NAN, 5.0]] * 50)
    words = np.random.default_rng(0).integers(0, 2**63, 100).astype(np.uint64)
    found = gaps.filled(guess, x, np.zeros(2), np.ones(2), words, np.zeros(100, np.int64))
    assert (np.sign(found[:, 0]) == np.sign(found[:, 1])).all()


def test_gaps_of_a_column_that_noise_drowned_are_filled_with_its_centre():
    guess = gaps.of_columns(np.array([True, False]))
    x = np.full((50, 2), NAN)
    words = np.arange(50, dtype=np.uint64)
    found = gaps.filled(guess, x, np.array([3.0, 0.0]), np.array([2.0, 2.0**32]), words, np.zeros(50, np.int64))
    assert found[:, 0].std() > 1 and (np.abs(found[:, 1]) < 2.0**32 * 1e-5).all()


def test_whatever_the_message_says_fills_do_no_harm():
    generator = np.random.default_rng(0)
    for scale in (1e-300, 1.0, 1e200):
        guess = gaps.Guess(generator.normal(size=2), generator.normal(size=(2, 3)), np.full((2, 3, 3), scale))
        x = np.array([[NAN, 1.0, 1e308], [NAN, NAN, 0.0]])
        with np.errstate(all="ignore"):
            found = gaps.filled(guess, x, np.zeros(3), np.ones(3), np.arange(2, dtype=np.uint64), np.zeros(2, np.int64))
        assert (found[~np.isnan(x)] == x[~np.isnan(x)]).all()


# --- what each release makes of them ----------------------------------------------------------------------------------


def answers_of(x: np.ndarray, absurd: int | None = None) -> dict:
    method, rounds = rounds_of("record", RELATIONS[0], absurd)
    return {name: values for message, _ in rounds for name, values in sums(method, message, records(x)).items()}


def test_a_gap_has_a_cell_of_its_own_and_adds_nothing_to_its_columns_centre_and_span():
    found = answers_of(np.array([[9.0, NAN, 100.0]]))
    assert found["count"][0] == ONE and (found["columns"].sum(axis=1) == ONE).all()
    assert found["columns"][:, -1].tolist() == [0, ONE, 0]
    for step in range(3):
        assert found[f"spans_{step}"].sum(axis=1).tolist() == [ONE, 0, ONE]
        assert found[f"centres_{step}"][1] == 0


def test_a_row_with_gaps_counts_once_in_rows_that_are_read_whole_and_not_in_valleys():
    found = answers_of(np.array([[9.0, NAN, 100.0]]))
    for name in ("norms_0", "norms_1", "norms_2", "norms_3", "moments_count_0", "cells_0", "cells_3"):
        assert found[name].sum() == ONE, name
    assert 0.99 * ONE < found["em_p_0"].sum() <= ONE and not found["valleys"].any() and found["guard"].any()


def test_a_row_of_gaps_only_adds_to_the_first_release_alone():
    found = answers_of(np.full((1, D), NAN))
    assert found.pop("count")[0] == ONE and (found.pop("columns")[:, -1] == ONE).all()
    assert not any(values.any() for values in found.values())


def test_the_gain_of_a_row_is_that_of_what_it_has():
    """A gap in a column that tells components apart less hardly changes the gain; the row's bits do not matter."""
    method, rounds = rounds_of("record", RELATIONS[0])
    message = next(message for message, _ in rounds if message.kind == "guard")
    gains = [sums(method, message, records(np.array([row])))["guard"][0] for row in ([9.0, 0, 100], [9.0, 0, NAN])]
    assert gains[0] > 0 and gains[1] > 0


@pytest.mark.parametrize("scale", [np.nan, np.inf, 1e300, -1.0, 0.0])
def test_the_gain_of_a_row_with_gaps_is_bounded_whatever_the_message_says(scale):
    method, rounds = rounds_of("record", RELATIONS[0])
    message = next(message for message, _ in rounds if message.kind == "guard")
    absurd = replace(message, guess=replace(message.guess, precisions=message.guess.precisions * scale))
    (gain,) = sums(method, absurd, records(np.array([[9.0, 0, NAN]])))["guard"]
    assert abs(int(gain)) <= ONE


@pytest.mark.parametrize("payload", [0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000123])
def test_a_gap_is_one_number_whatever_its_bits_are(payload):
    x = np.array([[9.0, NAN, 100.0]])
    other = x.copy()
    other.view(np.uint64)[0, 1] = payload
    one, two = answers_of(x), answers_of(other)
    assert all(np.array_equal(one[name], two[name]) for name in one)


@contextmanager
def filled_by_their_company():
    """Gaps are filled with the mean of the rows beside them."""

    def mean(guess, x, centre, *others):
        return np.where(np.isnan(x), np.nanmean(np.append(x, centre[None], axis=0), axis=0), x)

    with mock.patch.object(gaps, "filled", mean):
        yield


@contextmanager
def gaps_count_twice():
    """A gap counts in a cell of its own, and as a zero."""
    from fedcore.methods.private_mixture import clients

    kept = clients.ANSWERS["columns"]

    def twice(message, tile, totals):
        kept(message, tile, totals)
        kept(message, replace(tile, x=np.nan_to_num(tile.x, nan=0.0)), totals)

    with mock.patch.dict(clients.ANSWERS, {"columns": twice}):
        yield


@pytest.mark.parametrize("sabotage", [filled_by_their_company, gaps_count_twice])
def test_a_sabotaged_fill_breaks_the_bound(sabotage):
    for unit in UNITS:
        rounds_of(unit, RELATIONS[0])
        with sabotage(), pytest.raises(AssertionError):
            for seed in range(10):
                check(unit, RELATIONS[0], None, *usual(seed))


# --- density ----------------------------------------------------------------------------------------------------------


def test_the_density_of_a_row_with_gaps_is_the_integral_over_them():
    model = model_by_hand(2)
    ends = np.append(0.0, np.geomspace(2.0**-30, 2.0**50, 40_001))
    away, width = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
    for column in range(2):
        value, gone = model.centre[column] + 0.7 * model.scale[column], 1 - column
        total = 0.0
        for sign in (-1, 1):
            x = np.empty((len(away), 2))
            x[:, column], x[:, gone] = value, model.centre[gone] + sign * away
            total += float(np.exp(model.log_likelihood(x)) @ width)
        row = np.full((1, 2), NAN)
        row[0, column] = value
        assert np.exp(model.log_likelihood(row))[0] == pytest.approx(total, rel=2e-3)


def test_rows_with_gaps_have_labels_and_shares_and_rows_of_gaps_only_are_not_used():
    model = model_by_hand(2)
    x = np.array([[NAN, 3.0], [-9.0, NAN], [NAN, NAN], [np.inf, 0.0], [1e308, NAN]])
    assert model.usable(x).tolist() == [True, True, False, False, True]
    found = model.responsibilities(x[[0, 1, 4]])
    assert np.allclose(found.sum(axis=1), 1) and model.labels(x[:2]).max() < 2
    assert np.isfinite(model.log_likelihood(x[[0, 1, 4]])).all()
    block = RowsBlock(0, 0, np.array([0, 3]), x[:3], RowsBlock(0, 0, np.array([0, 3]), x[:3]))
    assert score_block(model, block) and abs(model.log_likelihood(x[2:3])[0]) < 1e-9


def test_gaps_in_columns_with_zeros_and_alone_are_read():
    model = model_by_hand(3)
    forms = {"steps": np.array([0.0, 1.0, 0.0]), "atoms": np.array([2.0, 0, 0]), "share": np.array([0, 0, 0.9])}
    model = replace(model, layout=replace(model.layout, **forms))
    x = np.array([[NAN, 2.0, 0.0], [0.0, NAN, 3.0], [0.0, 2.0, NAN]])
    assert np.isfinite(model.log_likelihood(x)).all()


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    """One number in five is missing, so that one row in three is complete; and a run that goes on with that."""
    generator = np.random.default_rng(30)
    truth = mixture(5, 3, 6.0, generator)
    x = gapped(truth.sample(6000, generator)[0], 0.2, False, generator)
    config = PrivateMixtureConfig(components=3)
    method, state = run(records(x), config, 1.0)
    _, later = run(records(x), config, 1.0, 1, start=method.warm_start_of(state))
    return truth, x, method, state, later


def test_a_run_reads_rows_with_gaps(fitted):
    truth, x, method, *states = fitted
    test, labels = truth.sample(3000, np.random.default_rng(1))
    best = np.logaddexp.reduce(truth.log_joint(test), axis=1).mean()
    for state in states:
        model = method.model(state)
        assert best - model.log_likelihood(test).mean() < 0.4
        assert adjusted_rand(labels, model.labels(test)) > 0.97
        assert method.rows_used(state)[0] > 0.9
        said = method.outcome(state)
        assert "missing numbers were filled from the rest of their rows, in columns" in said and "and 2 more" in said
    assert states[1].warm and method.personalise(states[0], records(x[:300]), None)["rows_labels"].min() >= 0


@pytest.mark.slow
def test_the_share_of_gaps_is_shown_by_column(fitted):
    _, x, method, state, later = fitted
    for each in (state, later):
        tables = {table.name: table for table in method.result(each, Features(5)).tables}
        names, shares = tables["missing_numbers"].columns
        assert len(names.values) == 5 and abs(np.array(shares.values) - np.isnan(x).mean(axis=0)).max() < 0.05
        assert (shares.errors is None) == each.warm
    assert "first run of the series" in tables["missing_numbers"].note


@pytest.mark.slow
def test_gaps_make_error_bars_wider_and_a_series_with_gaps_has_none(fitted):
    _, _, method, state, later = fitted
    found = errors_of(method.config, state, model_of(method.config, state))
    without = replace(state, missing=np.zeros(5))
    narrow = errors_of(method.config, without, model_of(method.config, without))
    assert not found.why and np.nanmedian(found.means / narrow.means) > 1.02
    assert errors_of(method.config, later, model_of(method.config, later)).why == errors.FILLED


def test_clients_with_gaps_are_units():
    generator = np.random.default_rng(3)
    truth = mixture(3, 2, 6.0, generator)
    clients = [gapped(truth.sample(4, generator)[0], 0.15, False, generator) for _ in range(4000)]
    method, state = run(block_of(clients), PrivateMixtureConfig(components=2), 1.0, unit="client")
    test, labels = truth.sample(2000, generator)
    assert adjusted_rand(labels, method.model(state).labels(test)) > 0.98


def test_centres_of_rounds_are_the_rows_own():
    """The messages of these tests tell components apart, so that what is said of fills above means something."""
    _, rounds = rounds_of("record", RELATIONS[0])
    message = next(message for message, _ in rounds if message.kind == "components")
    back = message.guess.means[:3] * message.scale + message.centre
    assert np.abs(back[:, None] - CENTRES).sum(axis=2).min(axis=1).max() < 3


def test_few_complete_rows_lower_the_expected_utility(fitted):
    """Five columns that each miss 90 % leave hardly a complete row, in which density dips are searched."""
    _, _, method, state, _ = fitted
    assert words_of(method.config, state) == ("good", "good")
    fewer = replace(state, missing=np.full(5, 0.9 * state.count))
    assert words_of(method.config, fewer) == ("good", "weak")
    assert "tested on complete rows only" in method.outcome(fewer)
