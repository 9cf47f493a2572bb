"""Seconds that small commands take, each in fresh processes: what starting costs, and a training run of a few rounds.

`cpu_s` counts all processes of the command, `server_s` those of the Prefect server beside them. `targets` are those of
the project. With FEDCORE_IMPORTS=N every command is run once more with `-X importtime`, and its N most expensive
modules are shown, without those that they import.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measured import Measured
from benchmarks.populations import mixture_rows, reddit_like
from benchmarks.processes import Server, own_server, taken

CLIENTS = 1000
MIXTURE = ("--set", "algorithm=em", "--set", "components=3", "--set", "max_passes=12")
PRIVATE = ("--set", "clusters=5", "--set", "rounds=3", "--set", "epsilon=8")
TARGETS = {"fedcore --help": 0.5, "train --local": 3.0, "train --local, private": 3.0, "train, Prefect server": 10.0}
IMPORTED = re.compile(r"import time:\s*(\d+) \|\s*(\d+) \|\s*(\S+)")


def measure(options) -> dict:
    rows = mixture_rows(options.dir, options.clients).path
    counts = reddit_like(options.dir, options.clients).path
    with tempfile.TemporaryDirectory() as folder, own_server(Path(folder) / "prefect") as server:
        train = ["-m", "fedcore.cli", "train"]
        where = ["--runs", f"{folder}/runs", "--json"]
        commands = {
            "python -c pass": ["-c", "pass"],
            "fedcore --help": ["-m", "fedcore.cli", "--help"],
            "fedcore methods": ["-m", "fedcore.cli", "methods"],
            "population describe": ["-m", "fedcore.cli", "population", "describe", str(rows)],
            "train --local": [*train, "federated_em", str(rows), "--local", *MIXTURE, *where],
            "train --local, private": [*train, "histograms", str(counts), "--local", *PRIVATE, *where],
            "train, Prefect server": [
                *train,
                "federated_em",
                str(rows),
                "--workers",
                str(options.workers),
                *MIXTURE,
                *where,
            ],
        }
        found = [_row(what, words, options.repeats, server) for what, words in commands.items()]
        shown = int(os.environ.get("FEDCORE_IMPORTS", "0"))
        if shown:
            found += [row for what, words in commands.items() for row in _imports(what, words, server, shown)]
    return {"benchmark": "startup", "workers": options.workers, "rows": found}


def _row(what: str, words: list[str], repeats: int, server: Server) -> dict:
    """Medians; one process goes before and does not count."""
    taken(words, PREFECT_API_URL=server.api)
    took, asked = [], []
    for _ in range(repeats):
        before = server.cpu()
        took.append(taken(words, PREFECT_API_URL=server.api))
        asked.append(server.cpu() - before)
    target = {"target_s": TARGETS[what]} if what in TARGETS else {}
    return {
        "what": what,
        "wall_s": Measured(each.seconds for each in took),
        "cpu_s": Measured(each.cpu for each in took),
        "server_s": Measured(asked),
        **target,
    }


def _imports(what: str, words: list[str], server: Server, most: int) -> list[dict]:
    """The modules of the command's own process that took longest to import, by themselves and with what they import."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PREFECT_API_URL": server.api},
    )
    found = sorted(((int(own), int(whole), name) for own, whole, name in IMPORTED.findall(done.stderr)), reverse=True)
    return [
        {"what": what, "module": name, "own_ms": own / 1000, "with_imports_ms": whole / 1000}
        for own, whole, name in found[:most]
    ]
