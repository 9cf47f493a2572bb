"""What a benchmark measures: several values of one quantity, and functions that are timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter, process_time

import numpy as np


class Measured(float):
    """The median of some values; a float everywhere, and the values for who asks.

    values: in the order in which they were measured. Raises ValueError if there are none.
    """

    values: tuple[float, ...]

    def __new__(cls, values: Iterable[float]) -> Measured:
        values = tuple(float(value) for value in values)
        if not values:
            raise ValueError("a quantity that was never measured has no median")
        made = super().__new__(cls, np.median(values))
        made.values = values
        return made

    @property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.quantile(self.values, (0.25, 0.75))
        return float(low), float(high)

    def map(self, function: Callable[[float], float]) -> Measured:
        """The same of every value."""
        return Measured(map(function, self.values))

    def over(self, other: float) -> Measured:
        """The ratio: turn by turn where both were measured equally often, which a slow minute changes little."""
        others = getattr(other, "values", ())
        if len(others) == len(self.values):
            return Measured(a / b for a, b in zip(self.values, others, strict=True))
        return self.map(lambda value: value / float(other))


def seconds(function: Callable[[], object], repeats: int, clock: Callable[[], float] = perf_counter) -> Measured:
    """Seconds of a call, after one that does not count. clock: `time.process_time` for seconds of the CPU."""
    return in_turns({"": function}, repeats, clock)[""]


def in_turns(
    functions: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = process_time
) -> dict[str, Measured]:
    """Seconds of every function, by name: each is called once in a turn, so that they meet the same minutes. One more
    turn goes before and does not count."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            started = clock()
            function()
            if turn:
                taken[name].append(clock() - started)
    return {name: Measured(values) for name, values in taken.items()}
