"""What a private run leaves depends on the data through its published values only.

Two populations that differ in one client, and a noise source that publishes the same arrays for both: everything else
that the runs leave (state, metrics, statement, report, ledger records) must then be the same, to the byte. So there is
no branch, stopping rule, number or text that follows raw values.
"""

import hashlib
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

import fedcore.rounds.engine
import fedcore.training.publishing
from fedcore.evaluation.report import write_report
from fedcore.methods.names import OWN
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.rounds.caches import BLOCKS
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run
from fedcore.storage.arrays import read_values
from fedcore.training.request import TrainRequest
from fedcore.training.session import start_run
from tests.audit.em_releases import STARTS, rows_of_client
from tests.command import private_population
from tests.conftest import small_counts
from tests.sessions import to_end

SETTINGS = {"clusters": 2, "rounds": 4, "overseed": 4, "merge_after": 2, "epsilon": 4.0}
IDENTIFIER = re.compile(rb"[0-9a-f]{32,64}|\"(at|started|expires|pid)\": ?[\d.]+")


class Puppet(SecureNoise):
    """Publishes an array that depends on the release's name alone, as if the noise had wanted it so."""

    def draw(self, planned, run_key, values):
        seed = int.from_bytes(hashlib.blake2b(planned.name.encode(), digest_size=8).digest(), "little")
        generator = np.random.default_rng(seed)
        return generator.integers(2**18, 2**22, values.shape) + np.rint(
            generator.normal(0, planned.scale, values.shape)
        ).astype(np.int64)


def of_counts(folder, counts):
    """(population, ledger, request) of a run of private histograms."""
    population, ledger = private_population(folder / "population", sp.csr_matrix(counts), leaf=4, block=64)
    return population, ledger, {"method": "histograms", "settings": SETTINGS}


def of_rows(folder, counts):
    """The same of private federated EM; the clients' rows are made of their counts, with a huge and a missing one."""
    ledger, rows = create_ledger(default_ledger_url()), [rows_of_client(vector) for vector in counts]
    with PopulationWriter(
        folder / "population",
        "rows",
        2,
        clients_per_leaf=4,
        clients_per_block=64,
        dtype="float64",
        nominal_clients=1000,
        ledger={"id": ledger.id, "url": ledger.url},
    ) as writer:
        ptr = np.concatenate([[0], np.cumsum([len(own) for own in rows])]).astype(np.int64)
        writer.write([f"c{i}" for i in range(len(rows))], (ptr, np.concatenate(rows)))
        population = writer.commit(Provenance(sources=("test",)))
    ledger.register(population.id)
    ledger.set_budget(population.id, 8.0, 1e-6)
    np.savez(folder / "start.npz", **STARTS["gaussian"], centre=np.zeros(2), scale=np.ones(2))
    settings = {"algorithm": "private", "covariance": "known", "components": 2, "rounds": 4, "epsilon": 4.0}
    return (
        population,
        ledger,
        {
            "method": "federated_em",
            "settings": settings,
            "public_start_because": "made up",
            "start_from": str(folder / "start.npz"),
        },
    )


def traces(folder, counts, monkeypatch, world=of_counts, earlier=()) -> dict[str, object]:
    """Everything a run on these counts leaves, by name; identifiers, times and places blanked out.

    earlier: names of runs that are made before it; folder: its name has three letters, because the report tells the
    size of run.json, which holds it.
    """
    folder.mkdir()
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
    monkeypatch.setattr(fedcore.training.publishing, "noise_of", lambda test_noise: Puppet())
    ticks = iter(range(10**6))
    monkeypatch.setattr(fedcore.rounds.engine, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    BLOCKS.clear()
    population, ledger, asked = world(folder, counts)
    for run_id in (*earlier, "run"):
        request = TrainRequest(population=str(population.path), runs=str(folder / "runs"), run_id=run_id, **asked)
        session = start_run(request, InProcessBackend(), stamp="then")
        to_end(session)
    write_report(Run.open(folder / "runs" / "run"), None)
    left = {}
    for path in sorted((folder / "runs" / "run").rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".zip":
            left |= {f"{name}:{key}": _bits(value) for key, value in read_values(path).items()}
        elif path.is_file():
            left[name] = IDENTIFIER.sub(b"*", path.read_bytes().replace(str(folder).encode(), b"*"))
    for record in ledger.history(population.id):
        left[f"record {record['seq']}"] = IDENTIFIER.sub(b"*", json.dumps(record, sort_keys=True).encode())
    left["budget"] = IDENTIFIER.sub(b"*", repr(ledger.balance(population.id)).encode())
    return left


def _bits(value):
    return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def differences(one: dict, other: dict) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


BASE = small_counts(60, 7).toarray()
HUGE = np.array([0, 0, 2**40, 0, 0, 1, 0])
NEIGHBOURS = {
    "one client more": np.vstack([BASE, HUGE]),
    "one client fewer": BASE[:-1],
    "another client in its place": np.vstack([BASE[:30], HUGE, BASE[31:]]),
    "an empty client in its place": np.vstack([BASE[:30], 0 * HUGE, BASE[31:]]),
    "another population": small_counts(57, 7, seed=9).toarray()[::-1],
}


@pytest.mark.slow
@pytest.mark.parametrize("world", [of_counts, of_rows], ids=["histograms", "federated_em"])
def test_the_same_publications_leave_the_same_traces(tmp_path, monkeypatch, world):
    reference = traces(tmp_path / "one", BASE, monkeypatch, world)
    assert {"runs/run/metrics.jsonl", "runs/run/report.html", "runs/run/statement.json"} <= reference.keys()
    assert len([name for name in reference if name.startswith("record")]) > 2 * 4
    for number, (neighbour, counts) in enumerate(NEIGHBOURS.items()):
        other = traces(tmp_path / f"tw{number}", counts, monkeypatch, world)
        assert differences(reference, other) == set(), neighbour


def half(folder, counts):
    """As `of_counts`, for half the epsilon, so that the budget pays for two runs."""
    population, ledger, asked = of_counts(folder, counts)
    return population, ledger, {**asked, "settings": {**SETTINGS, "epsilon": 2.0}}


@pytest.mark.slow
def test_what_changed_since_the_run_before_tells_nothing_either(tmp_path, monkeypatch):
    one, other = (
        traces(tmp_path / name, counts, monkeypatch, half, earlier=("old",))
        for name, counts in (("one", BASE), ("two", NEIGHBOURS["one client more"]))
    )
    assert b"Compared with run old" in one["runs/run/report.html"] and differences(one, other) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "where"), [("Telling", "runs/run/metrics.jsonl"), ("Keeping", "runs/run/state/000006.zip:reseed")]
)
def test_a_method_that_lets_raw_values_through_is_noticed(tmp_path, monkeypatch, method, where):
    monkeypatch.setitem(OWN, "histograms", f"tests.audit.sabotage:{method}")
    one, other = (
        traces(tmp_path / name, counts, monkeypatch)
        for name, counts in (("one", BASE), ("two", NEIGHBOURS["one client more"]))
    )
    assert where in differences(one, other)
