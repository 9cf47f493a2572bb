"""What clients are given, and how it is scored."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import PopulationError
from fedcore.methods.histograms import Histograms, HistogramsConfig, personal
from fedcore.methods.histograms.scores import PRIOR_TOKENS, score_block, score_table, validation_clients
from fedcore.population.blocks import leaves
from fedcore.rounds.statistics import merge, values
from tests.histograms.example_clients import block_of, counts_arrays, dense_histograms, random_counts, row_of
from tests.histograms.run_in_memory import facts, run

MIXTURE = HistogramsConfig(clusters=3, rounds=4, overseed=3, prior_tokens=40.0)
CONFIG = MIXTURE.model_copy(update={"personalisation": "centre"})


@pytest.fixture
def trained():
    generator = np.random.default_rng(7)
    train, test = random_counts(generator, 80, 11), random_counts(generator, 80, 11)
    block = block_of(train, heldout=test)
    return block, run(Histograms(CONFIG), block, facts(11, rho=50.0, nominal=80))[0]


def estimates(block, state, a):
    """Dense and client by client: centre of the least KL, mixed with the client's own histogram."""
    rows = []
    for q, m in zip(dense_histograms(block), block.totals, strict=True):
        if m == 0:
            rows.append(state.counts @ state.centres / state.counts.sum())
            continue
        fit = q @ np.log((state.centres + 1e-6) / (1 + 11e-6)).T
        weight = a / (a + m)
        rows.append(weight * state.centres[fit.argmax()] + (1 - weight) * q)
    return np.array(rows)


def test_every_client_gets_its_mixture(trained):
    block, state = trained
    outputs = Histograms(CONFIG).personalise(state, block, None)
    np.testing.assert_allclose(outputs["estimate"], estimates(block, state, 40.0), atol=1e-6)
    np.testing.assert_allclose(outputs["weight"], 40 / (40 + block.totals))
    assert {name: array.dtype for name, array in outputs.items()} == {
        "estimate": np.float32,
        "cluster": np.int32,
        "weight": np.float64,
    }
    assert np.all((outputs["cluster"] == -1) == (block.totals == 0))


def slow_mixture(q, m, rows, prior, steps):
    """One client, dense, as the formula stands."""
    weights = np.full(len(rows), 1 / len(rows))
    for _ in range(steps):
        weights = weights * ((m * q / (weights @ rows)) @ rows.T) + prior / len(rows)
        weights /= weights.sum()
    return weights


def test_every_client_fits_its_own_mixture_of_all_centres(trained):
    block, state = trained
    outputs = Histograms(MIXTURE).personalise(state, block, None)
    rows = np.vstack([state.centres, state.mean])
    rows = np.maximum(rows, 1e-7) / np.maximum(rows, 1e-7).sum(axis=1, keepdims=True)
    blend = state.counts @ state.centres / state.counts.sum()
    for u, (q, m) in enumerate(zip(dense_histograms(block), block.totals, strict=True)):
        if m == 0:
            np.testing.assert_allclose(outputs["estimate"][u], blend, atol=1e-6)
            assert not outputs["mixture"][u].any() and outputs["weight"][u] == 1.0 and outputs["cluster"][u] == -1
            continue
        weights = slow_mixture(q, m, rows, 1.0, 30)
        np.testing.assert_allclose(outputs["mixture"][u], weights, atol=1e-6)
        lam = 40 / (40 + m)
        np.testing.assert_allclose(outputs["estimate"][u], lam * weights @ rows + (1 - lam) * q, atol=1e-6)
    np.testing.assert_allclose(outputs["estimate"].sum(axis=1), 1.0, atol=1e-5)


@given(counts_arrays(), st.integers(1, 40))
def test_a_mixture_does_not_depend_on_how_much_is_fitted_at_once(counts, gathered):
    block = block_of(counts)
    rows = np.random.default_rng(1).dirichlet(np.ones(block.features), 3) + 1e-3
    whole = personal.mixture_weights(block, rows, 1.0, 5)
    before, personal.GATHERED = personal.GATHERED, gathered
    try:
        np.testing.assert_allclose(personal.mixture_weights(block, rows, 1.0, 5), whole, rtol=1e-12)
    finally:
        personal.GATHERED = before
    np.testing.assert_allclose(whole.sum(axis=1), 1.0)


