"""Per-client outputs: a row for each client, from the committed state and, where there is one, the client's memory."""

import json
import stat
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from fedcore.papers.histograms import PaperHistograms

from fedcore.errors import ConfigError, PopulationError, RunError, WorkerFailed, WrongKind
from fedcore.interface.data import rows_stored
from fedcore.population.store import Population
from fedcore.runs.store import Run
from fedcore.storage.arrays import write_values
from fedcore.training.personalise import NOTE, personalise
from tests import sessions
from tests.command import fedcore, works
from tests.conftest import seal_anew, small_counts, write_counts
from tests.toy import Toy


def train(population, tmp_path, method=None, **settings):
    return sessions.train(population, tmp_path, method, settings)


def test_fedavg_by_hand(tmp_path):
    """Mean F = ((1/2, 1/2) + (1, 0)) / 2 of the two clients that have tokens; a client with m tokens gets
    a / (a + m) F + m / (a + m) q with a = 6, and one without tokens F itself.
    """
    population = write_counts(tmp_path / "p", sp.csr_matrix([[1, 1], [2, 0], [0, 0]]), leaf=2, block=2)
    run = train(population, tmp_path, algorithm="fedavg", prior_tokens=6.0)
    told = personalise(run.path, population.path, tmp_path / "out")
    assert told == {
        "dest": str(tmp_path / "out"),
        "clients": 3,
        "outputs": ["cluster", "estimate", "weight"],
        "settings": {"prior_tokens": 6.0, "floor": 0.0, "weights": "shared"},
        "sensitive": True,
        "note": NOTE,
    }
    out = zarr.open_group(tmp_path / "out", mode="r")
    expected = [[0.75 * 0.75 + 0.25 * 0.5, 0.75 * 0.25 + 0.25 * 0.5], [0.8125, 0.1875], [0.75, 0.25]]
    assert np.allclose(out["estimate"], expected, atol=1e-6)
    assert out["weight"][:].tolist() == [0.75, 0.75, 1.0] and out["cluster"][:].tolist() == [0, 0, -1]
    assert out["estimate"].dtype == np.float32
    lines = (tmp_path / "out" / "clients.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == ["c0", "c1", "c2"]


def test_free_settings_are_those_of_a_run_that_was_made_with_them_and_are_recorded(tmp_path):
    """The outputs have the bits of a run that was trained with the setting, and say which one was in force."""
    population = write_counts(tmp_path / "p", small_counts())
    run = train(population, tmp_path / "one", algorithm="algorithm2", clusters=3, rounds=3)
    same = train(population, tmp_path / "two", algorithm="algorithm2", clusters=3, rounds=3, prior_tokens=3.0)
    given = {"prior_tokens": 3.0, "floor": 0.25}
    told = personalise(run.path, population.path, tmp_path / "out", settings={"prior_tokens": 3.0})
    personalise(same.path, population.path, tmp_path / "expected")
    personalise(run.path, population.path, tmp_path / "both", settings=given)
    out, expected, both = (zarr.open_group(tmp_path / name, mode="r") for name in ("out", "expected", "both"))
    assert all((out[name][:] == expected[name][:]).all() for name in ("estimate", "weight", "mixture"))
    assert (both["mixture"][:] == out["mixture"][:]).all() and (both["weight"][:] != out["weight"][:]).any()
    assert out.attrs["settings"] == expected.attrs["settings"] == told["settings"]
    assert both.attrs["settings"] == told["settings"] | given
    assert Run.open(run.path).info["config"]["prior_tokens"] is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "ifca"}, "'algorithm' of method 'paper_histograms' acts on training"),
        ({"prior_tokens": 3.0, "prior_token": 3.0}, "has no setting 'prior_token'"),
        ({"prior_tokens": -1.0}, "greater than 0"),
    ],
)
def test_other_settings_are_refused_before_anything_is_written(tmp_path, settings, sentence):
    population = write_counts(tmp_path / "p", small_counts())
    run = train(population, tmp_path, algorithm="fedavg")
    with pytest.raises(ConfigError, match=sentence):
        personalise(run.path, population.path, tmp_path / "out", settings=settings)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "runs"]


