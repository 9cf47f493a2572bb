"""CPU-seconds of commands in the working tree beside those of another commit, in turns on this machine:

    python -m benchmarks.compare v1.0.0 [--repeats 5] [--clients 2000] [--json]

Both trees are installed into folders of their own, and share all other packages. In each turn each of them starts with
an empty folder, ingests the same tables and trains on them. The first turn does not count, and every second turn begins
with the other tree. The ratio is that of the medians; `from` and `to` are the smallest and the largest ratio of a turn.
Fewer than five turns show no difference: so many ratios are on one side of 1 too often where nothing differs.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.measured import Measured
from benchmarks.processes import taken
from fedcore.cli.terminal import table

ROOT = Path(__file__).parent.parent
FEWEST = 5  # turns that show a difference
WORDS = 200  # of the vocabulary
EM = ("--set", "algorithm=em", "--set", "components=3", "--set", "max_passes=12")
PRIVATE = ("--set", "clusters=5", "--set", "rounds=3", "--set", "epsilon=1", "--anyway")
COUNTS = ("counts.csv", "counts", "--kind", "counts", "--vocabulary", "words.txt")
COMMANDS: dict[str, tuple[str, ...]] = {
    "--version": (),
    "population ingest": ("rows.csv", "rows", "--client", "client"),
    "population ingest, counts": (*COUNTS, "--nominal-clients", "2000"),
    "budget set": ("counts", "--epsilon", "4", "--delta", "1e-6", "--public-schema", "drawn at random"),
    "train federated_em": ("rows", *EM, "--local", "--run-id", "em"),
    "train histograms": ("counts", *PRIVATE, "--local", "--run-id", "private"),
    "verify": ("runs/private",),
}


# --- trees ------------------------------------------------------------------------------------------------------------


def git(*words: str) -> bytes:
    """Raises ValueError with what git said."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.decode().strip())
    return done.stdout


def tree_of(commit: str | None, folder: Path) -> Path:
    """The files of the commit; of the working tree, without ignored ones, if there is none."""
    if commit is not None:
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
            archive.extractall(folder, filter="data")
        return folder
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def installed(tree: Path, folder: Path) -> Path:
    """The folder, with the tree's package in it. Raises RuntimeError with what pip said."""
    words = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
    taken(["-m", "pip", "install", *words, "--target", str(folder), str(tree)])
    return folder


# --- turns ------------------------------------------------------------------------------------------------------------


def write_tables(folder: Path, clients: int) -> None:
    draw = np.random.default_rng(1)
    rows = draw.normal(size=(10 * clients, 3)) + 4.0 * draw.integers(0, 3, (10 * clients, 1))
    lines = (f"c{number // 10},{x:.6f},{y:.6f},{z:.6f}\n" for number, (x, y, z) in enumerate(rows))
    (folder / "rows.csv").write_text("client,x,y,z\n" + "".join(lines))
    tokens = draw.integers(0, WORDS, (clients, 20))
    lines = (f"c{client},w{token},1\n" for client, some in enumerate(tokens) for token in some)
    (folder / "counts.csv").write_text("client,token,count\n" + "".join(lines))
    (folder / "words.txt").write_text("".join(f"w{number}\n" for number in range(WORDS)))


def turn(packages: Path, tables: Path) -> Iterator[tuple[str, float]]:
    """(command, CPU-seconds) of each, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in tables.iterdir():
            shutil.copy(path, folder)
        around = {"PYTHONPATH": str(packages), "FEDCORE_LEDGER": f"sqlite:///{folder / 'ledger.sqlite'}"}
        for command, words in COMMANDS.items():
            called = ["-m", "fedcore.cli", *command.partition(",")[0].split(), *words]
            yield command, taken(called, folder, **around).cpu


def measure(commit: str, repeats: int, clients: int) -> list[dict]:
    """A row for each command. Raises ValueError for an unknown commit, RuntimeError if a command fails."""
    found: dict[str, tuple[list[float], list[float]]] = {command: ([], []) for command in COMMANDS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trees = [tree_of(one, folder / f"tree-{at}") for at, one in enumerate((commit, None))]
        packages = [installed(tree, folder / f"packages-{at}") for at, tree in enumerate(trees)]
        (folder / "tables").mkdir()
        write_tables(folder / "tables", clients)
        for number in range(repeats + 1):
            for at in (0, 1) if number % 2 else (1, 0):
                for command, cpu in turn(packages[at], folder / "tables"):
                    if number:
                        found[command][at].append(cpu)
    return [_row(command, Measured(then), Measured(now)) for command, (then, now) in found.items()]


def _row(command: str, then: Measured, now: Measured) -> dict:
    turns = now.over(then).values
    low, high = min(turns), max(turns)
    says = "inside the noise" if low <= 1 <= high else "more" if low > 1 else "less"
    says = says if len(turns) >= FEWEST else "unknown: too few turns"
    ratio = float(now) / float(then)
    return {
        "command": command,
        "then_cpu_s": then,
        "now_cpu_s": now,
        "ratio": ratio,
        "from": low,
        "to": high,
        "says": says,
    }


def main(arguments: list[str]) -> None:
    known = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__.partition("\n")[0])
    known.add_argument("commit", help="a tag, a branch or a commit")
    known.add_argument("--repeats", type=int, default=5, help="turns that count")
    known.add_argument("--clients", type=int, default=2000, help="size of the tables")
    known.add_argument("--json", action="store_true")
    asked, before = known.parse_args(arguments), machine.load()
    try:
        rows = measure(asked.commit, asked.repeats, asked.clients)
    except (ValueError, RuntimeError) as error:
        sys.exit(f"python -m benchmarks.compare: {error}")
    around = {"commit": git("rev-parse", asked.commit).decode().strip(), "load": [before, machine.load()]}
    if asked.json:
        print(json.dumps({"rows": rows, **around, "machine": machine.facts()}))
        return
    table("", rows)
    print(f"then: {around['commit'][:10]}; now: the working tree. Load before and after: {around['load']}.")


if __name__ == "__main__":
    main(sys.argv[1:])
