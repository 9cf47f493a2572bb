"""Data frames of pandas, polars and Arrow: the values of the array, with names, and transformed into frames again."""

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

import fedcore
from fedcore.interface.frames import as_array

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 2)) + np.where(np.arange(60) % 2, 3.0, -3.0)[:, None]
COUNTS = RANDOM.multinomial(30, [0.5, 0.3, 0.2], size=80)
NAMES = ["height", "weight"]
FRAMES = {
    "pandas": lambda columns: pandas.DataFrame(columns),
    "pandas_nullable": lambda columns: pandas.DataFrame(columns).convert_dtypes(),
    "polars": lambda columns: polars.DataFrame(columns),
    "arrow": lambda columns: pa.table(columns),
}
SMALL = {"max_iter": 3, "n_init": 1, "settings": {"pseudo_rows": 0.0}}


@pytest.fixture(params=FRAMES)
def frame(request):
    return FRAMES[request.param]


def test_columns_become_an_array(frame):
    x = as_array(frame({"a": [1, None, 3], "b": [True, False, True], "c": [0.5, 1.5, None]}))
    assert x.dtype == np.float64
    assert np.array_equal(x, [[1, 1, 0.5], [np.nan, 0, 1.5], [3, 1, np.nan]], equal_nan=True)
    with pytest.raises(ValueError, match="do not hold numbers: who"):
        as_array(frame({"a": [1, 2], "who": ["x", "y"]}))


def test_small_columns_stay_small():
    small = np.float32([1, 2])
    for made in (pandas.DataFrame({"a": small}), polars.DataFrame({"a": small}), pa.table({"a": small})):
        assert as_array(made).dtype == np.float32


def test_what_is_no_table_of_numbers_stays_as_it_is():
    twice = pandas.DataFrame(X, columns=["a", "a"])
    objects = pandas.DataFrame({"a": np.array([1, 2.5], object)})
    for given in (X, X.tolist(), sp.csr_matrix(COUNTS), twice, objects, None):
        assert as_array(given) is given
    with pytest.raises(ValueError, match="collect"):
        as_array(polars.LazyFrame({"a": [1.0]}))


def test_a_fit_to_a_frame_is_that_to_the_array(frame, tmp_path):
    columns = dict(zip(NAMES, X.T, strict=True))
    ours = fedcore.FederatedMixture(2, folder=str(tmp_path / "kept"), **SMALL).fit(frame(columns))
    assert ours.feature_names_in_.tolist() == NAMES and ours.n_features_in_ == 2
    assert np.array_equal(ours.means_, fedcore.FederatedMixture(2, **SMALL).fit(X).means_)
    assert np.array_equal(ours.score_samples(frame(columns)), ours.score_samples(X))
    store = fedcore.open_population(tmp_path / "kept" / "population")
    assert [column.name for column in store.manifest.columns] == NAMES
    assert ours.model_.columns("means")["column"] == NAMES
    with pytest.raises(ValueError, match="feature names"):
        ours.predict(frame({name: columns[name] for name in reversed(NAMES)}))


def test_series_are_weights_and_groups():
    groups = [f"c{i % 5}" for i in range(60)]
    expected = fedcore.FederatedMixture(2, **SMALL).fit(X, groups=groups, sample_weight=np.arange(60.0)).means_
    for series, made in ((pandas.Series, pandas.DataFrame), (polars.Series, polars.DataFrame), (pa.array, None)):
        given = X if made is None else made(dict(zip(NAMES, X.T, strict=True)))
        fitted = fedcore.FederatedMixture(2, **SMALL)
        fitted.fit(given, groups=series(groups), sample_weight=series(np.arange(60.0)))
        assert np.array_equal(fitted.means_, expected)
        if made is not None:
            assert fitted.model_.columns("means")["column"] == NAMES and fitted.feature_names_in_.tolist() == NAMES
            assert fitted.to_sklearn().feature_names_in_.tolist() == NAMES


def test_estimates_of_clients_are_frames_if_that_is_asked_for(frame):
    words = ["one", "two", "three"]
    given = frame(dict(zip(words, COUNTS.T, strict=True)))
    ours = fedcore.PersonalHistograms(2)
    with pytest.raises(NotFittedError):
        ours.get_feature_names_out()
    estimates = ours.fit(given).transform(COUNTS)
    assert ours.get_feature_names_out().tolist() == words
    for name, kind in (("pandas", pandas.DataFrame), ("polars", polars.DataFrame)):
        made = ours.set_output(transform=name).transform(given)
        assert isinstance(made, kind) and list(made.columns) == words and np.array_equal(made.to_numpy(), estimates)


@pytest.mark.slow
def test_codes_of_samples_are_frames_if_that_is_asked_for(frame):
    given = frame(dict(zip(NAMES, X.T, strict=True)))
    groups = np.arange(60) % 3
    ours = fedcore.PersonalDictionaries(2, n_global=1).set_output(transform="polars")
    made = ours.fit_transform(given, groups=groups)
    assert isinstance(made, polars.DataFrame) and made.columns == ours.get_feature_names_out().tolist()
    assert made.columns == ["personaldictionaries0", "personaldictionaries1"]
    assert np.array_equal(made.to_numpy(), ours.set_output(transform="default").transform(given, groups))
    assert ours.feature_names_in_.tolist() == NAMES


@pytest.mark.slow
def test_inputs_of_regressions_keep_their_names(frame):
    groups = np.arange(60) % 6
    given = frame(dict(zip(NAMES, X.T, strict=True)))
    both = frame(dict(zip([*NAMES, "loss"], [*X.T, X.sum(axis=1)], strict=True)))
    for asked in ((given, X.sum(axis=1)), (both,)):
        fitted = fedcore.RobustMultiTaskMixture(1, model="regression").fit(*asked, groups=groups)
        assert fitted.feature_names_in_.tolist() == NAMES and fitted.n_features_in_ == 2
        assert fitted.predict(given, groups).shape == (60,)
    assert list(fitted.model_.learnt.names) == [*NAMES, "loss"]
