"""The commands that made the tables of docs/notes, and what each printed last:

    python -m benchmarks.tables                    lists them, with the date of the last output
    python -m benchmarks.tables run [WORD ...]     runs those with one of the words in page or command; all without

A page states its commands as `python -m ...`. Optional words in brackets are left out, and FOLDER is an empty folder.
A command with another word in capitals is listed, but cannot be run from here. What a command prints is kept in
`--dir`, below its date, commit, seconds and exit code. Some commands take hours.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from benchmarks import history
from fedcore.cli.terminal import table

ROOT = Path(__file__).parent.parent
NOTES = ROOT / "docs" / "notes"
COMMAND = re.compile(r"`python -m ((?:benchmarks|tests)[ .][^`]*)`")
OPTIONAL = re.compile(r" \[[^]]*\]")
PLACE, PLACEHOLDER = "FOLDER", re.compile(r"\b[A-Z]{2,}\b")
NO_TABLE = ("tests.evidence", "benchmarks.tables", "benchmarks.compare")


def commands(notes: Path = NOTES) -> dict[str, str]:
    """What follows `python -m`, without optional words -> the page that states it first."""
    found: dict[str, str] = {}
    for page in sorted(notes.glob("*.md")):
        for stated in COMMAND.findall(page.read_text()):
            command = OPTIONAL.sub("", stated)
            if not command.startswith(NO_TABLE):
                found.setdefault(command, page.name)
    return found


def runnable(command: str) -> bool:
    return not PLACEHOLDER.search(command.replace(PLACE, ""))


def kept(command: str, folder: Path) -> Path:
    """The file of what the command printed."""
    return folder / (re.sub(r"[^\w.=-]+", "_", command) + ".txt")


def last(command: str, folder: Path) -> str:
    """The first line of what was kept: date, commit, seconds, exit code; empty if nothing was."""
    file = kept(command, folder)
    return file.read_text().partition("\n")[0] if file.exists() else ""


def run(command: str, folder: Path) -> int:
    """Its exit code."""
    began, now, commit = perf_counter(), datetime.now(UTC).date(), history.commit()
    with tempfile.TemporaryDirectory() as empty:
        words = [empty if word == PLACE else word for word in command.split()]
        done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    version = f"{(commit['commit'] or 'no commit')[: history.SHOWN]}{' with changes' if commit['changed'] else ''}"
    about = f"{now}, {version}, {perf_counter() - began:.0f} s, exit code {done.returncode}"
    folder.mkdir(parents=True, exist_ok=True)
    kept(command, folder).write_text(f"{about}\npython -m {command}\n\n{done.stdout}{done.stderr}")
    print(f"{about}: {command}", flush=True)
    return done.returncode


def main(arguments: list[str]) -> int:
    known = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.partition("\n")[0])
    known.add_argument("do", nargs="?", choices=("list", "run"), default="list")
    known.add_argument("words", nargs="*", metavar="WORD")
    known.add_argument("--dir", type=Path, default=Path("benchmark-data/tables"), help="where outputs are kept")
    asked = known.parse_args(arguments)
    chosen = {
        command: page
        for command, page in commands().items()
        if not asked.words or any(word in f"{page} {command}" for word in asked.words)
    }
    if asked.do == "run":
        return max((run(command, asked.dir) for command in chosen if runnable(command)), default=0)
    shown = {command: last(command, asked.dir) if runnable(command) else "needs values" for command in chosen}
    table("", [{"page": page, "command": one, "last": shown[one]} for one, page in chosen.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
