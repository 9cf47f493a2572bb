"""Time and memory of a method's rounds on this machine: measured on a few clients, in this process, for a plan of a
run.

The method's functions compute the rounds of a few clients, and its server step continues from their statistics. Only
times and sizes leave this module. No computed value is written, nothing is released, and the ledger is not opened.

For a run that is not private these are the first clients of two blocks. For a private one no client of the population
is read. Simulated clients of the declared sizes take their place (`fedcore.planning.stand_ins`). The phases are those
of the run's schedule, whether the trial met them or not, and the files that are read and measured hold simulated
clients. For a population behind a URL, two blocks are read, only to time the transfer. So plans of neighbouring
populations are equal except for times, and any number of plans reveals nothing about clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, process_time

from fedcore.planning.machine import exact_noise, started_process, written
from fedcore.planning.reading import read_leaves, stored_share
from fedcore.planning.stand_ins import Shape, most_clients, stand_ins, stored_stand_ins
from fedcore.planning.trial_rounds import Rounds, Timed, Trial, of_clients, of_stand_ins, scheduled_phases
from fedcore.population.blocks import Aside, ClientBlock, CountsBlock
from fedcore.population.store import Population
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.clients import redacted
from fedcore.rounds.method import AnyMethod, PublicFacts, State
from fedcore.storage.files import Place, is_remote

LIMIT_SECONDS = 10.0
REPEATS = 4
SMALL, LARGE = 0.2, 0.4  # shares of the limit for the rounds of the first attempt, and of the second
FIRST_CLIENTS = 16  # of the first attempt, at least, whose seconds say how many the limit has room for
FIRST_BYTES = 2**18  # decoded, of the first attempt: so few small clients would mostly measure the calls
PIECES = 2
SCHEDULE_SECONDS = 60.0  # that a few stand-ins may take for the whole schedule, whatever the limit: it is then the same
AS_MANY = 2**20  # times the clients, where a budget is too small for the trial to meet every phase


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured. All sizes in bytes; times in seconds as they passed, but those of rounds and noise in seconds
    of work of a core.

    pace: seconds that passed for each second of work: above 1 where the machine has other work as well

    leaf_clients: of a whole leaf
    rounds: kinds of rounds in the order in which they were met; whole: whether the method came to its end
    reading: seconds for each decoded byte; reading_bytes: the most memory that reading took for each decoded byte
    stored: stored bytes for each decoded byte of the training part
    memory_write, memory_flush, memory_read: seconds for each byte of memories of clients: to write it, to have it on
        the disk, to read it; memory_file: for each file of them that is written
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
    memory_write: float
    memory_flush: float
    memory_read: float
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


def calibrate(
    method: AnyMethod,
    population: Population,
    facts_for: Callable[[int | None], PublicFacts],
    plan: Sequence[PlannedRelease],
    runs: Place,
    shape: Shape | None = None,
    *,
    limit: float = LIMIT_SECONDS,
    aside: bool = False,
) -> Calibration:
    """Measure rounds, reading, memories, commits and noise within about `limit` seconds.

    facts_for: returns public facts for a number of clients (None: private). plan: of the private run, and shape: of its
    simulated clients. runs: where the run will be; files of zeros are written there, timed and removed. aside: whether
    the run has room for what it computes from a block in one round and needs in the next (`CountsBlock.aside`).
    """
    began = perf_counter()
    if shape is None:
        taken, reading, reading_bytes = read_leaves(method, population)
        clients, block_clients = population.n_clients, int(population.blocks.numbers["clients"].max())
        stored = stored_share(population)
    else:
        clients, block_clients = shape.clients, min(shape.clients, population.manifest.clients_per_block)
        with stored_stand_ins(method, facts_for(None), shape, block_clients) as made:
            _, reading, reading_bytes = read_leaves(method, made)
            stored = stored_share(made)
        if is_remote(population.path):
            reading = read_leaves(method, population)[1]
    working, waiting = process_time(), perf_counter()
    with redacted(method, 0):
        if shape is None:
            pieces = [_with_room(block) for block in taken] if aside else taken
            found = _measured(method, of_clients(method, facts_for), pieces, limit, began)
            rounds, whole, state = tuple(kind.timed() for kind in found.kinds), found.ended, found.state
        else:
            rounds, state = _of_stand_ins(method, facts_for(None), plan, shape, limit, aside)
            whole = True
    pace = max(1.0, (perf_counter() - waiting) / max(process_time() - working, 1e-6))
    remembered = max((kind.memory for kind in rounds), default=0.0)
    disk = written(runs, remembered, state, block_clients)
    start, start_bytes, flow_bytes = started_process(method.name, method.private)
    noise, noise_start = exact_noise(plan)
    return Calibration(
        pace=pace,
        leaf_clients=population.clients_per_leaf,
        rounds=rounds,
        whole=whole,
        reading=reading,
        reading_bytes=reading_bytes,
        stored=stored,
        memory_write=disk.write,
        memory_flush=disk.flush,
        memory_read=disk.read,
        memory_file=disk.file,
        commit=disk.commit,
        state=disk.state,
        noise=noise,
        noise_start=noise_start,
        start=start,
        start_bytes=start_bytes,
        flow_bytes=flow_bytes,
        seconds=perf_counter() - began,
        stacked_clients=min(clients, method.clients_kept_apart(clients)),
    )


def _measured(
    method: AnyMethod,
    trial: Trial,
    taken: Sequence[ClientBlock],
    limit: float,
    began: float,
    first: Rounds | None = None,
) -> Rounds:
    """Rounds of the first clients of what was taken, then of as many as the limit has room for, again and again.

    first: the rounds of `first_pieces`, if they were made already.
    """
    pieces = few = first_pieces(taken)
    found = first or trial.run(pieces, SMALL * limit)
    times = max(1.0, method.total_rounds(found.state) / found.made)
    few = [] if found.stacked else few  # messages may name each client that the server knows
    growing = found.growing(bool(few)) * times
    fixed = found.seconds * times - growing  # of the server, and of rounds that only the few answer
    room = max(SMALL * limit, LARGE * limit - fixed)
    most = max(block.clients for block in taken)
    clients = min(most, int(pieces[0].clients * room / max(growing, 1e-3)))
    if clients >= 2 * pieces[0].clients:
        # Both pieces are whole leaves only where the limit has room for them twice.
        count = len(taken) if 2 * most * growing <= pieces[0].clients * room else 1
        pieces = [block.slice(0, min(clients, block.clients), block.leaf) for block in taken[:count]]
        larger = trial.run(pieces, room + min(fixed, limit), few=few)
        reached = {kind.phase for kind in larger.kinds}
        found = replace(larger, kinds=larger.kinds + [kind for kind in found.kinds if kind.phase not in reached])
    again = 0
    while again < REPEATS and perf_counter() - began < 0.5 * limit:  # a machine with other work is not even
        more = trial.run(pieces, 0.5 * limit - (perf_counter() - began), 1, few)
        again += 1
        for kind in found.kinds:
            kind.take(next((other for other in more.kinds if other.phase == kind.phase), None))
    return found


def _with_room(block: ClientBlock) -> ClientBlock:
    """The block as it is in a cache with additional room."""
    return replace(block, aside=Aside(lambda size: True)) if isinstance(block, CountsBlock) else block


def first_pieces(taken: Sequence[ClientBlock]) -> list[ClientBlock]:
    each = max(1, taken[0].nbytes // taken[0].clients)
    return [taken[0].slice(0, min(max(FIRST_CLIENTS, FIRST_BYTES // each), taken[0].clients), taken[0].leaf)]


# --- private runs -----------------------------------------------------------------------------------------------------


def _of_stand_ins(
    method: AnyMethod, public: PublicFacts, plan: Sequence[PlannedRelease], shape: Shape, limit: float, aside: bool
) -> tuple[tuple[Timed, ...], State]:
    """The phases of the schedule, timed, and a state as the run's last one."""
    phases = scheduled_phases(plan, method.total_rounds(method.init(public)))
    most = most_clients(shape)
    taken = [stand_ins(method, public, shape, most, leaf) for leaf in range(PIECES if shape.clients > most else 1)]
    taken = [_with_room(block) for block in taken] if aside else taken
    began = perf_counter()
    trial = of_stand_ins(method, public, plan, phases, shape.clients)
    once = max(limit, SCHEDULE_SECONDS)
    first = trial.run(first_pieces(taken), once)
    if first.ended and first.made < len(phases):
        # The budget is too small for anything to be found; how long the rest would take is still asked.
        surer = of_stand_ins(method, public, plan, phases, shape.clients * AS_MANY)
        second = surer.run(first_pieces(taken), once)
        if second.made > first.made:
            trial, first = surer, second
    found = _measured(method, trial, taken, limit, began, first)
    return _scheduled(phases, {kind.phase: kind.timed() for kind in found.kinds}), first.state


def _scheduled(phases: Sequence[str], met: Mapping[str, Timed]) -> tuple[Timed, ...]:
    """One for each phase of the schedule, counted by it. One that the trial did not meet is like the last before it."""
    rounds, known = [], next(iter(met.values()))
    for phase in dict.fromkeys(phases):
        known = met.get(phase, known)
        rounds.append(replace(known, phase=phase, count=phases.count(phase)))
    return tuple(rounds)
