"""`fedcore methods`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.cli.options import Json
from fedcore.cli.terminal import say, table

if TYPE_CHECKING:
    from fedcore.rounds.method import AnyMethod


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, for its settings.")] = None, as_json: Json = False
) -> None:
    """List the methods; or one method's settings with ranges, defaults and privacy."""
    if name is None:
        from fedcore.methods.names import METHODS

        rows = [_row(name, where) for name, where in METHODS.items()]
        return say({"methods": rows}, True) if as_json else table("Methods", rows)
    from fedcore.methods.registry import method_class, summary
    from fedcore.rounds.method import settings_by_place

    cls = method_class(name)
    if as_json:
        schema = cls.Config.model_json_schema()
        main, _ = settings_by_place(cls)
        told = {"method": name, "schema": schema, "main_settings": main, "free_settings": list(cls.free_settings)}
        return say(told, True)
    main_rows, rest = settings_rows(cls)
    table(f"{name}: {summary(cls)}", main_rows)
    if rest:
        table("Advanced", rest)
    if cls.free_settings:
        print(f"`predict --set` and `evaluate --set` change, in a run that was made: {', '.join(cls.free_settings)}.")


Rows = list[dict[str, str]]


def settings_rows(cls: type[AnyMethod]) -> tuple[Rows, Rows]:
    """Return the main settings of a method and all others, a row for each: setting, type, default, range, what.

    The row of a setting that only some algorithms have lists them.
    """
    from fedcore.rounds.method import settings_by_place

    rows, (main, _) = {row["setting"]: row for row in _all_rows(cls)}, settings_by_place(cls)
    return [rows[name] for name in main], [row for name, row in rows.items() if name not in main]


def _all_rows(cls: type[AnyMethod]) -> Rows:
    schema = cls.Config.model_json_schema()
    rows = [_setting(name, item) for name, item in schema["properties"].items()]
    of_algorithms: dict[str, list[str]] = {}
    for item in schema["properties"].values():
        for algorithm, place in item.get("discriminator", {}).get("mapping", {}).items():
            for name, own in schema["$defs"][place.rpartition("/")[2]]["properties"].items():
                if name not in of_algorithms and name != "name":
                    rows.append(_setting(name, own))
                of_algorithms.setdefault(name, []).append(algorithm)
    return [
        row | {"what": f"{row['what']} ({', '.join(of_algorithms[row['setting']])})"}
        if row["setting"] in of_algorithms
        else row
        for row in rows
    ]


def _setting(name: str, item: dict) -> dict[str, str]:
    default = item.get("default")
    return {
        "setting": name,
        "type": _type(item),
        "default": str(default["name"] if "discriminator" in item and isinstance(default, dict) else default),
        "range": _range(item),
        "what": item.get("description", ""),
    }


def _row(name: str, where: str) -> dict[str, str]:
    """A line of the list. Methods of other packages are imported; one that cannot be run shows why and does not affect
    the others.
    """
    from fedcore.methods.names import LISTED

    if where.startswith("fedcore.") and name in LISTED:
        reads, what = LISTED[name]
        return {"method": name, "reads": reads, "what": what}
    from fedcore.errors import MethodError
    from fedcore.methods.registry import method_class, summary

    try:
        cls = method_class(name)
    except MethodError as error:
        return {"method": name, "reads": "-", "what": f"cannot be run: {error.message}"}
    return {"method": name, "reads": cls.kinds[0], "what": summary(cls)}


def _type(item: dict) -> str:
    if "discriminator" in item:
        return " | ".join(item["discriminator"]["mapping"])
    if "enum" in item:
        return " | ".join(map(str, item["enum"]))
    if "anyOf" in item:
        return " | ".join(_type(part) for part in item["anyOf"]).replace("null", "none")
    return item.get("const") or item.get("type", "")


def _range(item: dict) -> str:
    words = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    found = [f"{words[key]} {part[key]:g}" for part in [item, *item.get("anyOf", [])] for key in words if key in part]
    return ", ".join(found)
