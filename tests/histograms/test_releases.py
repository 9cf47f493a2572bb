"""The plan of a private run: what is released, and at what price."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.methods.histograms import Histograms, HistogramsConfig
from fedcore.privacy.plan import PlannedRelease
from tests.histograms.example_clients import RELATIONS, SMALL, D, block_of, counts_arrays, public, warm_start
from tests.histograms.run_in_memory import facts, rounded_normal, run


@given(st.floats(1e-9, 1e4), st.integers(1, 10**9), st.integers(2, 10**5), st.sampled_from([None, 1, 3, 50]))
def test_the_plan_never_exceeds_the_budget_and_wastes_none_of_it(rho, nominal, features, clusters):
    releases = Histograms(HistogramsConfig(clusters=clusters)).plan(facts(features, rho=rho, nominal=nominal))
    prices = [release.rho for release in releases]
    assert sum(prices) <= rho and math.fsum(prices) <= rho and sum(reversed(prices)) <= rho * (1 + 1e-15)
    assert math.fsum(prices) >= rho * (1 - 1e-9)
    assert [release.round for release in releases] == list(range(1, len(releases) + 1))
    assert len({release.name for release in releases}) == len(releases)
    assert all(type(release.sensitivity) is int and release.sensitivity == 2**16 for release in releases)


def test_shares_of_the_budget():
    prices = [release.rho for release in Histograms(SMALL).plan(facts(8, rho=2.0, nominal=100))]
    one = 1.84 / 7  # the last two rounds, whose sums are pooled, have twice as much as the others
    np.testing.assert_allclose(prices, [0.08, 0.08, *[one] * 3, *[2 * one] * 2], rtol=1e-9)


def test_the_plan_knows_config_and_public_facts_only():
    public = facts(8, rho=2.0, nominal=100)
    assert Histograms(SMALL).plan(public) == Histograms(SMALL).plan(dataclasses.replace(public, seed=9))
    shapes = [release.shape for release in Histograms(SMALL).plan(public)]
    assert shapes == [(1, 8), (1, 8), (4, 8), (4, 8), (2, 8), (2, 8), (2, 8)]
    assert all(isinstance(release, PlannedRelease) for release in Histograms(SMALL).plan(public))


@given(counts_arrays(), st.integers(0, 5))
def test_rounds_and_shapes_do_not_depend_on_the_data(counts, seed):
    """`run` fails when a release is not exactly as planned, whatever the data and the noise are."""
    block = block_of(counts)
    public = facts(block.features, rho=0.01 * 10 ** (seed % 4), nominal=1000, seed=seed)
    state, infos = run(Histograms(SMALL), block, public, rounded_normal(np.random.default_rng(seed)))
    assert state.phase == "done" and len(infos) == 7
    assert np.all(np.isfinite(state.centres)) and state.centres.shape == (2, block.features)
    np.testing.assert_allclose(state.centres.sum(axis=1), 1.0)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-6, 1e3),
    st.integers(1, 10**7),
    st.sampled_from(["none", "frequency"]),
    st.sampled_from(RELATIONS),
    st.sampled_from([None, 1, 3, 10, 40]),
)
def test_plans_fit_and_waste_nothing_whatever_is_asked_for(rho, nominal, reduction, relation, given_centres):
    config = HistogramsConfig(reduction=reduction)
    start = None if given_centres is None else warm_start(given_centres, 20)
    known = dataclasses.replace(facts(20, rho=rho, nominal=nominal), relation=relation, warm_start=start)
    plan = Histograms(config).plan(known)
    prices = [release.rho for release in plan]
    assert sum(prices) <= rho and math.fsum(prices) <= rho and math.fsum(prices) >= rho * (1 - 1e-9)
    rounds = [release.round for release in plan]
    assert sorted(set(rounds)) == list(range(1, max(rounds) + 1))
    assert len({release.name for release in plan}) == len(plan)
    state = Histograms(config).init(known)
    assert Histograms(config).total_rounds(state) == max(rounds)


def test_replace_one_costs_the_same_and_adds_more_noise():
    config = HistogramsConfig(clusters=2, rounds=3, overseed=2)
    usual, replaced = (Histograms(config).plan(public(relation)) for relation in RELATIONS)
    assert [r.rho for r in usual] == [r.rho for r in replaced]
    ratios = [after.scale / before.scale for before, after in zip(usual, replaced, strict=True)]
    np.testing.assert_allclose(ratios, math.sqrt(2), rtol=1e-4)
    with pytest.raises(ConfigError, match="relation"):
        Histograms(config).plan(public("replace_some"))


def test_a_smaller_effective_budget_under_replace_one_buys_no_more():
    for rho in (0.001, 0.01, 0.1, 1.0):
        sizes = [
            len(Histograms().plan(dataclasses.replace(facts(1000, rho=rho, nominal=20_000), relation=relation)))
            for relation in RELATIONS
        ]
        assert sizes[1] <= sizes[0]


def names(config, start, **given) -> list[str]:
    return [release.name for release in Histograms(config).plan(public(start=start, **given))]


def test_what_a_warm_start_saves():
    two = HistogramsConfig(clusters=2)
    assert names(two, warm_start(2)) == ["clusters_001", "clusters_002"]
    assert names(HistogramsConfig(clusters=2, rounds=1), warm_start(2)) == ["clusters_001"]
    assert names(two, warm_start(5))[0] == "clusters_001", "five are merged to two at no cost"
    strong = {"rho": 2.0, "nominal": 10**6}
    assert names(two, warm_start(5), **strong)[0] == "clusters_001", "all given centres fit into the first cells"
    assert names(two, warm_start(1)) == names(two, None)[2:], "the other centre has to find its place"


def test_what_cannot_be_planned():
    wide = dataclasses.replace(facts(2049, rho=1.0, nominal=1000))
    assert Histograms(HistogramsConfig(reduction="frequency")).plan(wide)
    with pytest.raises(ConfigError, match="cannot be kept"):
        Histograms(HistogramsConfig(reduction="frequency", keep=D)).plan(public())
