"""A plan of a run before it is made: passes, bytes, memory, disk, seconds. `fedcore.runs.plan_check` holds the run
against it.

Sizes follow from the manifest, the settings and the planned releases; times from a short calibration
(`fedcore.planning.calibration`). The cost model, its assumptions and how well it does are in docs/notes/capacity.md.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from fedcore.errors import ConfigError
from fedcore.planning.calibration import LIMIT_SECONDS, Calibration, calibrate
from fedcore.planning.machine import existing
from fedcore.planning.stand_ins import public_shape
from fedcore.planning.trial_rounds import Timed
from fedcore.population.sizing import (
    WORKERS,
    block_limit,
    blocks_of,
    explicit_clients_per_block,
    is_small,
    shared_out,
    usable_cores,
)
from fedcore.population.store import Population
from fedcore.population.streaming import WINDOW_BYTES
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.clients import AHEAD_BYTES, DEFAULT_CACHE_BYTES, DEFAULT_STREAM_ABOVE, worth_reading_ahead
from fedcore.rounds.engine import COMMIT_SECONDS
from fedcore.rounds.method import AnyMethod, PublicFacts
from fedcore.runs.store import STATES_KEPT
from fedcore.storage.files import Place, is_remote, place
from fedcore.training.request import TrainRequest
from fedcore.training.spec import open_inputs, resolve

MOST_WORKERS = 10_000

# Bytes were fitted to the runs of docs/notes/capacity.md. The seconds (of work of a core) and the commits of a release
# are round estimates that were not measured by themselves.
DASK_BYTES = 30 * 2**20  # of a worker, and of the process that has the run
KEPT_BYTES = 32 * 2**20  # of a process that answers: freed memory that its allocator keeps, small things
PREFECT_BYTES = 130 * 2**20  # of the process that has the run, beyond Dask
ROUND_SECONDS = 0.02  # of Dask: the message out, the answer back
FUTURE_SECONDS = 0.003  # of the scheduler
BLOCK_BYTES = 750  # of a block, while a manifest is read and a round shared out
RELEASE_COMMITS = 2  # a charge, a publication and a copy, each durable, take this many commits of a round
FUTURE_WORK = 0.25  # seconds of work that are put into a future
AT_ONCE = 1.2  # of the longer of two things that two threads do, what both together take (docs/notes/benchmarks.md)


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of the planned run.

    workers: 0 for this process alone, None for the default of a run; prefect: whether a flow has them
    cluster: whether each has a separate core and disk, like this machine's; cache_bytes: of decoded blocks, each
    memory_bytes: that a process may have; deadline: seconds for all rounds; None: not bounded
    clients, rows: plan for this number of clients, and of rows of each (different tokens, of counts); None: those of
    the population, or the declared ones if the run is private
    """

    workers: int | None = None
    prefect: bool = True
    cluster: bool = False
    cache_bytes: int = DEFAULT_CACHE_BYTES
    memory_bytes: int | None = None
    deadline: float | None = None
    clients: int | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Load:
    """Sizes of the population as the run sees it.

    sizes: decoded bytes of each block's training part; block_clients: of the block that has most; shares_commits:
    whether cheap rounds do; remote: whether it is behind a URL; `beside`: `Method.kept_beside`
    """

    clients: float
    sizes: tuple[float, ...]
    leaves: float
    entries: float
    block_clients: int
    streams: bool
    shares_commits: bool
    remote: bool
    beside: float = 0.0

    @property
    def blocks(self) -> int:
        return len(self.sizes)

    @cached_property
    def decoded(self) -> float:
        return sum(self.sizes)

    @cached_property
    def largest(self) -> float:
        return max(self.sizes)


