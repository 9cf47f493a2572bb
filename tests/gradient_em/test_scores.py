"""Scores of a run on held-out rows of regressions: squared errors beside the likelihood, by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedcore.population.blocks import RowsBlock
from fedcore.rounds.scores import KnownMemories
from fedcore.rounds.statistics import values
from tests.gradient_em.run_in_memory import block_of, run


def scored(tables, held, **settings):
    ran = run(block_of(tables), **settings)
    block = block_of(tables)
    with_held = RowsBlock(0, 0, block.ptr, block.x, heldout=block_of(held))
    known = KnownMemories(ran.memory, np.ones(len(tables), bool))
    found = ran.method.score_table(values(ran.method.score_block(ran.state, with_held, known)))
    return ran, {row["method"]: row for row in found.to_json("here")["rows"]}


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
    settings = {"model": "regression", "components": 2, "covariance": known, "rounds": 5, "starts": 3}
    ran, lines = scored([t[:30] for t in tables], [t[30:] for t in tables], **settings)
    own = ran.method.personalise(ran.state, block_of([t[:30] for t in tables]), ran.memory)
    fits = [t[30:, 2] - t[30:, :2] @ (own["weights"][k] @ own["centres"][k]) for k, t in enumerate(tables)]
    assert_allclose(lines["own centres as trained"]["mse"], np.mean(np.square(fits)))
    assert lines["this run"]["mse"] > 0 and lines["this run"]["mse_difference"] is None
    more = lines["common centres"]["mse"] - lines["this run"]["mse"]
    assert_allclose(lines["common centres"]["mse_difference"], more, atol=1e-12 * unit**2)
