"""Sessions: the plan fits its share exactly, a run ends in one of the named ways, and ledger and run agree."""

import errno
import json
import os
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import (
    BudgetExceeded,
    BudgetMissing,
    ConfigError,
    LeaseLost,
    PrivacyError,
    RunBusy,
    RunError,
    WorkerFailed,
)
from fedcore.methods.histograms import Histograms
from fedcore.methods.registry import make_method
from fedcore.population.store import Population
from fedcore.privacy.accounting import exact_sum, make_budget
from fedcore.privacy.ledger.chain import make_balance
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.rounds.engine import InProcessBackend
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.statistics import values
from fedcore.runs.store import Run, load_run
from fedcore.storage import files
from fedcore.training import session as sessions
from fedcore.training.budget import ledger_name, ledger_of, plan_within_budget
from fedcore.training.session import abandon, concluding, resume
from tests import sessions as sessions_here
from tests.command import private_population
from tests.conftest import edit_record, small_counts, spec_of, write_counts
from tests.planning.test_run_plan import rows_with_a_budget
from tests.sessions import to_end

SMALL = {"clusters": 2, "rounds": 2}
RELEASES = 4  # of a run with SMALL


request_for, begin = partial(sessions_here.request_for, settings=SMALL), partial(sessions_here.begin, settings=SMALL)


def interrupted(session, rounds: int):
    """Some rounds, then Ctrl-C between two of them."""
    with pytest.raises(KeyboardInterrupt), concluding(session):
        for _ in range(rounds):
            session.training.step()
        raise KeyboardInterrupt


def bits(run) -> dict:
    state = load_run(run.path).state
    return {name: v.tobytes() if isinstance(v, np.ndarray) else v for name, v in state.items()}


# --- the plan and its share -----------------------------------------------------------------------------------------


def on_paper(budget, spent: float = 0.0, nominal: int = 1000, features: int = 30):
    """A population and a balance that exist for planning only."""
    balance = make_balance(
        "p", budget, "client", "add_or_remove_one", (Fraction(spent), Fraction(0), Fraction(0), Fraction(0)), {}, ()
    )
    manifest = SimpleNamespace(
        nominal_clients=nominal, cohorts=(), period=None, halves=None, records=False, one_whole=False, image=None
    )
    population = SimpleNamespace(
        path=Path("p"), id="p", kind="counts", features=features, clients_per_leaf=1024, n_clients=77, manifest=manifest
    )
    return population, balance


def price(plan, spares: int) -> Fraction:
    rhos = [planned.rho for planned in plan]
    return exact_sum(rhos) + spares * Fraction(max(rhos))


epsilons = st.floats(0.05, 40.0)
sizes = st.one_of(st.just({}), st.fixed_dictionaries({"clusters": st.integers(1, 12), "rounds": st.integers(2, 20)}))


@settings(max_examples=60, deadline=None)
@given(epsilons, st.floats(0.0, 0.9), st.integers(0, 10), sizes, st.integers(1, 10**7), st.booleans())
def test_plan_and_spares_never_cost_more_than_the_share(epsilon, spent, spares, sizes, nominal, all_that_is_left):
    budget = make_budget(epsilon, 1e-6)
    population, balance = on_paper(budget, spent * budget.rho_max, nominal)
    asked = None if all_that_is_left else epsilon * (1 - spent) / 2
    share = Fraction(balance.rho_left)
    if asked is not None:
        if budget.rho_of(asked) > share:
            return
        share = Fraction(budget.rho_of(asked))
    method = make_method("histograms", {"epsilon": asked, "spare_releases": spares, **sizes})
    plan, public, _ = plan_within_budget(method, population, balance, 0)
    assert price(plan, spares) <= share  # exactly: fractions
    assert plan == tuple(method.plan(public))
    if sizes:  # the prices are then proportional to rho, and nothing but rounding is wasted
        assert price(plan, spares) >= share * Fraction(1 - 1e-7)


