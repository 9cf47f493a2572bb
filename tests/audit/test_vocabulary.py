"""The distinguishing attack on a released vocabulary: somebody who knows everybody else's words, and the canary's,
looks at the words that were published and their noised sums, and guesses whether the canary was there.

A word that is not published tells that its sum is not above the threshold, and a word that only the canary has tells
everything if it is published, which the delta of the release is paid for.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_ndtr

from fedcore.population.words import WORD
from fedcore.privacy import vocabulary
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.privacy.plan import PlannedRelease
from tests.audit.bounds import FINE, mu_lower_bound
from tests.privacy.test_mechanisms import QuarterScale
from tests.privacy.word_lists import block_of

MU, DELTA = 1.5, 1e-9
COMMON = [f"common{number}".encode() for number in range(6)]
OTHERS = [dict.fromkeys([*COMMON, b"seldom"] if number < 4 else COMMON, 2) for number in range(40)]
CANARY = {**dict.fromkeys(COMMON[:3], 5), b"own": 9}
INSTEAD = {**dict.fromkeys(COMMON[3:], 5), b"of another": 9}
ABSENT = {"add_or_remove_one": OTHERS, "replace_one": [*OTHERS, INSTEAD]}
NOBODY = np.empty(0, WORD)
CERTAIN = 1e9


def statistic(planned: PlannedRelease, value: np.ndarray, absent: dict, present: dict) -> float:
    """The log-likelihood ratio of what was published, of present against absent; the sums without noise are known."""
    found = dict(zip(*(part.tolist() for part in vocabulary.words_of(value)), strict=True))
    for word in found:
        if word not in absent or word not in present:
            return CERTAIN if word in present else -CERTAIN
    bound, total = vocabulary.threshold(planned.scale, planned.delta) + 0.5, 0.0
    for word in absent.keys() & present.keys():
        a, b = absent[word], present[word]
        if word in found:
            total += ((found[word] - a) ** 2 - (found[word] - b) ** 2) / (2 * planned.scale**2)
        else:
            total += log_ndtr((bound - b) / planned.scale) - log_ndtr((bound - a) / planned.scale)
    return total


def attacked(relation: str, pairs: int, noise=None) -> tuple[np.ndarray, np.ndarray]:
    """Statistics of releases without the canary, and with it."""
    (planned,) = vocabulary.planned_releases(MU**2 / 2, DELTA, None, relation)
    worlds = [block_of(clients) for clients in (ABSENT[relation], [*OTHERS, CANARY])]
    exact = [dict(zip(*(part.tolist() for part in vocabulary.sums(block, NOBODY)), strict=True)) for block in worlds]
    found = []
    for block in worlds:
        words, totals = vocabulary.sums(block, NOBODY)
        shaped = replace(planned, shape=totals.shape)
        drawn = [(noise or SecureNoise()).draw(shaped, "run", totals) for _ in range(pairs)]
        found.append(np.array([statistic(planned, vocabulary.published(words, one, planned), *exact) for one in drawn]))
    return found[0], found[1]


def test_the_noise_is_as_fine_as_its_claim_needs():
    (planned,) = vocabulary.planned_releases(MU**2 / 2, DELTA, None, "add_or_remove_one")
    assert planned.scale >= FINE and math.sqrt(2 * planned.rho) == pytest.approx(MU)


@pytest.mark.slow
@pytest.mark.parametrize("relation, sharp", [("add_or_remove_one", 0.7), ("replace_one", 0.6)])
def test_published_words_give_away_no_more_than_their_price(relation, sharp):
    shown = mu_lower_bound(*attacked(relation, 4000))
    assert sharp <= shown <= MU


def _quarter(patch):
    return QuarterScale()


def _no_threshold(patch):
    patch.setattr(vocabulary, "threshold", lambda scale, delta: 0)


def _whole_weights(patch):
    patch.setattr(vocabulary, "WEIGHTS", np.full_like(vocabulary.WEIGHTS, 2**16))


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("sabotage", [_quarter, _no_threshold, _whole_weights])
def test_sabotages_are_caught(monkeypatch, sabotage, relation):
    noise = sabotage(monkeypatch)
    assert mu_lower_bound(*attacked(relation, 600, noise)) > MU
