"""Data frames as arrays: pandas, polars, Arrow and whatever else narwhals reads. Nothing else converts them."""

from __future__ import annotations

from typing import Any

import narwhals as nw
import numpy as np
from narwhals.exceptions import DuplicateError

UNKNOWN = (nw.Object, nw.Unknown)  # numbers as objects, or sparse columns, which scikit-learn reads by itself


def as_array(X: Any) -> Any:
    """The columns of a data frame as (n, d) float64, or float32 if all of them are that; missing entries are NaN.
    Anything else is returned as it is.

    Raises ValueError for columns without numbers, and for tables that are computed only when they are collected.
    """
    try:
        frame = nw.from_native(X, pass_through=True)
    except DuplicateError:  # two columns have one name: there are no names to keep
        return X
    if isinstance(frame, nw.LazyFrame):
        raise ValueError("X is a lazy table. Call its method collect() first.")
    if not isinstance(frame, nw.DataFrame) or any(kind in UNKNOWN for kind in frame.schema.values()):
        return X
    words = [str(name) for name, kind in frame.schema.items() if not (kind.is_numeric() or kind == nw.Boolean)]
    if words:
        raise ValueError(f"These columns of X do not hold numbers: {', '.join(words[:20])}. Leave them out.")
    small = all(kind == nw.Float32 for kind in frame.schema.values())
    x = np.empty(frame.shape, np.float32 if small else np.float64)
    for place, column in enumerate(frame.iter_columns()):
        x[:, place] = column.cast(nw.Float32 if small else nw.Float64).to_numpy()
    return x
