"""How time stamps (ISO text, or dates and timestamps of Arrow) become numbers of calendar periods, by which rows are
dealt to entries.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedcore.population.periods import Calendar, Stamp, stamp_in

DAY = 86400
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def is_stamp(kind) -> bool:
    """Whether a column of this Arrow type can hold time stamps."""
    import pyarrow as pa

    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_date(kind) or types.is_timestamp(kind))


def period_of_each(column, calendar: Calendar) -> tuple[np.ndarray, Callable[[int], str]]:
    """((n,) int64, the period of each time stamp, 0 where it has none; why a row has none).

    column: an Arrow array; timestamps without a zone are taken as the clock of the calendar's zone shows them
    """
    import pyarrow as pa

    missing = column.is_null().to_numpy(zero_copy_only=False)
    unreadable = np.zeros(len(column), bool)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        coded = column.dictionary_encode()
        found = np.append(_of_texts(coded.dictionary.to_pylist(), calendar), 0)
        each = found[coded.indices.fill_null(len(found) - 1).to_numpy(zero_copy_only=False)]
        numbers, unreadable = np.maximum(each, 0), each < 0
    else:
        numbers = np.where(missing, 0, _of_numbers(column, calendar))

    def why(row: int) -> str:
        shown = column.slice(row, 1).cast(pa.string())[0].as_py()
        if missing[row] or not shown.strip():
            return "the time is missing"
        if unreadable[row]:
            return f"the time {shown!r} is no ISO date, or date and time"
        return f"the time {shown} is outside of the calendar, {calendar}"

    return numbers, why


def _of_texts(texts: list[str], calendar: Calendar) -> np.ndarray:
    """(n,) int64, 0 outside of the calendar, -1 for what cannot be read."""
    read = [*map(_stamp, texts)]
    found = np.full(len(texts), -1, np.int64)
    found[np.array([stamp is not None for stamp in read], bool)] = calendar.of_stamps(
        [stamp for stamp in read if stamp is not None]
    )
    return found


def _stamp(text: str) -> Stamp | None:
    try:
        return stamp_in(text)
    except (ValueError, OverflowError):
        return None


def _of_numbers(column, calendar: Calendar) -> np.ndarray:
    import pyarrow as pa

    kind = column.type
    whole = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    since = column.cast(whole).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_date(kind):
        return calendar.of_days(since if pa.types.is_date32(kind) else since // (DAY * 10**3))
    seconds = since // PER_SECOND[kind.unit]
    return calendar.of_days(seconds // DAY) if kind.tz is None else calendar.of_instants(seconds)
