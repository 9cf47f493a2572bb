"""The estimators: scikit-learn's manners, and the values of the engine."""

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import scipy.sparse as sp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture

import fedcore
from fedcore.errors import BudgetExceeded, ConfigError, IngestError
from fedcore.interface import data, tables
from fedcore.training.budget import ledger_name

RANDOM = np.random.default_rng(3)
APART = np.concatenate([RANDOM.normal(size=(300, 2)) * [1, 2] + at for at in (-5, 5)])
DICE = RANDOM.multinomial(60, [0.4, 0.3, 0.2, 0.1], size=500)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_a_mixture_is_that_of_scikit_learn_started_there(kind):
    ours = fedcore.FederatedMixture(2, covariance_type=kind, settings={"pseudo_rows": 0.0}).fit(APART)
    theirs = ours.to_sklearn()
    assert np.abs(theirs.score_samples(APART) - ours.score_samples(APART)).max() < 1e-8
    assert np.array_equal(theirs.predict(APART), ours.predict(APART))
    inverse = {"tied": np.linalg.inv, "full": np.linalg.inv, "diag": np.reciprocal, "spherical": np.reciprocal}[kind]
    again = GaussianMixture(
        2,
        covariance_type=kind,
        weights_init=ours.weights_,
        means_init=ours.means_,
        precisions_init=inverse(ours.covariances_),
        reg_covar=0,
        tol=1e-9,
        max_iter=200,
    ).fit(APART)
    assert again.score(APART) == pytest.approx(ours.score(APART), abs=1e-3)  # a maximum, to the tolerance of a run


def test_groups_do_not_matter_to_exact_sums():
    exact = {"tol": 1e-10, "pseudo_rows": 0.0}  # the starts are others, and both climb to the same maximum
    whole = fedcore.FederatedMixture(2, settings=exact).fit(APART)
    order = np.random.default_rng(0).permutation(len(APART))
    dealt = fedcore.FederatedMixture(2, settings=exact).fit(APART[order], groups=np.arange(len(APART)) % 7)
    assert dealt.score(APART) == pytest.approx(whole.score(APART), abs=1e-6)


@pytest.mark.slow
def test_gaps_are_refused_or_filled_but_never_unseen():
    x = APART.copy()
    x[::10, 1] = np.nan
    fitted = fedcore.FederatedMixture(2).fit(x)
    assert np.isfinite(fitted.score_samples(x)).all()
    assert np.abs(np.sort(fitted.means_[:, 0]) - [-5, 5]).max() < 0.5
    with pytest.raises(ValueError, match="infinity"):
        fedcore.FederatedMixture().fit(np.where(np.isnan(x), np.inf, x))


def test_a_fit_without_a_folder_is_exported_after_its_files_are_gone(tmp_path):
    fitted = pickle.loads(pickle.dumps(fedcore.FederatedMixture(2).fit(APART)))
    model = fitted.model_
    assert not model.path.exists() and len(repr(model)) < 200 and "finished" in repr(model)
    for name in ("tables", "means.csv", "result.json", "arrays.npz", "mixture.joblib"):
        assert model.export(tmp_path / name, "means" if name == "means.csv" else None)["holds"]
    assert (tmp_path / "means.csv").read_bytes() == (tmp_path / "tables" / "means.csv").read_bytes()
    assert json.loads((tmp_path / "result.json").read_text())["privacy"]["privacy"] == "none"


def test_columns_of_a_data_frame_keep_their_names():
    frame = pytest.importorskip("pandas").DataFrame(APART, columns=["height", "weight"])
    fitted = fedcore.FederatedMixture(2).fit(frame)
    assert fitted.model_.columns("means")["column"] == ["height", "weight"]
    assert fitted.fit(APART).model_.columns("means")["column"] == ["column 0", "column 1"]


@pytest.mark.slow
def test_what_was_fitted_is_kept_where_it_was_asked_for(tmp_path):
    fitted = fedcore.FederatedMixture(2, folder=str(tmp_path / "kept")).fit(APART)
    assert fedcore.load_run(fitted.run_).status == "finished"
    assert (tmp_path / "kept" / "population").is_dir()
    first = fitted.run_
    assert Path(fitted.fit(APART).run_).parents[1] == tmp_path / "kept" / "fit-2"
    assert Path(clone(fitted).fit(APART).run_).parents[1] == tmp_path / "kept" / "fit-3"
    assert fedcore.load_run(first).status == "finished"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files"):
        clone(fitted).set_params(folder=str(tmp_path / "other")).fit(APART)
    again = fedcore.FederatedMixture(2).fit(str(tmp_path / "kept" / "population"))
    assert np.array_equal(again.means_, fitted.means_)
    copy = pickle.loads(pickle.dumps(again))
    assert np.array_equal(copy.predict(APART), fitted.predict(APART)) and again.run_ is None


