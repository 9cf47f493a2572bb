"""Attacks on a canary: nobody may tell a run with it from a run without it better than the price allows.

Sizes and powers of these audits: docs/privacy/audits.md.
"""

import math
import re
from fractions import Fraction

import numpy as np
import pytest

from fedcore.methods.histograms import HistogramsConfig
from fedcore.privacy.gdp import epsilon_of
from tests.audit.attack import CLIENTS, PRODUCT, SABOTAGES, Build, attack_release, attack_runs, worlds_of
from tests.audit.bounds import FINE, epsilon_lower_bound, mu_lower_bound, mu_of, upper_rate
from tests.audit.em_releases import CASES as EM_CASES
from tests.audit.releases import ALL, WITH_HALVES, Case, rounds_of, ties
from tests.audit.sabotage import clip_by_the_largest_entry, losses_without_a_clip

MU = 1.5  # claimed, of every audited run and release
RHO = MU**2 / 2
DELTA = 1e-5
PAIRS = 10_000
# a narrow clip: every client reaches it, so that the canary costs all that is paid for and the audit is sharp
RUN = Case(HistogramsConfig(clusters=2, rounds=2, overseed=2, clip=0.5))
# fewer tokens and given centres, for people who are replaced
ALL_KINDS = Case(HistogramsConfig(clusters=2, rounds=3, clip=0.5, reduction="frequency", keep=3), "replace_one", ties)
EM_RUN = EM_CASES["em, known"].narrow(0.5)
HALVES_RUN = WITH_HALVES["one whole"].narrow(0.5)  # all releases are made of both halves of everybody


# --- the audit itself -----------------------------------------------------------------------------------------------


def gaussian_worlds(generator, mu, pairs):
    """Statistics of an attack on a mechanism that is exactly mu-GDP, and of no other mu."""
    return generator.normal(-mu * mu / 2, mu, pairs), generator.normal(mu * mu / 2, mu, pairs)


def test_rates_are_bounded_as_by_the_tables():
    """0 errors in n: the bound is 1 - alpha**(1/n); and the rate of a fair coin, by the exact binomial law."""
    assert upper_rate(0, 100, 0.05) == pytest.approx(1 - 0.05 ** (1 / 100), rel=1e-12)
    assert upper_rate(100, 100, 0.05) == 1.0
    assert upper_rate(50, 100, 0.025) == pytest.approx(0.6017, abs=1e-4)
    assert mu_of(0.5, 0.5) == 0 and mu_of(0.1586552539, 0.1586552539) == pytest.approx(2.0, abs=1e-9)


@pytest.mark.slow
def test_the_audit_seldom_alarms_and_sees_a_factor_of_root_two():
    """At most 1 in 1000 audits of an honest mechanism may alarm, so more than 8 of 2000 do in one build of 4000.

    Against sqrt 2, the weakest sabotage here, none of 200 is missed.
    """
    generator = np.random.default_rng(0)
    alarms = sum(mu_lower_bound(*gaussian_worlds(generator, MU, 2000)) > MU for _ in range(2000))
    assert alarms <= 8
    pairs = SABOTAGES["two draws averaged"].pairs
    caught = sum(mu_lower_bound(*gaussian_worlds(generator, MU * math.sqrt(2), pairs)) > MU for _ in range(200))
    assert caught == 200


def test_an_attack_by_chance_shows_nothing():
    generator = np.random.default_rng(1)
    assert mu_lower_bound(generator.normal(size=5000), generator.normal(size=5000)) < 0.1


# --- the product ----------------------------------------------------------------------------------------------------


def priced(case: Case, name: str):
    """The round and the release of this name, planned with a budget that makes its own mu equal to MU."""
    public = case.public(CLIENTS.shape[1], 1.0)
    share = next(planned.rho for planned in case.method.plan(public) if planned.name == name)
    for round in rounds_of(case, worlds_of(case)[0], rho=RHO / share):
        for planned in round.planned:
            if planned.name == name:
                return round, planned
    raise AssertionError(f"no release {name}")


LATER = re.compile(r"_0*[2-9]\d*$")  # rounds after the first repeat its releases with other messages
PLANS = {name: case.method.plan(case.public(CLIENTS.shape[1])) for name, case in ALL.items()}
RELEASES = [(name, planned.name) for name, plan in PLANS.items() for planned in plan if not LATER.search(planned.name)]


