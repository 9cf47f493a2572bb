"""Scores of mixed effects: the predictive density of held-out rows, squared errors, and the lines beside the run's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from fedcore.methods.mixed_effects.regression import personal, systems
from fedcore.methods.mixed_effects.state import commons_of
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.scores import KnownMemories
from fedcore.rounds.statistics import values
from tests.mixed_effects.run_in_memory import block_of, run
from tests.mixed_effects.test_mixture import MIXTURE, mixture
from tests.mixed_effects.test_regression import rows_of, simulated
from tests.mixed_effects.test_run import MIXED


def scored(tables, held, **settings):
    ran = run(block_of(tables), **settings)
    block = block_of(tables)
    with_held = RowsBlock(0, 0, block.ptr, block.x, heldout=block_of(held))
    known = KnownMemories(ran.memory, np.ones(len(tables), bool))
    found = ran.method.score_table(values(ran.method.score_block(ran.state, with_held, known)))
    return ran, {row["method"]: row for row in found.to_json("here")["rows"]}


def test_the_density_and_the_error_are_those_of_the_posterior():
    inputs, responses, _ = simulated(1, clients=20, n=12, noise=0.7)
    tables = [np.column_stack([x, y])[:8] for x, y in zip(inputs, responses, strict=True)]
    held = [np.column_stack([x, y])[8:] for x, y in zip(inputs, responses, strict=True)]
    ran, lines = scored(tables, held, **MIXED, robust=False)
    (common,) = commons_of(ran.state)
    own = personal(systems(rows_of([t[:, :-1] for t in tables], [t[:, -1] for t in tables])), common, False)
    density, error, new = [], [], []
    for k, rows in enumerate(held):
        for *x, y in rows:
            x = np.array(x)
            variance = common.noise + x @ own.covariances[k] @ x
            density.append(norm.logpdf(y, x @ own.coefficients[k], np.sqrt(variance)))
            error.append((y - x @ own.coefficients[k]) ** 2)
            new.append(norm.logpdf(y, x @ common.mean, np.sqrt(common.noise + x @ common.between @ x)))
    assert_allclose(lines["this run"]["nll"], -np.mean(density))
    assert_allclose(lines["this run"]["mse"], np.mean(error))
    assert_allclose(lines["own centres as trained"]["nll"], -np.mean(density))
    assert_allclose(lines["common centres"]["nll"], -np.mean(new))
    assert lines["this run"]["mse"] < lines["own least squares"]["mse"]
    assert lines["this run"]["nll"] < min(lines[name]["nll"] for name in ("common centres", "own least squares"))


@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_mixtures_and_units(unit: float):
    tables, _ = mixture(2, clients=20, n=40)
    tables = [own * [1, 1, 1, unit] for own in tables]
    ran, lines = scored([own[:30] for own in tables], [own[30:] for own in tables], **MIXTURE, rounds=15)
    assert set(lines) == {"this run", "common centres", "own centres as trained", "own least squares"}
    assert lines["own centres as trained"]["nll"] < lines["common centres"]["nll"] - 0.2
    assert abs(lines["own centres as trained"]["nll"] - lines["this run"]["nll"]) < 0.1
    assert 0 < lines["this run"]["nll"] - np.log(unit) < 1.5


@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_fitted_values_are_what_inputs_alone_say(components, unit):
    tables, _ = mixture(4, clients=8)
    tables = [own * [1, 1, 1, unit] for own in tables]
    ran = run(block_of(tables), components=components, intercept=True, starts=2, rounds=3)
    given = ran.outputs()
    x = np.column_stack([ran.block.x[:, :3], np.ones(len(ran.block.x))])
    own = np.repeat(np.einsum("cr,crp->cp", given["weights"], given["centres"]), 30, axis=0)
    assert_allclose(given["rows_fitted"], np.einsum("ij,ij->i", x, own))
    assert_allclose(given["rows_fitted"] + given["rows_residual"], ran.block.x[:, 3])
