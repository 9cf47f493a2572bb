"""FederatedMixture beside scikit-learn's GaussianMixture: the same parameters give the same values."""

import inspect
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal, multivariate_t
from scipy.stats import t as student_t
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture

import fedcore
from fedcore.errors import ConfigError
from fedcore.interface import data

RANDOM = np.random.default_rng(3)
APART = np.concatenate([RANDOM.normal(size=(300, 2)) * [1, 2] + at for at in (-2, 2)])  # they touch
NEW = RANDOM.normal(size=(50, 2)) * 3
KINDS = ["full", "tied", "diag", "spherical"]
SMALL = {"max_iter": 3, "n_init": 1, "settings": {"pseudo_rows": 0.0}}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_mixture_says_of_rows_is_what_scikit_learn_says(kind):
    ours = fedcore.FederatedMixture(2, covariance_type=kind, **SMALL).fit(APART)
    theirs = ours.to_sklearn()
    for name in ("predict_proba", "score_samples", "predict"):
        assert np.allclose(getattr(ours, name)(NEW), getattr(theirs, name)(NEW), rtol=1e-10, atol=1e-12)
    for name in ("bic", "aic", "score"):
        assert getattr(ours, name)(NEW) == pytest.approx(getattr(theirs, name)(NEW), rel=1e-12)
    assert np.abs(ours.predict_proba(NEW).sum(axis=1) - 1).max() < 1e-15 * 8
    again = GaussianMixture(2, covariance_type=kind).fit(APART)
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        assert getattr(ours, name).shape == getattr(again, name).shape and getattr(ours, name).dtype == np.float64
    inverse = np.linalg.inv if kind in ("full", "tied") else np.reciprocal
    assert np.allclose(ours.precisions_, inverse(ours.covariances_))


@pytest.mark.parametrize("kind", KINDS)
def test_the_lower_bound_is_the_mean_log_density_without_a_penalty(kind):
    ours = fedcore.FederatedMixture(2, covariance_type=kind, **SMALL).fit(APART * [1, 100])
    assert ours.lower_bound_ == pytest.approx(ours.score(APART * [1, 100]), abs=1e-9)
    assert ours.lower_bounds_ == sorted(ours.lower_bounds_) and ours.lower_bounds_[-1] == ours.lower_bound_
    assert isinstance(ours.converged_, bool) and 1 <= ours.n_iter_ <= 3
    assert ours.to_sklearn().lower_bound_ == ours.lower_bound_


