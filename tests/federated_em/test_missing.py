"""FedMissEM: incomplete tables and incomplete rows, each against a direct computation."""

from dataclasses import replace

import numpy as np
import pytest

from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig, looks
from fedcore.methods.federated_em.models import model_of
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables
from tests.federated_em.run_in_memory import block_of, facts, run
from tests.federated_em.varied import Varied

OBSERVERS, SITES, STAMPS = 30, 20, 15


def tables(family: str, seed: int = 0):
    """(I, J, L) tables with 60 % missing, a quarter of the cells seen by nobody, and the rank-2 truth."""
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=(SITES, 2)) @ generator.normal(size=(2, STAMPS))
    if family == "gaussian":
        full = truth + generator.normal(size=(OBSERVERS, SITES, STAMPS))
    else:
        full = generator.poisson(np.exp(truth / 2), (OBSERVERS, SITES, STAMPS)).astype(float)
    full[generator.random(full.shape) < 0.6] = np.nan
    never = generator.random((SITES, STAMPS)) < 0.25
    full[:, never] = np.nan
    return full, truth, never


def of_family(family: str):
    full = tables("gaussian" if family == "gaussian" else "poisson")[0]
    return np.where(full > 0, 1.0, full) if family == "bernoulli" else full


def block_of_tables(full):
    """Observers of 0, 1, 2, 1, 2 ... tables."""
    sizes = [0, *[1, 2] * (OBSERVERS // 3)]
    cuts = np.cumsum(sizes)[:-1]
    return block_of([part.reshape(-1, STAMPS) for part in np.split(full, cuts)])


COMMON = dict(table_rows=SITES, nuclear_penalty=0.5, monitor_every=20)


def test_gaussian_tables_are_soft_imputed():
    """One step after the other: the mean of the completed tables, its singular values less lambda."""
    full, _, _ = tables("gaussian")
    block = block_of_tables(full)
    config = Varied(model="gaussian_tables", algorithm="em", rounds=40, **COMMON)
    ran = run(config, block, facts(block), clients_per_leaf=4)
    theta = next(state for state in ran.states if state.theta.size).parameters()["natural"]
    for state in [state for state in ran.states if state.phase in ("rounds", "last") and state.round]:
        completed = np.where(np.isnan(full), theta, full).mean(axis=0)
        u, values, v = np.linalg.svd(completed, full_matrices=False)
        theta = (u * np.maximum(values - 0.5, 0)) @ v
        assert np.abs(state.parameters()["natural"] - theta).max() <= 1e-10


def test_the_last_parameters_of_counts_are_exact():
    """On the way rough M-steps do."""
    full, _, _ = tables("poisson")
    block = block_of_tables(full)
    config = Varied(model="poisson_tables", algorithm="em", rounds=3, **COMMON)
    ran = run(config, block, facts(block))
    model, off = model_of(config, ran.state.scaling()), []
    for state in ran.states[-3:-1]:
        exact = model.maximise(state.statistic)["natural"]
        off.append(np.abs(state.parameters()["natural"] - exact).max())
    assert ran.states[-2].phase == "last" and off[1] < 1e-6 < 1e-5 < off[0] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("memories", [True, False])
def test_compressed_tables(memories):
    """The specification's thresholds: with memories the field is below 1e-6 and theta within 1e-4 of EM's."""
    full, truth, never = tables("gaussian")
    block = block_of_tables(full)
    exact = run(Varied(model="gaussian_tables", algorithm="em", rounds=300, **COMMON), block, facts(block))
    config = Varied(
        model="gaussian_tables", memories=memories, codec=4, gamma=0.5, participation=0.75, rounds=300, **COMMON
    )
    ran = run(config, block, facts(block))
    off = np.abs(ran.state.parameters()["natural"] - exact.state.parameters()["natural"]).max()
    if memories:
        assert ran.column("mean_field_norm")[-1] < 1e-6 and off < 1e-4
    else:
        assert ran.column("mean_field_norm")[-1] > 0.1 and off > 0.02
    theta = exact.state.parameters()["natural"]
    error = np.linalg.norm((theta - truth)[never]) / np.linalg.norm((truth - truth.mean())[never])
    assert error < 0.6, "cells that nobody saw are known from the others"


@pytest.mark.slow
def test_poisson_tables_reach_the_optimum_of_the_observed_objective():
    full, _, _ = tables("poisson")
    block = block_of_tables(full)
    config = Varied(
        model="poisson_tables",
        codec="dithering",
        participation=0.75,
        gamma=1.0,
        rounds=300,
        **{**COMMON, "nuclear_penalty": 0.2},
    )
    ran = run(config, block, facts(block))
    model = model_of(config, ran.state.scaling())
    outside, gap = model.optimality(ran.state.parameters(), block.x)
    first = model.optimality(ran.states[2].parameters(), block.x)
    assert outside < 1e-3 and abs(gap) < 1e-2 and abs(first[1]) > 10 * abs(gap)
    assert np.all(np.diff(ran.column("objective")[1:]) < 1e-3)


def test_completed_tables_are_given_to_their_clients():
    full, _, _ = tables("gaussian")
    block = block_of_tables(full)
    config = Varied(model="gaussian_tables", algorithm="em", rounds=20, **COMMON)
    ran = run(config, block, facts(block))
    out = FederatedEM(config).personalise(ran.state, block, None)
    theta = ran.state.parameters()["natural"]
    np.testing.assert_allclose(out["rows_imputed"].reshape(full.shape), np.where(np.isnan(full), theta, full))
    assert out["log_likelihood"].shape == (21,) and np.isnan(out["log_likelihood"][0])


def test_batches_of_tables_are_whole_tables():
    full, _, _ = tables("gaussian")
    block = block_of_tables(full)
    config = Varied(
        model="gaussian_tables",
        algorithm="vr-fedem",
        codec="identity",
        batch=1,
        inner_rounds=4,
        gamma=0.5,
        rounds=200,
        **COMMON,
    )
    ran = run(config, block, facts(block), clients_per_leaf=8)
    assert ran.column("mean_field_norm")[-1] < 1e-8 < ran.column("mean_field_norm")[0]
    assert ran.column("expectations")[:5].tolist() == [30, 40, 40, 40, 30]


def test_rows_with_gaps():
    """Mean and covariance of a Gaussian of which a third is missing; a client's gaps are filled in the data's units."""
    generator = np.random.default_rng(3)
    factor = np.array([[2.0, 0.0, 0.0], [1.5, 1.0, 0.0], [-10.0, 3.0, 5.0]])
    full = generator.normal(size=(6000, 3)) @ factor.T + [1.0, -2.0, 100.0]
    y = np.where(generator.random(full.shape) < 0.33, np.nan, full)
    block = block_of([np.zeros((0, 3)), *np.array_split(y, 80)])
    config = Varied(model="gaussian_imputer", participation=0.5, gamma=0.5, regularisation=0.0, rounds=120)
    ran = run(config, block, facts(block))
    theta, truth = FederatedEM(config).parameters(ran.state), factor @ factor.T
    spread = np.sqrt(np.diag(truth))
    np.testing.assert_allclose(theta["mean"], [1.0, -2.0, 100.0], atol=0.06 * spread.max())
    off = (theta["covariance"] - truth) / np.outer(spread, spread)
    assert np.abs(off).max() < 0.06
    out = FederatedEM(config).personalise(ran.state, block, None)
    hidden = np.isnan(y)
    assert np.array_equal(out["rows_imputed"][~hidden], y[~hidden])
    # Columns 0 and 2 are nearly collinear, so that conditional means are far better than the mean of a column.
    error = ((out["rows_imputed"] - full) / spread)[hidden]
    assert np.sqrt(np.mean(error**2)) < 0.8 and np.isfinite(out["rows_imputed"]).all()


@pytest.mark.parametrize("family", ["gaussian", "poisson", "bernoulli"])
@pytest.mark.parametrize("changes", [{}, {"weights": "clients"}, {"tol": 0.05}])
def test_exact_em_of_tables_makes_its_steps_between_two_passes(family, changes):
    """The same steps as EM that reads the tables in each of them."""
    block, settings = block_of_tables(of_family(family)), {"algorithm": "em", "model": f"{family}_tables"}
    settings |= {"table_rows": SITES, "nuclear_penalty": 0.3, **changes}
    ran = run(FederatedEMConfig(**settings), block, facts(block), clients_per_leaf=4)
    rounds = ran.state.round
    assert len(ran.infos) == 2 and (rounds == 100 if "tol" not in changes else 2 < rounds < 100)
    plain = run(Varied(**settings | {"tol": 0.0}, rounds=rounds), block, facts(block))
    assert len(plain.infos) == 2 + rounds
    natural = [each.state.parameters()["natural"] for each in (ran, plain)]
    # votes of clients also change the visits that the start counts
    np.testing.assert_allclose(*natural, atol=1e-5 if "weights" not in changes else 1e-3)
    assert ran.state.objective == pytest.approx(plain.state.objective, rel=1e-7)
    said = looks.status(FederatedEMConfig(**settings), ran.state)
    assert said.startswith("converged") if ran.state.slope < 1e-4 else said.endswith("raise max_passes.")


@pytest.mark.parametrize("family", ["gaussian", "poisson", "bernoulli"])
def test_a_step_of_cells_is_a_step_of_em(family):
    full, thetas = of_family(family), [{"natural": share * tables("gaussian")[1]} for share in (0.2, 0.4)]
    model, rows, count = LowRankTables(SITES, STAMPS, family, 0.5), full.reshape(-1, STAMPS), len(full)
    sums = np.nansum(full, axis=0).ravel(), np.isfinite(full).sum(axis=0).ravel()
    found, values = zip(*(model.step_of_cells(theta, *sums, count) for theta in thetas), strict=True)
    totals, likelihoods = model.e_totals_and_log_likelihoods(thetas, rows)
    np.testing.assert_allclose(found, totals / count, rtol=1e-12)
    objectives = [model.penalty(theta) - own.mean() for theta, own in zip(thetas, likelihoods, strict=True)]
    np.testing.assert_allclose(values[1] - values[0], objectives[1] - objectives[0], rtol=1e-9)


@pytest.mark.parametrize("rank", [None, 2])
def test_exact_em_of_rows_with_gaps_converges_in_ten_passes(rank):
    generator = np.random.default_rng(3)
    full = generator.normal(size=(3000, 2)) @ generator.normal(size=(2, 5)) + 0.5 * generator.normal(size=(3000, 5))
    y = np.where(generator.random(full.shape) < 0.3, np.nan, full)
    y[np.isnan(y).all(axis=1), 0] = 0.0
    block = block_of([np.zeros((0, 5)), *np.array_split(y, 30)])
    settings = dict(model="gaussian_imputer", algorithm="em", rank=rank)
    ran = run(FederatedEMConfig(**settings), block, facts(block), clients_per_leaf=4)
    plain = run(Varied(**settings, rounds=100), block, facts(block))
    assert len(ran.infos) <= 10 and ran.state.slope < 1e-4
    assert ran.state.objective < plain.state.objective + 1e-4


def test_the_imputer_converges_on_a_sample_of_many_rows_which_also_chooses_a_penalty():
    generator = np.random.default_rng(4)
    y = generator.normal(size=(10_000, 1)) @ [[1.0, -1.0, 2.0]] + generator.normal(size=(10_000, 3))
    y[generator.random(y.shape) < 0.3] = np.nan
    block = block_of(np.array_split(y, 10))
    public = replace(facts(block), rows=len(y))
    config = FederatedEMConfig(model="gaussian_imputer", algorithm="em", pseudo_rows="auto")
    ran = run(config, block, public)
    assert 0 < ran.state.sample_share < 1 and ran.state.slope < 1e-4 and len(ran.infos) <= 6
    assert ran.state.pseudo_rows == 0.001  # with so many rows the penalty hardly matters
    truth = np.outer([1.0, -1.0, 2.0], [1.0, -1.0, 2.0]) + np.eye(3)
    np.testing.assert_allclose(FederatedEM(config).parameters(ran.state)["covariance"], truth, atol=0.2)
