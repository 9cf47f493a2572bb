"""Experiments of federated EM: what a trace counts, the tables on small data, and what the real data must give."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers import experiment
from fedcore.papers.data import rows_population, whitened_components
from fedcore.papers.fedem import bytes as fedem_bytes
from fedcore.papers.fedem import missing as fedem_hidden_cells
from fedcore.papers.fedem import missing as fedem_missing
from fedcore.papers.fedem import mnist as fedem_mnist
from fedcore.papers.fedem import runs as fedem_runs
from fedcore.papers.fedem import synthetic as fedem_synthetic
from fedcore.papers.fedem import tabular as fedem_tabular
from fedcore.papers.fedem.paper_federated_em import PaperFederatedEM
from fedcore.papers.table import Found, Options, Place, Row, brief, median, reproduce

from fedcore.errors import ConfigError
from fedcore.evaluation.curves import Panel, panels_figure
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables, parameters_from_cells
from fedcore.methods.mixture_models.nuclear_norm import minimise
from fedcore.rounds.engine import InProcessBackend

REAL = os.environ.get("FEDCORE_DATA")
NAMES = ("fedem-synthetic", "fedem-mnist", "fedem-missing", "fedem-tabular")
QUICK = Options(quick=True)


def here(tmp_path) -> Place:
    return Place(tmp_path / "experiment", InProcessBackend(), 2**24)


@pytest.fixture
def no_data(monkeypatch):
    monkeypatch.delenv("FEDCORE_DATA", raising=False)


# --- bookkeeping ----------------------------------------------------------------------------------------------------

CLIENTS, OWN, Q = 5, 8, 6  # two weights and two means in the plane
MODEL = {**fedem_synthetic.COMMON, "rounds": 4, "codec": 1}


def traced(tmp_path, every=1, **settings):
    rows = np.split(np.random.default_rng(0).normal(size=(CLIENTS * OWN, 2)), CLIENTS)
    population = rows_population(here(tmp_path), "p", lambda: rows, "drawn")
    return fedem_runs.traced(
        here(tmp_path), "run", {**MODEL, **settings}, population, 1, fedem_synthetic.start(), every
    )


def test_em_costs_an_epoch_and_a_whole_statistic_a_round(tmp_path):
    ran = traced(tmp_path, algorithm="em")
    assert ran.trace.epochs == [0, 1, 2, 3, 4]
    assert ran.trace.bits_up == [CLIENTS * Q * 64 * k for k in range(5)]
    assert ran.trace.raw_up == ran.trace.bits_up[-1] and ran.trace.answers == 20
    assert fedem_runs.message_bits(ran.results()) == Q * 64
    assert ran.results()["q"] == Q


def test_first_memories_cost_an_epoch_and_are_not_compressed(tmp_path):
    ran = traced(tmp_path, gamma=0.5)
    first = CLIENTS * Q * 64
    assert ran.trace.epochs == [1, 2, 3, 4, 5] and ran.trace.bits_up[0] == first
    assert ran.trace.raw_up == 5 * first
    sent = np.diff(ran.trace.bits_up)
    assert sent[0] == CLIENTS  # V_0 = h(S_0) leaves nothing to send: one bit each
    # Flag and norm, flag, then six levels at 1 to 4 bits (none, or sign and level 1, densely) or a shorter code.
    assert all(34 * CLIENTS < bits <= (34 + 6 * 4) * CLIENTS for bits in sent[1:])
    assert fedem_runs.message_bits(ran.results()) == sent.sum() / 20
    assert ran.trace.bits_up[-1] == ran.state.bits_up


def test_variance_reduction_costs_two_batches_a_round_and_a_pass_now_and_then(tmp_path):
    settings = {"algorithm": "vr-fedem", "gamma": 0.5, "batch": 2, "inner_rounds": 3}
    ran = traced(tmp_path, **settings, rounds=4)
    half = 2 * 2 / OWN  # two batches of two of eight rows
    assert ran.trace.epochs == [1, 2, 2 + half, 2 + 2 * half, 3 + 2 * half]


def test_the_traced_field_is_the_one_that_the_method_monitors(tmp_path):
    """‖h(S_k)‖² by a pass of our own against the sums that reach the server in round k + 1."""
    told = []
    place = here(tmp_path)
    traced(tmp_path)  # makes the population
    population = rows_population(place, "p", list, "drawn")
    settings = {**MODEL, "monitor_every": 1, "participation": 0.5}
    trace = fedem_runs.Trace(PaperFederatedEM(PaperFederatedEM.Config(**settings)), population)

    def listen(state, info):
        trace(state, info)
        told.append(info.scalars.get("mean_field_norm"))

    fedem_runs.simulate(
        place,
        "monitored",
        "paper_federated_em",
        settings,
        population,
        seed=1,
        warm_start=fedem_synthetic.start(),
        on_round=listen,
    )
    monitored = [value for value in told if value is not None]
    assert len(monitored) == 4 and trace.mean_field[0] > 1e-3
    np.testing.assert_allclose(monitored, trace.mean_field[:4], rtol=1e-9)


def test_looking_less_often_changes_nothing_else(tmp_path):
    often, seldom = (traced(tmp_path, every=every, gamma=0.5) for every in (1, 4))
    np.testing.assert_array_equal(np.isnan(seldom.trace.mean_field), [False, True, True, True, False])
    assert seldom.trace.mean_field[-1] == often.trace.mean_field[-1] and seldom.trace.bits_up == often.trace.bits_up


def test_rounds_of_so_many_epochs():
    count = fedem_synthetic.rounds_of
    assert count({}, 20, 9) == 9
    assert count({"batch": 20}, 20, 4) == 100  # 20 clients draw 20 of 10,000 rows: 25 rounds an epoch
    # 25 rounds cost 1 + 2 * 20 * 20 * 24 / 10,000 = 2.92 epochs
    assert count({"batch": 20, "inner_rounds": 25}, 20, 5.8) == 50


def test_numbers_of_a_table():
    assert fedem_runs.tail([9.0] * 8 + [1.0, 3.0]) == 2.0 and fedem_runs.tail([4.0]) == 4.0
    # Points of a quarter of an epoch: one neighbour on each side is nearer than half an epoch.
    epochs = [0.0, 0.25, 0.5, 0.75, 1.0]
    np.testing.assert_array_equal(fedem_runs.smoothed(epochs, [8, 1, 6, 5, 4]), [4.5, 6, 5, 5, 4.5])
    assert fedem_runs.epochs_to(epochs, [8, 1, 6, 5, 4], 5) == 0.0 and fedem_runs.epochs_to(epochs, [8] * 5, 5) is None
    np.testing.assert_array_equal(fedem_runs.smoothed([0, 1, 2], [3, 1, 2]), [3, 1, 2])  # whole passes stand alone
    assert fedem_runs.rounds_to([3, 1, 2], 1) == 1 and fedem_runs.rounds_to([3], 1) is None
    found = Found(Options(), range(1, 3), {}, {"a": [{"x": 1.0}, {"x": 5.0}], "c": [{"x": 1.0}, {"x": None}]})
    assert found.known_median("a", "x") == 3.0 and found.known_median("c", "x") is None
    assert median("x", "g")(found, Row({}, "a")) == "3" and median("x")(found, Row({}, "c")) == "never"
    assert brief(None) == "never" and brief(0.00123) == "1.2e-03"


def test_panels():
    curves = {"a": ([0, 1, 2], [1.0, 0.1, 0.01]), "b": ([0, 1], [1.0, float("nan")])}
    one = panels_figure([Panel(curves, "t", "x", "y", log_y=True)])
    two = panels_figure([Panel(curves, "t", "x", "y"), Panel({}, "empty", "x", "y")])
    assert one.startswith(b"\x89PNG") and len(two) > len(one)


# --- what is asked --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "fedem-bytes"])
def test_a_population_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="own populations"):
        experiment(name).cells(Options(population="somewhere"))


@pytest.mark.parametrize("name", ["fedem-mnist", "fedem-tabular", "fedem-bytes"])
def test_missing_data_are_an_error_that_says_what_to_set(tmp_path, name, no_data):
    with pytest.raises(ConfigError, match="npz") as caught:
        experiment(name).cells(QUICK)
    assert "FEDCORE_DATA" in str(caught.value.remedy)


def test_the_papers_tables_name_their_codec_and_steps():
    """Whatever the defaults of the method are."""
    known = {"codec": "dithering", "safeguards": False, "regularisation": 1e-3, "restarts": 1}
    assert fedem_runs.as_in_the_paper({"gamma": 1.0}) == {**known, "gamma": 1.0}
    assert "codec" not in fedem_runs.as_in_the_paper({"algorithm": "em"})
    assert fedem_runs.as_in_the_paper({"codec": "identity"})["codec"] == "identity"


def test_the_table_of_bytes_on_small_data(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(300, 2)) + 6 * np.repeat([[0, 0], [1, 0], [0, 1]], 100, axis=0)
    small = lambda *_: (np.split(rows, 10), rows[::3])
    for name, value in {"digits": small, "writers": small, "EM_ROUNDS": 5, "ROUNDS": {1.0: 30, 0.5: 40}}.items():
        monkeypatch.setattr(fedem_bytes, name, value)
    monkeypatch.setattr("fedcore.papers.table.needed_data", lambda *parts: None)
    monkeypatch.setattr(fedem_bytes, "DATA", {"random-tied": fedem_bytes.DATA["random-tied"]})
    made, options = replace(fedem_bytes.BYTES, figure=lambda found: b"", needs=()), Options(seeds=1)
    table = reproduce(made, options, here(tmp_path))
    (cell,) = (json.loads(file.read_text())["results"] for file in (here(tmp_path).folder / "cells").iterdir())
    em, natural = cell["em"], cell["natural"]
    q = 10 + 10 * 2 + 3
    assert em["bytes"][: em["rounds"] + 1] == [10 * 8 * q * k for k in range(em["rounds"] + 1)]
    assert natural["rounds"] and natural["end"] <= cell["target"] and natural["bytes"][0] == 0
    assert 0 < natural["bytes"][-1] < em["bytes"][-1]
    assert table.rows[0][""].startswith("MNIST") and "x; " in table.rows[0]["natural"]
    assert any("asked" in note for note in table.notes)


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_a_valid_setting_and_has_its_cell(tmp_path, name, monkeypatch):
    monkeypatch.setattr("fedcore.papers.table.needed_data", lambda *parts: None)
    for options in (Options(seeds=2), QUICK):
        cells = experiment(name).cells(options)
        assert len({cell.key for cell in cells}) == len(cells)
        for cell in cells:
            json.dumps(dict(cell.arguments))
            if "settings" in cell.arguments:
                PaperFederatedEM.Config(**fedem_runs.as_in_the_paper(cell.arguments["settings"]))
    assert len(cells) < len(experiment(name).cells(Options())) or name in NAMES[1::2]


# --- small tables ---------------------------------------------------------------------------------------------------


def finished(tmp_path, name):
    table = reproduce(experiment(name), QUICK, here(tmp_path))
    folder = tmp_path / "experiment"
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "privacy: none" in (folder / "table.md").read_text()
    assert json.loads((folder / "table.json").read_text())["privacy"] == "none"
    assert not list((folder / "runs").glob("*")) and all(list(row) == list(table.rows[0]) for row in table.rows)
    return table


@pytest.mark.slow
def test_two_gaussians(tmp_path, monkeypatch):
    for name, value in {
        "ROWS": 1000,
        "ROUNDS": 40,
        "EARLY": 20,
        "QUICK_EPOCHS": 3,
        "QUICK_SETTINGS": ((1, 1.0, 1.0), (1, 1.0, 0.75), (1, 0.5, 0.75), (4, 1.0, 1.0)),
        "WHOLE": {"EM, γ 1": (20, 30, {"algorithm": "em", "gamma": 1.0})},
        "BATCHED": {"FedEM b 20, γ 0.1": (20, 100, {"batch": 10, "gamma": 0.1})},
        "REDUCED": {"VR-FedEM b 20, k_in 25, γ 0.6": (20, 10, {"batch": 10, "inner_rounds": 5, "gamma": 0.6})},
    }.items():
        monkeypatch.setattr(fedem_synthetic, name, value)
    table = finished(tmp_path, "fedem-synthetic")
    rows = {(row["data"], row["method"], row["s"], row["γ"], row["p"]): row for row in table.rows}
    em, naive = rows["sorted", "EM", "", "1", "1"], rows["sorted", "naive", 1, "0.5", "0.75"]
    fedem = rows["sorted", "FedEM", 1, "0.5", "0.75"]
    assert float(em["nll - EM"]) == 0 and em["bits up"] == "384"
    assert float(fedem["end"]) < 0.1 * float(naive["end"])  # memories beat heterogeneity
    assert 40 < float(fedem["bits up"]) < 60
    claims = [note for note in table.notes if note.startswith("Claim")]
    assert [claim[6] for claim in claims] == list("abcde") and all("met" in claim.lower() for claim in claims)
    assert {row["data"] for row in table.rows} == {"sorted", "sorted, n = 20"}


def test_the_data_are_those_of_the_model():
    rows = fedem_synthetic.clients_of(3, 100, True)
    assert len(rows) == 100 and all(own.shape == (100, 2) for own in rows)
    y = np.concatenate(rows) @ np.linalg.cholesky(fedem_synthetic.COVARIANCE).T
    assert np.all(np.diff(y[:, 0]) >= 0)
    mean = fedem_synthetic.WEIGHTS @ fedem_synthetic.MEANS
    spread = fedem_synthetic.COVARIANCE + np.cov(fedem_synthetic.MEANS.T, aweights=fedem_synthetic.WEIGHTS, bias=True)
    assert np.abs(y.mean(axis=0) - mean).max() < 4 * np.sqrt(np.diag(spread).max() / len(y))
    alike = np.concatenate(fedem_synthetic.clients_of(3, 20, False))
    np.testing.assert_allclose(np.sort(alike[:, 0]), np.sort(np.concatenate(rows)[:, 0]), rtol=0, atol=0)


@pytest.fixture
def small_data(tmp_path, monkeypatch):
    """A folder of data sets in the form of the real ones."""
    folder, generator = tmp_path / "data", np.random.default_rng(4)
    for name in ("mnist", "wisdm", "tabular", "biodiversity"):
        (folder / name).mkdir(parents=True)
    digits = generator.integers(0, 10, 4000).astype(np.uint8)
    images = generator.integers(0, 60, (4000, 6, 6)) + 15 * np.eye(36)[digits * 3].reshape(-1, 6, 6)
    images[:, 0, 0] = 7  # a pixel that says nothing
    images = images.astype(np.uint8)
    np.savez(
        folder / "mnist" / "mnist.npz",
        x_train=images[:3000],
        y_train=digits[:3000],
        x_test=images[3000:],
        y_test=digits[3000:],
    )
    client = np.repeat(np.arange(6), [50, 60, 40, 70, 30, 50])
    x = generator.normal(size=(300, 43)) + np.eye(43)[client * 4] * 3
    x[:, 30] = 0
    x[generator.random(300) < 0.2, 33] = np.nan
    x[generator.random(300) < 0.1, 34:36] = np.nan
    np.savez(folder / "wisdm" / "wisdm.npz", x=x.astype(np.float32), client=client)
    np.savez(folder / "tabular" / "vowel.npz", x=generator.normal(size=(300, 9)), client=client)
    site, plant = generator.normal(size=20), generator.normal(size=12)
    counts = generator.poisson(np.exp(0.5 + 0.6 * site[:, None] + 0.6 * plant)).astype(np.int16)
    np.savez(folder / "biodiversity" / "aravo.npz", counts=counts)
    seen = np.where(generator.random(counts.shape) < 0.3, np.nan, counts)
    np.savez(folder / "biodiversity" / "skylark.npz", counts=seen)
    monkeypatch.setenv("FEDCORE_DATA", str(folder))
    return folder


@pytest.mark.slow
def test_images(tmp_path, monkeypatch, small_data):
    for name, value in {"IMAGES": 4000, "EVERY": 1, "DIRECTIONS": 4, "ROUNDS": 5, "EPOCHS": 12}.items():
        monkeypatch.setattr(fedem_mnist, name, value)
    table = finished(tmp_path, "fedem-mnist")
    rows = {row["method"]: row for row in table.rows}
    assert rows["EM"]["MB up"] == rows["EM"]["raw MB"] and rows["EM"]["epochs"] == "5.0"
    assert rows["FedEM, γ 1"]["epochs"] == "6.0" and float(rows["FedEM, γ 1"]["MB up"]) < float(rows["EM"]["MB up"])
    # 1 + 2 * 10 * 9 / 40 epochs for every ten rounds, two times, and the first memories
    assert rows["VR-FedEM, b 10, k_in 10, γ .5"]["epochs"] == "12.0"
    assert sum(bool(re.search(r"\b(met|NOT MET)\b", note)) for note in table.notes) == 3


def test_components_are_white_and_those_of_a_singular_value_decomposition():
    generator = np.random.default_rng(0)
    mixing = 0.3 * generator.normal(size=(12, 12))
    images = np.clip(128 + generator.normal(0, 20, (400, 12)) @ mixing, 0, 255).astype(np.uint8)
    images[:, 5] = 9
    scores, share = whitened_components(images, 3)
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scores.T @ scores / 400, np.eye(3), atol=1e-10)
    kept = np.delete(images, 5, axis=1).astype(float)
    standard = (kept - kept.mean(axis=0)) / kept.std(axis=0)
    u, values, _ = np.linalg.svd(standard, full_matrices=False)
    np.testing.assert_allclose(np.abs(np.diag(scores.T @ u[:, :3])), np.sqrt(400), rtol=1e-9)
    assert share == pytest.approx(np.sum(values[:3] ** 2) / np.sum(values**2), rel=1e-10)


def test_tiles_of_images_do_not_matter(monkeypatch):
    images = np.random.default_rng(1).integers(0, 255, (50, 6)).astype(np.uint8)
    whole, _ = whitened_components(images, 2)
    monkeypatch.setattr("fedcore.papers.data.TILE", 7)
    tiles, _ = whitened_components(images, 2)
    np.testing.assert_allclose(np.abs(whole), np.abs(tiles), atol=1e-9)


@pytest.mark.slow
def test_tables_with_gaps(tmp_path, monkeypatch, small_data):
    for name, value in {
        "OBSERVERS": 20,
        "SITES": 15,
        "MONTHS": 10,
        "ROUNDS": 30,
        "TREND_ROUNDS": 10,
        "SPREAD": 1.0,
        "TRENDS": {"each": (10, 30, 24, 0.9)},
    }.items():
        monkeypatch.setattr(fedem_missing, name, value)
    monkeypatch.setattr(fedem_hidden_cells, "TABLE_ROUNDS", 8)
    monkeypatch.setattr(fedem_hidden_cells, "IMPUTER_ROUNDS", 6)
    monkeypatch.setattr(fedem_hidden_cells, "PENALTIES", (8.0, 16.0))
    table = finished(tmp_path, "fedem-missing")
    rows = {(row["data"], row["method"]): row for row in table.rows}
    em, fedem, naive = (rows["Gaussian", method] for method in ("EM", "FedEM, s 4", "naive, s 4"))
    assert float(em["error"]) < 1 and em["θ off EM's"] == ""
    assert float(fedem["‖h‖²"]) < 0.1 * float(naive["‖h‖²"]) and float(fedem["θ off EM's"]) > 0
    assert float(rows[fedem_missing.TITLES["each"], "EM"]["correlation"]) > 0.8
    assert float(rows["aravo, hidden cells", "column means"]["error"]) == 1
    models = {method.split(" (")[0]: float(row["error"]) for (data, method), row in rows.items() if "aravo" in data}
    assert models["poisson_tables, EM"] < 1 and models["soft-impute, all sites in one place"] < 1
    assert {"gaussian_imputer, EM", "gaussian_imputer, FedEM s 64", "poisson_tables, FedEM s 16"} < set(models)


@pytest.mark.slow
def test_persons_and_speakers(tmp_path, monkeypatch, small_data):
    monkeypatch.setattr(fedem_tabular, "QUICK_EPOCHS", 4)
    assert [own.shape for own in fedem_tabular.clients_of("wisdm-missing")][:2] == [(50, 42), (60, 42)]
    assert fedem_tabular.clients_of("wisdm")[0].shape == (50, 39)
    table = finished(tmp_path, "fedem-tabular")
    assert all(row["epochs"] == "4.0" for row in table.rows)  # equal epochs is the point of the table
    assert sum("fewer bytes" in note for note in table.notes) == 3


# --- hidden cells ---------------------------------------------------------------------------------------------------


def test_hidden_cells_are_seen_by_nobody_and_missing_ones_are_never_scored():
    counts = np.arange(2000.0).reshape(50, 40)
    counts[:, 7] = np.nan
    seen, validation, hidden = fedem_hidden_cells.hide(counts, 5)
    assert not (hidden & validation).any() and not (hidden | validation)[:, 7].any()
    np.testing.assert_array_equal(np.isnan(seen), hidden | validation | np.isnan(counts))
    # 1950 cells, 5 standard errors
    assert abs(hidden.sum() / 1950 - 0.2) < 5 * np.sqrt(0.16 / 1950)
    assert abs(validation.sum() / 1950 - 0.1) < 5 * np.sqrt(0.09 / 1950)
    again, *_ = fedem_hidden_cells.hide(counts, 5)
    np.testing.assert_array_equal(seen, again)


def test_fills_to_compare_with():
    log = np.array([[1.0, np.nan, np.nan], [3.0, 4.0, np.nan]])
    np.testing.assert_allclose(fedem_hidden_cells.column_means(log)[0], [2, 4, 8 / 3])
    generator = np.random.default_rng(2)
    truth = np.outer(generator.normal(size=30), generator.normal(size=20)) + generator.normal(size=20)
    gaps = np.where(generator.random(truth.shape) < 0.2, np.nan, truth)
    filled, hidden = fedem_hidden_cells.soft_imputed(gaps, 0.2), np.isnan(gaps)
    means = fedem_hidden_cells.column_means(gaps)
    assert np.std((filled - truth)[hidden]) < 0.2 * np.std((means - truth)[hidden])


def test_expected_logarithms_of_counts():
    found = fedem_hidden_cells.expected_log(np.array([[0.0, 1.0], [5.0, 200.0]]))
    assert found[0, 0] == 0
    # sum of e^-1 / k! ln(1 + k)
    assert found[0, 1] == pytest.approx(0.5734028, abs=1e-6)
    draws = np.log1p(np.random.default_rng(0).poisson(5.0, 200_000))
    assert found[1, 0] == pytest.approx(draws.mean(), abs=5 * draws.std() / np.sqrt(200_000))
    assert found[1, 1] == pytest.approx(np.log(201) - 0.5 * 200 / 201**2, abs=1e-4)  # second order


def test_errors_are_relative_to_the_true_mean():
    truth, never = np.array([[1.0, 3.0], [5.0, 9.0]]), np.array([[True, True], [False, False]])
    assert fedem_missing.relative_error(np.full((2, 2), 2.0), truth, never) == 1.0
    assert fedem_missing.relative_error(truth + 0.5, truth, never) == 0.5


@pytest.mark.parametrize("name", ["each", "pooled"])
def test_most_of_a_trend_is_missing(monkeypatch, name):
    monkeypatch.setitem(fedem_missing.TRENDS, name, (10, 100, 48, 0.99))
    tables = np.stack(fedem_missing.groups_of(name, 1))
    seen = ~np.isnan(tables)
    cells = seen if name == "each" else seen.any(axis=0)
    assert abs(cells.mean() - 0.01) < 5 * np.sqrt(0.01 / cells.size)
    assert name == "each" or seen.sum(axis=0).max() == 1


@pytest.mark.parametrize("family", ["gaussian", "poisson", "bernoulli"])
@pytest.mark.parametrize("lam", [0.1, 1.0, 10.0, 1000.0])
def test_tables_start_inside_the_domain_whatever_the_penalty(family, lam):
    """The statistic of a table of high rank has large negative parts where the penalty is large."""
    generator = np.random.default_rng(0)
    visits = generator.integers(0, 3, (30, 40)).astype(float)
    total = visits * (generator.random((30, 40)) < 0.2)
    model = LowRankTables(30, 40, family, lam)
    start = parameters_from_cells(model, total, visits)
    s = model.statistic_of(start)
    assert model.admissible(s)
    np.testing.assert_allclose(model.maximise(s, start)["natural"], start["natural"], atol=1e-5)


def test_a_penalty_that_leaves_nothing_gives_the_empty_table():
    """Newton steps on vanishing factors once divided by zero; the minimiser is 0 where ||s - 1||_2 <= lam."""
    for seed, lam in ((1, 8.0), (30, 12.0), (70, 6.4), (85, 30.0), (101, 6.4)):
        generator = np.random.default_rng(seed)
        s, start = 1 + 0.5 * generator.random((20, 12)), generator.normal(size=(20, 12))
        assert np.linalg.norm(s - 1, 2) < lam
        assert np.abs(minimise("poisson", s, lam, None, start)).max() < 1e-12


# --- real data ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="FEDCORE_DATA names no folder of data sets")
def test_compressed_em_on_mnist_is_as_good_as_em(tmp_path):
    every = 10
    place = here(tmp_path)
    clients = fedem_mnist.clients_of(every)
    population = rows_population(place, "mnist", lambda: clients, "published")
    lines = fedem_mnist.conditions(QUICK)
    found = {
        line: fedem_runs.traced(place, line, lines[line].settings["settings"], population, 1).results()
        for line in ("em", "fedem", "naive-one")
    }
    assert found["fedem"]["nll"] < found["em"]["nll"] + fedem_mnist.NEAR
    assert found["fedem"]["bits_up"][-1] < 0.1 * found["fedem"]["raw_up"]
    assert found["naive-one"]["nll"] > found["em"]["nll"] + 1


@pytest.mark.skipif(not REAL, reason="FEDCORE_DATA names no folder of data sets")
def test_real_tables_have_the_shapes_that_their_readme_says():
    tables = fedem_hidden_cells.counts_of
    assert tables("aravo").shape == (75, 82) and tables("bci").shape == (50, 225)
    assert np.isnan(tables("skylark")).mean() == pytest.approx(0.54, abs=0.005)
    assert sum(len(own) for own in fedem_tabular.clients_of("wisdm")) == 5418
    assert len(fedem_tabular.clients_of("vowel")) == 15