def test_files_are_read_as_they_are(tmp_path):
    lines = "".join(f"{i % 9},{a},{b}\n" for i, (a, b) in enumerate(APART.tolist()))
    (tmp_path / "rows.csv").write_text("who,a,b\n" + lines)
    fitted = fedcore.FederatedMixture(2).fit(str(tmp_path / "*.csv"), groups="who")
    assert np.abs(np.sort(fitted.means_[:, 0]) - [-5, 5]).max() < 0.5
    with pytest.raises(ConfigError, match="name of a column"):
        fedcore.FederatedMixture(2).fit(str(tmp_path / "*.csv"), groups=[1, 2])


@pytest.mark.slow
def test_files_whose_rows_are_nobodys_give_what_the_array_gives(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROWS_OF_A_PART", 128)
    monkeypatch.setattr(data, "ROWS_OF_A_PART", 128)
    expected = fedcore.FederatedMixture(2).fit(APART).means_
    gaps = APART.copy()
    gaps[5, 1] = np.nan
    table = pa.table({"a": APART[:, 0], "b": APART[:, 1]})
    (tmp_path / "table").mkdir()
    for number, (low, high) in enumerate(((0, 250), (250, 251), (251, 600))):
        parquet.write_table(table.slice(low, high - low), tmp_path / "table" / f"{number}.parquet", row_group_size=100)
    np.save(tmp_path / "rows.npy", APART)
    lines = "".join(f"{a!r},{b!r}\n" for a, b in APART.tolist())
    (tmp_path / "rows.csv").write_text("a,b\n" + lines)
    for name in ("table/*.parquet", "table", "rows.npy", "rows.csv"):
        assert np.array_equal(fedcore.FederatedMixture(2).fit(str(tmp_path / name)).means_, expected), name
    np.save(tmp_path / "gaps.npy", gaps)
    store = data.opened(str(tmp_path / "gaps.npy"), None, tmp_path / "gaps", "rows")
    assert store.n_rows == 600 and store.n_clients == 5 and np.isnan(store.read(0).x[5, 1])
    parquet.write_table(pa.table({"a": pa.array([1, None], pa.int16())}), tmp_path / "small.parquet")
    small = data.opened(str(tmp_path / "small.parquet"), None, tmp_path / "small", "rows").read(0)
    assert small.x.dtype == np.float32 and np.isnan(small.x[1, 0])


def test_files_that_are_no_rows_of_numbers_are_refused(tmp_path):
    (tmp_path / "words.csv").write_text("a,who\n1,x\n")
    (tmp_path / "inf.csv").write_text("a\n1\n-inf\n")
    (tmp_path / "none.csv").write_text("a\n")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    np.save(tmp_path / "one.npy", np.zeros(3))
    for name, error, sentence in (
        ("words.csv", ConfigError, "no numbers in these columns of .*: who"),
        ("inf.csv", IngestError, "Row 1 .* infinite"),
        ("none.csv", IngestError, "no row"),
        ("torn.parquet", IngestError, "cannot be read"),
        ("one.npy", IngestError, "rows of as many numbers"),
        ("*.csv", IngestError, "has other columns than"),
    ):
        with pytest.raises(error, match=sentence):
            data.opened(str(tmp_path / name), None, tmp_path / "made", "rows")
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "estimator", [fedcore.FederatedMixture(), fedcore.RobustMultiTaskMixture(), fedcore.PersonalDictionaries()]
)
def test_mistakes_are_clear(estimator):
    with pytest.raises(ConfigError, match="shape"):
        estimator.fit(APART, groups=[1, 2, 3])
    with pytest.raises(ConfigError, match="random_state"):
        clone(estimator).set_params(random_state="0").fit(APART, groups=np.zeros(len(APART)))
    with pytest.raises(ConfigError):
        clone(estimator).set_params(settings={"no_such": 1}).fit(APART, groups=np.zeros(len(APART)))


def test_nothing_is_told_before_the_fit():
    for estimator in (fedcore.FederatedMixture(), fedcore.PersonalHistograms()):
        with pytest.raises(NotFittedError):
            (estimator.predict if hasattr(estimator, "predict") else estimator.transform)(APART)