def test_the_outputs_are_marked_and_for_their_owner_only(tmp_path):
    population = write_counts(tmp_path / "p", small_counts())
    run = train(population, tmp_path, algorithm="fedavg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing that a person would have to puzzle over
        personalise(run.path, population.path, tmp_path / "below" / "out")
    out = zarr.open_group(tmp_path / "below" / "out", mode="r")
    assert out.attrs["sensitive"] is True and "not differentially private" in out.attrs["note"]
    assert (out.attrs["run"], out.attrs["method"]) == ("r", "paper_histograms")
    assert stat.S_IMODE((tmp_path / "below" / "out").stat().st_mode) == 0o700
    assert not list((tmp_path / "below").glob(".*")) and not list(run.path.rglob("*.partial"))
    before = sorted(path.relative_to(run.path) for path in run.path.rglob("*"))
    assert all("estimate" not in str(path) for path in before)  # nothing of it is in the run


@pytest.mark.slow
@pytest.mark.parametrize("block", [4, 12, 64])
def test_blocks_change_nothing(tmp_path, block):
    outputs = []
    for name, size in (("one", 8), ("other", block)):
        population = write_counts(tmp_path / name / "p", small_counts(), block=size)
        run = train(population, tmp_path / name, algorithm="algorithm2", clusters=3, rounds=3)
        personalise(run.path, population.path, tmp_path / name / "out")
        group = zarr.open_group(tmp_path / name / "out", mode="r")
        outputs.append({key: group[key][:].tobytes() for key in ("cluster", "estimate", "weight")})
    assert outputs[0] == outputs[1]


def test_rows_are_distributions_and_fit_their_clients(tmp_path):
    matrix = small_counts()
    population = write_counts(tmp_path / "p", matrix)
    run = train(population, tmp_path, algorithm="algorithm2", clusters=3, rounds=3, prior_tokens=1e-3)
    personalise(run.path, population.path, tmp_path / "out")
    out = zarr.open_group(tmp_path / "out", mode="r")
    totals = np.asarray(matrix.sum(axis=1)).ravel()
    assert np.allclose(out["estimate"][:].sum(axis=1), 1, atol=1e-5)
    assert ((out["cluster"][:] == -1) == (totals == 0)).all()
    own = matrix.toarray()[totals > 0] / totals[totals > 0, None]
    assert np.allclose(out["estimate"][:][totals > 0], own, atol=2e-3)  # almost no prior: nearly the client's own


def test_a_method_with_memory_is_given_each_clients_own(tmp_path, toy, monkeypatch):
    monkeypatch.setattr(
        Toy,
        "personalise",
        lambda self, state, block, memory: {
            "asked": memory["asked"] * 100 + np.arange(block.first, block.first + block.clients)
        },
    )
    population = write_counts(tmp_path / "p", small_counts(), leaf=4, block=8)
    run = train(population, tmp_path, method="toy", rounds=3)
    personalise(run.path, population.path, tmp_path / "out")
    asked = zarr.open_group(tmp_path / "out", mode="r")["asked"][:]
    assert asked.tolist() == [300 + client for client in range(50)]


def test_progress_counts_clients_or_rows(tmp_path):
    population = write_counts(tmp_path / "p", small_counts())
    run = train(population, tmp_path, algorithm="fedavg")
    seen = []
    personalise(run.path, population.path, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(min(8 * done, 50), 50) for done in range(1, 8)]


def test_newer_versions_of_the_population_may_be_served(tmp_path):
    """The model is applied to whoever is there now, also to clients that it has never seen."""
    population = write_counts(tmp_path / "p", small_counts())
    run = train(population, tmp_path, algorithm="fedavg")
    other = write_counts(tmp_path / "q", small_counts(9, seed=3))
    assert personalise(run.path, other.path, tmp_path / "out")["clients"] == 9


def rows_of_people(path, seed, people=6):
    """Rows (12, 3) of each of some clients."""
    x = np.random.default_rng(seed).normal(size=(12 * people, 3))
    return rows_stored(x, np.repeat([f"p{seed}-{k}" for k in range(people)], 12), path).population


def test_nobody_is_given_what_others_remember(tmp_path):
    """Another population with as many clients in as many blocks: its people took no part in the run."""
    run = train(rows_of_people(tmp_path / "p", 1), tmp_path, "gradient_em", components=2, rounds=2)
    others = rows_of_people(tmp_path / "q", 2)
    with pytest.raises(RunError, match="took no part in the run"):
        personalise(run.path, others.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert personalise(run.path, tmp_path / "p", tmp_path / "own")["clients"] == 6


def test_newcomers_learn_their_own_atoms_when_they_are_served(tmp_path):
    """Other people, and these people in a version with others, who came after the run."""

    def table(name, people, seed):
        x = np.random.default_rng(seed).normal(size=(40 * people, 3)) @ np.diag([3.0, 1.0, 0.3])
        lines = [f"{name}{at // 40},{','.join(map(repr, row))}" for at, row in enumerate(x.tolist())]
        (tmp_path / f"{name}.csv").write_text("\n".join(["who,a,b,c", *lines, ""]))
        return tmp_path / f"{name}.csv"

    def local(population, dest):
        assert personalise(run.path, population, tmp_path / dest)["clients"] > 0
        return zarr.open_group(tmp_path / dest, mode="r")["local"][:]

    works(f"population ingest {table('p', 6, 1)} {tmp_path / 'p'} --client who")
    works(f"population ingest {table('q', 4, 2)} {tmp_path / 'q'} --client who")
    run = train(
        Population.open(tmp_path / "p"), tmp_path, "dictionaries", atoms=3, global_atoms=1, rounds=2, sparsity=1
    )
    mine, others = local(tmp_path / "p", "mine"), local(tmp_path / "q", "others")
    assert mine.any() and others.any() and len(others) == 4
    works(f"population ingest {table('new', 2, 3)} {tmp_path / 'p'} --append --client who")
    everybody = local(tmp_path / "p", "everybody")
    assert len(everybody) == 8 and np.array_equal(everybody[:6], mine) and everybody[6:].any()


def test_outputs_that_need_no_memories_are_made_for_anybody(tmp_path):
    run = train(rows_of_people(tmp_path / "p", 1), tmp_path, "federated_em", components=2, rounds=3)
    assert run.head.get("memories")
    assert personalise(run.path, rows_of_people(tmp_path / "q", 2, people=9).path, tmp_path / "out")["clients"] == 9


# --- refusals -------------------------------------------------------------------------------------------------------


def test_an_existing_folder_is_not_touched(tmp_path):
    population = write_counts(tmp_path / "p", small_counts())
    run = train(population, tmp_path, algorithm="fedavg")
    personalise(run.path, population.path, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with pytest.raises(PopulationError, match="exists already"):
        personalise(run.path, population.path, tmp_path / "out")
    assert before == {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}


def test_another_width_is_refused(tmp_path):
    run = train(write_counts(tmp_path / "p", small_counts()), tmp_path, algorithm="fedavg")
    with pytest.raises(WrongKind, match="7 features"):
        personalise(run.path, write_counts(tmp_path / "q", small_counts(features=8)).path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_state_of_another_version_is_refused(tmp_path):
    population = write_counts(tmp_path / "p", small_counts())
    run = train(population, tmp_path, algorithm="fedavg")
    write_values(run.state_file(run.round), {"centres": np.ones((1, 7))})
    seal_anew(run.path)
    with pytest.raises(RunError, match="is not one of method"):
        personalise(run.path, population.path, tmp_path / "out")
    assert Run.open(run.path).status == "finished" and not (tmp_path / "out").exists()


def test_a_failure_half_way_leaves_nothing_and_withholds_values(tmp_path, monkeypatch):
    """Also where the method is private: the text of its error could quote a client's data."""
    population = write_counts(tmp_path / "p", small_counts())
    run = train(population, tmp_path, algorithm="fedavg")
    original = PaperHistograms.personalise

    def fails_later(self, state, block, memory):
        if block.first >= 16:
            raise ValueError(f"client {block.first} has {block.data[0]} tokens")
        return original(self, state, block, memory)

    monkeypatch.setattr(PaperHistograms, "personalise", fails_later)
    monkeypatch.setattr(PaperHistograms, "private", property(lambda self: True))
    with pytest.raises(WorkerFailed, match="block 2 failed with ValueError") as caught:
        personalise(run.path, population.path, tmp_path / "out")
    assert "tokens" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "runs"]


@pytest.mark.slow
def test_settings_of_personal_outputs_can_be_others_after_the_run(tmp_path, monkeypatch):
    population = write_counts(tmp_path / "p", small_counts())
    run = train(population, tmp_path, algorithm="fedavg")
    monkeypatch.chdir(tmp_path)
    works("predict", run.path, "p", "usual", "--json")
    works("predict", run.path, "p", "other", "--set", "prior_tokens=6", "--set", "floor=0.25", "--json")
    usual, other = (zarr.open_group(tmp_path / name, mode="r") for name in ("usual", "other"))
    m = population.read(0).totals
    np.testing.assert_allclose(usual["weight"][: len(m)], (800 + 0.35 * m) / (800 + m))
    np.testing.assert_allclose(other["weight"][: len(m)], (6 + 0.25 * m) / (6 + m))
    assert other.attrs["settings"] == {**usual.attrs["settings"], "prior_tokens": 6, "floor": 0.25}
    refused = fedcore("predict", run.path, "p", "third", "--set", "clusters=3")
    assert refused.code == 2 and "'clusters'" in refused.err and "prior_tokens" in refused.err
    assert fedcore("predict", run.path, "p", "third", "--set", "floor=2").code == 2
    assert not (tmp_path / "third").exists()