def load_of(method: AnyMethod, population: Population, clients: int | None, rows: int | None = None) -> Load:
    """Load of the population as it is; or of one with this number of clients and of rows of each, in blocks as this
    machine would make.

    A private method's load is always of the latter kind, with declared sizes (`public_shape`). It does not depend on
    the population's rows, bytes or blocks.
    """
    leaf = population.clients_per_leaf
    if method.private:
        shape = public_shape(method, population, clients, rows)
        clients, each, entries_each = shape.clients, shape.client_bytes, shape.entries
    else:
        entries = float(population.blocks.sum_of("train.entries"))
        blocks = population.blocks.numbers["clients"].tolist()
        sizes = [float(size) for size in population.sizes()]
        each, entries_each = sum(sizes) / population.n_clients, entries / population.n_clients
        if rows is not None:
            clients = clients or population.n_clients
            each, entries_each = each * rows / max(entries_each, 1e-9), float(rows)
    if clients is not None:
        limit = block_limit(leaf, explicit_clients_per_block(leaf, population.manifest.clients_per_block))
        blocks = blocks_of(clients, leaf, limit, each)
        sizes, entries = [each * block for block in blocks], entries_each * clients
    streams = method.streams_rows and population.kind == "rows" and max(sizes) > DEFAULT_STREAM_ABOVE
    return Load(
        sum(blocks),
        tuple(sizes),
        sum(math.ceil(block / leaf) for block in blocks),
        entries,
        max(blocks),
        streams,
        not method.private,
        is_remote(population.path),
        method.kept_beside,
    )


def plan_run(
    request: TrainRequest, where: Resources, *, limit: float = LIMIT_SECONDS, meet_deadline: bool = False
) -> dict[str, Any]:
    """What the requested run would take (see `predicted`); nothing is reserved, released or kept.

    limit: seconds of the calibration. meet_deadline: if it would take longer than the deadline, the plan is that of as
    many workers as meet it, with a core each. Raises ConfigError for what cannot fit, and what `open_inputs` and
    `resolve` raise.
    """
    spec = resolve(request, open_inputs(request))
    method, population, public = spec.method, spec.population, spec.public
    if spec.participants is not None and where.clients is None:
        where = replace(where, clients=public.nominal_clients)

    def facts_for(clients: int | None) -> PublicFacts:
        if clients is None:
            return public
        rows = public.rows and max(1, round(public.rows * clients / population.n_clients))
        return replace(public, clients=clients, rows=rows)

    runs = place(request.runs)
    shape = public_shape(method, population, where.clients, where.rows) if method.private else None
    load = load_of(method, population, where.clients, where.rows)
    aside = load.beside > 0 and _room_beside(load, replace(where, workers=_workers(load, where)))
    measured = calibrate(method, population, facts_for, spec.releases, runs, shape, limit=limit, aside=aside)
    passes = method.total_rounds(method.init(public))
    predictions = predicted(method, population, spec.releases, passes, measured, where)
    if meet_deadline and where.deadline is not None and predictions["seconds"] > where.deadline:
        where = replace(where, workers=predictions["workers_for_deadline"], cluster=True)
        predictions = predicted(method, population, spec.releases, passes, measured, where)
    refuse(predictions, where, runs)
    if spec.ledger is not None:
        budget = spec.ledger.balance(population.id).of_share(spec.share).required_budget()
        predictions["epsilon"] = budget.epsilon_of(sum(planned.rho for planned in spec.releases))
        predictions["delta"] = budget.delta
    if spec.worth is not None:
        predictions["worth"] = spec.worth.in_words
    if spec.left_out:
        predictions["missing_values"] = spec.left_out
    return predictions


# --- the prediction -------------------------------------------------------------------------------------------------


