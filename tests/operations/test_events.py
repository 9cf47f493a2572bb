"""What an operator is told of: what events say, and when a budget is low."""

import json
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from fedcore.tasks.events import as_json, emit

from fedcore.errors import ConfigError
from fedcore.operations import events
from fedcore.operations.budget_left import BudgetLeft, budget_left, runs_that_fit
from fedcore.operations.deployment import read_file
from fedcore.operations.hanging import hanging_runs
from fedcore.operations.monitoring import Monitoring
from fedcore.operations.schedule import Schedule
from fedcore.population.store import Population
from fedcore.runs.store import Run, list_runs
from fedcore.training.budget import begin_cohorts
from fedcore.training.request import Series
from tests import sessions
from tests.command import private_population
from tests.conftest import small_counts, write_counts
from tests.operations.test_deployment import ENTRY
from tests.sessions import to_end


def trained(population, folder, number, deployment="weekly", finish=True, share=None, **settings):
    """A finished run of the deployment, and what is left then."""
    settings = {"clusters": 2, "rounds": 1, **({} if "algorithm" in settings else {"anyway": True}), **settings}
    named = {"run_id": f"r{number}", "deployment": deployment, "series": Series() if deployment else None}
    named |= {"share": share, "runs": str(folder), "stamp": f"202601{number + 1:02d}T030000"}
    session = sessions.begin(population, folder, settings=settings, **named)
    to_end(session)
    return session, budget_left(session)


@pytest.mark.slow
def test_a_budget_becomes_low_once(tmp_path):
    """Of six equal runs the budget pays five; with the third one two are left, and nobody is told again after that."""
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=1.0)
    epsilon = ledger.balance(population.id).budget.epsilon_of(ledger.balance(population.id).budget.rho_max / 5.5)
    left = [trained(population, tmp_path / "runs", number, epsilon=epsilon)[1] for number in range(5)]
    assert [found.runs_left for found in left] == [4, 3, 2, 1, 0]
    assert [found.before for found in left] == [None, 4, 3, 2, 1]
    assert [found.falls_to(2) for found in left] == [False, False, True, False, False]
    assert [found.days_left for found in left] == [None, 3.0, 2.0, 1.0, 0.0]
    spent = ledger.balance(population.id)
    assert sum(found.rho_charged for found in left) == pytest.approx(spent.rho_spent, rel=1e-12)
    assert left[-1].rho_left == spent.rho_left and "No other run of this cost fits" in left[-1].in_words
    ledger.raise_budget(population.id, 2.0, 1e-6)
    _, raised = trained(population, tmp_path / "runs", 5, epsilon=epsilon)
    assert raised.before == 0 and raised.runs_left > 5 and not raised.falls_to(2)


@pytest.mark.slow
def test_a_share_becomes_low_though_the_budget_does_not(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=1.0)
    budget = ledger.balance(population.id).budget
    epsilon = budget.epsilon_of(budget.rho_max / 5.5)
    _, whole = trained(population, tmp_path / "runs", 0, epsilon=epsilon)
    ledger.divide(population.id, {"a": Fraction(1, 2)})  # which pays for two runs and a half
    left = [trained(population, tmp_path / "runs", number, share="a", epsilon=epsilon)[1] for number in (1, 2)]
    assert whole.runs_left == 4 and [found.runs_left for found in left] == [1, 0]
    assert [found.falls_to(1) for found in left] == [True, False]
    share = ledger.balance(population.id).of_share("a")
    assert (left[-1].rho_left, left[-1].rho_max) == (share.rho_left, share.budget.rho_max)
    assert "No other run of this cost fits" in left[-1].in_words and "share 'a' of the budget" in left[-1].in_words
    session, _ = trained(population, tmp_path / "runs", 3, epsilon=epsilon)  # of what is undivided
    ledger.divide(population.id, {"b": Fraction(1, 10)})
    assert runs_that_fit(session.spec, ledger.balance(population.id)) == 0 < whole.runs_left


@pytest.mark.slow
def test_another_deployment_may_have_spent_the_rest(tmp_path):
    """The one that was told of more runs before is told that they are gone, with its own next run."""
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=1.0)
    budget = ledger.balance(population.id).budget
    epsilon = budget.epsilon_of(budget.rho_max / 5.5)
    _, first = trained(population, tmp_path / "runs", 0, epsilon=epsilon)
    for number in (1, 2):
        trained(population, tmp_path / "runs", number, deployment="other", epsilon=epsilon)
    _, second = trained(population, tmp_path / "runs", 3, epsilon=epsilon)
    assert (first.runs_left, second.before, second.runs_left) == (4, 4, 1) and second.falls_to(2)


