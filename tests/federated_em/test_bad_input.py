"""What goes wrong with data and settings: a named error, or the safe action that the documentation promises."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.errors import ConfigError, PopulationError, WrongKind
from fedcore.methods.federated_em import FederatedEM
from fedcore.methods.registry import make_method
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.request import TrainRequest
from fedcore.training.session import start_run
from tests.conftest import write_counts
from tests.federated_em.direct_em import three_components, two_components
from tests.federated_em.run_in_memory import answer, block_of, facts, run
from tests.federated_em.varied import Varied

GENERATOR = np.random.default_rng(7)
ROWS = [GENERATOR.normal(size=(size, 3)) for size in (5, 0, 1, 30, 12, 8)]
SHORT = {"components": 2, "rounds": 6, "cluster_rounds": 1}
FEDEM, EM, VR = (SHORT | {"algorithm": name} for name in ("fedem", "em", "vr-fedem"))
NAIVE = SHORT | {"memories": False}
ALGORITHMS = {"fedem": FEDEM, "em": EM, "vr-fedem": VR, "naive": NAIVE}


def train(settings: dict, rows: list[np.ndarray], start=None, leaf: int = 2):
    """A whole run; every number that it tells, and its state, is finite."""
    block = block_of(rows)
    ran = run(Varied(**settings), block, facts(block, start=start), clients_per_leaf=leaf)
    assert ran.state.phase == "done" and np.isfinite(ran.state.theta).all() and np.isfinite(ran.state.statistic).all()
    return ran


def with_entry(value: float, client: int = 3, row: int = 17, column: int = 1) -> list[np.ndarray]:
    rows = [own.copy() for own in ROWS]
    rows[client][row, column] = value
    return rows


def of_tables(rows_of_client: list[int], columns: int = 4) -> list[np.ndarray]:
    return [GENERATOR.poisson(2.0, (rows, columns)).astype(float) for rows in rows_of_client]


# --- refused --------------------------------------------------------------------------------------------------------

TABLES = {"model": "gaussian_tables", "table_rows": 3, "algorithm": "em", "rounds": 2}
COUNTS = {"components": 2, "rounds": 2}
REFUSED = {
    "NaN": (EM | {"model": "regression"}, with_entry(np.nan), "client 3: Row 17, column 1 is not finite"),
    "infinite": (FEDEM, with_entry(-np.inf), "client 3: Row 17, column 1 is infinite"),
    "a row without an entry": (
        EM,
        [ROWS[0], np.array([[1.0, np.nan, 2.0], [np.nan] * 3])],
        "client 1: Row 1 has no entry",
    ),
    "a column without an entry": (EM, [own * [1.0, 1.0, np.nan] for own in ROWS], "column 2 has no entry in any row"),
    "infinite, where entries may be missing": (
        {"model": "gaussian_imputer", "rounds": 2},
        with_entry(np.inf),
        "client 3: Row 17, column 1 is infinite",
    ),
    "infinite, tables": (
        TABLES,
        [*of_tables([3, 6]), np.full((3, 4), np.inf)],
        "client 2: Row 0, column 0 is infinite",
    ),
    "a negative count": (
        COUNTS | {"model": "poisson"},
        [np.array([[1.0, 2.0], [3.0, -1.0]])],
        "client 0: Row 1, column 1 is negative",
    ),
    "not zero or one": (
        COUNTS | {"model": "bernoulli"},
        [np.array([[1.0, 0.0], [0.5, 1.0]])],
        "client 0: Row 1, column 0 is neither 0 nor 1",
    ),
    "1e300": (EM, with_entry(1e300), "values of column 1 are too large to be squared"),
    "-1e200, tables": (TABLES, [*of_tables([3]), np.full((3, 4), -1e200)], "too large to be squared"),
    "everybody is empty": (FEDEM, [np.zeros((0, 3))] * 5, "no client of the population has any rows"),
    "fewer rows than components": (EM | {"components": 5}, [ROWS[0][:2], ROWS[3][:2]], "fewer than 5 different rows"),
    "equal rows": (EM, [np.ones((4, 3)), np.ones((6, 3))], "fewer than 2 different rows"),
    "one row": (FEDEM, [np.ones((1, 3))], "fewer than 2 different rows"),
    "rows that are no whole tables": (TABLES, of_tables([6, 4]), "client 1: its rows do not make whole tables of 3"),
    "clients that share a table": (TABLES, of_tables([2, 4]), "client 0: its rows do not make whole tables of 3"),
}


@pytest.mark.parametrize(("settings", "rows", "match"), REFUSED.values(), ids=REFUSED)
def test_data_that_are_refused(settings, rows, match):
    with pytest.raises(PopulationError, match=match) as caught:
        train(settings, rows, leaf=1024)
    assert caught.value.remedy
    assert not any(text in str(caught.value) for text in ("1e+300", "1e+200", "nan", "-1.0")), "no value is told"


STARTS = {
    "of another shape": {"weights": np.ones(2) / 2, "means": np.zeros((2, 4)), "covariances": np.ones((2, 3))},
    "not finite": {"weights": np.ones(2) / 2, "means": np.full((2, 3), np.nan), "covariances": np.ones((2, 3))},
    "a dead component": {"weights": np.array([1.0, 0.0]), "means": np.zeros((2, 3)), "covariances": np.ones((2, 3))},
    "weights of 2": {"weights": np.ones(2), "means": np.zeros((2, 3)), "covariances": np.ones((2, 3))},
    "no variance": {"weights": np.ones(2) / 2, "means": np.zeros((2, 3)), "covariances": np.zeros((2, 3))},
    "nothing": {},
    "scale of 0": {
        "weights": np.ones(2) / 2,
        "means": np.zeros((2, 3)),
        "covariances": np.ones((2, 3)),
        "centre": np.zeros(3),
        "scale": np.zeros(3),
    },
}


@pytest.mark.parametrize("given", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("private", [False, True])
def test_starts_that_are_refused(given, private):
    own = {"algorithm": "private"} if private else {"algorithm": "em", "start": "given"}
    settings = SHORT | {"covariance": "diag", **own}
    block = block_of(ROWS)
    public = facts(block, start=given, rho=1.0 if private else None, nominal=6)
    with pytest.raises(ConfigError):
        FederatedEM(Varied(**settings)).init(public)


def test_a_start_on_the_edge_of_the_domain_is_refused():
    """Variances that are rounding beside the squared means."""
    given = {"weights": np.ones(2) / 2, "means": np.full((2, 3), 1e3), "covariances": np.full((2, 3), 1e-8)}
    block = block_of(ROWS)
    settings = SHORT | {"covariance": "diag", "regularisation": 0.0}
    with pytest.raises(ConfigError, match="outside the domain"):
        run(Varied(**settings, start="given"), block, facts(block, start=given))
    private = FederatedEM(Varied(**settings | {"algorithm": "private"}))
    with pytest.raises(ConfigError, match="outside the domain"):
        private.init(facts(block, start=given, rho=1.0, nominal=6))


def test_a_population_of_the_wrong_kind(tmp_path):
    counts = write_counts(tmp_path / "counts", sp.csr_matrix(np.eye(6)))
    with PopulationWriter(tmp_path / "rows", "rows", 3, clients_per_leaf=4, clients_per_block=4) as writer:
        writer.write(["a"], (np.array([0, 30]), ROWS[3].astype(np.float32)))
        rows = writer.commit(Provenance(sources=("test",)))
    for population, settings in (
        (counts, {}),
        (counts, {"model": "poisson"}),
        (rows, {"model": "poisson", "kind": "counts"}),
    ):
        request = TrainRequest(
            method="federated_em", population=str(population.path), settings=settings, runs=str(tmp_path / "runs")
        )
        with pytest.raises(WrongKind, match="needs a population of") as caught:
            start_run(request, InProcessBackend(), stamp="then")
        assert caught.value.remedy
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "counts"},
        {"kind": "counts", "model": "regression"},
        {"model": "gaussian_tables"},
        {"table_rows": 3},
        {"algorithm": "private", "clip": 1e-9},
        {"algorithm": "private", "clip": float("nan")},
        {"algorithm": "private", "record_bound": float("inf")},
        {"components": 0},
        {"batch": 0},
        {"codec": 0},
        {"gamma": float("nan")},
        {"participation": 0.0},
        {"participation": 1.5},
        {"covariance": "banded"},
        {"inner_rounds": 1, "algorithm": "vr-fedem"},
        {"regularisation": -1.0},
        {"rounds": 0},
    ],
)
def test_settings_that_are_refused(wrong):
    with pytest.raises(ConfigError):
        make_method("federated_em", wrong)


def test_a_rank_beyond_the_columns_is_refused():
    with pytest.raises(ConfigError, match="rank must be between 1 and 2"):
        train({"model": "gaussian_imputer", "rank": 3, "rounds": 2}, ROWS)


# --- the documented safe action -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", ALGORITHMS.values(), ids=ALGORITHMS)
def test_clients_without_rows_count_for_nothing(settings):
    """Also whole leaves and blocks of them, at the beginning, in the middle and at the end; weights by rows."""
    nobody = [np.zeros((0, 3))] * 3
    ran = train(settings, [*nobody, *ROWS[:3], *nobody, *ROWS[3:], *nobody])
    assert ran.state.clients == 5 and ran.state.rows == 56
    if ran.memory is not None:
        empty = np.array([0, 1, 2, 4, 6, 7, 8, 12, 13, 14])
        assert all(not array[empty].any() for array in ran.memory.values())


@pytest.mark.parametrize("settings", ALGORITHMS.values(), ids=ALGORITHMS)
def test_one_client(settings):
    assert train(settings, [ROWS[3]]).state.clients == 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", ALGORITHMS.values(), ids=ALGORITHMS)
def test_one_row_for_each_client(settings):
    assert train(settings, [row[None] for row in ROWS[3]]).state.rows == 30


@pytest.mark.parametrize("settings", [FEDEM | {"batch": 50}, VR | {"batch": 50, "inner_rounds": 3}])
def test_a_batch_larger_than_a_client_is_drawn_with_replacement(settings):
    ran = train(settings, ROWS)
    round = [info for info in ran.infos if "expectations" in info.scalars][-1]
    assert round.scalars["expectations"] in (5 * 50, 2 * 5 * 50), "5 clients with rows draw 50 each"


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical", "known"])
def test_a_constant_column_is_left_at_its_scale(covariance):
    """Its standard deviation of 0 divides nothing; the penalty keeps covariances regular."""
    rows = [np.column_stack([own, np.full(len(own), 4.5)]) for own in ROWS]
    ran = train(FEDEM | {"covariance": covariance}, rows)
    assert covariance in ("known", "spherical") or ran.state.scale[3] == 1.0
    theta = FederatedEM(Varied(**FEDEM | {"covariance": covariance})).parameters(ran.state)
    np.testing.assert_allclose(theta["means"][:, 3], 4.5, atol=0.5)


@pytest.mark.parametrize("covariance", ["full", "tied"])
@pytest.mark.parametrize("regularisation", [1e-3, 0.0])
def test_columns_that_determine_each_other_make_no_singular_covariance(covariance, regularisation):
    """By the penalty; without one, by the floor of eigenvalues, or steps are cut back until nothing moves."""
    rows = [np.column_stack([own, own[:, 0] + own[:, 1]]) for own in ROWS]
    settings = EM | {"covariance": covariance, "regularisation": regularisation}
    try:
        ran = train(settings, rows)
    except ConfigError as error:
        assert regularisation == 0.0 and "outside the domain" in error.message and error.remedy
        return
    covariances = ran.state.parameters()["covariances"].reshape(-1, 4, 4)
    assert np.linalg.eigvalsh(covariances).min() > 0


def test_steps_that_leave_the_domain_are_cut_back():
    """Naive compression of clients that differ throws a component's weight below 0: halved steps, finite numbers."""
    y, given = two_components(2000)
    settings = {
        "memories": False,
        "components": 2,
        "covariance": "known",
        "start": "given",
        "codec": 1,
        "norms_by_part": False,
        "gamma": 1.0,
        "rounds": 60,
    }
    ran = train(settings, np.array_split(y, 20), given)
    assert ran.column("halvings").max() > 0 and ran.column("gamma").min() < 1.0
    assert all((state.parameters()["weights"] > 0).all() for state in ran.states if state.theta.size)


