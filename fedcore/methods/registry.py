"""The classes of the methods that `fedcore.methods.names` lists, and methods with their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from fedcore.errors import ConfigError, MethodError
from fedcore.methods.names import METHODS, canonical
from fedcore.population.columns import bounds_of
from fedcore.rounds.choices import known_settings
from fedcore.rounds.method import AnyMethod, check_definition
from fedcore.rounds.old_names import new_names

if TYPE_CHECKING:
    from fedcore.population.store import Population


def summary(cls: type) -> str:
    """The first line of what a method says of itself."""
    return ((cls.__doc__ or "").strip().splitlines() or [""])[0]


def method_class(name: str) -> type[AnyMethod]:
    """The class of a method. Raises ConfigError for a name that is none, MethodError for one that cannot be run."""
    name = canonical(name)
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}.", f"Known methods: {', '.join(sorted(METHODS))}.")
    return load(METHODS[name])


def load(where: str) -> type[AnyMethod]:
    """The method class at "module:Class". Raises MethodError if there is none, or none that can be run."""
    module, _, attribute = where.partition(":")
    try:
        cls = getattr(import_module(module), attribute)
    except Exception as error:  # a module of another package may fail in any way while it is imported
        raise MethodError(f"the method at {where!r} cannot be loaded ({type(error).__name__}: {error}).") from error
    return check_definition(cls)


def make_method(name: str, settings: Mapping[str, Any]) -> AnyMethod:
    """A method with its settings validated. Old names of settings (`fedcore.rounds.old_names`) warn.

    Raises ConfigError that names every bad setting and its range.
    """
    cls = method_class(name)
    return _made(cls, new_names(settings, cls.renamed_settings, cls.name))


def method_of_run(info: Mapping[str, Any]) -> AnyMethod:
    """The method of a run with its settings, as run.json records them. Raises ConfigError as `make_method` does."""
    cls = method_class(info["method"])
    return _made(cls, new_names(info["config"], cls.renamed_settings, cls.name, stored=True))


def _made(cls: type[AnyMethod], settings: Mapping[str, Any]) -> AnyMethod:
    fixed = cls.fixed_settings
    chosen = {name: value for name, value in settings.items() if name not in fixed or value != fixed[name]}
    try:
        return cls(cls.Config(**chosen))
    except ValidationError as error:
        gone = {name: f"is not a setting: it is {value!r} in every run" for name, value in fixed.items()}
        raise ConfigError(
            f"settings of {cls.name!r}: {explain(error, {**gone, **cls.moved_settings}, known_settings(cls.Config))}",
            f"See `fedcore methods {cls.name}`.",
        ) from None


def suited_to(method: AnyMethod, population: Population) -> AnyMethod:
    """The method with what follows from the population's columns and their public bounds, where its settings leave it
    open. Raises ConfigError for a setting that names a column which there is not."""
    bounds = bounds_of(population.manifest.columns)
    settings = {} if bounds is None else dict(method.settings_of_bounds(bounds))
    settings |= method.settings_of_columns(population.manifest.columns)
    return _made(type(method), {**method.config.model_dump(mode="json"), **settings}) if settings else method


def with_free_settings(method: AnyMethod, settings: Mapping[str, Any]) -> AnyMethod:
    """The method of an existing run, with new values for some of the settings that act after training.

    Raises ConfigError for a setting that acts on training, that does not exist, or whose value is out of range.
    """
    cls = type(method)
    for name in settings:
        if name in cls.free_settings:
            continue
        known = name in known_settings(cls.Config)
        raise ConfigError(
            f"setting {name!r} of method {cls.name!r} acts on training: a run keeps what it was made with."
            if known
            else f"method {cls.name!r} has no setting {name!r}.",
            f"Settings that may be given to a run that was made: {', '.join(cls.free_settings) or 'none'}.",
        )
    return _made(cls, {**method.config.model_dump(mode="json"), **settings})


def explain(error: ValidationError, moved: Mapping[str, str] = MappingProxyType({}), known: Iterable[str] = ()) -> str:
    """A pydantic error in one line: setting, what is wrong, what was given. moved: as `Method.moved_settings`; known:
    names of settings, of which the nearest one is suggested for one that does not exist.
    """
    return "; ".join(reasons(error, moved, lambda _: known)) + "."


def reasons(
    error: ValidationError,
    moved: Mapping[str, str] = MappingProxyType({}),
    known: Callable[[tuple[int | str, ...]], Iterable[str]] = lambda loc: (),
) -> list[str]:
    """The same as one text for each setting, without a full stop. known: names that may stand where one does not
    exist, by the place of that one.
    """
    parts = []
    for item in error.errors(include_url=False):
        where = ".".join(str(part) for part in item["loc"]) or "settings"
        given = item["ctx"]["tag"] if item["type"] == "union_tag_invalid" else item["input"]
        name = next((part for part in item["loc"] if f"{part}={given}" in moved), "")
        if told := moved.get(f"{name}={given}"):
            parts.append(f"{name} = {given!r} {told}")
        elif told := moved.get(where) or moved.get(where.rpartition(".")[2]):
            parts.append(f"{where!r} {told}")
        elif item["type"] == "extra_forbidden":
            parts.append(f"{where!r} is not a setting{nearest(str(item['loc'][-1]), known(item['loc']))}")
        else:
            what = item["msg"].removeprefix("Value error, ")
            parts.append(f"{where!r}: {what} (given {given!r})" if item["loc"] else f"{what} (given {given!r})")
    return list(dict.fromkeys(parts))


def nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion to add to an error about a name that does not exist; empty if no known name is similar."""
    found = get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def known_at(model: type[BaseModel], place: tuple[int | str, ...]) -> set[str]:
    """The settings that may stand next to the one at this place of a model, as pydantic names places in errors."""
    models = {model}
    for step in place[:-1]:
        fields = [one.model_fields[str(step)] for one in models if str(step) in one.model_fields]
        if fields:
            models = set().union(*(models_in(field.annotation) for field in fields))
        elif chosen := {one for one in models if "do" in one.model_fields and one.model_fields["do"].default == step}:
            models = chosen  # one of several models, by the value that distinguishes them
    return {name for one in models for name in one.model_fields}


def models_in(annotation: Any) -> set[type[BaseModel]]:
    """The models that a setting of this type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return set().union(*map(models_in, get_args(annotation)))
