"""The expected utility after the first releases, and what else the outcome says of columns and of the background."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcore.methods.mixture_models.whole_rows import ONE
from fedcore.methods.private_mixture import PrivateMixtureConfig
from fedcore.methods.private_mixture.feasibility import EXPECT, FINE, strength, words_of, worth
from fedcore.methods.private_mixture.round_metrics import info_of
from fedcore.methods.private_mixture.server import context_of
from tests.private_mixture.test_forms import zeros_and_numbers
from tests.private_mixture.worlds import facts, records, run

ORDER = ["none", "weak", "fair", "good"]
CONFIG = PrivateMixtureConfig(components=2, rounds=1)


def ended(x: np.ndarray, epsilon: float):
    seen = []
    method, state = run(records(x), CONFIG, epsilon, watch=lambda message, after: seen.append((message, after)))
    return method, state, seen


def test_the_edge_is_that_of_the_released_clip_and_count():
    method, state, seen = ended(np.random.default_rng(0).normal(size=(3000, 8)), 1.0)
    known = [after.edge > 0 for _, after in seen]
    at = next(number for number, (message, _) in enumerate(seen) if message.kind == "norms" and message.step == 1)
    assert known == [number >= at for number in range(len(known))]  # before the rounds that find components
    clip, noise = seen[at][1].clip, {r.name: r.scale for r in method.plan(facts(8, 3000, 1.0))}["moments_1"]
    assert state.edge == pytest.approx(4 * (noise / 12) * clip**2 / ONE / state.count)
    before, _ = words_of(CONFIG, state)
    assert before == strength(CONFIG, facts(8, 3000, 1.0)).word == "good"
    assert "expected utility" not in method.outcome(replace(state, edge=0.1))
    said = method.outcome(replace(state, edge=2.0))
    assert f"the expected utility is weak, not good: {EXPECT['weak']}" in said


def test_the_word_never_gets_better():
    generator = np.random.default_rng(1)
    _, state, _ = ended(generator.normal(size=(600, 4)), 0.3)
    for edge in (0.0, 1e-9, 1.0, 2.0, 5.0, 1e9):
        before, now = words_of(CONFIG, replace(state, edge=edge))
        assert ORDER.index(now) <= ORDER.index(before)
    assert words_of(CONFIG, replace(state, edge=1e9))[1] == "none"


def test_columns_that_stand_alone_and_a_large_background_are_mentioned():
    method, state, _ = ended(zeros_and_numbers(6000, np.random.default_rng(8)), 1.0)
    assert "; column 2 stands alone: 99 % zeros, and noise drowned the other numbers" in method.outcome(state)
    weights = np.append(state.weights[:-1] * 0.88 / state.weights[:-1].sum(), 0.12)
    assert "12 % of the rows are in the broad background" in method.outcome(replace(state, weights=weights))
    weights = np.append(state.weights[:-1] * 0.96 / state.weights[:-1].sum(), 0.04)
    assert "background" not in method.outcome(replace(state, weights=weights))
    many = replace(state, share=np.full(4, 0.5))
    assert "1 more columns stand alone" in method.outcome(many)


def test_a_run_whose_first_whitening_is_drowned_is_not_called_good():
    """2,221 clients of 10 columns: the density of 3 of 4 runs was behind one normal distribution."""
    config = PrivateMixtureConfig(components=4)
    public = facts(10, 2221, 1.0, "client")
    found = strength(config, public)
    assert found.edge < FINE < found.first and found.word == "fair"
    said = worth(config, replace(public, nominal_clients=300))
    assert said.word == "none" and "about 2,700 clients would be enough for a good one at this budget" in said.expect
    assert strength(config, replace(public, nominal_clients=2687)).word == "good"


def test_a_lower_word_is_logged_before_em_spends():
    method, state, seen = ended(np.random.default_rng(0).normal(size=(3000, 8)), 1.0)
    at = next(number for number, (message, _) in enumerate(seen) if message.kind == "norms" and message.step == 1)
    first_of_em = next(number for number, (message, _) in enumerate(seen) if message.kind == "components")
    made = context_of(CONFIG, seen[at - 1][1]).now
    assert at < first_of_em and info_of(CONFIG, made, seen[at][1]).note == ""  # it is as good as planned
    drowned = replace(seen[at][1], edge=2.0)
    said = info_of(CONFIG, made, drowned).note
    assert said.startswith("by the first releases the expected utility is weak, not good") and "runs abandon" in said
    assert info_of(CONFIG, context_of(CONFIG, drowned).now, drowned).note == ""  # in one round only