@pytest.mark.parametrize("covariance", ["known", "full"])
def test_a_component_that_dies_keeps_a_weight_above_zero(covariance):
    """No row is near it. Its parameters stay finite, and so do the objective and the other component's."""
    y, _ = two_components(400)
    given = {"weights": np.array([1 - 1e-6, 1e-6]), "means": np.array([[0.0, 0.0], [60.0, 60.0]])}
    given |= {} if covariance == "known" else {"covariances": np.stack([np.eye(2)] * 2)}
    for algorithm in ("em", "fedem"):
        ran = train(
            {"algorithm": algorithm, "components": 2, "covariance": covariance, "start": "given", "rounds": 30},
            np.array_split(y, 20),
            given,
        )
        weights = ran.state.parameters()["weights"]
        assert 0 < weights[1] < 1e-4 and np.isfinite(ran.state.objective)


def test_more_components_than_rows_of_any_client():
    """Only the population needs as many rows as components."""
    assert len(train(EM | {"components": 20, "rounds": 2, "trial_rounds": 2}, ROWS).state.parameters()["weights"]) == 20


def test_a_table_that_nobody_saw_and_a_table_of_zeros():
    rows = [np.full((3, 4), np.nan), np.zeros((6, 4))]
    for model in ("gaussian_tables", "poisson_tables", "bernoulli_tables"):
        train(TABLES | {"model": model}, rows)


