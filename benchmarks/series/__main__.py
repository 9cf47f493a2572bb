"""python -m benchmarks.series [--dir DIR] [--weeks N] [--clients N] [--seed N] [--kills N] [--json]

Weekly private runs for two simulated years: what cohorts and pooling are worth, with one figure.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.series.demo import OURS, make_weeks, result_of, series_in
from benchmarks.series.stream import StreamSettings
from fedcore.cli.terminal import bar, table
from fedcore.errors import FedcoreError


def main() -> None:
    chosen = parser().parse_args()
    try:
        work = series_in(chosen.dir, StreamSettings(weeks=chosen.weeks, clients=chosen.clients), chosen.seed)
        with bar(f"{chosen.weeks} weeks", chosen.json) as progress:
            killed = make_weeks(work, chosen.kills, progress)
        with bar("other ways to pay", chosen.json) as progress:
            result = result_of(work, killed, progress)
    except FedcoreError as error:
        sys.exit(f"python -m benchmarks.series: {error}")
    if chosen.json:
        print(json.dumps(result))
        return
    table("Mean KL to the law of the next week, nats", result["table"])
    print(
        f"\nRuns refused: {result['refused'][OURS]}. The process was killed {killed} times.\n"
        f"Clients who ever came have spent {result['spent_mean']:.0%} of their budget on average, "
        f"{result['spent_most']:.1%} at most.\n"
        f"Digest of all released models: {result['digest'][:16]} (the same however often the process is killed)\n"
        f"Figure:  {chosen.dir / 'series.png'}\n"
        f"Budget:  fedcore budget show {work.place}"
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.series", description=__doc__)
    made.add_argument("--dir", type=Path, default=Path("series"), help="folder for everything; run again, it resumes")
    made.add_argument("--weeks", type=int, default=104, help="weeks, with a run in each")
    made.add_argument("--clients", type=int, default=4000, help="clients of the first week")
    made.add_argument("--seed", type=int, default=1, help="of the clients, the drift, the noise and the kills")
    made.add_argument("--kills", type=int, default=5, help="how often the process is killed on the way")
    made.add_argument("--json", action="store_true", help="print one object")
    return made


if __name__ == "__main__":
    main()
