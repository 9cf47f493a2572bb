"""Runs the heavy tests and keeps what came out, with the commit and the date:

    python -m tests.evidence               # all of them: an hour and more
    python -m tests.evidence -k streaming  # what pytest's options choose
    python -m tests.evidence list          # lists them with their last results, and runs nothing

The result is docs/notes/heavy.md: a row for each test of the last run in which it took part. Rows of tests that are
not run this time stay as they are.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docs" / "notes" / "heavy.md"
HEAD = """# Heavy tests

What `python -m tests.evidence` saw: powered statistics, long walks of faults, simulated time, browsers. They run by
this command only; each gate has a smaller sibling among the slow tests, which run for every change. `python -m
tests.evidence list` also lists those without a result.

| test | outcome | seconds | cores | commit | date |
|---|---|---|---|---|---|
"""
ROW = re.compile(r"\| `(?P<test>[^`]+)` \|.*")


def commit() -> str:
    """The commit that is checked out; marked if files differ from it."""
    return _git("rev-parse", "--short", "HEAD") + (" with changes" if _git("status", "--porcelain") else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip()


def outcomes(report: Path) -> dict[str, tuple[str, float]]:
    """(outcome, seconds) by test, from a JUnit report of pytest."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        where = case.attrib["classname"].removeprefix("tests.").replace(".", "/")
        found[f"{where}::{case.attrib['name']}"] = (outcome, float(case.attrib["time"]))
    return found


def kept(file: Path) -> dict[str, str]:
    """The rows of the file, by test."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {match["test"]: line for line in lines if (match := ROW.fullmatch(line))}


def heavy_tests() -> list[str]:
    """All there are, by the names of the file."""
    command = [sys.executable, "-m", "pytest", "-m", "heavy", "-n", "0", "--collect-only"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name_of(line) for line in done.stdout.splitlines() if "::" in line]


def name_of(test: str) -> str:
    """The name in the file of a test that pytest calls tests/FOLDER/test_FILE.py::NAME."""
    where, _, name = test.removeprefix("tests/").partition(".py::")
    return f"{where}::{name}"


def listed(tests: list[str], rows: dict[str, str]) -> list[str]:
    """A line for each test: its row, or that it has none; and the rows of tests that are gone."""
    lines = [rows.get(test, f"| `{test}` | never run by this command |") for test in tests]
    return lines + [f"{rows[test]} (no such test)" for test in rows if test not in tests]


def main(arguments: list[str]) -> int:
    if arguments == ["list"]:
        print("\n".join(listed(heavy_tests(), kept(FILE))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "heavy", "-n", "0", f"--junitxml={report}", *arguments]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if not report.exists():
            return done.returncode
        rows, now = kept(FILE), datetime.now(UTC).date().isoformat()
        for test, (outcome, seconds) in outcomes(report).items():
            rows[test] = f"| `{test}` | {outcome} | {seconds:.0f} | {os.cpu_count()} | {commit()} | {now} |"
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(HEAD + "".join(f"{rows[test]}\n" for test in sorted(rows)))
    print(f"kept in {FILE.relative_to(ROOT)}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
