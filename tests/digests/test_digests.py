"""Small runs of every algorithm end in the bits in which they ended when `digests.json` was made.

Sums of floats have other last bits where BLAS has another kernel or NumPy other vector instructions. So the digests
are compared where all of that is as it was when the file was made. Elsewhere names, dtypes, shapes, whole numbers and
texts are compared exactly, and a few numbers of each array of floats up to a millionth; of runs that branch on last
bits, which the file names, only the names of the metrics.

`python -m tests.digests.make` makes the file again.
"""

import types
from typing import Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from fedcore.methods.registry import make_method, method_class
from fedcore.rounds.choices import known_settings
from fedcore.rounds.private_settings import PrivateRunSettings
from tests.digests.cases import CASES
from tests.digests.make import differences, machine, made, stored

STORED = stored()
SAME = STORED["machine"] == machine()


def test_the_file_has_all_cases():
    assert list(STORED["runs"]) == list(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ends_in_the_same_bits(name):
    if SAME:
        assert not differences(made(name), STORED["runs"][name], to_the_bit=True)
    elif name in STORED["unstable"]:
        found, kept = made(name), STORED["runs"][name]
        assert found.keys() == kept.keys() and found["columns"] == kept["columns"]
    else:
        assert not differences(made(name), STORED["runs"][name], to_the_bit=False)


# --- nothing is left out ----------------------------------------------------------------------------------------------


def choices(annotation) -> set:
    """The values of a setting of few values: those of its Literal, or false and true."""
    if annotation is bool:
        return {False, True}
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return set().union(*(choices(part) for part in get_args(annotation)))
    return set()


def settings(model: type[BaseModel]):
    """(name, annotation) of each setting, those of algorithms included."""
    for name, field in model.model_fields.items():
        yield name, field.annotation
        for part in get_args(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from settings(part)


def values(config: BaseModel):
    """(name, value) likewise."""
    for name, value in config:
        yield name, value
        if isinstance(value, BaseModel):
            yield from values(value)


@pytest.mark.parametrize("method", sorted({case.method for case in CASES.values()}))
def test_every_choice_of_a_setting_is_taken(method):
    configs = [make_method(method, dict(case.settings)).config for case in CASES.values() if case.method == method]
    given = [pair for config in configs for pair in values(config)]
    own = method_class(method).Config
    others = {method_class(case.method).Config for case in CASES.values()} - {own}
    inherited = {setting for base in own.__mro__ if base in others for setting in known_settings(base)}
    inherited |= {"name"} if inherited else set()  # of the choices of that method
    inherited |= {*PrivateRunSettings.model_fields}  # read by the platform alone
    for setting, annotation in settings(own):
        if setting in inherited:  # the cases of that method take its choices
            continue
        taken = {value for name, value in given if name == setting and isinstance(value, (str, bool))}
        assert choices(annotation) <= taken, setting
