"""What Prefect is asked for the overview: late starts, missed ones, the newest that ended badly, and one page."""

from datetime import UTC, datetime, timedelta

import pytest
from fedcore.flows import dead, overview

NOW = datetime(2026, 3, 1, 3, 10, tzinfo=UTC)


def flow_run(name, state, minutes, deployment="1", message=None, type=None):
    return {
        "id": name,
        "name": name,
        "state_name": state,
        "state_type": type or state.upper(),
        "state": {"message": message},
        "deployment_id": deployment,
        "expected_start_time": (NOW + timedelta(minutes=minutes)).isoformat(),
        "labels": {},
        "run_count": 1,
    }


class Server:
    """Answers as a Prefect server does. runs: its flow runs"""

    def __init__(self, *runs):
        self.runs, self.artifacts = runs, []

    def ask(self, address, path, body=None, method="POST"):
        if path == "/deployments/filter":
            return [{"id": "1", "name": "nightly"}, {"id": "2", "name": "weekly"}]
        if path == "/flow_runs/filter":
            assert body["flow_runs"]["parent_task_run_id"] == {"is_null_": True}
            wanted = body["flow_runs"]["state"]["type"]["any_"]
            found = [run for run in self.runs if run["state_type"] in wanted]
            return sorted(found, key=lambda run: run["expected_start_time"], reverse=True)
        if path == "/artifacts/latest/filter":
            keys = body["artifacts"]["key"]["any_"]
            return [{**one, "latest_id": one["id"]} for one in self.artifacts if one["key"] in keys]
        if path == "/artifacts/":
            self.artifacts.append({"id": "page", **body})
            return self.artifacts[-1]
        assert method == "PATCH" and path == "/artifacts/page"
        return self.artifacts[-1].update(body)


@pytest.fixture
def asked(monkeypatch):
    def with_runs(*runs):
        server = Server(*runs)
        for module in (dead, overview):
            monkeypatch.setattr(module, "ask", server.ask)
        return server

    return with_runs


def states(**more):
    return [
        (row["deployment"], row["flow_run"], row["state"]) for row in overview.seen("http://here/api", NOW)["flow_runs"]
    ]


def test_what_is_late_what_was_missed_and_what_ended_badly(asked):
    asked(
        flow_run("next", "Scheduled", 60),
        flow_run("in-time", "Scheduled", -0.1),
        flow_run("late", "Late", -5, type="SCHEDULED"),
        flow_run("works", "Running", -6, "2"),
        flow_run("missed-2", "Cancelled", -70, message=dead.LEFT_OUT),
        flow_run("missed-1", "Cancelled", -130, message=dead.LEFT_OUT),
        flow_run("refused", "Refused", -190, message="no budget", type="FAILED"),
        flow_run("older", "Crashed", -250),
        flow_run("by-a-person", "Cancelled", -60, "2"),
        flow_run("good", "Completed", -66, "2"),
        flow_run("bad-before", "Failed", -126, "2"),
        flow_run("alone", "Failed", -300, None),
    )
    assert states() == [
        ("weekly", "works", "Running"),
        ("nightly", "late", "Late"),
        ("nightly", "missed-2", "Missed"),
        ("nightly", "refused", "Refused"),
        (None, "alone", "Failed"),
    ]
    found = overview.seen("http://here/api", NOW)
    assert found["flow_runs"][2]["message"] == "2 starts were missed." and len(found["starts"]["nightly"]) == 1


def test_the_page_is_one_artifact_that_is_brought_up_to_date(asked, tmp_path):
    from fedcore.operations.deployment import read_file

    text = '[[deployment]]\nname = "nightly"\nmethod = "histograms"\npopulation = "none"\n'
    (tmp_path / "all.toml").write_text(text)
    content, server = read_file(tmp_path / "all.toml"), asked()
    assert overview.show(content, tmp_path / "all.toml", "http://here/api") == "page"
    assert overview.show(content, tmp_path / "all.toml", "http://here/api") == "page"
    (page,) = server.artifacts
    assert page["key"] == "overview-all" and page["type"] == "markdown" and "There is no population" in page["data"]


def test_a_deployment_that_is_about_to_be_registered_has_missed_nothing(tmp_path, monkeypatch):
    from fedcore.flows import watch

    from fedcore.operations.deployment import read_file

    monkeypatch.setattr(watch, "deployment_on", lambda item, address: None)
    monkeypatch.setattr(watch, "ask", lambda *given: {"events": []})
    monkeypatch.setattr(watch, "post", lambda events, address: True)
    text = '[[deployment]]\nname = "a"\nmethod = "histograms"\npopulation = "p"\nschedule = { interval = 30 }\n'
    (tmp_path / "all.toml").write_text(text)
    content = read_file(tmp_path / "all.toml")
    assert [event.name for event in watch.look(content, "http://here/api")] == ["fedcore.schedule.missed"]
    assert watch.look(content, "http://here/api", unknown=False) == []


def test_what_cannot_be_looked_for_is_a_line_of_log(caplog, monkeypatch):
    from fedcore.flows import watch

    def silent(*given, **named):
        raise OSError("no answer")

    monkeypatch.setattr(watch, "look", silent)
    with watch.watching(None, "http://here/api"):
        assert "stalled runs were not looked for: no answer" in caplog.text


def test_a_server_that_does_not_answer_is_a_line_of_log(tmp_path, caplog, monkeypatch):
    def silent(*given, **named):
        raise OSError("no answer")

    monkeypatch.setattr(overview, "show", silent)
    with overview.showing(None, tmp_path / "all.toml", "http://here") as page:
        assert page == ""
    assert "the overview in the Prefect UI is not up to date: no answer" in caplog.text
