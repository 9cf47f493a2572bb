"""Whole runs through session, engine and run store: memories on disk, outputs, models, settings."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from fedcore.errors import ConfigError, PrivacyError, RunError, WrongKind
from fedcore.evaluation.anomalies import unusual_rows
from fedcore.evaluation.run_summary import run_summary
from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig, FederatedEMState, server
from fedcore.methods.federated_em.series import SERIES_NAMES
from fedcore.methods.registry import make_method
from fedcore.population.blocks import counts_block
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url
from fedcore.rounds.caches import MEMORIES
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, load_run
from fedcore.storage.arrays import read_values, write_values
from fedcore.training.personalise import personalise
from fedcore.training.request import TrainRequest
from fedcore.training.session import concluding, start_run
from tests.conftest import write_counts
from tests.federated_em.direct_em import three_components
from tests.federated_em.run_in_memory import block_of, facts, run
from tests.federated_em.varied import Varied

FEDEM = {"codec": "dithering", "participation": 0.5, "rounds": 8}


def rows_population(path, *, leaf=4, block=8, **options):
    """60 clients of 0 .. 40 rows."""
    y, _ = three_components(1500)
    cuts = np.sort(np.random.default_rng(0).choice(1500, 58, replace=False))
    ptr = np.concatenate([[0, 0], cuts, [1500]]).astype(np.int64)
    with PopulationWriter(path, "rows", 4, clients_per_leaf=leaf, clients_per_block=block, **options) as writer:
        writer.write([f"c{number}" for number in range(60)], (ptr, y.astype(np.float32)))
        return writer.commit(Provenance(sources=("test",)))


def begin(population, tmp_path, settings, **changes):
    request = TrainRequest(
        method="federated_em",
        population=str(population.path),
        settings=settings,
        runs=str(tmp_path / "runs"),
        **{"run_id": "r", **changes},
    )
    return start_run(request, InProcessBackend(), stamp="then")


def to_end(session):
    with concluding(session):
        while session.training.step() is not None:
            pass
    return session.run


def test_memories_are_on_disk_for_every_client(tmp_path):
    session = begin(rows_population(tmp_path / "p"), tmp_path, FEDEM)
    while session.training.state.round < 3:
        session.training.step()
    folder = session.run.memory_folder(session.run.round)
    v = np.concatenate([read_values(file)["V"] for file in sorted(folder.iterdir())])
    assert v.shape == (60, len(session.training.state.statistic)) and not v[0].any() and v[1:].any(axis=1).all()
    session.close()


def test_memories_of_another_round_stop_the_run(tmp_path, monkeypatch):
    """The audit meets what a person changed."""
    monkeypatch.setattr(server, "AUDIT_EVERY", 4)
    session = begin(rows_population(tmp_path / "p"), tmp_path, FEDEM)
    while session.training.state.round < 3:
        session.training.step()
    MEMORIES.clear()  # what this process has written itself it does not read
    file = sorted(session.run.memory_folder(session.run.round).iterdir())[2]
    write_values(file, {name: value + 1e-6 for name, value in read_values(file).items()})
    session.training.remembered = None  # as in runs whose files have no digests
    with pytest.raises(RunError, match="memories add up"), concluding(session):
        session.training.step()
    assert session.run.status == "failed"


def test_the_summary_of_a_run_says_how_it_ended(tmp_path):
    settings = {"algorithm": "em", "max_passes": 4, "restarts": 1, "pseudo_rows": 0.01}
    ran = to_end(begin(rows_population(tmp_path / "p"), tmp_path, settings))
    assert run_summary(Run.open(ran.path))["outcome"].startswith("converged: 4 passes over the rows")


# --- outputs --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_clients_are_given(tmp_path):
    import zarr

    population = rows_population(tmp_path / "p")
    ran = to_end(begin(population, tmp_path, {"algorithm": "em", "max_passes": 32}))
    personalise(ran.path, population.path, tmp_path / "out")
    out = zarr.open_group(tmp_path / "out", mode="r")
    responsibilities, component, fit = (out[name][...] for name in ("responsibilities", "component", "log_likelihood"))
    assert responsibilities.shape == (60, 3) and np.isnan(responsibilities[0]).all() and np.isnan(fit[0])
    np.testing.assert_allclose(responsibilities[1:].sum(axis=1), 1.0)
    every, ptr = out["rows_responsibilities"][...], out["ptr"][...]
    assert every.shape == (population.n_rows, 3) and ptr[0] == 0 and ptr[-1] == population.n_rows and ptr[1] == 0
    for client in (1, 7, 59):
        mine = every[ptr[client] : ptr[client + 1]].mean(axis=0)
        np.testing.assert_allclose(mine, responsibilities[client], atol=1e-5)
    assert component[0] == -1 and np.array_equal(component[1:], responsibilities[1:].argmax(axis=1))
    state = FederatedEMState(**load_run(ran.path).state)
    sizes = np.concatenate([np.diff(population.read(index).ptr) for index in range(len(population.blocks))])
    np.testing.assert_allclose(np.nansum(sizes * fit) / sizes.sum(), -state.objective, rtol=0.05)
    assert len(set(component[1:20])) == 1, "clients hold runs of rows sorted by component"


@pytest.mark.slow
def test_every_row_has_its_density_and_the_least_likely_are_listed(tmp_path):
    import zarr

    population = rows_population(tmp_path / "p")
    ran = to_end(begin(population, tmp_path, {"algorithm": "em", "max_passes": 7}))
    personalise(ran.path, population.path, tmp_path / "out")
    out = zarr.open_group(tmp_path / "out", mode="r")
    densities, ptr = out["rows_log_density"][...], out["ptr"][...]
    blocks = [population.read(index) for index in range(len(population.blocks))]
    rows = np.concatenate([block.x for block in blocks])
    theta = FederatedEM(FederatedEMConfig(**ran.info["config"])).parameters(
        FederatedEMState(**load_run(ran.path).state)
    )
    by_hand = logsumexp(
        [
            np.log(weight) + multivariate_normal(mean, covariance).logpdf(rows)
            for weight, mean, covariance in zip(theta["weights"], theta["means"], theta["covariances"], strict=True)
        ],
        axis=0,
    )
    np.testing.assert_allclose(densities, by_hand, rtol=1e-6, atol=1e-6)
    ids = np.concatenate([population.client_ids(index) for index in range(len(population.blocks))])
    listed = unusual_rows(ran.path, population.path, 7).rows
    assert [row.log_density for row in listed] == sorted(densities)[:7]
    for row in listed:
        client = int(np.flatnonzero(ids == row.client)[0])
        assert densities[ptr[client] + row.row] == row.log_density


@pytest.mark.slow
def test_a_private_run_starts_from_public_parameters_and_is_charged(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger = create_ledger(default_ledger_url())
    population = rows_population(tmp_path / "p", nominal_clients=60, ledger={"id": ledger.id, "url": ledger.url})
    ledger.register(population.id)
    ledger.set_budget(population.id, 8.0, 1e-6)
    start = {
        "weights": np.full(3, 1 / 3),
        "means": np.eye(3, 4),
        "covariances": np.ones((3, 4)),
        "centre": np.zeros(4),
        "scale": np.full(4, 3.0),
    }
    np.savez(tmp_path / "start.npz", **start)
    settings = {"algorithm": "private", "covariance": "diag", "rounds": 3, "epsilon": 2.0}
    with pytest.raises(ConfigError, match="needs parameters"):
        begin(population, tmp_path, settings)
    with pytest.raises(PrivacyError, match="public"):
        begin(population, tmp_path, settings, start_from=str(tmp_path / "start.npz"))
    public = {"start_from": str(tmp_path / "start.npz"), "public_start_because": "made up"}
    with pytest.raises(ConfigError):
        begin(population, tmp_path, settings | {"components": 2}, **public)
    ran = to_end(begin(population, tmp_path, settings, **public))
    assert ran.status == "finished" and ran.round == 3
    balance = ledger.balance(population.id)
    assert 0 < balance.rho_spent < balance.budget.rho_max and balance.rho_reserved == 0
    # A second run goes on from what the first one released; a run that is not private may not be gone on from.
    again = to_end(begin(population, tmp_path, settings, run_id="again", start_from=str(ran.path)))
    first, second = (FederatedEMState(**load_run(path).state) for path in (ran.path, again.path))
    assert not np.array_equal(first.theta, second.theta)
    assert min(first.pooled_weight, second.pooled_weight) > 0 and second.pooled_variance < first.pooled_variance
    assert set(SERIES_NAMES) <= set(again.info["start"]["arrays"]) and "Pooled" in again.head["outcome"]
    raw = to_end(begin(population, tmp_path, {"algorithm": "em", "covariance": "diag", "max_passes": 5}, run_id="raw"))
    with pytest.raises(PrivacyError, match="not private"):
        begin(population, tmp_path, settings, run_id="bad", start_from=str(raw.path))


def test_a_run_without_parameters_gives_nothing():
    y, _ = three_components(300)
    block = block_of(np.array_split(y, 20))
    method = FederatedEM(Varied())
    with pytest.raises(RunError, match="before it had parameters"):
        method.personalise(method.init(facts(block)), block, None)


def test_a_run_goes_on_from_another():
    y, _ = three_components(1500)
    block = block_of(np.array_split(y, 30))
    config = Varied(algorithm="em", rounds=10)
    one = run(config, block, facts(block))
    arrays = FederatedEM(config).warm_start_of(one.state)
    two = run(config.model_copy(update={"start": "given"}), block, facts(block, start=arrays))
    once = run(config.model_copy(update={"rounds": 20}), block, facts(block))
    np.testing.assert_allclose(two.state.statistic, once.state.statistic, rtol=1e-8, atol=1e-10)


# --- other models ---------------------------------------------------------------------------------------------------


def test_regressions():
    generator = np.random.default_rng(0)
    u = generator.normal(size=(3000, 2)) * [1.0, 10.0] + [0.0, 5.0]
    truth = np.array([[3.0, 0.2, 1.0], [-2.0, 0.1, -4.0]])
    which = generator.integers(0, 2, 3000)
    v = np.sum(np.column_stack([u, np.ones(3000)]) * truth[which], axis=1) + 0.2 * generator.normal(size=3000)
    block = block_of(np.array_split(np.column_stack([u, v]), 60))
    config = Varied(model="regression", components=2, restarts=8, regularisation=1e-6, rounds=80)
    ran = run(config, block, facts(block))
    theta = FederatedEM(config).parameters(ran.state)
    order = np.argsort(-theta["coefficients"][:, 0])
    np.testing.assert_allclose(theta["coefficients"][order], truth, atol=0.1)
    np.testing.assert_allclose(theta["variances"], 0.04, rtol=0.2)


def counts_of(model, clients=600):
    generator = np.random.default_rng(1)
    which = generator.integers(0, 2, clients)
    if model == "poisson":
        return generator.poisson(np.array([[8.0, 1, 1, 4], [1, 6, 2, 4]])[which])
    if model == "bernoulli":
        shares = np.array([[0.9, 0.1, 0.2, 0.5], [0.1, 0.8, 0.9, 0.5]])[which]
        return (generator.random((clients, 4)) < shares).astype(int)
    return generator.multinomial(30, np.array([[0.6, 0.1, 0.1, 0.2], [0.1, 0.5, 0.2, 0.2]])[which])


@pytest.mark.parametrize("model", ["poisson", "multinomial", "bernoulli"])
def test_counts(model):
    """Clients' counts as sparse rows and the same numbers as dense rows of 30 clients: one fixed point."""
    counts = counts_of(model)
    sparse, dense = counts_block(0, 0, sp.csr_matrix(counts)), block_of(np.array_split(counts.astype(float), 30))
    config = Varied(model=model, kind="counts", components=2, rounds=60)
    ran = run(config, sparse, facts(sparse))
    other = run(config.model_copy(update={"kind": "rows", "algorithm": "em"}), dense, facts(dense))
    assert ran.state.clients == 600 and other.state.clients == 30
    name = "rates" if model == "poisson" else "probabilities"
    mine, theirs = (np.sort(one.state.parameters()[name], axis=0) for one in (ran, other))
    np.testing.assert_allclose(mine, theirs, atol=0.02 * theirs.max())
    assert abs(ran.state.objective - other.state.objective) < 1e-3


def test_a_population_of_another_kind_is_refused(tmp_path):
    counts = write_counts(tmp_path / "p", sp.csr_matrix(counts_of("poisson", 40)))
    with pytest.raises(WrongKind, match="needs a population of rows"):
        begin(counts, tmp_path, {})
    finished = to_end(begin(counts, tmp_path, {"model": "poisson", "kind": "counts", "components": 2, "rounds": 3}))
    assert load_run(finished.path).head["status"] == "finished"
    assert FederatedEM.kinds == ("rows", "counts")


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithm": "em", "codec": "dithering"},
        {"algorithm": "em", "participation": 0.5},
        {"algorithm": "em", "batch": 3},
        {"algorithm": "vr-fedem", "participation": 0.5},
        {"inner_rounds": 5},
        {"epsilon": 1.0},
        {"kind": "counts"},
        {"participation": 0.0},
        {"codec": 0},
        {"unknown": 1},
        {"gamma": 3.0},
        {"model": "poisson_tables"},
        {"table_rows": 3},
        {"components": 0},
    ],
)
def test_settings_that_do_not_go_together(wrong):
    with pytest.raises(ConfigError):
        make_method("federated_em", wrong)
