"""Every setting changes something: what is published, what it costs, or what clients are given."""

import dataclasses

import numpy as np
import pytest

from fedcore.errors import ConfigError, Waiting
from fedcore.methods.histograms import Histograms, HistogramsConfig
from fedcore.methods.histograms.config import MOVED
from fedcore.methods.registry import make_method
from tests.growing import Growing, price_of, ranges_of_run
from tests.histograms.example_clients import D, block_of, random_counts, warm_start
from tests.histograms.run_in_memory import facts, rounded_normal, run

SIZES = {"clusters": 2, "rounds": 5, "overseed": 2}
CELLS = {"clusters": 2, "rounds": 5, "overseed": 4, "merge_after": 1}
FREQUENCY, EIGENVECTORS = {**SIZES, "reduction": "frequency", "keep": 4}, {**SIZES, "reduction": "eigenvectors"}
VOTES = {"clusters": 2, "rounds": 3, "overseed": 2}

# name: (other settings, what it is changed to)
OF_A_RUN = {
    "nominal_clients": ({}, 10_000),
    "clusters": (SIZES, 1),
    "rounds": (SIZES, 4),
    "overseed": (CELLS, 5),
    "merge_after": (CELLS, 2),
    "perturbation": (SIZES, 1.0),
    "reduction": ({**SIZES, "keep": 4}, "frequency"),
    "keep": (FREQUENCY, 6),
    "clip": (SIZES, 1.0),
    "first_clip": (SIZES, 0.6),  # below 1 / sqrt(D), the least norm, a clip scales all clients alike
    "first_share": (SIZES, 0.1),
    "second_share": (SIZES, 0.1),
    "votes_share": (VOTES, 0.1),
    "moment_share": (EIGENVECTORS, 0.5),
    "adaptive_clip": (SIZES, True),
    "clip_share": ({**SIZES, "adaptive_clip": True}, 0.2),
    "half_weight_tokens": (SIZES, 20.0),
    "effective_tokens": (SIZES, 10.0),
    "first_metric_floor": (SIZES, 0.1),
    "metric_floor": (SIZES, 0.1),
    "centre_floor": (SIZES, 0.05),
    "assignment_smoothing": (SIZES, 0.5),
    "personalisation": (SIZES, "centre"),
    "mixture_prior": (SIZES, 5.0),
    "mixture_steps": (SIZES, 2),
    "prior_tokens": (SIZES, 50.0),
    "floor": (SIZES, 0.1),
    "weights": (SIZES, "local"),
}
OF_A_BUDGET = {
    "epsilon": ({"epsilon": 1.0}, 2.0),
    "horizon": ({"horizon": 3}, 4),
    "at_least": ({"horizon": 3}, 10**6),
    "recent_cohorts": ({"horizon": 3}, 1),
    "cohorts": ({"horizon": 3}, "1"),
    "spare_releases": ({"epsilon": 1.0}, 2),
}


@pytest.fixture(scope="module")
def block():
    return block_of(random_counts(np.random.default_rng(0), 200, D))


def differences(block, one: HistogramsConfig, other: HistogramsConfig, public) -> set[str]:
    """What differs between two runs with the same noise."""
    found = []
    for config in (one, other):
        method, published = Histograms(config), []
        noise = rounded_normal(np.random.default_rng(1))

        def kept(planned, grid, published=published, noise=noise):
            published.append(noise(planned, grid))
            return published[-1]

        state, _ = run(method, block, public, kept)
        outputs = method.personalise(state, block, None)
        costs = [(planned.name, planned.shape, planned.rho) for planned in method.plan(public)]
        found.append({"costs": costs, "published": published, "outputs": list(outputs.values())})
    return {what for what in found[0] if not same(found[0][what], found[1][what])}


def same(one, other) -> bool:
    if len(one) != len(other):
        return False
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in zip(one, other, strict=True))


def test_all_settings_are_here():
    assert {*OF_A_RUN, *OF_A_BUDGET, "anyway"} == set(HistogramsConfig.model_fields)


@pytest.mark.parametrize("name", OF_A_RUN)
def test_a_setting_of_a_run_changes_it(block, name):
    settings, value = OF_A_RUN[name]
    before, after = HistogramsConfig(**settings), HistogramsConfig(**{**settings, name: value})
    assert getattr(before, name) != getattr(after, name)
    public = facts(D, rho=50.0, nominal=200, seed=3)
    if name == "votes_share":
        public = dataclasses.replace(public, warm_start=warm_start(7))
    found = differences(block, before, after, public)
    assert found == {"outputs"} if name in Histograms.free_settings else found & {"costs", "published"}


def promised(folder, **settings):
    """What a run costs, who takes part, and what is reserved."""
    growing = Growing(folder, begin="horizon" in settings)
    growing.append("a", "b", "c")
    try:
        session = growing.begin(method="histograms", **SIZES, **settings)
    except Waiting:
        return "waits"
    ranges = ranges_of_run(session) if "horizon" in settings else ()
    return price_of(session), ranges, growing.ledger.balance(growing.population.id).rho_reserved


@pytest.mark.parametrize("name", OF_A_BUDGET)
def test_a_setting_of_the_budget_changes_what_is_spent(tmp_path, name):
    settings, value = OF_A_BUDGET[name]
    one, other = promised(tmp_path / "one", **settings), promised(tmp_path / "other", **{**settings, name: value})
    assert one != other and one != "waits"


def test_anyway_changes_whether_a_small_budget_is_spent():
    public = facts(1000, rho=1e-9, nominal=200)
    assert Histograms().worth(public).asks and not Histograms(HistogramsConfig(anyway=True)).worth(public).asks


@pytest.mark.parametrize("name", sorted({name.partition("=")[0] for name in MOVED}))
def test_settings_that_left_are_refused_with_where_they_are(name):
    with pytest.raises(ConfigError, match=f"'{name}' .*paper_histograms"):
        make_method("histograms", {name: "fedavg"})


def test_the_algorithm_is_left_out():
    with pytest.raises(ConfigError, match="histograms has one algorithm now, leave it out"):
        make_method("histograms", {"algorithm": "private"})
