"""The mutants follow the code, and the tests that are named kill them."""

import ast
from collections import Counter
from functools import cache

import pytest

from tests.audit.mutants.__main__ import verdict_on
from tests.audit.mutants.table import MUTANTS, ROOT, chosen


@cache
def names_in(file: str) -> set[str]:
    """Of functions and classes; the file must be there."""
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}


SAMPLE = ("order: drawn before it is charged", "noise: the first cell without")


def test_mutants_can_still_be_made_and_their_tests_are_there():
    for mutant in MUTANTS:
        compile(mutant.altered(), mutant.file, "exec")
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert not name or name in names_in(file), (mutant.name, test)


def test_there_are_enough_and_each_has_a_name_of_its_own():
    assert len(MUTANTS) >= 100
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert {mutant.name.split(":")[0] for mutant in chosen(["noise", "clip"])} == {"noise", "clip"}
    with pytest.raises(ValueError, match="no mutant"):
        chosen(["nobody"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_mutant_is_killed(name):
    (mutant,) = chosen([name])
    assert verdict_on(mutant).killed


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_every_mutant_is_killed(mutant):
    verdict = verdict_on(mutant)
    assert verdict.killed, verdict.why