def test_samples_have_the_moments_of_the_mixture():
    ours = fedcore.FederatedMixture(2, **SMALL).fit(APART)
    x, y = ours.sample(20_000)
    assert x.shape == (20_000, 2) and y.tolist() == sorted(y.tolist())
    for component in (0, 1):
        own = x[y == component]
        error = 5 / np.sqrt(len(own))
        spread = np.sqrt(np.diagonal(ours.covariances_[component]))
        assert abs((y == component).mean() - ours.weights_[component]) < 5 * 0.5 / np.sqrt(20_000)
        assert (np.abs(own.mean(axis=0) - ours.means_[component]) < error * spread).all()
        assert (np.abs(np.cov(own.T) - ours.covariances_[component]) < 2 * error * np.outer(spread, spread)).all()
    assert np.array_equal(ours.sample(5)[0], ours.sample(5)[0])
    ours.random_state = np.random.RandomState(0)
    assert not np.array_equal(ours.sample(5)[0], ours.sample(5)[0])
    with pytest.raises(ValueError, match="n_samples"):
        ours.sample(0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_missing_entries_have_the_density_of_what_is_observed(kind):
    ours = fedcore.FederatedMixture(2, covariance_type=kind, **SMALL).fit(APART)
    eye = np.eye(2)
    full = {"full": lambda s: s, "tied": lambda s: s, "diag": np.diag, "spherical": lambda s: s * eye}[kind]
    spread = [full(ours.covariances_ if kind == "tied" else ours.covariances_[g]) for g in (0, 1)]
    x = NEW.copy()
    x[::2, 1], x[::3, 0] = np.nan, np.nan
    for row, own, shares in zip(x, ours.score_samples(x), ours.predict_proba(x), strict=True):
        seen = np.isfinite(row)
        parts = ours.weights_.copy()
        if seen.any():
            parts *= [
                multivariate_normal.pdf(row[seen], ours.means_[g][seen], spread[g][np.ix_(seen, seen)]) for g in (0, 1)
            ]
        assert own == pytest.approx(np.log(parts.sum()), abs=1e-10)
        assert shares == pytest.approx(parts / parts.sum(), abs=1e-10)


def test_weights_count_rows_as_often_as_they_say():
    often = np.random.default_rng(0).integers(0, 4, size=len(APART))
    exact = {"settings": {"pseudo_rows": 0.0, "tol": 1e-12}, "max_iter": 200, "n_init": 1}
    weighted = fedcore.FederatedMixture(2, **exact).fit(APART, sample_weight=often)
    repeated = fedcore.FederatedMixture(2, **exact).fit(np.repeat(APART, often, axis=0))
    order = [np.argsort(one.means_[:, 0]) for one in (weighted, repeated)]
    assert np.allclose(weighted.means_[order[0]], repeated.means_[order[1]], atol=1e-4)
    assert weighted.lower_bound_ == pytest.approx(repeated.lower_bound_, abs=1e-8)
    assert weighted.n_features_in_ == 2 and weighted.predict(NEW).shape == (50,)
    with pytest.raises(ValueError, match="sample_weight"):
        clone(weighted).fit(APART, sample_weight=often[:5])
    with pytest.raises(ValueError, match="[Nn]egative"):
        clone(weighted).fit(APART, sample_weight=-1.0 * often)


def test_weights_of_a_population_are_one_of_its_columns(tmp_path):
    stored = data.rows_stored(np.column_stack([np.ones(600), APART]), None, tmp_path / "population")
    small = {**SMALL, "settings": {"pseudo_rows": 0.0, "weight_column": 0}}
    ours = fedcore.FederatedMixture(2, **small).fit(stored.population)
    assert ours.means_.shape == (2, 2)
    assert np.allclose(
        ours.score_samples(np.column_stack([np.ones(50), NEW])), ours.to_sklearn().score_samples(NEW), atol=1e-10
    )
    with pytest.raises(ConfigError, match="rows of an array"):
        clone(ours).fit(stored.population, sample_weight=np.ones(600))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_starts_where_it_is_told_to(kind):
    """One step of EM from the same start is the same step."""
    inverse = np.linalg.inv if kind in ("full", "tied") else np.reciprocal
    start = GaussianMixture(2, covariance_type=kind, max_iter=1, random_state=0, reg_covar=0)
    with pytest.warns(UserWarning, match="converge"):
        start.fit(APART)
    given = {
        "weights_init": [0.3, 0.7],
        "means_init": [[-3.0, 1.0], [1.0, 2.0]],
        "precisions_init": inverse(start.covariances_),
    }
    ours = fedcore.FederatedMixture(2, covariance_type=kind, **SMALL, **given).set_params(max_iter=1).fit(APART)
    with pytest.warns(UserWarning, match="converge"):
        theirs = clone(start).set_params(**given).fit(APART)
    for name in ("weights_", "means_", "covariances_"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-8)
    assert ours.n_iter_ == 1 and ours.model_.metrics[-1]["objective"] is not None


def test_means_alone_say_which_component_is_which():
    ours = fedcore.FederatedMixture(2, means_init=[[2, 2], [-2, -2]], **SMALL).fit(APART)
    turned = fedcore.FederatedMixture(2, means_init=[[-2, -2], [2, 2]], **SMALL).fit(APART)
    assert (ours.means_[0] > 1).all() and np.allclose(ours.means_, turned.means_[::-1], atol=1e-8)
    gaps = APART.copy()
    gaps[::9, 0] = np.nan
    for kind in KINDS:
        asked = {"covariance_type": kind, "means_init": [[2, 2], [-2, -2]], "weights_init": [0.2, 0.8]}
        fitted = fedcore.FederatedMixture(2, **asked, **SMALL).fit(gaps, sample_weight=np.ones(600))
        assert (fitted.means_[0] > 1).all()


def test_starts_that_cannot_be_are_refused():
    for wrong, words in (
        ({"weights_init": [0.5, 0.5]}, "means_init"),
        ({"means_init": [[0, 0]]}, r"shape \(2, 2\)"),
        ({"means_init": APART[:2], "weights_init": [0.5, 0.6]}, "add up to 1"),
        ({"means_init": APART[:2], "precisions_init": [-np.eye(2)] * 2}, "positive definite"),
        ({"means_init": APART[:2], "precisions_init": [1, 0], "covariance_type": "spherical"}, "positive"),
        ({"init_params": "random"}, "init_params"),
    ):
        with pytest.raises(ConfigError, match=words):
            fedcore.FederatedMixture(2, **wrong).fit(APART)


def test_a_warm_start_goes_where_the_last_fit_ended():
    first = fedcore.FederatedMixture(2, warm_start=True, **SMALL).set_params(max_iter=2).fit(APART)
    before, bound = first.means_, first.lower_bound_
    first.fit(APART)
    assert np.abs(first.means_ - before).max() < 0.2 and first.lower_bound_ >= bound - 1e-12
    assert first.set_params(n_components=1).fit(APART).means_.shape == (1, 2)  # nothing to start from


def test_seeds_come_from_what_numpy_draws_from():
    def seed(random_state):
        fitted = fedcore.FederatedMixture(random_state=random_state, **SMALL).fit(APART[:20])
        return fitted.model_.info["seed"]

    assert seed(None) == 0 and seed(7) == 7 and seed(np.int64(7)) == 7
    for make in (np.random.RandomState, np.random.default_rng):
        source = make(1)
        assert seed(source) == seed(make(1)) != seed(source)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["em", "fedem", "vr-fedem"])
