"""`fedcore select`: what is compared, on which rows, and that an interrupted comparison goes on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from fedcore.errors import ConfigError, RunError
from fedcore.methods.federated_em import FederatedEM
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.criteria import free_parameters
from fedcore.operations.selection import combinations, compare, requests
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, load_run
from fedcore.training.request import TrainRequest
from fedcore.training.session import abandon, concluding, resume, start_run
from tests.command import fedcore, works
from tests.conftest import write_population


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    """20 clients with 60 rows each of three groups."""
    random = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])
    rows = centres[random.integers(3, size=1200)] + random.normal(size=(1200, 2))
    path = tmp_path_factory.mktemp("select") / "p"
    write_population(path, "rows", 2, range(20), (np.arange(0, 1201, 60), rows), dtype="float64")
    return path


def request(population, folder, **settings) -> TrainRequest:
    return TrainRequest(
        method="federated_em",
        population=str(population),
        settings={"algorithm": "em", "max_passes": 17, "restarts": 4, **settings},
        seed=1,
        runs=str(folder),
    )


def to_end(session) -> str:
    with concluding(session):
        while session.training.step() is not None:
            pass
    return str(session.run.path)


def train(one: TrainRequest) -> str:
    return to_end(start_run(one, InProcessBackend(), stamp="then"))


def go_on(run: str) -> str:
    return to_end(resume(run, InProcessBackend()))


def test_every_combination_once():
    assert combinations({"a": (1, 2), "b": ("x",)}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    for wrong in ({}, {"a": ()}, {"a": (1, 1)}, {"a": range(15), "b": range(15)}):
        with pytest.raises(ConfigError):
            combinations(wrong)


def test_the_groups_are_found_and_criteria_are_those_of_the_training_rows(population, tmp_path):
    wanted = requests(request(population, tmp_path), {"components": (1, 3, 5)}, 0.2, "s")
    seen = []
    found = compare(wanted, train, go_on, lambda done, total: seen.append((done, total)))
    assert found[0].tried == {"components": 3} and seen == [(1, 3), (2, 3), (3, 3)]
    assert [one.loss for one in found] == sorted(one.loss for one in found)
    assert min(found, key=lambda one: one.bic).tried == {"components": 3}
    best = found[0]
    run = Run.open(best.run)
    method = wanted[0][1].method
    from fedcore.methods.registry import make_method
    from fedcore.population.store import Population

    made = make_method(method, run.info["config"])
    state = made.State(**load_run(run.path).state)
    theta = made.parameters(state)
    store = Population.open(population)
    blocks = [store.read(index) for index in range(len(store.blocks))]
    held = np.concatenate([state.split().held_back(block.ptr, block.first) for block in blocks])
    rows = np.concatenate([block.x for block in blocks])
    joint = np.stack(
        [
            np.log(weight) + multivariate_normal(mean, covariance).logpdf(rows)
            for weight, mean, covariance in zip(theta["weights"], theta["means"], theta["covariances"], strict=True)
        ]
    )
    density = logsumexp(joint, axis=0)
    assert best.loss == pytest.approx(-density[held].mean(), rel=1e-9)
    k = 2 + 3 * 2 + 3 * 3
    assert free_parameters(made.config, theta) == k
    bic = -2 * density[~held].sum() + k * math.log((~held).sum())
    assert best.bic == pytest.approx(bic, rel=1e-9)
    shares = np.exp(joint - density)[:, ~held]
    assert best.icl == pytest.approx(bic - 2 * (shares * np.log(shares)).sum(), rel=1e-9)


@pytest.mark.slow
def test_what_is_there_is_not_trained_again(population, tmp_path):
    wanted = requests(request(population, tmp_path), {"components": (1, 2)}, 0.2, "s")
    trained = []

    def once(one: TrainRequest) -> str:
        if len(trained) == 1:
            session = start_run(one, InProcessBackend(), stamp="then")
            session.training.step()
            session.close()
            raise KeyboardInterrupt
        trained.append(one.run_id)
        return train(one)

    with pytest.raises(KeyboardInterrupt):
        compare(wanted, once, go_on)
    again = compare(wanted, lambda one: pytest.fail("it was begun already"), go_on)
    whole = compare(requests(request(population, tmp_path / "other"), {"components": (1, 2)}, 0.2, "s"), train, go_on)
    assert [one.loss for one in again] == [one.loss for one in whole]
    other = requests(request(population, tmp_path, max_passes=5), {"components": (1, 2)}, 0.2, "s")
    with pytest.raises(RunError, match="other settings"):
        compare(other, train, go_on)


def test_runs_of_another_population_are_not_taken_for_candidates(population, tmp_path):
    compare(requests(request(population, tmp_path), {"components": (1,)}, 0.2, "s"), train, go_on)
    random = np.random.default_rng(1)
    with PopulationWriter(tmp_path / "other", "rows", 2, dtype="float64") as writer:
        writer.write(range(20), (np.arange(0, 1201, 60), random.normal(size=(1200, 2))))
        writer.commit()
    with pytest.raises(RunError, match="another population"):
        compare(requests(request(tmp_path / "other", tmp_path), {"components": (1,)}, 0.2, "s"), train, go_on)


def test_runs_of_other_arithmetic_and_abandoned_ones_are_not_taken_for_candidates(population, tmp_path, monkeypatch):
    wanted = requests(request(population, tmp_path), {"components": (1, 2)}, 0.2, "s")
    start_run(wanted[0][1], InProcessBackend(), stamp="then").close()
    abandon(tmp_path / wanted[0][1].run_id)
    with pytest.raises(RunError, match="was given up"):
        compare(wanted, train, go_on)
    train(wanted[1][1])
    monkeypatch.setattr(FederatedEM, "arithmetic_version", "another")
    with pytest.raises(RunError, match="computes otherwise"):
        compare(wanted[1:], train, go_on)


def test_private_runs_and_methods_without_held_out_rows_are_refused(population, tmp_path):
    with pytest.raises(ConfigError, match="private"):
        requests(request(population, tmp_path, algorithm="private", epsilon=1.0), {"components": (1, 2)}, 0.2, "s")
    with pytest.raises(ConfigError, match="has no held-out rows"):
        requests(TrainRequest(method="histograms", population="x"), {"clusters": (1, 2)}, 0.2, "s")


NESTED = {"algorithm": {"name": "em", "validation": 0.3}, "max_passes": 5}


def test_the_share_is_the_same_for_all_and_not_kept(population, tmp_path):
    both = {"components": (1, 2)}
    for settings, tries in (({}, {"validation": (0.1, 0.3)}), ({"validation": 0.3}, both), (NESTED, both)):
        with pytest.raises(ConfigError, match="which rows are held back"):
            requests(request(population, tmp_path, **settings), tries, 0.2, "s")


def test_every_candidate_has_a_name_of_its_own(population, tmp_path):
    long = {setting: (1 / 3, 1 / 7) for setting in ("gamma", "participation", "pseudo_rows")}
    for name, tries in (("s" * 100, {"components": (2, 3)}), ("s" * 20, long | {"rounds": (10, 11)})):
        asked = TrainRequest(method="federated_em", population=str(population), runs=str(tmp_path))
        wanted = requests(asked, tries, 0.2, name)
        assert len({one.run_id for _, one in wanted}) == len(wanted)
    for name in ("", "../s", "s s", "s" * 130):
        with pytest.raises(ConfigError, match="run_id"):
            requests(request(population, tmp_path), {"components": (2, 3)}, 0.2, name)


@pytest.mark.parametrize(
    ("settings", "shapes", "count"),
    [
        ({"covariance": "full"}, {"means": (3, 4), "covariances": (3, 4, 4)}, 2 + 12 + 30),
        ({"covariance": "tied"}, {"means": (3, 4), "covariances": (4, 4)}, 2 + 12 + 10),
        ({"covariance": "diag"}, {"means": (3, 4), "covariances": (3, 4)}, 2 + 12 + 12),
        ({"covariance": "spherical"}, {"means": (3, 4), "covariances": (3,)}, 2 + 12 + 3),
        ({"model": "multinomial"}, {"probabilities": (3, 4)}, 2 + 9),
        ({"model": "poisson"}, {"rates": (3, 4)}, 2 + 12),
        ({"model": "regression"}, {"coefficients": (3, 4), "variances": (3,)}, 2 + 12 + 3),
    ],
)
def test_free_parameters(settings, shapes, count):
    theta = {"weights": np.ones(3), **{name: np.ones(shape) for name, shape in shapes.items()}}
    assert free_parameters(FederatedEMConfig(components=3, **settings), theta) == count


@pytest.mark.slow
def test_the_command(population, tmp_path):
    base = ["select", "federated_em", population, "--local", "--runs", tmp_path, "--set", "algorithm=em"]
    base += ["--set", "max_passes=14", "--set", "restarts=4", "--try", "components=2,3"]
    said = works(*base, "--json").json
    assert said["privacy"] == "none" and said["best"] == {"components": 3}
    assert said["command"].endswith("--set algorithm=em --set max_passes=14 --set restarts=4 --set components=3")
    shown = works(*base).out
    assert "not private" in shown and said["command"] in shown
    refused = fedcore("select", "federated_em", population, "--try", "components", "--local")
    assert refused.code == 2 and "key=value" in refused.err