def test_clustering_rounds_have_equal_prices_but_for_the_pooled_ones_and_equal_runs_equal_shares(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts(20))
    method = make_method("histograms", {"epsilon": 2.0, "clusters": 3, "rounds": 4})
    plan, public, _ = plan_within_budget(method, population, ledger.balance(population.id), 0)
    prices = [planned.rho for planned in plan]
    assert len(prices) == 6 and prices[2] == prices[3] and prices[4] == prices[5]
    rest = 0.92 / 6  # the sums of the last two rounds are added, and have twice the budget of an earlier one
    assert np.allclose(np.array(prices) / public.rho, [0.04, 0.04, rest, rest, 2 * rest, 2 * rest], rtol=1e-9)
    first = to_end(begin(population, tmp_path, run_id="a", settings={"epsilon": 2.0, **SMALL}))
    second = to_end(begin(population, tmp_path, run_id="b", settings={"epsilon": 2.0, **SMALL}))
    assert first.info["plan"] == second.info["plan"] and first.info["rho"] == second.info["rho"]


def test_the_whole_budget_may_be_asked_for_by_its_own_epsilon(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts(20), epsilon=3.0)
    method = make_method("histograms", {"epsilon": 3.0, "spare_releases": 0, **SMALL})
    plan, _, _ = plan_within_budget(method, population, ledger.balance(population.id), 0)
    assert price(plan, 0) <= Fraction(ledger.balance(population.id).rho_left)


def test_more_than_is_left_is_refused_with_what_would_fit():
    budget = make_budget(4.0, 1e-6)
    population, balance = on_paper(budget, spent=0.75 * budget.rho_max)
    method = make_method("histograms", {"epsilon": 3.0, **SMALL})
    with pytest.raises(BudgetExceeded, match=r"epsilon = 3.*Nothing was released") as refused:
        plan_within_budget(method, population, balance, 0)
    fits = float(refused.value.remedy.split("epsilon to ")[1].split()[0])
    smaller = make_method("histograms", {"epsilon": fits * 0.999, **SMALL})
    plan_within_budget(smaller, population, balance, 0)


def test_nothing_left_and_no_budget():
    budget = make_budget(4.0, 1e-6)
    method = make_method("histograms", SMALL)
    with pytest.raises(BudgetExceeded, match="used up"):
        plan_within_budget(method, *on_paper(budget, spent=budget.rho_max), 0)
    with pytest.raises(BudgetExceeded, match="used up"):  # what rounding left would buy noise only
        plan_within_budget(method, *on_paper(budget, spent=budget.rho_max * (1 - 1e-9)), 0)
    with pytest.raises(BudgetMissing, match="no privacy budget"):
        plan_within_budget(method, *on_paper(None), 0)


def test_an_interrupted_run_goes_on_in_its_share(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts(20))
    ledger.divide(population.id, {"a": Fraction(1, 2), "b": Fraction(1, 2)})
    settings = {"epsilon": 1.0, **SMALL}
    with pytest.raises(BudgetExceeded, match="the run names none"):
        begin(population, tmp_path, settings=settings)
    session = begin(population, tmp_path, settings=settings, share="a")
    interrupted(session, 1)
    run = to_end(resume(session.run.path, InProcessBackend()))
    spent = {share.name: share.rho_spent for share in ledger.verify(population.id).shares}
    assert spent["a"] > 0 == spent["b"] == spent[None]
    assert run.info["share"] == "a" and run.info["needs"] == ["shares"]
    with pytest.raises(ConfigError, match="not private"):
        begin(population, tmp_path, settings={"algorithm": "algorithm2", **SMALL}, share="a", run_id="s")


def test_a_share_edited_in_a_run_is_refused(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts(20))
    ledger.divide(population.id, {"a": Fraction(1, 2), "b": Fraction(1, 2)})
    session = begin(population, tmp_path, settings={"epsilon": 1.0, **SMALL}, share="a")
    interrupted(session, 1)
    edit_record(session.run.path, lambda info: info.update(share="b"))
    with pytest.raises(PrivacyError, match="another plan"):
        resume(session.run.path, InProcessBackend())
    assert ledger.verify(population.id).of_share("b").rho_reserved == 0


@pytest.mark.slow
def test_three_runs_of_a_third_fit_and_a_fourth_does_not(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts(20), epsilon=2.0)
    budget = ledger.balance(population.id).budget
    epsilon = 0.999 * budget.epsilon_of(budget.rho_max / 3)
    asked = {"epsilon": epsilon, "spare_releases": 0, **SMALL}
    for name in "abc":
        to_end(begin(population, tmp_path, run_id=name, settings=asked))
    with pytest.raises(BudgetExceeded):
        begin(population, tmp_path, run_id="d", settings=asked)
    balance = ledger.verify(population.id)
    assert Fraction(balance.rho_spent) <= Fraction(budget.rho_max)
    assert balance.rho_reserved == 0 and not (tmp_path / "runs" / "d").exists()


