"""The Dask backend: blocks are plain futures, pinned to the worker that has them decoded; partial answers are added
on the workers as a tree, so that only one answer travels to the flow process.

Which worker answers, in what order, and what is computed twice after a worker's death makes no difference to the
result: that is the law of `fedcore.rounds.statistics`.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise, zip_longest
from typing import Any
from uuid import uuid4

import dask
import numpy as np
from dask.utils import parse_timedelta
from distributed import Client, Future, KilledWorker, as_completed, get_worker
from distributed.client import FutureCancelledError
from fedcore.tasks.local_cluster import local_cluster

import fedcore
from fedcore.errors import ConfigError, PrivacyError, WorkerFailed
from fedcore.population.sizing import WORKERS, shared_out, usable_cores
from fedcore.rounds.clients import Answer, Answering, answer_all, one_blas_thread, peak_memory, population_of
from fedcore.rounds.method import Message
from fedcore.rounds.statistics import Statistics, aligned_arrays, merge_all, size_of

FAN_IN = 8
GATHERED_BYTES = 16 * 2**20  # of answers that this process adds up itself: a future more would take as long as they do
TARGET_SECONDS = 0.25  # work in one future; Dask's own cost is 2 to 3 ms for each
LATE_SECONDS = 0.05  # of work that a worker has, from which on it has two futures at least: another may take one over
FUTURES_PER_WORKER = 8  # in flight
PATIENCE = "5 minutes"  # without any worker, until a round is given up: a busy machine starts processes slowly
FIRST_SECONDS = 60.0  # the same at the beginning of a run: nobody may have started any
ATTEMPTS = 3  # of a whole round, when the scheduler or all copies of something were lost

# Dask samples the stack of a worker a hundred times a second, times its event loops fifty times, and reads what the
# system says of disks and networks twice: a sixth of what it takes of the CPU while rounds are cheap. We look at none.
UNWATCHED = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}

# Partial sums of people's data must not reach a disk, and blocks are cached by us: no spilling, ever.
WORKER_MEMORY = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 0.95,
}


def workerless_seconds() -> float:
    """How long a run waits for workers that were lost: Dask's setting `fedcore.workerless-timeout`, for example from
    the environment (DASK_FEDCORE__WORKERLESS_TIMEOUT="10 minutes"). Raises ConfigError.
    """
    given = dask.config.get("fedcore.workerless-timeout", PATIENCE)
    try:
        seconds = parse_timedelta(given)
    except (ValueError, KeyError, TypeError):
        seconds = None
    if not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise ConfigError(
            f"fedcore.workerless-timeout of Dask's settings is {given!r}, which is no time.",
            'Write "5 minutes" or "90s".',
        )
    return float(seconds)


def _local_settings() -> dict:
    """A local cluster gives a worker up for good, with its nanny, if it is not back after Dask's 15 s: on a busy
    machine that is before the nanny has started its process anew.
    """
    return {**WORKER_MEMORY, "distributed.deploy.lost-worker-timeout": f"{workerless_seconds()} s"}


@dataclass(frozen=True)
class Wanted:
    """What a worker of a cluster that we did not start must be: it may have come, or come back, at any time."""

    version: str
    private: bool

    def refuse_others(self) -> None:
        """On a worker. Raises ConfigError, PrivacyError."""
        worker = get_worker()
        _refuse_version({worker.address: _version()}, self.version)
        if self.private:
            _refuse_for_private_runs({worker.address: (_spills(), worker.state.nthreads)})


@dataclass
class Request:
    """What is asked of every block: function(message, block)."""

    function: Answering
    message: Message
    wanted: Wanted | None = None


def hold(request: Request) -> Request:
    """Keeps what a round asks on the cluster; can be recomputed if the worker that has it dies."""
    return request


@dataclass
class Part:
    """The merged answer of some blocks, and the seconds of work in it."""

    statistics: Statistics | None
    seconds: float


def answer_group(request: Request, blocks: Sequence[int], then: int | None = None, spare: bool = False) -> Part:
    """then: the block that this worker is likely to be asked for next; spare: as for `answer_all`. Raises what
    `Wanted.refuse_others` does.
    """
    if request.wanted is not None:
        request.wanted.refuse_others()
    started, message = time.perf_counter(), aligned_arrays(request.message)
    statistics = merge_all(answer_all(request.function, message, blocks, then, spare))
    return Part(statistics, time.perf_counter() - started)


def prepare(answer: Answer, wanted: Wanted) -> None:
    """On a worker, before it is asked anything: import what answers need, and open the population. Raises what
    `Wanted.refuse_others` and `population_of` do.
    """
    wanted.refuse_others()
    with one_blas_thread():
        population_of(answer.source)


def add_up(parts: Sequence[Part], wanted: Wanted | None = None) -> Part:
    """Raises what `Wanted.refuse_others` does."""
    if wanted is not None:
        wanted.refuse_others()
    started = time.perf_counter()
    statistics = merge_all(part.statistics for part in parts)
    return Part(statistics, sum(part.seconds for part in parts) + time.perf_counter() - started)


@contextmanager
def dask_client(workers: int | None = None, address: str | None = None, private: bool = False) -> Iterator[Client]:
    """One Dask client for a whole run: a local cluster of single-threaded processes, or the scheduler at `address`.

    Raises ConfigError if the scheduler does not answer or has workers of another version, PrivacyError if a private run
    would send raw sums unencrypted, let anybody in who reaches a port, or let a worker spill sums to disk.
    """
    if address is not None:
        if private and not _closed(address):
            raise PrivacyError(
                f"a private run sends raw sums between workers, and {address} is not encrypted: whoever reaches it, on "
                "this host every user, reads them and runs code on the workers.",
                "Use a scheduler at tls:// with certificates (docs/notes/deployments.md), or leave --dask out: the "
                "workers that are then started on this host are closed to others.",
            )
        try:
            client = Client(address, timeout="10s", set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise ConfigError(
                f"no Dask scheduler answers at {address} ({type(error).__name__}).",
                "Start one with `dask scheduler`, or leave --dask out.",
            ) from error
        with client:
            _refuse_version(client.run(_version, on_error="return"), _version())
            if private:
                threads = client.nthreads()
                _refuse_for_private_runs({one: (spills, threads[one]) for one, spills in client.run(_spills).items()})
            yield client
        return
    with (
        dask.config.set(_local_settings() | UNWATCHED),
        local_cluster(workers or WORKERS) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def dask_backend(
    workers: int | None = None, address: str | None = None, private: bool = False
) -> Iterator["DaskBackend"]:
    """A backend for a whole run, on the workers of `dask_client`, which raises what that does."""
    with dask_client(workers, address, private) as client:
        yield DaskBackend(client, None if address is None else Wanted(_version(), private))


def _closed(address: str) -> bool:
    """Whether what listens there wants a certificate; or is in this process."""
    return address.startswith(("tls://", "inproc://"))


def _version() -> str:
    """Of fedcore on this host."""
    return fedcore.__version__


def _refuse_version(found: Mapping[str, object], wanted: str) -> None:
    """Workers of another version may answer with other arithmetic, or make less sure of what a client can change.
    found: versions by worker."""
    others = sorted((worker, said) for worker, said in found.items() if said != wanted)
    if others:
        worker, said = others[0]
        version = said if isinstance(said, str) else "another version"
        raise ConfigError(
            f"{len(others)} Dask workers do not have fedcore {wanted} as this process has: {worker} has {version}.",
            "Upgrade all hosts together, and start the workers anew.",
        )


def _spills() -> bool:
    return dask.config.get("distributed.worker.memory.spill", 0.7) is not False or (
        dask.config.get("distributed.worker.memory.target", 0.6) is not False
    )


def _refuse_for_private_runs(found: Mapping[str, tuple[bool, int]]) -> None:
    """A scheduler that listens in two ways may have workers that do not encrypt; sums must not reach a disk; and blocks
    that a process answers at once share what is kept beside them. found: whether it spills, and its threads, by worker.
    """
    clear = [worker for worker in found if not _closed(worker)]
    if clear:
        raise PrivacyError(
            f"{len(clear)} Dask workers do not encrypt what they send, {clear[0]} for one.",
            "Start them with the tls:// address of the scheduler.",
        )
    spilling = [worker for worker, (spills, _) in found.items() if spills]
    if spilling:
        raise PrivacyError(
            f"{len(spilling)} Dask workers may spill partial sums of a private run to disk.",
            "Start them with DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False and "
            "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False.",
        )
    wide = [worker for worker, (_, threads) in found.items() if threads != 1]
    if wide:
        raise PrivacyError(
            f"{len(wide)} Dask workers answer several blocks at once, {wide[0]} for one; those of a private run answer "
            "one after the other.",
            "Start them with --nthreads 1, and as many as there are cores.",
        )


def _no_worker(seconds: float) -> WorkerFailed:
    return WorkerFailed(
        f"the Dask cluster has had no worker for {seconds:.0f} s.",
        "Start some, then resume the run; committed rounds are kept.",
    )


class Strayed(Exception):
    """All workers that a round was shared out to are gone. Dask may leave their futures waiting for just these.

    blocks: whose answers are missing.
    """

    blocks: Sequence[int] = ()


class Silent(Exception):
    """The scheduler does not answer."""


class Watch:
    """Says when answers of a round cannot come any more. homes: the workers that it was shared out to."""

    def __init__(self, client: Client, homes: Sequence[str]):
        self.client, self.homes = client, set(homes)
        self.seen, self.patience = time.monotonic(), workerless_seconds()
        self.interval = min(3.0, self.patience / 20)

    def look(self) -> None:
        """Raises WorkerFailed when the cluster has had no worker for too long, Strayed when it has only new ones."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        if not workers and time.monotonic() - self.seen > self.patience:
            raise _no_worker(self.patience)
        if workers and self.homes and self.homes.isdisjoint(workers):
            raise Strayed
        if workers:
            self.seen = time.monotonic()


