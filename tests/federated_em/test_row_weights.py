"""Rows with weights: a weight of 2 is the row twice, 0 is no row, 1 for all is no column of weights, to the bit."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.special import xlogy
from sklearn.mixture import GaussianMixture

from fedcore.errors import ConfigError, PopulationError
from fedcore.evaluation.anomalies import unusual_rows
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.methods.federated_em import FederatedEM, leaf_rows, models
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.federated_em.messages import plain_scaling
from fedcore.methods.federated_em.row_weights import rows_that_count
from fedcore.methods.federated_em.weighted_sums import sum_of_losses
from fedcore.methods.registry import make_method
from fedcore.operations.selection import compare, requests
from fedcore.population import streaming
from fedcore.population.blocks import RowsBlock
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.results import Features
from fedcore.runs.store import load_run
from fedcore.training.personalise import personalise
from fedcore.training.request import TrainRequest
from tests.federated_em.direct_em import three_components
from tests.federated_em.run_in_memory import block_of, facts, run
from tests.federated_em.test_run import begin, to_end
from tests.federated_em.test_streaming import assert_same
from tests.federated_em.test_streaming import trained as in_one_place_or_streamed
from tests.federated_em.varied import Varied
from tests.operations.test_select import go_on, train

AT = 1  # the column of the weights
SIZES = (3, 40, 0, 25, 1, 12, 70)
EM = {"algorithm": "em", "components": 2, "rounds": 5, "restarts": 2, "pseudo_rows": 0.01}
SHORT = {"components": 2, "rounds": 6, "restarts": 2, "pseudo_rows": 0.01}
RUNS = {
    "em": EM,
    "em, votes": EM | {"weights": "clients"},
    "em, tied": EM | {"covariance": "tied", "start": "random", "restarts": 1},  # several would end in the same point
    "natural": SHORT | {"participation": 0.6},
    "natural, votes, diag": SHORT | {"weights": "clients", "covariance": "diag"},
    "natural, spherical": SHORT | {"covariance": "spherical"},
    "natural, tied": SHORT | {"covariance": "tied"},
    "dithering": SHORT | {"codec": "dithering", "participation": 0.6},
    "naive": SHORT | {"memories": False},
    "known": SHORT | {"covariance": "known", "pseudo_rows": None},
    "regression": SHORT | {"model": "regression"},
    "imputer": {"model": "gaussian_imputer", "rounds": 4, "rank": 2},
    "poisson": {"model": "poisson", "components": 2, "rounds": 4},
    "multinomial, dithering": {"model": "multinomial", "components": 2, "rounds": 4, "codec": "dithering"},
    "bernoulli": {"model": "bernoulli", "components": 2, "rounds": 4, "algorithm": "em", "trial_rounds": 2},
}
each_run = pytest.mark.parametrize("name", RUNS)


def clients(name: str, gaps: float = 0.0) -> list[np.ndarray]:
    """The rows of each client, four columns of a kind that the model reads."""
    generator, settings = np.random.default_rng(5), RUNS[name]
    total = sum(SIZES)
    group = generator.integers(0, 2, (total, 1))
    y = 5 * group * np.array([1.0, -1.0, 0.5, 1.0]) + generator.normal(size=(total, 4)) * [1, 2, 1, 0.5]
    if settings.get("model") in ("poisson", "multinomial"):
        y = generator.poisson(2.0 + 6 * group * np.array([1, 0, 1, 0])).astype(float)
    if settings.get("model") == "bernoulli":
        y = (generator.random((total, 4)) < 0.2 + 0.6 * group).astype(float)
    hidden = generator.random(y.shape) < (0.3 if settings.get("model") == "gaussian_imputer" else gaps)
    hidden[:, 0] = False
    return np.split(np.where(hidden, np.nan, y), np.cumsum(SIZES)[:-1])


def with_weights(rows: list[np.ndarray], weights: list[np.ndarray]) -> RowsBlock:
    return block_of([np.insert(own, AT, w, axis=1) for own, w in zip(rows, weights, strict=True)])


def some_weights(low: int, high: int, seed: int = 6) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(low, high, size).astype(float) for size in SIZES]


def trained(name: str, block: RowsBlock, **settings):
    config = Varied(**{**RUNS[name], **settings})
    return run(config, block, facts(block, seed=3), clients_per_leaf=3)


def alike(ran, other, rtol=1e-6):
    assert np.allclose(ran.state.theta, other.state.theta, rtol=rtol, atol=1e-8)
    for one in ("rows", "clients", "effective_clients", "objective"):
        assert getattr(ran.state, one) == pytest.approx(getattr(other.state, one), rel=1e-9), one
    for metric in ("objective", "bic", "icl"):
        assert ran.column(metric) == pytest.approx(other.column(metric), rel=1e-8), metric


def same_bits(ran, other):
    for one, value in vars_of(ran.state).items():
        assert np.array_equal(value, vars_of(other.state)[one]), one
    assert [info.scalars for info in ran.infos] == [info.scalars for info in other.infos]


def mixture_of(theta) -> GaussianMixture:
    """With these full covariances, for its densities."""
    peer = GaussianMixture(len(theta["weights"]))
    peer.weights_, peer.means_, peer.covariances_ = theta["weights"], theta["means"], theta["covariances"]
    peer.precisions_cholesky_ = np.linalg.inv(np.linalg.cholesky(theta["covariances"])).transpose(0, 2, 1)
    return peer


def vars_of(state) -> dict:
    return {one: getattr(state, one) for one in state.__slots__}


@each_run
def test_whole_weights_are_rows_that_are_repeated(name):
    rows, weights = clients(name), some_weights(1, 4)
    repeated = block_of([np.repeat(own, w.astype(int), axis=0) for own, w in zip(rows, weights, strict=True)])
    ran = trained(name, with_weights(rows, weights), weight_column=AT)
    alike(ran, trained(name, repeated))
    assert ran.state.rows == sum(w.sum() for w in weights)


@pytest.mark.parametrize("name", ["em", "em, tied", "natural", "natural, spherical", "natural, votes, diag"])
def test_whole_weights_of_rows_with_gaps(name):
    rows, weights = clients(name, gaps=0.2), some_weights(1, 4)
    repeated = block_of([np.repeat(own, w.astype(int), axis=0) for own, w in zip(rows, weights, strict=True)])
    alike(trained(name, with_weights(rows, weights), weight_column=AT), trained(name, repeated))


@each_run
@pytest.mark.slow
def test_a_row_of_weight_0_is_not_there(name):
    """Nor does it matter what is in it. The fourth client has no other rows."""
    rows, weights = clients(name), some_weights(0, 3)
    weights[3][:] = 0.0
    block = with_weights(rows, weights)
    rest = [own[w > 0] for own, w in zip(rows, weights, strict=True)]
    without = with_weights(rest, [w[w > 0] for w in weights])
    block.x[block.x[:, AT] == 0, 0] = np.inf
    same_bits(trained(name, block, weight_column=AT), trained(name, without, weight_column=AT))


@each_run
@pytest.mark.slow
def test_weights_of_1_are_no_weights(name):
    rows = clients(name)
    weighted = with_weights(rows, [np.ones(size) for size in SIZES])
    same_bits(trained(name, weighted, weight_column=AT), trained(name, block_of(rows)))


@pytest.mark.parametrize("settings", [{"validation": 0.3}, {"pseudo_rows": "auto", "components": 1}])
def test_rows_that_are_held_back(settings):
    """Which rows these are depends on the rows alone, and their losses count by their weights."""
    rows, weights = clients("em"), some_weights(0, 3)
    block, rest = with_weights(rows, weights), [own[w > 0] for own, w in zip(rows, weights, strict=True)]
    ran = trained("em", block, weight_column=AT, **settings)
    same_bits(ran, trained("em", with_weights(rest, [w[w > 0] for w in weights]), weight_column=AT, **settings))
    if "validation" in settings:
        scales = ran.column("held_out_loss_in_data_units") - ran.column("held_out_loss")
        assert scales == pytest.approx(np.log(ran.state.scale).sum())
    ones = trained("em", with_weights(rest, [np.ones(len(own)) for own in rest]), weight_column=AT, **settings)
    same_bits(ones, trained("em", block_of(rest), **settings))


def test_losses_that_choose_the_penalty():
    rows, weights = clients("em"), some_weights(0, 3)
    model, theta = models.model_of(Varied(components=1), plain_scaling(4)), {"weights": np.ones(1)}
    theta |= {"means": np.zeros((1, 4)), "covariances": np.eye(4)[None]}
    weighted = rows_of(with_weights(rows, weights), plain_scaling(4), weight_column=AT)
    expected = np.concatenate(weights) @ -model.log_likelihood(theta, np.concatenate(rows))
    assert sum_of_losses(model, theta, weighted) == pytest.approx(expected)


def test_a_row_with_a_gap_and_hardly_a_weight():
    rows, weights = clients("em"), some_weights(1, 3)
    weights[1][5] = 1e-30
    without = trained("em", with_weights(rows, weights), weight_column=AT)
    rows[1][5, 2] = np.nan
    alike(trained("em", with_weights(rows, weights), weight_column=AT), without)


@pytest.mark.parametrize("name", ["em", "em, votes", "natural", "dithering"])
def test_weights_in_other_units(name):
    """Without what counts rows, the penalty in pseudo-rows and the priors of a start from clusters."""
    rows, weights = clients(name), some_weights(1, 9)
    start = {"weights": np.array([0.4, 0.6]), "means": np.array([[0.0] * 4, [4.0, -4, 2, 4]])}
    start["covariances"] = np.tile(np.eye(4), (2, 1, 1))
    settings = {**RUNS[name], "start": "given", "pseudo_rows": None, "regularisation": 1e-3}
    config = Varied(**settings, weight_column=AT)
    ran = []
    for factor in (1.0, 0.37 / 100, 1000.0):
        block = with_weights(rows, [factor * w for w in weights])
        ran.append(run(config, block, facts(block, seed=3, start=start)))
    for other in ran[1:]:
        assert np.allclose(ran[0].state.theta, other.state.theta, rtol=1e-7, atol=1e-9)
        assert ran[0].column("objective") == pytest.approx(other.column("objective"), rel=1e-9)


def test_which_column_it_is_does_not_matter():
    rows, weights = clients("natural"), some_weights(0, 3)
    first = block_of([np.insert(own, 0, w, axis=1) for own, w in zip(rows, weights, strict=True)])
    last = block_of([np.insert(own, 4, w, axis=1) for own, w in zip(rows, weights, strict=True)])
    same_bits(trained("natural", first, weight_column=0), trained("natural", last, weight_column=4))


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
def test_scikit_learn_on_repeated_rows(covariance):
    y, start = three_components(600)
    weights = np.random.default_rng(7).integers(0, 4, 600)
    block = with_weights(np.array_split(y, 7), np.array_split(weights.astype(float), 7))
    shape = {"full": np.eye(4)[None].repeat(3, 0), "tied": np.eye(4), "diag": np.ones((3, 4)), "spherical": np.ones(3)}
    start = start | {"covariances": shape[covariance]}
    settings = {"components": 3, "algorithm": "em", "rounds": 12, "start": "given", "regularisation": 0}
    config = Varied(**settings, covariance=covariance, weight_column=AT)
    ran = run(config, block, facts(block, start=start), clients_per_leaf=3)
    peer = GaussianMixture(
        3,
        covariance_type=covariance,
        tol=0,
        reg_covar=0,
        max_iter=12,
        weights_init=start["weights"],
        means_init=start["means"],
        precisions_init=shape[covariance],
    )
    repeated = np.repeat(y, weights, axis=0)
    with pytest.warns(Warning, match="did not converge"):
        peer.fit(repeated)
    theta = ran.state.parameters()
    assert np.allclose(theta["weights"], peer.weights_, atol=1e-10)
    assert np.allclose(theta["means"], peer.means_, atol=1e-9)
    assert np.allclose(theta["covariances"], peer.covariances_, atol=1e-9)
    assert ran.state.objective == pytest.approx(-peer.score(repeated), rel=1e-10)


@pytest.mark.parametrize(
    "wrong, what", [(np.nan, "not finite"), (np.inf, "not finite"), (-np.inf, "not finite"), (-0.5, "negative")]
)
def test_what_is_no_weight(wrong, what):
    rows, weights = clients("natural"), some_weights(0, 3)
    weights[3][7] = wrong
    with pytest.raises(PopulationError, match=rf"client 3: the weight of row 7, in column 1, is {what}"):
        trained("natural", with_weights(rows, weights), weight_column=AT)


def test_errors_name_columns_of_the_population():
    rows, weights = clients("natural"), some_weights(1, 3)
    block = with_weights(rows, weights)
    broken = replace(block, x=np.where(np.arange(5) == 3, 1e200, block.x))
    with pytest.raises(PopulationError, match="values of column 3 are too large"):
        trained("natural", broken, weight_column=AT)
    rows[3][2, 1] = np.inf  # column 2 with the weights
    with pytest.raises(PopulationError, match=r"client 3: Row 2, column 1 .*Not counted are column 1, the weights"):
        trained("natural", with_weights(rows, weights), weight_column=AT)


@pytest.mark.parametrize(
    "factor, words", [(0.0, "weight .column 1. above 0"), (1e-120, "too small"), (1e120, "too large")]
)
def test_weights_that_add_up_to_nothing_or_to_too_much(factor, words):
    rows, weights = clients("natural"), some_weights(1, 3)
    with pytest.raises(PopulationError, match=words):
        trained("natural", with_weights(rows, [factor * w for w in weights]), weight_column=AT)


@pytest.mark.parametrize("columns, column", [(5, 5), (1, 0)])
def test_a_column_that_is_not_there(columns, column):
    block = block_of([np.ones((3, columns))])
    with pytest.raises(ConfigError, match=f"weight_column = {column}, but the population has"):
        FederatedEM(Varied(weight_column=column)).init(facts(block))


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"algorithm": "private"}, "not private"),
        ({"algorithm": "vr-fedem"}, "not vr-fedem"),
        ({"batch": 5}, "rows without weights"),
        ({"model": "poisson", "kind": "counts"}, "mixtures and of gaussian_imputer"),
        ({"model": "gaussian_tables", "table_rows": 3}, "mixtures and of gaussian_imputer"),
    ],
)
def test_where_rows_have_no_weights(settings, words):
    with pytest.raises(ValidationError, match=words):
        Varied(weight_column=0, **settings)
    with pytest.raises(ConfigError, match=words):
        make_method("federated_em", {"weight_column": 0, **settings})


# --- whole runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    """The rows of `clients`, with weights in column 1, and the same rows held out."""
    block = with_weights(clients("em"), some_weights(0, 4))
    with PopulationWriter(
        tmp_path_factory.mktemp("weights") / "p", "rows", 5, clients_per_leaf=2, clients_per_block=4, dtype="float64"
    ) as writer:
        rows = block.ptr, block.x
        writer.write([f"c{i}" for i in range(block.clients)], rows, rows)
        return writer.commit(Provenance(sources=("test",)))


def test_what_is_made_of_a_run(population, tmp_path):
    ran = to_end(begin(population, tmp_path, {**SHORT, "weight_column": AT}))
    state = FederatedEM(Varied(**SHORT, weight_column=AT)).State(**ran.read_state())
    method = FederatedEM(Varied(**SHORT, weight_column=AT))
    named = method.result(state, Features(5, ["a", "w", "b", "c", "d"]))
    plain = method.result(state, Features(5))
    for result, names in ((named, ["a", "b", "c", "d"]), (plain, ["column 0", "column 2", "column 3", "column 4"])):
        for table in result.tables:
            if table.name in ("means", "standard_deviations"):
                assert list(table.columns[0].values) == names

    rows, weights = np.concatenate(clients("em")), np.concatenate(some_weights(0, 4))
    theta = method.parameters(state)
    peer = mixture_of(theta)
    densities = peer.score_samples(rows)
    table = evaluate_run(ran.path, population)
    line = next(row for row in table["rows"] if row["method"] == "this run")
    assert line["nll"] == pytest.approx(-weights @ densities / weights.sum())
    assert table["held_out_rows"] == np.count_nonzero(weights)
    assert [row.log_density for row in unusual_rows(ran.path, population.path, 5).rows] == pytest.approx(
        np.sort(densities)[:5]
    )

    block = population.read(0)
    outputs = method.personalise(state, block, None)
    own = densities[: len(block.x)]
    assert np.allclose(outputs["rows_log_density"], own) and outputs["rows_responsibilities"].shape == (len(own), 2)
    shares = peer.predict_proba(rows[: len(block.x)])
    for client, (low, high) in enumerate(zip(block.ptr[:-1], block.ptr[1:], strict=True)):
        w = weights[low:high]
        expected = w @ shares[low:high] / w.sum() if w.any() else np.full(2, np.nan)
        assert np.allclose(outputs["responsibilities"][client], expected, equal_nan=True)
    personalise(ran.path, population.path, tmp_path / "out")


@pytest.mark.parametrize("name", ["imputer", "em"])
def test_rows_are_completed_beside_their_weights(name):
    rows, weights = clients("imputer"), some_weights(0, 3)
    block = with_weights(rows, weights)
    ran = trained(name, block, weight_column=AT)
    method = FederatedEM(Varied(**RUNS[name], weight_column=AT))
    imputed = method.personalise(ran.state, block, None)["rows_imputed"]
    assert imputed.shape == block.x.shape and np.isfinite(imputed).all()
    assert np.array_equal(imputed[:, AT], np.concatenate(weights))
    seen = np.isfinite(block.x)
    assert np.array_equal(imputed[seen], block.x[seen])


def test_settings_are_compared(population, tmp_path):
    """By the losses of rows that are held back, and by criteria of the others, all by their weights."""
    settings = {"algorithm": "em", "max_passes": 7, "pseudo_rows": 0.01, "weight_column": AT}
    runs = str(tmp_path / "runs")
    request = TrainRequest(method="federated_em", population=str(population.path), settings=settings, runs=runs)
    found = compare(requests(request, {"components": (1, 3)}, 0.3, "s"), train, go_on)
    best = next(one for one in found if one.tried == {"components": 3})  # of which two lie in one another
    method = make_method("federated_em", settings | {"components": 3, "validation": 0.3})
    state = method.State(**load_run(best.run).state)
    block = rows_that_count(with_weights(clients("em"), some_weights(0, 4)), AT)
    held, weights = state.split().held_back(block.ptr, block.first), block.x[:, AT]
    peer = mixture_of(method.parameters(state))
    rows = np.delete(block.x, AT, axis=1)
    densities = peer.score_samples(rows)
    assert best.loss == pytest.approx(-np.average(densities[held], weights=weights[held]), rel=1e-9)
    n, k = weights[~held].sum(), 2 + 3 * 4 + 3 * 10
    bic = -2 * weights[~held] @ densities[~held] + k * np.log(n)
    assert best.bic == pytest.approx(bic, rel=1e-9)
    shares = peer.predict_proba(rows[~held])
    assert best.icl == pytest.approx(bic - 2 * weights[~held] @ xlogy(shares, shares).sum(axis=1), rel=1e-9)


def test_streamed_rows_give_the_same_bits(population, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "WINDOW_BYTES", 1)
    monkeypatch.setattr(leaf_rows, "PORTION_NUMBERS", 4 * 30)
    monkeypatch.setattr(leaf_rows, "PIECE_NUMBERS", 4 * 7)
    settings = {**SHORT, "rounds": 2, "weight_column": AT, "validation": 0.2}
    whole = in_one_place_or_streamed(population, tmp_path, "whole", settings, 2**40)
    assert_same(whole, in_one_place_or_streamed(population, tmp_path, "streamed", settings, 0))


def test_a_run_goes_on_from_another(population, tmp_path):
    settings = {**SHORT, "weight_column": AT}
    first = to_end(begin(population, tmp_path, settings))
    method = FederatedEM(Varied(**settings))
    start = method.warm_start_of(method.State(**first.read_state()))
    block = population.read(0)
    again = run(Varied(**settings | {"start": "given"}), block, facts(block, start=start))
    assert np.isfinite(again.state.objective)


def test_one_pass_over_rows_in_parts(monkeypatch):
    """Pieces and portions that cut through clients."""
    block = with_weights(clients("natural"), some_weights(0, 4))
    ran = trained("natural", block, weight_column=AT)
    monkeypatch.setattr(leaf_rows, "PORTION_NUMBERS", 4 * 30)
    monkeypatch.setattr(leaf_rows, "PIECE_NUMBERS", 4 * 7)
    parts = trained("natural", block, weight_column=AT)
    assert np.allclose(ran.state.theta, parts.state.theta, rtol=1e-9)
