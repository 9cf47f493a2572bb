"""The engine: runs a method round by round, on any backend, and is the only place that charges, draws and publishes
what methods release (`fedcore.training.vocabulary` does so for words, of which no method knows the number).

One round:

    message -> [map blocks -> reduce] -> (private: values -> charge -> draw -> publish) -> server_update -> commit

The engine knows nothing of Prefect or Dask; `tasks/` gives it a Dask backend and calls `answer` and `move` as tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, Protocol, TypeVar

import numpy as np

from fedcore.errors import FedcoreError, MethodError, SensitivityError, UnplannedRelease, WorkerFailed
from fedcore.population.sizing import usable_cores
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.clients import WRITTEN, Answer, Answering, Source, answer_all, one_blas_thread
from fedcore.rounds.method import AnyMethod, Message, RoundInfo
from fedcore.rounds.statistics import IntegerSum, KeyedIntegerSum, Statistics, merge_all, values
from fedcore.runs.store import Run
from fedcore.storage import files
from fedcore.storage.files import Place

T = TypeVar("T")

# A commit flushes files to the disk, which takes longer than a cheap round. Nothing that a run without noise has done
# is lost for good: its rounds come out the same when they are made again.
COMMIT_SECONDS = 0.5


class Backend(Protocol):
    def map_blocks(
        self, function: Answering, message: Message, blocks: Sequence[int], sizes: Sequence[float] | None = None
    ) -> Statistics | None:
        """function(message, block) for every block, merged in any order. sizes: of the blocks, by which they are shared
        out; None: all alike.
        """

    def memory_of_workers(self) -> list[int]:
        """Peak resident bytes of each process but this one that answers."""


class InProcessBackend:
    """One block after the other in this process."""

    def map_blocks(
        self, function: Answering, message: Message, blocks: Sequence[int], sizes: Sequence[float] | None = None
    ) -> Statistics | None:
        return merge_all(answer_all(function, message, blocks, spare=usable_cores() > 1))

    def memory_of_workers(self) -> list[int]:
        """There are none."""
        return []


# --- what a private run needs ---------------------------------------------------------------------------------------


class Publisher(Protocol):
    """Charges, draws, publishes; see `fedcore.training.publishing.LedgerPublisher`."""

    def published(self, planned: PlannedRelease) -> np.ndarray | None: ...

    def release_round(
        self, planned: Sequence[PlannedRelease], grids: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray] | None:
        """The published values of one round's releases, by name; None if one of them was given up.

        grids: exact sums by name, int64 of the planned shapes.
        """

    def ending(self, status: str) -> None:
        """Called before the ledger closes the account with this status. Nothing is published afterwards."""

    def head(self) -> dict[str, Any]: ...


# --- the driver -----------------------------------------------------------------------------------------------------


class Training:
    """A run in progress. `step` makes one round; `answer` and `move` are its two halves.

    Rounds of private runs are committed one by one, others at the latest COMMIT_SECONDS after the last commit, by the
    round that is then being made; the last round in any case.

    publisher: None for a run that is not private. plan: the planned releases of the run. sizes: of the blocks.
    """

    def __init__(
        self,
        method: AnyMethod,
        run: Run,
        state: Any,
        source: Source,
        blocks: Sequence[int],
        backend: Backend,
        plan: Sequence[PlannedRelease] = (),
        publisher: Publisher | None = None,
        sizes: Sequence[float] | None = None,
    ):
        self.method = method
        self.run = run
        self.state = state
        self.source = source
        self.blocks = blocks
        self.sizes = sizes
        self.backend = backend
        self.plan = {planned.name: planned for planned in plan}
        self.publisher = publisher
        self.pending: Mapping[str, Any] | None = None  # what `answer` got and `move` has not used yet
        self.seconds: dict[str, float] = {}
        self.marked = self.committed = time.perf_counter()
        self.done = run.round  # rounds made; `run.round` of them are committed
        self.rows: list[dict[str, Any]] = []  # of the metrics, of rounds that are not
        self.durable = True  # whether the memories of the last round that was answered are flushed
        self.token = token_hex(8)
        # {name: digest} of the memories of the last round made, and of those that the round in progress wrote.
        self.remembered: Mapping[str, str] | None = run.memory_digests() if run.head.get("memories") else None
        self.written: Mapping[str, str] | None = None

    @property
    def round(self) -> int:
        """The round that comes next, counted from 1."""
        return self.done + 1

    @property
    def finished(self) -> bool:
        """Whether there is no further round; the next `step` then commits what is left to commit."""
        return self.method.message(self.state) is None

    def step(self) -> RoundInfo | None:
        """One whole round; None when there are no more, and all is committed."""
        return self.move() if self.answer() else None

    def answer(self) -> bool:
        """Get what the server will see: statistics, or published values if the method is private. False: finished, or
        the remaining rounds are skipped to make up for lost values.

        In a private run nothing raw outlives this call.
        """
        message = self.method.message(self.state)
        if message is None:
            self.commit()
            return False
        late = time.perf_counter() - self.committed >= COMMIT_SECONDS
        self.durable = self.method.private or late or self.round >= self.method.total_rounds(self.state)
        if not self.method.private:
            self.pending = values(self._timed("clients", self._map, message))
            return True
        self.pending = self._published(message)
        if self.pending is None:
            self.commit()
            return False
        for name, value in self.pending.items():
            self.run.keep_release(name, value, at_commit=True)
        return True

    def _published(self, message: Message) -> dict[str, np.ndarray] | None:
        """The releases of this round: published already, or made of what the clients answer now; None if one of them
        was given up.
        """
        if self.publisher is None:
            raise SensitivityError(
                f"method {self.method.name!r} is private, but no ledger is attached to the run, so it cannot be "
                "charged. Nothing was released."
            )
        planned = [release for release in self.plan.values() if release.round == self.round]
        found = {release.name: self.publisher.published(release) for release in planned}
        stored = {name: value for name, value in found.items() if value is not None}
        self.written = None
        if planned and len(stored) == len(planned):
            return stored
        statistics = self._timed("clients", self._map, message)
        return self._timed("release", self._publish, self.publisher, message, statistics, planned)

    def move(self) -> RoundInfo:
        """server_update on what `answer` got, and the commit if it is time."""
        with one_blas_thread():  # its bits do not depend on the number of cores either
            moved = self._timed("server", self.method.server_update, self.state, self.pending)
        state, info = self._checked_move(moved)
        row = {name: float(value) for name, value in info.scalars.items()}
        now = time.perf_counter()  # a round lasts from mark to mark, whatever the shell does in between
        self.seconds["round"], self.marked = now - self.marked, now
        row |= {f"seconds_{name}": round(value, 4) for name, value in self.seconds.items()}
        self.rows.append({"round": self.round, **row})
        if self.done > self.run.round:
            self.run.client_memories.drop(self.done)
        self.state, self.pending, self.seconds, self.done = state, None, {}, self.round
        self.remembered, self.written = self.written, None
        if self.durable:
            self.commit()
        return info

    def _checked_move(self, moved: Any) -> tuple[Any, RoundInfo]:
        """What `server_update` returned. Raises MethodError if it is not (state, RoundInfo with numbers)."""
        name = self.method.name
        if not (isinstance(moved, tuple) and len(moved) == 2 and isinstance(moved[1], RoundInfo)):
            raise MethodError(f"server_update of method {name!r} does not return two values: state and RoundInfo.")
        if not isinstance(moved[0], self.method.State):
            raise MethodError(f"server_update of method {name!r} returns a state that is not its State.")
        return moved

    def commit(self) -> None:
        """Commit the rounds that are not yet."""
        if self.done == self.run.round:
            return
        head = {} if self.publisher is None else {"ledger_head": self.publisher.head()}
        self.run.client_memories.flush(self.done, contents=not self.durable)
        self.run.commit(self.done, self.state, self.rows, memories=self.remembered, **head)
        if self.remembered is None and self.run.head.get("memories"):  # of an attempt that published, and was killed
            self.remembered = self.run.memory_digests()
        self.rows, self.committed = [], time.perf_counter()

    def _timed(self, name: str, function: Callable[..., T], *arguments: Any) -> T:
        started = time.perf_counter()
        result = function(*arguments)
        self.seconds[name] = time.perf_counter() - started
        return result

    def _map(self, message: Message) -> Statistics:
        # What an attempt left that was not committed is written again, file by file, to the same values. It is not
        # removed: if another process has continued the run meanwhile, these are its clients' memories now.
        before, after = self._memories(), self.run.memory_folder(self.round)
        source = replace(
            self.source,
            memory_in=None if before is None else str(before),
            memory_out=str(after),
            durable=self.durable,
            training=self.token,
            memory_digests=None if before is None else self.remembered,
        )
        statistics = dict(self.backend.map_blocks(Answer(self.method, source), message, self.blocks, self.sizes) or {})
        written = statistics.pop(WRITTEN, None)
        self.written = None if written is None else written.value()
        return statistics

    def _memories(self) -> Place | None:
        if self.done == self.run.round:
            return self.run.memories()
        folder = self.run.memory_folder(self.done)
        return folder if files.is_folder(folder) else None

    def _publish(
        self, publisher: Publisher, message: Message, statistics: Statistics, planned: Sequence[PlannedRelease]
    ) -> dict[str, np.ndarray] | None:
        grid = self._release_values(message, statistics)
        if grid.keys() != {release.name for release in planned}:
            raise UnplannedRelease(
                f"round {self.round} wants to release {sorted(grid)}, the plan has {[p.name for p in planned]}."
            )
        for release in planned:
            value = grid[release.name]
            if not isinstance(value, np.ndarray) or value.dtype != np.int64 or value.shape != release.shape:
                raise SensitivityError(f"release {release.name!r} is not an int64 array of shape {release.shape}.")
        published = publisher.release_round(planned, grid)
        return None if published is None else dict(published)

    def _release_values(self, message: Message, statistics: Statistics) -> dict[str, np.ndarray]:
        inexact = [n for n, s in statistics.items() if not isinstance(s, (IntegerSum, KeyedIntegerSum))]
        if inexact:
            raise SensitivityError(f"a private round may only use exact integer sums; {inexact} are not.")
        try:
            return self.method.release_values(message, statistics)
        except FedcoreError:
            raise
        except Exception as error:
            raise WorkerFailed(
                f"the sums of round {self.round} could not be put on the grid "
                f"({type(error).__name__}); details are withheld, because the run is private."
            ) from None
