"""Pieces of a file made by threads while those before them are used; their order is that of the file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from fedcore.population.sizing import usable_cores

Raw = TypeVar("Raw")
Made = TypeVar("Made")
MOST_THREADS = 3  # beyond, the pieces wait for whoever uses them


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
    """How many pieces there are at once: the one that is used, and those that are being made."""
    return 1 + _threads()


def made_ahead(raw: Iterator[Raw], make: Callable[[Raw], Made], most: int = MOST_THREADS) -> Iterator[tuple[Raw, Made]]:
    """(each, what `make` makes of it), in order; those that follow are being made meanwhile, one for each thread and
    `most` at most, so that memory is bounded. make: releases the interpreter's lock where it takes long. What `raw`
    raises is raised once all before it are used up. On a single core nothing is made ahead.
    """
    threads = _threads()
    if not threads:
        yield from ((one, make(one)) for one in raw)
        return
    waiting: deque[tuple[Raw, Future[Made]]] = deque()
    failed: Exception | None = None
    more = True
    with ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                while more and len(waiting) <= min(threads, most):
                    try:
                        one = next(raw)
                    except StopIteration:
                        more = False
                    except Exception as error:
                        more, failed = False, error
                    else:
                        waiting.append((one, pool.submit(make, one)))
                if not waiting:
                    break
                one, made = waiting.popleft()
                yield one, made.result()
        finally:
            for _, made in waiting:
                made.cancel()
    if failed is not None:
        raise failed