def test_a_client_chooses_its_weight_by_leaving_its_own_tokens_out():
    # A client with its own habit trusts itself; one whose tokens are all different learns nothing from itself.
    block = block_of(np.array([[30, 30, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]))
    base = np.full(len(block.data), 1 / 6)
    np.testing.assert_array_equal(personal.local_prior_tokens(block, base, [50.0, 5.0, 500.0]), [5.0, 500.0, 50, 50])
    # by hand, client 0, a = 5: lam = 5 / 64; 60 times ln(5/64/6 + 59/64 * 29/59)
    lam = 5 / 64
    by_hand = 60 * np.log(lam / 6 + (1 - lam) * 29 / 59)
    other = 60 * np.log(50 / 109 / 6 + (1 - 50 / 109) * 29 / 59)
    assert by_hand > other


def test_local_weights_are_what_personalise_uses(trained):
    block, state = trained
    local = MIXTURE.model_copy(update={"weights": "local"})
    weight = Histograms(local).personalise(state, block, None)["weight"]
    filled = block.totals > 0
    a = weight[filled] * block.totals[filled] / (1 - weight[filled])
    allowed = 40.0 * np.array(personal.LOCAL_FACTORS)
    assert np.abs(a[:, None] / allowed - 1).min(axis=1).max() < 1e-9
    assert len(np.unique(np.round(a, 6))) > 1 and (weight[~filled] == 1).all()


def test_a_run_that_stopped_before_its_first_round_gives_the_mean(trained):
    block, state = trained
    early = dataclasses.replace(state, round=0)
    outputs = Histograms(CONFIG).personalise(early, block, None)
    empty = block.totals == 0
    np.testing.assert_allclose(outputs["estimate"][empty], np.tile(state.mean, (empty.sum(), 1)), atol=1e-7)


@given(counts_arrays())
def test_own_values_are_looked_up_in_the_stored_entries(counts):
    block = block_of(counts)
    client, token = np.divmod(np.arange(block.clients * block.features), block.features)
    np.testing.assert_allclose(personal.own_values(block, client, token), dense_histograms(block).ravel(), rtol=1e-15)


def dense_kl(block, p, e):
    """KL of every client with held-out tokens, from dense matrices."""
    d = block.features
    t = dense_histograms(block.heldout)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sum(np.where(t > 0, t * (np.log(t) - np.log((p + e) / (1 + d * e))), 0.0), axis=1)


def scored(block, state, clients_per_leaf=16):
    total = None
    for leaf in leaves(block, clients_per_leaf):
        total = merge(total, score_block(CONFIG.outputs, state, leaf))
    return score_table(CONFIG.outputs, values(total))


def test_the_table_is_that_of_the_dense_matrices(trained):
    block, state = trained
    validation = validation_clients(0, block.clients)
    usable = block.heldout.totals > 0
    chosen, tuned = usable & ~validation, usable & validation
    assert chosen.sum() > 20 and tuned.sum() > 3
    scores = scored(block, state)
    q = dense_histograms(block)
    local = np.where(block.totals[:, None] > 0, q, 1 / 11)
    mean = np.tile(state.mean, (block.clients, 1))

    def mixed_mean(a):
        weight = (a / (a + block.totals))[:, None]
        return weight * mean + (1 - weight) * q

    expected = {
        ("Local", 1e-10): dense_kl(block, local, 1e-10),
        ("Local", 1e-8): dense_kl(block, local, 1e-8),
        "FedAvg": dense_kl(block, mean, 1e-10),
        "FedAvg + FT": dense_kl(block, mixed_mean(40.0), 1e-10),
        "Algorithm 2": dense_kl(block, estimates(block, state, 1e300), 1e-10),
        "Algorithm 2 + FT": dense_kl(block, estimates(block, state, 40.0), 1e-10),
        "Local mixture + FT": dense_kl(block, Histograms(MIXTURE).personalise(state, block, None)["estimate"], 1e-10),
    }
    for name, losses in expected.items():
        method, wanted = (name[0], {"smoothing": name[1]}) if isinstance(name, tuple) else (name, {"chosen": ""})
        row = row_of(scores, method, **wanted)
        assert row.kl == pytest.approx(losses[chosen].mean(), rel=1e-5 if "mixture" in name else 1e-9), name
        assert row.standard_error == pytest.approx(losses[chosen].std(ddof=1) / np.sqrt(chosen.sum()), rel=1e-4)
        more = (losses - expected["Algorithm 2 + FT"])[chosen]
        if "Algorithm 2 + FT" == name:
            assert row.difference is None
        else:
            error = more.std(ddof=1) / np.sqrt(chosen.sum())
            assert row.difference == pytest.approx((more.mean(), error), rel=1e-3), name
        t = dense_histograms(block.heldout)[chosen]
        entropy = -np.sum(np.where(t > 0, t * np.log(np.where(t > 0, t, 1.0)), 0.0), axis=1)
        assert row.perplexity == pytest.approx(np.exp((losses[chosen] + entropy).mean()), rel=1e-5)
    assert scores.to_json("here")["difference_to"] == "Algorithm 2 + FT, a = 40"
    by_a = {a: dense_kl(block, estimates(block, state, a), 1e-10) for a in (40.0, *PRIOR_TOKENS)}
    best = min(by_a, key=lambda a: by_a[a][tuned].mean())
    row = row_of(scores, "Algorithm 2 + FT", chosen="validation clients")
    assert row.prior_tokens == best and row.kl == pytest.approx(by_a[best][chosen].mean(), rel=1e-9)
    assert (scores.clients, scores.validation_clients) == (chosen.sum(), tuned.sum())
    assert scores.skipped == np.sum(~usable) > 0


@pytest.mark.parametrize("name, value", [("prior_tokens", 9.0), ("personalisation", "centre"), ("weights", "local")])
def test_every_free_setting_changes_what_clients_are_given(trained, name, value):
    block, state = trained
    assert name in Histograms.free_settings
    given = Histograms(MIXTURE).personalise(state, block, None)["estimate"]
    other = Histograms(MIXTURE.model_copy(update={name: value})).personalise(state, block, None)["estimate"]
    assert not np.array_equal(given, other)


def test_local_depends_on_the_smoothing_through_the_unseen_mass(trained):
    """Local is affine in ln(1/e) with slope U, up to d e."""
    block, state = trained
    keep = block.totals > 0
    block = block_of(block.csr.toarray()[keep], heldout=block.heldout.csr.toarray()[keep])
    scores = scored(block, state)
    low, high = row_of(scores, "Local", smoothing=1e-8).kl, row_of(scores, "Local", smoothing=1e-10).kl
    assert high - low == pytest.approx(scores.unseen_mass * np.log(100), abs=1e-4)
    t, q = dense_histograms(block.heldout), dense_histograms(block)
    evaluated = (block.heldout.totals > 0) & ~validation_clients(0, block.clients)
    assert scores.unseen_mass == pytest.approx(t[(q == 0) & evaluated[:, None]].sum() / evaluated.sum())


@given(st.integers(0, 10**6), st.integers(2, 50), st.integers(1, 49))
def test_validation_clients_depend_on_their_index_alone(first, clients, cut):
    cut = min(cut, clients - 1)
    parts = [validation_clients(first, cut), validation_clients(first + cut, clients - cut)]
    assert np.array_equal(validation_clients(first, clients), np.concatenate(parts))


def test_nobody_to_evaluate_is_an_error_with_a_name(trained):
    _, state = trained
    block = block_of(np.ones((2, 11)), heldout=np.zeros((2, 11)))
    with pytest.raises(PopulationError):
        scored(block, state)
