"""The canary attack along the whole path of the product: what the ledger has stored gives away no more than it charged.

The table of all methods, units and relations with enough runs for a sharp bound: `python -m tests.audit.kept`, and the
heavy tests below. The quick ones see a build that is grossly wrong.
"""

import numpy as np
import pytest

from fedcore.methods.names import METHODS
from fedcore.methods.registry import method_class
from fedcore.rounds.choices import known_settings
from tests.audit.bounds import mu_lower_bound
from tests.audit.kept import KEPT, MU, HalfScale, attacked, distance_of, half_sensitivity

HISTOGRAMS = "histograms, client, add_or_remove_one"


def test_every_private_method_unit_and_relation_is_kept():
    """Methods of papers that inherit from one of these make its releases."""
    classes = {name: method_class(name) for name in METHODS}
    wanted = {
        f"{name}, {unit}, {relation}"
        for name, cls in classes.items()
        if "epsilon" in known_settings(cls.Config) and not {*cls.__mro__[1:]} & {*classes.values()}
        for unit in method_class(name).units
        for relation in ("add_or_remove_one", "replace_one")
    }
    assert wanted == KEPT.keys()


@pytest.mark.slow
def test_a_few_runs_cost_and_give_away_what_was_planned():
    """20 pairs: too few for a bound, and enough to see that statistics lie where mu says (the standard error of their
    distance is .34) and that the ledger charged for what it stores."""
    absent, present, charged = attacked(KEPT[HISTOGRAMS], 20)
    assert charged == pytest.approx(MU, rel=2e-3)
    assert 0.3 < distance_of(absent, present) < MU + 4 * 0.34


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("name", KEPT)
def test_what_the_ledger_stores_gives_away_no_more_than_it_charged(name):
    absent, present, charged = attacked(KEPT[name], 600)
    shown = mu_lower_bound(absent, present)
    print(f"mu >= {shown:.3f} of {charged:.3f}")
    assert charged == pytest.approx(MU, rel=2e-3) and 0.4 < shown <= charged


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("sabotage", ["half of the noise", "half of the sensitivity"])
@pytest.mark.parametrize("method", ["histograms", "federated_em", "private_gmm"])
def test_half_of_what_is_paid_for_is_seen(method, sabotage):
    kept = KEPT[f"{method}, client, add_or_remove_one"]
    if sabotage == "half of the noise":
        absent, present, charged = attacked(kept, 600, HalfScale)
    else:
        with half_sensitivity():
            absent, present, charged = attacked(kept, 600)
    assert np.isfinite(absent).all() and mu_lower_bound(absent, present) > charged
