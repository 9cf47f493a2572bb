"""Settings that are a choice among models: given in one list, told apart by their names."""

from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedcore.rounds.choices import ChoiceSettings, choices, flat, known_settings


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Short(Part):
    name: Literal["short", "brief"] = "short"
    rounds: int = Field(3, ge=1, description="few")


class Long(Part):
    name: Literal["long"] = "long"
    width: int
    rounds: int = Field(30, ge=1, description="many")
    low: ClassVar[int] = 0


class Settings(ChoiceSettings):
    how: Annotated[Short | Long, Field(discriminator="name")] = Field(Short(), description="how")
    plain: float = 1.0


LONG = Settings(how=Long(width=2))


@pytest.mark.parametrize(
    "given",
    [
        {"how": "long", "width": 2},
        {"how": {"name": "long"}, "width": 2},
        {"how": {"name": "long", "width": 9}, "width": 2},
        {"how": Long(width=2)},
        {"how": {"name": "long", "width": 2}},
    ],
)
def test_a_list_and_an_object_are_the_same(given):
    assert Settings(**given) == LONG == Settings(**LONG.model_dump(mode="json"))


def test_what_was_not_given_stays_unset():
    assert Settings(plain=2.0).model_dump(exclude_unset=True) == {"plain": 2.0}
    assert Settings(rounds=5).model_dump(exclude_unset=True) == {"how": {"name": "short", "rounds": 5}}
    assert Settings(how="brief").how.name == "brief"


@pytest.mark.parametrize(
    "given, words",
    [
        ({"width": 2}, "width is for how long, not short, whose settings are rounds"),
        ({"how": "long", "low": 1, "width": 2}, "low"),
        ({"how": "other", "rounds": 2}, "does not match any of the expected tags"),
        ({"how": ["long"]}, "does not match any of the expected tags"),
        ({"how": "long"}, "width"),
        ({"rounds": 0}, "greater than or equal to 1"),
        ({"unknown": 1}, "Extra inputs"),
    ],
)
def test_what_is_refused(given, words):
    with pytest.raises(ValidationError, match=words):
        Settings(**given)


def test_a_copy_is_checked():
    assert LONG.model_copy(update={"rounds": 4}).how == Long(width=2, rounds=4) and LONG.model_copy() == LONG
    for wrong in ({"rounds": 0}, {"unknown": 1}, {"how": "long", "wide": 1}):
        with pytest.raises(ValidationError):
            LONG.model_copy(update=wrong)


def test_what_can_be_given():
    assert choices(Settings) == {"how": {"short": Short, "brief": Short, "long": Long}}
    assert list(known_settings(Settings)) == ["how", "rounds", "width", "plain"]
    assert known_settings(Settings)["rounds"].default == 3
    assert known_settings(Settings, {"how": "long"})["rounds"].default == 30
    assert flat(LONG.model_dump()) == {"how": "long", "width": 2, "rounds": 30, "plain": 1.0}
