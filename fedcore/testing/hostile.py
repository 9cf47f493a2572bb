"""What a private run must bear: published totals that no mechanism makes, and arrays to start from that no run leaves.

Totals may come from a damaged disk or from another site, so they may be any int64. Nothing here looks at clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from fedcore.errors import ConfigError, FedcoreError
from fedcore.privacy.plan import PlannedRelease
from fedcore.testing.broken import LawBroken
from fedcore.testing.cases import Case, Published

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
ABSURD = 2**45  # no noise gives published values as large
FEW = 0.2  # of the cells of a release, that are replaced
NUMBERS = (math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308, 5e-324)  # that neither a message nor a start should hold
MIXED = 20  # starts in which several arrays are replaced
RUNS = 6  # that are made from starts that a method accepts

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _powers(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.left_shift(np.int64(1), generator.integers(0, 63, shape)) * generator.choice([-1, 1], shape)


TOTALS: Mapping[str, Draw] = {
    "zeros": lambda generator, shape: np.zeros(shape, np.int64),
    "-1": lambda generator, shape: np.full(shape, -1),
    "the least int64": lambda generator, shape: np.full(shape, LEAST),
    "the largest int64": lambda generator, shape: np.full(shape, MOST),
    "the ends of int64": lambda generator, shape: generator.choice([LEAST, MOST, 0], shape),
    "powers of 2": _powers,
    "absurd numbers": lambda generator, shape: generator.integers(-ABSURD, ABSURD, shape),
    "any int64": lambda generator, shape: generator.integers(LEAST, MOST, shape),
}


def any_total(generator: np.random.Generator, planned: PlannedRelease, grid: np.ndarray) -> np.ndarray:
    """Any int64 in every cell of a release."""
    return TOTALS["any int64"](generator, grid.shape)


def published(case: Case, generator: np.random.Generator) -> Iterator[tuple[str, Published]]:
    """(what is published, as words; the totals of a run), by kind: of all releases, of some cells of each, and of all
    from a release on. Where a total is not replaced it is that of the run with test noise.
    """
    usual = {name: array for made in case.history.rounds for name, array in made.result.items()}
    for kind, draw in TOTALS.items():
        first = int(generator.integers(1, len(case.history.rounds) + 1))

        def every(planned: PlannedRelease, grid: np.ndarray, draw: Draw = draw) -> np.ndarray:
            return draw(generator, grid.shape)

        def some(planned: PlannedRelease, grid: np.ndarray, draw: Draw = draw) -> np.ndarray:
            before = usual.get(planned.name, grid)
            before = before if before.shape == grid.shape else grid
            return np.where(generator.random(grid.shape) < FEW, draw(generator, grid.shape), before)

        def later(planned: PlannedRelease, grid: np.ndarray, draw: Draw = draw, first: int = first) -> np.ndarray:
            before = usual.get(planned.name, grid)
            alike = before.shape == grid.shape and planned.round < first
            return before.copy() if alike else draw(generator, grid.shape)

        yield f"{kind} are published", every
        yield f"{kind} are published in some cells", some
        yield f"{kind} are published from round {first} on", later


def starts(case: Case, generator: np.random.Generator) -> Iterator[tuple[str, Case]]:
    """(what is wrong, as words; the case with this start) of starts that the method accepts. Raises LawBroken for one
    that it neither accepts nor refuses with an error of fedcore's.
    """
    accepted = list(_accepted(case, _stand_ins(case)))
    wrong = list(_accepted(case, _wrong_arrays(_usual_start(case), generator)))
    accepted += [wrong[at] for at in generator.permutation(len(wrong))[:RUNS]]
    yield from accepted


def _accepted(case: Case, starts: Iterator[tuple[str, Mapping[str, np.ndarray]]]) -> Iterator[tuple[str, Case]]:
    for what, arrays in starts:
        started = replace(case, warm_start=arrays)
        try:
            with np.errstate(all="ignore"):
                case.method.init(started.public)
        except FedcoreError:
            continue
        except Exception as error:
            raise LawBroken(f"a start where {what} is neither taken nor refused: {type(error).__name__}.") from error
        yield what, started


def _stand_ins(case: Case) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
    """What plans start from in the place of what an earlier run leaves."""
    try:
        likely = case.method.likely_warm_start(case.public) if case.method.accepts_warm_start else None
    except FedcoreError:
        return
    if likely:
        yield "likely_warm_start is the source", likely


def _usual_start(case: Case) -> Mapping[str, np.ndarray]:
    """That of the case, or what its run leaves; none for a method that takes none."""
    if not case.method.accepts_warm_start:
        return {}
    found = dict(case.warm_start or {})
    try:
        found = {**case.method.warm_start_of(case.history.state), **found}
    except ConfigError:  # it has found nothing
        pass
    return found


def _wrong_arrays(
    base: Mapping[str, np.ndarray], generator: np.random.Generator
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    for name, array in base.items():
        for number in NUMBERS:
            yield f"{name!r} holds {number}", {**base, name: _with(array, number, generator)}
        yield f"{name!r} is too short", {**base, name: array[:-1]}
        yield f"{name!r} is too long", {**base, name: np.concatenate([array, array[-1:]])}
        yield f"{name!r} is one number", {**base, name: np.array(3.0)}
        yield f"{name!r} is missing", {other: own for other, own in base.items() if other != name}
        yield f"{name!r} is negative", {**base, name: -array}
    names = list(base)
    for _ in range(MIXED):
        chosen = generator.permutation(len(names))[: generator.integers(2, 5)]
        wrong = {names[at]: _with(base[names[at]], 10.0 ** generator.uniform(-310, 308), generator) for at in chosen}
        yield f"numbers of {', '.join(map(repr, wrong))} are of any size", {**base, **wrong}


def _with(array: np.ndarray, number: float, generator: np.random.Generator) -> np.ndarray:
    """The array with the number in one place, or everywhere."""
    changed = np.array(array, np.float64)
    if changed.size and generator.random() < 0.5:
        changed.flat[int(generator.integers(changed.size))] = number
        return changed
    return np.full_like(changed, number)
