"""`fedcore demo series`: two simulated years of weekly private runs on clients that come, leave and change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcore.cli.options import Json
from fedcore.cli.terminal import bar, say, table


def series(
    dir: Annotated[
        Path, typer.Option("--dir", help="Folder for everything; the same one goes on with what is missing.")
    ] = Path("fedcore-demo-series"),
    weeks: Annotated[int, typer.Option(min=2, max=520, help="Weeks, with a run in each.")] = 104,
    clients: Annotated[int, typer.Option(min=100, help="Clients of the first week.")] = 4000,
    seed: Annotated[int, typer.Option(min=0, help="Names the clients, the drift, the noise and the kills.")] = 1,
    kills: Annotated[int, typer.Option(min=0, help="How often the process is killed on the way.")] = 5,
    as_json: Json = False,
) -> None:
    """Weekly private runs for two simulated years: what cohorts and pooling are worth, with one figure."""
    from fedcore.demo.series_demo import OURS, make_weeks, result_of, series_in
    from fedcore.population.synthetic_stream import StreamSettings

    work = series_in(dir, StreamSettings(weeks=weeks, clients=clients), seed)
    with bar(f"{weeks} weeks", as_json) as progress:
        killed = make_weeks(work, kills, progress)
    with bar("other ways to pay", as_json) as progress:
        result = result_of(work, killed, progress)
    if as_json:
        return say(result, True)
    table("Mean KL to the law of the next week, nats", result["table"])
    print(
        f"\nRuns refused: {result['refused'][OURS]}. The process was killed {killed} times.\n"
        f"Clients who ever came have spent {result['spent_mean']:.0%} of their budget on average, "
        f"{result['spent_most']:.1%} at most.\n"
        f"Digest of all released models: {result['digest'][:16]} (the same however often the process is killed)\n"
        f"Figure:  {dir / 'series.png'}\n"
        f"Budget:  fedcore budget show {work.place}"
    )
