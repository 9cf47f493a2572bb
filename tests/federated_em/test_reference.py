"""The method takes the steps of the paper's algorithms, as `fedcore.papers.fedem.reference` has them.

The same initial statistic, the same active clients, batches and draws of the codec. Statistics and memories of every
round agree up to 1e-8 of their size; sums are taken in other orders, and the method's M-step and E-step are other code.
"""

import numpy as np
import pytest
from fedcore.papers.fedem import reference
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedcore.methods.federated_em.codecs import dithering_omega
from fedcore.randomness import client_dither, client_uniforms
from tests.federated_em.run_in_memory import block_of, facts, run
from tests.federated_em.varied import Varied

TOLERANCE = 1e-8


class Gaussians:
    """A mixture with full covariances by the formulas of a textbook; lam: (d,) diagonal of the penalty Lambda.

    s = (r_g ; r_g y ; r_g y y'), of y y' the upper triangle, with sqrt 2 off the diagonal.
    """

    def __init__(self, components: int, d: int, lam: np.ndarray):
        self.g, self.d, self.lam = components, d, np.diag(lam)
        self.i, self.j = np.triu_indices(d)
        self.root = np.where(self.i == self.j, 1.0, np.sqrt(2.0))
        # A norm of the codec is for the weights, for a component's mean, or for its second moments; numbers of one
        # kind that are single in every component share one.
        self.parts = [components, *([d] * components if d > 1 else [components])]
        self.parts += [len(self.i)] * components if d > 1 else [components]

    def s_bar(self, theta, y):
        weights, means, covariances = theta
        logs = np.empty((len(y), self.g))
        for g in range(self.g):
            x = y - means[g]
            squares = np.sum(x * np.linalg.solve(covariances[g], x.T).T, axis=1)
            logs[:, g] = np.log(weights[g]) - 0.5 * (squares + np.linalg.slogdet(covariances[g])[1])
        r = np.exp(logs - logs.max(axis=1, keepdims=True))
        r /= r.sum(axis=1, keepdims=True)
        z = y[:, self.i] * y[:, self.j] * self.root
        return np.concatenate([r.sum(axis=0), (r.T @ y).ravel(), (r.T @ z).ravel()]) / len(y)

    def _moments(self, s):
        s0, s1 = s[: self.g], s[self.g : self.g * (1 + self.d)].reshape(self.g, self.d)
        s2 = np.empty((self.g, self.d, self.d))
        s2[:, self.i, self.j] = s2[:, self.j, self.i] = s[self.g * (1 + self.d) :].reshape(self.g, -1) / self.root
        return s0, s1, s2 + self.lam - s1[:, :, None] * s1[:, None, :] / s0[:, None, None]

    def T(self, s):
        s0, s1, scatter = self._moments(s)
        return s0 / s0.sum(), s1 / s0[:, None], scatter / s0[:, None, None]

    def in_domain(self, s):
        return bool(s[: self.g].min() > 1e-9 and np.linalg.eigvalsh(self._moments(s)[2]).min() > 1e-9)


