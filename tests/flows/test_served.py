"""Runs that are killed while `fedcore up` serves them are not shown as Running (`tests.flows.served`)."""

import pytest

from tests.flows import served


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_killed_runs_are_not_shown_as_running(tmp_path):
    seen = served.lived(tmp_path / "served", runs=8, kills=6)
    assert sum(seen.states.values()) == 8 and seen.ups == 2
    assert max(seen.shown) < 60 and seen.sizes[1] < seen.sizes[0] and seen.removed > 0
