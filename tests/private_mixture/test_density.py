"""The density of a finished run: its tail, and columns that are not plain numbers."""

from __future__ import annotations

import numpy as np
import pytest
from fedcore.papers.private_mixture.data import Truth

from fedcore.methods.private_mixture import PrivateMixtureConfig, PrivateMixtureModel
from fedcore.methods.private_mixture.density import TAIL, log_uniform
from fedcore.methods.private_mixture.layout import layout_of
from tests.private_mixture.worlds import records, run


def model_by_hand(d: int = 1, **layout) -> PrivateMixtureModel:
    """Two components 4 apart, in columns of different units."""
    return PrivateMixtureModel(
        np.full(d, 3.0),
        np.geomspace(2.0, 50.0, d),
        np.full(d, 0.25),
        np.eye(d) + 0.3 * np.eye(d, k=1),
        np.array([0.6, 0.35, 0.05]),
        np.array([[-2.0], [2.0]]) * np.eye(1, d),
        np.tile(np.eye(d), (2, 1, 1)) * [[[0.5]], [[0.2]]],
        np.zeros(2, np.int64),
        layout_of(PrivateMixtureConfig(**layout), d),
    )


def test_the_density_of_one_column_integrates_to_one():
    """On a grid that is even in the log of the distance from the centre."""
    model = model_by_hand()
    ends = np.append(0.0, np.geomspace(2.0**-40, 2.0**60, 400_001))
    middle, width = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
    mass = [np.exp(model.log_likelihood(3.0 + sign * middle[:, None])) @ width for sign in (-1, 1)]
    assert sum(mass) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_tail_is_two_cauchy_distributions_and_a_uniform_one_in_logs(d):
    """Against a computation that follows the definition, of usual rows."""
    model = model_by_hand(d)
    x = np.random.default_rng(0).normal(size=(50, d)) * 20 + 3.1
    far = (x - model.centre) / model.scale
    columns = 0.9 / (np.pi * model.scale * (1 + far**2)) + 0.1 / (2 * 61 * np.log(2) * np.abs(x - model.centre))
    u = model.coordinates(x)
    gamma = {1: 1.0, 2: np.sqrt(np.pi) / 2, 5: 2.0}[d]
    jacobian = np.abs(np.linalg.det(model.linear)) / model.scale.prod()
    together = gamma / np.pi ** ((d + 1) / 2) * (1 + (u**2).sum(axis=1)) ** (-(d + 1) / 2) * jacobian
    joint = np.exp(model._log_joint(x))
    assert np.allclose(joint[:, -1], 0.01 * (0.5 * columns.prod(axis=1) + 0.5 * together))
    assert np.allclose(np.exp(model.log_likelihood(x)), joint.sum(axis=1))


def test_a_row_loses_at_most_a_hundredth_of_a_nat_by_the_tail():
    model = model_by_hand(3)
    x = np.random.default_rng(1).normal(size=(4000, 3)) * 100
    without = np.logaddexp.reduce(model._log_joint(x)[:, :-1], axis=1) - np.log1p(-TAIL)
    gain = model.log_likelihood(x) - without
    assert np.log1p(-TAIL) <= gain.min() < -0.005 and gain.max() > 100


def test_whatever_a_row_holds_its_density_is_finite():
    model = model_by_hand(3)
    x = np.array([[1.7e308, -1.7e308, 1.7e308], [0, 0, 1e300], [5e-324, 0, -0.0], [3, 3, 3], [2.0**31, 1, 1]])
    found = model.log_likelihood(x)
    assert np.isfinite(found).all() and (found > -5000).all()
    assert np.allclose(model.responsibilities(x).sum(axis=1), 1)
    assert np.allclose(model.responsibilities(x[:2]), [0, 0, 1])  # the background has what lies far out
    assert model.labels(x).max() < 2


def test_log_uniform_ends_where_the_first_histograms_end():
    with np.errstate(divide="ignore"):
        found = log_uniform(np.log([0.0, 2.0**-30.5, 2.0**-29.5, 1.0, 2.0**30.9, 2.0**31.1]))
    assert np.isfinite(found).tolist() == [False, False, True, True, True, False]
    assert np.exp(found[3]) == pytest.approx(1 / (2 * 61 * np.log(2)))


def test_few_rows_far_out_do_not_spoil_the_mean():
    """One row in a hundred has one number ten thousand times too large. A mixture alone loses 60,000 nats a row."""
    generator = np.random.default_rng(2)
    x = generator.normal(size=(6000, 6))
    x[generator.random(6000) < 0.01, 0] *= 1e4
    method, state = run(records(x[:4000]), PrivateMixtureConfig(components=2, rounds=1), 4.0)
    model, truth = method.model(state), Truth(np.ones(1), np.zeros((1, 6)), np.eye(6)[None])
    near = np.abs(x[4000:, 0]) < 6
    loss = truth.log_joint(x[4000:][near])[:, 0] - model.log_likelihood(x[4000:][near])
    assert loss.mean() < 0.2
    assert -40 < model.log_likelihood(x[4000:][~near]).mean() < -10
