"""Settings that are a choice among models, each with its own settings, such as the algorithm of a method.

algorithm: Annotated[EM | FedEM, Field(discriminator="name")] = FedEM()
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

Options = dict[str, type[BaseModel]]


class ChoiceSettings(BaseModel):
    """Settings of which some are choices. A choice is a field of several models that have different values of `name`.

    Users give all settings in one list: {"algorithm": "em", "tol": 0.1} is {"algorithm": {"name": "em", "tol": 0.1}}.
    Raises ValidationError for a setting of a model that is not the chosen one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _in_their_choices(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        found = dict(given)
        for field, options in choices(cls).items():
            chosen = _named(found.get(field, cls.model_fields[field].default))
            known = {name for option in options.values() for name in option.model_fields}
            own = {name: found.pop(name) for name in given if name in known and name not in cls.model_fields}
            option = options.get(str(chosen.get("name")))
            for name in own:
                if option is not None and name not in option.model_fields:
                    others = ", ".join(one for one in option.model_fields if one != "name")
                    takers = ", ".join(which for which, one in options.items() if name in one.model_fields)
                    raise ValueError(
                        f"{name} is for {field} {takers}, not {chosen['name']}, whose settings are {others or 'none'}"
                    )
            if own or field in found:
                found[field] = {**chosen, **own}
        return found

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As of pydantic, but what is new is checked and may be a setting of a choice. Raises ValidationError."""
        return type(self)(**{**self.model_dump(), **update}) if update else super().model_copy(deep=deep)


def _named(chosen: Any) -> dict[str, Any]:
    if isinstance(chosen, BaseModel):
        return {"name": chosen.name, **chosen.model_dump(exclude_unset=True)}  # type: ignore[attr-defined]
    return dict(chosen) if isinstance(chosen, Mapping) else {"name": chosen}


def choices(config: type[BaseModel]) -> dict[str, Options]:
    """The choices among the settings: field -> name -> model."""
    return {
        field: {name: part for part in get_args(info.annotation) for name in get_args(_name_of(part))}
        for field, info in config.model_fields.items()
        if info.discriminator is not None
    }


def _name_of(part: type[BaseModel]) -> Any:
    return part.model_fields["name"].annotation


def known_settings(config: type[BaseModel], chosen: Mapping[str, Any] = MappingProxyType({})) -> dict[str, FieldInfo]:
    """Every setting that can be given, by name: a choice, then the settings of what can be chosen, each once.

    chosen: choice -> name of the model that comes first, of those that have a setting in common
    """
    found: dict[str, FieldInfo] = {}
    of_choices = choices(config)
    for field, info in config.model_fields.items():
        found[field], options = info, of_choices.get(field, {})
        first = [option for name, option in options.items() if name == chosen.get(field)]
        for option in [*first, *options.values()]:
            found |= {name: own for name, own in option.model_fields.items() if name not in {"name", *found}}
    return found


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in one list: {"algorithm": {"name": "a", "rounds": 3}} is {"algorithm": "a", "rounds": 3}."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        own = dict(value) if isinstance(value, Mapping) and "name" in value else {"name": value}
        found |= {name: own.pop("name"), **own}
    return found
