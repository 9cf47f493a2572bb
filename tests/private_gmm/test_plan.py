"""What a run may spend, in which unit and relation, and what is refused before any data are open."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedcore.errors import ConfigError
from fedcore.methods.private_gmm import PrivateGMM, PrivateGMMConfig, sensitivities
from fedcore.methods.private_gmm.feasibility import forecast, needs_of
from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.plan import passes_of
from fedcore.methods.registry import make_method
from fedcore.privacy.accounting import exact_sum
from tests.private_gmm.worlds import CASES, RELATIONS, config, facts


@given(st.sampled_from(list(CASES)), st.sampled_from(RELATIONS), st.floats(1e-6, 1e3), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_a_plan_spends_the_budget_and_no_more(case, relation, rho, features):
    plan = PrivateGMM(CASES[case]).plan(facts(relation=relation, rho=rho, features=features))
    total = exact_sum(release.rho for release in plan)
    assert total <= rho and float(total) == pytest.approx(rho, rel=1e-9)
    assert abs(math.fsum(release.rho for release in plan) - float(total)) <= 1e-12 * rho
    assert all(release.delta == 0 for release in plan), "no thresholding step: nothing is taken from delta"
    assert [release.round for release in plan] == sorted(release.round for release in plan)
    assert len({release.name for release in plan}) == len(plan)
    assert all(release.noise_multiplier == pytest.approx(math.sqrt(0.5 / release.rho)) for release in plan)


def test_shares_are_those_that_the_page_lists():
    """By hand: 60 % search, 40 % leaves, of which 12 % for the valleys; 15, 35, 12, 8 and 30 % of a level; 1/7 of 15 %
    for a bounding release."""
    plan = {release.name: release.rho for release in PrivateGMM(config(components=3)).plan(facts(rho=1.0, features=10))}
    shares = {
        "level0_counts": 0.6 * 0.15 / 7,
        "level0_mean_2": 0.6 * 0.15 / 7,
        "level0_moments": 0.6 * 0.35,
        "level0_boxes_3": 0.6 * 0.12 / 4,
        "level0_offsets": 0.6 * 0.08,
        "level0_profiles": 0.6 * 0.3,
        "leaf_valleys": 0.4 * 0.12,
        "leaf_counts": 0.4 * 0.88 * 0.05,
        "leaf_mean_0": 0.4 * 0.88 * 0.15,
        "leaf_mean_1": 0.4 * 0.88 * 0.30,
        "leaf_covariance": 0.4 * 0.88 * 0.40,
    }
    for name, share in shares.items():
        assert plan[name] == pytest.approx(share, rel=1e-9), name
    deep = PrivateGMM(config(components=3, depth=2)).plan(facts(rho=1.0, features=10))
    assert [release.rho for release in deep if release.name == "level1_moments"] == [pytest.approx(0.3 * 0.35)]
    assert len({release.round for release in deep}) == 2 * (2 * 3 + 1 + 4 + 1 + 1) + 6


def test_sensitivities_in_grid_steps():
    """sqrt(J) 2^16 for counts in J histograms, 2^32 / sqrt(2) for triangles; sqrt(2) or 2 times that to replace."""
    assert sensitivities.counts("add_or_remove_one") == ONE
    assert sensitivities.counts("add_or_remove_one", 4) == 2 * ONE
    assert sensitivities.counts("replace_one", 2) == 2 * ONE
    assert sensitivities.sums("add_or_remove_one") == ONE and sensitivities.sums("replace_one") == 2 * ONE
    bound = sensitivities.moments("add_or_remove_one")
    assert 2 * bound**2 >= ONE**4 > 2 * (bound - 1) ** 2
    assert sensitivities.squares("replace_one") ** 2 >= 2 * ONE**4
    for cells in (1, 3, 24, 512):
        for used in range(1, cells + 1):
            assert used * sensitivities.weight(cells, used) ** 2 <= sensitivities.counts(RELATIONS[0], cells) ** 2
            assert 2 * used * sensitivities.weight(cells, used) ** 2 <= sensitivities.counts(RELATIONS[1], cells) ** 2


@pytest.mark.parametrize(
    ("changes", "public", "says"),
    [
        ({"radius": None}, {}, "radius"),
        ({}, {"rho": None}, "budget"),
        ({}, {"unit": "household"}, "unit"),
        ({}, {"relation": "swap"}, "relation"),
        ({}, {"features": 5000}, "columns"),
    ],
)
def test_a_run_that_cannot_be_planned_is_refused(changes, public, says):
    with pytest.raises(ConfigError, match=says):
        PrivateGMM(config(**changes)).plan(facts(**public))


@pytest.mark.parametrize(
    "settings",
    [
        {"sigma_min": 70.0},
        {"sigma_max": 0.01},
        {"least_weight": 0.6},
        {"components": 4, "least_weight": 0.3},
        {"epsilon": 0.0},
        {"unheard": 1},
        {"components": 1},
        {"radius": 1e90, "sigma_min": 1.0},
    ],
)
def test_settings_that_do_not_agree_are_refused(settings):
    with pytest.raises(ValidationError):
        config(**settings)
    with pytest.raises(ConfigError):
        make_method("private-gmm", config().model_dump() | settings)


def test_defaults_follow_from_what_is_given():
    given = PrivateGMMConfig(radius=10.0, components=4)
    assert (given.w_min, given.sigma_floor, given.levels) == (0.125, 0.01, 1)
    assert PrivateGMMConfig(radius=10.0, sigma_min=0.1, sigma_max=2.0).levels == 2
    assert PrivateGMMConfig(radius=10.0, sigma_min=0.1, sigma_max=2.0, depth=1).levels == 1


def test_a_forecast_falls_with_the_budget_and_is_of_what_needs_most():
    method = PrivateGMM(config(components=3, least_weight=0.2))

    def failed_at(rho, needed=300.0):
        return replace(method.init(facts(rho=rho, features=20)), needed=needed)

    small, large = (forecast(method.config, failed_at(rho)) for rho in (1e-4, 1.0))
    assert small.units > 3000 and small.epsilon_factor == pytest.approx(small.units / 3000)
    assert large.units == large.epsilon_factor == 0
    tenfold = needs_of(method.config, 20, RELATIONS[0], failed_at(1e-2).noise)
    assert small.units == pytest.approx(10 * max(tenfold.values()) * 2 / 0.2, rel=1e-6)


def test_nothing_found_changes_the_plan():
    passes = passes_of(config(components=3, depth=3), 20, RELATIONS[0])
    assert [each.kind for each in passes if each.level == 1] == [each.kind for each in passes if each.level == 0]
    assert [each.kind for each in passes[-6:]] == [
        "leaf radii",
        "leaf mean",
        "leaf radii",
        "leaf mean",
        "leaf valleys",
        "leaf covariance",
    ]