def test_the_first_run_of_a_deployment_may_be_told_at_once(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts(), epsilon=1.0)
    _, everything = trained(population, tmp_path / "runs", 0)
    assert (everything.before, everything.runs_left) == (None, 0) and everything.falls_to(0)


@pytest.mark.slow
def test_a_run_of_no_deployment_compares_with_what_it_found(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=1.0)
    budget = ledger.balance(population.id).budget
    epsilon = budget.epsilon_of(budget.rho_max / 3.5)
    left = [trained(population, tmp_path / "runs", n, None, epsilon=epsilon)[1] for n in range(3)]
    assert [(found.before, found.runs_left) for found in left] == [(3, 2), (2, 1), (1, 0)]
    assert left[0].days_left is None


@pytest.mark.slow
def test_a_schedule_of_a_horizon_is_low_when_nobody_comes(tmp_path):
    """Runs that some cohort can pay for: the horizon, less those that the newest cohort has taken part in."""
    population, ledger = private_population(tmp_path / "p", small_counts())
    begin_cohorts(population, ledger)
    population = Population.open(population.path)
    left = [trained(population, tmp_path / "runs", number, horizon=3)[1] for number in range(3)]
    assert [found.runs_left for found in left] == [2, 1, 0]
    assert [found.falls_to(1) for found in left] == [False, True, False]


def test_a_run_that_is_not_private_has_no_budget(tmp_path):
    population = write_counts(tmp_path / "p", small_counts())
    assert trained(population, tmp_path / "runs", 0, algorithm="algorithm2")[1] is None


def test_what_events_say(tmp_path):
    """Facts for operators, as JSON, about resources whose ids stay the same."""
    population, _ = private_population(tmp_path / "p", small_counts(), epsilon=1.0)
    session, left = trained(population, tmp_path / "runs", 0)
    run = Run.open(session.run.path)
    charged, low = events.budget_events(run, population, left, 5)
    told = {event.name: as_json(event) for event in (charged, low)}
    assert list(told) == ["fedcore.budget.charged", "fedcore.budget.low"]
    for event in told.values():
        assert event["resource"] == {
            "prefect.resource.id": f"fedcore.population.{population.id}",
            "prefect.resource.name": "p",
        }
        ids = [(other["prefect.resource.id"], other["prefect.resource.role"]) for other in event["related"]]
        assert ids == [("fedcore.run.r0", "fedcore-run"), ("fedcore.deployment.weekly", "fedcore-deployment")]
        assert json.loads(json.dumps(event)) == event and event["payload"]["message"]
    assert told["fedcore.budget.low"]["payload"]["threshold"] == 5
    assert told["fedcore.budget.low"]["payload"]["runs_left"] == 0
    assert told["fedcore.budget.charged"]["payload"].keys() == {
        *("population", "run", "deployment", "message", "rho_charged", "rho_spent", "rho_left", "rho_max"),
        *("epsilon", "delta", "runs_left", "days_left"),
    }
    promoted = as_json(events.run_promoted(run, "weekly", "it is the first one"))
    assert promoted["resource"]["prefect.resource.id"] == "fedcore.run.r0"
    assert promoted["related"][0]["prefect.resource.name"] == "p"
    refused = as_json(events.run_refused(ConfigError("no.", "do."), "m", tmp_path / "gone", None, None))
    assert refused["resource"]["prefect.resource.id"] == "fedcore.place.gone"
    assert refused["payload"]["message"] == "A run of m on population gone was refused: no. do."


def test_an_event_that_cannot_be_sent_is_nobodys_failure(monkeypatch):
    import prefect.events

    def fails(**_):
        raise OSError("no server")

    monkeypatch.setattr(prefect.events, "emit_event", fails)
    emit([events.Event(events.PROMOTED, events.Subject("run", "r", "r"))])


