"""Noise in shares of several sites: prices, scales, noise, records and statements (docs/privacy/sites.md)."""

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from fedcore.errors import ConfigError, LedgerTampered, SensitivityError
from fedcore.privacy.ledger.chain import canonical
from fedcore.privacy.ledger.replay import replay
from fedcore.privacy.mechanisms import SecureNoise, TestNoise
from fedcore.privacy.noise_shares import (
    ShareNoise,
    Terms,
    TestShareNoise,
    charged,
    charged_plan,
    check_share,
    modulo_sum,
    planned_rho,
    second_mu,
)
from fedcore.privacy.plan import ROUNDED, SHARED, NoiseShare, PlannedRelease
from fedcore.privacy.statement import private_statement
from fedcore.privacy.statement_check import own_contradictions, read_statement
from tests.privacy.accounts import spend
from tests.privacy.conftest import release, total
from tests.privacy.test_mechanisms import ALPHA
from tests.privacy.test_noise_law import records
from tests.privacy.test_order import ACQUIRED, SET, chain_of, reserved
from tests.privacy.test_order import charged as charge_of

STUDY = "5" * 64
STUDIES = [(2, 1), (3, 1), (3, 2), (7, 1), (7, 5), (50, 1), (1000, 1), (1000, 999)]
CELLS = 20_000


def terms(sites=3, collusion=1, study=STUDY):
    return Terms(sites, collusion, study)


def planned(scale=1280.0, sensitivity=64, shape=(3,), name="sums-1", **more):
    return PlannedRelease(name, 1, shape, sensitivity, scale / sensitivity, "docs/privacy/sites.md", "one cell", **more)


def shared(**more):
    return charged(planned(**more), terms())


# --- prices and scales ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "t"), STUDIES)
def test_prices_and_scales_in_fractions(m, t):
    """Recomputed from the argument alone: what t sites leave of the noise costs what is charged, and no less is drawn
    together than one place would draw. All is as cheap as floats allow."""
    random = np.random.default_rng(m)
    for _ in range(40):
        sensitivity, sigma = int(random.integers(1, 2**30)), float(np.exp(random.uniform(0, 5)))
        one = PlannedRelease("a", 1, (2,), sensitivity, max(sigma, 64 * (m + 1) / sensitivity), "docs", "")
        mine, at = charged(one, terms(m, t)), terms(m, t)
        scale = Fraction(mine.noise_share.scale)
        assert mine.noise_share == NoiseShare(m, t, STUDY, float(scale), one.scale)
        assert m * scale**2 >= Fraction(one.scale) ** 2 >= (sensitivity * Fraction(one.noise_multiplier)) ** 2
        seen = (m - t) * scale**2  # variance of what the attacker does not know
        assert seen >= Fraction(mine.scale) ** 2 and 2 * seen * Fraction(mine.rho) >= sensitivity**2
        assert float(2 * seen * Fraction(mine.rho) / sensitivity**2) == pytest.approx(1, abs=1e-14)
        assert Fraction(one.rho) * m / (m - t) <= Fraction(mine.rho) * (1 + Fraction(1, 2**50))
        below = Fraction(math.nextafter(float(scale), 0.0))
        assert m * below**2 < Fraction(one.scale) ** 2 or (m - t) * below**2 < Fraction(mine.scale) ** 2
        check_share(mine)
        if m - t == 1:
            assert second_mu(mine.rho, at) ** 2 == pytest.approx(2 * mine.rho, rel=1e-15)
        # one share alone is left: D**2 / s_i**2
        assert Fraction(second_mu(mine.rho, at)) ** 2 >= Fraction(sensitivity) ** 2 / scale**2