def test_max_iter_bounds_all_passes(algorithm):
    for most in (20, 40, 80):
        asked = fedcore.FederatedMixture(2, algorithm=algorithm, max_iter=most, tol=0.0)
        fitted = asked.fit(APART, groups=np.arange(600) % 7)
        assert len(fitted.model_.metrics) <= most + 2 and fitted.n_iter_ <= most
    if algorithm != "em":
        assert len(fitted.model_.metrics) == 82
        with pytest.raises(ConfigError, match="leaves no round"):
            asked.set_params(max_iter=3).fit(APART, groups=np.arange(600) % 7)


def test_settings_come_before_parameters():
    ours = fedcore.FederatedMixture(2, **{**SMALL, "settings": {"covariance": "diag"}}).fit(APART)
    assert ours.covariances_.shape == (2, 2) and np.allclose(
        ours.score_samples(NEW), ours.to_sklearn().score_samples(NEW)
    )


def test_labels_of_a_fit_are_those_that_it_predicts(tmp_path):
    labels = fedcore.FederatedMixture(2, **SMALL).fit_predict(APART, groups=np.arange(600) % 7)
    fitted = pickle.loads(pickle.dumps(fedcore.FederatedMixture(2, **SMALL).fit(APART, groups=np.arange(600) % 7)))
    assert np.array_equal(labels, fitted.predict(APART)) and labels.dtype == np.int64
    with pytest.raises(ConfigError, match="array"):
        fedcore.FederatedMixture(2).fit_predict(str(tmp_path))


