"""Versions that a deployment has missed: which they are, when they may be made up for, and how it is done."""

import sys

import pytest

from fedcore.errors import BudgetExceeded, ConfigError
from fedcore.operations.backfill import check_backfill, missing_versions, series_of
from fedcore.operations.deployment import Deployment
from fedcore.population.store import Population
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import list_runs
from fedcore.training.budget import begin_cohorts
from fedcore.training.request import Series, TrainRequest
from fedcore.training.session import start_run
from tests.command import fedcore, private_population, works
from tests.conftest import counts_method, small_counts, write_counts
from tests.flows.test_prefect import process
from tests.operations.test_events import trained
from tests.operations.test_monitoring import own_server  # noqa: F401  a fixture, which pytest finds by its name

EXACT = {"algorithm": "algorithm2", "clusters": 2, "rounds": 2}


FILE = """
[[deployment]]
name = "weekly"
method = "paper_histograms"
population = "p"
config = { algorithm = "algorithm2", clusters = 2, rounds = 2 }
"""


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A population of four versions, and a file of a deployment on it."""
    folder = tmp_path_factory.mktemp("grown")
    (folder / "d.toml").write_text(FILE)
    (folder / "words.txt").write_text("a\nb\n")
    columns = ("--client", "client", "--token", "token", "--count", "count")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
        patch.delenv("PREFECT_API_URL", raising=False)
        for number in range(4):
            rows = "".join(f"u{number}-{i},{'ab'[i % 2]},{1 + i}\n" for i in range(9))
            (folder / "day.csv").write_text("client,token,count\n" + rows)
            more = ["--append"] if number else ["--vocabulary", folder / "words.txt"]
            works("population", "ingest", folder / "day.csv", folder / "p", *columns, *more)
    return Population.open(folder / "p")


def deployed(population, folder, **given):
    given = {"runs": str(folder), "config": EXACT, **given}
    given = {"method": counts_method(given["config"]), **given}
    return Deployment(name="weekly", population=str(population.path), **given)


@pytest.mark.slow
def test_versions_without_a_run(grown, tmp_path):
    """A run that was interrupted can be resumed, so its version is not missing; those of others do not count."""
    item = deployed(grown, tmp_path / "runs")
    for name, version, ends in (("weekly", 1, True), ("weekly", 3, False), ("other", 2, True)):
        request = TrainRequest(
            method="paper_histograms",
            population=item.population,
            runs=item.runs,
            settings=EXACT,
            version=version,
            deployment=name,
            series=Series(),
        )
        session = start_run(request, InProcessBackend(), stamp="then")
        if ends:
            session.run.finish("finished")
        session.close()
    assert missing_versions(item, ((1, 4),)) == [2, 4] and missing_versions(item, ((3, 3),)) == []
    with pytest.raises(ConfigError, match="no versions 5-6; it has 1-4"):
        missing_versions(item, ((4, 6),))


@pytest.mark.slow
def test_what_is_not_made_up_for(tmp_path):
    """Private runs that do not all fit, those of a series, those of cohorts."""
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=1.0)
    budget = ledger.balance(population.id).budget
    config = {"clusters": 2, "rounds": 1, "anyway": True, "epsilon": budget.epsilon_of(budget.rho_max / 3.5)}
    item = deployed(population, tmp_path / "runs", config=config)
    check_backfill(item, [1, 2, 3])
    with pytest.raises(BudgetExceeded, match="4 runs of deployment 'weekly' .* has room for 3 of its runs"):
        check_backfill(item, [1, 2, 3, 4])
    trained(population, tmp_path / "runs", 0, epsilon=config["epsilon"])
    with pytest.raises(BudgetExceeded, match="room for 2"):
        check_backfill(item, [1, 2, 3])
    with pytest.raises(ConfigError, match="start from one another"):
        check_backfill(item.model_copy(update={"start_from": "previous"}), [1])
    begin_cohorts(population, ledger)
    with pytest.raises(ConfigError, match="kept by cohort"):
        check_backfill(item, [1])
    check_backfill(item.model_copy(update={"method": "paper_histograms", "config": EXACT}), [1, 2, 3, 4])  # not private


def test_such_runs_are_never_promoted_and_prune_nothing(tmp_path):
    given = {"evaluate_on": "q", "promote": "if_better", "tolerance": 0.5, "retention": 3}
    item = Deployment(name="a", method="histograms", population="p", **given)
    assert Series.model_validate(series_of(item).model_dump()) == Series(evaluate_on="q", promote="never")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("b", "--versions", "1"), "has no deployment 'b'"),
        (("weekly", "--versions", "new"), "is not like 3-7"),
        (("weekly", "--versions", "1-9"), "has no versions 2-9"),
        (("weekly", "--versions", "1"), "PREFECT_API_URL names no Prefect server"),
    ],
)
def test_what_the_command_refuses(tmp_path, monkeypatch, arguments, words):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    write_counts(tmp_path / "p", small_counts())
    (tmp_path / "d.toml").write_text(FILE)
    refused = fedcore("backfill", tmp_path / "d.toml", *arguments)
    assert refused.code == 2 and words in refused.err
    dry = works("backfill", tmp_path / "d.toml", "weekly", "--versions", "1", "--dry-run", "--json")
    assert dry.json == {"missing": [1], "runs": [], "dry_run": True}


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.prefect
def test_a_worker_makes_up_for_missed_versions(own_server, grown, tmp_path, monkeypatch):  # noqa: F811  the same
    folder = grown.path.parent
    monkeypatch.setenv("PREFECT_API_URL", own_server + "/api")
    works("deploy", folder / "d.toml", "--pool", "old")
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "old"]
    with process(tmp_path / "log", *command, PREFECT_API_URL=own_server + "/api"):
        done = works("backfill", folder / "d.toml", "weekly", "--versions", "2-3", "--json").json
        assert [(run["version"], run["state"]) for run in done["runs"]] == [(2, "Completed"), (3, "Completed")]
        again = works("backfill", folder / "d.toml", "weekly", "--versions", "2-3", "--json").json
        assert again["missing"] == [] and again["runs"] == []
    runs = list_runs(folder / "runs")
    assert sorted(run.info["population"]["version"] for run in runs) == [2, 3]
    assert not (folder / "runs" / "latest-weekly.json").exists()
