"""Some days of the simulated month (`tests.faults.month`); the whole of it is a command."""

from collections import Counter

import pytest

from tests.faults.month import FAULTS, STEPS, month, plan


def test_a_month_has_every_fault():
    days = plan(30, 1)
    assert Counter(day.fault for day in days).keys() == set(FAULTS)
    assert {day.step for day in days if day.fault == "flow"} <= set(STEPS)
    assert plan(30, 1) == days != plan(30, 2)


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_one_day(tmp_path):
    days, told = month(tmp_path, 1, 1)
    assert len(days) == 1 and sum(told["faults"].values()) == 1 and told["refused"] == 0


@pytest.mark.heavy
@pytest.mark.prefect
def test_four_days(tmp_path):
    days, told = month(tmp_path, 4, 1)
    assert told["faults"] == {name: 1 for name in FAULTS} and told["refused"] == 0
