"""Rounds of a trial training, measured: the method's functions compute the rounds of a few clients, and its server step
continues from their statistics. Only times and sizes are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

import numpy as np

from fedcore.errors import FedcoreError
from fedcore.planning.machine import work_seconds
from fedcore.planning.reading import entries_of, peak_bytes
from fedcore.population.blocks import ClientBlock
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import AnyMethod, Memory, Message, PublicFacts, State
from fedcore.rounds.statistics import Stack, Statistics, merge, merge_all, size_of, values

NUMBERS = re.compile(r"_?\d+")
NOTHING_RELEASED = "nothing released"
EVERY = 3  # round of a phase that many clients are timed in, in addition to the first ones


@dataclass(frozen=True, slots=True)
class Timed:
    """Rounds of one kind: `count` of them were made. Seconds are of work of a core, means of all that were made.

    clients, entries: of one piece of a leaf that answered (rows, or stored counts); pieces: how many answered
    whole, half: seconds of the answer of one piece with all, and with half of its clients
    server: seconds of message and server's step; stacked: whether the server keeps clients' answers apart, and
    server_half: its seconds with half of them
    leaf_bytes, half_bytes: the most memory that these answers took beyond what they were given
    server_bytes: the same of the server's step
    statistics: bytes of the answer of a piece; memory: bytes that a client remembers after such a round
    """

    phase: str
    count: int
    clients: int
    entries: float
    pieces: int
    whole: float
    half: float
    server: float
    server_half: float
    stacked: bool
    leaf_bytes: int
    half_bytes: int
    server_bytes: int
    statistics: int
    memory: float


@dataclass
class Kind:
    """Measurements of one phase, as they come."""

    phase: str
    pieces: Sequence[ClientBlock]
    whole: list[float] = field(default_factory=list)
    half: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    server_half: list[float] = field(default_factory=list)
    stacked: bool = False
    leaf_bytes: int = 0
    half_bytes: int = 0
    server_bytes: int = 0
    statistics: int = 0
    memory: float = 0.0
    again: int = 0  # rounds that were only made to measure them once more
    spent: float = 0.0  # seconds that passed while clients answered, all that is measured of it included

    def take(self, other: Kind | None) -> None:
        """The measurements of the same rounds, made once more."""
        if other is not None:
            for name in ("whole", "half", "server", "server_half"):
                getattr(self, name).extend(getattr(other, name))
            self.again += len(other.server)

    def timed(self) -> Timed:
        # Rounds of a phase need not be alike (some look at the objective): the mean, not the median, adds up to them.
        whole, half = float(np.mean(self.whole)), float(np.mean(self.half))
        server = float(np.mean(self.server))
        less = float(np.mean(self.server_half or [server]))
        entries = float(np.mean([entries_of(piece) for piece in self.pieces]))
        return Timed(
            self.phase,
            len(self.server) - self.again,
            self.pieces[0].clients,
            entries,
            len(self.pieces),
            whole,
            half,
            server,
            less,
            self.stacked,
            self.leaf_bytes,
            self.half_bytes,
            self.server_bytes,
            self.statistics,
            self.memory,
        )


# --- phases that are known beforehand -------------------------------------------------------------------------------


def scheduled_phases(plan: Sequence[PlannedRelease], rounds: int) -> list[str]:
    """The phase of each round of a private run, by what its plan releases then: names without their numbers."""
    names: list[list[str]] = [[] for _ in range(max([rounds, *(release.round for release in plan)]))]
    for release in plan:
        label = NUMBERS.sub("", release.name).strip("_").replace("_", " ") or release.name
        if label not in names[release.round - 1]:
            names[release.round - 1].append(label)
    return [" + ".join(labels) or NOTHING_RELEASED for labels in names]


# --- a training -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounds:
    """Rounds that were made. ended: whether the method came to its end; state: the last one; made: how many rounds;
    seconds: of all of them."""

    kinds: list[Kind]
    ended: bool
    state: State
    made: int
    seconds: float

    @property
    def stacked(self) -> bool:
        """Whether the server keeps clients' answers apart."""
        return any(kind.stacked for kind in self.kinds)

    def growing(self, beside: bool) -> float:
        """The seconds of them that would grow with the number of clients. `beside`: whether other clients ran next to
        these."""
        shares = [sum(map(is_timed, range(len(kind.server)))) / max(1, len(kind.server)) for kind in self.kinds]
        return sum(
            kind.spent * (share if beside and not kind.memory else 1.0)
            for kind, share in zip(self.kinds, shares, strict=True)
        )


def is_timed(at: int) -> bool:
    """Whether clients are timed in round `at` of a phase, counted from 0, if others can do the rest. Looks at the
    objective, every tenth round, are met as often as they come."""
    return at < EVERY or (at + 1) % EVERY == 0


