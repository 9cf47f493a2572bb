"""The method's own rounds, over random small populations, against the page of NumPy in `reference.py`.

Clients score centres in single precision, and their private contributions lie on a grid. So a run may decide otherwise
where the reference all but ties; such examples are left out (`with_margin`).
"""

from unittest import mock

import numpy as np
import pytest
from fedcore.papers.histograms import reference
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedcore.methods.histograms import Histograms, HistogramsConfig
from fedcore.randomness import client_uniforms, stream
from tests.histograms.example_clients import block_of
from tests.histograms.run_in_memory import facts, run
from tests.papers.histograms.paper import paper


def with_margin(margin: float, counts: np.ndarray):
    """Patches the decisions of the reference to reject examples in which one of them is close.

    Exact ties are left in where all clients have many tokens: there only equal rows tie, and those tie everywhere.
    """
    equal_rows_only = counts.sum(axis=1).min() >= 40

    def argmin(values, axis=-1):
        ordered = np.sort(np.asarray(values), axis=axis)
        if ordered.shape[axis] > 1:
            first, second = np.take(ordered, 0, axis), np.take(ordered, 1, axis)
            clear = second - first > margin * (1 + np.abs(first))
            assume(np.all(clear | (second == first) if equal_rows_only else clear))
        return np.argmin(values, axis=axis)

    def at_least(value, bound):
        assume(np.all(np.abs(value - bound) > 10 * margin * (np.abs(value) + bound)))
        return value >= bound

    return mock.patch.multiple(reference, argmin=argmin, at_least=at_least)


@st.composite
def populations(draw, clients: int):
    """(n, d) counts of clients around a few different histograms; everybody has tokens."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d, groups = draw(st.integers(3, clients)), draw(st.integers(2, 9)), draw(st.integers(1, 4))
    truth = generator.dirichlet(np.full(d, draw(st.sampled_from([1.0, 5.0]))), groups)
    tokens = generator.integers(*draw(st.sampled_from([(1, 5), (1, 60), (40, 1000)])), n)
    counts = np.stack([generator.multinomial(m, truth[generator.integers(groups)]) for m in tokens])
    return counts.astype(np.float64)


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(
    populations(14), st.integers(1, 6), st.integers(1, 12), st.sampled_from([0.0, 0.5, 100.0]), st.integers(0, 2**31)
)
def test_algorithms_1_and_2(counts, clusters, rounds, temperature, seed):
    config = dict(
        algorithm="algorithm2",
        start="algorithm1",
        clusters=clusters,
        rounds=rounds,
        temperature=temperature,
        personalisation="centre",
        prior_tokens=40.0,
    )
    histograms, gumbels = counts / counts.sum(axis=1, keepdims=True), []
    for k in range(clusters):
        uniforms = client_uniforms(seed, "histograms/algorithm1", k, 0, len(counts))[:, 0]
        gumbels.append(-np.log(-np.log(uniforms)))
    with with_margin(1e-5, counts):
        start = reference.algorithm_1(histograms, clusters, temperature, np.array(gumbels))
        centres = reference.algorithm_2(histograms, start, rounds)
        estimates = [reference.personalised(x, centres, 40.0) for x in counts]
    block = block_of(counts)
    state, _ = run(paper(**config), block, facts(counts.shape[1], seed=seed), clients_per_leaf=4)
    np.testing.assert_allclose(state.centres, centres, rtol=1e-12, atol=1e-15)
    found = paper(**config).personalise(state, block, None)["estimate"]
    np.testing.assert_allclose(found, estimates, rtol=2e-6, atol=1e-7)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    populations(60),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 6),
    st.sampled_from([0.1, 1.0, 20.0]),
    st.sampled_from([0.7, 3.0]),
    st.integers(0, 2**31),
)
def test_the_private_pipeline_with_exact_sums(counts, clusters, more, rounds, rho, clip, seed):
    merge_after = max(1, rounds // 2) if more and rounds > 2 else 0
    cells = clusters + more if merge_after else clusters
    config = HistogramsConfig(
        clusters=clusters, rounds=rounds, overseed=cells, merge_after=merge_after or None, clip=clip
    )
    method, d = Histograms(config), counts.shape[1]
    public = facts(d, rho=rho, nominal=1000, seed=seed)

    def normal(t, k):
        named = stream(seed, "histograms/reseed", t) if t else stream(seed, "histograms/start")
        return named.standard_normal((k, d))

    width = method.init(public).perturbation
    sigma = np.array([release.noise_multiplier for release in method.plan(public)])
    histograms = counts / counts.sum(axis=1, keepdims=True)
    with with_margin(1e-3, counts):
        centres, mean = reference.private_pipeline(histograms, sigma, clusters, cells, merge_after, width, clip, normal)
    state, _ = run(method, block_of(counts), public, clients_per_leaf=16)
    np.testing.assert_allclose(state.centres, centres, atol=1e-3)
    np.testing.assert_allclose(state.mean, mean, atol=1e-3)
