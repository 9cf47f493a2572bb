"""Benchmarks run at a tiny size and say what docs/notes/benchmarks.md promises; floors compute what methods compute, so
that ratios compare the same work. Whole commands are measured by hand only."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fedcore.papers.data import data_file
from fedcore.papers.perma.mnist import Size

from benchmarks import (
    billion,
    cohorts,
    dictionaries,
    em,
    fit,
    floors,
    gradient_em,
    machine,
    noise,
    peers,
    perma_mnist,
    plan,
    profile,
    scale,
    writers,
)
from benchmarks.__main__ import NAMES, parser
from benchmarks.command import Trained
from benchmarks.measured import Measured, in_turns
from fedcore.population.store import Population

SHARES = {"of_bandwidth", "of_gemm"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A small machine, and no data of the person's own."""
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    measured = machine.limits
    monkeypatch.setattr(machine, "limits", lambda: measured(1, copied=2**16, order=16))


def options(folder, **given):
    return SimpleNamespace(
        **{"dir": folder, "clients": 20, "workers": 1, "repeats": 1, "least": None, "only": [], "peers": {}, **given}
    )


def rows_of(result: dict) -> dict[str, dict]:
    """By `what`, after a journey through JSON; the last of several."""
    return {row["what"]: row for row in json.loads(json.dumps(result, allow_nan=False))["rows"]}


# --- what is measured -----------------------------------------------------------------------------------------------


def test_a_measured_quantity_is_its_median():
    taken = Measured([5.0, 1.0, 2.0])
    assert taken == 2.0 and taken.quartiles == (1.5, 3.5) and json.dumps(taken) == "2.0"
    assert taken.map(lambda value: 2 * value).values == (10.0, 2.0, 4.0)
    assert taken.over(Measured([5.0, 2.0, 1.0])).values == (1.0, 0.5, 2.0)
    assert taken.over(2.0) == 1.0 and taken.over(Measured([4.0])).values == (1.25, 0.25, 0.5)
    with pytest.raises(ValueError):
        Measured([])