# --- a private run --------------------------------------------------------------------------------------------------


def same_as_in_the_ledger(run, ledger) -> dict:
    kept = run.releases()
    assert sorted(kept) == sorted(item["name"] for item in run.info["plan"])
    for name, value in kept.items():
        assert value.dtype == np.int64 and value.tobytes() == ledger.published(run.id, name).tobytes()
    return kept


def test_a_private_run_under_test_noise_claims_nothing(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts(), test=True)
    run = to_end(begin(population, tmp_path, test_noise="a key"))
    assert run.status == "finished" and run.round == RELEASES
    same_as_in_the_ledger(run, ledger)
    statement = json.loads((run.path / "statement.json").read_text())
    assert statement["privacy"] == "none" and not statement["private"]
    assert "test noise" in statement["reason"] and statement["releases"] == []
    assert statement["epsilon"] is None


def test_a_private_run_end_to_end(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts())
    session = begin(population, tmp_path, settings={"epsilon": 2.0, **SMALL})
    during = ledger.balance(population.id)
    assert during.rho_spent == 0 and during.rho_reserved == float(price(session.training.plan.values(), 0))
    run = to_end(session)
    balance = ledger.verify(population.id)
    assert balance.rho_reserved == 0 and balance.releases == {"published": RELEASES}
    assert balance.rho_spent == float(price(session.training.plan.values(), 0))
    assert ledger.run_status("r") == "finished"
    statement = json.loads((run.path / "statement.json").read_text())
    assert statement["privacy"] == "differential privacy"
    assert (statement["unit"], statement["relation"]) == ("client", "add_or_remove_one")
    assert statement["rho"] == balance.rho_spent and statement["delta"] <= 1e-6
    assert 0 < statement["epsilon"] <= 2.0
    assert [entry["name"] for entry in statement["releases"]] == list(session.training.plan)
    assert any("Numbers of clients" in line for line in statement["not_covered"])
    same_as_in_the_ledger(run, ledger)


def test_the_published_values_are_noised_and_the_noise_is_fresh(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts())
    session = begin(population, tmp_path, run_id="a", settings={"epsilon": 1.0, **SMALL})
    message = session.method.message(session.training.state)
    exact = values(session.training._map(message))["flat_mean"]
    first = to_end(session).releases()["flat_mean"]
    second = to_end(begin(population, tmp_path, run_id="b", settings={"epsilon": 1.0, **SMALL})).releases()["flat_mean"]
    assert first.shape == exact.shape and (first != exact).all() and (first != second).all()


def test_a_private_method_never_sees_the_number_of_clients(tmp_path, monkeypatch):
    seen = []
    for name in ("plan", "init"):
        original = getattr(Histograms, name)

        def spy(self, public, original=original):
            seen.append(public)
            return original(self, public)

        monkeypatch.setattr(Histograms, name, spy)
    population, _ = private_population(tmp_path / "p", small_counts(50))
    to_end(begin(population, tmp_path))
    assert len(seen) >= 2 and all(isinstance(public, PublicFacts) for public in seen)
    assert all(public.clients is None and public.nominal_clients == 1000 for public in seen)
    assert "50" not in json.dumps([vars_of(public) for public in seen])


def vars_of(public) -> dict:
    return {name: getattr(public, name) for name in PublicFacts.__dataclass_fields__ if name != "rho"}


def test_one_client_more_changes_neither_plan_nor_first_state(tmp_path):
    made = []
    for clients in (50, 51):
        ids = [f"{clients}-{client}" for client in range(clients)]  # other people, or both budgets need a declaration
        population, _ = private_population(tmp_path / str(clients), small_counts(clients), ids=ids)
        session = begin(population, tmp_path, run_id=f"r{clients}")
        made.append((session.run.info["plan"], session.run.info["rho"], bits(session.run)))
        session.close()
    assert made[0] == made[1]


