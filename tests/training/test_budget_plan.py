"""Budget planning: what it says fits, and its estimates agree with the plans that runs are made of."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import BudgetExceeded, BudgetMissing, ConfigError, PrivacyError, WrongKind
from fedcore.methods.histograms import HistogramsConfig
from fedcore.methods.histograms.sizes import expected_loss, in_words, mean_loss, part_of_mean
from fedcore.planning.budget_plan import SETTLED, equal_runs, planned_method, rounded_down, sketch_of
from fedcore.privacy.ledger.ledger import create_ledger
from tests import sessions
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts
from tests.federated_em.test_run import rows_population
from tests.histograms.run_in_memory import facts
from tests.sessions import to_end


@pytest.fixture
def place(tmp_path):
    """(population, ledger) of 50 clients that the owner calls a hundred thousand."""
    return private_population(tmp_path / "p", small_counts(), epsilon=8.0, nominal=100_000)


def planned(place, runs, epsilon=None, **settings):
    population, ledger = place
    return equal_runs(
        planned_method("histograms", settings, population), population, ledger.balance(population.id), runs, epsilon
    )


def test_equal_runs_fit_and_one_more_would_not(place, tmp_path):
    """The runs are made: each asks for the epsilon that the plan names."""
    population, ledger = place
    said = planned(place, 3, clusters=2, rounds=2, spare_releases=0)
    assert said["fits"] and said["runs_that_fit"] == 3
    settings = {"epsilon": said["epsilon_per_run"], "clusters": 2, "rounds": 2, "spare_releases": 0}
    for number in range(4):
        if number == 3:
            with pytest.raises(BudgetExceeded):
                sessions.begin(population, tmp_path, settings=settings, run_id=f"r{number}")
            break
        session = sessions.begin(population, tmp_path, settings=settings, run_id=f"r{number}")
        assert sum(item["rho"] for item in session.run.info["plan"]) == pytest.approx(said["rho_if_no_spare"])
        to_end(session)
    left = ledger.balance(population.id)
    assert 0 <= left.rho_left < said["rho_per_run"]


def test_spares_come_back_and_leave_room(place):
    said = planned(place, 4, spare_releases=1)
    assert said["rho_if_no_spare"] < said["rho_per_run"] and said["epsilon_if_no_spare"] < said["epsilon_per_run"]
    none = planned(place, 4, spare_releases=0)
    assert none["rho_if_no_spare"] == pytest.approx(none["rho_per_run"], rel=1e-6)


def test_an_epsilon_that_does_not_fit_so_often(place):
    said = planned(place, 10, epsilon=4.0)
    budget = place[1].balance(place[0].id).budget
    assert not said["fits"] and said["rho_per_run"] == budget.rho_of(4.0)
    assert said["runs_that_fit"] == math.floor(said["rho_left"] / said["rho_per_run"])
    assert planned(place, said["runs_that_fit"], epsilon=4.0)["fits"]


def test_the_sizes_are_those_of_the_runs(place):
    population, ledger = place
    said = planned(place, 2)
    method = planned_method("histograms", {}, population)
    plan, sketch, _ = sketch_of(method, population, ledger.balance(population.id), said["rho_per_run"])
    assert said["cold"]["releases"] == len(plan) == said["cold"]["rounds"] + 2
    assert said["warm"] == {**said["warm"], "rounds": 2, "releases": 2, "clusters": said["cold"]["clusters"]}
    assert said["warm"]["first_cells"] == said["warm"]["clusters"] and said["cold"]["first_cells"] == plan[2].shape[0]
    assert said["warm"]["loss_nats"] < said["cold"]["loss_nats"], "fewer rounds, less noise in each"
    assert sketch == said["cold"] and sketch["in_words"] == in_words(sketch["loss_nats"])


def test_the_last_run_of_a_series_is_planned_from_all_before_it(place):
    """Of runs of the same share: a series of more runs ends with more cells, or less noise in as many."""
    shown = [planned(place, runs, epsilon=0.005) for runs in (2, 3, 12, 40, 10_000)]
    assert "last" not in shown[0] and all(said["warm"] == shown[0]["warm"] for said in shown)
    ends = [said["last"] for said in shown[1:]]
    assert shown[0]["warm"]["strength"] < ends[0]["strength"] < ends[1]["strength"] < ends[2]["strength"]
    assert shown[0]["cold"]["clusters"] < ends[-1]["clusters"]
    # No run of an unchanged population forgets, and so many runs are planned one after the other.
    settled = math.sqrt(SETTLED) * shown[0]["cold"]["strength"]
    assert ends[-1]["strength"] == pytest.approx(settled, rel=1e-2)


def test_more_runs_buy_less(place):
    series = [planned(place, runs) for runs in (1, 4, 16, 64)]
    for fewer, more in zip(series, series[1:], strict=False):
        assert more["epsilon_per_run"] < fewer["epsilon_per_run"]
        assert more["cold"]["strength"] < fewer["cold"]["strength"]
        assert more["cold"]["clusters"] <= fewer["cold"]["clusters"]


def test_replace_one_buys_less(tmp_path):
    losses = []
    for relation in ("add_or_remove_one", "replace_one"):
        population, ledger = private_population(tmp_path / relation, small_counts(), epsilon=None, nominal=100_000)
        ledger.set_budget(population.id, 8.0, 1e-6, relation=relation)
        losses.append(planned((population, ledger), 1, clusters=3, rounds=4, overseed=3)["cold"])
    assert losses[1]["loss_nats"] == pytest.approx(2**0.825 * losses[0]["loss_nats"], rel=1e-3)
    assert losses[1]["strength"] == pytest.approx(losses[0]["strength"] / math.sqrt(2), rel=1e-3)


def test_the_loss_by_hand():
    """One mean spends 0.92 of the budget on F; of two cells each has 0.92, and F half of that and the 0.04 before."""
    assert part_of_mean(1) == pytest.approx(0.92) and part_of_mean(2) == pytest.approx(0.5)
    assert part_of_mean(4, cold=False) == 0.25
    assert mean_loss(2.0) == pytest.approx(0.0229 * 2**-1.65)


def test_a_larger_budget_never_seems_to_cost_more():
    def forecast(b):
        rho = (b * 3 * math.sqrt(8 * 1000) / 20_000) ** 2 / 2
        return expected_loss(HistogramsConfig(), facts(1000, rho=rho, nominal=20_000))

    strengths = [0.1 * 1.01**step for step in range(700)] + [4.0, 5.0, *(k / 0.45 for k in range(3, 10))]
    losses = [forecast(b)[1] for b in sorted(strengths)]
    assert losses == sorted(losses, reverse=True)


@given(st.floats(1e-6, 100))
def test_rounding_down(value):
    rounded = rounded_down(value)
    assert rounded <= value * (1 + 1e-15) and rounded >= value * (1 - 1.1e-3)
    assert float(f"{rounded:.4g}") == rounded


@given(st.floats(0.0, 1e9))
def test_every_loss_has_words(loss):
    assert in_words(loss)


def test_the_share_converts_to_no_more_than_it_may(place):
    said = planned(place, 7)
    budget = place[1].balance(place[0].id).budget
    assert 7 * budget.rho_of(said["epsilon_per_run"]) <= said["rho_left"]
    assert said["epsilon_left"] == budget.epsilon_of(said["rho_left"])


def test_what_cannot_be_planned(place, tmp_path):
    with pytest.raises(ConfigError, match="not private"):
        planned_method("paper_histograms", {}, place[0])
    with pytest.raises(ConfigError, match="at least 1"):
        planned(place, 0)
    with pytest.raises(BudgetMissing):
        planned(private_population(tmp_path / "q", small_counts(), epsilon=None), 3)


def test_the_command(place):
    population, ledger = place
    before = ledger.head(population.id)
    said = works("budget", "plan", population.path, "--runs", 5, "--json").json
    assert said["runs"] == 5 and said["fits"] and {"cold", "warm"} <= said.keys()
    text = works("budget", "plan", population.path, "--runs", 5, "--epsilon", 1, "--set", "clusters=4").out
    assert "epsilon_per_run" in text and "cold" in text and "warm" in text
    help = works("budget", "plan", "--help").out
    assert "cold" in help and "reserves nothing" in " ".join(help.split())
    refused = fedcore("budget", "plan", population.path, "--runs", 5, "--method", "paper_histograms")
    assert refused.code == 2 and "not private" in refused.err
    assert ledger.head(population.id) == before, "nothing is reserved"


def test_a_budget_that_the_method_has_no_argument_for_is_refused_by_plans_and_runs(tmp_path):
    population, ledger = private_population(tmp_path / "counts", small_counts(50), epsilon=None)
    ledger.set_budget(population.id, 8.0, 1e-6, unit="record")
    with pytest.raises(PrivacyError, match="one record"):
        equal_runs(planned_method("histograms", {}, population), population, ledger.balance(population.id), 3)
    for command in (
        ("plan", "histograms", population.path, "--local"),
        ("train", "histograms", population.path, "--local", "--runs", tmp_path / "runs"),
    ):
        outcome = fedcore(*command)
        assert outcome.code == 2 and "one record" in outcome.err
    assert not (tmp_path / "runs").exists()


def test_a_population_of_rows_has_no_plan_for_histograms(tmp_path):
    population = rows_population(tmp_path / "rows")
    ledger = create_ledger(f"sqlite:///{tmp_path / 'rows.sqlite'}")
    ledger.register(population.id)
    ledger.set_budget(population.id, 8.0, 1e-6)
    with pytest.raises(WrongKind, match="counts"):
        equal_runs(planned_method("histograms", {}, population), population, ledger.balance(population.id), 3)


def test_a_series_of_private_federated_em_is_planned_before_there_is_a_start(tmp_path):
    """Noise falls from run to run, as if the budget of single runs grew."""
    population = rows_population(tmp_path / "rows")
    ledger = create_ledger(f"sqlite:///{tmp_path / 'rows.sqlite'}")
    ledger.register(population.id)
    ledger.set_budget(population.id, 8.0, 1e-6)
    settings = {"algorithm": "private", "components": 3, "rounds": 5, "nominal_clients": 60}
    method = planned_method("federated_em", settings, population)
    said = equal_runs(method, population, ledger.balance(population.id), 20)
    sketches = [said[name] for name in ("cold", "warm", "last")]
    noise, budget = ([sketch[name] for sketch in sketches] for name in ("noise", "accumulated_rho"))
    assert noise[0] > noise[1] > noise[2] and budget[0] < budget[1] < budget[2]
    assert budget[0] == pytest.approx(said["rho_if_no_spare"], rel=1e-6)
