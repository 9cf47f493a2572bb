"""Blocks that are too large to be held: the same bits, in the memory of a few tiles."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedcore.methods.federated_em import FederatedEM, private
from fedcore.methods.federated_em import leaf_rows as rows
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.federated_em.messages import plain_scaling
from fedcore.population import streaming
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.clients import Source, answer_block
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import load_run
from fedcore.training.request import TrainRequest
from fedcore.training.session import concluding, start_run
from tests.federated_em.run_in_memory import block_of, facts
from tests.federated_em.test_private import PRIVATE, two_component_facts
from tests.federated_em.varied import Varied

SHORT = {"rounds": 3, "components": 2}
SETTINGS = {
    "em": {"max_passes": 5, "components": 2, "algorithm": "em", "weights": "clients"},
    "fedem": SHORT | {"codec": "dithering", "participation": 0.5},
    "natural": SHORT | {"participation": 0.5},
    "batches": SHORT | {"algorithm": "fedem", "batch": 3},
    "vr": SHORT | {"algorithm": "vr-fedem", "batch": 3, "rounds": 6},
    "tied": SHORT | {"covariance": "tied", "algorithm": "fedem"},
    "validation": SHORT | {"algorithm": "fedem", "validation": 0.3},
    "regression": SHORT | {"model": "regression", "algorithm": "fedem"},
    "imputer": {"model": "gaussian_imputer", "rounds": 3, "algorithm": "fedem"},
    "tables": {"model": "gaussian_tables", "table_rows": 3, "rounds": 3, "algorithm": "fedem"},
}


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    """Two blocks of clients of 0 .. 300 rows, all multiples of 3."""
    path, generator = tmp_path_factory.mktemp("rows") / "p", np.random.default_rng(3)
    sizes = 3 * np.array([100, 0, 4, 1, 30, 7, 2, 0, 60, 12, 5, 9])
    x = generator.normal(size=(sizes.sum(), 4)) + 2 * generator.integers(0, 2, (sizes.sum(), 1))
    with PopulationWriter(path, "rows", 4, clients_per_leaf=4, clients_per_block=8) as writer:
        writer.write([f"c{i}" for i in range(12)], (np.concatenate([[0], np.cumsum(sizes)]), x.astype(np.float32)))
        return writer.commit(Provenance(sources=("test",)))


@pytest.fixture(scope="module")
def population_with_gaps(population, tmp_path_factory):
    path, generator = tmp_path_factory.mktemp("rows") / "gaps", np.random.default_rng(4)
    with PopulationWriter(path, "rows", 4, clients_per_leaf=4, clients_per_block=8) as writer:
        for index in range(len(population.blocks)):
            block = population.read(index)
            x = np.where(generator.random(block.x.shape) < 0.2, np.nan, block.x).astype(np.float32)
            x[np.isnan(x).all(axis=1), 0] = 0.0
            writer.write([f"c{block.first + i}" for i in range(block.clients)], (block.ptr, x))
        return writer.commit(Provenance(sources=("test",)))


def trained(population, folder, name, settings, whole_bytes):
    request = TrainRequest(
        method="federated_em",
        population=str(population.path),
        settings=settings,
        runs=str(folder),
        run_id=name,
        cache_bytes=0,
    )
    session = start_run(request, InProcessBackend(), stamp="then")
    session.training.source = replace(session.training.source, stream_above=whole_bytes)
    with concluding(session):
        while session.training.step() is not None:
            pass
    return load_run(session.run.path).state


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_streamed_blocks_give_the_same_bits(population, tmp_path, monkeypatch, settings):
    """Also when clients, or their rows, do not fit a portion, a piece or a window."""
    monkeypatch.setattr(streaming, "WINDOW_BYTES", 1)
    monkeypatch.setattr(rows, "PORTION_NUMBERS", 4 * 100)
    monkeypatch.setattr(rows, "PIECE_NUMBERS", 4 * 30)
    whole = trained(population, tmp_path, "whole", settings, 2**40)
    streamed = trained(population, tmp_path, "streamed", settings, 0)
    assert_same(whole, streamed)


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["full", pytest.param("tied", marks=pytest.mark.heavy)])
def test_rows_with_gaps_stream(population_with_gaps, tmp_path, monkeypatch, covariance):
    monkeypatch.setattr(streaming, "WINDOW_BYTES", 1)
    monkeypatch.setattr(rows, "PORTION_NUMBERS", 4 * 100)
    monkeypatch.setattr(rows, "PIECE_NUMBERS", 4 * 30)
    settings = SETTINGS["validation"] | {"covariance": covariance, "rounds": 2}
    whole = trained(population_with_gaps, tmp_path, "whole", settings, 2**40)
    assert_same(whole, trained(population_with_gaps, tmp_path, "streamed", settings, 0))


def assert_same(whole, streamed):
    assert whole.keys() == streamed.keys()
    for name, value in whole.items():
        assert np.array_equal(value, streamed[name]), name


def test_private_rounds_stream(population, monkeypatch):
    monkeypatch.setattr(streaming, "WINDOW_BYTES", 1)
    monkeypatch.setattr(rows, "PORTION_NUMBERS", 4 * 50)
    given = {
        "weights": np.ones(2) / 2,
        "means": np.array([np.zeros(4), np.full(4, 2.0)]),
        "covariances": np.ones((2, 4)),
        "centre": np.full(4, 0.5),
        "scale": np.full(4, 2.0),
    }
    method = FederatedEM(Varied(algorithm="private", components=2, covariance="diag"))
    public = facts(population.read(0), start=given, rho=1.0, nominal=12, leaf=4)
    message = method.message(method.init(public))
    source = Source(str(population.path), 1, cache_bytes=0)
    whole, streamed = (answer_block(method, replace(source, stream_above=limit), message, 0) for limit in (2**40, 0))
    assert np.array_equal(whole[message.release].value(), streamed[message.release].value())
    assert whole[message.release].value().any()


def test_methods_that_do_not_stream_get_blocks_whole(population, monkeypatch):
    kinds = []

    class Whole(FederatedEM):
        streams_rows = False

        def client_update(self, message, block, memory):
            kinds.append(type(block.x))
            return super().client_update(message, block, memory)

    for cls in (Whole, FederatedEM):
        method = cls(Varied(algorithm="em"))
        message = method.message(method.init(facts(population.read(0))))
        answer_block(method, Source(str(population.path), 1, cache_bytes=0, stream_above=0), message, 0)
    assert set(kinds) == {np.ndarray}


def test_portions_hold_whole_clients_and_little():
    sizes = [3, 0, 50, 2, 2, 1, 0, 9]
    leaf = rows_of(block_of([np.ones((size, 2)) for size in sizes]), plain_scaling(2))
    for limit in (1, 4, 6, 20, 1000):
        rows_before, monkey = rows.PORTION_NUMBERS, 2 * limit
        try:
            rows.PORTION_NUMBERS = monkey
            parts = list(leaf.portions())
        finally:
            rows.PORTION_NUMBERS = rows_before
        assert [client for clients, _ in parts for client in range(clients.start, clients.stop)] == list(range(8))
        assert np.concatenate([np.diff(part.ptr) for _, part in parts]).tolist() == sizes
        for clients, part in parts:
            assert len(part.y) == part.ptr[-1] and (len(part.y) <= limit or clients.stop - clients.start == 1)


@pytest.mark.parametrize("q", [6, 105, 20_000])
def test_a_client_is_clipped_as_if_alone(q):
    """No bit of it depends on the rows beside it, however long they are."""
    generator = np.random.default_rng(0)
    means = generator.normal(size=(9, q)) * np.logspace(-4, 4, 9)[:, None]
    means[3] = np.nan
    message = replace(_message(PRIVATE), s=generator.normal(size=q), part_scales=generator.uniform(0.5, 2, q))
    together = means.copy()
    with np.errstate(all="ignore"):
        private._clip(together, np.arange(9) != 5, message)
        for row in range(9):
            alone = means[row : row + 1].copy()
            private._clip(alone, np.array([row != 5]), message)
            assert np.array_equal(alone[0], together[row])
    assert not together[[3, 5]].any() and together[0].any()
    assert all(sum(int(v) ** 2 for v in row) <= 2**32 for row in together)


def _message(config):
    method = FederatedEM(config)
    return method.message(method.init(two_component_facts(block_of([np.zeros((4, 2))]))))


TRAIN = """
import json, resource, sys
from dataclasses import replace
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.request import TrainRequest
from fedcore.training.session import concluding, start_run

