"""Which algorithms, models, kinds of population and codecs a setting belongs to: written beside it, checked here.

rank: Annotated[int | None, Only(models=TABLES)] = None
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class Only:
    """The values with which a setting does something; empty: all of them."""

    algorithms: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    codecs: tuple[str, ...] = ()


def misplaced(settings: BaseModel, chosen: Only) -> str | None:
    """A sentence about the first setting that is not left at its default, and belongs to something else than what was
    chosen (one of each)."""
    for name, field in type(settings).model_fields.items():
        if getattr(settings, name) == field.default:
            continue
        for only in (part for part in field.metadata if isinstance(part, Only)):
            if found := _first_difference(only, chosen):
                what, allowed, got = found
                return f"{name} is for {what} {', '.join(allowed)}, not {got}"
    return None


def _first_difference(only: Only, chosen: Only) -> tuple[str, tuple[str, ...], Any] | None:
    for what, allowed, got in (
        ("algorithm", only.algorithms, chosen.algorithms[0]),
        ("model", only.models, chosen.models[0]),
        ("kind", only.kinds, chosen.kinds[0]),
        ("codec", only.codecs, chosen.codecs[0]),
    ):
        if allowed and got not in allowed:
            return what, allowed, got
    return None
