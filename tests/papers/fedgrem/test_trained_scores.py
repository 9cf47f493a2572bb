"""Scores of what clients have from a run alone, and what regressions are expected to say: against densities by hand."""

import numpy as np
import pytest
from fedcore.papers.fedgrem.paper_gradient_em import losses
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from fedcore.errors import ConfigError
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.scores import KnownMemories
from tests.papers.fedgrem.run_in_memory import block_of, run

FEW = {"starts": 2, "start_steps": 5, "rounds": 3, "components": 2}
BASELINES = ("local-fit", "local-em", "local-grem", "tgmm", "pooled-em")


def gaussians(unit=1.0):
    generator = np.random.default_rng(0)
    centres = 3 * np.eye(2, 3)
    return [unit * (centres[generator.integers(2, size=60)] + generator.normal(size=(60, 3))) for _ in range(5)]


def regressions(unit=1.0):
    generator = np.random.default_rng(1)
    slopes = np.array([[2.0, -1.0], [-2.0, 1.0]])
    x = generator.normal(size=(5, 60, 2))
    y = np.einsum("cni,cni->cn", x, slopes[generator.integers(2, size=(5, 60))]) + 0.5 * generator.normal(size=(5, 60))
    return [np.column_stack(own) for own in zip(x, unit * y, strict=True)]


def scored(tables, **settings):
    """A run on the first 40 rows of each client; its scores on the others."""
    ran = run(block_of([own[:40] for own in tables]), **{**FEW, **settings})
    block = RowsBlock(0, 0, ran.block.ptr, ran.block.x, heldout=block_of([own[40:] for own in tables]))
    known = KnownMemories(ran.memory, np.ones(len(tables), bool))
    return ran, block, known, losses(ran.method.config, ran.state, block, block.heldout, known)


def test_a_local_fit_is_scored_by_its_own_covariance():
    tables = gaussians()
    ran, _, known, (sizes, nll, squares) = scored(tables, algorithm="local-fit")
    theta, w = ran.outputs()["centres"], ran.outputs()["weights"]
    expected = [
        -logsumexp(
            [
                np.log(w[k, r]) + multivariate_normal(theta[k, r], known.memory["covariance"][k]).logpdf(own[40:])
                for r in (0, 1)
            ],
            axis=0,
        ).sum()
        for k, own in enumerate(tables)
    ]
    assert_allclose(nll, expected)
    assert sizes.tolist() == [20] * 5 and squares is None


def test_local_regressions_are_scored_by_their_own_noise():
    tables = regressions()
    ran, _, known, (_, nll, squares) = scored(tables, algorithm="local-fit", model="regression")
    theta, w, variances = ran.outputs()["centres"], ran.outputs()["weights"], known.memory["variances"]
    for k, own in enumerate(tables):
        x, y = own[40:, :2], own[40:, 2]
        logs = [np.log(w[k, r]) + norm(x @ theta[k, r], np.sqrt(variances[k, r])).logpdf(y) for r in (0, 1)]
        assert_allclose(nll[k], -logsumexp(logs, axis=0).sum())
        assert_allclose(squares[k], ((y - x @ (w[k] @ theta[k])) ** 2).sum())


@pytest.mark.parametrize("algorithm", BASELINES)
def test_every_local_baseline_is_scored_in_the_units_of_the_data(algorithm):
    first = scored(gaussians(), algorithm=algorithm, standardise="columns")[-1]
    second = scored(gaussians(7.0), algorithm=algorithm, standardise="columns")[-1]
    assert_allclose(second[1] - first[1], 20 * 3 * np.log(7.0), rtol=1e-6)
    assert 3.5 < first[1].sum() / 100 < 7.0  # three normals of unit variance have 4.26, and two labels at most 0.69


@pytest.mark.parametrize("algorithm", ["local-fit", "local-em", "pooled-em", "fedgmm"])
def test_regressions_have_errors_too(algorithm):
    *_, (sizes, nll, squares) = scored(regressions(), algorithm=algorithm, model="regression")
    assert np.isfinite(nll).all() and (squares > 0).all() and sizes.sum() == 100


@pytest.mark.parametrize("model", ["gaussian", "regression"])
def test_who_remembers_nothing_is_not_scored(model):
    tables = gaussians() if model == "gaussian" else regressions()
    ran, block, known, everybody = scored(tables, algorithm="local-fit", model=model)
    some = np.array([True, False, True, True, True])
    memory = {name: np.where(some.reshape(-1, *[1] * (a.ndim - 1)), a, 0) for name, a in known.memory.items()}
    sizes, nll, _ = losses(ran.method.config, ran.state, block, block.heldout, KnownMemories(memory, some))
    assert sizes.tolist() == [20, 0, 20, 20, 20]
    assert_allclose(nll[some], everybody[1][some])
    with pytest.raises(ConfigError, match="from the training alone"):
        losses(ran.method.config, ran.state, block, block.heldout, None)
    later = RowsBlock(5, 0, block.ptr, block.x, heldout=block.heldout)
    assert not losses(ran.method.config, ran.state, later, later.heldout, None)[0].any()


@pytest.mark.parametrize("settings", [{}, {"algorithm": "local-em"}], ids=str)
@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_fitted_values_are_what_inputs_alone_say(settings, unit):
    tables = regressions(unit)
    ran = run(block_of(tables), **FEW, model="regression", intercept=True, **settings)
    given = ran.outputs()
    x = np.column_stack([ran.block.x[:, :2], np.ones(300)])
    own = np.repeat(np.einsum("cr,crp->cp", given["weights"], given["centres"]), 60, axis=0)
    assert_allclose(given["rows_fitted"], np.einsum("ij,ij->i", x, own))
    assert_allclose(given["rows_fitted"] + given["rows_residual"], ran.block.x[:, 2])
    assert "rows_fitted" not in run(block_of(gaussians()), **FEW).outputs()
