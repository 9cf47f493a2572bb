"""Each setting of a product method changes what a run publishes, what it costs, or what clients are given."""

from dataclasses import replace
from functools import cache

import pytest

from fedcore.errors import ConfigError
from fedcore.methods.names import METHODS
from fedcore.methods.registry import make_method, method_class
from fedcore.rounds.choices import known_settings
from fedcore.testing import Case, own_settings, what_changes
from fedcore.testing.bits import difference
from fedcore.testing.settings_law import Hint, what_is_seen
from tests.conformance.cases import FAST, OTHERS, SLOW, case
from tests.digests.cases import CASES

pytestmark = pytest.mark.usefixtures("few_repetitions")
PRODUCTS = [name for name in METHODS if not name.startswith("paper_")]

# Where values of the setting's type in the method's own cases show nothing, or would show it late.
HINTS: dict[tuple[str, str], Hint] = {
    ("dictionaries", "forgetting"): Hint(0.5, case="after newcomers"),
    ("federated_em", "algorithm"): Hint("em", case="federated_em/fedem-batches"),
    ("federated_em", "clip"): Hint(1.0, case="federated_em/private-diag"),
    ("federated_em", "nuclear_penalty"): Hint(0.5, case="federated_em/fedem-gaussian-tables"),
    ("federated_em", "tails"): Hint(5.0, case="federated_em/em"),
    ("federated_em", "rank"): Hint(1, case="federated_em/fedem-gaussian-tables"),
    ("federated_em", "record_bound"): Hint(1, case="federated_em/private-diag"),
    ("gradient_em", "tolerance"): Hint(1e9, {"rounds": 20}),
    ("histograms", "keep"): Hint(1, case="histograms/private-frequency-replace-one"),
    ("mixed_effects", "tolerance"): Hint(1.0, {"rounds": 60}),
    ("private_gmm", "sigma_max"): Hint(5.0),
    ("private_gmm", "up_to"): Hint(False, case="private_gmm/up-to"),
    ("profile", "bounds"): Hint((None,) * 6),
    ("profile", "by"): Hint(("0",)),
    ("profile", "categories"): Hint((), {"by": ()}),
    ("private_mixture", "alpha"): Hint(1e-20, case="private_mixture/records-replace-one"),
    ("private_mixture", "categories"): Hint(((0,),)),
    ("private_mixture", "depth"): Hint(0.001, case="private_mixture/gaps"),
    ("private_mixture", "nominal_records"): Hint(1, case="private_mixture/records-replace-one"),
    ("private_mixture", "steps"): Hint((("0", 1.0),)),
}


@cache
def after_newcomers() -> Case:
    """The second run of a series, before which clients came."""
    made = case("dictionaries/default")
    people, few = made.population, 2 * made.population.leaf
    founders = replace(people, clients=people.clients[:few], heldout=people.heldout[:few])
    earlier = replace(made, population=founders)
    return replace(made, name="after newcomers", warm_start=made.method.warm_start_of(earlier.history.state))


def cases_of(method: str) -> list[Case]:
    found = [case(name) for name in [*FAST, *SLOW, *OTHERS] if CASES[name].method == method]
    return [*found, after_newcomers()] if method == "dictionaries" else found


def marked(method: str, *given):
    """Settings of one method are fast tests, those of the others slow ones."""
    return pytest.param(*given, marks=[pytest.mark.slow] * (method != "histograms"))


EACH = [marked(method, method, name) for method in PRODUCTS for name in own_settings(method_class(method))]


@pytest.mark.parametrize(("method", "name"), EACH)
def test_a_setting_changes_something(method, name):
    assert what_changes(name, cases_of(method), HINTS.get((method, name)))


def test_hints_are_about_settings_that_there_are():
    assert {
        (method, name) for method, name in HINTS if name not in known_settings(method_class(method).Config)
    } == set()


USUAL = [name for name in [*FAST, "private_mixture/clients"] if CASES[name].method in PRODUCTS]


@pytest.mark.parametrize("name", [marked(CASES[name].method, name) for name in USUAL])
def test_the_same_settings_change_nothing(name):
    """Otherwise the law would see changes where there are none."""
    made = case(name)
    given = made.method.config.model_dump(exclude_unset=True)
    again = replace(made, method=type(made.method)(type(made.method).Config(**given)))
    assert not difference(what_is_seen(made), what_is_seen(again), "what is seen")


FIXED = [(method, name) for method in METHODS for name in method_class(method).fixed_settings]


@pytest.mark.parametrize(("method", "name"), FIXED)
def test_a_setting_that_became_a_constant_is_accepted_with_its_value_alone(method, name):
    """Runs and files of before have it."""
    value = method_class(method).fixed_settings[name]
    assert make_method(method, {name: value}) == make_method(method, {})
    with pytest.raises(ConfigError, match=f"'{name}' is"):
        make_method(method, {name: 0.0123})
