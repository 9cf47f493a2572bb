"""Whole runs through session, engine and run store: outputs, diagnosis, settings."""

from functools import partial

import numpy as np
import pytest
import zarr
from fedcore.papers.fedgrem.simulation import CENTRES, errors, simulated_clients

from fedcore.errors import ConfigError, PopulationError, RunError
from fedcore.evaluation.outliers import deviations, diagnose, scores, suspected
from fedcore.methods.gradient_em import GradientEM, GradientEMConfig
from fedcore.methods.registry import make_method
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.results import Features
from fedcore.runs.store import load_run
from fedcore.training.personalise import personalise
from tests import sessions
from tests.gradient_em.run_in_memory import block_of, facts, run
from tests.papers.fedgrem.run_in_memory import run as run_paper
from tests.sessions import to_end

FAST = {"rounds": 8}


def population_of(path, tasks, *, leaf=3, block=6):
    rows = block_of(tasks.rows)
    with PopulationWriter(path, "rows", rows.features, clients_per_leaf=leaf, clients_per_block=block) as writer:
        writer.write([f"c{number}" for number in range(rows.clients)], (rows.ptr, rows.x))
        return writer.commit(Provenance(sources=("test",)))


def tasks_of(model="gaussian"):
    sizes = np.array([60, 0, 80, 45, 7, 90, 60, 60, 75, 50, 60, 60, 60, 66])
    return simulated_clients(0, model=model, clients=14, outliers=2, rows=sizes, h=0.5)


begin = partial(sessions.begin, method="gradient_em")


@pytest.mark.slow
def test_outputs_of_every_client(tmp_path):
    check_outputs(tmp_path, "gradient_em", FAST, apart=True)


def check_outputs(tmp_path, method, settings, apart):
    """A run to its end, and what it gives every client. apart: whether clients are left apart."""
    tasks = tasks_of()
    population = population_of(tmp_path / "p", tasks)
    ran = to_end(begin(population, tmp_path, settings=settings, method=method))
    assert ran.round == make_method(method, settings).total_rounds(None)
    personalise(ran.path, population.path, tmp_path / "out")
    out = zarr.open_group(tmp_path / "out", mode="r")
    centres, weights, labels = (out[name][...] for name in ("centres", "weights", "labels"))
    assert centres.shape == (14, 5, 10) and weights.shape == (14, 5) and labels.shape == (14, 90)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    sizes = np.array([len(rows) for rows in tasks.rows])
    assert np.array_equal((labels >= 0).sum(axis=1), sizes) and labels.max() == 4
    assert ("apart" in out) == apart
    assert errors(centres, tasks.theta, tasks.inlier & (sizes > 40)).rms < 2.5
    assert "without noise" in (ran.path / "statement.json").read_text()


def test_suspected_outliers_are_listed(tmp_path):
    tasks = simulated_clients(3, clients=12, outliers=2, h=1.0)
    population = population_of(tmp_path / "p", tasks)
    ran = to_end(begin(population, tmp_path, settings={**FAST, "rounds": 30}))
    found = diagnose(ran.path, population.path)
    assert [task.client for task in found if task.suspected] == [task.client for task in found][:2]
    assert {task.client for task in found[:2]} == {"c10", "c11"}
    assert all(task.score >= other.score for task, other in zip(found, found[1:], strict=False))
    assert len(found) < 12 and all(task.apart <= task.counted <= 5 for task in found)


def test_nobody_is_suspected_among_equals():
    assert not suspected(np.full((10, 3), 2.5)).any(), "all are apart"
    assert not suspected(np.vstack([np.full((9, 3), 0.1), np.full((1, 3), 0.9)])).any(), "not apart"
    assert suspected(np.vstack([np.full((9, 3), 0.1), np.full((1, 3), 4.0)])).tolist() == [False] * 9 + [True]
    empty = np.full((2, 3), np.nan)
    assert np.isnan(scores(empty)).all() and np.isnan(deviations(scores(empty))).all() and not suspected(empty).any()


