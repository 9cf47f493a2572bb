"""Defaults on real data (FEDCORE_DATA), beside scikit-learn from the same starts."""

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from fedcore.methods.federated_em import models
from tests.federated_em.run_in_memory import block_of, facts, run
from tests.federated_em.varied import Varied

FOLDER = os.environ.get("FEDCORE_DATA")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER, reason="FEDCORE_DATA names no folder of data sets")]
EXACT = {"algorithm": "em", "rounds": 40, "monitor_every": 1000, "restarts": 1, "pseudo_rows": 0.001}


def load(name, columns=None, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and a fifth to test on, standardised by the former."""
    x = np.load(Path(FOLDER) / "tabular" / f"{name}.npz")["x"][:, :columns].astype(np.float64)
    order = np.random.default_rng(seed).permutation(len(x))
    train, test = x[np.sort(order[len(x) // 5 :])], x[np.sort(order[: len(x) // 5])]
    centre, scale = train.mean(axis=0), train.std(axis=0)
    return (train - centre) / scale, (test - centre) / scale


def trained(rows, test, components, start=None, **settings):
    """The last state, mean loss of the test rows in the units of the rows given, and parameters before round 1."""
    settings = {"start": "given", **settings} if start else settings
    block = block_of(np.array_split(rows, len(rows) // 50))
    config = Varied(**{**EXACT, "components": components, **settings})
    ran = run(config, block, facts(block, start=start))
    state, model = ran.state, models.model_of(config, ran.state.scaling())
    loss = -model.log_likelihood(state.parameters(), (test - state.centre) / state.scale).mean()
    first = next(state for state in ran.states if state.phase == "rounds")
    return state, loss + np.log(state.scale).sum(), first.parameters()


MIXTURES = [
    pytest.param("satellite", 6, marks=pytest.mark.heavy),
    pytest.param("gvhd_flow", 8, marks=pytest.mark.heavy),
]


@pytest.mark.parametrize(("name", "components"), MIXTURES)
def test_held_out_rows_are_as_likely_as_under_scikit_learn(name, components):
    train, test = load(name)
    _, loss, first = trained(train, test, components)
    precisions = np.linalg.inv(first["covariances"])
    theirs = GaussianMixture(
        components, reg_covar=1e-6, max_iter=40, tol=0, means_init=first["means"], weights_init=first["weights"]
    ).set_params(precisions_init=precisions)
    with pytest.warns(UserWarning, match="did not converge"):
        theirs.fit(train)
    assert loss <= -theirs.score(test) + 0.02


def test_small_data_get_a_larger_penalty():
    """990 rows, 11 components with 55 parameters each."""
    train, test = load("vowel")
    _, small, _ = trained(train, test, 11)
    state, chosen, _ = trained(train, test, 11, pseudo_rows="auto")
    assert state.penalty_share > 1e-4 and chosen < small - 0.1


GAPS = [
    pytest.param("satellite", 12, 6, 0.1, marks=pytest.mark.heavy),
    pytest.param("gvhd_flow", 4, 8, 0.2, marks=pytest.mark.heavy),
]


@pytest.mark.parametrize(("name", "columns", "components", "hidden"), GAPS)
def test_rows_with_gaps_train_nearly_as_well_as_complete_ones(name, columns, components, hidden):
    """From the same parameters: other starts end up to .1 apart, whatever is hidden."""
    train, test = load(name, columns, seed=2)
    gaps = np.where(np.random.default_rng(102).random(train.shape) < hidden, np.nan, train)
    gaps = gaps[~np.isnan(gaps).all(axis=1)]
    filled = np.where(np.isnan(gaps), np.nanmean(gaps, axis=0), gaps)
    state, complete, first = trained(train, test, components)
    start = {**first, "centre": state.centre, "scale": state.scale}
    incomplete, by_means = (trained(rows, test, components, start)[1] for rows in (gaps, filled))
    assert incomplete < complete + 0.05 and incomplete < by_means - 0.2


def test_rows_with_weights_train_as_scikit_learn_does_on_repeated_rows():
    train, test = load("gvhd_flow")
    weights = np.random.default_rng(3).integers(0, 4, len(train))
    weighted = np.insert(train, 1, weights, axis=1)
    state, loss, first = trained(weighted, test, 8, regularisation=0, pseudo_rows=None, weight_column=1)
    theirs = GaussianMixture(
        8, reg_covar=0, max_iter=40, tol=0, means_init=first["means"], weights_init=first["weights"]
    ).set_params(precisions_init=np.linalg.inv(first["covariances"]))
    repeated = np.repeat((train - state.centre) / state.scale, weights, axis=0)
    with pytest.warns(UserWarning, match="did not converge"):
        theirs.fit(repeated)
    assert state.objective == pytest.approx(-theirs.score(repeated), abs=1e-8)
    assert np.allclose(state.parameters()["means"], theirs.means_, atol=1e-6)
    assert loss == pytest.approx(-theirs.score((test - state.centre) / state.scale) + np.log(state.scale).sum())
