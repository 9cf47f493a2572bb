"""Files of a run are bound to its head, and the run to its population: what was exchanged or edited is refused."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import RunError
from fedcore.operations.verify import verify_run
from fedcore.population import layout
from fedcore.population import manifest as manifests
from fedcore.population.store import Population
from fedcore.rounds.caches import MEMORIES
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs import digests as run_digests
from fedcore.runs.store import Run, list_runs, load_run
from fedcore.storage import files
from fedcore.storage.arrays import read_values, write_values
from fedcore.training.personalise import personalise
from fedcore.training.request import TrainRequest
from fedcore.training.session import abandon, resume, start_run
from tests.command import fedcore, private_population, works
from tests.conftest import edit_record, small_counts, write_counts
from tests.sessions import to_end

pytestmark = pytest.mark.usefixtures("toy")


@pytest.fixture
def population(tmp_path):
    return write_counts(tmp_path / "p", small_counts())


def begun(population, tmp_path, rounds=2, run_id="r", **changes):
    """A run of the toy, whose clients remember, with some rounds made."""
    given = {"method": "toy", "settings": {"rounds": 5}, "runs": str(tmp_path / "runs"), "run_id": run_id}
    session = start_run(
        TrainRequest(**{**given, "population": str(population.path), **changes}), InProcessBackend(), stamp="then"
    )
    for _ in range(rounds):
        session.training.step()
    session.close()
    MEMORIES.clear()
    return session.run.path


def go_on(path):
    session = resume(path, InProcessBackend())
    try:
        while session.training.step() is not None:
            pass
    finally:
        session.close()
    return load_run(path).state


def edit(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_the_head_names_every_file(population, tmp_path):
    path = begun(population, tmp_path)
    run = Run.open(path)
    assert run.info["schema"] == 2 and run.info["needs"] == []
    assert run.info["population"]["manifest"] == population.checksum
    named = run.head["files"]
    assert {name for name, digest in named.items() if digest is None} == {"releases", "start"}
    assert run.head == run_digests.sealed(run.head) and named["state"] == run_digests.of_place(run.state_file(2))
    kept = run.memory_digests()
    assert kept == run_digests.of_folder(run.memories()) and len(kept) == len(population.blocks)
    go_on(path)
    assert Run.open(path).head["files"] != named


def test_no_file_changes_when_it_is_written_again(population, tmp_path):
    """A worker that is late writes the bytes that the digest is of, whenever it does."""
    first, second = begun(population, tmp_path), begun(population, tmp_path, run_id="again")
    one, other = Run.open(first).head["files"], Run.open(second).head["files"]
    assert one["state"] == other["state"] and one["memory"] == other["memory"]


# --- attacks ----------------------------------------------------------------------------------------------------------


def settings(path):
    edit(path / "run.json", lambda info: info["config"].update(rounds=9))


def seed(path):
    edit(path / "run.json", lambda info: info.update(seed=77))


def head_round(path):
    edit(path / "head.json", lambda head: head.update(round=1))


def head_without_files(path):
    edit(path / "head.json", lambda head: (head.pop("files"), head.pop("digest")))


def head_facts(path):
    edit(path / "head.json", lambda head: head.update(status="finished"))


@pytest.mark.parametrize("attack", [settings, seed, head_round, head_without_files, head_facts])
def test_edited_records_are_refused(population, tmp_path, attack):
    path = begun(population, tmp_path)
    attack(path)
    for use in (Run.open, load_run, go_on):
        with pytest.raises(RunError, match=r"changed|not the one") as refused:
            use(path)
        assert refused.value.remedy
    assert list_runs(path.parent) == []


def test_a_list_of_runs_names_those_that_it_leaves_out(population, tmp_path):
    settings(begun(population, tmp_path))
    begun(population, tmp_path, run_id="whole")
    listed = works("runs", "list", "--runs", tmp_path / "runs", "--json")
    assert [row["run"] for row in listed.json["runs"]] == [str(tmp_path / "runs" / "whole")]
    assert "warning: run.json of run 'r' is not the one that its head names" in listed.err


def test_an_edited_row_of_metrics_is_refused(population, tmp_path):
    path = begun(population, tmp_path)
    content = (path / "metrics.jsonl").read_text()
    assert '"round": 1' in content
    (path / "metrics.jsonl").write_text(content.replace('"round": 1', '"round": 7'))
    for use in (load_run, go_on):
        with pytest.raises(RunError, match="metrics.jsonl .*changed"):
            use(path)


def test_exchanged_memories_of_two_blocks_are_refused(population, tmp_path):
    path = begun(population, tmp_path)
    one, other = (Run.open(path).memories() / name for name in ("000001.arrays", "000002.arrays"))
    values = read_values(one)
    write_values(one, {"asked": values["asked"] + 40.0})
    with pytest.raises(RunError, match="clients of block 1 after round 2 are lost: .*not the file"):
        go_on(path)
    write_values(one, values)
    aside = one.with_name("aside")
    write_values(one, {"asked": values["asked"] + 40.0}), one.rename(aside), other.rename(one), aside.rename(other)
    write_values(one, values)
    with pytest.raises(RunError, match="clients of block 2 after round 2"):
        personalise(path, population.path, tmp_path / "out")


def test_the_list_of_memories_may_be_lost_and_not_changed(population, tmp_path):
    path, reference = begun(population, tmp_path), begun(population, tmp_path, run_id="calm")
    (path / "memory" / "000002.json").write_text("[]")
    assert go_on(path)["centre"].tobytes() == go_on(reference)["centre"].tobytes()
    path = begun(population, tmp_path, run_id="other")
    (path / "memory" / "000002.json").unlink()
    write_values(path / "memory" / "000002" / "000003.arrays", {"asked": np.ones(8)})
    with pytest.raises(RunError, match="memories after round 2 of run 'other' are not those"):
        go_on(path)


@pytest.mark.parametrize("name", ["state/000002.zip", "memory/000002", "metrics.jsonl", "run.json", "head.json"])
def test_exchanged_files_of_two_runs_are_refused(population, tmp_path, name):
    path, other = begun(population, tmp_path), begun(population, tmp_path, run_id="other", seed=3)
    if name.startswith("state"):
        write_values(other / name, {**read_values(other / name), "centre": np.ones(7)})
    if name == "memory/000002":
        write_values(other / name / "000000.arrays", {"asked": np.full(8, 9.0)})
    shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
    shutil.move(other / name, path / name)
    with pytest.raises(RunError):
        go_on(path)
    with pytest.raises(RunError):
        load_run(path), personalise(path, population.path, tmp_path / "out")


@pytest.mark.slow
def test_a_changed_copy_of_a_release_is_not_shown_and_is_restored(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts(200))
    asked = {"method": "histograms", "settings": {"clusters": 2, "rounds": 3, "epsilon": 2.0}}
    path = begun(population, tmp_path, **asked)
    copies = Run.open(path).releases()
    name = sorted(copies)[0]
    write_values(path / "releases" / f"{name}.zip", {"values": copies[name] + 1})
    with pytest.raises(RunError, match="copies of released values of run 'r' are not those"):
        Run.open(path).releases()
    write_values(path / "releases" / "stray.zip", {"values": np.zeros(2)})
    go_on(path)
    found = Run.open(path).releases()
    assert (found[name] == copies[name]).all() and "stray" not in found


def test_another_start_is_refused(population, tmp_path):
    run = Run.create(tmp_path / "runs", {"run_id": "s"}, {"centres": np.ones(3)})
    run.commit(0, *[load_state()])
    assert Run.open(run.path).head["files"]["start"] == run_digests.of_place(run.path / "start.zip")


def load_state():
    from tests.toy import ToyState

    return ToyState(np.zeros(3), 0, 1)


# --- the population -----------------------------------------------------------------------------------------------


def test_a_manifest_that_was_rewritten_is_not_that_of_the_run(population, tmp_path):
    path = begun(population, tmp_path)
    file = layout.version_file(population.path, 1)
    made = population.manifest
    one, other = made.blocks[1], made.blocks[2]
    exchanged = (other.model_copy(update={"first": one.first}), one.model_copy(update={"first": other.first}))
    blocks = (made.blocks[0], *exchanged, *made.blocks[3:])
    file.write_bytes(manifests.encode(made.model_copy(update={"blocks": blocks})))
    assert Population.open(population.path).verify().ok, "the checksums are right"
    with pytest.raises(RunError, match="version 1 of .* is not the one that run 'r' read"):
        go_on(path)


def test_what_a_newer_version_needs_is_named(population, tmp_path):
    run = Run.create(tmp_path / "runs", {"run_id": "n", "needs": ["moons"]})
    run.unlock()
    with pytest.raises(RunError, match="needs moons"):
        Run.open(run.path)


def test_a_run_without_a_state_can_be_given_up(population, tmp_path):
    run = Run.create(
        tmp_path / "runs", json.loads((begun(population, tmp_path) / "run.json").read_text()) | {"run_id": "e"}
    )
    run.unlock()
    abandon(run.path)
    assert Run.open(run.path).status == "abandoned"


# --- who may look -------------------------------------------------------------------------------------------------


@pytest.fixture(params=[0, 0o022])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_nobody_else_may_look_at_a_run(population, tmp_path, umask):
    tmp_path.chmod(0o755)
    path = begun(population, tmp_path)
    go_on(path)
    personalise(path, population.path, tmp_path / "out")
    for folder in (path, tmp_path / "out"):
        found = [folder, *folder.rglob("*")]
        assert len(found) > 5
        assert [str(file) for file in found if file.lstat().st_mode & 0o077] == []


# --- verify -------------------------------------------------------------------------------------------------------


def private_run(tmp_path, rounds=None):
    population, ledger = private_population(tmp_path / "p", small_counts(200))
    asked = {"method": "histograms", "settings": {"clusters": 2, "rounds": 2, "epsilon": 2.0}}
    path = begun(population, tmp_path, 2, **asked)
    if rounds is None:
        session = resume(path, InProcessBackend())
        to_end(session)
    return population, ledger, path


def test_a_whole_run_verifies(population, tmp_path):
    path = begun(population, tmp_path)
    report = verify_run(path)
    assert report.ok and report.files == 4 + len(population.blocks) and report.remarks == []
    write_values(path / "memory" / "000002" / "000003.arrays", {"asked": np.ones(8)})
    assert verify_run(path).problems == ["000003.arrays of the memories after round 2 was changed, or is lost."]
    (path / "state" / "000002.zip").unlink()
    (path / "metrics.jsonl").unlink()
    assert len(verify_run(path).problems) == 3
    shutil.rmtree(population.path)
    assert "not at hand" in verify_run(path).remarks[0]
    head_facts(path)
    assert verify_run(path).problems == ["the head of run 'r' does not match its own digest: it was changed."]


def test_a_private_run_is_compared_with_its_ledger(tmp_path):
    population, ledger, path = private_run(tmp_path)
    run = Run.open(path)
    assert ledger.recorded("r", "reserve")["bound"] == {
        "manifest": population.checksum,
        "version": 1,
        "run": run.record_digest,
    }
    assert ledger.recorded("r", "finish")["head"] == run.committed_digest
    assert verify_run(path).ok and not verify_run(path).remarks
    # Somebody makes everything anew that has no key; the ledger still knows better.
    edit_record(path, lambda info: info.update(seed=5))
    problems = verify_run(path).problems
    assert len(problems) == 2 and "run.json is not the one" in problems[0] and "end with other files" in problems[1]


@pytest.mark.slow
def test_a_resumed_run_is_compared_with_its_ledger(tmp_path):
    population, _, path = private_run(tmp_path, rounds=2)
    edit_record(path, lambda info: info.update(seed=9))
    with pytest.raises(RunError, match="run.json is not the one for which ledger .* reserved"):
        resume(path, InProcessBackend())


def test_the_command(population, tmp_path):
    path = begun(population, tmp_path)
    assert works("verify", path, "--json").json["ok"] and works("verify", population.path, "--json").json["ok"]
    (path / "state" / "000002.zip").write_bytes(b"")
    outcome = fedcore("verify", path, "--json")
    assert outcome.code == 2 and not outcome.json["ok"] and "000002.zip" in outcome.json["problems"][0]
    outcome = fedcore("verify", tmp_path / "nowhere")
    assert outcome.code == 2 and "no population" in outcome.err


# --- what the dead left -------------------------------------------------------------------------------------------


def test_folders_of_runs_that_were_never_begun_are_swept(population, tmp_path):
    made = {
        "empty": [],
        "r": [],
        "locked": ["lock"],
        "partial": ["lock", ".run.json.99.partial"],
        "other": ["lock", "mine.txt"],
    }
    for name, inside in {**made, "young": ["lock"], "held": ["lock"]}.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        for file in inside:
            (tmp_path / "runs" / name / file).touch()
        if name != "young":
            os.utime(tmp_path / "runs" / name, (0, 0))
    with open(tmp_path / "runs" / "held" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begun(population, tmp_path)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["empty", "held", "other", "r", "young"]


def test_half_written_outputs_of_dead_processes_are_swept(population, tmp_path):
    path = begun(population, tmp_path)
    dead, alive = (tmp_path / f".out.{number}.partial" for number in (2**22 + 1, os.getppid()))
    dead.mkdir(), alive.mkdir()
    (dead / "clients.jsonl").write_text("secret")
    personalise(path, population.path, tmp_path / "out")
    assert not dead.exists() and alive.exists()


def test_outputs_are_flushed_before_they_get_their_name(population, tmp_path, monkeypatch):
    path, flushed, real = begun(population, tmp_path), [], files.flush

    def flush(where):
        flushed.append(Path(where).name)
        real(where)

    monkeypatch.setattr(files, "flush", flush)
    personalise(path, population.path, tmp_path / "out")
    written = {file.name for file in (tmp_path / "out").rglob("*")}
    assert written <= set(flushed)
