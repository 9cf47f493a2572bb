"""EM in ten passes: the sample, the moves, the accelerated steps, and what the run says at its end."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.errors import PopulationError
from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig, looks, search
from fedcore.methods.federated_em.anderson import MEMORY, RISE, advanced, empty_trail
from fedcore.methods.federated_em.sampled import Sample
from fedcore.methods.federated_em.search import sample_share, searched
from fedcore.methods.federated_em.state import empty
from fedcore.methods.mixture_models.counts import BernoulliMixture, MultinomialMixture, PoissonMixture
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.initialisation import random_parameters
from fedcore.methods.mixture_models.regression import RegressionMixture
from fedcore.population.blocks import CountsBlock, RowsBlock
from tests.federated_em.run_in_memory import block_of, facts, run

COVARIANCES = ("full", "tied", "diag", "spherical", "known")


def groups(n=4000, seed=0, d=3, at=(-6.0, 0.0, 1.5, 7.0)):
    """Rows of unit variance around points of the diagonal, in the order of their groups."""
    generator = np.random.default_rng(seed)
    return np.concatenate([generator.normal(size=(n // len(at), d)) + centre for centre in at])


def model_of(components, covariance="full", d=3):
    return lambda nu, rows: GaussianMixture(components, d, covariance, lam=nu / rows, missing=True)


OTHERS = ("poisson", "multinomial", "bernoulli", "regression")


def other_groups(model, n=6000, seed=0):
    """(rows in a random order, make(nu, rows) of a mixture of three, their parameters) of three equal groups."""
    generator, label = np.random.default_rng(seed), np.random.default_rng(seed + 1).integers(0, 3, n)
    weights = np.full(3, 1 / 3)
    if model == "regression":
        lines = np.array([[3.0, -2.0, 0.0], [-1.0, 3.0, 1.0], [-2.0, -2.0, -1.0]])
        u = generator.normal(size=(n, 2))
        v = np.einsum("ij,ij->i", np.column_stack([u, np.ones(n)]), lines[label]) + 0.3 * generator.normal(size=n)
        theta = {"weights": weights, "coefficients": lines, "variances": np.full(3, 0.09)}
        return np.column_stack([u, v]), lambda nu, rows: RegressionMixture(3, 3, True, nu / rows, lam=nu / rows), theta
    chances = np.array([[0.5, 0.1, 0.1, 0.3], [0.1, 0.5, 0.1, 0.3], [0.1, 0.1, 0.5, 0.3]])
    if model == "multinomial":
        y = np.stack([generator.multinomial(30, chances[g]) for g in label]).astype(float)
        theta = {"weights": weights, "probabilities": chances}
        return y, lambda nu, rows: MultinomialMixture(3, 4, 1e-3), theta
    if model == "poisson":
        y = generator.poisson(20 * chances[label]).astype(float)
        return y, lambda nu, rows: PoissonMixture(3, 4, 1e-3, b=1e-3), {"weights": weights, "rates": 20 * chances}
    chances = np.repeat(np.where(chances == 0.5, 0.9, chances), 5, axis=1)
    y = (generator.random((n, 20)) < chances[label]).astype(float)
    return y, lambda nu, rows: BernoulliMixture(3, 20, 1e-3), {"weights": weights, "probabilities": chances}


def counts_block(y):
    """The clients of a population of counts, one for each row."""
    rows = sp.csr_matrix(y, dtype=np.float32)
    return CountsBlock(0, 0, rows.indptr, rows.indices.astype(np.int32), rows.data, y.sum(axis=1), y.shape[1])


def mapped(model, theta, y):
    (totals,), (values,) = model.e_totals_and_log_likelihoods([theta], y)
    return totals / len(y), float(model.penalty(theta) - values.mean())


# --- acceleration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_accelerated_em_has_the_fixed_point_of_em_and_is_there_sooner(covariance):
    y, model = groups(at=(-0.7, 0.7)), GaussianMixture(2, 3, covariance, lam=1e-6)
    start = model.statistic_of(model.maximise(model.e_total(of_halves(model), y) / len(y)))
    s, plain = start, []
    for _ in range(600):
        s, objective = mapped(model, model.maximise(s), y)
        plain.append(objective)
    s, trail, ours = start, empty_trail(model.q), []
    for _ in range(60):
        theta = model.maximise(s)
        found, objective = mapped(model, theta, y)
        s, trail = advanced(model, trail, theta, s, found, objective)
        ours.append(trail.objective)
    assert ours[-1] == pytest.approx(plain[-1], abs=1e-9)
    near = plain[-1] + 1e-6

    def reached(objectives):
        return next(i for i, objective in enumerate(objectives) if objective <= near)

    assert reached(ours) <= reached(plain)
    assert (np.diff(ours) <= RISE).all()  # of the best point so far
    assert len(trail.points) <= MEMORY + 1


def of_halves(model):
    means = np.vstack([np.full(3, -0.3), np.full(3, 0.3)])
    eye = {"full": np.tile(np.eye(3), (2, 1, 1)), "tied": np.eye(3), "diag": np.ones((2, 3)), "spherical": np.ones(2)}
    covariances = {} if model.covariance == "known" else {"covariances": eye[model.covariance]}
    return {"weights": np.full(2, 0.5), "means": means, **covariances}


def test_a_worse_point_leads_back_to_the_best_one():
    model = GaussianMixture(2, 3, "full", lam=1e-6)
    y, theta = groups(at=(-1.0, 1.0)), of_halves(model)
    s = model.statistic_of(theta)
    found, objective = mapped(model, theta, y)
    following, trail = advanced(model, empty_trail(model.q), theta, s, found, objective)
    assert np.array_equal(following, found) and trail.gain is None  # nothing is known to extrapolate from
    back, forgot = advanced(model, trail, theta, s, found * 1.01, objective + 0.5)
    assert np.array_equal(back, found) and forgot.objective == objective
    assert not len(forgot.points) and forgot.gain is None


def test_a_step_that_empties_a_component_is_refused():
    """By hand: one coordinate of the field halves from point to point, so that the extrapolation goes far beyond M."""
    model = GaussianMixture(2, 1, "known")
    theta = {"weights": np.array([0.5, 0.5]), "means": np.array([[0.0], [1.0]])}
    statistic = model.statistic_of
    near = statistic(theta | {"weights": np.array([0.45, 0.55])})
    nearer = statistic(theta | {"weights": np.array([0.40, 0.60])})
    _, trail = advanced(model, empty_trail(model.q), theta, statistic(theta), near, 1.0)
    later = theta | {"weights": np.array([0.45, 0.55])}
    s, _ = advanced(model, trail, later, near, nearer - 1e-4 * (nearer - near), 0.9)
    assert np.array_equal(s, nearer - 1e-4 * (nearer - near))  # M itself


# --- the sample -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters, rows, first, all_of_it",
    [
        (100, 5000, 5000, 5000),  # few: all rows are read
        (100, 8333, 8333, 8333),  # 5000 are more than .6 of them
        (100, 10_000, 5000, 6000),  # level 2 is at most .6 of the rows
        (100, 1_000_000, 5000, 20_000),
        (800, 1_000_000, 8000, 32_000),
        (9000, 1_000_000, 10_000, 40_000),
    ],
)
def test_how_many_rows_are_drawn(parameters, rows, first, all_of_it):
    shares = sample_share(parameters, 10, rows)
    assert [share * rows for share in shares] == pytest.approx([first, all_of_it])


def test_wide_rows_are_fewer():
    assert sample_share(10**6, 2**14, 10**6)[1] * 10**6 * 2**14 <= search.MOST_NUMBERS


def sample_of(config, block, known, leaf=1024):
    """What the reading pass draws of the block."""
    from fedcore.population.blocks import leaves
    from fedcore.rounds.statistics import merge, values

    method, total = FederatedEM(config), None
    message = method.message(method.init(known))
    for part in leaves(block, leaf):
        total = merge(total, method.client_update(message, part, None)[0])
    return values(total)["sample"]


def large(n=40_000, clients=200):
    y = groups(n)
    return block_of(np.array_split(y, clients)), y


def known_of(block, leaf=1024, **more):
    counted = isinstance(block, CountsBlock)  # whose rows are tokens
    kind, rows = ("counts", int(block.totals.sum())) if counted else ("rows", len(block.x))
    return dataclasses.replace(facts(block, leaf=leaf, **more), kind=kind, rows=rows)


def test_rows_are_drawn_within_every_leaf_each_by_its_own_uniform():
    block, y = large()
    config = FederatedEMConfig(algorithm="em", components=4)
    drawn = sample_of(config, block, known_of(block), leaf=16)
    share = sample_share(model_of(4)(1.0, 1.0).q, 3, len(y))[1]
    assert abs(len(drawn) - share * len(y)) < 5 * np.sqrt(len(y) * share * (1 - share))
    assert (drawn[:, 0] < share).all() and (drawn[:, 1] == 1.0).all()
    groups_drawn = np.searchsorted([-3.0, 0.75, 4.0], drawn[:, 2:].mean(axis=1))
    counts = np.bincount(groups_drawn, minlength=4)
    assert (np.abs(counts - len(drawn) / 4) < 5 * np.sqrt(len(drawn) / 4)).all()  # although the rows are sorted
    assert np.array_equal(drawn, sample_of(config, block, known_of(block), leaf=16))


def test_a_row_counts_by_the_votes_of_its_client():
    rows = [np.arange(6.0).reshape(2, 3), np.arange(30.0).reshape(10, 3)]
    config = FederatedEMConfig(algorithm="em", components=1, weights="clients")
    drawn = sample_of(config, block_of(rows), known_of(block_of(rows)))
    assert drawn[:, 1].tolist() == [0.5] * 2 + [0.1] * 10


def test_of_counts_clients_are_drawn():
    y, _, _ = other_groups("poisson", 20_000)
    config = FederatedEMConfig(algorithm="em", model="poisson", kind="counts", components=2)
    drawn = sample_of(config, counts_block(y), known_of(counts_block(y)))
    share = sample_share(10, 4, len(y))[1]  # of the clients, not of their tokens
    _, at = np.unique(drawn[:, 0], return_inverse=True)
    rows = sp.csr_matrix((drawn[:, 3], (at, drawn[:, 2].astype(int))), shape=(at.max() + 1, 4)).toarray()
    assert abs(len(rows) - share * len(y)) < 5 * np.sqrt(len(y) * share * (1 - share))
    assert {tuple(row) for row in rows} <= {tuple(row) for row in y}


def test_level_one_is_in_the_sample_and_bits_are_counted():
    block, y = large()
    config = FederatedEMConfig(algorithm="em", components=2)
    state = run(config, block, known_of(block)).states[1]
    assert state.phase == "rounds" and state.sampled < len(y)
    assert state.first_share < state.sample_share and state.bits_up == state.sampled * 5 * 64


# --- the search -----------------------------------------------------------------------------------------------------


def test_the_loss_of_a_deletion_is_exact():
    y, model = groups(400), GaussianMixture(3, 3, "full", lam=1e-6)
    generator = np.random.default_rng(1)
    theta = {
        "weights": np.array([0.5, 0.3, 0.2]),
        "means": generator.normal(size=(3, 3)) * 4,
        "covariances": np.tile(np.eye(3) * 9, (3, 1, 1)),
    }
    r = model.personalise(theta, y)["responsibilities"]
    two = GaussianMixture(2, 3, "full", lam=1e-6)
    for i in range(3):
        others = {name: np.delete(array, i, axis=0) for name, array in theta.items()}
        others["weights"] = others["weights"] / others["weights"].sum()
        loss = np.mean(model.log_likelihood(theta, y) - two.log_likelihood(others, y))
        assert search._losses_of_deletion(theta, r, None)[i] == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("covariance", ["full", "diag", "spherical", "known"])  # tied EM itself leaves this one
def test_a_move_leaves_the_optimum_that_em_stays_in(covariance):
    """Two components share a group and one covers two; EM does not change that, a move does."""
    y = groups(6000, at=(-9.0, 0.0, 9.0))
    make = model_of(3, covariance)
    model = make(1e-3, len(y))
    means = np.vstack([np.full(3, -9.2), np.full(3, -8.8), np.full(3, 4.5)])
    wide = np.array([1.0, 1.0, 25.0])
    covariances = {
        "full": wide[:, None, None] * np.eye(3),
        "diag": np.repeat(wide[:, None], 3, axis=1),
        "spherical": wide,
    }
    theta = {"weights": np.array([1, 1, 4]) / 6, "means": means}
    theta |= {} if covariance == "known" else {"covariances": covariances[covariance]}
    rows = Sample(np.random.default_rng(0).permutation(y), None, len(y), 1.0)
    counted = search.Counted(make)
    stuck, before = counted.accelerated(model, theta, rows, 30, 1e-6)
    _, after = search._moved(counted, model, stuck, before, rows, 0, 0)
    assert after < before - 0.1
    found, _ = search._moved(counted, model, stuck, before, rows, 0, 0)
    assert np.sort(found["means"].mean(axis=1)) == pytest.approx([-9.0, 0.0, 9.0], abs=0.2)


@pytest.mark.parametrize("model", OTHERS)
def test_a_move_leaves_the_optimum_that_em_of_counts_and_regressions_stays_in(model):
    """As above: the first two components are the first group, the third is both others."""
    y, make, truth = other_groups(model)
    name = next(name for name in truth if name not in ("weights", "variances"))
    own = truth[name]
    values = np.stack([own[0] * 0.99, own[0] * 1.01, own[1:].mean(axis=0)])
    if model == "multinomial":
        values /= values.sum(axis=1, keepdims=True)
    theta = truth | {"weights": np.array([1, 1, 4]) / 6, name: values}
    if model == "regression":
        theta["variances"] = np.array([0.09, 0.09, 9.0])
    counted, rows = search.Counted(make), Sample(y, None, len(y), 1.0)
    stuck, before = counted.accelerated(make(1e-3, len(y)), theta, rows, 20, 1e-6)
    _, after = search._moved(counted, make(1e-3, len(y)), stuck, before, rows, 0, 0)
    assert after < before - 0.05
    assert after < mapped(make(1e-3, len(y)), truth, y)[1] + 0.01


@pytest.mark.parametrize("covariance", ["full", "diag", "spherical"])
@pytest.mark.parametrize("model", ["gaussian", *OTHERS])
def test_a_component_alone_has_the_m_step_that_it_has_among_others(model, covariance):
    """Its penalty is as large beside it as it was."""
    if model == "gaussian":
        y, mixture = groups(at=(-1.0, 0.0, 1.0)), GaussianMixture(3, 3, covariance, lam=0.3)
        theta = mixture.maximise(mapped(mixture, random_parameters(mixture, np.zeros(3), np.ones(3), 0), y)[0])
    else:
        y, make, theta = other_groups(model)
        mixture = make(300.0, len(y))
    s = mapped(mixture, theta, y)[0]
    after = mixture.maximise(s)
    for k in range(3):
        one, alone = mixture.of_component(after, k)
        own = one.layout.join(*(part[k] / s[k] for part in mixture.layout.unpack(s)))
        again = one.maximise(own)
        for name in mixture.own_parameters(after):
            assert again[name][0] == pytest.approx(after[name][k], rel=1e-9)
            assert np.array_equal(alone[name][0], after[name][k])


@pytest.mark.parametrize("model", OTHERS)
def test_rows_that_weigh_nothing_are_not_searched(model):
    y, make, truth = other_groups(model)
    mixture = make(1e-3, len(y))
    of_last = mixture.personalise(truth, y)["responsibilities"].argmax(axis=1) == 2
    weights = np.where(of_last, 1e-9, 1.0)
    heavy = searched(make, Sample(y, weights, len(y), 1.0), 0, 2, 1e-3)
    without = searched(make, Sample(y[~of_last], None, int((~of_last).sum()), 1.0), 0, 2, 1e-3)
    kept = y[~of_last]
    losses = [-mixture.log_likelihood(found.theta, kept).mean() for found in (heavy, without)]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)


@pytest.mark.parametrize("model", OTHERS[:3])
def test_sparse_counts_are_searched_as_dense_ones_are(model):
    y, make, _ = other_groups(model, 3000)
    dense, sparse = (searched(make, Sample(rows, None, 1500, 0.1), 0, 2, 1e-3) for rows in (y, sp.csr_matrix(y)))
    assert sparse.ends == pytest.approx(dense.ends, abs=1e-9)
    assert sparse.row_steps == dense.row_steps
    with pytest.raises(PopulationError, match="fewer than 3 different rows"):
        searched(make, Sample(sp.csr_matrix(np.repeat(y[:1], 50, axis=0)), None, 50, 1.0), 0, 1, 1e-3)


@pytest.mark.parametrize("model", OTHERS[:3])
def test_counts_are_cut_along_the_longest_axis_of_their_residuals(model):
    y, make, theta = other_groups(model, 3000)
    one, alone = make(1e-3, len(y)).of_component(theta, 0)
    values = alone[next(name for name in alone if name != "weights")][0]
    sizes = y.sum(axis=1, keepdims=True) if model == "multinomial" else np.ones((len(y), 1))
    residuals = (y - sizes * values) / np.sqrt(sizes * values * (1.0 - values if model == "bernoulli" else 1.0))
    expected = residuals @ np.linalg.eigh(residuals.T @ residuals)[1][:, -1]
    for rows in (y, sp.csr_matrix(y)):
        found = one.along_longest_axis(alone, rows)
        assert abs(found @ expected) > 0.999 * np.linalg.norm(found) * np.linalg.norm(expected)


@pytest.mark.parametrize("model", OTHERS[:3])
def test_relative_densities_lack_what_no_parameter_changes(model):
    y, make, theta = other_groups(model, 100)
    mixture, name = make(1e-3, len(y)), next(name for name in theta if name != "weights")
    others = [theta, theta | {name: theta[name][::-1]}, theta | {"weights": np.array([0.1, 0.2, 0.7])}]
    relative = dataclasses.replace(mixture, relative=True)
    lacks = [mixture.log_likelihood(each, y) - relative.log_likelihood(each, y) for each in others]
    assert lacks[1] == pytest.approx(lacks[0], abs=1e-9) and lacks[2] == pytest.approx(lacks[0], abs=1e-9)
    assert (np.ptp(lacks[0]) > 0) == (model != "bernoulli")


def test_the_search_is_a_function_of_the_sample_and_the_seed():
    y = np.random.default_rng(3).permutation(groups(5000))
    rows = Sample(y, None, 3000, 0.1)
    first, again = (searched(model_of(4), rows, 7, 3, None) for _ in range(2))
    assert np.array_equal(first.theta["means"], again.theta["means"]) and np.array_equal(first.ends, again.ends)
    assert first.row_steps == again.row_steps > 10 * len(y)
    assert len(first.ends) == 3 and np.sort(first.theta["means"][:, 0]) == pytest.approx([-6, 0, 1.5, 7], abs=0.3)


def test_weights_of_rows_count():
    """A group whose rows weigh nothing is not found."""
    y = np.random.default_rng(0).permutation(groups(6000, at=(-9.0, 0.0, 9.0)))
    weights = np.where(y.mean(axis=1) > 4.5, 1e-9, 1.0)
    found = searched(model_of(2), Sample(y, weights, len(y), 1.0), 0, 2, 1e-3)
    assert np.sort(found.theta["means"][:, 0]) == pytest.approx([-9.0, 0.0], abs=0.2)


def test_rows_with_gaps_are_searched():
    generator = np.random.default_rng(0)
    y = generator.permutation(groups(6000, at=(-9.0, 0.0, 9.0)))
    y[generator.random(y.shape) < 0.2] = np.nan
    y = y[np.isfinite(y).any(axis=1)]
    found = searched(model_of(3), Sample(y, None, len(y), 1.0), 0, 2, 1e-3)
    assert np.sort(found.theta["means"][:, 0]) == pytest.approx([-9.0, 0.0, 9.0], abs=0.2)


@pytest.mark.parametrize("rare", [False, True])
def test_fewer_different_rows_than_components(rare):
    y = np.repeat(np.eye(3), [2, 2, 5000] if rare else [20, 20, 20], axis=0)
    y = np.concatenate([y[4:], y[:4]])  # the rare ones are not among those that seeds are drawn from
    with pytest.raises(PopulationError, match="fewer than 4 different rows"):
        searched(model_of(4), Sample(y, None, len(y), 1.0), 0, 1, 1e-3)
    assert len(searched(model_of(3), Sample(y, None, len(y), 1.0), 0, 1, 1e-3).theta["weights"]) == 3


AWAY = {
    "a constant column": lambda y: np.column_stack([y, np.full(len(y), 7.0)]),
    "a column twice": lambda y: np.column_stack([y, y[:, 0]]),
    "a sum of columns": lambda y: np.column_stack([y, y.sum(axis=1)]),
}


@pytest.mark.parametrize("covariance", ["full", "tied", "diag"])
@pytest.mark.parametrize("more", AWAY)
def test_columns_that_say_nothing_new_do_not_hide_the_groups(more, covariance):
    """Along an axis without variance a mixture of one large component has the larger density."""
    y = np.random.default_rng(0).permutation(groups(6000, at=(-2.5, 0.0, 2.5)))
    block = block_of(np.array_split(AWAY[more](y), 20))
    config = FederatedEMConfig(algorithm="em", components=3, covariance=covariance)
    ran = run(config, block, known_of(block))
    theta = FederatedEM(config).parameters(ran.state)
    assert np.sort(theta["weights"]) == pytest.approx([1 / 3] * 3, abs=0.05)
    assert np.sort(theta["means"][:, 1]) == pytest.approx([-2.5, 0.0, 2.5], abs=0.3)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("odd", ["a rare entry", "a far row", "as many rows as components", "one row many times"])
def test_odd_rows_do_not_end_a_run(odd, covariance):
    y = np.random.default_rng(0).normal(size=(900, 3))
    rows = {
        "a rare entry": np.column_stack([y[:, :2], np.arange(900.0) == 5]),
        "a far row": np.vstack([y, np.full(3, 1e6)]),
        "as many rows as components": y[:3],
        "one row many times": np.vstack([np.zeros((800, 3)), y[:100]]),
    }[odd]
    block = block_of(np.array_split(rows, 3))
    config = FederatedEMConfig(algorithm="em", components=3, covariance=covariance)
    ran = run(config, block, known_of(block))
    assert ran.state.phase == "done" and np.isfinite(ran.state.theta).all()


ODD_COUNTS = {
    "no counts": lambda y: np.zeros((900, 4)),
    "some rows without counts": lambda y: np.vstack([y[:900], np.zeros((500, y.shape[1]))]),
    "a column without counts": lambda y: np.column_stack([y[:900], np.zeros(900)]),
    "a constant column": lambda y: np.column_stack([y[:900], np.ones(900)]),
    "one row": lambda y: y[:1],
    "as many rows as components": lambda y: np.unique(y, axis=0)[:3],
    "one row many times": lambda y: np.vstack([np.zeros((800, y.shape[1])), y[:100]]),
    "a row of many": lambda y: np.vstack([y[:900], np.where(y.max() > 1, 1e7, 1.0) * np.ones(y.shape[1])]),
}


@pytest.mark.parametrize("odd", ODD_COUNTS)
@pytest.mark.parametrize("kind", ["rows", "counts"])
@pytest.mark.parametrize("model", ["poisson", "multinomial", "bernoulli"])
def test_odd_counts_do_not_end_a_run(model, kind, odd):
    y = ODD_COUNTS[odd](other_groups(model)[0])
    block = counts_block(y) if kind == "counts" else block_of(np.array_split(y, 3))  # of one row, with empty clients
    components = 1 if odd in ("no counts", "one row") else 3
    config = FederatedEMConfig(algorithm="em", model=model, kind=kind, components=components)
    state = run(config, block, known_of(block)).state
    assert state.phase == "done" and np.isfinite(state.theta).all()


ODD_REGRESSIONS = {
    "one row": lambda y: y[:1],
    "as many rows as components": lambda y: y[:3],
    "fewer rows than inputs": lambda y: np.column_stack([np.random.default_rng(0).normal(size=(6, 12)), y[:6]]),
    "one row many times": lambda y: np.vstack([np.zeros((800, 3)), y[:100]]),
    "a constant input": lambda y: np.column_stack([np.ones(900), y[:900]]),
    "an input twice": lambda y: np.column_stack([y[:900, 0], y[:900]]),
    "a constant response": lambda y: np.column_stack([y[:900], np.zeros(900)]),
    "a response that follows exactly": lambda y: np.column_stack([y[:900], y[:900] @ [1.0, 2.0, -1.0]]),
    "a far row": lambda y: np.vstack([y[:900], np.full(3, 1e6)]),
    "no input": lambda y: y[:900, :1],
}


@pytest.mark.parametrize("odd", ODD_REGRESSIONS)
def test_odd_rows_do_not_end_a_run_of_regressions(odd):
    y = ODD_REGRESSIONS[odd](other_groups("regression")[0])
    block = block_of(np.array_split(y, 3))
    config = FederatedEMConfig(algorithm="em", model="regression", components=1 if odd == "one row" else 3)
    state = run(config, block, known_of(block)).state
    assert state.phase == "done" and np.isfinite(state.theta).all()


def test_few_rows_choose_their_penalty_and_many_do_not():
    """Heavy tails over few rows: the smallest penalty fits single rows."""
    generator = np.random.default_rng(0)
    y = generator.standard_t(2, size=(120, 6))
    make = model_of(4, d=6)
    assert searched(make, Sample(y, None, len(y), 1.0), 0, 2, None).pseudo_rows > 1e-3
    many = generator.normal(size=(100 * make(1.0, 1.0).q + 1, 6))
    assert searched(make, Sample(many[:5000], None, 3000, 5000 / len(many)), 0, 1, None).pseudo_rows == 1e-3


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"covariance": "tied"}, {"weights": "clients"}, {"validation": 0.2}, {"start": "random"}, {"components": 1}],
)
def test_a_run_reads_the_rows_ten_times_at_most(settings):
    block, _ = large()
    config = FederatedEMConfig(**{"algorithm": "em", "components": 5, **settings})
    known = known_of(block)
    ran, method = run(config, block, known), FederatedEM(config)
    assert len(ran.infos) <= 10 == method.total_rounds(method.init(known))
    assert looks.converged(config, ran.state) == (ran.state.slope is not None and ran.state.slope < 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model, kind", [*((model, "rows") for model in OTHERS), *((m, "counts") for m in OTHERS[:3])])
def test_counts_and_regressions_find_their_groups_in_ten_passes(model, kind):
    """With the bits of any cut of the clients, from any pass that they go on from."""
    y, make, truth = other_groups(model, 20_000)
    block = counts_block(y) if kind == "counts" else block_of(np.array_split(y, 100))
    of_kind = {"kind": "counts"} if kind == "counts" else {}
    config = FederatedEMConfig(algorithm="em", model=model, components=3, **of_kind)
    known = known_of(block, leaf=16 if kind == "rows" else 1024)
    ran, method = run(config, block, known), FederatedEM(config)
    assert len(ran.infos) <= 10 == method.total_rounds(method.init(known))
    assert 0 < ran.state.sampled < len(y)
    theta, mixture = method.parameters(ran.state), make(1e-3, len(y))
    loss, best = (-mixture.log_likelihood(found, y).mean() for found in (theta, truth))
    assert loss < best + 1e-3
    order = np.random.default_rng(0).permutation
    other = run(config, block, known, order=lambda count: order(count))
    assert np.array_equal(other.state.theta, ran.state.theta)
    for state in ran.states[1:-1]:
        assert np.array_equal(run(config, block, known, state=state).state.theta, ran.state.theta)


def test_a_run_from_another_reads_the_rows_ten_times_at_most():
    block, y = large(4000, 20)
    start = of_halves(GaussianMixture(2, 3, "full")) | {"centre": np.zeros(3), "scale": np.ones(3)}
    config = FederatedEMConfig(algorithm="em", components=2, start="given", tol=0.0)
    known = known_of(block, start=start)
    ran = run(config, block, known)
    assert len(ran.infos) == 10 == FederatedEM(config).total_rounds(ran.state)
    assert "10 passes" in looks.status(config, ran.state)


def test_the_status_counts_the_passes():
    block, _ = large(2000, 20)
    config = FederatedEMConfig(algorithm="em", model="regression", components=2, max_passes=5)
    ran = run(config, block, known_of(block))
    assert f"{len(ran.infos)} passes" in looks.status(config, ran.state)


@pytest.mark.parametrize("setting", [{"gamma": 0.5}, {"rounds": 3}])
@pytest.mark.parametrize("model", ["gaussian", "regression"])
def test_settings_of_plain_steps_are_refused(model, setting):
    with pytest.raises(ValueError, match=f"{next(iter(setting))} is for algorithm .*, not em"):
        FederatedEMConfig(algorithm="em", model=model, **setting)


def test_the_statement_names_the_sample():
    counts = FederatedEMConfig(algorithm="em", model="poisson", kind="counts")
    assert "all counts of a sample of them" in FederatedEM(counts).not_private_because
    assert "a sample of their rows" in FederatedEM(FederatedEMConfig(algorithm="em")).not_private_because
    assert "sample" not in FederatedEM(FederatedEMConfig(algorithm="em", start="given")).not_private_because


def test_the_end_is_that_of_em_from_there():
    """The last objective is the objective of the last parameters, and more EM gains next to nothing."""
    block, y = large()
    ran = run(FederatedEMConfig(algorithm="em", components=4), block, known_of(block))
    state, scaling = ran.state, ran.state.scaling()
    model = GaussianMixture(4, 3, "full", lam=scaling.penalty_share * scaling.variance)
    rows = (y - scaling.centre) / scaling.scale
    theta = state.parameters()
    found, objective = mapped(model, theta, rows)
    assert objective == pytest.approx(state.last_objective, abs=1e-9)
    for _ in range(20):
        theta = model.maximise(found)
        found, later = mapped(model, theta, rows)
    assert 0 <= objective - later < 1e-3


def test_any_cut_of_the_clients_has_the_same_bits():
    block, _ = large(20_000, 100)
    config = FederatedEMConfig(algorithm="em", components=4)
    one = run(config, block, known_of(block, leaf=16))
    order = np.random.default_rng(0).permutation
    other = run(config, block, known_of(block, leaf=16), order=lambda count: order(count))
    assert np.array_equal(one.state.theta, other.state.theta)


def test_a_run_that_was_cut_off_goes_on_at_every_pass():
    block, _ = large(20_000, 100)
    config, known = FederatedEMConfig(algorithm="em", components=5), known_of(large(20_000, 100)[0])
    whole = run(config, block, known)
    for state in whole.states[:-1]:
        again = run(config, block, known, state=state)
        assert np.array_equal(again.state.theta, whole.state.theta)


def said(**fields):
    fields = {"round": 8, "last_objective": 1.0, "slope": 1e-5, "ends": np.array([1.0, 1.002])} | fields
    return looks.status(FederatedEMConfig(algorithm="em"), empty(**fields))


def test_each_status_by_hand():
    assert said() == (
        "converged: 10 passes over the rows, and the last one gains 1e-05 nats a row; 2 searches end 0.002 nats apart."
    )
    assert said(ends=np.array([1.0, 1.3, 1.1])).startswith("several optima: 3 searches end 0.3 nats apart, and")
    assert said(slope=6e-4).startswith("stopped after 10 passes over the rows, and the last one gains 0.0006 nats")
    assert said(slope=None).startswith("stopped after 10 passes over the rows, and the last one gains an unknown")
    both = said(slope=6e-4, ends=np.array([1.0, 1.3]))
    assert both.startswith("stopped") and "Several optima: 2 searches end 0.3 nats apart" in both
    assert said(ends=np.zeros(0)).endswith("1e-05 nats a row.")
    assert said(last_objective=None) == ""
    sampled = dict(statistic=np.zeros(200), sampled=10_000.0, sample_share=0.1)  # 200 / 20,000 is expected
    assert "A sample of 10000 rows does not represent all rows" in said(first_gain=0.051, **sampled)
    assert "sample" not in said(first_gain=0.049, **sampled)
    assert "sample" not in said(first_gain=0.5, **sampled | {"sample_share": 1.0})  # these are all rows


def test_a_population_of_one_row():
    block = RowsBlock(0, 0, np.array([0, 1]), np.zeros((1, 2)))
    state = run(FederatedEMConfig(algorithm="em", components=1), block, known_of(block)).state
    assert state.phase == "done" and np.isfinite(state.theta).all()
