"""What the rounds of a method cost on this machine: measured on a few clients, in this process, for a plan of a run.

The method's own functions answer the rounds for the first clients of two blocks; the server's own step goes on from
what they say. Only times and sizes leave this module. Nothing of the data is written or released, the ledger is not
opened here, and the noise of a private method is pseudo-random and forgotten: what is timed is the arithmetic. Times
and sizes are for operators and not protected (docs/privacy/limitations.md).
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from time import perf_counter, process_time
from typing import Any

import numpy as np

from fedcore.errors import FedcoreError
from fedcore.planning.machine import exact_noise, started_process, work_seconds, written
from fedcore.population import layout
from fedcore.population.blocks import ClientBlock, leaves
from fedcore.population.store import TRAIN, Population
from fedcore.privacy.mechanisms import TestNoise
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.clients import Source, block_for, redacted
from fedcore.rounds.method import Memory, Method, PublicFacts
from fedcore.rounds.statistics import Stack, merge, size_of, values
from fedcore.storage import files
from fedcore.storage.files import Place

LIMIT_SECONDS = 10.0
REPEATS = 4
SMALL, LARGE = 0.2, 0.4  # shares of the limit for the rounds of the first attempt, and of the second
FIRST_CLIENTS = 16  # of the first attempt, whose seconds say how many the limit has room for


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


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured. All sizes in bytes; times in seconds as they passed, but those of rounds and noise in seconds
    of work of a core.

    pace: seconds that passed for each second of work: above 1 where the machine has other work as well

    leaf_clients: of a whole leaf
    rounds: kinds of rounds in the order in which they were met; whole: whether the method came to its end
    reading: seconds for each decoded byte; reading_bytes: the most memory that reading took for each decoded byte
    stored: stored bytes for each decoded byte of the training part
    memory_io: seconds for each byte of memories of clients, written and read once; memory_file: for each file of them
    commit: of a round; state: stored bytes of the server's state
    noise: for each cell of exact noise; noise_start: once, for what draws it
    start: seconds in which a fresh process imports what answers; start_bytes: its size then; flow_bytes: with what
        holds a run as well
    stacked_clients: whose answers the server keeps apart, at most
    """

    pace: float
    leaf_clients: int
    rounds: tuple[Timed, ...]
    whole: bool
    reading: float
    reading_bytes: float
    stored: float
    memory_io: float
    memory_file: float
    commit: float
    state: int
    noise: float
    noise_start: float
    start: float
    start_bytes: int
    flow_bytes: int
    stacked_clients: int
    seconds: float


@dataclass
class _Kind:
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

    def take(self, other: _Kind | None) -> None:
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


def calibrate(
    method: Method,
    population: Population,
    facts_for: Callable[[int | None], PublicFacts],
    plan: Sequence[PlannedRelease],
    runs: Place,
    *,
    limit: float = LIMIT_SECONDS,
) -> Calibration:
    """Measure rounds, reading, memories, commits and noise within about `limit` seconds.

    facts_for: public facts for so many clients (None: private). plan: of the private run. runs: where the run will be;
    files of zeros are written beside it, timed and removed.
    """
    began = perf_counter()
    taken, reading, reading_bytes = _read(method, population)
    pieces = [taken[0].slice(0, min(FIRST_CLIENTS, taken[0].clients), taken[0].leaf)]
    working, waiting = process_time(), perf_counter()
    with redacted(method, 0):
        started = perf_counter()
        kinds, ended, state, rounds = _rounds(method, population, facts_for, plan, pieces, SMALL * limit)
        spent = (perf_counter() - started) * max(1.0, method.total_rounds(state) / rounds)
        most = max(block.clients for block in taken)
        clients = min(most, int(pieces[0].clients * LARGE * limit / max(spent, 1e-3)))
        if clients >= 2 * pieces[0].clients:
            # Both pieces are whole leaves only where the limit has room for them twice.
            count = len(taken) if 2 * most * spent <= pieces[0].clients * LARGE * limit else 1
            pieces = [block.slice(0, min(clients, block.clients), block.leaf) for block in taken[:count]]
            larger, ended, state, _ = _rounds(method, population, facts_for, plan, pieces, LARGE * limit)
            reached = {kind.phase for kind in larger}
            kinds = larger + [kind for kind in kinds if kind.phase not in reached]
        again = 0
        while again < REPEATS and perf_counter() - began < 0.5 * limit:  # a machine with other work is not even
            more, *_ = _rounds(method, population, facts_for, plan, pieces, 0.5 * limit - (perf_counter() - began), 1)
            again += 1
            for kind in kinds:
                kind.take(next((other for other in more if other.phase == kind.phase), None))
    pace = max(1.0, (perf_counter() - waiting) / max(process_time() - working, 1e-6))
    remembered = max((kind.memory for kind in kinds), default=0.0)
    memory_io, memory_file, commit, stored_state = written(runs, remembered, state, population)
    start, start_bytes, flow_bytes = started_process(method.name, method.private)
    noise, noise_start = exact_noise(plan)
    return Calibration(
        pace=pace,
        leaf_clients=population.clients_per_leaf,
        rounds=tuple(kind.timed() for kind in kinds),
        whole=ended,
        reading=reading,
        reading_bytes=reading_bytes,
        stored=_stored(population),
        memory_io=memory_io,
        memory_file=memory_file,
        commit=commit,
        state=stored_state,
        noise=noise,
        noise_start=noise_start,
        start=start,
        start_bytes=start_bytes,
        flow_bytes=flow_bytes,
        seconds=perf_counter() - began,
        stacked_clients=min(population.n_clients, method.clients_kept_apart(population.n_clients)),
    )