def test_a_state_of_another_unit_is_not_resumed(tmp_path, monkeypatch):
    """By the unit in its state a method decides whether a client's rows count one by one."""
    population, _ = rows_with_a_budget(tmp_path / "p", 4.0)
    session = begin(population, tmp_path, method="private_mixture", settings={"epsilon": 1.0, "anyway": True})
    interrupted(session, 1)
    read = Run.read_state
    with monkeypatch.context() as patched, pytest.raises(RunError, match="states another unit"):
        patched.setattr(Run, "read_state", lambda run: {**read(run), "unit": "record"})
        resume(session.run.path, InProcessBackend())
    assert to_end(resume(session.run.path, InProcessBackend())).status == "finished"


def test_the_config_may_declare_the_nominal_size_and_wins(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts(), nominal=None)
    with pytest.raises(ConfigError, match="nominal"):
        spec_of(request_for(population, tmp_path))
    session = begin(population, tmp_path, settings={"nominal_clients": 123, **SMALL})
    assert session.run.info["nominal_clients"] == 123
    session.close()


def test_check_reserves_nothing_and_makes_nothing(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts())
    before = ledger.head(population.id)
    spec_of(request_for(population, tmp_path))
    assert ledger.head(population.id) == before and not (tmp_path / "runs").exists()


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["test noise", "not private"])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_run_interrupted_between_rounds_ends_in_the_same_bits(tmp_path, monkeypatch, kind, rounds):
    changes = {"settings": {"algorithm": "algorithm2", "clusters": 3, "rounds": 5}}
    if kind == "test noise":
        changes = {"test_noise": "a key"}
    runs = []
    for place in ("whole", "parts"):
        monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / place}.sqlite")
        population, ledger = private_population(tmp_path / place / "p", small_counts(), test=True)
        session = begin(population, tmp_path / place, **changes)
        if place == "whole":
            runs.append(to_end(session))
            continue
        interrupted(session, rounds)
        run = Run.open(tmp_path / place / "runs" / "r")
        assert run.status == "running" and run.round == rounds
        runs.append(to_end(resume(run.path, InProcessBackend())))
        if kind == "test noise":
            assert ledger.verify(population.id).releases == {"published": RELEASES}
    assert bits(runs[0]) == bits(runs[1]) and runs[1].status == "finished"
    assert len(load_run(runs[1].path).metrics) == len(load_run(runs[0].path).metrics)


@pytest.fixture
def parted(tmp_path):
    """(population, ledger, path) of a private run with one round of four, interrupted."""
    population, ledger = private_population(tmp_path / "p", small_counts())
    interrupted(begin(population, tmp_path, settings={"epsilon": 2.0, **SMALL}), 1)
    return population, ledger, tmp_path / "runs" / "r"


def test_another_kernel_is_refused(parted, monkeypatch):
    _, _, path = parted
    with monkeypatch.context() as changed:
        changed.setattr(Histograms, "arithmetic_version", "histograms-of-tomorrow")
        with pytest.raises(RunError, match="kernel") as refused:
            resume(path, InProcessBackend())
    assert refused.value.remedy
    assert to_end(resume(path, InProcessBackend())).status == "finished"  # the refusal kept no lock and changed nothing


def test_another_leaf_size_is_refused(parted):
    _, _, path = parted
    edit_record(path, lambda asked: asked["population"].update(clients_per_leaf=8))
    with pytest.raises(RunError, match="leaves of 8 clients"):
        resume(path, InProcessBackend())


def test_another_population_is_refused_and_a_moved_one_is_found(parted, tmp_path):
    population, _, path = parted
    other = write_counts(tmp_path / "other", small_counts())
    with pytest.raises(RunError, match="another population"):
        resume(path, InProcessBackend(), population=str(other.path))
    population.path.rename(tmp_path / "moved")
    assert to_end(resume(path, InProcessBackend(), population=str(tmp_path / "moved"))).status == "finished"


def test_an_ended_run_is_not_resumed(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts())
    run = to_end(begin(population, tmp_path))
    with pytest.raises(RunError, match="has ended"):
        resume(run.path, InProcessBackend())


def test_a_failed_run_keeps_its_reservation_and_goes_on(tmp_path, monkeypatch):
    population, ledger = private_population(tmp_path / "p", small_counts())
    session = begin(population, tmp_path)

    def fail(*_):
        raise WorkerFailed("block 0 failed.")

    with monkeypatch.context() as broken, pytest.raises(WorkerFailed), concluding(session):
        session.training.step()
        broken.setattr(session.training.backend, "map_blocks", fail, raising=False)
        session.training.step()
    run = Run.open(session.run.path)
    assert run.status == "failed" and run.round == 1
    assert ledger.balance(population.id).open_runs == ("r",) and ledger.balance(population.id).rho_reserved > 0
    assert to_end(resume(run.path, InProcessBackend())).status == "finished"


