"""Runs of Gaussian mixtures over rows with missing entries."""

from dataclasses import replace

import numpy as np
import pytest

from fedcore.errors import ConfigError
from fedcore.methods.federated_em import FederatedEM
from fedcore.methods.federated_em.personal import imputation
from fedcore.methods.federated_em.scores import evaluate_block
from fedcore.rounds.results import Features
from tests.federated_em.run_in_memory import block_of, facts, run
from tests.federated_em.varied import Varied

MEANS = np.array([[-3.0, 0.0, 2.0, 1.0], [3.0, 1.0, -2.0, 5.0]])
SHORT = dict(components=2, cluster_rounds=2, monitor_every=5, rounds=12, restarts=1, pseudo_rows=0.01)


def population(share=0.2, seed=0, sizes=(40, 0, 1, 25, 60, 34, 100, 40)):
    generator = np.random.default_rng(seed)
    labels = [generator.integers(0, 2, size) for size in sizes]
    rows = [MEANS[own] + generator.normal(size=(len(own), 4)) for own in labels]
    rows = [np.where(generator.random(own.shape) < share, np.nan, own) for own in rows]
    for own in rows:
        own[np.isnan(own).all(axis=1), 0] = 0.0
    return block_of(rows), np.concatenate(labels)


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical", "known"])
@pytest.mark.parametrize(
    "changes", [{"algorithm": "em"}, {"algorithm": "fedem", "codec": "dithering", "participation": 0.8}]
)
def test_components_are_found(covariance, changes):
    block, labels = population()
    method = FederatedEM(Varied(**SHORT, **changes, covariance=covariance))
    ran = run(method.config, block, facts(block), clients_per_leaf=3)
    means = method.parameters(ran.state)["means"]
    order = np.argsort(means[:, 0])
    assert np.abs(means[order] - MEANS).max() < 0.5
    out = method.personalise(ran.state, block, None)
    found = np.argsort(order)[out["rows_responsibilities"].argmax(axis=1)]
    assert (found == labels).mean() > 0.97 and np.isfinite(out["log_likelihood"]).sum() == 7
    np.testing.assert_array_equal(out["rows_imputed"], imputation(method.config, ran.state).means(block.x))
    assert {table.name for table in method.result(ran.state, Features(4)).tables} >= {"components", "means"}


def test_rows_are_completed_only_after_training_on_gaps():
    """The columns are independent within a component, so that means of components are the best guesses."""
    method = FederatedEM(Varied(**SHORT, algorithm="em", covariance="diag"))
    block, labels = population()
    ran = run(method.config, block, facts(block), clients_per_leaf=3)
    imputed, hidden = method.personalise(ran.state, block, None)["rows_imputed"], np.isnan(block.x)
    np.testing.assert_array_equal(imputed[~hidden], block.x[~hidden])
    assert np.abs(imputed - MEANS[labels])[hidden].mean() < 0.25
    complete, _ = population(share=0.0)
    ran = run(method.config, complete, facts(complete), clients_per_leaf=3)
    assert "rows_imputed" not in method.personalise(ran.state, block, None)
    method = FederatedEM(Varied(components=2, model="poisson"))
    with pytest.raises(ConfigError, match="poisson"):
        imputation(method.config, ran.state)


@pytest.mark.parametrize("changes", [{"algorithm": "vr-fedem"}, {"batch": 5}, {"weights": "clients"}])
def test_other_variants_run(changes):
    block, _ = population()
    ran = run(Varied(**SHORT, **changes), block, facts(block), clients_per_leaf=3)
    assert ran.state.phase == "done" and np.isfinite(ran.state.objective)


def test_scores_are_those_of_what_was_seen():
    block, _ = population()
    config = Varied(**SHORT, algorithm="em", validation=0.2)
    ran = run(config, block, facts(block), clients_per_leaf=3)
    assert (np.diff(ran.column("objective")) < 1e-6).all()
    assert np.isfinite(ran.column("held_out_loss")).all()
    statistics = evaluate_block(config, ran.state, replace(block, heldout=block))
    assert all(np.isfinite(statistic.value()).all() for statistic in statistics.values())


def test_seeds_with_gaps_are_filled():
    """Every row has a gap, so every seed has one."""
    block, _ = population()
    block.x[np.arange(len(block.x)), np.arange(len(block.x)) % 4] = np.nan
    block.x[np.isnan(block.x).all(axis=1), 0] = 0.0
    ran = run(Varied(**SHORT, algorithm="em"), block, facts(block), clients_per_leaf=3)
    assert all(np.isfinite(state.picked).all() for state in ran.states)
    assert np.isfinite(ran.state.theta).all()