# --- reading --------------------------------------------------------------------------------------------------------


def entries_of(block: ClientBlock) -> int:
    """Rows, or stored counts."""
    return len(block.x) if hasattr(block, "x") else len(block.data)


def _read(method, population: Population) -> tuple[list[ClientBlock], float, float]:
    """The first leaf of a block with most clients and of that in the middle; seconds and peak memory of reading, for a
    byte."""
    source = Source(population.location, population.version, cache_bytes=0)
    taken, seconds, size, peak = [], 0.0, 0, 0.0
    large = _large(population)
    middle = next(
        index
        for index, entry in enumerate(population.blocks)
        if population.n_clients // 2 < entry.first + entry.clients
    )
    for index in dict.fromkeys((large, middle)):
        decoded = max(population.decoded_bytes(index), 1)
        started = perf_counter()
        block = block_for(method, source, population, index)
        whole = block.nbytes if decoded <= source.stream_above else 0
        if whole:
            seconds, size = seconds + perf_counter() - started, size + decoded
        if index == large and whole:
            with _peak() as measured:
                population.read(index)
            peak = measured[0] / decoded
        taken.append(next(leaves(block, population.clients_per_leaf)))
    if not size:  # read while it is used: the answers' own seconds hold it
        return taken, 0.0, 0.0
    return taken, seconds / size, peak


def _stored(population: Population) -> float:
    """Stored bytes of the training part for each decoded byte, from a block with most clients."""
    large = _large(population)
    size = files.size(layout.block_folder(population.path, population.blocks[large].slot) / TRAIN)
    return size / max(population.decoded_bytes(large), 1)


def _large(population: Population) -> int:
    """The first of the blocks with most clients: the first blocks of a population may hold few."""
    return max(range(len(population.blocks)), key=lambda index: population.blocks[index].clients)


# --- rounds ---------------------------------------------------------------------------------------------------------


def _rounds(
    method: Method, population: Population, facts_for, plan, pieces: Sequence[ClientBlock], limit: float, least: int = 3
):
    """(kinds, whether the method ended, last state, rounds made) of a training of these pieces alone, for `limit`
    seconds but at least so many rounds: what comes after a long start must be met as well."""
    clients = sum(piece.clients for piece in pieces)
    state = method.init(facts_for(None if method.private else clients))
    noise = TestNoise(token_hex(8))
    by_round: dict[int, list[PlannedRelease]] = {}
    for release in plan:
        by_round.setdefault(release.round, []).append(release)
    kinds: dict[str, _Kind] = {}
    memories: list[Memory | None] = [None] * len(pieces)
    began, number = perf_counter(), 0
    largest = max(1, population.n_clients // clients)
    while True:
        started = process_time()
        message = method.message(state)
        speaking = process_time() - started
        if message is None:
            return list(kinds.values()), True, state, number
        if number >= least and perf_counter() - began > limit:
            return list(kinds.values()), False, state, number
        number += 1
        phase = method.phase(state, message)
        first = phase not in kinds
        kind = kinds.setdefault(phase, _Kind(phase, pieces))
        try:
            total, halves, memories = _answers(method, message, pieces, memories, kind, first)
            stacked = any(isinstance(statistic, Stack) for statistic in total.values())
            given = values(halves) if stacked and halves is not None else None
            result = values(total)
            if method.private:
                grid = method.release_values(message, total)
                result = {
                    release.name: noise.draw(release, "", _as_of_all(grid[release.name], largest))
                    for release in by_round.get(number, ())
                }
            if first:
                with _peak() as measured:
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
            kinds = {name: other for name, other in kinds.items() if other.server}
            return list(kinds.values()), False, state, number - 1


def _answers(method, message, pieces, memories, kind: _Kind, first: bool):
    """The merged answers of the pieces, of their halves (first round of a kind only), and the new memories."""
    total, halves, after = None, None, []
    for piece, memory in zip(pieces, memories, strict=True):
        count = max(1, piece.clients // 2)
        half = piece.slice(0, count, piece.leaf)
        mine = None if memory is None else {name: array[:count] for name, array in memory.items()}
        if first:
            with _peak() as measured:
                answer, new = method.client_update(message, piece, memory)
            kind.leaf_bytes = max(kind.leaf_bytes, measured[0])
            with _peak() as measured:
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


def _as_of_all(grid: np.ndarray, times: int) -> np.ndarray:
    """Sums as if every client stood for so many: the noise of the plan is meant for the whole population, and beside
    it those of a few clients would be nothing."""
    largest = int(np.abs(grid).max(initial=0))
    return grid * min(times, max(1, 2**61 // max(largest, 1)))


# --- measuring -----------------------------------------------------------------------------------------------------


@contextmanager
def _peak() -> Iterator[list[int]]:
    """The most memory that was allocated inside beyond what there was before, into the list."""
    measured = [0]
    tracemalloc.start(1)
    try:
        yield measured
    finally:
        measured[0] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def _size(named: Mapping[str, Any]) -> int:
    return sum(value.nbytes if isinstance(value, np.ndarray) else 32 for value in named.values())
