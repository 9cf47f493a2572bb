"""`fedcore verify`: is what is stored what was written?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fedcore.cli.options import Json, Ledger
from fedcore.cli.terminal import bar, say


def verify(
    place: Annotated[
        str, typer.Argument(metavar="RUN|POPULATION", help="Folder or URL, or a deployment's file latest-NAME.json.")
    ],
    version: Annotated[int | None, typer.Option(min=1, help="Of a population; default: the newest.")] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Read everything that is stored of a run or of a population, and compare it with its digests; a run also with its
    population and its ledger.
    """
    from fedcore.cli.populations import population_verify
    from fedcore.operations.verify import is_run, verify_run
    from fedcore.storage import files

    if not is_run(files.place(place)):
        return population_verify(place, version, as_json)
    with bar(f"verify {place}", as_json) as progress:
        report = verify_run(place, ledger, progress)
    say({"ok": report.ok, **asdict(report)}, as_json)
    if not report.ok:
        raise SystemExit(2)
