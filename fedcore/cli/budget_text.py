"""A budget on the terminal: what is asked first, rounded so that nothing seems less spent than it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

DIGITS, IN_TABLES = 6, 5
OF_THRESHOLDS = ("delta_spent", "delta_reserved", "delta_left")  # 0 without a budget for thresholding steps


def short_balance(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return a balance as `budget show` prints it, without empty entries and with numbers to six digits. Amounts that
    were granted, spent, reserved or charged are rounded up; amounts that are left or may be spent are rounded down.
    """
    thresholds = any(shown.get(name) for name in OF_THRESHOLDS)
    kept = {
        name: value
        for name, value in shown.items()
        if value not in (None, [], {}, "") and (thresholds or name not in OF_THRESHOLDS)
    }
    return {name: _rounded(name, value) for name, value in kept.items()}


def short_rows(rows: Sequence[Mapping[str, Any]], *, may_spend: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Rows of a table, rounded in the same way to as many digits as tables show. may_spend: columns of amounts that may
    be spent.
    """
    return [
        {name: _rounded("rho_max" if name in may_spend else name, value, IN_TABLES) for name, value in row.items()}
        for row in rows
    ]


def _rounded(name: str, value: Any, digits: int = DIGITS) -> Any:
    if isinstance(value, dict):
        return {inner: _rounded(inner, one, digits) for inner, one in value.items()}
    if not isinstance(value, float) or not math.isfinite(value) or value == 0 or name == "at":  # "at": a time
        return value
    up = not name.endswith(("_left", " left", "rho_max"))
    places = digits - 1 - math.floor(math.log10(abs(value)))
    near = float(f"{value:.{digits}g}")
    if near == value or (near > value) == up:
        return near
    return float(f"{near + math.copysign(10.0**-places, 1 if up else -1):.{digits}g}")


def short_history(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each run that follows itself in the records, and for every other record: what happened, how often."""
    rows: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    for record in history:
        run = record.get("run_id")
        if not rows or run is None or rows[-1]["run"] != run:
            counts = {}
            rows.append({"seq": "", "what": "", "run": run, "reason": None, "share": None, "_first": record["seq"]})
        row = rows[-1]
        counts[record["kind"]] = counts.get(record["kind"], 0) + 1
        first = row["_first"]
        row["seq"] = str(first) if first == record["seq"] else f"{first}-{record['seq']}"
        row["what"] = ", ".join(kind if times == 1 else f"{times} {kind}" for kind, times in counts.items())
        row["reason"] = record.get("reason") or record.get("public_schema") or row["reason"]
        row["share"] = _share(record) or row["share"]
    return _as_shown(rows)


def whole_history(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each record."""
    return _as_shown(
        [
            {
                "seq": row["seq"],
                "what": row["kind"],
                "run": row.get("run_id"),
                "release": row.get("name"),
                "reason": row.get("reason") or row.get("public_schema"),
                "share": _share(row),
            }
            for row in history
        ]
    )


def _share(record: Mapping[str, Any]) -> str | None:
    """The share of the budget that a record is about, or all of them where it divides the budget."""
    if "shares" not in record:
        return record.get("share")
    from fedcore.privacy.ledger.shares import in_words, shares_of

    return in_words(shares_of(record["shares"]))


def _as_shown(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Without what is for counting, and without a column of shares where nothing was divided."""
    left_out = {"_first"} if any(row["share"] for row in rows) else {"_first", "share"}
    return [{name: value for name, value in row.items() if name not in left_out} for row in rows]