@pytest.mark.parametrize(("m", "t"), STUDIES)
def test_a_run_costs_no_more_than_its_rho_to_the_last_bit(m, t):
    random = np.random.default_rng(t)
    for rho in (0.5, 1e-3, math.nextafter(1.0, 0.0), math.pi):
        whole = planned_rho(rho, terms(m, t))
        assert 1 - Fraction(1, 2**46) < Fraction(whole) / (Fraction(rho) * (m - t) / m) <= 1 - Fraction(1, 2**49)
        parts = random.dirichlet(np.ones(7))
        plan = [planned(name=f"r{i}", sensitivity=2**20) for i in range(7)]
        plan = [
            replace(one, noise_multiplier=float(np.sqrt(0.5 / (whole * part))))
            for one, part in zip(plan, parts, strict=True)
        ]
        if sum(Fraction(one.rho) for one in plan) <= Fraction(whole):
            assert sum(Fraction(charged(one, terms(m, t)).rho) for one in plan) <= Fraction(rho)
        one = replace(plan[0], noise_multiplier=float(np.sqrt(0.5 / whole)))
        while one.rho > whole:
            one = replace(one, noise_multiplier=math.nextafter(one.noise_multiplier, math.inf))
        assert rho * (1 - 1e-13) < charged(one, terms(m, t)).rho <= rho


def test_plans_without_shares_are_stored_as_before():
    one = release()
    assert "noise_share" not in one.to_json() and one.law == ROUNDED
    mine = charged(one, terms())
    assert mine.law == SHARED and PlannedRelease.from_json(json.loads(json.dumps(mine.to_json()))) == mine


@pytest.mark.parametrize(
    "bad", [(1, 1), (2, 0), (2, 2), (1001, 1), (2.0, 1), (3, True), (3, 1, "5" * 63), (3, 1, "X" * 64), (3, -1)]
)
def test_terms_that_are_none(bad):
    with pytest.raises(ConfigError):
        Terms(*bad, *([STUDY] if len(bad) == 2 else []))


def test_what_has_no_shares():
    with pytest.raises(ConfigError, match="thresholding"):
        charged(planned(delta=1e-12), terms())
    least = planned(scale=64 * math.sqrt(3) * (1 + 1e-12))
    assert charged(least, terms()).noise_share.scale >= 64
    with pytest.raises(ConfigError, match="at least 64"):
        charged(planned(scale=64 * math.sqrt(3) * (1 - 1e-12)), terms())
    fits = (2**62 - 40 * 1280) // 64
    assert charged_plan([planned()], terms(), fits - 1) == (charged(planned(), terms()),)
    with pytest.raises(ConfigError, match="range of masked sums"):
        charged_plan([planned()], terms(), fits)


# --- noise ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [2, 3, 7])
def test_test_shares_add_up_to_the_noise_of_one_place(m):
    """To the bit, negative totals included, in any order of the sites."""
    one = planned(scale=3e5, sensitivity=2**16, shape=(500,))
    mine, values = charged(one, terms(m)), np.arange(500) * 2**53 - 2**61
    whole = TestNoise("key").draw(one, "run", np.zeros(500, np.int64))
    assert (whole < 0).any() and (whole > 0).any()
    for order in (range(m), range(m)[::-1]):
        summed = values
        for index in order:
            summed = TestShareNoise("key", index).draw(mine, f"run-{index}", summed)
        assert np.array_equal(summed, values + whole)
    shares = [TestShareNoise("key", index).draw(mine, "run", np.zeros(500, np.int64)) for index in range(m)]
    assert len({share.tobytes() for share in shares}) == m
    for index in range(m - 1):
        assert stats.kstest(shares[index] / mine.noise_share.scale, "norm").pvalue > 1e-4
    with pytest.raises(ConfigError, match="no site"):
        TestShareNoise("key", m).draw(mine, "run", values)


def test_a_share_is_the_exact_sampler_at_its_own_scale_and_wraps(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "fedcore.privacy.mechanisms.add", lambda values, scale, bits: drawn.append((values, scale)) or values + 7
    )
    mine, ends = shared(), np.array([2**63 - 1, -(2**63), 0])
    assert ShareNoise().draw(mine, "run", ends).tolist() == [-(2**63) + 6, -(2**63) + 7, 7]
    ((zeros, scale),) = drawn
    assert not zeros.any() and scale == mine.noise_share.scale  # what is added saturates nowhere: it never sees a sum
    assert modulo_sum(ends, -ends).tolist() == [0, 0, 0]


