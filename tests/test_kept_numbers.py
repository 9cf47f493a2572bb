"""Commands that keep numbers: comparisons with another commit, tables of pages, results of heavy tests."""

from importlib.util import find_spec

import pytest

from benchmarks import compare, tables
from benchmarks.measured import Measured
from tests import evidence

PAGE = """`python -m benchmarks fit` makes the table, `python -m tests.audit.kept [--pairs N] [NAME ...]` the next one,
and `python -m tests.faults.month --dir FOLDER` or `python -m benchmarks.growth FILE` others.
`python -m tests.evidence list` makes none, and `python -m benchmarks` lists."""


def test_a_page_states_its_commands(tmp_path):
    for name in ("b.md", "a.md"):
        (tmp_path / name).write_text(PAGE)
    found = tables.commands(tmp_path)
    assert set(found.values()) == {"a.md"}
    assert {command: tables.runnable(command) for command in found} == {
        "benchmarks fit": True,
        "tests.audit.kept": True,
        "tests.faults.month --dir FOLDER": True,
        "benchmarks.growth FILE": False,
    }


def test_every_command_of_the_notes_is_there():
    found = tables.commands()
    assert len(found) > 30 and sum(map(tables.runnable, found)) > 30
    assert all(find_spec(command.split()[0]) for command in found)


def test_what_a_command_prints_is_kept_with_its_date(tmp_path, capsys):
    assert tables.last("benchmarks --help", tmp_path) == ""
    assert tables.run("benchmarks --help", tmp_path) == 0
    about, command, _, *printed = tables.kept("benchmarks --help", tmp_path).read_text().splitlines()
    assert about == tables.last("benchmarks --help", tmp_path) and about.endswith("exit code 0")
    assert command == "python -m benchmarks --help" and printed[0].startswith("usage: ")
    assert (
        tables.run("benchmarks unknown", tmp_path) != 0 and "exit code 0" not in capsys.readouterr().out.splitlines()[1]
    )


def test_heavy_tests_are_listed_with_their_results():
    tests = [evidence.name_of(f"tests/{name}") for name in ("a/test_b.py::test_c[x::y]", "test_d.py::test_e")]
    rows = {"test_d::test_e": "| `test_d::test_e` | passed |", "gone": "| `gone` | passed |"}
    assert evidence.listed(tests, rows) == [
        "| `a/test_b::test_c[x::y]` | never run by this command |",
        rows["test_d::test_e"],
        "| `gone` | passed | (no such test)",
    ]


@pytest.mark.parametrize(
    ("now", "says"),
    [([2.0] * 5, "more"), ([0.5] * 5, "less"), ([1.1] * 4 + [0.9], "inside the noise"), ([2.0] * 4, "unknown")],
)
def test_a_difference_is_one_in_every_turn(now, says):
    row = compare._row("c", Measured([1.0] * len(now)), Measured(now))
    assert row["says"].startswith(says) and row["from"] == min(now) and row["to"] == max(now)


@pytest.mark.slow
def test_the_working_tree_beside_a_commit(capsys, monkeypatch):
    """One command of each, which the installed trees run, not this one."""
    try:
        compare.git("rev-parse", "HEAD")
    except ValueError as error:
        pytest.skip(f"no clone: {error}")
    monkeypatch.setattr(compare, "COMMANDS", {"population ingest": compare.COMMANDS["population ingest"]})
    compare.main(["HEAD", "--repeats", "1", "--clients", "5"])
    assert "population ingest" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no-such-tag"):
        compare.main(["no-such-tag"])
