"""Dataclasses as JSON: one function writes their fields, and one reads them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from types import UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from fedcore.storage.parsing import JsonObject

LATER: Final = {"later": True}  # metadata of a field that older files lack: it is written only if it has a value
T = TypeVar("T")


def plain(value: Any) -> Any:
    """The value as JSON has it. A class with `to_json` writes itself; a fraction is text such as "1/3"."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Fraction):
        return str(value)
    if hasattr(value, "to_json"):
        return value.to_json()
    return entries(value) if is_dataclass(value) else value


def entries(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them."""
    found = {one.name: getattr(value, one.name) for one in fields(value)}
    left_out = {one.name for one in fields(value) if "later" in one.metadata and found[one.name] == one.default}
    return {name: plain(item) for name, item in found.items() if name not in left_out}


def made_of(kind: type[T], value: JsonObject, *, others: bool = False) -> T:
    """The dataclass that `entries` wrote. others: whether entries of other names are passed over.

    Numbers and texts are taken as they are. Raises KeyError, TypeError, ValueError or AttributeError for anything else.
    """
    known: Any = kind
    hints = _hints(known)
    return kind(**{name: _read(hints.get(name), item) for name, item in value.items() if name in hints or not others})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    known = get_type_hints(kind)
    return {one.name: known[one.name] for one in fields(kind)}


def _read(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        inside = next(one for one in get_args(kind) if one is not type(None))
        return None if value is None else _read(inside, value)
    if origin is tuple:
        return tuple(_read(get_args(kind)[0], item) for item in value)
    if hasattr(kind, "from_json"):
        return kind.from_json(value)
    return made_of(kind, value) if is_dataclass(kind) and isinstance(kind, type) else value