@pytest.mark.parametrize(
    "text, words",
    [
        ("[notify]\nwebhook = 'http://a'\nevents = ['fedcore.budget.lo']\n" + ENTRY, "there is no event"),
        (
            "[notify]\nwebhook = 'http://a'\nevents = ['fedcore.population.appended']\n" + ENTRY,
            "is an event of pipelines",
        ),
        ("[monitoring]\nruns_left = -1\n" + ENTRY, "monitoring.runs_left"),
        ("[monitoring]\ncolour = 1\n" + ENTRY, "'monitoring.colour' is not a setting"),
        (ENTRY + "[deployment.monitoring]\nruns_left = 'x'\n", "deployment.0.monitoring.runs_left"),
    ],
)
def test_what_a_file_may_not_say(tmp_path, text, words):
    (tmp_path / "d.toml").write_text(text)
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        read_file(tmp_path / "d.toml")


def test_a_deployment_may_have_monitoring_of_its_own(tmp_path):
    from fedcore.flows.serve import to_deployment

    text = "[monitoring]\nruns_left = 3\n" + ENTRY + ENTRY.replace('"a"', '"b"')
    (tmp_path / "d.toml").write_text(text + "[deployment.monitoring]\nruns_left = 9\n")
    content = read_file(tmp_path / "d.toml")
    assert [item.monitoring.runs_left for item in content.deployment] == [3, 9]
    assert to_deployment(content.deployment[1]).parameters["monitoring"] == {"runs_left": 9, "metrics_file": None}
    told = BudgetLeft(0.1, 0.1, 0.9, 1.0, 1.0, 1e-6, 9, None, None)
    assert told.falls_to(content.deployment[1].monitoring.of_run("b").runs_left)


@pytest.mark.parametrize(
    "schedule, until, last",
    [
        ({"cron": "0 3 * * *"}, "2026-03-02T12:00", "2026-03-02T03:00"),
        ({"cron": "0 3 * * *"}, "2026-03-02T02:59", "2026-03-01T03:00"),
        ({"cron": "0 3 * * *", "timezone": "Europe/Berlin"}, "2026-03-02T02:30", "2026-03-02T02:00"),
        ({"cron": "*/5 * * * *"}, "2026-03-02T12:03", "2026-03-02T12:00"),
        ({"cron": "0 0 1 1 *"}, "2026-03-02T12:00", "2026-01-01T00:00"),
        ({"rrule": "FREQ=WEEKLY;BYDAY=MO;BYHOUR=4;BYMINUTE=15;BYSECOND=0"}, "2026-03-08T12:00", "2026-03-02T04:15"),
    ],
)
def test_the_last_time_of_a_schedule(schedule, until, last):
    from fedcore.flows.watch import last_time

    at = last_time(Schedule(**schedule), datetime.fromisoformat(until).replace(tzinfo=UTC))
    assert at == datetime.fromisoformat(last).replace(tzinfo=UTC)
    assert at - timedelta(seconds=1) < at  # both have a zone


def test_when_a_run_hangs(tmp_path):
    """Longer than ten of its rounds without another one, and never within `patience`; finished runs do not hang."""
    population = write_counts(tmp_path / "p", small_counts())
    trained(population, tmp_path / "runs", 0, algorithm="algorithm2")
    settings = {"algorithm": "algorithm2", "clusters": 2, "rounds": 3}
    named = {"run_id": "now", "deployment": "weekly", "series": Series(), "stamp": "20260201T030000"}
    session = sessions.begin(population, tmp_path, settings=settings, **named)
    begun = (session.run.path / "head.json").stat().st_mtime

    def found(seconds, patience=60.0, hanging=10.0, name="weekly"):
        watched = Monitoring(patience=patience, hanging=hanging)
        return list(hanging_runs(list_runs(tmp_path / "runs"), name, watched, begun + seconds))

    assert found(59) == [] and found(61, name="other") == []
    (one,) = found(61)  # the finished run says how long rounds take
    assert one.run.id == "now" and one.held and one.usual is not None
    times = 100 / one.usual
    assert found(95, hanging=times) == [] and len(found(105, hanging=times)) == 1
    (tmp_path / "runs" / "r0" / "metrics.jsonl").unlink()
    assert found(599) == [] and [each.usual for each in found(601)] == [None]  # ten times `patience` then
    session.close()
    (left,) = found(601)
    assert not left.held and "To continue, run `fedcore resume" in left.in_words
    told = as_json(events.run_hanging(left))
    assert told["resource"]["prefect.resource.id"] == "fedcore.run.now" and told["payload"]["round"] == 0
