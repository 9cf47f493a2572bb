"""Pieces of a file made by threads while those before them are used; their order is that of the file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, cast

from fedcore.population.sizing import usable_cores

Raw = TypeVar("Raw")
Made = TypeVar("Made")
MOST_THREADS = 3  # beyond, the pieces wait for their consumer


_alone: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def nothing_ahead() -> Iterator[None]:
    """Inside it nothing is made ahead: there are other processes for the other cores."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def _threads() -> int:
    return 0 if _alone.get() else min(usable_cores() - 1, MOST_THREADS)


def pieces_held() -> int:
    """How many pieces there are at once: the one that is used, those that are being made, and one more to help with."""
    threads = _threads()
    return threads + 3 if threads else 1


def made_ahead(
    raw: Iterator[Raw], make: Callable[[Raw], Made], most: int = MOST_THREADS, helping: bool = False
) -> Iterator[tuple[Raw, Made]]:
    """Yield pairs of an element of `raw` and the result of `make`, in order, while threads make the next ones. Each
    thread makes one at a time, and at most `most` are made ahead, so that memory is bounded. make: should release the
    interpreter's lock where it takes long. An exception of `raw` is raised after all earlier elements were used. On a
    single core nothing is made ahead.

    helping: the consumer makes a later element instead of waiting, so one more of them exists
    """
    threads = _threads()
    if not threads:
        yield from ((one, make(one)) for one in raw)
        return
    waiting: deque[tuple[Raw, Future[Made]]] = deque()
    failed: Exception | None = None
    more = True
    with ThreadPoolExecutor(threads) as pool:

        def begin(most: int) -> None:
            nonlocal more, failed
            while more and len(waiting) < most:
                try:
                    one = next(raw)
                except StopIteration:
                    more = False
                except Exception as error:
                    more, failed = False, error
                else:
                    waiting.append((one, pool.submit(make, one)))

        ahead = min(threads, most) + helping
        try:
            while True:
                begin(ahead + 1)
                if not waiting:
                    break
                one, made = waiting.popleft()
                if helping and waiting and not made.done() and waiting[-1][1].cancel():
                    other, own = waiting.pop()[0], Future[Made]()
                    waiting.append((other, own))
                    begin(ahead + 1)
                    _make(own, make, other)
                yield one, made.result()
        finally:
            for _, made in waiting:
                made.cancel()
    if failed is not None:
        raise failed


def _make(future: Future[Made], make: Callable[[Raw], Made], one: Raw) -> None:
    try:
        future.set_result(make(one))
    except Exception as error:
        future.set_exception(error)


def read_ahead(raw: Iterator[Raw]) -> Iterator[Raw]:
    """The same, each read by a thread while the one before is used. On a single core nothing is read ahead."""
    if not _threads():
        yield from raw
        return
    end = object()
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(next, raw, end)
        while (one := ahead.result()) is not end:
            ahead = pool.submit(next, raw, end)
            yield cast(Raw, one)


def read_at_once() -> int:
    """How many of what is `read_ahead` there are: the one that is used, one that waits, one that is being read."""
    return 3 if _threads() else 1
