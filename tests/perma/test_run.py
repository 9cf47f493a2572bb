"""Whole runs through session, engine and run store: streamed blocks, outputs, recurring runs, deployment."""

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zarr

import deployments
from fedcore.errors import ConfigError, RunError
from fedcore.evaluation.run_summary import run_summary
from fedcore.methods.dictionary_learning import distances
from fedcore.methods.dictionary_learning.distances import d12
from fedcore.operations.deployment import read_deployments
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import load_run
from fedcore.storage.arrays import read_values
from fedcore.training.personalise import personalise
from fedcore.training.session import resume
from tests import sessions
from tests.conftest import edit_record
from tests.perma.run_in_memory import block_of
from tests.perma.test_rounds import task
from tests.sessions import to_end

FAST = {"profile": "recommended", "atoms": 6, "global_atoms": 3, "rounds": 4, "starts": 2, "start_steps": 60}
SIZES = np.array([120, 0, 80, 45, 3, 90, 200, 160, 75, 50, 60, 60])


def population_of(path, rows, *, leaf=3, block=6):
    whole = block_of(rows)
    with PopulationWriter(path, "rows", whole.features, clients_per_leaf=leaf, clients_per_block=block) as writer:
        writer.write([f"c{number}" for number in range(whole.clients)], (whole.ptr, whole.x))
        return writer.commit(Provenance(sources=("test",)))


begin = partial(sessions.begin, method="perma")


def digest(path) -> str:
    """Of the state and of the clients' memories."""
    ran = load_run(path)
    folder = ran.path / "memory" / f"{ran.head['round']:06d}"
    files = [read_values(file) for file in sorted(folder.iterdir())]
    parts = [ran.state, {name: np.concatenate([values[name] for values in files]) for name in files[0]}]
    data = [v.tobytes() if isinstance(v, np.ndarray) else repr(v).encode() for p in parts for _, v in sorted(p.items())]
    return hashlib.sha256(b"".join(data)).hexdigest()


@pytest.mark.slow
def test_rows_read_from_the_store_while_they_are_used_give_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(distances, "TILE_NUMBERS", 6 * 64)  # some clients are read in tiles
    monkeypatch.setattr(distances, "STACK_NUMBERS", 6 * 64)
    rows, _, _ = task(1, clients=12, sizes=SIZES)
    population = population_of(tmp_path / "p", rows)
    held = to_end(begin(population, tmp_path, settings=FAST, run_id="held"))
    session = begin(population, tmp_path, settings=FAST, run_id="streamed")
    session.training.source = replace(session.training.source, stream_above=0)
    assert digest(held.path) == digest(to_end(session).path)


def test_outputs_are_written(tmp_path):
    rows, _, common = task(2, clients=12, sizes=SIZES)
    population = population_of(tmp_path / "p", rows)
    stored = to_end(begin(population, tmp_path, settings=FAST))
    assert stored.round == FAST["rounds"] + 1 and run_summary(stored)["algorithm"] == "PerMA"
    personalise(stored.path, population.path, tmp_path / "out")
    group = zarr.open_group(tmp_path / "out", mode="r")
    assert {"local", "rank", "loss", "distance", "rows_global", "rows_local", "ptr"} == set(group.array_keys())
    assert group["local"].shape == (12, 3, 6) and group["rows_local"].shape == (SIZES.sum(), 6)
    whole = group["rows_global"][:] + group["rows_local"][:]
    np.testing.assert_allclose(whole[: SIZES[0]], rows[0], atol=1e-4)


def test_the_next_run_starts_from_the_one_before(tmp_path):
    rows, _, common = task(3, clients=6)
    population = population_of(tmp_path / "p", rows)
    first = to_end(begin(population, tmp_path, settings=FAST, run_id="first"))
    second = to_end(begin(population, tmp_path, settings=FAST, run_id="second", start_from=str(first.path)))
    assert d12(load_run(second.path).state["common"], common) < 1e-2
    with pytest.raises(RunError, match="kernel"):
        monkey = begin(population, tmp_path, settings=FAST, run_id="third")
        monkey.close()
        edit_record(monkey.run.path, lambda info: info.update(kernel="perma-0"))
        resume(monkey.run.path, InProcessBackend())


@pytest.mark.parametrize(
    ("earlier", "method"), [({"profile": "recommended"}, "perma"), ({"model": "background"}, "background")]
)
def test_runs_of_dictionaries_that_belong_elsewhere_are_no_start(tmp_path, earlier, method):
    """Runs of before the split: their settings name the method."""
    population = population_of(tmp_path / "p", task(4, clients=6)[0])
    settings = {"rounds": 2, "atoms": 3, "global_atoms": 3}
    first = to_end(begin(population, tmp_path, settings=settings, run_id="first", method="dictionaries"))
    second = {"run_id": "second", "method": "dictionaries", "start_from": str(first.path)}
    to_end(begin(population, tmp_path, settings=settings, **second))
    edit_record(first.path, lambda info: info["config"].update(earlier))
    with pytest.raises(ConfigError, match=f"the method {method} now"):
        begin(population, tmp_path, settings=settings, **{**second, "run_id": "third"})


def test_the_example_deployment_can_be_read():
    found = read_deployments(Path(deployments.__file__).parent / "perma.toml")
    assert [item.method for item in found] == ["perma"]