def test_functions_take_turns_and_the_first_turn_does_not_count():
    called, clock = [], iter(range(100))
    found = in_turns({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, 2, lambda: next(clock))
    assert called == ["a", "b"] * 3
    assert found == {"a": 1.0, "b": 1.0} and len(found["a"].values) == 2


def test_the_cost_model_is_reading_once_and_multiplying():
    limits = machine.Limits(Measured([10.0]), Measured([100.0]), Measured([200.0]))
    assert limits.shares(2.0, 5.0, 50.0) == {"of_bandwidth": 0.25, "of_gemm": 0.25}
    assert limits.shares(2.0, 5.0, 50.0, "single")["of_gemm"] == 0.125


def test_cpu_of_a_round_is_taken_between_commits():
    run = Trained([], 1.0, 1.0, 2**20, 0, ((0, 1.0), (4, 3.0), (5, 3.5), (14, 8.0)))
    assert run.cpu_per_round(4) == 0.5 and run.peaks == {"flow_MiB": 1.0}
    assert np.isnan(run.cpu_per_round(14))


def test_the_command_line_knows_every_benchmark():
    assert parser().parse_args([]).name is None
    for name in NAMES:
        chosen = parser().parse_args([name, "--clients", "5", "--peer", "pfl=python"])
        assert chosen.clients == 5 and dict(chosen.peer) == {"pfl": "python"}
    with pytest.raises(SystemExit):
        parser().parse_args(["em", "--peer", "pfl"])


@pytest.mark.slow
def test_profiles_are_compared_with_opendp(tmp_path):
    pytest.importorskip("opendp")
    (poor, good) = rows_of(profile.measure(options(tmp_path, only=["people"]))).values()
    assert poor["rows"] == 20_000 and good["columns"] == 4
    for what in ("bins", "quantiles"):
        for way in profile.WAYS:
            assert 0 <= good[f"{what} {way}"] <= 2 * poor[f"{what} {way}"]


@pytest.mark.slow
def test_fits_take_turns_on_the_same_arrays(tmp_path, monkeypatch):
    """Each estimator is fitted to the first array only."""
    fitted, fits, turns, arrays = fit._fit, {}, [], []

    def once(name, table, *more):
        turns.append(name)
        arrays.append(np.load(table))
        if name not in fits:
            fits[name] = fitted(name, table, *more)
        return fits[name]

    monkeypatch.setattr(fit, "_fit", once)
    found = rows_of(fit.measure(options(tmp_path, clients=400)))
    assert turns == [*fit._MIXTURES] * 2
    assert [len(array) for array in arrays] == [300, 300, 400, 400] and np.array_equal(*arrays[:2])
    assert list(found) == [f"{name}, {rows} rows" for rows in (300, 400) for name in fit._MIXTURES]
    for row in found.values():
        assert row["process_cpu_s"] > row["fit_cpu_s"] > 0 and row["peak_mib"] > 10 and row["held_out_loss"] > 0


# --- floors do the same work ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", gradient_em.KINDS)
def test_floors_of_gradient_em_are_the_method(name):
    data = gradient_em.simulated_clients(3, clients=6, outliers=0, h=0.5, rows=150, concentration=20.0).rows
    ours, floor = gradient_em.training(name, data), gradient_em.KINDS[name][1]
    loop, stacked = floor(data, gradient_em.CENTRES), floor(data, gradient_em.CENTRES, 4)
    for _ in range(6):
        ours.step()
        loop.round()
        stacked.round()
    assert np.allclose(ours.memory["w"], loop.w, atol=1e-6)
    assert np.allclose(ours.state.centres, loop.v, atol=1e-6)
    assert np.allclose(stacked.v, loop.v, atol=1e-9)
    if name == "default":
        # ours adds 1e-6 of its mean variance to the covariance, so that it is never singular
        assert np.allclose(ours.state.spread, loop.spread, rtol=1e-5)
        assert np.allclose(ours.state.covariance, loop.covariance, atol=1e-5)


def test_floors_of_dictionaries_are_the_method():
    ours, samples = dictionaries.training(5)
    given = samples, np.array(ours.state.common), np.array(ours.memory["local"]), dictionaries.THRESHOLD
    loop, stacked = floors.Dictionaries(*given), floors.Dictionaries(*given, 2)
    for _ in range(2):
        ours.step()
        loop.round()
        stacked.round()
    assert np.abs(ours.state.common - loop.common).max() < 1e-12
    assert np.abs(stacked.common - loop.common).max() < 1e-8


def test_the_loop_of_perma_is_the_experiment(tmp_path, monkeypatch):
    small = Size(28, 2, 3, 3, 1, 1, 1)
    monkeypatch.setattr(perma_mnist, "SIZE", small)
    generator = np.random.default_rng(1)  # every atom is used: what a plain SVD makes of unused ones is arbitrary
    samples = [generator.normal(size=(300, 196)) for _ in range(3)]
    place = perma_mnist.Place(tmp_path, perma_mnist.InProcessBackend(), 2**24)
    ours = perma_mnist.perma_mnist.LINES["path"].learn(place, "path", small, samples, 1)
    loop = perma_mnist.loop(samples)
    assert np.abs(np.abs((ours[0] * loop[0]).sum(axis=1)) - 1).max() < 1e-6


# --- every benchmark, tiny ------------------------------------------------------------------------------------------


def test_gradient_em(tmp_path, monkeypatch):
    rows = rows_of(gradient_em.measure(options(tmp_path)))
    assert {"default, core", "preset, core", "preset, floor, stacked", "preset, floor, loop"} <= rows.keys()
    result = gradient_em.measure(options(tmp_path, clients=4))["rows"]
    assert SHARES | {"us_per_client", "of_loop", "of_stacked"} <= result[0].keys()
    assert {row["rows"] for row in result if "rows" in row} == {"equal", "half to one and a half"}


def test_dictionaries(tmp_path):
    rows = rows_of(dictionaries.measure(options(tmp_path, clients=3)))
    assert SHARES | {"rounds_per_cpu_s", "of_loop", "of_stacked", "apart_from_loop"} <= rows["core"].keys()
    assert rows["floor, loop"]["of_loop"] == 1.0


@pytest.mark.slow
def test_em_and_a_peer(tmp_path, monkeypatch):
    monkeypatch.setattr(em, "_flow", lambda population, workers, *_: {"what": f"flow {workers}"})
    monkeypatch.setattr(em, "_whole_flow", lambda *_: None)
    result = em.measure(options(tmp_path, clients=30))
    rows = rows_of(result)
    assert SHARES | {"updates_per_cpu_s", "of_plain", "of_tiled", "of_apart"} <= result["rows"][3].keys()
    assert rows["em, run store"]["wall_s"] > 0 and "skipped" in rows["pfl"]
    rows = rows_of(peers.measure(options(tmp_path, clients=30)))
    assert any(what.endswith(" GaussianMixture") and "of_core" in row for what, row in rows.items()), rows
    assert "skipped" in rows["KMeans"]


def test_writers(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "ROUNDS", 5)
    monkeypatch.setattr(writers, "TIMED", 2)
    run = Trained([{"seconds_round": 0.5}] * 8, 4.0, 3.0, 2**20, 2**21)
    told = []
    monkeypatch.setattr(writers, "train", lambda *arguments, **named: told.append(named.get("PREFECT_API_URL")) or run)
    monkeypatch.setattr(writers, "own_server", lambda folder: nullcontext(SimpleNamespace(api="there")))
    rows = rows_of(writers.measure(options(tmp_path)))
    assert set(told) == {None, "there"} and len(rows) == 12 and rows["default, loop"]["of_loop"] == 1.0
    assert rows["preset, run store"]["seconds"] > 0 and rows["preset, run store"]["data"] == "synthetic"
    assert rows["preset, train"]["rounds_s"] == 2.5 and rows["preset, train"]["worker_MiB"] == 2.0


def test_perma_mnist(tmp_path, monkeypatch):
    monkeypatch.setattr(perma_mnist, "SIZE", Size(14, 2, 1, 1, 1, 1, 1))
    monkeypatch.setattr(perma_mnist.perma_mnist, "OWN", 60)
    monkeypatch.setattr(perma_mnist.perma_mnist, "CLIENTS", 3)
    rows = rows_of(perma_mnist.measure(options(tmp_path)))
    assert rows["run"]["of_paper"] > 0 and rows["loop"]["of_loop_cpu"] == 1.0
    assert rows["paper, on its own machine"]["seconds"] == 40.8
    assert data_file(*perma_mnist.perma_mnist.SOURCE) is None


def test_scale(tmp_path, monkeypatch):
    asked = []

    def trained(method, population, settings, *, workers, cache, watched):
        rounds = settings["rounds"] if "rounds" in settings else settings["max_passes"] - 2
        asked.append((method, rounds, workers, cache))
        metrics = [
            {"round": at + 1, "seconds_round": 0.5, "seconds_clients": 0.25, "seconds_release": 0.125}
            for at in range(rounds + 2)
        ]
        return Trained(metrics, 9.0, 8.0, 2**20, 2**21, ((6, 1.0), (8, 2.25)))

    monkeypatch.setattr(scale, "train", trained)
    monkeypatch.setattr(scale, "noise", lambda plan: 0.125)
    monkeypatch.setattr(scale, "SMALLEST", 40)
    result = scale.measure(options(tmp_path, clients=400, workers=(1, 2)))
    rows = [row for row in result["rows"] if row["clients"] == 400]
    assert {row["clients"] for row in result["rows"]} == {40, 400}
    first = next(row for row in rows if row["what"] == "grid" and row["workers"] == 2)
    assert first["round_s"] == 0.375 and first["first_s"] == 0.25 and first["release_s"] == 0.125
    assert first["cpu_us_per_client"] == pytest.approx((1.25 / 2 - 0.125) / 400 * 1e6)
    assert first["of_floor"] == pytest.approx(0.375 / first["floor_s"]) and first["worker_MiB"] == 2.0
    assert {row["what"] for row in rows} == {"float", "grid", "em", "ragged em"}
    assert {cache for *_, cache in asked} >= {0} and max(cache for *_, cache in asked) >= 64
    assert scale.sizes(10**6, 40) == [40, 400, 4000, 40_000, 400_000, 10**6]
    only = scale.measure(options(tmp_path, clients=400, least=400, only=["em"], repeats=0))["rows"]
    assert {(row["what"], row["clients"], "of_floor" in row) for row in only} == {("em", 400, False)}


def test_promises_are_held_against_the_passes_that_were_made(tmp_path, monkeypatch):
    """Ten passes were promised in two phases, and eight were made."""
    phases = [{"phase": "a", "passes": 4, "seconds_per_pass": 1.0, "client_seconds": 0.5}]
    phases.append({"phase": "b", "passes": 6, "seconds_per_pass": 2.0, "client_seconds": 1.5})
    told = {"seconds": 17.0, "seconds_of_work": 12.0, "passes": 10, "bytes_of_flow": 3, "bytes_per_worker": 8}
    told |= {"phases": phases, "pace": 1.5, "calibration": {"seconds": 9.0}}
    rounds = [{"seconds_round": 2.0}] * 8
    found = plan.beside(told, Trained(rounds, 9.0, 8.0, 2, 0, ((0, 1.0), (5, 4.0), (8, 7.0))))
    assert found["seconds"] == (17 - 2 * 2) / 16 and found["work"] == (12 - 2 * 1.5) / 6
    assert found["memory"] == 1.5 and found["passes"] == 10 / 8
    assert "work" not in plan.beside(
        told, Trained(rounds, 9.0, 8.0, 2, 0, ((1, 1.0), (8, 7.0)))
    )  # the first was missed
    assert plan.beside(told, Trained(rounds, 9.0, 8.0, 2, 4))["worker_memory"] == 2.0
    monkeypatch.setattr(plan, "plan", lambda *asked, **where: told)
    monkeypatch.setattr(plan, "train", lambda *asked, **where: Trained(rounds, 9.0, 8.0, 2, 4))
    people = lambda folder, clients: SimpleNamespace(path=folder, n_clients=clients)  # noqa: E731
    monkeypatch.setattr(plan, "CASES", tuple(case._replace(population=people) for case in plan.CASES))
    (row,) = plan.measure(options(tmp_path, only=["background"]))["rows"]
    assert row["clients"] == 20 and row["seconds"] == found["seconds"]


def test_noise_is_measured_beside_a_normal_of_numpy(tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "RELEASES", 1)
    monkeypatch.setattr(noise, "MULTIPLIERS", (1.5,))
    (row,) = noise.measure(options(tmp_path))["rows"]
    assert {"scale", "us_per_cell", "numpy_normal_us"} < row.keys()
    assert abs(row["std_over_planned"] - 1) < 6 * row["expected_error"]


def test_ledgers_by_cohort_are_measured_beside_one_account(tmp_path, monkeypatch):
    monkeypatch.setattr(cohorts, "RELEASES", (2,))
    monkeypatch.setattr(cohorts, "WEEKS", 3)
    (row,) = cohorts.measure(options(tmp_path))["rows"]
    assert row["verify_ratio"] > 0 and row["balance_ratio"] > 0 and row["weeks"] == "3"


@pytest.mark.slow
def test_the_books_of_a_large_population_are_measured(tmp_path):
    billion.make(tmp_path / "p", 12_000_000, billion.MOST)
    made = Population.open(tmp_path / "p")
    assert len(made.blocks) == 1172 and len(made.manifest.cohorts) == billion.WEEKS
    assert made.n_clients == 12_000_000 and made.manifest.needs[-1] == "packed-blocks"
    found = billion.books(str(made.path))
    assert found["plan_s"] > 0 and found["open_s"] > 0
    assert billion.forgetting(str(made.path))["forgotten"] == 2 * billion.MOST
    assert billion.appending(str(tmp_path), "3")["append_s"] > 0


def test_the_cpu_seconds_of_noise_are_those_of_a_plans_last_round():
    planned = scale.PlannedRelease("r1", 1, (2, 50), 4, 3.0, "page", "once").to_json()
    assert scale.noise(()) == 0.0
    assert 0 < scale.noise([{**planned, "shape": (1, 10**6)}, {**planned, "name": "r2", "round": 2}]) < 1


@pytest.mark.slow
def test_importing_benchmarks_makes_nobody_silent():
    """A level of the log that stays in the environment would reach whatever this process starts later."""
    code = (
        "import os; os.environ.pop('PREFECT_LOGGING_LEVEL', None)\nfrom importlib import import_module\n"
        f"for name in {list(NAMES)!r}: import_module('benchmarks.' + name)\n"
        "assert 'PREFECT_LOGGING_LEVEL' not in os.environ"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
