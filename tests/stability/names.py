"""Names that others may build upon: of Python, of the contract of methods, of commands and of settings.

Which Python names are public is what the pages of reference show (`:::`) and what the page on methods imports.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from typer.main import get_command

import fedcore
from fedcore.cli import OLD_NAMES, app
from fedcore.cli.methods import settings_rows
from fedcore.methods.names import GROUP, METHODS
from fedcore.methods.registry import method_class
from fedcore.testing import LAWS

DOCS = Path(__file__).parents[2] / "docs"
FITTED = re.compile(r"\b([a-z]\w*_)(?=\W)")
PLAIN = (bool, int, float, str, bytes, type(None))


def python() -> dict[str, str]:
    found = {f"fedcore.{name}": "" for name in fedcore.__all__}
    for place in re.findall(r"^::: (\S+)", (DOCS / "reference/python.md").read_text(), re.MULTILINE):
        found |= dict(described(place))
    return found


def methods() -> dict[str, str]:
    page = (DOCS / "adding-a-method.md").read_text()
    found = {f"entry point group {GROUP}": "name = module:Class"}
    for place in re.findall(r"^::: (\S+)", (DOCS / "reference/methods.md").read_text(), re.MULTILINE):
        found |= dict(described(place))
    for module, names in re.findall(r"^from (fedcore\S*) import (.*)$", page, re.MULTILINE):
        for name in names.split(", "):
            found |= dict(described(f"{module}.{name}"))
    return found | {f"conformance test {name}": "" for name in LAWS}


def settings() -> dict[str, str]:
    own = {name: cls for name in METHODS if (cls := method_class(name)).__module__.startswith("fedcore.methods.")}
    return {
        f"{name} {row['setting']}": ", ".join(part for part in (row["type"], row["range"]) if part)
        for name, cls in own.items()
        for rows in settings_rows(cls)
        for row in rows
    }


def commands() -> dict[str, str]:
    """Arguments and options of every command; of an option its type, not its help. And the old names of these."""
    found = {f"old name {old}": new for old, new in OLD_NAMES.items()}
    for name, command in all_commands():
        found[name] = ""
        for one in command.params:
            kind = "flag" if getattr(one, "is_flag", False) else type_name(one.type_descriptor.annotation)
            marks = [kind, *(["required"] if one.required else []), *(["repeatable"] if one.multiple else [])]
            for word in [*one.opts, *one.secondary_opts] if one.param_type_name == "option" else [one.name]:
                found[f"{name} {word}"] = ", ".join(marks)
    return found


def all_commands(command: Any = None, name: str = "fedcore") -> Iterator[tuple[str, Any]]:
    command = command or get_command(app)
    if not isinstance(command, typer.core.TyperGroup) or command.invoke_without_command:
        yield name, command
    for word, inner in getattr(command, "commands", {}).items():
        yield from all_commands(inner, f"{name} {word}")


def type_name(annotation: Any) -> str:
    return annotation.__name__ if type(annotation) is type else str(annotation).replace("typing.", "")


def described(place: str) -> Iterator[tuple[str, str]]:
    """(name, signature) of the object at "package.module.Name", of all that a module defines, of members of classes."""
    holder, _, name = place.rpartition(".")
    value = getattr(import_module(holder), name, None) if holder else None
    if value is None or isinstance(value, ModuleType):
        module = import_module(place)
        for own, one in vars(module).items():
            if not own.startswith("_") and getattr(one, "__module__", "") == place and hasattr(one, "__qualname__"):
                yield from described(f"{place}.{own}")
    elif inspect.isclass(value):
        yield place, f"({', '.join(base.__name__ for base in value.__bases__ if base is not object)})"
        if "__init__" in vars(value) and not issubclass(value, BaseException):
            yield f"{place}()", signature(value)
        yield from members(place, value)
    else:
        yield place, signature(value) if callable(value) else type(value).__name__


def members(place: str, cls: type) -> Iterator[tuple[str, str]]:
    """Public attributes that the class or a base of fedcore defines, and what a fit leaves by the docstring."""
    own = [base for base in cls.__mro__ if base.__module__.startswith("fedcore.")]
    names = {name for base in own for name in [*vars(base), *vars(base).get("__annotations__", {})]}
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name in sorted(name for name in names | fields if not name.startswith(("_", "model_config"))):
        value = inspect.getattr_static(cls, name, None)
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        yield f"{place}.{name}", signature(value) if inspect.isfunction(value) else "attribute"
    said = (cls.__doc__ or "").partition("Fitted:")[2].partition("Raises")[0]
    yield from ((f"{place}.{name}", "attribute after fit") for name in sorted(set(FITTED.findall(said))))


def signature(value: Any) -> str:
    """Parameters with their defaults, without types."""
    parameters = [one.replace(annotation=one.empty) for one in inspect.signature(value).parameters.values()]
    shown = [
        one if isinstance(one.default, (*PLAIN, type(one.empty))) else one.replace(default=...) for one in parameters
    ]
    return str(inspect.Signature(shown))