def test_rows_in_which_everything_is_missing():
    rows = [np.where(GENERATOR.random(own.shape) < 0.5, np.nan, own) for own in ROWS]
    rows[0][:] = np.nan
    rows[3][:, 2] = np.nan
    for algorithm in ("em", "fedem"):
        train({"model": "gaussian_imputer", "algorithm": algorithm, "rounds": 4}, rows)


# --- private runs ---------------------------------------------------------------------------------------------------

GIVEN = {"weights": np.ones(2) / 2, "means": np.array([[-1.0, 0, 0], [1.0, 0, 0]]), "covariances": np.ones((2, 3))}


def private_sum(rows, given=GIVEN, **settings):
    method = FederatedEM(Varied(algorithm="private", components=2, covariance="diag", **settings))
    block = block_of(rows)
    message = method.message(method.init(facts(block, start=given, rho=1.0, nominal=5)))
    return answer(method, message, block, 2, None)[0][message.release].value()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_private_run_leaves_out_rows_that_are_not_finite(bad):
    """It may not tell anybody that there are some."""
    rows = with_entry(bad)
    without = [*ROWS[:3], np.delete(ROWS[3], 17, axis=0), *ROWS[4:]]
    assert np.array_equal(private_sum(rows), private_sum(without))
    assert not private_sum([np.full((4, 3), bad)]).any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e300, -1e300, 1e155, 1e-320])