@pytest.mark.parametrize(("case", "release"), RELEASES)
def test_the_noise_of_a_release_is_as_fine_as_its_claim_needs(case, release):
    """mu = sqrt(2 rho) holds for the normal law; noise of a few whole steps gives away more (tests/audit/bounds.py)."""
    assert priced(ALL[case], release)[1].scale >= FINE


@pytest.mark.slow
@pytest.mark.parametrize(("case", "release"), RELEASES)
def test_a_release_gives_away_no_more_than_its_price(case, release):
    round, planned = priced(ALL[case], release)
    claim = math.sqrt(2 * planned.rho)
    assert claim == pytest.approx(MU, rel=1e-3)
    absent, present = attack_release(PRODUCT, ALL[case], round, planned, 2000)
    assert mu_lower_bound(absent, present) <= claim


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "pairs", "sharp"),
    [
        pytest.param(RUN, PAIRS, 0.85, marks=pytest.mark.heavy),
        pytest.param(ALL_KINDS, 2000, 0.5, marks=pytest.mark.heavy),
        pytest.param(EM_RUN, 600, 0.4, marks=pytest.mark.heavy),
        pytest.param(HALVES_RUN, 600, 0.4, marks=pytest.mark.heavy),
    ],
    ids=["usual", "all", "em", "halves"],
)
def test_a_whole_run_gives_away_no_more_than_its_price(run, pairs, sharp):
    """10 000 pairs of the usual run. The attack is sharp: it shows at least 85 % of what was paid for."""
    plan = run.method.plan(run.public(CLIENTS.shape[1], RHO))
    rho = math.fsum(planned.rho for planned in plan)
    absent, present = attack_runs(PRODUCT, run, RHO, pairs)
    shown, epsilon = mu_lower_bound(absent, present), epsilon_lower_bound(absent, present, DELTA)
    print(
        f"mu >= {shown:.3f} of {math.sqrt(2 * rho):.3f}; epsilon >= {epsilon:.3f} of "
        f"{epsilon_of(2 * Fraction(rho), DELTA):.3f}"
    )
    assert sharp * MU <= shown <= math.sqrt(2 * rho)
    assert epsilon <= epsilon_of(2 * Fraction(rho), DELTA)


# --- sabotaged builds -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(build, marks=[pytest.mark.heavy] if build.pairs > PRODUCT.pairs else [])
        for build in SABOTAGES.values()
    ],
    ids=SABOTAGES,
)
def test_a_sabotaged_run_is_caught(build):
    absent, present = attack_runs(build, RUN, RHO, build.pairs)
    shown = mu_lower_bound(absent, present)
    print(f"mu >= {shown:.3f}")
    assert shown > MU


@pytest.mark.parametrize("kernel", [losses_without_a_clip, clip_by_the_largest_entry])
def test_a_sabotaged_release_of_losses_on_second_halves_is_caught(kernel):
    """By the release alone: it has some hundredths of a run's price, so a run hides what it gives away too much."""
    round, planned = priced(HALVES_RUN, "weights")
    shown = mu_lower_bound(*attack_release(Build(sabotage=kernel), HALVES_RUN, round, planned, 300))
    print(f"mu >= {shown:.3f}")
    assert shown > MU


@pytest.mark.slow
@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotaged_run_of_em_is_caught(name):
    """Runs for what leaks much. What leaks a little is wrong with the publisher: there one release is enough."""
    build = SABOTAGES[name]
    if build.pairs > PRODUCT.pairs:
        round, planned = priced(EM_RUN, "field_0001")
        found = attack_release(build, EM_RUN, round, planned, build.pairs)
    else:
        found = attack_runs(build, EM_RUN, RHO, 150)
    assert mu_lower_bound(*found) > MU


@pytest.mark.parametrize("name", ["sigma / 4", "no clip", "noise of a known seed"])
def test_a_sabotaged_release_is_caught_by_a_short_audit(name):
    """Those that leak much: 300 pairs of one release are enough."""
    round, planned = priced(RUN, "flat_mean")
    assert mu_lower_bound(*attack_release(SABOTAGES[name], RUN, round, planned, 300)) > MU
