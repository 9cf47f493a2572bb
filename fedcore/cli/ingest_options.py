"""The options of `fedcore population ingest`, made of the fields of `IngestRequest`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Annotated, Any

import typer

from fedcore.cli.terminal import parse_bytes, read_settings
from fedcore.errors import ConfigError
from fedcore.population.ingest.request import IngestRequest, schema_of

FLAGS = {  # other names than the field's
    **{"schema_file": "--schema", "dates": "--date", "categories": "--category", "booleans": "--boolean"},
    **{"first": "--from"},
}
# Options of single formats, and others that few need: --option KEY=VALUE.
BY_KEY = (
    *("heldout", "dtype", "array", "prefix", "heldout_prefix", "halves", "tokeniser", "delimiter", "image"),
    *("features", "clients_per_leaf", "clients_per_block", "frames_per_client", "frame_stride", "longest_record"),
    *("encoding", "outside", "marks", "spelling", "spellings"),
)


def takes_request(own: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of an ingest, each with the description of its field. It gets them as its argument
    `request`; what it declares itself comes before and after them. Raises ConfigError as `request_of` does.
    """
    declared = inspect.signature(own, eval_str=True).parameters
    fields = [name for name in IngestRequest.model_fields if name not in BY_KEY]

    @wraps(own)
    def command(*arguments: Any, **given: Any) -> None:
        said = {name: given.pop(name) for name in fields if name in given}
        own(*arguments, request=request_of(said, given.pop("option", None)), **given)

    made: list[inspect.Parameter] = []
    for one in declared.values():
        made += [*map(_parameter, fields), _by_key()] if one.name == "request" else [one]
    command.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in made}
    return command


def request_of(said: dict[str, Any], pairs: list[str] | None = None) -> IngestRequest:
    """The request that options say. said: values as the command line has them, by field; pairs: of --option. Raises
    ConfigError for an option that does not exist, or a value that is not of the form.
    """
    by_key = read_settings(None, pairs)
    for name in by_key:
        if name not in (*BY_KEY, "columns"):
            raise ConfigError(f"There is no option {name!r}.", f"Options are {', '.join(BY_KEY)}, columns.")
        if said.get(name) is not None:
            raise ConfigError(f"{name} are named twice.", f"Leave out --option {name}=...")
    read = {name: value if value is None else _read(name, value) for name, value in said.items()}
    return IngestRequest.of(read, by_key)


def described(name: str) -> str:
    """The description of an option."""
    return schema_of(name)["description"]


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def _parameter(name: str) -> inspect.Parameter:
    made = schema_of(name)
    kind: Any = str | None
    shown, default, limits = None, made["default"], {}
    if name == "memory":
        kind, default = str, f"{default >> 20}MiB"
    elif made["type"] == "boolean":
        kind = bool
    elif made["type"] == "integer":
        kind, limits = int | None, {"min": made["minimum"], "max": made.get("maximum")}
    elif made["type"] == "object":
        kind, shown = list[str] | None, _pairs(name)[0]
    elif made["type"] == "array":
        shown, default = "A,B,C", None
    elif "enum" in made:
        shown = "|".join(made["enum"])
    text = described(name) + (" Repeatable." if made["type"] == "object" else "")
    return _option(name, Annotated[kind, typer.Option(_flag(name), metavar=shown, help=text, **limits)], default)


def _option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def _by_key() -> inspect.Parameter:
    text = " ".join(f"{name}: {described(name)}" for name in BY_KEY)
    shown = typer.Option(metavar="KEY=VALUE", help=f"Other options, repeatable. {text}")
    return _option("option", Annotated[list[str] | None, shown])


# --- values -----------------------------------------------------------------------------------------------------------


def _read(name: str, value: Any) -> Any:
    if name == "memory":
        return parse_bytes(value)
    return _named(name, value, *_pairs(name)) if schema_of(name)["type"] == "object" else value


def _pairs(name: str) -> tuple[str, Callable[[str], Any]]:
    """The form of an option that is repeated for each column, and what reads a value."""
    return PAIRS.get(name, ("COLUMN=VALUE", str))


def _named(name: str, pairs: Sequence[str], form: str, value_of: Callable[[str], Any]) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for pair in pairs:
        column, equals, text = pair.partition("=")
        if not equals or not column or not text:
            raise ConfigError(f"{_flag(name)} {pair!r} is not of the form {form}.")
        if column in found:
            raise ConfigError(f"{_flag(name)} has two values for the column {column!r}.", "Give one.")
        found[column] = value_of(text)
    return found or None


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")]


def _low_and_high(text: str) -> tuple[str, str]:
    low, colon, high = text.partition(":")
    if not colon or not low.strip() or not high.strip():
        raise ConfigError(f"the bounds {text!r} are not of the form LOW:HIGH.", "Write 0:120, or -5:5.")
    return low.strip(), high.strip()


PAIRS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "bounds": ("COLUMN=LOW:HIGH", _low_and_high),
    "units": ("COLUMN=UNIT", str),
    "dates": ("COLUMN=UNIT[,FORMAT]", str),
    "categories": ("COLUMN=A,B,C", _listed),
}