def test_no_row_makes_a_private_run_fail_or_warn(value):
    """A warning in a worker's log would tell of it; nor does the division by a small public scale."""
    scaled = {**GIVEN, "centre": np.zeros(3), "scale": np.full(3, 1e-12)}
    for given in (GIVEN, scaled):
        for rows in (with_entry(value), [np.full((3, 3), value)]):
            assert private_sum(rows, given).dtype == np.int64


@pytest.mark.filterwarnings("error")
def test_a_private_client_whose_own_columns_have_a_singular_covariance_contributes_nothing(monkeypatch):
    """Cholesky factors of the columns that a client has may fail by rounding: it is left out, and nobody learns it."""
    method = FederatedEM(Varied(algorithm="private", model="gaussian_imputer"))
    given = {"mean": np.zeros(3), "covariance": np.eye(3)}
    whole, partly = ROWS[3], np.where(np.arange(3) == 1, np.nan, ROWS[4])
    block = block_of([whole, partly])
    message = method.message(method.init(facts(block, start=given, rho=1.0, nominal=5)))
    real = np.linalg.cholesky

    def fails_for_some(matrices):
        if (matrices[..., 1, 0] == 0).all() and len(matrices) == 1 and not np.array_equal(matrices[0], np.eye(3)):
            raise np.linalg.LinAlgError("Matrix is not positive definite")
        return real(matrices)

    theta = {**message.theta, "covariance": np.eye(3) + 0.5 * (1 - np.eye(3))}
    message = replace(message, theta=theta)
    alone = answer(method, message, block_of([whole]), 2, None)[0][message.release].value()
    monkeypatch.setattr(np.linalg, "cholesky", fails_for_some)
    both = answer(method, message, block, 2, None)[0][message.release].value()
    assert alone.any() and np.array_equal(both, alone)


def test_parameters_that_nobody_can_use_fail_for_all_alike(monkeypatch):
    """Whether they can is a matter of published values; a leaf of empty clients meets the same error."""
    bad = {**GIVEN, "covariances": np.stack([np.eye(3), -np.eye(3)])}
    method = FederatedEM(Varied(algorithm="private", components=2))
    block = block_of(ROWS)
    state = method.init(facts(block, start={**bad, "covariances": np.stack([np.eye(3)] * 2)}, rho=1.0, nominal=5))
    message = replace(method.message(state), theta=bad)
    for rows in (ROWS, [np.zeros((0, 3))]):
        with pytest.raises(np.linalg.LinAlgError):
            answer(method, message, block_of(rows), 2, None)


def test_private_populations_of_nobody():
    assert not private_sum([np.zeros((0, 3))] * 4).any()
    y, given = three_components(30)
    config = Varied(algorithm="private", rounds=3)
    block = block_of([y[:0]] * 3)
    ran = run(config, block, facts(block, start=given, rho=1.0, nominal=10))
    assert np.array_equal(ran.state.statistic, ran.states[0].statistic), "nobody, no noise: nothing moves"
