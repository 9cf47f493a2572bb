"""Each setting of `PrivateRunSettings` changes what a run spends or releases, or who takes part."""

import pytest

from fedcore.errors import Waiting
from fedcore.rounds.private_settings import PrivateRunSettings
from fedcore.training.request import TrainRequest
from fedcore.training.spec import open_inputs, resolve
from tests.command import private_population
from tests.conftest import small_counts
from tests.growing import Growing, ranges_of_run

# name: (other settings, what it is changed to)
CHANGES = {
    "epsilon": ({"epsilon": 1.0}, 2.0),
    "horizon": ({"horizon": 3}, 4),
    "at_least": ({"horizon": 3}, 10**6),
    "recent_cohorts": ({"horizon": 3}, 1),
    "cohorts": ({"horizon": 3}, "1"),
    "nominal_clients": ({}, 1_000_000),
    "spare_releases": ({"epsilon": 1.0}, 2),
}
REFUSED = "anyway"  # changes whether there is a run at all


def promised(folder, **settings):
    """What a run of histograms releases at which cost, who takes part, and what is reserved."""
    growing = Growing(folder, begin="horizon" in settings)
    growing.append("a", "b", "c")
    try:
        session = growing.begin(method="histograms", **settings)
    except Waiting:
        return "waits"
    ranges = ranges_of_run(session) if "horizon" in settings else ()
    return session.run.info["plan"], ranges, growing.ledger.balance(growing.population.id).rho_reserved


def test_all_settings_are_here():
    assert {*CHANGES, REFUSED} == {*PrivateRunSettings.model_fields}


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_of_the_budget_changes_what_is_spent(tmp_path, name):
    settings, value = CHANGES[name]
    one, other = promised(tmp_path / "one", **settings), promised(tmp_path / "other", **{**settings, name: value})
    assert one != other and one != "waits"


@pytest.mark.parametrize("anyway", [False, True])
def test_anyway_changes_whether_a_budget_of_no_use_is_spent(tmp_path, anyway):
    made, _ = private_population(tmp_path / "p", small_counts(20), epsilon=0.01)
    request = TrainRequest(method="histograms", population=str(made.path), settings={"anyway": anyway})
    assert resolve(request, open_inputs(request)).is_refused != anyway