@pytest.mark.slow
def test_each_client_has_its_own_mixture():
    random = np.random.default_rng(5)
    groups = np.repeat([f"c{i}" for i in range(12)], 60)
    truth = random.normal(size=(12, 1)) * 0.3
    side = random.integers(2, size=len(groups)) * 2 - 1
    x = random.normal(size=(len(groups), 2)) + np.where(side > 0, 4, -4)[:, None] + np.repeat(truth, 60, axis=0)
    shuffled = random.permutation(len(x))
    fitted = fedcore.RobustMultiTaskMixture(2).fit(x[shuffled], groups=groups[shuffled])
    assert fitted.clients_.tolist() == sorted(set(groups)) and fitted.client_centers_.shape == (12, 2, 2)
    assert np.abs(np.sort(fitted.centers_[:, 0]) - [-4, 4]).max() < 0.5
    agrees = (fitted.labels_ == (side[shuffled] > 0)).mean()
    assert max(agrees, 1 - agrees) > 0.99  # in the order of the rows that were given
    assert fitted.outcome_.startswith("converged: ") and fitted.apart_.shape == (12, 2) and not fitted.apart_.all()
    new, asked = random.normal(size=(50, 2)) * 5, np.array([f"c{i % 12}" for i in range(50)])
    inside = np.broadcast_to(fitted.covariances_, (2, 2, 2))
    for row, one, labels, shares, density in zip(
        new,
        asked,
        fitted.predict(new, asked),
        fitted.predict_proba(new, asked),
        fitted.score_samples(new, asked),
        strict=True,
    ):
        place = fitted.clients_.tolist().index(one)
        parts = fitted.client_weights_[place] * [
            multivariate_normal.pdf(row, fitted.client_centers_[place, g], inside[g]) for g in (0, 1)
        ]
        assert labels == parts.argmax() and shares == pytest.approx(parts / parts.sum(), abs=1e-9)
        assert density == pytest.approx(np.log(parts.sum()), rel=1e-9)
    again = fitted.predict(x, groups)
    assert np.array_equal(again[shuffled], fitted.labels_)
    assert fitted.score(x, groups=groups) == pytest.approx(fitted.score_samples(x, groups).mean())
    with pytest.raises(ConfigError, match="groups"):
        fitted.predict(x)
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict(np.full((1, 2), np.nan), ["c0"])


def test_clients_predict_by_their_own_regression():
    random = np.random.default_rng(6)
    groups = np.repeat(np.arange(20), 50)
    slopes = 2 + 0.3 * random.normal(size=20)
    x = random.normal(size=(1000, 1))
    y = slopes[groups] * x[:, 0] + 0.1 * random.normal(size=1000)
    fitted = fedcore.RobustMultiTaskMixture(1, model="regression").fit(x, y, groups=groups)
    new = random.normal(size=(200, 1))
    asked = random.integers(20, size=200)
    assert np.abs(fitted.predict(new, asked) - slopes[asked] * new[:, 0]).max() < 0.3  # errors of slopes: .1 / sqrt(50)
    assert fitted.outcome_.startswith("converged: ") and fitted.apart_.shape == (20, 1) and fitted.apart_.mean() <= 0.1
    assert fitted.n_features_in_ == 1 and fitted.score(x, y, groups) > 0.95 and fitted.covariances_ is None
    with pytest.raises(ConfigError, match="was not there"):
        fitted.predict(new, np.full(200, 99))
    with pytest.raises(ConfigError, match="densities"):
        fitted.predict_proba(new, asked)
    together = fedcore.RobustMultiTaskMixture(1, model="regression").fit(np.column_stack([x, y]), groups=groups)
    assert together.n_features_in_ == 1 and np.array_equal(together.predict(new, asked), fitted.predict(new, asked))


def test_histograms_are_given_to_clients():
    fitted = fedcore.PersonalHistograms(2).fit(sp.csr_matrix(DICE))
    given = fitted.transform(DICE)
    assert given.shape == DICE.shape and np.abs(given.sum(axis=1) - 1).max() < 1e-5
    assert np.abs(fitted.mean_ - [0.4, 0.3, 0.2, 0.1]).max() < 0.02
    assert fitted.statement_["privacy"] == "none"
    assert set(fitted.predict(DICE).tolist()) <= {0, 1} and fitted.get_feature_names_out()[0] == "x0"
    with pytest.raises(ValueError, match="not whole"):
        fedcore.PersonalHistograms(2).fit(DICE + 0.5)


