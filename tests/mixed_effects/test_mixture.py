"""Mixtures of mixed-effects regressions: one component, the bound, pooling, what runs find, held-out rows, leaves."""

import numpy as np
import pytest
from fedcore.papers.fedgrem.simulation import errors
from numpy.testing import assert_allclose
from scipy.stats import norm

from fedcore.methods.mixed_effects import mixture_rounds as several
from fedcore.methods.mixed_effects import regression
from fedcore.methods.mixed_effects.mixture_rounds import Parts
from fedcore.methods.mixed_effects.regression import Common
from fedcore.rounds.results import Features
from tests.gradient_em.run_in_memory import run as run_fedgrem
from tests.mixed_effects.run_in_memory import block_of, run
from tests.mixed_effects.test_regression import rows_of, simulated

MIXTURE = {"components": 2, "starts": 3}


def mixture(seed: int, clients: int = 40, n: int = 30, noise: float = 0.3, hostile: int = 0):
    """Rows of clients with two components, of which the first have others; and the coefficients (K, 2, 3)."""
    random = np.random.default_rng(seed)
    mean = np.array([[2.0, -1.0, 0.5], [-2.0, 1.0, 1.5]])
    deviations = np.array([0.8, 0.3, 0.05])
    coefficients = mean + deviations * random.normal(size=(clients, 2, 3))
    rows = []
    for k in range(clients):
        own = 6 * random.normal(size=(2, 3)) if k < hostile else coefficients[k]
        label = random.random(n) < random.beta(5, 5)
        x = random.normal(size=(n, 3))
        rows.append(np.column_stack([x, (x * own[label.astype(int)]).sum(axis=1) + noise * random.normal(size=n)]))
    return rows, coefficients


def commons_of(seed: int) -> list[Common]:
    random = np.random.default_rng(seed)
    halves = random.normal(size=(2, 3, 3))
    return [Common(random.normal(size=3), half @ half.T, 0.5, 1e-12) for half in halves]


def rows(tables):
    return rows_of([own[:, :-1] for own in tables], [own[:, -1] for own in tables])


def test_one_component_is_that_of_mixed_effects():
    inputs, responses, _ = simulated(1, clients=10, p=3, n=8)
    every = rows_of(inputs, responses)
    common = commons_of(2)[0]
    found = several.em_step(every, Parts.of_common([common], 10), [common], True)
    own = regression.systems(every)
    expected = regression.posteriors(own, common)
    assert_allclose(found.parts.coefficients[:, 0], expected.coefficients)
    assert_allclose(found.parts.covariances[:, 0], expected.covariances)
    sums = several.round_sums(found)[0]
    expected_sums = regression.round_sums(own, expected)
    kept = np.arange(len(sums)) != len(sums) - 2
    assert_allclose(sums[kept], expected_sums[kept])
    # the bound of one component is the log-likelihood
    assert_allclose(several.bound(every, found.parts, [common]), expected.log_likelihoods)


def test_a_step_never_lowers_the_bound():
    tables, _ = mixture(3, clients=12, n=9)
    every, commons = rows(tables), commons_of(4)
    parts, values = Parts.of_common(commons, 12), []
    for _ in range(25):
        parts = several.em_step(every, parts, commons, False).parts
        values.append(several.bound(every, parts, commons))
    assert np.diff(values, axis=0).min() > -1e-9


def test_the_bound_with_a_covariance_that_is_singular():
    tables, _ = mixture(5, clients=4)
    flat = [Common(c.mean, np.diag([1.0, 0.5, 0.0]), c.noise, c.smallest) for c in commons_of(6)]
    near = [c._replace(between=np.diag([1.0, 0.5, 1e-12])) for c in flat]
    values = []
    for commons in (flat, near):
        found = several.em_step(rows(tables), Parts.of_common(commons, 4), commons, False)
        values.append(several.bound(rows(tables), found.parts, commons))
    assert_allclose(values[0], values[1], rtol=1e-4)