def test_a_run_starts_from_another(tmp_path):
    population = population_of(tmp_path / "p", tasks_of())
    first = to_end(begin(population, tmp_path, settings=FAST))
    second = partial(begin, population, tmp_path, start_from=str(first.path))
    later = to_end(second(settings={**FAST, "start": "given"}, run_id="s"))
    assert load_run(later.path).head["status"] == "finished"
    with pytest.raises(ConfigError, match="has shape"):
        second(settings={**FAST, "start": "given", "components": 4}, run_id="t")


def test_a_run_without_a_round_gives_nothing():
    block, method = block_of(tasks_of().rows), GradientEM()
    with pytest.raises(RunError, match="before its first round"):
        method.personalise(method.init(facts(block)), block, None)
    with pytest.raises(ConfigError, match="before it had centres"):
        method.warm_start_of(method.init(facts(block)))


# --- results --------------------------------------------------------------------------------------------------------


def tables_of(ran, names=None):
    """By name of the table, its columns by heading."""
    result = ran.method.result(ran.state, Features(ran.block.features, names))
    return {table.name: {column.name: column.values for column in table.columns} for table in result.tables}


@pytest.mark.parametrize("standardise", ["none", "columns"])
def test_the_result_is_in_the_units_of_the_data(standardise):
    simulated = simulated_clients(0, clients=20, outliers=2, h=1.0)
    names = [f"x{j}" for j in range(10)]
    ran = run(block_of([50.0 + 3.0 * rows for rows in simulated.rows]), standardise=standardise, starts=3, rounds=40)
    tables = tables_of(ran, names)
    centres = np.array([tables["centres"][f"component {r}"] for r in range(5)])
    np.testing.assert_array_equal(centres, ran.method.warm_start_of(ran.state)["centres"])
    assert errors(centres[None], 50.0 + 3.0 * CENTRES[None], np.array([True])).largest < 3.0
    assert tables["centres"]["column"] == names
    (figure,) = ran.method.result(ran.state, Features(10, names)).figures
    np.testing.assert_array_equal(figure.means, centres)
    differences = np.array([tables["differences"][f"component {r}"] for r in range(5)])
    np.testing.assert_allclose(differences.mean(), 3.0 / np.sqrt(10), rtol=0.3)
    apart = tables["components"]["clients left apart"]  # the outliers' rows lie near one of the components
    assert max(apart) == 2.0 and sum(apart) >= 6.0


def test_results_of_other_settings():
    block = block_of(tasks_of("regression").rows)
    tables = tables_of(run(block, model="regression", intercept=True, **FAST), [f"x{j}" for j in range(10)] + ["y"])
    assert tables["centres"]["input"] == [f"x{j}" for j in range(10)] + ["intercept"] and "differences" in tables
    block = block_of(tasks_of().rows)
    assert list(tables_of(run_paper(block, preset="paper", **FAST))) == ["centres"]
    method = GradientEM()
    assert not method.result(method.init(facts(block)), Features(10)).tables


# --- faults ---------------------------------------------------------------------------------------------------------


def test_rows_that_are_not_finite_are_named():
    tasks = tasks_of()
    tasks.rows[3][5, 7] = np.nan
    with pytest.raises(PopulationError, match="row 5 of client 3 .* column 7"):
        run(block_of(tasks.rows), **FAST)


def test_populations_that_cannot_be_fitted():
    nobody = block_of([np.zeros((0, 3)), np.zeros((0, 3))])
    for standardise in ("none", "columns"):
        with pytest.raises(PopulationError, match="any rows"):
            run(nobody, standardise=standardise)
    with pytest.raises(PopulationError, match="no client has the rows"):
        run(block_of([np.ones((4, 3)), np.ones((2, 3))]))
    with pytest.raises(ConfigError, match="needs an input"):
        run(block_of([np.ones((40, 1))]), model="regression")