def test_the_page_lists_all_of_gaussian_mixture():
    page = (Path(__file__).parents[2] / "docs" / "notes" / "python.md").read_text()
    table = page.partition("### Compared with GaussianMixture")[2].partition("\n### ")[0]
    listed = {}
    for names, kind in re.findall(r"^\| (`.*?) \| (same|different|absent) \|", table, re.M):
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), kind)
    frame = pytest.importorskip("pandas").DataFrame(APART, columns=["a", "b"])
    theirs, ours = GaussianMixture().fit(frame), fedcore.FederatedMixture(**SMALL).fit(frame)
    parameters = set(inspect.signature(GaussianMixture).parameters)
    fitted = {name for name in vars(theirs) if name.endswith("_") and not name.startswith("_")}
    methods = {name for name in dir(theirs) if not name.startswith("_") and callable(getattr(theirs, name))}
    assert set(listed) == parameters | fitted | methods
    for name, kind in listed.items():
        assert hasattr(ours, name) == (kind != "absent"), name
    for name in fitted - {"n_iter_", "lower_bound_", "lower_bounds_", "feature_names_in_"}:
        assert np.shape(getattr(ours, name)) == np.shape(getattr(theirs, name)), name
    accepted = inspect.signature(fedcore.FederatedMixture).parameters
    assert {name for name in parameters if listed[name] != "absent"} <= set(accepted)


# --- rows with gaps -------------------------------------------------------------------------------------------------


def test_gaps_are_filled_by_means_draws_and_intervals():
    """Two columns of correlation 0.8: the mean of the second given the first x is 0.8 x, its variance 0.36."""
    generator = np.random.default_rng(0)
    x = generator.multivariate_normal([0.0, 0.0], [[1.0, 0.8], [0.8, 1.0]], 6000) * (1.0, 50.0) + (0.0, 1000.0)
    seen, hidden = x.copy(), generator.random(6000) < 0.3
    seen[hidden, 1] = np.nan
    mixture = fedcore.FederatedMixture(1).fit(seen)
    filled, draws = mixture.impute(seen), mixture.impute(seen, draws=20)
    np.testing.assert_array_equal(filled[~hidden], x[~hidden])
    np.testing.assert_allclose(filled[hidden, 1], 1000 + 40 * x[hidden, 0], atol=8)
    assert draws.shape == (20, 6000, 2) and np.array_equal(draws[:, ~hidden], np.tile(x[~hidden], (20, 1, 1)))
    np.testing.assert_allclose(draws[:, hidden, 1].std(axis=0).mean(), 50 * 0.6, rtol=0.05)
    np.testing.assert_array_equal(draws, mixture.impute(seen, draws=20))
    low, high = mixture.impute_intervals(seen, 0.8)
    inside = ((x >= low) & (x <= high))[hidden, 1].mean()  # 0.8 with a standard error of 0.0095
    assert abs(inside - 0.8) < 0.04 and np.array_equal(low[~hidden], high[~hidden])


def test_what_cannot_be_filled_is_refused():
    mixture = fedcore.FederatedMixture(1)
    with pytest.raises(NotFittedError):
        mixture.impute(np.zeros((3, 2)))
    mixture.fit(np.random.default_rng(0).normal(size=(50, 2)))
    with pytest.raises(ValueError, match="draws"):
        mixture.impute(np.zeros((3, 2)), draws=0)
    with pytest.raises(ValueError, match="coverage"):
        mixture.impute_intervals(np.zeros((3, 2)), 1.0)
    with pytest.raises(ValueError, match="features"):
        mixture.impute(np.zeros((3, 3)))


# --- Student-t components ---------------------------------------------------------------------------------------------

HEAVY = np.concatenate(
    [at + RANDOM.normal(size=(1500, 2)) / np.sqrt(RANDOM.chisquare(4, 1500) / 4)[:, None] * [1, 20] for at in (-8, 8)]
)


