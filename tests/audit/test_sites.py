"""A canary at one of several sites, against an attacker who knows the shares of t others: docs/privacy/sites.md."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fedcore.privacy.mechanisms import SecureNoise, TestNoise
from fedcore.privacy.noise_shares import ShareNoise, Terms, charged, modulo_sum, second_mu
from fedcore.privacy.plan import PlannedRelease
from tests.audit.bounds import FINE, mu_lower_bound

MU, CELLS, NORM = 1.5, 4, 2**16
PAIRS = 20_000
STUDY = "5" * 64
CANARY = np.array([NORM // 2, -NORM // 2, NORM // 2, NORM // 2])  # of norm NORM


class Thin(ShareNoise):
    """Draws s_i / sqrt(2)."""

    def draw(self, planned, run_key, values):
        thin = replace(planned, sensitivity=1, noise_multiplier=planned.noise_share.scale / math.sqrt(2))
        return modulo_sum(values, SecureNoise().draw(thin, run_key, np.zeros_like(values)))


class OneStream(ShareNoise):
    """Draws the share of every site, and so that of the attacker's, from one stream."""

    def draw(self, planned, run_key, values):
        same = replace(planned, sensitivity=1, noise_multiplier=planned.noise_share.scale)
        return modulo_sum(values, TestNoise("stream").draw(same, "", np.zeros_like(values)))


PRODUCT = ShareNoise()


def release_at(m, t):
    """A release as the method plans it, such that a site is charged mu = MU for it; and as it is charged. Its rows are
    runs of the same release: each has noise of its own, and one of them holds the whole canary.
    """
    whole = PlannedRelease("sums", 1, (PAIRS, CELLS), NORM, math.sqrt(m / (m - t)) / MU, "docs/privacy/sites.md", "")
    mine = charged(whole, Terms(m, t, STUDY))
    assert mine.noise_share.scale >= FINE / 4 and math.sqrt(2 * mine.rho) == pytest.approx(MU, rel=1e-9)
    return whole, mine


def attack(m, t, noise=PRODUCT, *, known=None):
    """mu that an attacker shows who sees totals without the canary and with it, and takes `known` shares away; by
    default t. Of shares from one stream it knows all once it knows one.
    """
    _, mine = release_at(m, t)
    known = t if known is None else known
    statistics = []
    for world in (0, CANARY):
        shares = [noise.draw(mine, "run", np.zeros((PAIRS, CELLS), np.int64)) for _ in range(m)]
        total = np.broadcast_to(np.asarray(world, np.int64), (PAIRS, CELLS)).copy()
        for share in shares:
            total = modulo_sum(total, share)
        for share in shares if isinstance(noise, OneStream) else shares[:known]:
            total = modulo_sum(total, -share)
        likelihood = ((total - CANARY / 2) * CANARY).sum(1) / ((m - known) * mine.noise_share.scale**2)
        statistics.append(likelihood)
    return mu_lower_bound(*statistics)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "t"), [(2, 1), (3, 1), (7, 3)])
def test_a_total_without_t_shares_gives_away_no_more_than_is_charged(m, t):
    """And nearly all of it: the audit is sharp."""
    shown = attack(m, t)
    print(f"m = {m}, t = {t}: mu >= {shown:.3f} of {MU}")
    assert 0.85 * MU < shown <= MU


@pytest.mark.slow
def test_if_all_others_collude_the_second_cost_holds():
    _, mine = release_at(7, 3)
    second = second_mu(mine.rho, Terms(7, 3, STUDY))
    assert second == pytest.approx(2 * MU) and 0.85 * second < attack(7, 3, known=6) <= second


@pytest.mark.slow
@pytest.mark.parametrize("sabotaged", [Thin(), OneStream()], ids=lambda noise: type(noise).__name__)
def test_a_sabotaged_share_is_caught(sabotaged):
    assert attack(3, 1, sabotaged) > MU


@pytest.mark.slow
def test_a_charge_that_forgets_who_colludes_is_caught():
    """One place is charged less for the noise of the total than the attacker shows: for m = 2 half of it."""
    whole, mine = release_at(2, 1)
    assert Fraction(mine.rho) >= 2 * Fraction(whole.rho) * (1 - Fraction(1, 2**50))
    assert attack(2, 1) > math.sqrt(2 * whole.rho)
