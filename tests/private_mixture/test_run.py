"""Whole runs in memory, with simulated noise of the planned scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers.private_mixture.data import FAMILIES

from fedcore.errors import RunError
from fedcore.methods.private_mixture import PrivateMixtureConfig
from fedcore.methods.private_mixture.result import rows_left_out
from fedcore.rounds.results import Features
from tests.private_mixture.worlds import adjusted_rand, block_of, mixture, records, run

pytestmark = pytest.mark.usefixtures("few_repetitions")
UNITS = np.array([1e-6, 1.0, 1e6, 1.0, 1.0])


@pytest.mark.slow
def test_components_that_touch_are_found_and_their_density_is_right():
    generator = np.random.default_rng(1)
    truth = mixture(5, 3, 3.0, generator)
    x, _ = truth.sample(10_000, generator)
    test, labels = truth.sample(3000, generator)
    method, state = run(records((x + 1e2) * UNITS), PrivateMixtureConfig(components=3), 1.0)
    model, scaled = method.model(state), (test + 1e2) * UNITS
    best = np.logaddexp.reduce(truth.log_joint(test), axis=1).mean()
    assert adjusted_rand(labels, model.labels(scaled)) > 0.95
    best -= np.log(UNITS).sum()
    assert best - 0.15 < model.log_likelihood(scaled).mean() < best + 0.05
    assert len(set(model.group)) == 3 and "3 separate groups" in method.outcome(state)
    tables = {table.name: table for table in method.result(state, Features(5)).tables}
    of_components = {"segments", "components", "means", "standard_deviations", "correlations", "valleys"}
    assert of_components | {"rows_left_out"} == tables.keys()
    assert np.allclose(model.responsibilities(scaled).sum(axis=1), 1)
    order = [int(np.linalg.norm(truth.means - mean, axis=1).argmin()) for mean in model.means_of_data() / UNITS - 1e2]
    assert sorted(order) == [0, 1, 2]


@pytest.mark.parametrize("name", ["normal", "cube"])
def test_no_groups_are_claimed_where_there_is_one(name):
    x = FAMILIES[name](4000, 4, np.random.default_rng(2))
    method, state = run(records(x), PrivateMixtureConfig(components=4), 1.0)
    assert len(set(method.model(state).group)) == 1
    assert "one" in method.outcome(state)


def test_clients_are_units():
    generator = np.random.default_rng(3)
    truth = mixture(3, 2, 6.0, generator)
    clients = [truth.sample(8, generator)[0] for _ in range(5000)]
    method, state = run(block_of(clients), PrivateMixtureConfig(components=2), 1.0, unit="client")
    test, labels = truth.sample(2000, generator)
    assert adjusted_rand(labels, method.model(state).labels(test)) > 0.98
    outputs = method.personalise(state, block_of(clients[:50]), None)
    assert outputs["rows_labels"].shape == (400,) and outputs["component"].shape == (50,)
    assert (outputs["rows_groups"] >= 0).all() and np.allclose(outputs["shares"].sum(axis=1), 1)


@pytest.mark.parametrize("seed", range(3))
def test_columns_that_noise_drowns_are_left_out_and_said(seed):
    """Never is a scale far too small: rows would then be far out by a column that says nothing."""
    generator = np.random.default_rng([20, seed])
    x = generator.normal(size=(300, 5)) * 10.0 ** generator.uniform(-3, 3, 5)
    method, state = run(records(x), PrivateMixtureConfig(components=3), 1.0, seed)
    assert (state.scale > x.std(axis=0) / 16).all() and not state.told.all()
    assert f"{int((~state.told).sum())} of 5 columns say nothing" in method.outcome(state)
    assert len(set(method.model(state).group)) == 1


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.slow
def test_the_share_of_rows_that_are_left_out_is_reported(unit):
    """Three columns with 10 % infinite numbers each lose 27 % of the rows. Reported from released counts and the
    declared size."""
    generator = np.random.default_rng(30)
    truth = mixture(3, 2, 6.0, generator)
    clients = [truth.sample(2 if unit == "client" else 1, generator)[0] for _ in range(5000)]
    for own in clients:
        own[generator.random(own.shape) < 0.1] = np.inf
    lost = np.mean([np.isinf(own).any(axis=1).mean() for own in clients])
    start = None
    for seed in range(2):
        config = PrivateMixtureConfig(components=2)
        method, state = run(block_of(clients), config, 1.0, seed, unit=unit, start=start)
        (share,) = next(t for t in method.result(state, Features(3)).tables if t.name == "rows_left_out").columns[2:]
        assert share.errors[0] < 0.02 and abs(share.values[0] - lost) < 4 * share.errors[0]
        said = f"{100 * share.values[0]:.1f} ± {100 * share.errors[0]:.1f} % of the rows are left out"
        assert said in method.outcome(state)
        assert method.rows_used(state) == (1 - share.values[0], share.errors[0])
        start = method.warm_start_of(state)
    assert state.warm


def test_nothing_is_said_of_rows_where_noise_hides_whether_any_is_left_out():
    x = FAMILIES["normal"](4000, 3, np.random.default_rng(2))
    method, state = run(records(x), PrivateMixtureConfig(components=2), 1.0)
    assert "left out" not in method.outcome(state)


def test_a_share_of_more_rows_than_are_declared_is_unknown():
    x = FAMILIES["normal"](4000, 3, np.random.default_rng(2))
    method, state = run(records(x), PrivateMixtureConfig(components=2), 1.0)
    state = replace(state, declared=2500)
    (share,) = next(t for t in method.result(state, Features(3)).tables if t.name == "rows_left_out").columns[2:]
    assert share.values == [None] and share.errors == [None]
    assert method.rows_used(state) is None
    assert "how many rows are left out is unknown" in method.outcome(state) and "%" not in method.outcome(state)


def test_noise_alone_does_not_say_that_there_are_more_units_than_declared():
    """Where every row is complete, the count is three standard errors too high in 1 of 700 runs."""
    x = FAMILIES["normal"](4000, 3, np.random.default_rng(2))
    method, state = run(records(x), PrivateMixtureConfig(components=2), 1.0)
    (_, error) = rows_left_out(method.config, state)
    state = replace(state, count=state.declared * (1 + 3 * error))
    assert "unknown" not in method.outcome(state) and method.rows_used(state) == (1.0, error)
    (share,) = next(t for t in method.result(state, Features(3)).tables if t.name == "rows_left_out").columns[2:]
    assert share.values == [0.0] and share.errors == [error]


ODD = {
    "no rows": np.zeros((0, 3)),
    "one row": np.ones((1, 3)),
    "equal rows": np.full((200, 3), 7.0),
    "a constant column": np.column_stack([np.zeros(300), np.arange(300.0), np.ones(300)]),
    "nothing finite": np.full((50, 3), np.nan),
    "huge": np.random.default_rng(4).normal(size=(300, 3)) * 1e300,
    "tiny": np.random.default_rng(5).normal(size=(300, 3)) * 1e-300,
    "one column": np.random.default_rng(6).normal(size=(500, 1)),
    "far apart units": np.random.default_rng(7).normal(size=(500, 3)) * [1e-9, 1.0, 1e9],
    "collinear": np.random.default_rng(8).normal(size=(500, 1)) * np.ones((1, 4)),
}


@pytest.mark.parametrize("epsilon", [0.05, 4.0])
@pytest.mark.parametrize("name", ODD)
def test_odd_data_end_with_a_finite_answer(name, epsilon):
    x = ODD[name]
    block = records(x) if len(x) else block_of([x])
    method, state = run(block, PrivateMixtureConfig(components=3, rounds=2, nominal_records=500), epsilon)
    model = method.model(state)
    for values in (model.weights, model.means, model.covariances, model.centre, model.scale):
        assert np.isfinite(values).all()
    assert (np.linalg.eigvalsh(model.covariances) > 0).all() and model.weights.sum() == pytest.approx(1)
    usable = x[np.isfinite(x).all(axis=1)]
    assert np.isfinite(model.log_likelihood(usable[:20])).all()


def test_a_run_without_an_end_has_no_mixture():
    x = np.random.default_rng(9).normal(size=(300, 2))
    seen = []
    run(records(x), PrivateMixtureConfig(components=2), 1.0, watch=lambda message, state: seen.append(state))
    from fedcore.methods.private_mixture import PrivateMixture

    method = PrivateMixture(PrivateMixtureConfig(components=2))
    with pytest.raises(RunError, match="not finished"):
        method.model(seen[0])
    assert not method.result(seen[0], Features(2)).tables and not method.outcome(seen[0])
