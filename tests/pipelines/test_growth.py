"""A private training is made by default when enough clients were declared since the last one, whatever came."""

import pytest

from fedcore.errors import ConfigError
from fedcore.operations.pipelines.growth import too_little
from fedcore.operations.pipelines.plan import expected
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import create_ledger
from fedcore.training.budget import begin_cohorts, ledger_of
from tests.command import works
from tests.pipelines.places import HEAD, INGEST, OPEN, PRIVATE, Place, day, step

HORIZON = PRIVATE.replace("epsilon = 0.5", "horizon = 4")
TRAIN = step("train", deployment="closed")


def place_of(folder, text: str, *, cohorts: bool = True) -> Place:
    """With a population of 12 declared clients, 8 of whom came, and a budget."""
    folder.mkdir(exist_ok=True)
    place = Place(folder, text)
    place.arrive("founders.csv", *(f"c{number}" + number * "x" for number in range(8)))
    Place(folder, text.split(TRAIN)[0]).run(1)
    Place(folder, text)
    population = Population.open(place.population)
    ledger = ledger_of(population)
    ledger.set_budget(population.id, 8.0, 1e-6)
    if cohorts:
        begin_cohorts(population, ledger)
    return place


def trained(place: Place, days) -> list[str]:
    """What became of the training on each of these days."""
    return [place.run(number)[-1].of("train-closed").status for number in days]


def spent(place: Place) -> float:
    population = Population.open(place.population)
    return ledger_of(population).balance(population.id).rho_spent


@pytest.mark.parametrize("cohorts", [True, False])
def test_an_upstream_that_is_down_costs_nothing_after_the_first_run(tmp_path, cohorts):
    text = HORIZON + HEAD + INGEST + "newcomers = 0\n" if cohorts else PRIVATE + HEAD + INGEST
    place = place_of(tmp_path / "a", text + TRAIN, cohorts=cohorts)
    assert trained(place, [2]) == ["done"]
    before = spent(place)
    assert trained(place, range(3, 8)) == ["skipped"] * 5 and spent(place) == before > 0
    said = place.run(8)[-1].of("train-closed").what
    assert said.startswith("0 clients were declared since run closed-20260102T030000Z, in which 12 took part")
    assert [row["when"] for row in expected(place.ready, day(9))] == ["always", "if_grown"]
    assert "do nothing: 0 clients" in expected(place.ready, day(9))[1]["would"]


def test_the_calendar_decides_where_the_file_says_always(tmp_path):
    always = step("train", deployment="closed", when="always")
    place = place_of(tmp_path / "a", HORIZON + HEAD + INGEST + "newcomers = 0\n" + always)
    assert trained(place, [2, 3, 4]) == ["done"] * 3


@pytest.mark.slow
def test_declared_clients_decide_and_neither_files_nor_clients(tmp_path, monkeypatch):
    """2 h g >= p: with a budget for 4 runs and 12 clients, one client a day is too few, and two days have enough."""
    worlds = {}
    for world in ("quiet", "busy"):
        url = f"sqlite:///{tmp_path / world}.sqlite"
        create_ledger(url)
        monkeypatch.setenv("FEDCORE_LEDGER", url)
        place = place_of(tmp_path / world, HORIZON + HEAD + INGEST + "newcomers = 1\n" + TRAIN)
        seen = []
        for number in range(2, 8):
            if world == "busy":
                place.arrive(f"{number}.csv", *(f"new {number} {each}" for each in range(5)))
            seen += trained(place, [number])
        worlds[world] = seen, spent(place)
    assert worlds["quiet"] == worlds["busy"]
    assert worlds["quiet"][0] == ["done", "skipped", "done", "skipped", "done", "skipped"]


@pytest.mark.slow
def test_a_schedule_whose_new_clients_replace_the_initial_ones_is_never_slowed_down(tmp_path):
    place = place_of(tmp_path / "a", HORIZON + HEAD + INGEST + "newcomers = 3\n" + TRAIN)
    assert trained(place, range(2, 8)) == ["done"] * 6
    assert "make run" in expected(place.ready, day(8))[1]["would"], "its cohort is opened before"


def test_a_run_that_was_begun_is_not_left_out(tmp_path):
    place = place_of(tmp_path / "a", HORIZON + HEAD + INGEST + "newcomers = 0\n" + TRAIN)
    trained(place, [2])
    (item,) = place.ready.deployments
    assert too_little(item, day(3)) and not too_little(item, day(2))


def test_the_operator_declares_more_clients_by_hand(tmp_path):
    place = place_of(tmp_path / "a", PRIVATE + HEAD + INGEST + TRAIN, cohorts=False)
    assert trained(place, [2, 3]) == ["done", "skipped"]
    (tmp_path / "more.csv").write_text("client,token,count\nz,1,1\n")
    more = ["--append", "--client", "client", "--nominal-clients", 24]
    works("population", "ingest", tmp_path / "more.csv", place.population, *more)
    assert trained(place, [4, 5]) == ["done", "skipped"]


def test_what_is_not_private_is_made_at_each_time_and_has_no_such_rule(tmp_path):
    assert Place(tmp_path, OPEN + HEAD + INGEST + step("train", deployment="open")).ready
    with pytest.raises(ConfigError, match="no private training"):
        _ = Place(tmp_path, OPEN + HEAD + INGEST + step("train", deployment="open", when="if_grown")).ready


def test_what_is_registered_says_nothing_of_a_default_that_earlier_workers_do_not_know(tmp_path):
    from fedcore.flows.serve import pipeline_deployment

    ready = Place(tmp_path, HORIZON + HEAD + INGEST + TRAIN).ready
    registered = pipeline_deployment(ready).parameters["ready"]
    assert "when" not in registered["pipeline"]["step"][1] and type(ready).model_validate(registered) == ready