def test_constant_rows_break_nothing():
    ran = run(block_of([np.ones((40, 3)), np.ones((30, 3))]), rounds=6, components=2)
    assert np.isfinite(ran.outputs()["centres"]).all()
    ran = run(block_of([np.ones((40, 3)), np.ones((30, 3))]), rounds=6, components=2, model="regression")
    assert np.isfinite(ran.outputs()["centres"]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"covariance": "known"},
        {"known": 2.0},
        {"model": "regression", "covariance": "components"},
        {"model": "regression", "standardise": "columns"},
        {"intercept": True},
        {"components": 0},
        {"unknown": 1},
        {"participation": 0.0},
    ],
)
def test_settings_that_do_not_go_together(wrong):
    with pytest.raises(ConfigError):
        make_method("gradient_em", wrong)


@pytest.mark.parametrize(
    "known",
    [
        -1.0,
        (1.0, 2.0),
        ((1.0, 2.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
        ((1.0, 2.0, 0.0), (2.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    ],
)
def test_a_covariance_that_is_none(known):
    method, block = make_method("gradient_em", {"covariance": known}), block_of([np.ones((3, 3))])
    with pytest.raises(ConfigError, match="covariance must be"):
        method.init(facts(block))


def test_rounds_of_second_starts():
    own = GradientEMConfig()
    assert own.shared_covariance
    assert [number for number in range(1, 200) if own.starts_again(number)] == [10, 40, 160]


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("algorithm", "mixed-effects", "the method mixed_effects"),
        ("algorithm", "fedem", "the method paper_gradient_em"),
        ("algorithm", "fedgrem", "leave it out"),
        ("central", "authors", "one_sweep of the method paper_gradient_em"),
        ("average", "rows", "the method paper_gradient_em"),
        ("preset", "paper", "the method paper_gradient_em"),
        ("covariance", "known", "as the value of covariance"),
        ("batch", "20", "no measurement showed a benefit"),
        ("starts", "3", "former default"),
        ("aligned_clients", "20", "former default"),
        ("second_start", "0", "former default"),
    ],
)
def test_what_left_is_refused_with_the_place_where_it_is(setting, value, said):
    with pytest.raises(ConfigError, match=f"{setting}('| = '{value}') (is|has|was) .*{said}"):
        make_method("gradient_em", {setting: value})


def test_settings_survive_the_run_store():
    for settings in (
        {},
        {"covariance": (1.0, 2.0)},
        {"covariance": 2.0},
        {"covariance": ((1.0, 0.5), (0.5, 1.0))},
        {"model": "regression"},
    ):
        config = GradientEMConfig(**settings)
        assert GradientEMConfig(**config.model_dump(mode="json")) == config


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", ["identity", "shared"])
def test_a_run_ends_with_the_movement_of_its_last_round(covariance):
    block = block_of(simulated_clients(0, h=1.0, clients=8, rows=60, outliers=0).rows)
    settings = {"covariance": covariance, "starts": 2, "tolerance": 0.0}
    one, two = (run(block, rounds=rounds, **settings) for rounds in (3, 4))
    step = two.state.centres - one.state.centres
    factor = np.eye(10) if covariance == "identity" else np.linalg.cholesky(one.state.covariance)
    in_errors = np.sqrt((np.linalg.solve(factor, step.T) ** 2).mean(axis=0) * two.state.sums[:, -1])
    np.testing.assert_allclose(two.state.moved, in_errors.max(), rtol=1e-9)
    fits = two.column("log_likelihood")
    expected = fits[-1] - np.log(np.diag(factor)).sum()
    np.testing.assert_allclose([two.state.fit, two.state.change], [expected, expected - one.state.fit], rtol=1e-9)
    assert two.method.outcome(two.state).startswith("stopped after 4 rounds: 4 more at the pace of the last")
    assert run(block, rounds=1, **settings).state.change is None


def test_runs_converge_or_say_what_stands_in_their_way():
    block = block_of(simulated_clients(0, h=0.5, clients=8, rows=60, outliers=0).rows)
    whole, early, sampled = (
        run(block, starts=2, **settings)
        for settings in ({"rounds": 200}, {"tolerance": 1.0, "second_start": 0}, {"participation": 0.5, "rounds": 9})
    )
    assert whole.method.outcome(whole.state).startswith("converged: ")
    assert early.method.outcome(early.state).endswith("; lower tolerance.") and early.state.round == 5
    assert "9 rounds of sampled clients" in sampled.method.outcome(sampled.state)
