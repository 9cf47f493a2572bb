"""A folder with a deployment file of a pipeline, and files that arrive."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedcore.operations.deployment import read_file
from fedcore.operations.pipelines.doing import OwnHands
from fedcore.operations.pipelines.law import Ready, ready
from fedcore.operations.pipelines.running import run_pipeline

OPEN = """
[[deployment]]
name = "open"
method = "paper_histograms"
population = "population"
config = { algorithm = "algorithm2", clusters = 2, rounds = 2 }
"""
PRIVATE = """
[[deployment]]
name = "closed"
method = "histograms"
population = "population"
config = { epsilon = 0.5, clusters = 2, rounds = 2, anyway = true }
"""
HEAD = """
[[pipeline]]
name = "nightly"
population = "population"
"""
INGEST = """
[[pipeline.step]]
do = "ingest"
files = "arrivals/*.csv"
quiet_seconds = 0
invalid_rows = "leave_out"
options = { client = "client", features = 5, clients_per_leaf = 4, declared_clients = 12, clients_per_block = 8 }
"""


def step(do: str, **given) -> str:
    lines = [f"{name} = {value!r}".replace("True", "true") for name, value in given.items()]
    return "\n".join(["[[pipeline.step]]", f'do = "{do}"', *lines]) + "\n"


def day(number: int) -> datetime:
    """Three o'clock of so many days into January 2026."""
    return datetime(2026, 1, number, 3, tzinfo=UTC)


class Place:
    """folder/nightly.toml and folder/arrivals"""

    def __init__(self, folder: Path, text: str):
        self.folder, self.arrivals = folder, folder / "arrivals"
        self.arrivals.mkdir(exist_ok=True)
        (folder / "nightly.toml").write_text(text)

    @property
    def ready(self) -> Ready:
        content = read_file(self.folder / "nightly.toml")
        return ready(content.pipeline[0], content.deployment)

    @property
    def population(self) -> Path:
        return self.folder / "population"

    def arrive(self, name: str, *clients: str, content: str | None = None) -> Path:
        file = self.arrivals / name
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = [f"{client},{len(client) % 5},{1 + number % 3}\n" for number, client in enumerate(clients)]
        file.write_text("client,token,count\n" + "".join(rows) if content is None else content)
        return file

    def run(self, number: int, **more):
        """The records of the run for this day; of earlier ones that were gone on with before them."""
        return run_pipeline(self.ready, day(number), **{"hands": OwnHands(report=False), **more})
