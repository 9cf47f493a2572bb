"""What private federated EM is given by a run of `private_mixture`: the same mixture, and how precise it is."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedcore.errors import BudgetExceeded, ConfigError, NothingLeft, PrivacyError
from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig
from fedcore.methods.federated_em.given import LARGEST_CHANGE, precision_of_start
from fedcore.methods.federated_em.start import public_model
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.natural_units import NaturalUnits
from fedcore.methods.mixture_models.released import MIXTURE_NAMES, NATS_OF_NOISE
from fedcore.methods.private_gmm import PrivateGMM
from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig
from fedcore.methods.private_mixture.series import SERIES_NAMES
from fedcore.methods.private_mixture.start import nats_of_noise
from fedcore.methods.private_mixture.state import NORMAL
from fedcore.methods.registry import make_method
from fedcore.privacy.gdp import mu_max
from fedcore.runs.store import load_run
from fedcore.training.shared_ids import register
from tests.federated_em.run_in_memory import block_of, facts
from tests.federated_em.run_in_memory import run as run_em
from tests.federated_em.series import start_from
from tests.federated_em.starts import config_of, em, first_run, people, without_series
from tests.federated_em.varied import Varied
from tests.private_gmm.test_run import begin, population
from tests.private_mixture.worlds import DELTA, mixture, records, run
from tests.sessions import to_end

UNITS = np.array([1e-6, 1.0, 1e6])
FULL = Varied(algorithm="private", components=2)


@pytest.fixture(scope="module")
def found():
    """A run of `private_mixture` over columns in units far apart, and far from 0."""
    generator = np.random.default_rng(4)
    rows = mixture(3, 2, 6.0, generator).sample(5000, generator)[0]
    return run(records((rows + 30.0) * UNITS), PrivateMixtureConfig(components=2, rounds=2), 2.0, 1)


def given(found, config: FederatedEMConfig = FULL) -> dict[str, np.ndarray]:
    return FederatedEM(config).checked_warm_start(without_series(*found), "the start", 3)


def state_of(arrays: dict[str, np.ndarray], config: FederatedEMConfig = FULL, rho: float = 1.0):
    block = block_of([np.zeros((1, 3))])
    public = facts(block, start=arrays, rho=rho, nominal=1000)
    return FederatedEM(config), public, FederatedEM(config).init(public)


def test_it_is_the_mixture_without_its_background(found):
    mixture_method, mixture_state = found
    fitted, arrays = mixture_method.fitted_model(mixture_state), given(found)
    assert set(arrays) == {*MIXTURE_NAMES, NATS_OF_NOISE}
    method, _, state = state_of(arrays)
    theta = method.parameters(state)
    np.testing.assert_allclose(theta["weights"], fitted.weights[:2] / fitted.weights[:2].sum(), rtol=1e-9)
    np.testing.assert_allclose(theta["means"] / UNITS, fitted.means[:2] / UNITS, rtol=1e-9)
    own = np.outer(UNITS, UNITS)
    np.testing.assert_allclose(theta["covariances"] / own, fitted.covariances[:2] / own, rtol=1e-6, atol=1e-9)


def test_a_run_that_is_not_private_starts_there_too(found):
    generator = np.random.default_rng(5)
    rows = (mixture(3, 2, 6.0, np.random.default_rng(4)).sample(500, generator)[0] + 30.0) * UNITS
    config = Varied(algorithm="em", components=2, start="given", rounds=2)
    block = block_of([rows[:300], rows[300:]])
    state = run_em(config, block, facts(block, start=given(found, config))).state
    assert np.abs(FederatedEM(config).parameters(state)["means"] / UNITS - 30.0).max() < 20.0


@pytest.mark.parametrize("covariance", ["tied", "diag", "spherical"])
def test_full_covariances_become_those_of_the_settings(found, covariance):
    config = FULL.model_copy(update={"covariance": covariance})
    arrays = given(found, config)
    again = FederatedEM(config).checked_warm_start(arrays, "the start", 3)
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)
    method, _, state = state_of(arrays, config)
    theta, full = method.parameters(state), FederatedEM(FULL).parameters(state_of(given(found))[2])
    np.testing.assert_allclose(theta["means"], full["means"], rtol=1e-6)
    variances = np.diagonal(full["covariances"], axis1=1, axis2=2)
    expected = {
        "tied": np.einsum("g,gij->ij", full["weights"], full["covariances"]),
        "diag": variances,
        "spherical": variances.mean(axis=1),
    }[covariance]
    np.testing.assert_allclose(theta["covariances"], expected, rtol=1e-5, atol=1e-9 * expected.max())


def test_precision_is_the_variance_that_costs_as_many_nats(found):
    """With noise of that variance in every entry the loss is, on average, what the start says; then FORGETTING."""
    arrays = given(found)
    _, public, state = state_of(arrays)
    known = precision_of_start(FULL, public, noise=1e-9)
    units = NaturalUnits(GaussianMixture(2, 3, "full"), {name: arrays[name] for name in MIXTURE_NAMES[:3]})
    noise = np.random.default_rng(0).normal(size=(4000, len(state.statistic))) * np.sqrt(known.variance)
    assert (units.forward(noise) ** 2).sum(axis=1).mean() / 2 == pytest.approx(arrays[NATS_OF_NOISE][0], rel=0.05)
    assert known.weight == pytest.approx(0.95 / known.variance)
    assert (state.pooled_weight, state.pooled_variance) == (known.weight, known.variance)
    bare = {name: arrays[name] for name in MIXTURE_NAMES}
    assert state_of(bare)[2].pooled_weight == 0
    own = arrays | {"pooled_weight": np.array([7.0]), "pooled_variance": np.array([0.5])}
    assert precision_of_start(FULL, replace(public, warm_start=own), 10.0).weight == pytest.approx(0.95 * 7)


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
def test_the_noise_of_all_rounds_drowns_no_variance(found, covariance):
    """Steps as a run with noise of variance v takes them, and the M-step of what they leave of it: the variance that
    changes most, for its size, changes by as much as is allowed with full covariances, and else by less."""
    config = FULL.model_copy(update={"covariance": covariance, "gamma": 2.0})
    arrays = given(found, config) | {NATS_OF_NOISE: np.array([1e9])}  # as if it were hardly known
    _, public, state = state_of(arrays, config)
    v, generator, model = 1.0, np.random.default_rng(2), public_model(config, public)
    known, errors = precision_of_start(config, public, v), np.zeros((300, len(state.statistic)))
    for number in range(config.all_rounds):
        gamma = replace(known, weight=known.weight + number / v).step(2.0, v)
        errors = (1.0 - gamma) * errors + gamma * np.sqrt(v) * generator.normal(size=errors.shape)
    small = 0.01  # of them, so that the M-step is that of small errors
    before, changes = whole(model.maximise(state.statistic)["covariances"], 3), []
    turn = np.linalg.eigh(before)[1]
    for error in errors:
        moved = whole(model.maximise(state.statistic + small * error)["covariances"], 3) - before
        along = np.einsum("gia,gij,gja->ga", turn, moved, turn) / np.einsum("gia,gij,gja->ga", turn, before, turn)
        changes.append(along / small)
    worst = np.std(changes, axis=0).max()
    if covariance == "full":
        assert worst == pytest.approx(LARGEST_CHANGE, rel=0.15)
    assert worst < 1.15 * LARGEST_CHANGE


def whole(covariances: np.ndarray, d: int) -> np.ndarray:
    """(2, d, d) of any form, for two components."""
    if covariances.shape == (2, d, d):
        return covariances
    if covariances.shape == (d, d):
        return np.stack([covariances, covariances])
    return np.stack([np.eye(d) * own for own in covariances])


def test_what_noise_costs_is_the_divergence_from_the_mixture_without_it():
    """Of two components so far apart that every row is known to be of one: shares and components by themselves."""
    d, weights, known = 3, np.array([0.3, 0.7]), np.array([[4e-4, 1e-3, 2e-3, 1e-3], [1e-4, 2e-3, 1e-3, 5e-4]])
    generator, total, runs = np.random.default_rng(1), 0.0, 4000
    for _ in range(runs):
        shares = weights + np.sqrt(known[:, 0]) * generator.normal(size=2)
        total += float(np.sum(weights * np.log(weights / shares) + shares - weights))
        for j in range(2):
            mean = np.sqrt(known[j, 1]) * generator.normal(size=d)
            entries = generator.normal(size=(d, d)) * np.sqrt(known[j, 3] / 2)
            shape = np.eye(d) + (entries + entries.T) / np.sqrt(2)
            matrix = shape * (1 + np.sqrt(known[j, 2]) * generator.normal())
            inverse = np.linalg.inv(matrix)
            own = np.trace(inverse) - d + mean @ inverse @ mean + np.linalg.slogdet(matrix)[1]
            total += weights[j] * float(own) / 2
    assert nats_of_noise(weights, known, d) == pytest.approx(total / runs, rel=0.05)


def test_starts_that_are_refused(found):
    method, state = found
    arrays = without_series(method, state)
    with pytest.raises(ConfigError, match="has 2 components, and this run 5") as refused:
        FederatedEM(config_of(5)).checked_warm_start(arrays, "run 'm'", 3)
    assert refused.value.remedy == "Set components to 2."
    for wrong in ([0.0], [-1.0], [1.0, 2.0]):
        with pytest.raises(ConfigError, match="one positive number"):
            state_of(arrays | {NATS_OF_NOISE: np.array(wrong)})
    for changed in ({"told": np.array([True, False, True])}, {"done": False}, {"outcome": NORMAL, "warm": True}):
        unlike = replace(state, **changed)
        left = without_series(method, unlike)
        assert not left and set(method.warm_start_of(unlike)) == set(SERIES_NAMES)
        with pytest.raises(ConfigError, match="holds no mixture to start from"):
            FederatedEM(FULL).checked_warm_start(left, "run 'm'", 3)
    with pytest.raises(ConfigError, match="the parameters lack"):
        settings = {"algorithm": "private", "model": "regression", "components": 2}
        state_of(arrays, Varied(**settings))


def test_methods_share_only_what_means_the_same_in_both():
    em_names = set(FederatedEM.series_arrays)
    assert em_names & set(PrivateMixture.series_arrays) == {NATS_OF_NOISE}
    assert not em_names & set(PrivateGMM.series_arrays)


@pytest.mark.slow
def test_a_private_start_replaces_a_public_one():
    """Under one budget: nearer to the truth than from k-means on rows of other people; and the noise of EM does not
    undo what the first run has found, as it does where nobody says how precise that is."""
    one, epsilon, rho = people("apart", 2000, 1), 4.0, mu_max(4.0, DELTA) ** 2 / 2
    method, state = first_run(one, 0.7, epsilon, 1)
    config = config_of(len(state.means))
    arrays = FederatedEM(config).checked_warm_start(without_series(method, state), "it", 5)
    first = one.scores(method.model(state).log_likelihood(one.held_out), one.labels)[0]
    bare = {name: arrays[name] for name in MIXTURE_NAMES}
    started, unknown = (em(one, start, 0.3 * rho, config, 1)[0] for start in (arrays, bare))
    public = em(one, start_from(one.few, config, 1), rho, config, 1)[0]
    assert started < 1.2 * first and started < 0.3 * public and started < 0.3 * unknown


@pytest.mark.slow
def test_noise_that_would_make_a_variance_vanish_leaves_a_start_as_it_was():
    """Seed 12 ended at 4.7 nats, from 1.6, when only the noise's cost in nats decided how short steps are."""
    one, rho = people("apart", 2000, 12), mu_max(1.0, DELTA) ** 2 / 2
    method, state = first_run(one, 0.7, 1.0, 12)
    config = config_of(len(state.means))
    arrays = FederatedEM(config).checked_warm_start(without_series(method, state), "it", 5)
    first = one.scores(method.model(state).log_likelihood(one.held_out), one.labels)[0]
    assert em(one, arrays, 0.3 * rho, config, 12)[0] < 1.1 * first


