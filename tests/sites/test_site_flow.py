"""A run of a study as flow runs of Prefect: the same totals, artifacts, and a state that names the missing sites."""

import pytest
from fedcore.flows.sites import site_run

from fedcore.errors import StudyError
from fedcore.operations.schedule import Compute
from fedcore.runs.store import Run
from fedcore.sites.joining import joined_studies
from fedcore.testing.bits import difference
from tests.flows.test_prefect import ask, prefect_server  # noqa: F401
from tests.sites.test_serve import A, B, C, Sites, own_cache  # noqa: F401
from tests.sites.world import NAMES, totals

pytestmark = [pytest.mark.slow, pytest.mark.prefect]


def test_a_site_makes_its_run_as_flow_runs(tmp_path, prefect_server):  # noqa: F811
    sites = Sites(tmp_path)
    (joined,) = joined_studies(sites.site(C))
    given = {"identity": str(sites.site(C)), "waits": 0.0, "compute": Compute(workers=1)}
    first = site_run(study=joined.name, **given)
    assert first["state"] == "waits" and A in first["words"] and B in first["words"]
    ended: dict[str, str] = {}
    for _ in range(60):
        ended |= {name: sites.turn(name).state for name in (A, B) if ended.get(name) != "finished"}
        if ended.get(C) != "finished":
            ended[C] = site_run(study=joined.name, **given)["state"]
        if set(ended.values()) == {"finished"}:
            break
    with pytest.raises(StudyError, match="has not joined"):
        site_run(study="another", **given)
    states = [run["state"] for run in ask(prefect_server, "/flow_runs/filter", {}) if run["name"].startswith("study-")]
    assert {state["name"] for state in states} == {"Waiting", "Completed", "Refused"}
    assert any(A in (state["message"] or "") for state in states if state["name"] == "Waiting")
    tasks = [run["state"] for run in ask(prefect_server, "/task_runs/filter", {})]
    assert {state["name"] for state in tasks} == {"Waiting", "Completed"}, "a task that waits has not failed"
    assert ask(prefect_server, "/artifacts/filter", {})
    runs = [Run.open(sites.path(name, 1)) for name in NAMES]
    assert [run.status for run in runs] == ["finished"] * 3
    assert not difference(totals(runs[0]), totals(runs[2]), "bits")
    assert (sites.path(C, 1) / "report.html").exists()
