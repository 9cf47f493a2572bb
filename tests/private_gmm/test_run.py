"""Whole runs through session, engine, ledger and run store; and federated EM that goes on from what they found."""

import json

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation
from fedcore.papers.private_gmm.runs import learn

from fedcore.errors import BudgetExceeded, ConfigError, PrivacyError
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.evaluation.run_summary import run_summary
from fedcore.methods.registry import make_method
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url
from fedcore.privacy.mechanisms import TestNoise
from fedcore.runs.store import load_run
from fedcore.training.personalise import personalise
from tests import sessions
from tests.command import works
from tests.sessions import to_end

TRUTH = simulation.mixture(4, 2, 12.0, 0)
PRIOR = simulation.prior(TRUTH)
SETTINGS = {
    "components": 2,
    "covariance": "diag",
    "radius": PRIOR.radius,
    "sigma_min": PRIOR.sigma_min,
    "least_weight": 0.3,
    "epsilon": 4.0,
    "spare_releases": 0,
}
CLIENTS = 3000


def rows() -> tuple[np.ndarray, np.ndarray]:
    """(ptr, x): clients of 0 to 3 rows, one component each."""
    x, _ = simulation.sample(TRUTH, 2 * CLIENTS, 0)
    cuts = np.sort(np.random.default_rng(0).choice(len(x), CLIENTS - 1, replace=True))
    return np.concatenate([[0], cuts, [len(x)]]).astype(np.int64), x


def population(path, *, unit="client", epsilon=12.0, test=False, block=1024, leaf=256, heldout=False):
    """(population, ledger)."""
    ledger = create_ledger(default_ledger_url(), test=test)
    ptr, x = rows()
    with PopulationWriter(
        path,
        "rows",
        4,
        clients_per_leaf=leaf,
        clients_per_block=block,
        nominal_clients=CLIENTS,
        public_for_evaluation="simulated" if heldout else None,
        ledger={"id": ledger.id, "url": ledger.url},
    ) as writer:
        writer.write([f"c{number}" for number in range(CLIENTS)], (ptr, x), (ptr, x) if heldout else None)
        made = writer.commit(Provenance(sources=("test",)))
    ledger.register(made.id)
    ledger.set_budget(made.id, epsilon, 1e-6, unit=unit)
    return made, ledger


def begin(made, tmp_path, method="private_gmm", settings=SETTINGS, **changes):
    return sessions.begin(made, tmp_path, method, settings, **changes)


def test_a_run_finds_what_the_function_finds(tmp_path):
    made, _ = population(tmp_path / "p", test=True)
    stored = load_run(to_end(begin(made, tmp_path, test_noise="key")).path)
    assert stored.head["status"] == "finished" and stored.state["outcome"] == "found"
    ptr, x = rows()
    again = learn(
        x,
        make_method("private_gmm", SETTINGS).config,
        epsilon=4.0,
        delta=1e-6,
        unit="client",
        ptr=ptr,
        noise=TestNoise("key"),
    )
    scores = simulation.scores(TRUTH, again.mixture.means)
    assert scores.mean_errors.max() < 0.3 and np.abs(again.mixture.means - stored.state["means"]).max() < 0.3


@pytest.mark.slow
def test_a_mixture_is_refined_by_private_em_under_the_same_budget(tmp_path):
    """The documented sequence: train private_gmm, then train federated_em --start-from RUN; both for clients."""
    made, ledger = population(tmp_path / "p", heldout=True)
    first = to_end(begin(made, tmp_path, run_id="mixture"))
    spent = ledger.balance(made.id)
    assert spent.rho_reserved == 0 and 0 < spent.rho_spent < spent.budget.rho_max
    assert json.loads((first.path / "statement.json").read_text())["private"] is True
    settings = {"algorithm": "private", "components": 2, "covariance": "diag", "rounds": 5, "epsilon": 6.0}
    refined = to_end(begin(made, tmp_path, "federated_em", settings, run_id="em", start_from=str(first.path)))
    balance = ledger.balance(made.id)
    assert spent.rho_spent < balance.rho_spent <= balance.budget.rho_max
    statement = json.loads((refined.path / "statement.json").read_text())
    assert statement["private"] and "mixture" in statement["start"] and statement["unit"] == "client"
    method = make_method("federated_em", settings)
    found = method.parameters(method.State(**load_run(refined.path).state))
    errors = [
        simulation.scores(TRUTH, means).mean_errors.max()
        for means in (load_run(first.path).state["means"], found["means"])
    ]
    assert max(errors) < 0.5, errors
    table = evaluate_run(first.path, made, keep=True)
    own, columns = table["rows"]
    assert own["nll"] < columns["nll"] - 0.5 and (first.path / "evaluation.json").exists()
    outputs = personalise(first.path, made.path, tmp_path / "own")
    assert outputs["outputs"] == ["component", "rows_labels", "shares"]


@pytest.mark.slow
def test_records_are_protected_where_the_budget_says_so(tmp_path):
    made, ledger = population(tmp_path / "p", unit="record")
    run = to_end(begin(made, tmp_path))
    assert run.info["unit"] == "record" and ledger.balance(made.id).unit == "record"
    state = load_run(run.path).state
    assert state["unit"] == "record" and abs(state["tree_count"][0] - 2 * CLIENTS) < 200
    statement = json.loads((run.path / "statement.json").read_text())
    assert statement["unit"] == "record" and "one record" in statement["text"]
    with pytest.raises(PrivacyError, match="one record"):
        begin(
            made,
            tmp_path,
            "federated_em",
            {"algorithm": "private", "components": 2, "epsilon": 1.0, "covariance": "diag"},
            run_id="em",
            start_from=str(run.path),
        )


def test_budgets_refuse(tmp_path):
    made, _ = population(tmp_path / "p", epsilon=1.0)
    with pytest.raises(BudgetExceeded):
        begin(made, tmp_path)
    with pytest.raises(ConfigError, match="radius"):
        begin(made, tmp_path, settings={**SETTINGS, "radius": None, "epsilon": None})
    assert not (tmp_path / "runs" / "r").exists()


def test_a_run_that_finds_nothing_ends_finished_and_gives_back_what_it_did_not_need(tmp_path):
    made, ledger = population(tmp_path / "p")
    run = to_end(begin(made, tmp_path, settings={**SETTINGS, "epsilon": 0.05, "anyway": True}))
    state, balance = load_run(run.path).state, ledger.balance(made.id)
    assert run.status == "finished" and state["outcome"] == "no separated structure found at this budget"
    outcome = run_summary(run)["outcome"]
    assert outcome == state["reason"] and "clients would be enough" in outcome and "times this run's epsilon" in outcome
    assert state["units_needed"] > CLIENTS and balance.rho_reserved == 0 and balance.releases["returned"] > 0
    with pytest.raises(ConfigError, match="has not found"):
        begin(
            made,
            tmp_path,
            "federated_em",
            {"algorithm": "private", "components": 2, "epsilon": 1.0},
            run_id="em",
            start_from=str(run.path),
        )


def test_the_command_line_sets_a_budget_for_records(tmp_path):
    made, ledger = population(tmp_path / "p")
    with PopulationWriter(tmp_path / "q", "rows", 2, ledger={"id": ledger.id, "url": ledger.url}) as writer:
        writer.write(["a"], (np.array([0, 1]), np.zeros((1, 2))))
        other = writer.commit(Provenance(sources=("test",)))
    works(f"budget set {other.path} --public-schema 'made up' --epsilon {1} --delta {1e-6} --unit record")
    assert ledger.balance(other.id).unit == "record" and ledger.balance(made.id).unit == "client"