@st.composite
def populations(draw):
    """(rows of each client, initial parameters)."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    d, components = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=7))
    assume(sum(sizes) >= 5)
    rows = [generator.normal(generator.normal(size=d), 1.0, (size, d)) for size in sizes]
    theta = {
        "weights": generator.dirichlet(np.full(components, 5.0)),
        "means": generator.normal(size=(components, d)),
        "covariances": np.stack([np.eye(d) * generator.uniform(0.5, 2.0) for _ in range(components)]),
    }
    return rows, theta


COMMON = {
    "gamma": st.sampled_from([0.1, 0.5, 1.0]),
    "memories": st.booleans(),
    "weights": st.sampled_from(["rows", "clients"]),
    "regularisation": st.sampled_from([0.01, 0.5]),
}
CODECS = st.one_of(
    st.just({"codec": "identity"}),
    st.builds(lambda levels, by_part: {"codec": levels, "norms_by_part": by_part}, st.integers(1, 5), st.booleans()),
)
FEDEM = st.fixed_dictionaries(
    {**COMMON, "participation": st.sampled_from([1.0, 0.7, 0.3]), "batch": st.sampled_from([None, 1, 4])}
)
VR_FEDEM = st.fixed_dictionaries(
    {**COMMON, "batch": st.integers(1, 4), "inner_rounds": st.integers(2, 4), "algorithm": st.just("vr-fedem")}
)


class Both:
    """A run of the method, and what the reference needs to take the same steps."""

    def __init__(self, population, codec, changes, seed):
        self.y, theta = population
        self.block, self.seed = block_of(self.y), seed
        settings = {
            **codec,
            **changes,
            "components": len(theta["weights"]),
            "start": "given",
            "monitor_every": 2,
            "safeguards": False,
        }
        self.config = Varied(**settings)
        public = facts(self.block, start=theta, seed=seed)
        self.ran = run(self.config, self.block, public, clients_per_leaf=3)
        self.first = next(state for state in self.ran.states if state.phase in ("memory", "rounds"))
        sizes, every = np.array([len(rows) for rows in self.y]), np.concatenate(self.y)
        self.filled = np.flatnonzero(sizes)
        self.w = sizes / sizes.sum() if self.config.by_rows else (sizes > 0) / len(self.filled)
        self.model = Gaussians(
            self.config.model.components, every.shape[1], self.config.regularisation * every.var(axis=0)
        )
        self.V = np.zeros((len(sizes), len(self.first.statistic)))
        if self.config.memories:
            for i in self.filled:
                own = self.model.s_bar(self.model.T(self.first.statistic), self.y[i])
                self.V[i] = own - self.first.statistic

    def uniforms(self, what, k, draws=1):
        draw = client_dither if what == "codec" else client_uniforms
        return draw(self.seed, f"federated_em/{what}", k + 1, 0, len(self.y), draws)

    def batch(self, k, i):
        if self.config.algorithm.batch is None:
            return slice(None)
        return (self.uniforms("batch", k, self.config.algorithm.batch)[i] * len(self.y[i])).astype(int)

    def active(self, k):
        chosen = np.flatnonzero(self.uniforms("participation", k)[:, 0] <= self.config.algorithm.participation)
        return np.intersect1d(chosen, self.filled)

    def alpha(self):
        """1 / (1 + omega), omega the largest of the codec's parts; 0 without memories."""
        if not self.config.memories:
            return 0.0
        if self.config.algorithm.codec == "identity":
            return 1.0
        lengths = self.model.parts if self.config.norms_by_part else [len(self.first.statistic)]
        return 1 / (1 + max(dithering_omega(length, self.config.levels) for length in lengths))

    def quant(self, k, i, x):
        if self.config.algorithm.codec == "identity":
            return x
        u = self.uniforms("codec", k, len(x))[i]
        stops = np.cumsum(self.model.parts)[:-1] if self.config.norms_by_part else []
        parts = zip(np.split(x, stops), np.split(1.0 - u, stops), strict=True)  # a level is raised where u is small
        return np.concatenate([reference.dithering(own, xi, self.config.levels) for own, xi in parts])

    def check(self, rounds):
        states = [state for state in self.ran.states if state.round and state.phase != "done"]
        assert len(states) == self.config.algorithm.rounds
        for state, (S, V) in zip(states, rounds, strict=True):
            size = max(1.0, np.abs(S).max())
            assert np.abs(state.statistic - S).max() <= TOLERANCE * size
            if self.keeps_memories():
                assert np.abs(state.memory - self.w @ V).max() <= TOLERANCE * max(1.0, np.abs(V).max())
        if self.keeps_memories():
            assert np.abs(self.ran.memory["V"] - V).max() <= TOLERANCE * max(1.0, np.abs(V).max())

    def keeps_memories(self):
        """Without a codec and with everybody they change nothing, and the method leaves them out."""
        return self.config.memories and (
            self.config.algorithm.codec != "identity" or self.config.algorithm.participation < 1
        )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(populations(), CODECS, FEDEM, st.integers(0, 2**32))
def test_fedem(population, codec, changes, seed):
    both = Both(population, codec, {**changes, "rounds": 5}, seed)
    config = both.config
    rounds = reference.fedem(
        both.model,
        both.y,
        both.w,
        both.first.statistic,
        both.V,
        both.active,
        both.batch,
        both.quant,
        config.algorithm.rounds,
        config.algorithm.gamma,
        both.alpha(),
        config.algorithm.participation,
    )
    both.check(rounds)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(populations(), CODECS, VR_FEDEM, st.integers(0, 2**32))
def test_vr_fedem(population, codec, changes, seed):
    both = Both(population, codec, {**changes, "rounds": 2 * changes["inner_rounds"]}, seed)
    config = both.config
    rounds = reference.vr_fedem(
        both.model,
        both.y,
        both.w,
        both.first.statistic,
        both.V,
        both.batch,
        both.quant,
        2,
        config.inner_rounds,
        config.algorithm.gamma,
        both.alpha(),
    )
    both.check(rounds)