class DaskBackend:
    """Maps blocks over the workers of one client (`fedcore.rounds.engine.Backend`). wanted: None for workers that we
    started ourselves."""

    def __init__(self, client: Client, wanted: Wanted | None = None):
        self.client, self.wanted = client, wanted
        self.answered = False  # whether there ever were workers
        self.answer_bytes = math.inf  # of all blocks in the last round
        self.pace: float | None = None  # seconds for what has size 1 in the last round; makes the groups of the next
        self.preparing: list[Future] = []  # of workers that we did not start, until the first round

    def expect(self, answer: Answer) -> None:
        """Let workers prepare for rounds like this one while the run begins. Workers of this machine share its cores
        with what the run does meanwhile, and prepare themselves when they are asked. What fails here fails again then.
        """
        if self.wanted is not None:
            for worker in self.client.scheduler_info(n_workers=-1)["workers"]:
                task = self.client.submit(
                    prepare, answer, self.wanted, workers=[worker], allow_other_workers=True, pure=False
                )
                self.preparing.append(task)

    def map_blocks(
        self, function: Answering, message: Message, blocks: Sequence[int], sizes: Sequence[float] | None = None
    ) -> Statistics | None:
        """`Backend.map_blocks`; a round whose workers are all gone is shared out anew, ATTEMPTS times."""
        weights = np.ones(len(blocks)) if sizes is None else np.maximum(sizes, 1.0)
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._round(Request(function, message, self.wanted), list(blocks), weights)
            except (FutureCancelledError, TimeoutError, Silent) as error:
                if attempt == ATTEMPTS or not self._connected():
                    raise WorkerFailed(
                        "the Dask scheduler was lost in the middle of a round.",
                        "Resume the run; committed rounds are kept.",
                    ) from error
            except Strayed as error:
                if attempt == ATTEMPTS:
                    self._name_deadly_block(Request(function, message, self.wanted), error.blocks)
                    raise WorkerFailed(
                        f"all workers were lost {ATTEMPTS} times in the course of a round.",
                        "Find out what ends them, then resume the run.",
                    ) from None
            except KilledWorker as error:  # although each of its blocks can be computed alone
                if attempt == ATTEMPTS:
                    raise WorkerFailed(
                        f"workers died again and again, at last with {error.task}.",
                        "Find out what ends them, then resume the run.",
                    ) from None

    def _connected(self) -> bool:
        """Whether the client has a scheduler; one that connects again is waited for, until it gives up."""
        until = time.monotonic() + FIRST_SECONDS
        while self.client.status == "connecting" and time.monotonic() < until:
            time.sleep(0.1)
        return self.client.status == "running"

    def memory_of_workers(self) -> list[int]:
        """Peak resident bytes of each worker process."""
        return list(self.client.run(peak_memory).values())

    def _round(self, request: Request, blocks: Sequence[int], sizes: np.ndarray) -> Statistics | None:
        """The first blocks of a run have a future each. Where there are many more, they say how large the groups of
        the others are made; but not the very first of each worker, which takes the time to open the population.
        """
        workers = self._workers()
        self.preparing = []
        homes = shared_out(sizes.tolist(), len(workers))
        if self.pace is not None or len(blocks) <= 2 * FUTURES_PER_WORKER * len(workers):
            return self._answered(request, blocks, sizes, workers, homes)
        bounds = pairwise((0, 1, 1 + FUTURES_PER_WORKER, len(blocks)))
        parts = ([home[first:stop] for home in homes] for first, stop in bounds)
        return merge_all(self._answered(request, blocks, sizes, workers, part) for part in parts)

    def _answered(
        self,
        request: Request,
        blocks: Sequence[int],
        sizes: np.ndarray,
        workers: list[str],
        homes: Sequence[Sequence[int]],
    ) -> Statistics | None:
        """homes: for each worker the places of its blocks in `blocks`."""
        groups = list(self._groups(blocks, sizes, workers, homes))
        waiting = iter(enumerate(groups))
        # What travels once to each worker goes with its blocks: a future costs more than a small round's work.
        held = request if len(groups) <= len(workers) else self.client.submit(hold, request, pure=False)
        live, partial, finished = set(), [], as_completed(loop=self.client.loop)
        in_flight: dict[str, list[int]] = {}  # blocks by key
        spare = self.wanted is None and usable_cores() > len(workers)  # those we started are on this machine

        def submit(function: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
            future = self.client.submit(function, *arguments, pure=False, **options)
            live.add(future)
            return future

        def submit_group() -> None:
            for number, (home, group, then) in islice(waiting, 1):
                key = f"blocks-{group[0]}-{group[-1]}-{uuid4().hex[:12]}"
                in_flight[key] = group
                # In this order a worker reads ahead; without it, Dask starts what waited for one thing in any order.
                options = {"key": key, "workers": [home], "allow_other_workers": True, "priority": -number}
                finished.add(submit(answer_group, held, group, then, spare, **options))

        try:
            for _ in range(FUTURES_PER_WORKER * len(workers)):
                submit_group()
            for future in self._as_finished(finished, workers):
                if future.status != "finished":
                    future.result()  # raises what went wrong
                in_flight.pop(str(future.key))
                partial.append(future)
                if len(partial) == FAN_IN:
                    merged = submit(add_up, partial, request.wanted)
                    live.difference_update(partial)
                    partial = [merged]
                submit_group()
            if len(partial) > 1 and len(partial) * self.answer_bytes > GATHERED_BYTES:
                finished.add(submit(add_up, partial, request.wanted))
                partial = [next(self._as_finished(finished, workers))]
            total = add_up(self._gathered(partial, workers))
        except BaseException as error:
            # Work that nobody waits for is dropped, also on a cluster that we did not start. Not `client.cancel`: with
            # dependents that are released already it trips an assertion of the scheduler, which then drops this client.
            for future in live:
                future.release()
            missing = sorted(block for group in in_flight.values() for block in group)
            if isinstance(error, KilledWorker):
                self._name_deadly_block(request, missing)
            if isinstance(error, Strayed):
                error.blocks = missing
            raise
        size = sum(float(sizes[home].sum()) for home in homes)
        self.pace, self.answer_bytes = total.seconds / size, size_of(total.statistics)
        return total.statistics

    def _name_deadly_block(self, request: Request, blocks: Sequence[int]) -> None:
        """Dask blames everything that waited on a dead worker; so each block is tried alone. Raises WorkerFailed."""
        for block in blocks:
            future = self.client.submit(
                answer_group, request, [block], pure=False, key=f"blocks-{block}-{block}-{uuid4().hex[:12]}"
            )
            try:
                next(self._as_finished(as_completed([future], loop=self.client.loop))).result()
            except KilledWorker as error:
                raise WorkerFailed(
                    f"every worker that tried {error.task} died; this block may need more memory than a worker has.",
                    "Use fewer or larger workers, then resume.",
                ) from None

    def _as_finished(self, futures: as_completed, homes: Sequence[str] = ()) -> Iterator[Future]:
        """The futures as they finish. Raises what `Watch.look` does."""
        watch = Watch(self.client, homes)
        while not futures.is_empty():
            with futures.thread_condition:
                if not futures.has_ready():
                    futures.thread_condition.wait(watch.interval)
            if futures.has_ready():
                yield next(futures)
                watch.seen = time.monotonic()
            else:
                watch.look()

    def _gathered(self, futures: Sequence[Future], homes: Sequence[str]) -> list[Part]:
        """Their results, computed anew if they went with a worker. Raises what `Watch.look` does."""
        watch = Watch(self.client, homes)
        loop = self.client.loop.asyncio_loop  # type: ignore[union-attr]  # a client that answers has one
        parts = asyncio.run_coroutine_threadsafe(self.client.gather(list(futures), asynchronous=True), loop)
        try:
            while not wait([parts], watch.interval).done:
                watch.look()
            return parts.result()
        finally:
            parts.cancel()

    def _workers(self) -> list[str]:
        patience = workerless_seconds() if self.answered else min(FIRST_SECONDS, workerless_seconds())
        until = time.monotonic() + patience
        found: list[str] = []
        while not found:  # one that was there a moment ago may be gone
            try:
                self.client.wait_for_workers(1, timeout=max(0.1, until - time.monotonic()))
            except TimeoutError:
                raise _no_worker(patience) from None
            except OSError as error:  # the connection was closed, or there is none
                raise Silent from error
            found = sorted(self.client.scheduler_info(n_workers=-1)["workers"])
            if not found and time.monotonic() > until:
                raise _no_worker(patience)
        self.answered = True
        return found

    def _groups(
        self, blocks: Sequence[int], sizes: np.ndarray, workers: list[str], homes: Sequence[Sequence[int]]
    ) -> Iterator[tuple[str, list[int], int | None]]:
        """(home worker, blocks, the first of its next). A block keeps its home from round to round, whatever the size
        of the groups.
        """
        queues = []
        for home in homes:
            whole = float(sizes[home].sum())
            if self.pace is None:
                most = 0.0
            elif whole * self.pace <= LATE_SECONDS:
                most = whole
            else:
                most = min(TARGET_SECONDS / self.pace, whole / 2)
            queue: list[list[int]] = []
            held = math.inf
            for index in home:
                if held + sizes[index] > most:
                    queue.append([])
                    held = 0.0
                queue[-1].append(blocks[index])
                held += sizes[index]
            queues.append([(group, after[0] if after else None) for group, after in zip_longest(queue, queue[1:])])
        for turn in zip_longest(*queues):
            yield from ((worker, *group) for worker, group in zip(workers, turn, strict=True) if group)


BLOCKS_AHEAD = 4  # of each worker, that are asked together where results are written between


@contextmanager
def sharing(workers: int) -> Iterator[tuple["DaskBackend", int]]:
    """A backend of so many processes of this machine, and how many blocks to ask of it together."""
    with dask_backend(workers) as backend:
        yield backend, workers * BLOCKS_AHEAD