def interrupted_draw(tmp_path, monkeypatch, **settings):
    """(population, ledger, path) of a run of the whole budget that lost the value of its second release."""
    population, ledger = private_population(tmp_path / "p", small_counts())
    session = begin(population, tmp_path, settings=settings)

    def lost(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt), concluding(session):
        session.training.step()
        broken.setattr(SecureNoise, "draw", lost)
        session.training.step()
    return population, ledger, session.run.path


def test_a_lost_draw_that_nothing_can_pay_ends_the_run_as_exhausted(tmp_path, monkeypatch):
    population, ledger, path = interrupted_draw(tmp_path, monkeypatch, clusters=2, rounds=1)
    with pytest.raises(BudgetExceeded, match="no unreserved budget"):
        to_end(resume(path, InProcessBackend()))
    run = Run.open(path)
    assert run.status == "budget exhausted" and run.round == 1 and load_run(run.path).state["phase"] == "whitened"
    balance = ledger.verify(population.id)
    assert balance.rho_reserved == 0 and balance.releases == {"forfeited": 1, "published": 1, "returned": 1}
    statement = json.loads((run.path / "statement.json").read_text())
    assert statement["private"] and statement["rho"] == balance.rho_spent and len(statement["releases"]) == 2


def test_a_lost_draw_is_paid_by_the_last_round_where_the_run_can_do_without(tmp_path, monkeypatch):
    population, ledger, path = interrupted_draw(tmp_path, monkeypatch, clusters=2, rounds=2)
    to_end(resume(path, InProcessBackend()))
    run = Run.open(path)
    assert run.status == "finished" and run.round == 3  # of four
    balance = ledger.verify(population.id)
    assert balance.rho_reserved == 0 and balance.releases == {"forfeited": 1, "published": 3, "returned": 1}
    statement = json.loads((run.path / "statement.json").read_text())
    assert statement["private"] and statement["rho"] == balance.rho_spent and statement["given_up"] == 4
    assert load_run(run.path).state["centres"].shape == (2, 7)  # of use


# --- abandoning -----------------------------------------------------------------------------------------------------


def test_abandoning_returns_what_was_never_charged(parted):
    population, ledger, path = parted
    before = ledger.balance(population.id)
    assert before.rho_reserved > 0 and before.rho_spent > 0
    assert abandon(path).status == "abandoned"
    after = ledger.verify(population.id)
    assert after.rho_reserved == 0 and after.rho_spent == before.rho_spent
    assert after.rho_left > before.rho_left and after.open_runs == ()
    for again in (abandon, lambda path: resume(path, InProcessBackend())):
        with pytest.raises(RunError, match="abandoned"):
            again(path)


def test_an_abandoned_run_states_what_it_released(parted):
    population, ledger, path = parted
    abandon(path)
    statement = json.loads((path / "statement.json").read_text())
    assert statement["private"] and statement["rho"] == ledger.balance(population.id).rho_spent
    assert [entry["name"] for entry in statement["releases"]] == ["flat_mean"]


def test_a_run_at_work_cannot_be_abandoned(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts())
    session = begin(population, tmp_path)
    with pytest.raises(RunBusy):
        abandon(session.run.path)
    assert to_end(session).status == "finished"


def test_a_run_that_is_not_private_is_abandoned_without_a_ledger(tmp_path):
    population = write_counts(tmp_path / "p", small_counts())
    session = begin(population, tmp_path, settings={"algorithm": "algorithm2", "clusters": 2, "rounds": 4})
    interrupted(session, 1)
    assert abandon(session.run.path).status == "abandoned"
    assert json.loads((session.run.path / "statement.json").read_text())["privacy"] == "none"


# --- names ----------------------------------------------------------------------------------------------------------


