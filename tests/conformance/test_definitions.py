"""An author's mistakes in the definition of a class are told as one MethodError that names the class."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from fedcore.errors import MethodError
from fedcore.methods.names import METHODS
from fedcore.methods.registry import load
from fedcore.rounds.method import NonPrivateMethod, PrivateMethod, check_definition
from tests.command import works
from tests.conformance.broken import Sound

FROZEN = ConfigDict(frozen=True, extra="forbid")


class Thawed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Anything(BaseModel):
    model_config = ConfigDict(frozen=True)


class Demanding(BaseModel):
    model_config = FROZEN
    rounds: int


class Unpriced(BaseModel):
    model_config = FROZEN
    spare_releases: int = 0
    nominal_clients: int | None = None


@dataclass
class Loose:
    round: int


class Bare(NonPrivateMethod[Any, Any]):
    """Has no attributes and no functions."""


class Abstract(PrivateMethod[Any, Any]):
    """Has attributes, and no functions."""

    name, kinds, arithmetic_version, Config, State = "abstract", ("rows",), "1", Sound.Config, Sound.State


class NoModel(Sound):
    """Settings that are a dictionary."""

    Config = {"rounds": 3}


class ThawedConfig(Sound):
    """Settings that can be changed."""

    Config = Thawed


class AnyConfig(Sound):
    """Settings that may be anything."""

    Config = Anything


class DemandingConfig(Sound):
    """Settings without defaults."""

    Config = Demanding


class UnpricedConfig(Sound):
    """Private, and without a setting of what it may spend."""

    Config = Unpriced


class LooseState(Sound):
    """A state that can be changed."""

    State = Loose


class OneKind(Sound):
    """A text where a tuple is meant."""

    kinds = "rows"


class OtherKind(Sound):
    """A kind that there is not."""

    kinds = ("images",)


MISTAKES = [
    (Bare, "has no attribute 'name'"),
    (Abstract, "does not define client_update, init, message, plan, server_update, total_rounds"),
    (NoModel, "is not a pydantic model"),
    (ThawedConfig, "is not frozen"),
    (AnyConfig, "takes unknown settings"),
    (DemandingConfig, "settings rounds of .* have no default"),
    (UnpricedConfig, "lacks the setting 'epsilon'"),
    (LooseState, "is not a frozen dataclass"),
    (OneKind, "kinds of .* is 'rows'"),
    (OtherKind, "kinds of .*images"),
]


@pytest.mark.parametrize(("cls", "sentence"), MISTAKES, ids=lambda value: getattr(value, "__name__", None))
def test_a_mistake_names_the_class_and_what_is_wrong(cls, sentence):
    with pytest.raises(MethodError, match=sentence) as told:
        check_definition(cls)
    assert cls.__name__ in told.value.message


@pytest.mark.parametrize("thing", [None, 3, "Sound", object, Sound()], ids=repr)
def test_what_is_no_class_of_methods(thing):
    with pytest.raises(MethodError, match="is not a method"):
        check_definition(thing)


@pytest.mark.parametrize("where", ["no.such:Thing", "tests.conformance.broken:Nothing", "tests.conformance.broken"])
def test_what_cannot_be_loaded(where):
    with pytest.raises(MethodError):
        load(where)


class NoKinds(Sound):
    """Says nothing of what it reads."""

    kinds = None


@pytest.mark.parametrize("where", ["", "tests.conformance.unimportable:Thing", f"{__name__}:NoKinds"])
def test_a_module_that_fails_or_reads_nothing(where):
    with pytest.raises(MethodError):
        load(where)


def test_a_broken_method_of_another_package_hides_no_healthy_one(monkeypatch):
    others = {
        "broken": f"{__name__}:ThawedConfig",
        "missing": "no.such:Thing",
        "sound": "tests.conformance.broken:Sound",
    }
    monkeypatch.setitem(vars(METHODS), "_others", others)
    rows = {row["method"]: row["what"] for row in json.loads(works("methods", "--json").out)["methods"]}
    assert rows["sound"] == "Obeys every law." and "is not frozen" in rows["broken"] and "no.such" in rows["missing"]
    assert rows.keys() == {*METHODS} and len(rows) == 13
