"""Some weeks of the simulated year (`tests.faults.year`); the whole of it is a command."""

import pytest

from tests.faults.year import HORIZON, KINDS, year
from tests.faults.year_plan import plan


def test_a_year_has_every_event():
    weeks = plan(52, 1)
    assert weeks == plan(52, 1) != plan(52, 2)
    there: set[str] = set()
    came_back = with_more = 0
    for week in weeks:
        known = {client for one in weeks[: week.number] for client in one.come}
        came_back += len(known & week.come.keys() - there)
        with_more += len(there & week.come.keys())
        there |= week.come.keys()
        there -= set(week.leave)
    assert came_back > 5 and with_more > 10
    assert any(week.untraced for week in weeks) and any(week.aged for week in weeks)
    assert sum(not week.come for week in weeks) > 5, "weeks to which nobody came"
    assert {name for week in weeks for name, times in week.faults.items() if times} == {
        "convert",
        "append",
        "forget",
        "train",
    }


@pytest.mark.heavy
@pytest.mark.slow
def test_some_weeks(tmp_path):
    told = year(tmp_path, 6, 1)
    assert told["faults"].keys() == set(KINDS) and told["grown meanwhile"] and told["refused to forget"]
    assert told["weeks"] == 6 > HORIZON and told["clients who gave all but a run"]


@pytest.mark.slow
@pytest.mark.heavy
def test_a_year(tmp_path):
    told = year(tmp_path, 52, 1)
    assert told["weeks"] == 52 and told["waited"] and told["lost draws"] and min(told["faults"].values()) > 3