# --- through sessions -----------------------------------------------------------------------------------------------

MIXTURE = {"components": 2, "epsilon": 8.0}
EM = {"algorithm": "private", "components": 2, "rounds": 3}


@pytest.mark.slow
def test_one_account_pays_for_the_start_and_for_em(tmp_path):
    made, ledger = population(tmp_path / "p", heldout=True)
    first = to_end(begin(made, tmp_path, "private_mixture", MIXTURE, run_id="mixture"))
    spent = ledger.balance(made.id)
    later = to_end(begin(made, tmp_path, "federated_em", EM, run_id="em", start_from=str(first.path)))
    balance, info = ledger.balance(made.id), later.info["start"]
    assert 0 < spent.rho_spent < balance.rho_spent <= balance.budget.rho_max
    assert set(info["arrays"]) == {*MIXTURE_NAMES, NATS_OF_NOISE} and info["private"] and info["unprotected"] == []
    statement = json.loads((later.path / "statement.json").read_text())
    assert statement["private"] and statement["unit"] == "client"
    assert "run 'mixture'" in statement["start"] and "paid for in that run" in statement["start"]
    assert statement["together"]["rho"] == pytest.approx(balance.rho_spent) and "add up to" in statement["text"]
    method = make_method("federated_em", EM)
    state = method.State(**load_run(later.path).state)
    assert state.pooled_weight > 0 and "Pooled" in method.outcome(state)
    with pytest.raises(BudgetExceeded):
        begin(made, tmp_path, "private_mixture", MIXTURE, run_id="more")


