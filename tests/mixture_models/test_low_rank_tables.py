import numpy as np
import pytest

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables, parameters_from_cells
from fedcore.methods.mixture_models.nuclear_norm import (
    FAMILIES,
    ROUGH,
    log_partition,
    mean,
    minimise,
    nuclear_norm,
    soft_threshold,
)


def tables(family, count=20, rows=12, columns=9, seen=0.4, never=0.25, scale=0.7, seed=0):
    """Observed tables (count rows, columns) and the truth."""
    rng = np.random.default_rng(seed)
    natural = scale * rng.standard_normal((rows, 2)) @ rng.standard_normal((2, columns))
    shape = (count, rows, columns)
    expected = mean(family, natural)
    if family == "gaussian":
        x = expected + rng.standard_normal(shape)
    else:
        x = (rng.poisson(expected, shape) if family == "poisson" else rng.random(shape) < expected).astype(float)
    x[rng.random(shape) > seen] = np.nan
    x[:, rng.random((rows, columns)) < never] = np.nan
    return x.reshape(-1, columns), natural


def test_gaussian_em_is_soft_impute():
    y, _ = tables("gaussian")
    model = LowRankTables(12, 9, "gaussian", lam=0.5)
    x = y.reshape(20, 12, 9)
    theta, reference = {"natural": np.zeros((12, 9))}, np.zeros((12, 9))
    for _ in range(200):
        theta = model.maximise(model.e_total(theta, y) / 20)
        filled = np.array([np.where(np.isnan(table), reference, table) for table in x]).mean(axis=0)
        u, d, v = np.linalg.svd(filled)
        reference = u[:, :9] @ np.diag(np.maximum(d - 0.5, 0)) @ v
        assert np.abs(theta["natural"] - reference).max() <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_em_ends_where_the_observed_objective_is_optimal(family):
    y, truth = tables(family, seen=0.7, never=0.1)
    model = LowRankTables(12, 9, family, lam=0.2)
    theta = {"natural": np.zeros((12, 9))}
    start = model.optimality(theta, y)
    assert start[0] > 0.1
    s = model.e_total(theta, y) / 20
    for _ in range(600):
        old = theta["natural"]
        theta = model.maximise(s, theta)
        # EM contracts by 1 - visits / tables in a cell, hence over-relaxed steps on the statistic; T allows them
        s = s + 1.7 * (model.e_total(theta, y) / 20 - s)
        assert model.admissible(s)
        if np.abs(theta["natural"] - old).max() < 1e-10:
            break
    spectral, alignment = model.optimality(theta, y)
    assert abs(spectral) <= 1e-6
    assert abs(alignment) <= 1e-6
    never = np.isnan(y.reshape(20, 12, 9)).all(axis=0)
    overall = truth[~never].mean()
    error = np.linalg.norm((theta["natural"] - truth)[never]) / np.linalg.norm((truth - overall)[never])
    assert error < 1.0


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
@pytest.mark.parametrize("lam", [0.05, 0.5, 3.0])
def test_the_proximal_minimiser(family, lam):
    """First-order conditions, and no dependence on the start."""
    rng = np.random.default_rng(1)
    s = mean(family, 1.2 * rng.standard_normal((15, 2)) @ rng.standard_normal((2, 10)))
    if family == "poisson":
        s = rng.poisson(s, (6, 15, 10)).mean(axis=0)  # some cells are 0
    theta = minimise(family, s, lam, None, None)
    gap = s - mean(family, theta)
    assert np.linalg.norm(gap, 2) <= lam + 1e-7
    assert np.vdot(gap, theta) == pytest.approx(lam * nuclear_norm(theta), abs=1e-6)
    for start in (theta + 0.1, rng.standard_normal(s.shape), -3 * np.ones(s.shape)):
        np.testing.assert_allclose(minimise(family, s, lam, None, start), theta, atol=1e-6)


@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
def test_a_rough_step_goes_down_and_several_arrive(family):
    rng = np.random.default_rng(3)
    s = mean(family, 1.2 * rng.standard_normal((15, 2)) @ rng.standard_normal((2, 10)))
    objective = lambda theta: (log_partition(family, theta) - s * theta).sum() + 0.1 * nuclear_norm(theta)
    theta, exact = rng.standard_normal(s.shape), minimise(family, s, 0.1, None, None)
    before = objective(theta)
    for _ in range(30):
        theta = minimise(family, s, 0.1, None, theta, ROUGH)
        after = objective(theta)
        assert after <= before + 1e-12 * abs(before)
        before = after
    # cells that are all but 0 are the last to arrive, and hardly matter
    assert after - objective(exact) <= 1e-3 * abs(after)


def test_intensities_over_orders_of_magnitude():
    rng = np.random.default_rng(2)
    natural = 2.0 * rng.standard_normal((20, 2)) @ rng.standard_normal((2, 15))
    s = rng.poisson(np.exp(natural), (10, 20, 15)).mean(axis=0)
    theta = minimise("poisson", s, 0.5, None, None)
    gap = s - np.exp(theta)
    assert natural.max() - natural.min() > 10
    assert np.linalg.norm(gap, 2) <= 0.5 + 1e-6


