"""Old artifacts of fedcore's flow runs are removed; the newest of each key, and those of other flows, stay."""

from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest
from fedcore.flows import dead, pruning

from fedcore.methods.names import OWN
from tests.flows.test_prefect import ask, prefect_server

__all__ = ["prefect_server"]


def ended(server: str, flow: str, keys: list[str]) -> None:
    """A flow run of this flow that has ended, with an artifact of each key."""
    id = ask(server, "/flows/", {"name": flow})["id"]
    run = ask(server, "/flow_runs/", {"flow_id": id, "state": {"type": "PENDING"}})["id"]
    for state in ("RUNNING", "COMPLETED"):
        ask(server, f"/flow_runs/{run}/set_state", {"state": {"type": state}, "force": True})
    for key in keys:
        ask(server, "/artifacts/", {"key": key, "type": "markdown", "data": "# page", "flow_run_id": run})


def kept(server: str) -> list[str]:
    return sorted(one["key"] for one in ask(server, "/artifacts/filter", {"limit": 200}))


@pytest.mark.slow
@pytest.mark.prefect
def test_old_artifacts_are_removed_but_for_the_newest_of_each(prefect_server):
    for _ in range(3):
        ended(prefect_server, "train-histograms", ["report-a", "population-b"])
        ended(prefect_server, "somebody-elses", ["other"])
    before, address, now = kept(prefect_server), f"{prefect_server}/api", datetime.now(UTC)
    assert before == ["other"] * 3 + ["population-b"] * 3 + ["report-a"] * 3
    assert pruning.prune(address, 1.0, now) == 0 and kept(prefect_server) == before
    assert pruning.prune(address, 1.0, now + timedelta(days=2)) == 4
    assert kept(prefect_server) == ["other"] * 3 + ["population-b", "report-a"]
    assert pruning.prune(address, 1.0, now + timedelta(days=2)) == 0


def test_the_flows_are_named_as_they_are():
    training, pipeline = import_module("fedcore.flows.train"), import_module("fedcore.flows.pipeline")
    made = [pipeline.pipeline_flow, training.resume_run, import_module("fedcore.flows.evaluate").evaluate_run_flow]
    made += [*pipeline.STEPS.values(), *(training.FLOWS[name] for name in OWN)]
    assert {flow.name for flow in made} <= {*dead.flow_names()}
    more = [import_module("fedcore.flows.ingest").ingest_flow, import_module("fedcore.flows.sites").site_run]
    assert {flow.name for flow in more} == {*dead.MORE}


def test_the_server_forgets_events_that_hold_whole_artifacts():
    from prefect.settings import get_current_settings

    found = get_current_settings().server.services.db_vacuum.event_retention_overrides
    assert found["prefect.artifact-collection.updated"] == timedelta(hours=1)
    assert found["prefect.flow-run.heartbeat"] == timedelta(days=7), "as Prefect has it"
