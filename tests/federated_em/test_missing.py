"""FedMissEM: incomplete tables and incomplete rows, each against a direct computation."""

import numpy as np
import pytest

from fedcore.methods.federated_em import FederatedEM
from fedcore.methods.federated_em.models import model_of
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