@pytest.mark.parametrize("noise", [ShareNoise(), TestShareNoise("key", 0)])
def test_what_cannot_be_drawn_is_refused_before_it_is_paid(noise):
    good, zeros = shared(), np.zeros(3, np.int64)
    noise.ready(good, zeros)
    with pytest.raises(ConfigError, match="no share"):
        noise.ready(planned(), zeros)
    for values in (zeros.astype(float), np.zeros(4, np.int64)):
        with pytest.raises(SensitivityError):
            noise.ready(good, values)
    thin = replace(good, noise_share=replace(good.noise_share, scale=good.noise_share.scale / math.sqrt(2)))
    with pytest.raises(ConfigError, match="less noise"):
        noise.draw(thin, "run", zeros)


def variance_fits(noises, scale):
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], len(noises)) / len(noises)
    return low <= np.mean(noises**2.0) / scale**2 <= high


class Thin(ShareNoise):
    """Draws s_i / sqrt(2)."""

    def draw(self, planned, run_key, values):
        share = planned.noise_share
        thin = replace(planned, sensitivity=1, noise_multiplier=share.scale / math.sqrt(2))
        return SecureNoise().draw(thin, run_key, values)


class OneStream(ShareNoise):
    """Every site draws from the same stream."""

    def draw(self, planned, run_key, values):
        return TestNoise("stream").draw(
            replace(planned, sensitivity=1, noise_multiplier=planned.noise_share.scale), "", values
        )


@pytest.mark.slow
@pytest.mark.parametrize("m", [2, 3, 7])
def test_the_total_has_the_noise_of_one_place(m):
    """Its variance lies between that of one place and that of one more rounding a site, and its law is normal."""
    one = planned(scale=5e4, sensitivity=64, shape=(CELLS,))
    mine, zeros = charged(one, terms(m)), np.zeros(CELLS, np.int64)

    def summed(noise):
        found = zeros
        for _ in range(m):
            found = noise.draw(mine, "run", found)
        return found

    noise = summed(ShareNoise())
    assert variance_fits(noise, one.scale) and stats.kstest(noise / one.scale, "norm").pvalue > ALPHA
    assert not variance_fits(summed(Thin()), one.scale)
    assert not variance_fits(summed(OneStream()), one.scale)


def probabilities(scale, k, furthest):
    """P(X = j) for j from 0 on, X the sum of k rounded Gaussians: convolved, with mpmath."""
    far = int(12 * scale) + 2
    one = [mpmath.ncdf((j + 0.5) / scale) - mpmath.ncdf((j - 0.5) / scale) for j in range(-far, far + 1)]
    found = one
    for _ in range(k - 1):
        found = [
            mpmath.fsum(found[i] * one[n - i] for i in range(max(0, n - len(one) + 1), min(n + 1, len(found))))
            for n in range(len(found) + len(one) - 1)
        ]
    return found[k * far : k * far + furthest]


def density(scale, k, at):
    """Of N(0, k s**2) + k uniforms: P(Y = j) for the rounded sum Y of the page, by the inverse transform."""

    def transform(w):
        return mpmath.exp(-k * (scale * w) ** 2 / 2) * mpmath.sinc(w / 2) ** k * mpmath.cos(w * at)

    return mpmath.quad(transform, [0, 2, 4, 8, 16]) / mpmath.pi


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "k", "worst"), [(0.75, 2, 1.0418e-3), (1.0, 2, 1.0997e-5), (1.25, 2, 3.5037e-8), (1.0, 3, 6.987e-7)]
)
def test_a_sum_of_rounded_shares_is_near_a_rounded_sum(scale, k, worst):
    """Each probability differs by at most theta / (s sqrt(2 pi k)); for small scales by a good part of that."""
    with mpmath.workdps(25):
        theta = mpmath.mpf(0)
        for rest in itertools.product(range(-3, 4), repeat=k - 1):
            numbers = (0, *rest)
            spread = sum((Fraction(one) - Fraction(sum(numbers), k)) ** 2 for one in numbers)
            theta += mpmath.exp(-2 * mpmath.pi**2 * scale**2 * float(spread)) if any(rest) else 0
        bound = theta / (scale * mpmath.sqrt(2 * mpmath.pi * k))
        exact = probabilities(scale, k, 6)
        found = max(abs(exact[j] - density(scale, k, j)) for j in range(6))
    assert float(found) == pytest.approx(worst, rel=1e-3)
    assert 0.2 * bound < found <= bound


