"""The release of weights: what a client contributes, what the plan says of it, and what is made of the sum."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.methods.histograms import Histograms, HistogramsConfig, sensitivities, weights
from fedcore.methods.histograms.personal import base_weight, weights_used
from fedcore.methods.histograms.simplex import assignment_logs
from fedcore.methods.histograms.state import USUAL_WEIGHTS, WeightsMessage
from fedcore.population.blocks import CountsBlock
from fedcore.privacy.grid import GRID_NORM
from tests.histograms.example_clients import RELATIONS, block_of, dense_histograms, exact, public, squared_change
from tests.histograms.run_in_memory import answer, facts, rounded_normal, run

D = 7
NONE = np.zeros((0, 0), np.float32)
ROWS = np.random.default_rng(3).dirichlet(np.ones(D), 3) * 0.93 + 0.01
MIXTURES = WeightsMessage("weights", ROWS, NONE, 1.0, 30)
NEAREST = WeightsMessage("weights", ROWS, assignment_logs(ROWS, 1e-6), 1.0, 30)
MEAN = WeightsMessage("weights", ROWS[:1], assignment_logs(ROWS[:1], 1e-6), 1.0, 30)
MESSAGES = {"mixtures": MIXTURES, "nearest": NEAREST, "mean": MEAN}
PAIRS = len(weights.PAIRS)


def with_halves(known, **more):
    return dataclasses.replace(known, halves="document", **more)


def two_halves(seed: int = 0, clients: int = 30, tokens: int = 200) -> CountsBlock:
    """Clients of all sorts: some without tokens in one of the halves, some with few, one with very many."""
    generator = np.random.default_rng(seed)
    laws = generator.dirichlet(np.full(D, 0.7), clients)
    sizes = generator.choice([0, 30, 50, tokens, 20 * tokens], (2, clients), p=[0.1, 0.1, 0.1, 0.6, 0.1])
    halves = [np.stack([generator.multinomial(m, p) for m, p in zip(size, laws, strict=True)]) for size in sizes]
    halves[0][clients // 2] *= 2**30
    return block_of(halves[0], heldout=halves[1])


def of_clients(block: CountsBlock, which) -> CountsBlock:
    dense, other = block.csr.toarray()[which], block.heldout.csr.toarray()[which]
    return block_of(dense, heldout=other)


# --- what a client contributes --------------------------------------------------------------------------------------


def test_the_pairs_are_those_of_which_a_usual_client_would_take_one():
    assert PAIRS == 24 and weights.REFERENCE == (1000.0, 0.4) and weights.REFERENCE not in weights.PAIRS
    for a, c in weights.PAIRS:
        assert 0.15 <= (a + 800 * c) / (a + 800) <= 0.92
    assert (62.0, 0.0) not in weights.PAIRS and (4000.0, 0.6) not in weights.PAIRS


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_losses_are_those_of_the_formula_client_by_client(message):
    block = two_halves()
    found = weights.contributions(message, block)
    q1, q2 = dense_histograms(block), dense_histograms(block.heldout)
    for u, m in enumerate(block.totals):
        if m < 50 or block.heldout.totals[u] < 50:
            assert not found[u].any()
            continue
        if message is MIXTURES:
            mixed = np.full(3, 1 / 3)
            for _ in range(30):
                mixed = mixed * ((m * q1[u] / (mixed @ ROWS)) @ ROWS.T) + 1 / 3
                mixed /= mixed.sum()
            base = mixed @ ROWS
        else:
            base = message.rows[np.argmax(q1[u] @ np.log(message.rows + 1e-6).T)]

        def loss(a, c, u=u, m=m, base=base):
            lam = (a + c * m) / (a + m)
            seen = q2[u] > 0
            return -np.sum(q2[u][seen] * np.log(lam * base + (1 - lam) * q1[u])[seen])

        losses = np.array([loss(a, c) - loss(1000, 0.4) for a, c in weights.PAIRS])
        clipped = losses * min(1.0, 0.3 / np.linalg.norm(losses)) * GRID_NORM / 0.3
        np.testing.assert_allclose(found[u], clipped, atol=1.0 + 1e-6)
        assert np.all(np.abs(found[u]) <= np.abs(clipped) * (1 + 1e-9)) and np.all(found[u] == np.trunc(found[u]))


def test_clients_without_a_second_half_say_nothing():
    block = two_halves()
    for without in (dataclasses.replace(block, heldout=None), block.slice(0, 0, 0)):
        released = weights.client_update(MIXTURES, without)["weights"].value()
        assert released.dtype == np.int64 and released.shape == (PAIRS,) and not released.any()


FLOATS = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1e-300, 1e200, -1e200, 0.3, -0.3, math.inf, math.nan])


@given(st.lists(st.lists(FLOATS, min_size=5, max_size=5), min_size=1, max_size=6))
def test_no_row_of_either_sign_leaves_the_bound_on_the_grid(rows):
    """In Python integers: norms of single rows, and of the difference of any two, which is what replacement changes."""
    grid = weights.on_grid(np.array(rows), np.ones(len(rows), bool)).astype(np.int64)
    zero = np.zeros(5, np.int64)
    for one in grid:
        assert squared_change(one, zero) <= sensitivities.signed_sum("add_or_remove_one") ** 2
        for other in grid:
            assert squared_change(one, other) <= sensitivities.signed_sum("replace_one") ** 2
    counted = np.arange(len(rows)) % 2 == 0
    assert not weights.on_grid(np.array(rows), counted)[~counted].any()


def test_opposite_clients_reach_the_bound_of_replacement():
    """So sqrt(2) times 2**16, which serves contributions that are never negative, would be wrong here."""
    row = np.random.default_rng(0).normal(size=PAIRS)
    one, other = weights.on_grid(np.stack([row, -row]), np.ones(2, bool)).astype(np.int64)
    assert squared_change(one, 0 * one) > 0.999 * GRID_NORM**2
    assert squared_change(one, other) > 0.999 * sensitivities.signed_sum("replace_one") ** 2
    assert squared_change(one, other) > sensitivities.clipped_sum("replace_one") ** 2
    assert sensitivities.signed_sum("replace_one") == 2**17 and type(sensitivities.signed_sum("replace_one")) is int


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_client_contributes_the_same_in_any_company(message):
    """To the last bit: fitted with others, alone, cut into other leaves, stored in another precision."""
    block = two_halves(1, clients=60, tokens=400)
    alone = np.stack([weights.contributions(message, of_clients(block, [u]))[0] for u in range(block.clients)])
    generator = np.random.default_rng(0)
    for size in (60, 31, 8):
        chosen = generator.permutation(block.clients)[:size]
        assert np.array_equal(weights.contributions(message, of_clients(block, chosen)), alone[chosen])
    for leaf in (1, 7, 64):
        total = answer(Histograms(), message, block, leaf)["weights"].value()
        assert exact(total) == exact(alone.sum(axis=0).astype(np.int64))
    usual = np.delete(np.arange(60), 30)  # without the client whose counts need double precision
    assert of_clients(block, usual).data.dtype == np.float32 != block.data.dtype
    assert np.array_equal(weights.contributions(message, of_clients(block, usual)), alone[usual])


def test_some_of_a_leaf_keep_their_second_halves():
    block = two_halves()
    chosen = np.arange(block.clients) % 3 == 0
    taken = weights.contributions(MIXTURES, block.take(chosen))
    assert taken.any() and np.array_equal(taken, weights.contributions(MIXTURES, block)[chosen])


# --- what is planned ------------------------------------------------------------------------------------------------

LARGE = HistogramsConfig(nominal_clients=10**6)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_release_comes_last_and_its_share_comes_off_all_others(relation):
    small = LARGE.model_copy(update={"clusters": 2, "rounds": 3, "overseed": 2})
    without, known = public(relation), with_halves(public(relation))
    before, after = Histograms(small).plan(without), Histograms(small).plan(known)
    assert [release.name for release in after] == [*(release.name for release in before), "weights"]
    last = after[-1]
    assert last.round == before[-1].round + 1 and last.shape == (PAIRS,) and last.optional
    assert last.sensitivity == (2**16 if relation == "add_or_remove_one" else 2**17)
    assert last.rho == pytest.approx(0.03 * known.rho) and "both halves" in last.composition
    for one, other in zip(before, after, strict=False):
        assert other.rho == pytest.approx(0.97 * one.rho)
    method = Histograms(small)
    assert method.total_rounds(method.init(known)) == last.round


def test_reasons_against_the_release():
    def why(config=LARGE, **changes):
        return weights.why_not_released(config, dataclasses.replace(with_halves(public()), **changes))

    assert why() == ""
    assert "nobody declared" in why(halves=None)
    assert "token by token" in why(halves="entry")
    assert "too small" in why(HistogramsConfig())
    assert "settings" in why(LARGE.model_copy(update={"prior_tokens": 800.0}))
    assert "settings" in why(LARGE.model_copy(update={"floor": 0.0}))
    assert "each client" in why(LARGE.model_copy(update={"weights": "local"}))
    sketch = Histograms().budget_sketch(with_halves(public()), [])
    assert "not released, because" in sketch["weights"]
    assert "weights of the base: released" in Histograms(LARGE).worth(with_halves(public())).expect


@pytest.mark.parametrize(("relation", "factor"), zip(RELATIONS, (1, 2), strict=True))
def test_the_signal_from_which_it_is_released(relation, factor):
    """n sqrt(2 * .03 rho) / .3 of 50, and half as much where replacement doubles the noise."""
    rho = (50 * 0.3 * factor / 1000) ** 2 / (2 * 0.03)
    for change, released in ((1.01, True), (0.99, False)):
        known = dataclasses.replace(with_halves(facts(1000, rho=rho * change, nominal=1000)), relation=relation)
        assert (weights.why_not_released(HistogramsConfig(), known) == "") == released
        assert ("weights" in [release.name for release in Histograms().plan(known)]) == released


@pytest.mark.parametrize(("signal", "share"), [(60, 0.05), (350, 0.05), (600, 0.0408333), (700, 0.03), (5000, 0.03)])
def test_a_small_budget_spends_more_of_it_on_the_choice(signal, share):
    """As much as a signal of 700 takes, from 3 to 5 %."""
    known = with_halves(facts(1000, rho=(signal * 0.3 / 1000) ** 2 / (2 * 0.03), nominal=1000))
    plan = Histograms().plan(known)
    assert plan[-1].name == "weights" and plan[-1].rho == pytest.approx(share * known.rho)
    assert math.fsum(release.rho for release in plan) <= known.rho


def test_without_a_release_the_weights_are_usual_ones():
    for rho, expected in ((0.05, USUAL_WEIGHTS), (1e-3, (500.0, 0.2))):
        state = Histograms().init(facts(1000, rho=rho, nominal=1000))
        assert (state.prior_tokens, state.floor) == expected and state.weights_multiplier == 0
    state = Histograms().init(facts(1000, rho=0.05, nominal=1000))
    assert weights_used(HistogramsConfig(), state) == USUAL_WEIGHTS
    assert weights_used(HistogramsConfig(prior_tokens=70.0), state) == (70.0, 0.0)
    assert weights_used(HistogramsConfig(prior_tokens=70.0, floor=0.5), state) == (70.0, 0.5)
    assert weights_used(HistogramsConfig(floor=0.1), state) == (800.0, 0.1)


# --- what is made of it ---------------------------------------------------------------------------------------------


def planted(a: float, c: float, curvature: float = 0.01) -> np.ndarray:
    """Losses that are least at (a, c), and quadratic in log a and c."""

    def loss(pair):
        return curvature * ((np.log2(pair[0] / a) / 2) ** 2 + ((pair[1] - c) / 0.3) ** 2)

    return np.array([loss(pair) - loss(weights.REFERENCE) for pair in weights.PAIRS])


@pytest.mark.parametrize("best", [(300.0, 0.1), (800.0, 0.35), (2200.0, 0.3), (500.0, 0.5)])
def test_clear_answers_are_believed(best):
    clients, step = 10_000, 0.3 / GRID_NORM
    (a, c), _ = weights.chosen(planted(*best) * clients / step, clients, 1.0, (4000.0, 0.0))
    assert abs(np.log2(a / best[0])) < 0.35 and abs(c - best[1]) < 0.06


def test_answers_lost_in_noise_are_not():
    clients, step = 10_000, 0.3 / GRID_NORM
    noise = clients / step  # a nat
    for seed in range(5):
        (a, c), _ = weights.chosen(np.random.default_rng(seed).normal(0, noise, PAIRS), clients, noise, USUAL_WEIGHTS)
        assert abs(np.log2(a / 800)) < 1.0 and abs(c - 0.35) < 0.15


def test_a_choice_wins_by_more_than_its_noise_or_the_usual_weights_stay():
    clients, step = 10_000, 0.3 / GRID_NORM
    losses = planted(300.0, 0.1) * clients / step  # 0.01 nats less than the usual weights
    for noise, stays in ((1e-4, False), (0.1, True)):
        pair, _ = weights.chosen(losses, clients, noise * clients / step, (500.0, 0.2))
        assert (pair == (500.0, 0.2)) == stays


def test_what_is_chosen_can_be_used_whatever_is_released():
    for seed in range(20):
        values = np.random.default_rng(seed).integers(-(2**45), 2**45, PAIRS)
        (a, c), _ = weights.chosen(values, 100.0, 1e4, USUAL_WEIGHTS)
        assert (a, c) in weights.CANDIDATES and 62 <= a <= 4000 and 0 <= c <= 0.5
        assert weights.sensible(a, c) and weights.chosen(values, 100.0, 1e4, USUAL_WEIGHTS)[0] == (a, c)


def test_the_process_is_exact_where_it_was_told_and_expects_usual_weights_elsewhere():
    """By hand for one pair: posterior mean = prior + k (k + s**2)**-1 (y - prior), k = .02**2 + .03**2."""
    pair, y, s = np.array([[1600.0, 0.35]]), np.array([0.02]), np.array([0.01])
    prior, k = 0.004 * 0.25, 0.02**2 + 0.03**2
    found = weights.posterior_mean(pair, y, s, pair)
    assert found[0] == pytest.approx(prior + k / (k + 1e-4) * (0.02 - prior), rel=1e-12)
    far = weights.posterior_mean(pair, y, s, np.array([[1600.0, 0.35 + 30.0]]))[0]
    expected = 0.004 * (0.25 + 100.0**2) + 0.03**2 / (k + 1e-4) * (0.02 - prior)
    assert far == pytest.approx(expected, rel=1e-12)


def bursty(clients: int = 1500, d: int = 40, seed: int = 0) -> CountsBlock:
    """Clients with topics of their own: each half is a new document around the client's law, not a copy of it."""
    generator = np.random.default_rng(seed)
    mean = generator.dirichlet(np.full(d, 2.0))
    laws = generator.standard_gamma(60 * mean, (clients, d)) + 1e-9
    laws /= laws.sum(axis=1, keepdims=True)
    halves = []
    for _ in range(2):
        own = generator.standard_gamma(80 * laws) + 1e-9
        sizes = generator.integers(60, 2000, clients)
        halves.append(np.stack([generator.multinomial(m, p / p.sum()) for m, p in zip(sizes, own, strict=True)]))
    return block_of(halves[0], heldout=halves[1])


