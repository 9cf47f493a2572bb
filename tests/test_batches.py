"""Cheap rounds share a task run: which ones, and where a retry goes on."""

from types import SimpleNamespace

import pytest
from fedcore.tasks import training

from fedcore.errors import WorkerFailed


class Steps:
    """Counts rounds; the workers of round `fails` are lost once."""

    def __init__(self, total: int, fails: int = 0):
        self.round, self.total, self.fails, self.state = 1, total, fails, None

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