def test_the_density_of_rows():
    tables, _ = mixture(7, clients=2, n=3)
    random = np.random.default_rng(8)
    halves = random.normal(size=(2, 2, 3, 3))
    parts = Parts(np.array([[0.3, 0.7], [0.5, 0.5]]), random.normal(size=(2, 2, 3)), halves @ halves.swapaxes(2, 3))
    found = several.log_density(rows(tables), parts, 0.4)
    for k, own in enumerate(tables):
        total = 0.0
        for row in own:
            x, y = row[:-1], row[-1]
            of = [
                parts.w[k, r]
                * norm.pdf(y, x @ parts.coefficients[k, r], np.sqrt(0.4 + x @ parts.covariances[k, r] @ x))
                for r in range(2)
            ]
            total += np.log(sum(of))
        assert_allclose(found[k], total)


def test_pooling_keeps_what_many_clients_say():
    random = np.random.default_rng(9)
    half = random.normal(size=(3, 3))
    between, mean, squares = half @ half.T, np.eye(3), np.array([1.0, 4.0, 0.25])
    assert_allclose(several.pooled(between, mean, 1e9, squares), between, rtol=1e-6)
    few = several.pooled(between, mean, 0.0, squares)
    plain = np.diag(np.mean(squares) / squares)
    assert_allclose(few, (mean + plain) / 2)


def test_a_run_finds_components_noise_and_differences():
    tables, truth = mixture(10, hostile=6)
    tables[20], tables[21] = tables[20][:0], tables[21][:1]
    ran = run(block_of(tables), **MIXTURE, rounds=60)
    state = ran.state
    order = np.argsort(-state.centres[:, 0])
    assert_allclose(state.centres[order], [[2, -1, 0.5], [-2, 1, 1.5]], atol=0.3)
    deviations = np.sqrt(np.diagonal(state.between[order], axis1=1, axis2=2))
    assert_allclose(deviations, [[0.8, 0.3, 0.05]] * 2, atol=0.25)
    assert_allclose(np.sqrt(state.noise), 0.3, atol=0.05)
    assert state.robust == 1
    assert state.gain > 0.02
    out = ran.outputs()
    honest = np.arange(40) >= 6
    honest[[20, 21]] = False
    assert errors(out["centres"], truth, honest).rms < 0.25
    assert (out["apart"][:6].max(axis=1) == 1).mean() > 0.6 > 0.2 > out["apart"][honest].mean()
    assert_allclose(out["centres"][20], state.centres)
    own = run_fedgrem(block_of(tables), model="regression", **MIXTURE)
    assert errors(out["centres"], truth, honest).rms < 0.7 * errors(own.outputs()["centres"], truth, honest).rms
    shown = {table.name: table for table in ran.method.result(state, Features(4, ("a", "b", "c", "y"))).tables}
    assert set(shown) == {"components", "centres", "differences"}


def test_leaves_do_not_matter():
    tables, _ = mixture(11, clients=20)
    one, other = (run(block_of(tables), **MIXTURE, rounds=3, clients_per_leaf=size) for size in (64, 10))
    assert_allclose(one.state.gain, other.state.gain, rtol=1e-6, atol=1e-9)
    assert_allclose(one.state.centres, other.state.centres, rtol=1e-6)
    assert set(one.memory) == {"w", "coefficients", "covariances"}


@pytest.mark.parametrize("robust", [True, False])
def test_without_a_trial_weights_are_as_asked(robust: bool):
    tables, _ = mixture(12, clients=20, hostile=5)
    ran = run(block_of(tables), **MIXTURE, rounds=12, robust=robust)
    assert len(ran.infos) <= 13
    assert ran.state.robust == -1
    assert (ran.state.left_apart > 0) == robust


def test_clients_who_align_themselves():
    tables, _ = mixture(13, clients=30)
    few = run(block_of(tables), **MIXTURE, rounds=15, aligned_clients=10, robust=True)
    every = run(block_of(tables), **MIXTURE, rounds=15, robust=True)
    found, expected = (np.sort(ran.state.centres[:, 0]) for ran in (few, every))
    assert_allclose(found, expected, atol=0.1)
