"""What others may build upon stays (docs/stability.md): names, commands, settings, fields of JSON, formats of files."""

import pytest

from tests.stability import formats
from tests.stability.make import GOLDEN, LISTS, MAKE, SLOW, differences, extends, stored, written
from tests.stability.names import all_commands

BROKEN = (
    "Others may build upon these. Keep the old form for one minor version (fedcore/rounds/old_names.py), or raise the "
    "schema of a format and keep reading the old one. docs/stability.md has the rules. Only then: " + MAKE
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LISTS])
def test_what_others_may_build_upon_is_as_it_was(name):
    found = differences(stored(name), LISTS[name]())
    broken = [line for line in found if not line.startswith("added")]
    assert not broken, "\n".join([*broken, BROKEN])
    assert not found, "\n".join([*found, f"These are new. Add them to the lists: {MAKE}"])


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_read_as_it_was_written(name):
    assert written(stored(name), name in SLOW) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.slow
def test_every_command_with_json_is_sampled_or_says_why_not():
    speaks = {
        name.removeprefix("fedcore ") for name, one in all_commands() if any("--json" in p.opts for p in one.params)
    }
    assert speaks - formats.sampled()[2] == formats.NOT_SAMPLED.keys()


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("(a, b=1)", "(a, b=1, c=None)", True),
        ("(a, *, b=1)", "(a, *, c=(1, 2), b=1)", True),
        ("(a, *, b=1)", "(a, *, b=1, c)", False),
        ("(a, b=1)", "(a, c=2, b=1)", False),
        ("(a, b=1)", "(a, b=2)", False),
        ("(a, b=1)", "(a)", False),
        ("(a, *, b=1)", "(a, *)", False),
        ("(a)", "(a, b)", False),
        ("number", "number or null", False),
    ],
)
def test_a_parameter_with_a_default_is_an_addition(before, now, expected):
    assert extends(before, now) is expected


def test_differences_are_named():
    before, now = {"f": "(a)", "g": "x", "h": ""}, {"f": "(a, b=1)", "g": "y", "i": ""}
    assert differences(before, now) == ["added to: f: (a) -> (a, b=1)", "added: i", "changed: g: x -> y", "removed: h"]
