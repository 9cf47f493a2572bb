"""Scores of mixed effects: the predictive density of held-out rows, squared errors, and the lines beside the run's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from fedcore.methods.gradient_em.mixed_effects import personal, systems
from fedcore.methods.gradient_em.mixed_state import commons_of
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.scores import KnownMemories
from fedcore.rounds.statistics import values
from tests.gradient_em.run_in_memory import block_of, run
from tests.gradient_em.test_mixed_effects import rows_of, simulated
from tests.gradient_em.test_mixed_mixture import MIXTURE, mixture
from tests.gradient_em.test_mixed_rounds import MIXED


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


@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_squared_errors_of_mixtures_of_regressions_are_those_of_what_is_expected_of_a_row(unit: float):
    generator = np.random.default_rng(3)
    coefficients = np.array([[2.0, -1.0], [-2.0, 1.0]])
    tables = []
    for _ in range(6):
        x = generator.normal(size=(40, 2))
        y = np.einsum("ij,ij->i", x, coefficients[generator.integers(2, size=40)]) + 0.3 * generator.normal(size=40)
        tables.append(np.column_stack([x, unit * y]))
    known = 0.09 * unit**2
    settings = {"model": "regression", "components": 2, "covariance": "known", "known": known, "rounds": 5, "starts": 3}
    ran, lines = scored([t[:30] for t in tables], [t[30:] for t in tables], algorithm="fedgrem", **settings)
    own = ran.method.personalise(ran.state, block_of([t[:30] for t in tables]), ran.memory)
    fits = [t[30:, 2] - t[30:, :2] @ (own["weights"][k] @ own["centres"][k]) for k, t in enumerate(tables)]
    assert_allclose(lines["own centres as trained"]["mse"], np.mean(np.square(fits)))
    assert lines["this run"]["mse"] > 0 and lines["this run"]["mse_difference"] is None
    more = lines["common centres"]["mse"] - lines["this run"]["mse"]
    assert_allclose(lines["common centres"]["mse_difference"], more, atol=1e-12 * unit**2)