def predicted(
    method: AnyMethod,
    population: Population,
    plan: Sequence[PlannedRelease],
    passes: int,
    measured: Calibration,
    where: Resources,
) -> dict[str, Any]:
    """What the run will take, as JSON: names say their unit. passes: the largest number of rounds.

    Raises ConfigError if the deadline cannot be met by any number of workers.
    """
    load = load_of(method, population, where.clients, where.rows)
    where = replace(where, workers=_workers(load, where))
    kinds = _counted(measured, passes)
    cells = sum(release.cells for release in plan)
    memory = max((kind.memory for kind, _ in kinds), default=0.0) * load.clients
    state = measured.state
    predictions: dict[str, Any] = {
        "method": method.name,
        "private": method.private,
        "population": population.path.name,
        "version": population.version,
        "clients": int(load.clients),
        "rows_per_client": load.entries / load.clients,
        "rows_assumed": method.private and where.rows is None and population.manifest.nominal_rows is None,
        "workers": where.workers,
        "cache_bytes": where.cache_bytes,
        "passes": sum(count for _, count in kinds),
        "phases": [
            {
                "phase": kind.phase,
                "passes": count,
                "seconds_per_pass": _pass(kind, load, measured, where, True),
                "client_seconds": _work(kind, load, measured),
            }
            for kind, count in kinds
        ],
    }
    stored = measured.stored * load.decoded
    missing = _uncached(load, where)
    predictions |= {
        "bytes_read_first_pass": int(stored),
        "bytes_read_later_pass": int(stored * missing),
        "bytes_read": int(stored * (1 + missing * (predictions["passes"] - 1))),
        "bytes_per_worker": int(_worker_bytes(kinds, load, measured, where)),
        "bytes_of_flow": int(_flow_bytes(kinds, load, measured, where)),
        "disk_bytes": int(STATES_KEPT * (state + kinds[-1][0].memory * load.clients) + 8 * cells),
        "disk_bytes_most": int((STATES_KEPT + 1) * (state + memory) + 8 * cells),
        "released_bytes": 8 * cells,
        "seconds_of_releases": _releases(plan, measured),
        "seconds": _seconds(kinds, load, measured, where, plan),
        "seconds_of_work": sum(
            count * (_work(kind, load, measured) + _server(kind, load, measured)) for kind, count in kinds
        )
        + _noise(plan, measured),
        "pace": measured.pace,
    }
    predictions["seconds_per_pass"] = predictions["seconds"] / max(1, predictions["passes"])
    if where.deadline is not None:
        predictions["deadline_seconds"] = where.deadline
        predictions["workers_for_deadline"] = _workers_for(kinds, load, measured, where, plan)
    predictions["calibration"] = {
        "seconds": measured.seconds,
        "noise_seconds_per_cell": measured.noise,
        "commit_seconds": measured.commit,
        "phases": [asdict(kind) for kind in measured.rounds],
    }
    return predictions


def _workers(load: Load, where: Resources) -> int:
    """How many there will be: `fedcore.tasks.backends.backend_for` in a flow."""
    if where.cluster or not where.prefect:
        return where.workers if where.workers is not None else WORKERS if where.cluster else 0
    small = where.workers is None and is_small(load.clients, load.decoded)
    return 0 if small or load.blocks == 1 else WORKERS if where.workers is None else where.workers


def _counted(measured: Calibration, passes: int) -> list[tuple[Timed, int]]:
    """Kinds of rounds and how many there will be: those not met in the calibration are like most of the last ones."""
    missing = max(0, passes - sum(kind.count for kind in measured.rounds))
    like = max(measured.rounds, key=lambda kind: kind.count) if measured.whole else measured.rounds[-1]
    return [(kind, kind.count + (missing if kind is like else 0)) for kind in measured.rounds]


# --- seconds --------------------------------------------------------------------------------------------------------


