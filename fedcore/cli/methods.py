"""`fedcore methods`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedcore.cli.options import Json
from fedcore.cli.terminal import say, table


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, for its settings.")] = None, as_json: Json = False
) -> None:
    """List the methods; or one method's settings with ranges, defaults and privacy."""
    from fedcore.methods.registry import METHODS, method_class, summary

    if name is None:
        rows = [{"method": n, "reads": method_class(n).kind, "what": summary(method_class(n))} for n in METHODS]
        return say({"methods": rows}, True) if as_json else table("Methods", rows)
    schema = method_class(name).Config.model_json_schema()
    if as_json:
        return say({"method": name, "schema": schema}, True)
    rows = [
        {
            "setting": field,
            "type": _type(item),
            "default": str(item.get("default")),
            "range": _range(item),
            "what": item.get("description", ""),
        }
        for field, item in schema["properties"].items()
    ]
    table(f"{name}: {summary(method_class(name))}", rows)


def _type(item: dict) -> str:
    if "enum" in item:
        return " | ".join(map(str, item["enum"]))
    if "anyOf" in item:
        return " | ".join(_type(part) for part in item["anyOf"]).replace("null", "none")
    return item.get("const") or item.get("type", "")


def _range(item: dict) -> str:
    words = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    found = [f"{words[key]} {part[key]:g}" for part in [item, *item.get("anyOf", [])] for key in words if key in part]
    return ", ".join(found)
