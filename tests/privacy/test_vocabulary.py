"""The private vocabulary in its pure parts: lists and sensitivities in Python integers, the threshold against a direct
computation, the words that it lets pass against an exact simulation.
"""

import math
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest

from fedcore.errors import ConfigError
from fedcore.population.words import OTHER, WORD, as_words
from fedcore.privacy import vocabulary
from fedcore.privacy.mechanisms import TestNoise
from fedcore.privacy.vocabulary import (
    LIST,
    WEIGHTS,
    planned_releases,
    published,
    sensitivity,
    sums,
    threshold,
    words_of,
)
from fedcore.rounds.statistics import WordSums, size_of
from tests.privacy.word_lists import block_of, some_client, sums_of, weights_of


def test_weights_are_the_largest_whole_numbers_of_norm_one():
    for k in range(1, LIST + 1):
        weight = int(WEIGHTS[k])
        assert k * weight**2 <= 2**32 < k * (weight + 1) ** 2


@pytest.mark.parametrize("seed", range(8))
def test_sums_are_those_of_python_integers(seed):
    rng = random.Random(seed)
    clients = [some_client(rng) for _ in range(rng.randrange(1, 12))]
    known = {f"w{rng.randrange(600)}".encode() for _ in range(rng.choice((0, 30)))}
    words, totals = sums(block_of(clients), np.array(sorted(known), WORD))
    assert dict(zip(words.tolist(), totals.tolist(), strict=True)) == dict(sums_of(clients, known))
    assert words.tolist() == sorted(words.tolist())
    chosen = np.array([rng.random() < 0.5 for _ in clients])
    words, totals = sums(block_of(clients), np.array(sorted(known), WORD), chosen)
    some = [client for client, there in zip(clients, chosen, strict=True) if there]
    assert dict(zip(words.tolist(), totals.tolist(), strict=True)) == dict(sums_of(some, known))


@pytest.mark.parametrize("seed", range(12))
def test_one_client_moves_the_words_of_others_by_the_sensitivity_at_most(seed):
    rng = random.Random(seed)
    others = [some_client(rng) for _ in range(5)]
    one, another = some_client(rng), some_client(rng)
    common = set(sums_of(others))

    def moved(left, right, relation):
        a, b = (
            dict(zip(*(found.tolist() for found in sums(block_of(side), NOBODY)), strict=True))
            for side in (left, right)
        )
        square = sum((a.get(word, 0) - b.get(word, 0)) ** 2 for word in common)
        assert square <= sensitivity(relation) ** 2
        for side, found in ((left, a), (right, b)):  # what only this client lists is for the threshold
            own = weights_of(side[-1])
            assert all(found[word] == own[word] for word in found.keys() - common)

    moved([*others, one], others, "add_or_remove_one")
    moved([*others, one], [*others, another], "replace_one")


def test_an_exchange_can_move_by_almost_the_whole_sensitivity():
    one, another = {b"a": 1}, {b"b": 1}
    square = sum(value**2 for side in (one, another) for value in weights_of(side).values())
    assert sensitivity("add_or_remove_one") == 2**16
    assert (sensitivity("replace_one") - 1) ** 2 < square <= sensitivity("replace_one") ** 2
    with pytest.raises(ConfigError):
        sensitivity("any other")


def test_ties_are_broken_by_bytes_and_not_by_place():
    words = [f"{number:04d}".encode() for number in range(400)]
    client = dict.fromkeys(random.Random(0).sample(words, 400), 7)
    entries, weights = vocabulary.listed(block_of([client]), NOBODY)
    assert block_of([client]).words[np.sort(entries)].tolist() == words[:300]
    assert set(weights.tolist()) == {int(WEIGHTS[300])}


def test_tokens_that_are_no_words_are_never_listed():
    held = as_words(["", OTHER, "x" * 65, "tea"])
    words, totals = sums(block_of([{word: 3 for word in held.tolist()}]), NOBODY)
    assert words.tolist() == [b"tea"] and totals.tolist() == [2**16]


NOBODY = np.empty(0, WORD)


