"""`kill -9` of runs of the methods with memories of their own and of private mixtures: the same bits in the end.

The steps are those of tests/faults/test_kill.py and test_memories.py, which kill histograms and federated EM at all of
them; here it is at the few where a method can make a difference.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedcore.rounds.clients import memory_file
from fedcore.runs.store import Run, load_run
from fedcore.storage.arrays import read_values
from tests.faults.driver import Kill, of_memory
from tests.faults.place import Place, bits, same_result
from tests.gradient_em import test_run as gradient_em
from tests.perma import test_run as perma
from tests.perma.test_rounds import task
from tests.private_gmm import test_run as private_gmm
from tests.sessions import to_end

SETTINGS = {
    "gradient_em": gradient_em.FAST | {"rounds": 4},
    "perma": perma.FAST,
    "private_gmm": private_gmm.SETTINGS | {"spare_releases": 1},
}
ROUND, LAST = 3, 5  # of the runs with memories: one with memories before and after; the last


@dataclass(frozen=True)
class Learning(Place):
    """A workplace of one method. mode: its name."""

    @property
    def private(self) -> bool:
        return self.mode == "private_gmm"

    def request(self) -> dict:
        return {
            "method": self.mode,
            "population": str(self.folder / "population"),
            "runs": str(self.folder / "runs"),
            "run_id": "run",
            "seed": 5,
            "settings": SETTINGS[self.mode],
            "test_noise": "a key" if self.private else None,
        }

    def memories(self) -> dict:
        """Of all clients after the last committed round, by value."""
        run, blocks = Run.open(self.run_path), len(self.population().blocks)
        assert run.memories() is not None and blocks > 1
        parts = [read_values(memory_file(run.memories(), index)) for index in range(blocks)]
        return bits({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """By method: the workplace before the run, and the one of an undisturbed run."""
    found, before = {}, pytest.MonkeyPatch()
    for method in SETTINGS:
        folder = tmp_path_factory.mktemp(method) / "place"
        folder.mkdir()
        before.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
        populate(method, folder / "population")
        here = Learning.copy(folder, folder.with_name("calm"), method)
        to_end(here.start())
        found[method] = folder, here
    before.undo()
    return found


def populate(method: str, path: Path) -> None:
    if method == "gradient_em":
        gradient_em.population_of(path, gradient_em.tasks_of())
    elif method == "perma":
        perma.population_of(path, task(0, clients=12, sizes=perma.SIZES)[0])
    else:
        private_gmm.population(path, test=True)


@pytest.fixture
def learning(calm, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'place' / 'ledger.sqlite'}")
    return lambda method: Learning.copy(calm[method][0], tmp_path / "place", method)


REMEMBERED = [
    ("gradient_em", Kill("memory", "after", of_memory(ROUND, 0))),
    ("gradient_em", Kill("commit", "before", LAST)),
    ("perma", Kill("memory", "after", of_memory(ROUND, 0))),
    ("perma", Kill("head", "after", ROUND)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kill"), REMEMBERED, ids=str)
def test_states_and_memories_after_a_kill(learning, calm, method, kill):
    here, undisturbed = learning(method), calm[method][1]
    assert load_run(undisturbed.run_path).head["round"] == LAST
    here.kill_at(kill)
    here.finish()
    assert same_result(load_run(here.run_path), load_run(undisturbed.run_path))
    assert here.memories() == undisturbed.memories()
    here.check_no_litter()


@pytest.mark.slow
@pytest.mark.parametrize(("kill", "lost"), [(Kill("publish", "after", 1), 0), (Kill("draw", "after", 2), 1)], ids=str)
def test_private_mixtures_after_a_kill(learning, calm, kill, lost):
    """What was charged and lost is paid by a spare; what was published is used again, and drawn once."""
    here, undisturbed = learning("private_gmm"), calm["private_gmm"][1]
    here.kill_at(kill)
    before = here.published()
    here.finish()
    assert before.items() <= here.published().items() == undisturbed.published().items()
    assert same_result(load_run(here.run_path), load_run(undisturbed.run_path))
    here.check_ledger(forfeited=lost)
    here.check_no_litter()
