"""The pipeline on synthetic clients whose truth is known: errors stay within what sampling and noise explain."""

import numpy as np
import pytest

from fedcore.methods.histograms import Histograms, HistogramsConfig
from fedcore.population.blocks import leaves
from fedcore.population.synthetic import SyntheticSettings, cluster_weights
from fedcore.rounds.statistics import merge, values
from tests.histograms.example_clients import row_of, synthetic
from tests.histograms.run_in_memory import facts, rounded_normal, run
from tests.papers.histograms.paper import paper

SETTINGS = SyntheticSettings(
    clients=3000, features=40, clusters=3, tokens=300, gamma=60.0, alpha=300.0, beta=None, heldout_clients=0
)


def match(truth: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Row of `centres` nearest to each true centre."""
    return np.abs(truth[:, None] - centres[None]).sum(axis=2).argmin(axis=1)


@pytest.mark.parametrize(
    "method, rho",
    [
        (paper(algorithm="algorithm2", clusters=3, start="perturbed_mean"), None),
        (Histograms(HistogramsConfig(clusters=3, clip=3.0)), 2.0),
    ],
)
def test_centres_are_recovered_within_sampling_and_noise(method, rho):
    """Expected KL of a centre: (d - 1) (1/m + 1/(alpha + 1)) / (2 n_k) of sampling and (C sigma)**2 sum(w/P) / (2 N**2)
    of noise.

    Three times that is allowed, for its spread (a chi-square with about d - 1 degrees) and for misassigned clients; the
    true centres are more than 0.5 nats apart.
    """
    block, truth = synthetic(SETTINGS, 3)
    public = facts(40, rho=rho, nominal=None if rho is None else 3000, seed=1)
    state, _ = run(method, block, public, rounded_normal(np.random.default_rng(0)))
    rows = match(truth, state.centres)
    assert sorted(rows) == [0, 1, 2]
    for true, row, clients in zip(truth, rows, 3000 * cluster_weights(SETTINGS), strict=True):
        kept = true > 1e-4  # the floor of a centre, 1e-5, biases tokens that hardly occur
        kl = np.sum(true[kept] * np.log(true[kept] / state.centres[row][kept]))
        allowed = 39 * (1 / 300 + 1 / 301) / (2 * clients)
        if rho is not None:
            noise = method.config.clip * state.multipliers[-1]
            allowed += noise**2 * np.sum(state.metric[kept] / true[kept]) / (2 * clients**2) + 40 * 1e-5
        assert kl < 3 * allowed < 0.05


def scores(method, state, block):
    total = None
    for leaf in leaves(block, 1024):
        total = merge(total, method.score_block(state, leaf, None))
    return method.score_table(values(total))


@pytest.mark.slow
def test_clusters_help_on_a_small_preset_with_and_without_noise():
    """n = 4000; the targets of the whole preset are those of the test below."""
    block, _ = synthetic(SyntheticSettings(clients=4000, heldout_clients=1500), 2)
    for method, rho in ((paper(), None), (Histograms(), 1.82)):
        public = facts(1000, rho=rho, nominal=None if rho is None else 4000, seed=1)
        state, _ = run(method, block, public, rounded_normal(np.random.default_rng(1)))
        table = scores(method, state, block)
        assert row_of(table, "Algorithm 2").kl < row_of(table, "FedAvg").kl - 0.03


@pytest.mark.heavy
def test_the_reddit_like_preset_meets_its_targets():
    """n = 20 000: non-private .92-.94 (one start may end in a worse optimum, hence the better of two), and the targets
    of the private pipeline, mean of two noise seeds, at the budget that remains with one spare release reserved."""
    block, _ = synthetic(SyntheticSettings(), 2)

    def algorithm2(method, rho, seed):
        public = facts(1000, rho=rho, nominal=None if rho is None else 20_000, seed=seed)
        state, _ = run(method, block, public, rounded_normal(np.random.default_rng(seed)))
        return scores(method, state, block)

    plain = [algorithm2(paper(), None, seed) for seed in range(2)]
    assert 0.91 < min(row_of(t, "Algorithm 2").kl for t in plain) < 0.94
    assert 1.055 < row_of(plain[0], "FedAvg").kl < 1.085
    assert plain[0].unseen_mass == pytest.approx(0.304, abs=0.01)
    for rho, target in ((1.82, 0.945), (0.2518, 0.960), (0.0433, 1.010), (0.0111, 1.060)):
        runs = [algorithm2(Histograms(), rho, seed) for seed in range(2)]
        mean = np.mean([row_of(t, "Algorithm 2").kl for t in runs])
        assert mean <= target
        assert mean < np.mean([row_of(t, "FedAvg").kl for t in runs])
        assert np.mean([row_of(t, "Algorithm 2 + FT", chosen="").kl for t in runs]) < mean
