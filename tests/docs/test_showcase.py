"""What the Prefect UI is sent, and how often: by a clock that the tests move, without a server."""

from types import SimpleNamespace
from uuid import uuid4

import pytest
from fedcore.tasks import artifacts, schedules

from fedcore.training.session import concluding
from tests import sessions
from tests.conftest import small_counts, write_counts
from tests.sessions import to_end


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(artifacts, "time", clock)
    return clock


@pytest.fixture
def sent(monkeypatch, clock):
    """(kind, what) of every artifact that was sent; `slow` seconds pass with each table, and with each drawing."""
    told, slow = [], {"table": 0.0, "figures": 0.0}

    def table(table, key, description):
        clock.now += slow["table"]
        told.append((key.split("-")[0], table))

    def drawn(run, vocabulary):
        clock.now += slow["figures"]
        told.append(("drawn", run.round))
        return {}

    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda **given: "id")
    monkeypatch.setattr(
        artifacts, "update_progress_artifact", lambda id, progress, description: told.append(("progress", progress))
    )
    monkeypatch.setattr(artifacts, "create_table_artifact", table)
    monkeypatch.setattr(
        artifacts,
        "create_markdown_artifact",
        lambda markdown, key, description: told.append((key.split("-")[0], markdown)),
    )
    monkeypatch.setattr(artifacts, "run_figures", drawn)
    return told, slow


@pytest.fixture
def session(tmp_path):
    write_counts(tmp_path / "population", small_counts(40))
    settings = {"algorithm": "algorithm2", "clusters": 2, "rounds": 12}
    session = sessions.begin(tmp_path / "population", tmp_path, settings=settings, run_id=None, stamp="")
    yield session
    session.close()


def kinds(told) -> list[str]:
    return [kind for kind, _ in told]


def test_progress_is_shown_from_the_first_round_and_every_few_seconds(session, sent, clock):
    told, _ = sent
    show = artifacts.Showcase(session)
    session.training.step()
    show.progress()
    assert kinds(told) == ["progress", "metrics"] and told[0][1] > 0
    for _ in range(4):
        clock.now += artifacts.SECONDS_BETWEEN / 2
        session.training.step()
        show.progress()
    shown = [percent for kind, percent in told if kind == "progress"]
    assert len(shown) == 3 and shown == sorted(shown) and len(told[-1][1]) == 5  # rows of the last table


def test_slow_tables_and_figures_come_less_often_and_progress_as_often_as_before(session, sent, clock):
    told, slow = sent
    slow |= {"table": 0.2, "figures": 2.0}
    session.training.step()
    show, began = artifacts.Showcase(session), clock.now
    while clock.now < began + 1000:
        show.progress()
        clock.now += artifacts.SECONDS_BETWEEN
    assert kinds(told).count("progress") > 0.9 * 1000 / artifacts.SECONDS_BETWEEN
    for kind, seconds in (("metrics", 0.2), ("drawn", 2.0)):
        shown = kinds(told).count(kind)
        assert 3 <= shown and shown * seconds <= 1.1 * artifacts.SHARE * 1000 + seconds


def test_the_end_is_shown_whole_whatever_was_shown_before_and_drawn_once(session, sent, clock):
    told, slow = sent
    slow |= {"table": 50.0, "figures": 50.0}
    show = artifacts.Showcase(session)
    with concluding(session):
        while session.training.step() is not None:
            show.progress()
    del told[:]
    assert show.report(session.run) == []
    assert kinds(told) == ["progress", "metrics", "drawn", "report"]
    assert told[0] == ("progress", 100.0) and len(told[1][1]) == session.run.round
    assert session.run.id in (session.run.path / "report.html").read_text()


def test_what_cannot_be_shown_is_told_and_no_error(session, sent, monkeypatch):
    told, _ = sent
    show = artifacts.Showcase(session)
    session.training.step()

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifacts, "run_figures", fails)
    monkeypatch.setattr(artifacts, "update_progress_artifact", fails)
    monkeypatch.setattr("fedcore.evaluation.report.run_figures", fails)
    (progress,) = show.progress()
    assert "progress" not in kinds(told) and "metrics" in kinds(told) and "No space left" in progress
    to_end(session)
    progress, figures, report = show.report(session.run)
    assert "Prefect UI" in figures and f"`fedcore report {session.run.path}`" in report and "No space left" in report
    assert not (session.run.path / "report.html").exists()


class Server:
    """Deployments by id, and their scheduled starts; as much of Prefect's client as is asked."""

    def __init__(self, deployments, starts):
        self.deployments, self.starts, self.asked = deployments, starts, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read_deployments(self, limit):
        return self.deployments

    def read_flow_runs(self, flow_run_filter, sort, limit):
        self.asked = flow_run_filter.deployment_id.any_
        return [SimpleNamespace(deployment_id=id, expected_start_time=start) for id, start in self.starts]


def test_starts_are_those_that_the_server_has_scheduled_on_the_population(monkeypatch):
    mine, other, paused = (uuid4() for _ in range(3))
    deployments = [
        SimpleNamespace(id=mine, name="nightly", parameters={"population": "p"}, paused=False),
        SimpleNamespace(id=other, name="elsewhere", parameters={"population": "q"}, paused=False),
        SimpleNamespace(id=paused, name="paused", parameters={"population": "p"}, paused=True),
    ]
    server = Server(deployments, [(mine, 1), (mine, 2), (mine, None)])
    monkeypatch.setattr(schedules, "get_client", lambda sync_client: server)
    assert schedules.scheduled_starts("p") == {"nightly": [1, 2]} and server.asked == [mine]
    assert schedules.scheduled_starts("nowhere") == {}


def test_artifacts_are_named_by_deployment(session):
    run = session.run
    id = run.info["population"]["id"][:8]
    assert artifacts.name_of(run) == f"paper_histograms-population-{id}"
    run.info["deployment"] = "nightly"
    assert artifacts.name_of(run) == "nightly"


def test_metrics_of_raw_statistics_are_not_in_the_table_of_a_private_run(session, sent, monkeypatch):
    session.training.step()
    session.training.step()
    assert any("objective" in row for row in session.run.metrics())
    monkeypatch.setitem(session.run.info, "private", True)
    artifacts.Showcase(session).progress()
    (table,) = [what for kind, what in sent[0] if kind == "metrics"]
    assert table and not any("objective" in row for row in table)


def test_the_table_of_metrics_has_the_columns_of_all_rounds(session, sent, monkeypatch):
    rows = [{"round": 1, "clients": 40, "seconds_round": 1.0}, {"round": 2, "movement": 0.5, "seconds_round": 2.0}]
    monkeypatch.setattr(artifacts, "shown_metrics", lambda run: rows)
    session.training.step()
    artifacts.Showcase(session).progress()
    (table,) = [what for kind, what in sent[0] if kind == "metrics"]
    assert [list(row) for row in table] == [["round", "clients", "movement", "seconds_round"]] * 2
    assert table[0]["movement"] is None and table[1] == {
        "round": 2,
        "clients": None,
        "movement": 0.5,
        "seconds_round": 2.0,
    }
