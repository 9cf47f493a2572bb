"""Days of a pipeline whose processes are killed at random equal undisturbed ones (`tests.pipelines.days`)."""

import pytest

from tests.pipelines import days


def test_a_plan_has_every_kind_of_day():
    planned = days.plan(60, seed=1)
    names = [name for day in planned for name in day.files]
    assert any(not day.files for day in planned) and any("again" in name for name in names)
    assert any("tok," in content for day in planned for content in day.files.values())
    assert len(names) == len(set(names)) + 1, "the damaged one comes again"
    assert any(f"{day.at:%Y-%m-%d}" > name[:10] for day in planned for name in day.files), "some are late"
    assert sum(len(day.killed) for day in planned) > 15


@pytest.mark.heavy
@pytest.mark.slow
def test_killed_days_equal_undisturbed_ones(tmp_path):
    days.lived(tmp_path / "days", days=4, seed=4, local=True)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.prefect
def test_killed_days_of_a_server_equal_undisturbed_ones(tmp_path):
    days.lived(tmp_path / "days", days=6, seed=2, local=False)
