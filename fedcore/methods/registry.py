"""The methods, by name. A method is added by one folder and one line here."""

from __future__ import annotations

from importlib import import_module

from pydantic import ValidationError

from fedcore.errors import ConfigError
from fedcore.rounds.method import FederatedMethod

METHODS = {
    "histograms": "fedcore.methods.histograms:Histograms",
    "federated_em": "fedcore.methods.federated_em:FederatedEM",
    "gradient_em": "fedcore.methods.gradient_em:GradientEM",
    "private_gmm": "fedcore.methods.private_gmm:PrivateGMM",
    "dictionaries": "fedcore.methods.dictionaries:Dictionaries",
}


def canonical(name: str) -> str:
    """The name as it is in METHODS: federated-em is federated_em."""
    return name.replace("-", "_")


def summary(cls: type) -> str:
    """The first line of what a method says of itself."""
    return (cls.__doc__ or "").strip().splitlines()[0]


def method_class(name: str) -> type[FederatedMethod]:
    """The class of a method. Raises ConfigError for a name that is none."""
    name = canonical(name)
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}.", f"Known methods: {', '.join(sorted(METHODS))}.")
    module, attribute = METHODS[name].split(":")
    return getattr(import_module(module), attribute)


def make_method(name: str, settings: dict) -> FederatedMethod:
    """A method with its settings validated. Raises ConfigError that names every bad setting and its range."""
    cls = method_class(name)
    try:
        return cls(cls.Config(**settings))
    except ValidationError as error:
        raise ConfigError(f"settings of {name!r}: {explain(error)}", f"See `fedcore methods {name}`.") from None


def explain(error: ValidationError) -> str:
    """A pydantic error in one line: setting, what is wrong, what was given."""
    parts = []
    for item in error.errors(include_url=False):
        where = ".".join(str(part) for part in item["loc"]) or "settings"
        if item["type"] == "extra_forbidden":
            parts.append(f"{where!r} is not a setting")
        else:
            parts.append(f"{where!r}: {item['msg']} (given {item['input']!r})")
    return "; ".join(parts) + "."
