"""Cheap rounds share a task run: which ones, and where a retry goes on."""

from types import SimpleNamespace

import pytest
from fedcore.tasks import training

from fedcore.errors import WorkerFailed


class Steps:
    """Counts rounds; the workers of round `fails` are lost once."""

    def __init__(self, total: int, fails: int = 0):
        self.round, self.total, self.fails, self.state = 1, total, fails, None

    @property
    def finished(self) -> bool:
        return self.round > self.total

    def step(self):
        if self.round > self.total:
            return None
        if self.round == self.fails:
            self.fails = 0
            raise WorkerFailed("lost")
        self.round += 1
        return "info"

    def commit(self):
        self.committed = self.round


def session(steps: Steps):
    return SimpleNamespace(training=steps, method=SimpleNamespace(total_rounds=lambda state: steps.total))


def test_a_batch_that_is_tried_again_goes_on_after_the_last_round_and_is_committed():
    steps = Steps(10, fails=3)
    with pytest.raises(WorkerFailed):
        training.several_rounds.fn(session(steps), 1, 5)
    assert steps.round == 3
    assert training.several_rounds.fn(session(steps), 1, 5) and steps.round == steps.committed == 6
    assert not training.several_rounds.fn(session(steps), 6, 20) and steps.round == 11


@pytest.mark.parametrize("seconds, last", [(0.001, 100), (0.5, 8), (1.0, 4), (1.9, 2)])
def test_batches_are_as_long_as_their_rounds_allow(monkeypatch, seconds, last):
    made = []
    monkeypatch.setattr(training, "several_rounds", lambda session, *rounds: made.append(rounds) or True)
    training.next_rounds(session(Steps(100)), seconds)
    assert made == [(1, last)]


def test_rounds_that_take_long_have_their_own_task_runs(monkeypatch):
    made = []
    monkeypatch.setattr(training, "answer_clients", lambda session, number: made.append(("clients", number)) or True)
    monkeypatch.setattr(training, "move_server", lambda session, number: made.append(("server", number)))
    for seconds in (None, training.CHEAP_SECONDS):
        training.next_rounds(session(Steps(100)), seconds)
    assert made == [("clients", 1), ("server", 1)] * 2


def test_no_task_run_is_made_for_a_round_that_there_is_not(monkeypatch):
    """Nor is one named after it."""
    for name in ("several_rounds", "answer_clients", "move_server"):
        monkeypatch.setattr(training, name, lambda *_: pytest.fail("a task run"))
    for seconds in (None, 0.1, 3.0):
        done = Steps(8)
        done.round = 9
        assert training.next_rounds(session(done), seconds)[0] is False and done.committed == 9


@pytest.mark.parametrize("first, last, name", [(1, 8, "rounds-r1-r8"), (9, 9, "rounds-r9"), (9, 8, "no-round-r9")])
def test_a_task_run_is_named_after_its_rounds(first, last, name):
    assert training.rounds_in_words(first, last) == name
    assert training.several_rounds.task_run_name(parameters={"number": first, "last": last}) == name


def test_a_batch_that_ends_early_is_named_after_the_rounds_that_there_were(monkeypatch):
    names = []
    monkeypatch.setattr(training, "_rename", names.append)
    training.several_rounds.fn(session(Steps(5)), 1, 5)
    assert not names
    training.several_rounds.fn(session(Steps(5)), 1, 40)
    assert names == ["rounds-r1-r5"]