def _work(kind: Timed, load: Load, measured: Calibration) -> float:
    """Seconds of answering all clients once on one core, without reading: linear in clients of the same size."""
    slope = max(0.0, kind.whole - kind.half) / max(1, kind.clients - kind.clients // 2)
    slope = min(slope, kind.whole / kind.clients)
    fixed = kind.whole - slope * kind.clients
    larger = (load.entries / load.clients) / max(kind.entries / kind.clients, 1e-9)
    return load.leaves * fixed + load.clients * slope * larger


def _remembered(kind: Timed, load: Load, measured: Calibration, where: Resources, durable: float) -> float:
    """Seconds of writing the memories of all clients once, and of reading those that no worker has kept. durable: the
    share of such rounds that are flushed to the disk."""
    if not kind.memory:
        return 0.0
    size, at_one = kind.memory * load.clients, _largest_share(load, where)
    room = where.cache_bytes - min(where.cache_bytes, load.decoded * at_one)
    read = max(0.0, 1.0 - room / (size * at_one))
    each = measured.memory_write + durable * measured.memory_flush + read * measured.memory_read
    return size * each + load.blocks * measured.memory_file


def _room_beside(load: Load, where: Resources) -> bool:
    """Whether a cache holds all of a worker's blocks, and what is made of them."""
    return load.decoded * _largest_share(load, where) * (1.0 + load.beside) <= where.cache_bytes


def _server(kind: Timed, load: Load, measured: Calibration) -> float:
    """Seconds of the server. It takes the same for any number of clients, unless it keeps their answers apart."""
    if not kind.stacked or not kind.server_half:
        return kind.server
    power = min(2.0, max(0.0, math.log2(max(kind.server, 1e-6) / max(kind.server_half, 1e-6))))
    most = min(load.clients, measured.stacked_clients)
    growth: float = max(1.0, most / (kind.clients * kind.pieces)) ** power
    return kind.server * growth


def _uncached(load: Load, where: Resources) -> float:
    """The share of the decoded bytes that each pass after the first reads again."""
    if load.streams:
        return 1.0
    share = load.decoded * _largest_share(load, where)
    return max(0.0, 1.0 - where.cache_bytes / max(share, 1.0))


def _largest_share(load: Load, where: Resources) -> float:
    """Of the decoded bytes, at the worker that has most of them."""
    return _largest_of(load.sizes, max(1, where.workers or 0))


@lru_cache
def _largest_of(sizes: tuple[float, ...], parts: int) -> float:
    shares = shared_out(sizes, parts)
    return max(sum(sizes[index] for index in share) for share in shares) / max(sum(sizes), 1.0)


def _share_of_work(load: Load, where: Resources) -> float:
    """What of the work takes time one after the other: workers beyond the cores of this machine are no help."""
    bound = 1 / usable_cores() if where.workers and not where.cluster else 0.0
    return max(_largest_share(load, where), bound)


def _pass(kind: Timed, load: Load, measured: Calibration, where: Resources, cached: bool) -> float:
    """Seconds of a round without its releases. cached: not the first, which reads every block."""
    reading = load.decoded * measured.reading * (_uncached(load, where) if cached else 1.0)
    work, share = measured.pace * _work(kind, load, measured), _share_of_work(load, where)
    together = work + reading
    if not load.remote and _reads_ahead(load, where):
        together = min(together, AT_ONCE * max(work, reading))
    work = together
    durable = min(1.0, work * share / COMMIT_SECONDS) if load.shares_commits else 1.0
    remembered = _remembered(kind, load, measured, where, durable)
    seconds = work * share + remembered * (share if where.cluster else 1.0)  # one machine has one disk
    if where.workers:
        futures = min(load.blocks, max(2 * where.workers, work / FUTURE_WORK))
        seconds += measured.pace * (ROUND_SECONDS + FUTURE_SECONDS * futures)
    seconds += measured.pace * _server(kind, load, measured)
    return seconds + measured.commit * (min(1.0, seconds / COMMIT_SECONDS) if load.shares_commits else 1.0)


def _seconds(
    kinds: Sequence[tuple[Timed, int]],
    load: Load,
    measured: Calibration,
    where: Resources,
    plan: Sequence[PlannedRelease],
) -> float:
    total = sum(count * _pass(kind, load, measured, where, True) for kind, count in kinds)
    first = kinds[0][0]
    total += _pass(first, load, measured, where, False) - _pass(first, load, measured, where, True)
    total += measured.start if where.workers else 0.0
    return total + _releases(plan, measured)


def _workers_for(
    kinds: Sequence[tuple[Timed, int]],
    load: Load,
    measured: Calibration,
    where: Resources,
    plan: Sequence[PlannedRelease],
) -> int:
    """The fewest workers, each with a core of this kind, that meet the deadline. Raises ConfigError."""
    most = min(MOST_WORKERS, load.blocks)

    def seconds(workers: int) -> float:
        return _seconds(kinds, load, measured, replace(where, workers=workers, cluster=True), plan)

    # More workers take less, until what their futures cost the scheduler is more than what they save.
    low, high = 1, min([*(1 << power for power in range(most.bit_length())), most], key=seconds)
    deadline = math.inf if where.deadline is None else where.deadline
    if seconds(high) > deadline:
        raise ConfigError(
            f"no number of workers up to {most} ends in {deadline:.0f} s: {high} need {seconds(high):.0f} s.",
            "Allow more time, set fewer rounds, or make smaller blocks.",
        )
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if seconds(middle) <= deadline else (middle + 1, high)
    return low


def _reads_ahead(load: Load, where: Resources) -> bool:
    """Whether the next block is read while one is answered."""
    spare = not where.cluster and usable_cores() > max(1, where.workers or 0)
    return not load.streams and load.largest <= AHEAD_BYTES and worth_reading_ahead(load.remote, spare)


def _releases(plan: Sequence[PlannedRelease], measured: Calibration) -> float:
    """Seconds of charging, drawing and publishing."""
    return measured.pace * _noise(plan, measured) + len(plan) * RELEASE_COMMITS * measured.commit


def _noise(plan: Sequence[PlannedRelease], measured: Calibration) -> float:
    """Seconds of work of exact noise."""
    return measured.noise_start + sum(release.cells for release in plan) * measured.noise


# --- memory ---------------------------------------------------------------------------------------------------------


def _answering_bytes(kinds: Sequence[tuple[Timed, int]], load: Load, measured: Calibration, where: Resources) -> float:
    """Blocks, memories, and what answering takes, in the process that answers."""
    cached = 0.0 if load.streams else min(where.cache_bytes, load.decoded * _largest_share(load, where))
    fits = cached + load.largest <= where.cache_bytes or cached >= load.decoded * _largest_share(load, where)
    if load.streams:
        block = float(WINDOW_BYTES)
    else:
        block = load.largest * max(0.0, measured.reading_bytes - (1.0 if fits else 0.0))
    whole = min(measured.leaf_clients, load.clients)
    leaf = max((_leaf_bytes(kind, whole) for kind, _ in kinds), default=0.0)
    memory = max((kind.memory for kind, _ in kinds), default=0.0) * min(load.block_clients, load.clients)
    statistics = max((kind.statistics for kind, _ in kinds), default=0)
    remembered = max((kind.memory for kind, _ in kinds), default=0.0) * load.clients * _largest_share(load, where)
    kept = max(0.0, min(where.cache_bytes - cached, remembered + cached * load.beside))
    ahead = load.largest if not fits and _reads_ahead(load, where) else 0.0
    return cached + kept + ahead + max(block, leaf + 3 * memory) + 4 * statistics + BLOCK_BYTES * load.blocks


def _leaf_bytes(kind: Timed, clients: float) -> float:
    """Of answering a leaf with this number of clients: linear in them, from a piece and its half."""
    each = max(0.0, kind.leaf_bytes - kind.half_bytes) / max(1, kind.clients - kind.clients // 2)
    return kind.leaf_bytes + each * max(0.0, clients - kind.clients)


def _worker_bytes(kinds: Sequence[tuple[Timed, int]], load: Load, measured: Calibration, where: Resources) -> float:
    if not where.workers:
        return 0.0
    return measured.start_bytes + DASK_BYTES + KEPT_BYTES + _answering_bytes(kinds, load, measured, where)


def _flow_bytes(kinds: Sequence[tuple[Timed, int]], load: Load, measured: Calibration, where: Resources) -> float:
    server = max((kind.server_bytes for kind, _ in kinds), default=0) + 2 * measured.state
    prefect = PREFECT_BYTES if where.prefect else 0
    if where.workers:
        return measured.flow_bytes + DASK_BYTES + prefect + server + BLOCK_BYTES * load.blocks
    return measured.flow_bytes + KEPT_BYTES + prefect + _answering_bytes(kinds, load, measured, where) + server


# --- what cannot fit ------------------------------------------------------------------------------------------------


def refuse(predictions: dict[str, Any], where: Resources, runs: Place) -> None:
    """Raises ConfigError, with the numbers, for memory or disk that the run would not have. What is free behind a URL
    is not known, and not asked."""
    largest = max(predictions["bytes_per_worker"], predictions["bytes_of_flow"])
    if where.memory_bytes is not None and largest > where.memory_bytes:
        who = (
            "a worker" if predictions["bytes_per_worker"] >= predictions["bytes_of_flow"] else "the process of the flow"
        )
        without = largest - where.cache_bytes
        remedy = (
            f"A cache of {_mib(max(0, where.memory_bytes - without))} would fit (--cache)."
            if without < where.memory_bytes and where.cache_bytes
            else "Give more memory, or make the population's blocks smaller."
        )
        raise ConfigError(f"{who} would need {_mib(largest)}, and may have {_mib(where.memory_bytes)}.", remedy)
    if is_remote(runs):
        return
    free = shutil.disk_usage(existing(runs)).free
    if predictions["disk_bytes_most"] > free:
        raise ConfigError(
            f"the run would need {_mib(predictions['disk_bytes_most'])} at {str(runs)!r}, where {_mib(free)} are free.",
            "Free some space, or name another place with --runs.",
        )


def _mib(size: float) -> str:
    return f"{size / 2**20:,.0f} MiB"