def test_the_bound_of_the_page_in_numbers():
    """Decimal exponents at s = 64, for two sites that do not collude and for more (docs/notes/privacy-sites.md)."""
    a = 2 * mpmath.pi**2 * 64**2
    assert a > 80_851 and 2.01 * mpmath.exp(-a / 2) < mpmath.mpf("1e-17556")
    for k in (3, 4, 10, 100, 1000):
        q, ring = mpmath.mpf(k - 1) / k, mpmath.fsum(mpmath.exp(-a * n**2 / (20 * k)) for n in range(-40, 41))
        assert mpmath.exp(-0.95 * a * q) * ring ** (k - 1) < mpmath.mpf("1e-22220")
        assert 600 / mpmath.sqrt(2 * mpmath.pi) + (k + 1) / (64 * mpmath.sqrt(2 * mpmath.pi * k)) < 240
    variation = 120 * mpmath.mpf("1e-17556") + mpmath.exp(-45_000)
    assert variation < mpmath.mpf("1e-17550")
    assert 2**64 * variation * (1 + mpmath.exp(1000)) < mpmath.mpf("1e-17000")


# --- the ledger -----------------------------------------------------------------------------------------------------


def test_a_reservation_and_a_charge_say_whose_noise_it_is(books):
    mine = shared()
    run = spend(books, [mine])
    reserve, charge = (records(books, kind)[0] for kind in ("reserve", "charge"))
    stored = {"sites": 3, "collusion": 1, "study": STUDY, "scale": mine.noise_share.scale, "total": 1280.0}
    assert reserve["noise"] == charge["noise"] == SHARED
    assert reserve["plan"][0]["noise_share"] == charge["noise_share"] == stored
    assert books.spent() == (total(mine), 0) and mine.rho > planned().rho
    assert books.ledger.account(books.population).runs[run].noise == SHARED


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": 1280 / math.sqrt(3) / math.sqrt(2)}, "less noise"),
        ({"scale": math.nextafter(charged(planned(), terms()).noise_share.scale, 0.0)}, "less noise"),
        ({"collusion": 2}, "less noise"),
        ({"total": 1281.0}, "less noise"),
        ({"scale": 63.0}, "at least 64"),
        ({"scale": math.inf}, "at least 64"),
    ],
)
def test_shares_that_do_not_cover_their_price_are_neither_reserved_nor_replayed(books, change, said):
    mine = shared()
    wrong = replace(mine, noise_share=replace(mine.noise_share, **change))
    with pytest.raises(ConfigError, match=said):
        books.reserve([wrong])
    assert books.spent() == (0, 0)
    if math.isfinite(change.get("scale", 1.0)):
        kind, run, payload = reserved(wrong)
        with pytest.raises(LedgerTampered, match=said):
            replay("ledger", "people", chain_of(SET, (kind, run, {**payload, "noise": SHARED})))


def test_t_forgotten_in_the_charge_is_refused(books):
    """The price of the whole noise, as one place pays it, for noise of which the attacker knows a share."""
    one, mine = planned(), shared()
    cheap = replace(mine, noise_multiplier=one.noise_multiplier)
    assert cheap.rho == one.rho < mine.rho
    with pytest.raises(ConfigError, match="less noise"):
        books.reserve([cheap])


@pytest.mark.parametrize("other", [planned(name="b"), charged(planned(name="b"), terms(4)), None])
def test_all_releases_of_a_plan_are_on_one_studys_terms(books, other):
    other = other or charged(planned(name="b"), terms(study="6" * 64))
    with pytest.raises(ConfigError, match="different terms"):
        books.reserve([shared(), other])