def test_everything_is_thresholded_away():
    s = np.full((4, 3), 1.0)  # Psi'(0) of Poisson
    np.testing.assert_allclose(minimise("poisson", s, 1.0, None, None), 0, atol=1e-12)
    np.testing.assert_allclose(minimise("poisson", s + 0.01, 1.0, None, np.ones((4, 3))), 0, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rank_is_bounded(family):
    y, _ = tables(family)
    model = LowRankTables(12, 9, family, lam=0.1, max_rank=2)
    s = model.e_total({"natural": np.zeros((12, 9))}, y) / 20
    theta = model.maximise(s)["natural"]
    assert np.linalg.matrix_rank(theta, 1e-8) <= 2
    surrogate = lambda t: (log_partition(family, t) - s.reshape(12, 9) * t).sum() + 0.1 * nuclear_norm(t)
    free = LowRankTables(12, 9, family, lam=0.1).maximise(s)["natural"]
    assert surrogate(theta) <= surrogate(soft_threshold(free, 0.0, 2)) + 1e-9


def test_statistics_below_zero_within_the_penalty_are_admissible():
    """T has a minimiser there although a Poisson mean is never negative; beyond, it has none."""
    model = LowRankTables(3, 3, "poisson", lam=0.5)
    s = np.full(9, 2.0)
    s[0] = -0.49
    assert model.admissible(s)
    s[0] = -0.51
    assert not model.admissible(s)
    s[0] = 0.2
    assert model.admissible(s, 0.6) and not model.admissible(s, 0.8)
    bernoulli = LowRankTables(3, 3, "bernoulli", lam=0.5)
    assert bernoulli.admissible(np.full(9, 1.1)) and not bernoulli.admissible(np.full(9, 1.3))
    assert LowRankTables(3, 3, "gaussian", lam=0.0).admissible(np.full(9, -100.0))


def test_a_client_of_several_tables():
    y, natural = tables("gaussian", count=5)
    model, theta = LowRankTables(12, 9), {"natural": natural}
    completed = np.where(np.isnan(y), np.tile(natural, (5, 1)), y).reshape(5, -1)
    got = model.e_mean(theta, y, np.array([0, 24, 24, 60]))
    np.testing.assert_allclose(got, [completed[:2].mean(axis=0), np.zeros(108), completed[2:].mean(axis=0)], atol=1e-14)
    imputed = model.personalise(theta, y)["imputed"]
    assert imputed.shape == y.shape
    assert np.array_equal(imputed[~np.isnan(y)], y[~np.isnan(y)])
    assert model.log_likelihood(theta, y).shape == (5,)


def test_the_likelihood_is_of_observed_cells():
    stats = pytest.importorskip("scipy.stats")
    for family, law in (
        ("gaussian", lambda t: stats.norm(t, 1).logpdf),
        ("poisson", lambda t: stats.poisson(np.exp(t)).logpmf),
        ("bernoulli", lambda t: stats.bernoulli(1 / (1 + np.exp(-t))).logpmf),
    ):
        y, natural = tables(family, count=3)
        logs = [np.where(np.isnan(x), 0.0, law(natural)(np.nan_to_num(x))) for x in y.reshape(3, 12, 9)]
        expected = np.sum(logs, axis=(1, 2))
        got = LowRankTables(12, 9, family).log_likelihood({"natural": natural}, y)
        np.testing.assert_allclose(got, expected, rtol=1e-11)


def test_tables_are_checked():
    y, natural = tables("poisson", count=2)
    model = LowRankTables(12, 9, "poisson")
    with pytest.raises(PopulationError, match="23 rows do not make whole tables of 12 rows"):
        model.check_rows(y[:-1])
    with pytest.raises(PopulationError, match="whole tables") as error:
        model.e_mean({"natural": natural}, y, np.array([0, 13, 24]))
    assert "13" not in str(error.value)
    for family, value, why in (
        ("poisson", -1.0, "is negative"),
        ("bernoulli", 0.5, "is neither 0 nor 1"),
        ("gaussian", np.inf, "is infinite"),
    ):
        bad = np.zeros((12, 9))
        bad[0] = np.nan
        bad[5, 4] = value
        with pytest.raises(PopulationError, match=f"Row 5, column 4 {why}"):
            LowRankTables(12, 9, family).check_rows(bad)
    with pytest.raises(PopulationError, match="no table"):
        model.optimality({"natural": natural}, y[:0])


@pytest.mark.parametrize(
    "settings",
    [
        {"family": "gamma"},
        {"rows": 0},
        {"columns": 0},
        {"max_rank": 0},
        {"lam": -1.0},
        {"lam": float("nan")},
        {"family": "poisson", "lam": 0.0},
    ],
)
def test_settings_out_of_range(settings):
    with pytest.raises(ConfigError):
        LowRankTables(**{"rows": 3, "columns": 3} | settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_start_from_what_was_observed(family):
    y, truth = tables(family, count=200, seen=0.8, never=0.0)
    x = y.reshape(200, 12, 9)
    model = LowRankTables(12, 9, family, max_rank=2)
    theta = parameters_from_cells(model, np.nansum(x, axis=0), (~np.isnan(x)).sum(axis=0))
    assert np.linalg.matrix_rank(theta["natural"], 1e-8) == 2
    assert np.linalg.norm(theta["natural"] - truth) < 0.5 * np.linalg.norm(truth)