def mean_loss(config, state, block, pair) -> float:
    """Nats a token of the second halves."""
    q1, q2 = dense_histograms(block), dense_histograms(block.heldout)
    lam = base_weight(block.totals, *pair)[:, None]
    return float(-np.sum(q2 * np.log(lam * state.mean + (1 - lam) * q1 + 1e-12), axis=1).mean())


def test_a_run_chooses_weights_that_serve_new_documents():
    block, config = bursty(), HistogramsConfig(clusters=1)
    known = with_halves(facts(block.features, rho=0.2, nominal=block.clients))
    state, infos = run(Histograms(config), block, known, rounded_normal(np.random.default_rng(0)))
    used = weights_used(config, state)
    assert state.phase == "done" and infos[-1].scalars["prior_tokens"] == used[0] == state.prior_tokens
    least = min(mean_loss(config, state, block, pair) for pair in weights.CANDIDATES[::7])
    assert mean_loss(config, state, block, used) < least + 0.002
    assert mean_loss(config, state, block, used) < mean_loss(config, state, block, (1500.0, 0.0)) - 0.002
    outputs = Histograms(config).personalise(state, block, None)
    np.testing.assert_allclose(outputs["weight"], base_weight(block.totals, *used))


def test_only_the_round_of_weights_reads_what_is_held_out():
    block, method = bursty(40), Histograms(LARGE.model_copy(update={"clusters": 2, "rounds": 2, "overseed": 2}))
    known, seen = with_halves(facts(block.features, rho=0.5)), []
    state = method.init(known)
    plan = {release.name: release for release in method.plan(known)}
    while (message := method.message(state)) is not None:
        reads = method.reads_heldout(message)
        given = block if reads else dataclasses.replace(block, heldout=None)
        values = method.release_values(message, method.client_update(message, given, None)[0])
        seen += [(name, reads) for name in values]
        state, _ = method.server_update(state, values)
        assert all(plan[name].shape == value.shape for name, value in values.items())
    assert [name for name, reads in seen if reads] == ["weights"] and len(seen) == 5


@pytest.mark.parametrize("more", [{"reduction": "frequency", "keep": 9}, {"reduction": "frequency"}, {}])
def test_runs_of_every_kind_end_with_the_choice(more):
    """Also those that start from an earlier run: all centres and means are of the whole vocabulary again."""
    block, config = bursty(60), LARGE.model_copy(update={"clusters": 2, "rounds": 3, "overseed": 2, **more})
    known, noise = with_halves(facts(block.features, rho=0.5)), rounded_normal(np.random.default_rng(0))
    first, _ = run(Histograms(config), block, known, noise)
    start = Histograms(config).warm_start_of(first)
    likely = Histograms(config).likely_warm_start(known)
    assert likely.keys() <= start.keys() | {"counts"} and len(Histograms(config).plan(known)) >= 6
    later, infos = run(Histograms(config), block, dataclasses.replace(known, warm_start=start), noise)
    for state in (first, later):
        assert state.phase == "done" and (state.prior_tokens, state.floor) in weights.CANDIDATES
    assert "floor" in infos[-1].scalars and "floor" not in infos[-2].scalars
    declared = {metric.name for metric in Histograms.metrics}
    assert all(info.scalars.keys() <= declared for info in infos)
