"""The private mixture as an estimator: records and clients, what it promises, what it refuses."""

import numpy as np
import pytest

import fedcore
from fedcore.errors import BudgetExceeded, ConfigError

RANDOM = np.random.default_rng(5)
APART = np.concatenate([RANDOM.normal(size=(1500, 2)) + at for at in (-5, 5)])[RANDOM.permutation(3000)]
pytestmark = pytest.mark.usefixtures("few_repetitions")
ASKED = {"epsilon": 4.0, "delta": 1e-7, "nominal_clients": 3000, "public_schema": "two published columns"}


def test_what_is_missing_is_named():
    for missing in ("delta", "nominal_clients", "public_schema"):
        with pytest.raises(ConfigError, match=missing):
            fedcore.PrivateMixture(2, **{**ASKED, missing: None}).fit(APART)
    with pytest.raises(ConfigError, match="epsilon"):
        fedcore.PrivateMixture(2, **{**ASKED, "epsilon": None}).fit(APART)


@pytest.mark.slow
def test_records_of_an_array(tmp_path):
    fitted = fedcore.PrivateMixture(2, **ASKED, folder=str(tmp_path / "kept")).fit(APART)
    assert fitted.statement_["private"] and fitted.statement_["unit"] == "record"
    assert "two published columns" in fitted.statement_["text"]
    assert sorted(fitted.means_.round().astype(int).tolist()) == [[-5, -5], [5, 5]]
    assert len({*fitted.groups_.tolist()}) == 2 and fitted.weights_.sum() + fitted.background_ == pytest.approx(1)
    labels = fitted.predict(APART)
    assert len({*labels[APART[:, 0] < 0].tolist()}) == len({*labels[APART[:, 0] > 0].tolist()}) == 1
    assert fitted.predict_proba(APART).shape == (3000, len(fitted.means_) + 1)
    truth = np.log(0.5 * sum(np.exp(-0.5 * ((APART - at) ** 2).sum(axis=1)) for at in (-5, 5)) / (2 * np.pi)).mean()
    assert fitted.score(APART) == pytest.approx(truth, abs=0.2)
    tail = fitted.score_samples(APART) - fitted.to_sklearn().score_samples(APART)
    assert tail.min() > -0.0101 and np.median(tail) < 0.01
    x, y = fitted.sample(4000)
    assert x.shape == (4000, 2) and set(y.tolist()) <= set(range(len(fitted.means_) + 1))
    near = np.abs(x - fitted.means_[0]).max(axis=1)[y == 0]
    assert (near < 6 * np.sqrt(fitted.covariances_[0].max())).all() and not hasattr(fitted, "bic")
    assert fitted.predict(np.array([[np.nan, 5.0], [5.0, 5.0]])).tolist() in ([0, 0], [1, 1])
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict(np.array([[np.nan, np.nan]]))
    store = fedcore.open_population(tmp_path / "kept" / "population")
    assert store.manifest.records and fedcore.budget(store).rho_left < 1e-4  # all of it went into this fit
    with pytest.raises(BudgetExceeded):
        fedcore.PrivateMixture(2, epsilon=1.0).fit(store)


@pytest.mark.slow
def test_labels_of_a_private_fit_leave_rows_without_a_number_out():
    gaps = APART.copy()
    gaps[::10, 0] = np.nan
    gaps[::20, 1] = np.nan
    labels = fedcore.PrivateMixture(2, **ASKED).fit_predict(gaps)
    assert labels.shape == (3000,) and ((labels == -1) == np.isnan(gaps).all(axis=1)).all()
    right = labels[10::20] == labels[np.isfinite(gaps).all(axis=1) & (APART[:, 1] > 0)][0]
    assert (right == (APART[10::20, 1] > 0)).all()


@pytest.mark.slow
def test_clients_of_several_rows():
    people = np.repeat(np.arange(1500), 2)
    asked = {**ASKED, "nominal_clients": 1500}
    fitted = fedcore.PrivateMixture(2, **asked).fit(APART, groups=people)
    assert fitted.statement_["unit"] == "client"
    assert fitted.means_.shape[1] == 2 and np.isfinite(fitted.score(APART))


@pytest.mark.slow
def test_a_file_without_clients_is_one_of_records(tmp_path):
    np.savetxt(tmp_path / "table.csv", APART, delimiter=",", header="height,weight", comments="")
    fitted = fedcore.PrivateMixture(2, **ASKED).fit(str(tmp_path / "table.csv"))
    assert fitted.statement_["unit"] == "record"
    assert fitted.model_.columns("means")["column"] == ["height", "weight"]


@pytest.mark.slow
def test_rows_are_filled_by_the_released_mixture():
    """Against the conditional normals of the released components written out, the background among them."""
    fitted = fedcore.PrivateMixture(2, **ASKED).fit(APART)
    rows = np.array([[-4.5, np.nan], [np.nan, 5.5], [0.25, 0.5], [np.nan, np.nan]])
    filled, (low, high) = fitted.impute(rows), fitted.impute_intervals(rows, 0.9)
    made = fitted.to_sklearn()
    for row, seen, hidden in ((0, 0, 1), (1, 1, 0)):
        variances = made.covariances_[:, seen, seen]
        off = rows[row, seen] - made.means_[:, seen]
        shares = made.weights_ * np.exp(-0.5 * off**2 / variances) / np.sqrt(variances)
        means = made.means_[:, hidden] + made.covariances_[:, hidden, seen] / variances * off
        assert filled[row, hidden] == pytest.approx(shares @ means / shares.sum(), abs=1e-8)
        assert low[row, hidden] < filled[row, hidden] < high[row, hidden]
        assert filled[row, seen] == low[row, seen] == high[row, seen] == rows[row, seen]
    assert np.array_equal(filled[2], rows[2])
    np.testing.assert_allclose(filled[3], made.weights_ @ made.means_)
    drawn = fitted.impute(rows, draws=3)
    assert drawn.shape == (3, 4, 2) and np.isfinite(drawn).all()
    assert np.array_equal(drawn, fitted.impute(rows, draws=3))
    with pytest.raises(ValueError, match="below 1"):
        fitted.impute(rows, draws=0)
    with pytest.raises(ValueError, match="not between"):
        fitted.impute_intervals(rows, 1.0)