@dataclass(frozen=True)
class Trial:
    """A training of a few clients. public: returns facts for a number of clients; phase: of a round, by its number, the
    state and the message; result: what the server gets in a round, from its number, the message and the clients'
    statistics."""

    method: AnyMethod
    public: Callable[[int], PublicFacts]
    phase: Callable[[int, State, Message], str]
    result: Callable[[int, Message, Statistics, int], Mapping[str, Any]]

    def run(
        self, pieces: Sequence[ClientBlock], limit: float, least: int = 3, few: Sequence[ClientBlock] = ()
    ) -> Rounds:
        """Run for `limit` seconds, but at least `least` rounds, so that rounds after a long start are measured as well.

        few: clients whose statistics the server gets. The others, which are timed, then need not answer in every round
        while they have no memory. Empty: the server gets those of all
        """
        method, clients = self.method, sum(piece.clients for piece in few or pieces)
        state = method.init(self.public(clients))
        kinds: dict[str, Kind] = {}
        memories: list[Memory | None] = [None] * len(pieces)
        memories_of_few: list[Memory | None] = [None] * len(few)
        began, number = perf_counter(), 0

        def made(ended: bool, rounds: int) -> Rounds:
            met = [kind for kind in kinds.values() if kind.server]
            return Rounds(met, ended, state, rounds, perf_counter() - began)

        while True:
            started = process_time()
            message = method.message(state)
            speaking = process_time() - started
            if message is None:
                return made(True, number)
            if number >= least and perf_counter() - began > limit:
                return made(False, number)
            number += 1
            phase = self.phase(number, state, message)
            first = phase not in kinds
            kind = kinds.setdefault(phase, Kind(phase, pieces))
            try:
                total, halves = None, None
                if not few or is_timed(len(kind.server)) or any(memories):
                    asked = perf_counter()
                    total, halves, memories = _answers(method, message, pieces, memories, kind, first)
                    kind.spent += perf_counter() - asked
                if few:
                    answers = [
                        method.client_update(message, piece, memory)
                        for piece, memory in zip(few, memories_of_few, strict=True)
                    ]
                    total, halves = merge_all(statistics for statistics, _ in answers), None
                    memories_of_few = [memory for _, memory in answers]
                total = total or {}
                stacked = any(isinstance(statistic, Stack) for statistic in total.values())
                given = values(halves) if stacked and halves is not None else None
                result = self.result(number, message, total, clients)
                if first:
                    with peak_bytes() as measured:
                        method.server_update(state, result)
                    kind.server_bytes = measured[0]
                    if given is not None:
                        kind.stacked = True
                        kind.server_half.append(speaking + work_seconds(method.server_update, state, given))
                started = process_time()
                state, _ = method.server_update(state, result)
                kind.server.append(speaking + process_time() - started)
            except FedcoreError:  # so few clients are not enough for the method; what was measured stands
                if not any(other.server for other in kinds.values()):
                    raise
                return made(False, number - 1)


def of_clients(method: AnyMethod, facts_for: Callable[[int | None], PublicFacts]) -> Trial:
    """Of a run that is not private: the server gets what the clients answer."""
    return Trial(
        method,
        facts_for,
        lambda number, state, message: method.phase(state, message),
        lambda number, message, total, clients: values(total),
    )


def of_stand_ins(
    method: AnyMethod, public: PublicFacts, plan: Sequence[PlannedRelease], phases: Sequence[str], stand_for: int
) -> Trial:
    """Trial of a private run: the server gets exact sums, as if each of the few represented equally many of
    `stand_for`. They need no noise, since the clients are simulated."""

    def phase(number: int, state: State, message: Message) -> str:
        return phases[min(number, len(phases)) - 1]

    def result(number: int, message: Message, total: Statistics, clients: int) -> dict[str, np.ndarray]:
        grid = method.release_values(message, total)
        planned = [release.name for release in plan if release.round == number]
        return {name: _as_of_all(grid[name], max(1, stand_for // clients)) for name in planned}

    return Trial(method, lambda clients: public, phase, result)


def _as_of_all(grid: np.ndarray, times: int) -> np.ndarray:
    """Sums as if every client represented `times` clients: the server knows the noise of the plan, which is meant for
    the whole population, and relative to it the sums of a few clients would vanish."""
    largest = int(np.abs(grid).max(initial=0))
    return grid * min(times, max(1, 2**61 // max(largest, 1)))


def _answers(
    method: AnyMethod,
    message: Message,
    pieces: Sequence[ClientBlock],
    memories: Sequence[Memory | None],
    kind: Kind,
    first: bool,
) -> tuple[Statistics | None, Statistics | None, list[Memory | None]]:
    """The merged answers of the pieces, of their halves (first round of a kind only), and the new memories."""
    total: Statistics | None = None
    halves: Statistics | None = None
    after: list[Memory | None] = []
    for piece, memory in zip(pieces, memories, strict=True):
        count = max(1, piece.clients // 2)
        half = piece.slice(0, count, piece.leaf)
        mine = None if memory is None else {name: array[:count] for name, array in memory.items()}
        if first:
            with peak_bytes() as measured:
                answer, new = method.client_update(message, piece, memory)
            kind.leaf_bytes = max(kind.leaf_bytes, measured[0])
            with peak_bytes() as measured:
                method.client_update(message, half, mine)
            kind.half_bytes = max(kind.half_bytes, measured[0])
            kind.statistics = max(kind.statistics, size_of(answer))
            kind.memory = 0.0 if new is None else _size(new) / piece.clients
        started = process_time()
        answer, new = method.client_update(message, piece, memory)
        between = process_time()
        smaller, _ = method.client_update(message, half, mine)
        kind.whole.append(between - started)
        kind.half.append(process_time() - between)
        total = merge(total, answer)
        halves = merge(halves, smaller)
        after.append(new)
    return total, halves, after


def _size(named: Mapping[str, Any]) -> int:
    return sum(value.nbytes if isinstance(value, np.ndarray) else 32 for value in named.values())