@pytest.mark.slow
def test_the_start_of_another_population_brings_its_mixture_alone(tmp_path):
    made, _ = population(tmp_path / "p", test=True)
    other, _ = population(tmp_path / "q", test=True)
    first = to_end(begin(made, tmp_path, "private_mixture", MIXTURE, run_id="mixture", test_noise="key"))
    later = begin(other, tmp_path, "federated_em", EM, run_id="em", test_noise="key", start_from=str(first.path))
    to_end(later)
    assert set(later.run.info["start"]["arrays"]) == set(MIXTURE_NAMES)


@pytest.mark.slow
def test_records_and_runs_without_components_are_refused(tmp_path):
    made, _ = population(tmp_path / "p", unit="record")
    first = to_end(begin(made, tmp_path, "private_mixture", MIXTURE, run_id="mixture"))
    with pytest.raises(PrivacyError, match="one record"):
        begin(made, tmp_path, "federated_em", EM, run_id="em", start_from=str(first.path))
    clients, ledger = population(tmp_path / "q")
    register(clients, ledger)
    ledger.declare_shared_ids(clients.id, "the same simulated people")
    hopeless = to_end(
        begin(clients, tmp_path, "private_mixture", {**MIXTURE, "epsilon": 0.05, "anyway": True}, run_id="nothing")
    )
    with pytest.raises(NothingLeft, match="has not found components"):
        begin(clients, tmp_path, "federated_em", EM, run_id="em", start_from=str(hopeless.path))
