"""Markdown of pages for operators, in which text of any kind stays text."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a markdown table; the columns are those of the first row."""
    names = list(rows[0])
    return [
        "| " + " | ".join(map(cell, names)) + " |",
        "|" + "---|" * len(names),
        *("| " + " | ".join(cell(row[name]) for name in names) + " |" for row in rows),
    ]


def cell(value: Any) -> str:
    """Text that markdown and HTML leave as it is."""
    text = "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
    return re.sub(r"([\\`*_{}\[\]()#!|~$])", r"\\\1", html.escape(" ".join(text.split()), quote=False))
