"""The demonstration of a series: its weeks are made by a process of their own, which is killed at random on the way and
begun again; then it is compared with other ways to pay for weekly runs.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.series.figure import series_figure
from benchmarks.series.in_time import losses, ways
from benchmarks.series.stream import Stream, StreamSettings
from benchmarks.series.weekly import WeeklySeries
from fedcore.errors import ConfigError, WorkerFailed
from fedcore.randomness import stream as random_stream
from fedcore.storage import files

ROOT = Path(__file__).parents[2]
ASKED = "demo.json"
OURS = "by cohort, each run from the one before it"
POLL_SECONDS = 0.05
LONGEST_DELAY = 1.0  # seconds into a week after which its process is killed
Tell = Callable[[int, int], object]  # (done, of)


def series_in(folder: Path, settings: StreamSettings, seed: int) -> WeeklySeries:
    """The series of this folder, which is made. Raises ConfigError if the folder holds another demonstration."""
    folder.mkdir(parents=True, exist_ok=True)
    file, asked = folder / ASKED, {"settings": settings.model_dump(), "seed": seed}
    if file.exists() and json.loads(file.read_text()) != asked:
        raise ConfigError(f"{str(folder)!r} holds a series with other settings.", "Choose another --dir.")
    files.write_whole(file, json.dumps(asked).encode())
    return WeeklySeries(folder, Stream(settings, seed))


# --- the process that makes the weeks ---------------------------------------------------------------------------------


def main(folder: str) -> None:
    """Makes every week that is missing: what the process does, as `python -m benchmarks.series.demo FOLDER`."""
    asked = json.loads((Path(folder) / ASKED).read_text())
    for _ in WeeklySeries(Path(folder), Stream(StreamSettings(**asked["settings"]), asked["seed"])).go_on():
        pass


@dataclass
class Kill:
    week: int
    delay: float


def planned_kills(weeks: int, kills: int, seed: int) -> list[Kill]:
    generator = random_stream(seed, "series/kills")
    chosen = np.sort(generator.choice(np.arange(1, weeks + 1), min(kills, weeks), replace=False))
    return [Kill(int(week), float(generator.uniform(0, LONGEST_DELAY))) for week in chosen]


def make_weeks(work: WeeklySeries, kills: int, tell: Tell | None = None) -> int:
    """Until all weeks are made. Returns how often the process was killed."""
    weeks = work.stream.settings.weeks
    planned = [kill for kill in planned_kills(weeks, kills, work.stream.seed) if kill.week > len(work.done())]
    killed = 0
    while (done := len(work.done())) < weeks:
        process = subprocess.Popen([sys.executable, "-m", __name__, str(work.folder.resolve())], cwd=ROOT)
        try:
            while process.poll() is None:
                done = len(work.done())
                if tell is not None:
                    tell(done, weeks)
                if planned and done + 1 >= planned[0].week:
                    time.sleep(planned.pop(0).delay)
                    process.kill()
                    killed += 1
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
        if process.returncode not in (0, -signal.SIGKILL):
            raise WorkerFailed(
                f"the weeks after {len(work.done())} could not be made; the error stands above.",
                "Mend what it names and run the same command again: it goes on where it was.",
            )
    if tell is not None:
        tell(weeks, weeks)
    return killed


# --- what came of it --------------------------------------------------------------------------------------------------


def result_of(work: WeeklySeries, killed: int, tell: Tell | None = None) -> dict[str, Any]:
    """Everything that the figure shows, also written to series.json and series.png."""
    made, settings = work.done(), work.stream.settings
    lines, refused = {OURS: [week.loss for week in made]}, {OURS: settings.weeks - len(made)}
    rho_max = work.balance().required_budget().rho_max
    compared = ways(work.horizon, settings.weeks)
    for number, way in enumerate(compared):
        lines[way.label] = list(losses(work.stream, way, rho_max, work.key))
        refused[way.label] = max(settings.weeks - (way.runs or settings.weeks), 0)
        if tell is not None:
            tell(number + 1, len(compared))
    spent = work.spent_by_clients()
    result = {
        "weeks": [asdict(week) for week in made],
        "loss": lines,
        "refused": refused,
        "table": [_row(label, loss, refused[label]) for label, loss in lines.items()],
        "horizon": work.horizon,
        "spent_mean": float(spent.mean()),
        "spent_most": float(spent.max()),
        "killed": killed,
        "digest": work.digest(),
    }
    files.write_whole(work.folder / "series.json", json.dumps(result).encode())
    files.write_whole(work.folder / "series.png", series_figure(lines, spent, refused))
    return result


def _row(label: str, loss: list[float], refused: int) -> dict:
    weeks = len(loss)
    cuts = [0, weeks // 4, weeks // 2, weeks]
    means = {
        f"weeks {low + 1}-{high}": float(np.mean(loss[low:high])) for low, high in zip(cuts, cuts[1:], strict=False)
    }
    return {"runs": label, **means, "last week": loss[-1], "refused": refused}


if __name__ == "__main__":
    main(sys.argv[1])