@pytest.mark.slow
def test_private_histograms_say_what_they_promise(tmp_path):
    asked = {"epsilon": 4.0, "delta": 1e-6, "nominal_clients": 500, "public_schema": "four numbered sides"}
    for missing in ("delta", "nominal_clients", "public_schema"):
        with pytest.raises(ConfigError, match=missing):
            fedcore.PersonalHistograms(**{**asked, missing: None}).fit(DICE)
    fitted = fedcore.PersonalHistograms(**asked, folder=str(tmp_path / "kept")).fit(DICE)
    assert fitted.statement_["private"] and "four numbered sides" in fitted.statement_["text"]
    assert np.abs(fitted.mean_ - [0.4, 0.3, 0.2, 0.1]).max() < 0.1
    assert fitted.transform(DICE).shape == DICE.shape
    store = fedcore.open_population(tmp_path / "kept" / "population")
    assert fedcore.budget(store).rho_left < 1e-4  # all of it went into this fit
    with pytest.raises(BudgetExceeded):
        fedcore.PersonalHistograms(epsilon=1.0).fit(store)


def test_a_fit_on_a_population_takes_its_share_of_the_budget(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    options = {"ledger": ledger_name(), "nominal_clients": 500}
    store = data.counts_stored(sp.csr_matrix(DICE), tmp_path / "population", **options).population
    fedcore.set_budget(store, 4.0, 1e-6, public_schema="four numbered sides")
    fedcore.PersonalHistograms(epsilon=1.0).fit(store)
    balance = fedcore.budget(store)
    assert 0 < balance.rho_spent < 0.2 * balance.budget.rho_max


class SharedCodes(fedcore.PersonalDictionaries):
    def transform(self, X):
        return super().transform(X)[:, : len(self.components_)]


def test_a_subclass_with_a_transform_of_samples_alone_is_scored():
    random = np.random.default_rng(8)
    x, groups = random.normal(size=(60, 6)), np.repeat(np.arange(3), 20)
    plain, ours = (kind(3, n_global=2).fit(x, groups=groups) for kind in (fedcore.PersonalDictionaries, SharedCodes))
    assert ours.transform(x).shape == (60, 2)
    assert ours.score(x) == plain.score(x) and ours.score(x, groups=groups) == plain.score(x, groups=groups)


@pytest.mark.slow
def test_samples_come_apart_into_shared_and_own_atoms():
    random = np.random.default_rng(7)
    atoms = np.linalg.qr(random.normal(size=(8, 8)))[0]
    groups = np.repeat(np.arange(10), 80)
    codes = random.normal(size=(800, 3)) * (random.random((800, 3)) < 0.4) * 3
    own = atoms[3 + groups % 5]
    x = codes[:, :2] @ atoms[:2] + codes[:, 2:] * own
    shuffled = random.permutation(800)
    fitted = fedcore.PersonalDictionaries(3, n_global=2).fit(x[shuffled], groups=groups[shuffled])
    assert fitted.components_.shape == (2, 8) and fitted.local_components_.shape == (10, 1, 8)
    left = x[shuffled] - fitted.global_part_ - fitted.local_part_
    assert (left**2).mean() < 0.1 * (x**2).mean()
    assert fitted.clients_.tolist() == list(range(10))
    codes = fitted.transform(x, groups)
    assert codes.shape == (800, 3) and fitted.get_feature_names_out().tolist()[2] == "personaldictionaries2"
    assert np.abs(fitted.inverse_transform(codes, groups)[shuffled] - x[shuffled] + left).max() < 1e-5
    assert (fitted.transform(x)[:, 2] == 0).all() and np.isfinite(fitted.inverse_transform(codes)).all()
    with pytest.raises(ValueError, match="3 codes"):
        fitted.inverse_transform(x, groups)
    with pytest.raises(ConfigError, match="was not there"):
        fitted.transform(x, groups + 1)
    again = clone(fitted).fit_transform(x[shuffled], groups=groups[shuffled])
    assert np.array_equal(again, codes[shuffled])
    first, late = groups < 8, groups >= 8
    some = fedcore.PersonalDictionaries(3, n_global=2).fit(x[first], groups=groups[first])
    alone = some.score(x[late])
    assert some.add_clients(x[late], groups[late]).clients_.tolist() == list(range(10))
    assert some.score(x[late], groups=groups[late]) > 0.5 * alone and alone < 0  # own atoms halve the error at least
    with pytest.raises(ConfigError, match="client 8 was there"):
        some.add_clients(x[late], groups[late])
    with pytest.raises(ConfigError, match="are texts and these are numbers"):
        some.add_clients(x[late], [f"p{group}" for group in groups[late]])
    assert some.clients_.tolist() == list(range(10))