settings = {"algorithm": "em", "covariance": "diag", "components": 2, "max_passes": 4}
request = TrainRequest(method="federated_em", population=sys.argv[1], settings=settings, runs=sys.argv[2], run_id="r")
session = start_run(request, InProcessBackend(), stamp="then")
session.training.source = replace(session.training.source, stream_above=64 * 2**20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with concluding(session):
    while session.training.step() is not None:
        pass
rise = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(json.dumps({"rise": rise, "objective": session.training.state.objective}))
"""


@pytest.mark.heavy
@pytest.mark.slow
def test_a_client_larger_than_the_memory_it_is_given(tmp_path):
    """One client of 400 MB of rows raises the peak memory of the process by less than 250 MB; k-means++ included."""
    generator, rows_of_client = np.random.default_rng(0), 1_000_000
    x = generator.normal(size=(rows_of_client, 100)).astype(np.float32)
    x[::2] += 3
    assert x.nbytes == 400_000_000
    with PopulationWriter(tmp_path / "p", "rows", 100, clients_per_leaf=1, clients_per_block=1) as writer:
        writer.write(["small", "large"], (np.array([0, 10, rows_of_client]), x))
        writer.commit(Provenance(sources=("test",)))
    del x
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(tmp_path / "p"), str(tmp_path / "runs")],
        text=True,
        capture_output=True,
        check=True,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["rise"] < 250_000_000
    assert np.isfinite(answer["objective"])