@pytest.mark.parametrize(
    ("law", "share", "drawn"),
    [(ROUNDED, True, SHARED), (SHARED, False, SHARED), (SHARED, True, ROUNDED), (ROUNDED, False, SHARED)],
)
def test_law_and_shares_go_together(law, share, drawn):
    one = shared() if share else planned()
    kind, run, payload = reserved(one)
    entry = {} if one.noise_share is None else {"noise_share": one.to_json()["noise_share"]}
    chain = chain_of(SET, (kind, run, {**payload, "noise": law}), ACQUIRED, charge_of(one, noise=drawn, **entry))
    with pytest.raises(LedgerTampered):
        replay("ledger", "people", chain)


def test_a_charge_with_another_share_than_planned():
    one = shared()
    kind, run, payload = reserved(one)
    begun = (SET, (kind, run, {**payload, "noise": SHARED}), ACQUIRED)
    good = one.to_json()["noise_share"]
    replay("ledger", "people", chain_of(*begun, charge_of(one, noise=SHARED, noise_share=good)))
    for other in (None, {**good, "scale": good["scale"] * 2}, {**good, "study": "6" * 64}):
        with pytest.raises(LedgerTampered, match="other noise"):
            replay("ledger", "people", chain_of(*begun, charge_of(one, noise=SHARED, noise_share=other)))
    cheaper = {**payload, "noise": SHARED, "plan": [{**payload["plan"][0], "rho": one.rho / 2}]}
    with pytest.raises(LedgerTampered, match="its own"):
        replay("ledger", "people", chain_of(SET, (kind, run, cheaper)))


# --- the statement --------------------------------------------------------------------------------------------------


def stated(books, at):
    run = spend(books, [charged(planned(scale=20_000.0, name=name), at) for name in ("a", "b")])
    return private_statement(books.ledger, books.population, run)


@pytest.mark.parametrize(("m", "t"), [(2, 1), (3, 1), (7, 3)])
def test_a_statement_has_both_costs(books, m, t):
    statement = stated(books, terms(m, t))
    said, value = read_statement(json.dumps(statement.to_json()))
    assert own_contradictions(said, value) == [] and said.to_json() == statement.to_json()
    sites, text = statement.sites, statement.text()
    assert (sites.sites, sites.collusion, sites.study) == (m, t, STUDY)
    assert sites.mu == pytest.approx(statement.mu * math.sqrt(m - t), rel=1e-12)
    assert Fraction(sites.rho) >= (m - t) * Fraction(statement.rho) and sites.epsilon >= statement.epsilon
    head = text.split("\n")[0]
    assert head.startswith("privacy: (") and f"per client against up to {t} of {m} sites" in head
    assert ("10^-16000" in text) == (m - t > 1) == (f"mu = {sites.mu:.6g}" in text.split("Sites: ")[1])
    assert "shares of the sites" in statement.mechanism and "at several sites" in text


@pytest.mark.parametrize(
    "lie",
    [
        lambda value: value["sites"].update(collusion=2),
        lambda value: value["sites"].update(epsilon=value["sites"]["epsilon"] / 2),
        lambda value: value["sites"].update(rho=value["sites"]["rho"] / 2),
        lambda value: value.pop("sites"),
        lambda value: value["releases"][1]["noise_share"].update(scale=64.0),
        lambda value: value["releases"][1].pop("noise_share"),
    ],
)
def test_a_statement_with_other_sites_contradicts_itself(books, lie):
    value = json.loads(canonical(stated(books, terms()).to_json()))
    lie(value)
    said, value = read_statement(json.dumps(value))
    found = own_contradictions(said, value)
    assert any("shares of its releases" in sentence for sentence in found), found


def test_statements_of_one_place_are_stored_as_before(books):
    run = spend(books, [planned()])
    assert "sites" not in private_statement(books.ledger, books.population, run).to_json()