# --- the threshold ----------------------------------------------------------------------------------------------------

MORE = [(0.3, 1e-30), (47.0, 1e-30), (47.0, 1e-9), (2.0, 0.01)]


@pytest.mark.parametrize("noise, delta", [(0.3, 1e-9), *(pytest.param(n, d, marks=pytest.mark.slow) for n, d in MORE)])
def test_the_threshold_against_a_direct_computation(noise, delta):
    scale = 2.0**16 * noise
    found, allowed = threshold(scale, delta), mpmath.mpf(delta)

    def passes(bound: int, k: int):
        """Probability that one of k words of weight floor(2^16 / sqrt k) passes this bound, at 60 digits."""
        each = mpmath.erfc((bound - math.isqrt(2**32 // k)) / (mpmath.mpf(scale) * mpmath.sqrt(2))) / 2
        return 1 - (1 - each) ** k

    with mpmath.workdps(60):
        assert all(passes(found, k) <= allowed for k in range(1, 301))
        assert max(passes(found - 4, k) for k in range(1, 301)) > allowed  # and it is not far too high


def test_fewer_own_words_pass_less_often():
    """A client whose list is only partly its own has fewer words to betray it, with the same weights."""
    scale = 2.0**17
    bound = threshold(scale, 1e-6)
    for k in (2, 17, 300):
        each = 0.5 * math.erfc((bound - WEIGHTS[k]) / (scale * math.sqrt(2)))
        assert all(-math.expm1(own * math.log1p(-each)) <= 1e-6 for own in range(k + 1))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, math.nan])
def test_a_threshold_needs_a_delta(delta):
    with pytest.raises(ConfigError):
        threshold(2.0**16, delta)


def test_a_word_stays_that_is_at_the_threshold():
    (planned,) = planned_releases(0.5, 1e-9, 100, "add_or_remove_one")
    bound = threshold(planned.scale, planned.delta)
    words = np.array([b"a", b"b", b"c"], WORD)
    found, values = words_of(published(words, np.array([bound, bound + 1, bound - 1]), planned))
    assert found.tolist() == [b"b"] and values.tolist() == [bound + 1]


def test_what_is_published_holds_the_words_in_order_of_their_bytes(monkeypatch):
    (planned,) = planned_releases(0.5, 1e-9, 100, "add_or_remove_one")
    high = threshold(planned.scale, planned.delta) + 10
    words = np.array(sorted([b"\xff" * 64, "é".encode(), b"z", b"a" * 63]), WORD)
    noised = np.array([high, high + 3, high + 2, high + 1])
    value = published(words, noised, planned)
    assert value.dtype == np.int64 and value.shape == (4, planned.shape[1])
    assert words_of(value)[0].tolist() == words.tolist() and words_of(value)[1].tolist() == noised.tolist()
    monkeypatch.setattr(vocabulary, "MOST", 2)
    assert words_of(published(words, noised, planned))[0].tolist() == [words[1], words[2]]
    assert published(words[:0], noised[:0], planned).shape == (0, planned.shape[1])


# --- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("clients, releases", [(None, 1), (1000, 1), (100_000, 3)])
def test_a_plan_costs_no_more_than_its_share(clients, releases, relation):
    rho, delta = 0.123, 3e-9
    plan = planned_releases(rho, delta, clients, relation)
    assert len(plan) == releases
    assert sum(Fraction(planned.rho) for planned in plan) <= Fraction(rho)
    assert sum(Fraction(planned.delta) for planned in plan) <= Fraction(delta)
    assert sum(planned.rho for planned in plan) > 0.999999 * rho
    assert [planned.optional for planned in plan] == [number > 0 for number in range(releases)]
    for planned in plan:
        assert Fraction(planned.sensitivity) ** 2 <= 2 * Fraction(planned.scale) ** 2 * Fraction(planned.rho)
        assert planned.sensitivity == sensitivity(relation)


def test_the_word_says_from_where_on_a_private_list_pays():
    assert vocabulary.in_words(10_000, 0.5).startswith("good") and vocabulary.in_words(1000, 0.5).startswith("weak")
    assert "use a public list" in vocabulary.in_words(1000, 0.5)
    assert vocabulary.in_words(None, 0.5).startswith("unknown")


def test_sums_of_words_do_not_depend_on_the_grouping():
    rng = random.Random(3)
    clients = [some_client(rng) for _ in range(30)]
    expected = sums_of(clients)
    for _ in range(5):
        rng.shuffle(clients)
        cuts = sorted(rng.sample(range(1, 30), 7))
        groups = [clients[low:high] for low, high in zip([0, *cuts], [*cuts, 30], strict=True)]
        total = None
        for group in groups:
            part = WordSums.of(*sums(block_of(group), NOBODY))
            total = part if total is None else total.merge(part)
        words, totals = total.value()
        assert dict(zip(words.tolist(), totals.tolist(), strict=True)) == dict(expected)
    assert size_of({"words": total}) > 0
    with pytest.raises(TypeError):
        WordSums.of(words, totals.astype(np.float64))
    most = WordSums.of(words[:1], np.array([2**61]))
    with pytest.raises(OverflowError):
        most.merge(most)


# --- what it keeps ----------------------------------------------------------------------------------------------------

CLIENTS, WORDS, TOKENS, EXPONENT = 3000, 20_000, 200, 1.05


@cache
def zipf_clients(seed: int) -> list[dict[bytes, int]]:
    """CLIENTS clients with TOKENS draws each from WORDS words of probability proportional to rank^-EXPONENT."""
    rng = np.random.default_rng(seed)
    law = np.arange(1, WORDS + 1) ** -EXPONENT
    draws = rng.choice(WORDS, (CLIENTS, TOKENS), p=law / law.sum())
    clients = []
    for drawn in draws:
        words, counts = np.unique(drawn, return_counts=True)
        clients.append({f"{word:05d}".encode(): int(count) for word, count in zip(words, counts, strict=True)})
    return clients


def kept_mass(clients, kept) -> float:
    total = sum(sum(client.values()) for client in clients)
    return sum(count for client in clients for word, count in client.items() if word in kept) / total


def simulated(clients, rho: float, delta: float, seed: int) -> float:
    """Weights 1 / sqrt k as floats, continuous noise, the threshold by a formula in floats."""
    sigma, rng = math.sqrt(0.5 / rho), np.random.default_rng(seed)
    total: dict[bytes, float] = {}
    for client in clients:
        taken = sorted(client, key=lambda word: (-client[word], word))[:300]
        for word in taken:
            total[word] = total.get(word, 0.0) + len(taken) ** -0.5
    with mpmath.workdps(40):
        bound = max(
            float(
                k**-0.5
                + sigma
                * mpmath.sqrt(2)
                * mpmath.erfinv(2 * mpmath.mpf(1 - mpmath.mpf(delta)) ** (mpmath.mpf(1) / k) - 1)
            )
            for k in (1, 2, 3, 5, 10, 30, 100, 200, 300)
        )
    return kept_mass(clients, {word for word, value in total.items() if value + sigma * rng.normal() > bound})


@pytest.mark.slow
@pytest.mark.parametrize("rho, mass", [(0.005, 0.51), (0.05, 0.63), (0.5, 0.74)])
def test_the_words_of_a_zipf_population_are_those_of_an_exact_simulation(rho, mass):
    clients = zipf_clients(0)
    (planned,) = planned_releases(rho, 1e-9, None, "add_or_remove_one")
    words, totals = sums(block_of(clients), NOBODY)
    found = []
    for key in range(3):
        noised = TestNoise(f"zipf {key}").draw(_shaped(planned, len(words)), "run", totals)
        found.append(kept_mass(clients, set(words_of(published(words, noised, planned))[0].tolist())))
    expected = [simulated(clients, rho, 1e-9, seed) for seed in range(3)]
    assert abs(np.mean(found) - np.mean(expected)) < 0.02
    assert np.mean(expected) == pytest.approx(mass, abs=0.02)


def _shaped(planned, cells):
    return replace(planned, shape=(cells,))