def test_a_run_that_the_ledger_knows_is_not_started_again_elsewhere(tmp_path):
    """Its published values would be taken for those of the new run, whatever its seed or its version of the data."""
    population, ledger = private_population(tmp_path / "p", small_counts())
    run = to_end(begin(population, tmp_path, settings={"epsilon": 1.0, **SMALL}))
    before, head = bits(run), ledger.head(population.id)
    with pytest.raises(RunError, match="'r'") as refused:
        begin(population, tmp_path, settings={"epsilon": 1.0, **SMALL}, runs=str(tmp_path / "other"), seed=1)
    assert refused.value.remedy and not (tmp_path / "other" / "r").exists()
    assert ledger.head(population.id) == head and bits(run) == before


def test_an_interrupted_run_survives_another_of_its_name(parted, tmp_path):
    population, ledger, path = parted
    for asked in (SMALL, {"epsilon": 2.0, **SMALL}):  # another plan, and the same
        with pytest.raises(RunError, match="knows a run named 'r'"):
            begin(population, tmp_path, runs=str(tmp_path / "other"), settings=asked)
    assert not (tmp_path / "other" / "r").exists() and ledger.has_reservation("r")
    assert to_end(resume(path, InProcessBackend())).status == "finished"


def test_a_population_names_its_ledger_wherever_commands_run(tmp_path, monkeypatch):
    """A relative address means the folder in which it was given, for ever."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDCORE_LEDGER")
    population = write_counts(tmp_path / "p", small_counts(), ledger=ledger_name("sqlite:///mine.sqlite"))
    ledger_of(population).register(population.id)
    os.chdir(tmp_path / "elsewhere")
    ledger_of(Population.open(tmp_path / "p")).set_budget(population.id, 1.0, 1e-6)
    assert not (tmp_path / "elsewhere" / "mine.sqlite").exists()


def test_a_first_head_that_was_written_although_the_disk_said_no_is_taken_back(tmp_path, monkeypatch):
    """Then the run is given up with the ledger; a folder that calls it running would stay for ever."""
    population, ledger = private_population(tmp_path / "p", small_counts(40), epsilon=8.0)
    flush = files.flush

    def failing(path):
        flush(path)
        if path.name == "r" and (path / "head.json").exists():
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "flush", failing)
    with pytest.raises(RunError, match="head.json"):
        begin(population, tmp_path, settings={"epsilon": 1.0, **SMALL}, run_id="r")
    assert ledger.balance(population.id).rho_reserved == 0 and not (tmp_path / "runs" / "r").exists()


@pytest.mark.parametrize("ended", [True, False])
def test_who_wakes_up_after_another_process_went_on_with_its_run_takes_nothing_back(tmp_path, monkeypatch, ended):
    """The locks of a folder may not reach the other host; the ledger's leases do."""
    population, ledger = private_population(tmp_path / "p", small_counts(40), epsilon=8.0)
    reserve = sessions._reserve

    def overtaken(*arguments):
        monkeypatch.setattr(sessions, "_reserve", reserve)
        other = resume(tmp_path / "runs" / "r", InProcessBackend())
        to_end(other) if ended else interrupted(other, 1)
        reserve(*arguments)

    with monkeypatch.context() as locks:
        locks.setattr(Run, "lock", lambda run, take_over=False: False)
        monkeypatch.setattr(sessions, "_reserve", overtaken)
        with pytest.raises(LeaseLost, match="another process has continued"):
            begin(population, tmp_path, settings={"epsilon": 1.0, **SMALL}, run_id="r")
    if not ended:
        to_end(resume(tmp_path / "runs" / "r", InProcessBackend()))
    assert load_run(tmp_path / "runs" / "r").head["status"] == "finished"
    assert ledger.run_status("r") == "finished" and len(Run.open(tmp_path / "runs" / "r").releases()) == RELEASES


def test_a_new_run_that_another_process_has_already_is_left_to_it(tmp_path, monkeypatch):
    """It has made nothing yet but reserved: without the folder nobody could give that up."""
    population, ledger = private_population(tmp_path / "p", small_counts(40), epsilon=8.0)
    reserve = sessions._reserve

    def overtaken(*arguments):
        reserve(*arguments)
        ledger.acquire("r")

    with monkeypatch.context() as patched:
        patched.setattr(sessions, "_reserve", overtaken)
        with pytest.raises(RunBusy, match="working on run 'r'"):
            begin(population, tmp_path, settings={"epsilon": 1.0, **SMALL}, run_id="r")
    assert to_end(resume(tmp_path / "runs" / "r", InProcessBackend(), take_over=True)).status == "finished"
