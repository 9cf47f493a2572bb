"""Rounds that are not private share commits: fewer flushes, the same result, nothing committed that is not whole."""

from dataclasses import replace

import pytest
from fedcore.tasks.training import move_server, several_rounds

from fedcore.errors import RunError
from fedcore.rounds import engine
from fedcore.rounds.clients import memory_file
from fedcore.rounds.engine import Training
from fedcore.runs.store import Run, load_run
from fedcore.storage import files
from fedcore.storage.arrays import read_values
from tests.rounds.test_engine import Clock, Recorder, begin, to_end
from tests.toy import Toy, ToyConfig

NEVER, AT_ONCE = float("inf"), 0.0
TEN = Toy(ToyConfig(rounds=10))


class EndsEarly(Toy):
    """Has all it wants after seven of ten rounds, which nobody can know before."""

    def message(self, state):
        return None if state.step == 7 else super().message(state)


@pytest.fixture
def pause(monkeypatch):
    """pause(seconds): between commits, from now on."""
    return lambda seconds: monkeypatch.setattr(engine, "COMMIT_SECONDS", seconds)


@pytest.fixture
def flushed(monkeypatch):
    """Names of the local files and folders that were flushed."""
    found, real = [], files.flush

    def flush(path):
        found.append(path.name)
        real(path)

    monkeypatch.setattr(files, "flush", flush)
    return found


def again(training):
    """The run as another process would find it."""
    run = Run.open(training.run.path)
    state = training.method.State(**run.read_state())
    return Training(training.method, run, state, training.source, training.blocks, training.backend)


def rounds_of(run) -> list[dict]:
    return [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in run.metrics()]


def folders(run) -> list[str]:
    return sorted(path.name for path in (run.path / "memory").iterdir() if path.is_dir())


def memory_of(run, round) -> list[float]:
    return read_values(memory_file(run.memory_folder(round), 0))["asked"].tolist()


@pytest.fixture
def reference(tmp_path, pause):
    pause(AT_ONCE)
    training = begin(tmp_path, TEN, name="reference")
    to_end(training)
    pause(NEVER)
    return load_run(training.run.path)


@pytest.mark.slow
def test_one_commit_at_the_end_gives_what_a_commit_of_every_round_gives(tmp_path, reference):
    training = begin(tmp_path, TEN)
    for done in range(1, 10):
        training.step()
        assert (training.done, training.run.round, Run.open(training.run.path).round) == (done, 0, 0)
    training.step()
    assert Run.open(training.run.path).round == 10, "of the last round it is known that it is the last"
    assert training.step() is None
    run = load_run(training.run.path)
    assert run.state["centre"].tobytes() == reference.state["centre"].tobytes()
    assert rounds_of(training.run) == rounds_of(Run.open(reference.path))
    assert memory_of(training.run, 10) == [10.0] * 8


def test_a_commit_when_it_is_time(tmp_path, pause):
    training = begin(tmp_path, TEN)
    committed = []
    for done in range(1, 11):
        pause(AT_ONCE if done in (3, 4, 8) else NEVER)
        training.step()
        committed.append(training.run.round)
    assert committed == [0, 0, 3, 4, 4, 4, 4, 8, 8, 10]
    assert [row["round"] for row in training.run.metrics()] == list(range(1, 11))


def test_the_time_until_a_commit_counts_from_the_last_one(tmp_path, pause, monkeypatch):
    """Rounds of 4 seconds each, and 10 seconds between commits: the fourth round that follows is committed."""
    clock = Clock(monkeypatch)
    pause(10.0)
    training = begin(tmp_path, TEN)
    committed = []
    for _ in range(10):
        clock.now += 4.0
        training.answer()
        training.move()
        committed.append(training.run.round)
    assert committed == [0, 0, 3, 3, 3, 6, 6, 6, 9, 10]
    assert [row["round"] for row in training.run.metrics()] == list(range(1, 11))


