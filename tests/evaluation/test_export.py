"""What a run has learnt, for other programs: the same numbers in every form, whole or absent."""

import csv
import json
import pickle
import stat

import joblib
import numpy as np
import pyarrow.parquet as parquet
import pytest
import zarr
from sklearn.decomposition import sparse_encode

import fedcore
from fedcore.errors import ConfigError, RunError
from fedcore.evaluation import export, result_file
from fedcore.evaluation.scikit_learn import estimator_of
from fedcore.interface import data
from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig
from fedcore.methods.private_gmm import PrivateGMM
from fedcore.methods.private_mixture import PrivateMixtureConfig
from fedcore.methods.private_mixture.density import TAIL
from fedcore.population.ingest.ingest import ingest
from fedcore.rounds.fitted import FittedDictionary
from fedcore.rounds.results import Column, Result, Table
from fedcore.runs.store import Run
from fedcore.storage import files
from tests.command import fedcore as command
from tests.command import works
from tests.perma import run_in_memory
from tests.private_gmm import worlds as gmm_worlds
from tests.private_mixture import worlds as mixture_worlds

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(200, 2)) + np.where(np.arange(200) % 2, 4.0, -4.0)[:, None]
EM = {"algorithm": "em", "components": 2, "max_passes": 7}
ODD = Table(
    "odd",
    "All kinds of cells",
    (
        Column("component", [1, "background"]),
        Column("share", [0.25, np.float64(0.75)], "%"),
        Column("height", [float("nan"), None], "cm"),
        Column("tokens", [["a, b", 'c"'], []]),
    ),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("export")
    rows = data.rows_stored(X, np.repeat(np.arange(20), 10), place / "population").population
    return fedcore.train("federated_em", rows, EM, runs=place / "runs", run_id="one")


def lines(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def test_every_form_has_the_same_numbers(model, tmp_path):
    told = model.export(tmp_path / "out")
    assert told["holds"] == list(model.tables) and not told["private"]
    means = model.columns("means")
    heading, *rows = lines(tmp_path / "out" / "means.csv")
    assert heading == list(means) and [[row[0], *map(float, row[1:])] for row in rows] == [
        list(row) for row in zip(*means.values(), strict=True)
    ]
    model.export(tmp_path / "means.csv", "means")
    assert (tmp_path / "means.csv").read_bytes() == (tmp_path / "out" / "means.csv").read_bytes()
    model.export(tmp_path / "means.parquet", "means")
    table = parquet.read_table(tmp_path / "means.parquet")
    about = parquet.read_metadata(tmp_path / "means.parquet").metadata
    assert table.to_pydict() == means and json.loads(about[b"fedcore"])["run_id"] == "one"
    model.export(tmp_path / "all.json")
    kept = (model.path / "result.json").read_bytes()
    assert kept == (tmp_path / "all.json").read_bytes() == (tmp_path / "out" / "result.json").read_bytes()
    model.export(tmp_path / "a.npz")
    model.export(tmp_path / "a.zarr")
    arrays, group = np.load(tmp_path / "a.npz", allow_pickle=False), zarr.open_group(tmp_path / "a.zarr", mode="r")
    assert np.array_equal(arrays["theta"], model.state["theta"]) and str(arrays["phase"]) == model.state["phase"]
    assert np.array_equal(group["theta"][...], model.state["theta"])
    assert group.attrs["scalars"]["round"] == model.state["round"] and group.attrs["fedcore"] == json.loads(kept)
    assert np.allclose(arrays["model_means"].T, np.array(list(means.values())[1:], float).T)
    assert np.array_equal(group["model_means"][...], arrays["model_means"])
    assert not list(tmp_path.glob(".*"))
    modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in tmp_path.rglob("*")}
    assert modes == {0}  # the run claims no privacy


def test_a_fitted_estimator_is_the_model(model, tmp_path):
    told = model.export(tmp_path / "m.joblib")
    assert "code" in told["note"]
    model.export(tmp_path / "m.pkl")
    densities = model.predict()["rows_log_density"]
    for made in (
        joblib.load(tmp_path / "m.joblib"),
        pickle.loads((tmp_path / "m.pkl").read_bytes()),
        model.to_sklearn(),
    ):
        assert np.allclose(made.score_samples(X), densities)
    assert np.allclose(made.precisions_ @ made.covariances_, np.eye(2)) and made.sample(3)[0].shape == (3, 2)


@pytest.mark.slow
def test_estimators_know_the_names_of_columns(tmp_path):
    (tmp_path / "t.csv").write_text("client,age,size\n" + "".join(f"c{i % 9},{a},{b}\n" for i, (a, b) in enumerate(X)))
    population = ingest(tmp_path / "t.csv", tmp_path / "named")
    settings = {"components": 2, "algorithm": "em", "max_passes": 4}
    made = fedcore.train("federated_em", population, settings, runs=tmp_path / "runs", run_id="one").to_sklearn()
    assert made.feature_names_in_.tolist() == ["age", "size"]
    fedcore.load_run(tmp_path / "runs" / "one").export(tmp_path / "m.joblib")
    assert joblib.load(tmp_path / "m.joblib").feature_names_in_.tolist() == ["age", "size"]
    fitted = FittedDictionary(np.eye(2), "omp", 1, None, 3)
    assert not hasattr(estimator_of(fitted), "feature_names_in_")
    assert not hasattr(estimator_of(fitted, ["a", "b", "weight"]), "feature_names_in_")


def test_an_estimator_of_a_run_without_names_has_none(model):
    assert not hasattr(model.to_sklearn(), "feature_names_in_")


def test_the_result_is_kept_when_a_run_ends_and_no_run_needs_it(model, tmp_path, monkeypatch):
    kept = json.loads((model.path / "result.json").read_text())
    assert kept["outcome"] == model.outcome and kept["privacy"]["privacy"] == "none" and kept["status"] == "finished"
    assert [table["name"] for table in kept["tables"]] == list(model.tables)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(result_file, "write_json", full)
    said = result_file.keep_result_if_possible(Run.open(model.path), None)
    assert "No space left" in said and "fedcore export" in said


def test_standard_errors_are_beside_what_they_are_of(tmp_path):
    shares = Column("share", [0.5, 0.25], "%", [0.01, None])
    table = Table("t", "With errors", (Column("component", [1, 2]), shares, Column("size", [3.0, 4.0], "cm")))
    (tmp_path / "t.csv").write_bytes(export.csv_bytes(table))
    heading, *rows = lines(tmp_path / "t.csv")
    assert heading == ["component", "share", "share (standard error)", "size [cm]"]
    assert rows == [["1", "0.5", "0.01", "3.0"], ["2", "0.25", "", "4.0"]]
    arrow = export._arrow(table)
    assert arrow["share (standard error)"].to_pylist() == [0.01, None]
    assert arrow.field("share (standard error)").metadata == {b"unit": b"%"}


def test_result_json_has_the_whole_tables(model):
    table = Table("t", "With errors", (Column("mean", [0.5, float("nan")], "cm", [0.01, None]),), "What to know.")
    (written,) = result_file.result_document(Run.open(model.path), Result((table,)))["tables"]
    assert written == table.to_json() and written["note"] == "What to know."
    assert written["columns"][0] == {"name": "mean", "unit": "cm", "values": [0.5, None], "errors": [0.01, None]}


def test_cells_of_all_kinds(tmp_path):
    (tmp_path / "t.csv").write_bytes(export.csv_bytes(ODD))
    assert lines(tmp_path / "t.csv") == [
        ["component", "share", "height [cm]", "tokens"],
        ["1", "0.25", "nan", 'a, b; c"'],
        ["background", "0.75", "", ""],
    ]
    told = export._arrow(ODD).to_pydict()
    assert told["component"] == ["1", "background"] and told["tokens"] == [["a, b", 'c"'], []]
    columns = ODD.to_json()["columns"]
    assert [column["values"] for column in columns][1:3] == [[0.25, 0.75], [None, None]]
    assert columns[2]["unit"] == "cm"


@pytest.mark.parametrize(
    ("name", "table", "sentence"),
    [
        ("m.txt", None, "cannot be exported as"),
        ("m.csv", None, "and a file holds one"),
        ("m.csv", "nothing", "no table 'nothing'"),
        ("m.npz", "means", "does not hold a single table"),
        ("m.json/", None, "ends like a file"),
        ("memory://folder", None, "behind a URL"),
        ("there.json", None, "--force"),
        ("there", None, "exists already"),
    ],
)
def test_a_name_that_cannot_be_meant_is_refused(model, tmp_path, name, table, sentence):
    (tmp_path / "there.json").write_text("mine")
    (tmp_path / "there").mkdir()
    where = name if "://" in name else f"{tmp_path}/{name}"
    with pytest.raises(ConfigError, match=sentence):
        model.export(where, table)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there", "there.json"]
    assert (tmp_path / "there.json").read_text() == "mine"


def test_a_file_is_replaced_on_request_and_a_folder_never(model, tmp_path):
    (tmp_path / "m.json").write_text("mine")
    model.export(tmp_path / "m.json", force=True)
    assert json.loads((tmp_path / "m.json").read_text())["run_id"] == "one"
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        model.export(tmp_path / "out", force=True)


def test_what_cannot_be_written_leaves_nothing(model, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "seal", full)
    for name in ("out", "out.zarr"):
        with pytest.raises(RunError, match="No space left"):
            model.export(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_methods_say_what_has_no_counterpart():
    for settings in ({"model": "regression"}, {"covariance": "known"}):
        method = FederatedEM(FederatedEMConfig(algorithm="em", **settings))
        with pytest.raises(ConfigError, match="no counterpart"):
            method.fitted_model(None)


def test_the_mixture_of_published_values_has_the_density_of_the_run():
    generator = np.random.default_rng(1)
    truth = mixture_worlds.mixture(3, 2, 6.0, generator)
    x = truth.sample(4000, generator)[0] * [1, 10, 0.1] + 5
    method, state = mixture_worlds.run(mixture_worlds.records(x), PrivateMixtureConfig(components=2), 2.0)
    made = estimator_of(method.fitted_model(state))
    model = method.model(state)
    without = np.log1p(-TAIL) + made.score_samples(x)  # the tail has no counterpart in scikit-learn
    assert (model.log_likelihood(x) >= without - 1e-9).all()
    assert np.median(model.log_likelihood(x) - without) < 1e-3
    likely = made.score_samples(x) > np.median(made.score_samples(x))
    assert np.allclose(made.predict_proba(x)[likely], model.responsibilities(x)[likely], atol=1e-2)


@pytest.mark.parametrize("form", ["spherical", "diag", "full"])
def test_separated_components_too(form):
    block = gmm_worlds.structured()
    method = PrivateGMM(gmm_worlds.config(covariance=form))
    state = gmm_worlds.run_without_noise(method, gmm_worlds.facts(), block)
    assert state.found
    made = estimator_of(method.fitted_model(state))
    assert np.allclose(made.score_samples(block.x), method.mixture(state).log_likelihood(block.x))


def test_shared_atoms_code_samples():
    random = np.random.default_rng(2)
    atoms = np.linalg.qr(random.normal(size=(5, 5)))[0][:2]
    rows = [(random.normal(size=(40, 2)) * 3) @ atoms + 0.01 * random.normal(size=(40, 5)) for _ in range(6)]
    ran = run_in_memory.run(run_in_memory.block_of(rows), atoms=2, global_atoms=2, rounds=5)
    fitted = ran.method.fitted_model(ran.state)
    made, expected = estimator_of(fitted), ran.state.common
    codes = made.transform(rows[0])
    hard = rows[0] @ expected.T
    support = np.abs(hard) > ran.method.config.threshold
    assert np.array_equal(codes != 0, support)  # soft thresholds: the same support
    pursuit = estimator_of(FittedDictionary(expected, "omp", 2, None, 1)).transform(rows[0])
    assert np.allclose(pursuit @ expected, rows[0], atol=0.1)
    assert np.allclose(pursuit, sparse_encode(rows[0], expected, algorithm="omp", n_nonzero_coefs=2))


def test_by_command_also_of_a_run_behind_a_url(model, tmp_path, memory):
    for file in model.path.rglob("*"):
        if file.is_file():
            files.write_whole(files.place(f"{memory}/r/{file.relative_to(model.path)}"), file.read_bytes())
    out = works("export", f"{memory}/r", tmp_path / "m.json", "--json").json
    assert out["dest"] == str(tmp_path / "m.json") and "means" in out["holds"]
    works("export", model.path, f"{memory}/m.csv", "--table", "means")
    assert files.read_bytes(files.place(f"{memory}/m.csv")).startswith(b"column,A,B")
    assert command("export", model.path, tmp_path / "m.json").code == 2


@pytest.mark.parametrize("safe", [False, True])
def test_texts_that_look_like_formulas(model, tmp_path, monkeypatch, safe):
    table = Table("t", "Words", (Column("=word", ["=1+1", "plain"]), Column("share", [-0.5, 0.25])))
    monkeypatch.setitem(vars(model.learnt), "result", Result((table,)))
    told = model.export(tmp_path / "run_0.5_0", safe_cells=safe)
    mark = "'" if safe else ""
    assert lines(tmp_path / "run_0.5_0" / "t.csv") == [
        [f"{mark}=word", "share"],
        [f"{mark}=1+1", "-0.5"],
        ["plain", "0.25"],
    ]
    assert ("note" in told) != safe
    with pytest.raises(ConfigError, match="CSV"):
        model.export(tmp_path / "a.npz", safe_cells=True)
