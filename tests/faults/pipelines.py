"""A pipeline in a workplace: files come, founders are forgotten, a run is made, exported and personalised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from fedcore.operations.deployment import read_file
from fedcore.operations.pipelines.doing import OwnHands
from fedcore.operations.pipelines.law import Ready, ready
from fedcore.operations.pipelines.running import run_pipeline

if TYPE_CHECKING:
    from tests.faults.commands import Workplace

FILE = """
[[deployment]]
name = "nightly"
method = "toy"
population = "population"
config = { rounds = 2 }
retention = 1

[[pipeline]]
name = "nightly"
population = "population"
step = [
    { do = "ingest", files = "arrivals/*.csv", quiet_seconds = 0 },
    { do = "forget", after_days = 30 },
    { do = "train", deployment = "nightly" },
    { do = "export", deployment = "nightly", to = "model.npz", when = "if_promoted" },
    { do = "personalise", deployment = "nightly", to = "personal", ending = "csv" },
]
"""
# What ends a process. What a process is told of, a full disk say, keeps its other steps from nothing, and so the run of
# that day may be one of the version before.
FAULTS = ("kill", "torn", "power", "power, names kept")


def prepare(here: Workplace) -> None:
    """Two files came, one of which is damaged."""
    (here.root / "nightly.toml").write_text(FILE)
    (here.root / "arrivals").mkdir()
    (here.root / "more.csv").rename(here.root / "arrivals" / "more.csv")
    (here.root / "arrivals" / "damaged.csv").write_text("client,other\na,1\n")


def run(here: Workplace) -> None:
    """The run for a day long after the founders came, always the same one."""
    runs = run_pipeline(_ready(here), _at(here), hands=OwnHands(report=False))
    assert [record.status for record in runs[-1].steps] in (["done"] * 5, ["nothing"] * 5) or runs[-1].bad == []


def _ready(here: Workplace) -> Ready:
    content = read_file(here.root / "nightly.toml")
    return ready(content.pipeline[0], content.deployment)


def _at(here: Workplace) -> datetime:
    today = datetime.now(UTC).date() + timedelta(days=100)
    return datetime(today.year, today.month, today.day, 3, tzinfo=UTC)