@pytest.mark.slow
def test_what_was_not_committed_is_made_again_to_the_same_values(tmp_path, pause, reference):
    training = begin(tmp_path, TEN)
    pause(AT_ONCE)
    [training.step() for _ in range(3)]
    pause(NEVER)
    [training.step() for _ in range(3)]
    training.answer()  # round 7 was answered when the process died
    resumed = again(training)
    assert resumed.round == 4
    to_end(resumed)
    assert load_run(resumed.run.path).state["centre"].tobytes() == reference.state["centre"].tobytes()
    assert rounds_of(resumed.run) == rounds_of(Run.open(reference.path))
    assert memory_of(resumed.run, 10) == [10.0] * 8
    assert folders(resumed.run) == ["000003", "000010"], "what lay between is gone"


def test_memories_between_commits_are_dropped_as_soon_as_the_next_round_has_its_own(tmp_path, pause):
    training = begin(tmp_path, TEN)
    pause(AT_ONCE)
    [training.step() for _ in range(2)]
    pause(NEVER)
    [training.step() for _ in range(4)]
    assert folders(training.run) == ["000001", "000002", "000006"]
    assert sorted(path.stem for path in (training.run.path / "state").iterdir()) == ["000001", "000002"]
    training.commit()
    assert folders(training.run) == ["000002", "000006"]
    assert sorted(path.stem for path in (training.run.path / "state").iterdir()) == ["000002", "000006"]


def test_a_run_that_ends_unexpectedly_is_committed_with_its_memories_flushed(tmp_path, pause, flushed):
    pause(NEVER)
    training = begin(tmp_path, EndsEarly(ToyConfig(rounds=10)))
    [training.step() for _ in range(7)]
    flushed.clear()
    assert training.run.round == 0
    assert training.step() is None
    run = Run.open(training.run.path)
    blocks = [f"{index:06d}.arrays" for index in training.blocks]
    assert run.round == 7 and memory_of(run, 7) == [7.0] * 8
    assert flushed[: len(blocks) + 1] == [*blocks, "000007"], "before the head names them"
    assert training.step() is None, "and nothing is left to commit"


def test_nothing_is_flushed_between_commits(tmp_path, pause, flushed):
    pause(NEVER)
    training = begin(tmp_path, TEN)
    flushed.clear()
    [training.step() for _ in range(9)]
    assert flushed == []
    training.step()
    assert set(flushed) > {"memory", "state", "000010"}


def test_a_commit_that_failed_can_be_made_once_more(tmp_path, pause, monkeypatch):
    pause(NEVER)
    training = begin(tmp_path, TEN)
    [training.step() for _ in range(4)]
    with monkeypatch.context() as patched:
        patched.setattr("fedcore.runs.store.write_values", lambda *_: (_ for _ in ()).throw(RunError("no space")))
        with pytest.raises(RunError):
            training.commit()
    assert Run.open(training.run.path).round == 0
    training.commit()
    assert Run.open(training.run.path).round == 4 and len(training.run.metrics()) == 4
    training.commit()  # nothing new
    assert len(training.run.metrics()) == 4


def test_every_round_of_a_private_run_is_committed(tmp_path, pause):
    pause(NEVER)
    training = begin(tmp_path, Toy(ToyConfig(private=True)), publisher=Recorder())
    for done in (1, 2, 3):
        training.step()
        assert Run.open(training.run.path).round == done


def test_what_a_task_has_done_is_committed(tmp_path, pause):
    """Its outcome is what others see of it."""
    pause(NEVER)
    training = begin(tmp_path, TEN)
    session = type("Session", (), {"training": training, "run": training.run})()
    training.answer()
    assert move_server.fn(session, 1).endswith("000001.zip") and training.run.round == 1
    assert several_rounds.fn(session, 2, 6) is True and training.run.round == 6
    assert several_rounds.fn(session, 7, 12) is False and training.run.round == 10


def test_a_lost_file_of_memories_is_named(tmp_path, pause):
    pause(NEVER)
    training = begin(tmp_path, TEN)
    training.source = replace(training.source, cache_bytes=0)
    [training.step() for _ in range(3)]
    memory_file(training.run.memory_folder(3), 0).unlink()
    with pytest.raises(RunError, match="block 0 after round 3 are lost"):
        training.step()