@pytest.mark.parametrize("kind", ["full", "diag", "spherical"])
def test_densities_of_student_components_are_scipys(kind):
    """covariances_ are the scale matrices."""
    ours = fedcore.FederatedMixture(2, covariance_type=kind, settings={"tails": 4.0}).fit(HEAVY)
    scales = {"full": lambda own: own, "diag": np.diag, "spherical": lambda own: own * np.eye(2)}[kind]
    parts = zip(ours.weights_, ours.means_, ours.covariances_, strict=True)
    densities = np.stack([w * multivariate_t(m, scales(own), 4.0).pdf(HEAVY) for w, m, own in parts])
    assert ours.degrees_of_freedom_ == 4.0
    np.testing.assert_allclose(ours.score_samples(HEAVY), np.log(densities.sum(axis=0)), rtol=1e-9)
    np.testing.assert_allclose(ours.predict_proba(HEAVY), (densities / densities.sum(axis=0)).T, atol=1e-9)
    assert ours.lower_bound_ == pytest.approx(ours.score(HEAVY), abs=1e-3)  # less the penalty
    seen = HEAVY[:50].copy()
    seen[:, 1] = np.nan
    expected = [
        w * student_t(4.0, m[0], np.sqrt(scales(own)[0, 0])).pdf(seen[:, 0])
        for w, m, own in zip(ours.weights_, ours.means_, ours.covariances_, strict=True)
    ]
    np.testing.assert_allclose(ours.score_samples(seen), np.log(np.sum(expected, axis=0)), rtol=1e-9)


def test_tails_are_chosen_if_they_are_asked_for():
    assert fedcore.FederatedMixture(2).fit(HEAVY).degrees_of_freedom_ == np.inf
    ours = fedcore.FederatedMixture(2, settings={"tails": "auto"}).fit(HEAVY)
    assert ours.degrees_of_freedom_ in (3.0, 5.0) and "Student-t" in ours.outcome_
    assert fedcore.FederatedMixture(2, settings={"tails": "auto"}).fit(APART).degrees_of_freedom_ == np.inf
    again = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again.score_samples(NEW), ours.score_samples(NEW))
    with pytest.raises(ConfigError, match="no mixture of Student-t"):
        ours.to_sklearn()
    with pytest.raises(ConfigError, match="for the algorithm em"):
        fedcore.FederatedMixture(2, algorithm="fedem", settings={"tails": "auto"}).fit(HEAVY)


def test_samples_of_student_components_have_their_tails():
    """Of 20,000 rows the shares beyond the 5th and 95th percentile of each column's distribution, within 5 errors."""
    ours = fedcore.FederatedMixture(1, settings={"tails": 4.0}).fit(HEAVY[:1500])
    x, y = ours.sample(20_000)
    assert x.shape == (20_000, 2) and not y.any()
    for column in (0, 1):
        scale = np.sqrt(ours.covariances_[0, column, column])
        below = student_t(4.0, ours.means_[0, column], scale).cdf(x[:, column])
        assert abs((below < 0.05).mean() - 0.05) < 5 * np.sqrt(0.0475 / 20_000)
        assert abs((below > 0.999).mean() - 0.001) < 5 * np.sqrt(0.001 / 20_000)
    np.testing.assert_array_equal(x, ours.sample(20_000)[0])


def test_a_warm_start_keeps_the_tails():
    ours = fedcore.FederatedMixture(2, warm_start=True, settings={"tails": 4.0}).fit(HEAVY)
    before = ours.lower_bound_
    assert ours.fit(HEAVY).lower_bound_ == pytest.approx(before, abs=1e-3) and ours.n_iter_ <= 3


def test_a_warm_start_keeps_the_tails_that_were_chosen():
    ours = fedcore.FederatedMixture(2, warm_start=True, settings={"tails": "auto"}).fit(HEAVY)
    before = ours.degrees_of_freedom_
    assert np.isfinite(before) and ours.fit(HEAVY).degrees_of_freedom_ == before


def test_gaps_are_filled_by_student_components():
    """Intervals of 90 % cover 90 % of what is hidden, within 5 errors; those of normal components too many of them."""
    x = HEAVY.copy()
    hidden = np.random.default_rng(1).random(len(x)) < 0.3
    seen = np.where(np.column_stack([np.zeros(len(x), bool), hidden]), np.nan, x)
    ours = fedcore.FederatedMixture(2, settings={"tails": 4.0}).fit(seen)
    low, high = ours.impute_intervals(seen)
    inside = ((low <= x) & (x <= high))[hidden, 1].mean()
    assert abs(inside - 0.9) < 5 * np.sqrt(0.09 / hidden.sum())
    assert np.isfinite(ours.impute(seen)).all() and ours.impute(seen, draws=2).shape == (2, *x.shape)
