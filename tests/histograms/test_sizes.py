"""Settings and size rules."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore.errors import ConfigError
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.sizes import Sizes, size_rules, sizes_of
from tests.histograms.run_in_memory import facts

RHO = {15: 2.030, 5: 0.2808, 2: 0.0500, 1: 0.0132}  # optimal conversion at delta = 1e-10


@pytest.mark.parametrize(
    "nominal, epsilon, expected",
    [
        (100_000, 15, Sizes(8, 10, 30, 4, 0.3)),
        (100_000, 5, Sizes(8, 10, 30, 4, 0.3)),
        (100_000, 2, Sizes(8, 10, 16, 4, 0.5)),
        (100_000, 1, Sizes(8, 10, 16, 4, 0.5)),
        (20_000, 15, Sizes(8, 10, 30, 4, 0.3)),
        (20_000, 5, Sizes(8, 10, 16, 4, 0.5)),
        (20_000, 2, Sizes(8, 10, 16, 4, 0.5)),
        (20_000, 1, Sizes(7, 6, 6, 0, 0.5)),
        (4_000, 2, Sizes(5, 2, 2, 0, 0.5)),
        (2_000, 2, Sizes(0, 1, 1, 0, 0.3)),
        (2_000, 1, Sizes(0, 1, 1, 0, 0.3)),
    ],
)
def test_sizes_of_the_tuned_points(nominal, epsilon, expected):
    assert size_rules(nominal, 1000, RHO[epsilon]) == expected


@pytest.mark.parametrize("clusters", [None, 2, 10, 40])
def test_sizes_grow_with_clients_and_budget(clusters):
    nominals = [int(10 ** (x / 8)) for x in range(0, 57)]
    rhos = [10 ** (x / 8 - 5) for x in range(0, 57)]
    sizes = {(n, r): size_rules(n, 1000, r, clusters=clusters) for n in nominals for r in rhos}
    for a, b in itertools.chain(
        (((n, r), (m, r)) for n, m in itertools.pairwise(nominals) for r in rhos),
        (((n, r), (n, s)) for n in nominals for r, s in itertools.pairwise(rhos)),
    ):
        for field in ("rounds", "clusters", "overseed", "merge_after"):
            assert getattr(sizes[a], field) <= getattr(sizes[b], field), (a, b, field)
    for chosen in sizes.values():
        assert chosen.overseed >= chosen.clusters >= 1
        assert (chosen.merge_after == 0) == (chosen.overseed == chosen.clusters)
        assert chosen.merge_after <= max(chosen.rounds - 2, 0)


def test_what_the_config_names_is_kept():
    config = HistogramsConfig(clusters=4, rounds=7, overseed=9, merge_after=2)
    chosen = sizes_of(config, facts(1000, rho=1.0, nominal=1000))
    assert replace(chosen, perturbation=0.0) == Sizes(7, 4, 9, 2, 0.0)
    assert sizes_of(HistogramsConfig(nominal_clients=100_000), facts(1000, rho=2.0, nominal=10)).clusters == 10


def test_too_few_rounds_to_merge():
    few = HistogramsConfig(rounds=2, clusters=3, overseed=6)
    with pytest.raises(ConfigError, match="cannot be merged") as error:
        sizes_of(few, facts(1000, rho=1.0, nominal=1000))
    assert error.value.remedy
    automatic = HistogramsConfig(rounds=2)
    sizes = sizes_of(automatic, facts(1000, rho=2.0, nominal=100_000))
    assert sizes.overseed == sizes.clusters and sizes.merge_after == 0


@pytest.mark.parametrize(
    "public",
    [facts(10, rho=1.0), facts(10, nominal=5), facts(10, rho=0.0, nominal=5), facts(10, rho=math.nan, nominal=5)],
)
def test_a_private_run_needs_a_budget_and_a_nominal_size(public):
    with pytest.raises(ConfigError) as error:
        sizes_of(HistogramsConfig(), public)
    assert error.value.remedy


@pytest.mark.parametrize(
    "settings",
    [
        {"clusters": 0},
        {"clip": 0},
        {"colour": 1},
        {"algorithm": "private"},
        {"clusters": 5, "overseed": 4},
        {"rounds": 5, "merge_after": 4},
        {"first_share": 0.04},
        {"epsilon": -1.0},
        {"prior_tokens": 0},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValidationError):
        HistogramsConfig(**settings)


def test_every_setting_is_described():
    assert all(field.description for field in HistogramsConfig.model_fields.values())


def test_floors_shrink_with_a_large_vocabulary():
    config = HistogramsConfig()
    assert config.for_vocabulary(1000) == config.for_vocabulary(3) == config
    large = config.for_vocabulary(50_000)
    assert large.centre_floor == pytest.approx(config.centre_floor / 50)
    assert large.clip == config.clip and large.prior_tokens == config.prior_tokens


@pytest.mark.parametrize(
    "given, config, expected",
    [
        (10, {}, Sizes(2, 10, 10, 0, 0.3)),  # a warm start
        (4, {}, Sizes(2, 4, 4, 0, 0.3)),  # what is given goes on
        (4, {"clusters": 6}, Sizes(8, 6, 6, 0, 0.3)),  # two have to find their place
        (20, {}, Sizes(2, 20, 20, 0, 0.3)),  # up to twice the clusters of the rules
        (21, {}, Sizes(8, 10, 21, 4, 0.3)),
        (12, {"clusters": 10}, Sizes(8, 10, 12, 4, 0.3)),
        (500, {}, Sizes(8, 10, 30, 4, 0.3)),  # the thirty largest
        (500, {"overseed": 20}, Sizes(8, 10, 20, 4, 0.3)),
        (500, {"rounds": 2}, Sizes(2, 10, 10, 0, 0.3)),  # no time to merge, so the ten largest
        (10, {"rounds": 5}, Sizes(5, 10, 10, 0, 0.3)),
    ],
)
def test_sizes_of_a_run_with_a_warm_start(given, config, expected):
    public = replace(facts(1000, rho=2.0, nominal=100_000), warm_start={"centres": np.full((given, 1000), 1e-3)})
    assert sizes_of(HistogramsConfig(**config), public) == expected


def test_fewer_tokens_count_as_a_smaller_vocabulary():
    public = facts(10_000, rho=0.05, nominal=20_000)
    assert sizes_of(HistogramsConfig(reduction="frequency", keep=999), public) == sizes_of(
        HistogramsConfig(), facts(1000, rho=0.05, nominal=20_000)
    )


def test_replace_one_counts_as_half_the_budget():
    public = facts(1000, rho=0.05, nominal=20_000)
    assert sizes_of(HistogramsConfig(), replace(public, relation="replace_one")) == sizes_of(
        HistogramsConfig(), replace(public, rho=0.025)
    )
