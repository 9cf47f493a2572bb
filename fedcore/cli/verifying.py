"""`fedcore verify`: is what is stored what was written? `fedcore verify-statement`: does a statement say what was?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fedcore.cli.options import Json, Ledger
from fedcore.cli.terminal import bar, say

EXITS = {"right": 0, "wrong": 2, "not all checked": 3}
VERDICTS = {
    "right": "The statement is right: everything was compared that could contradict it, and agrees.",
    "wrong": "The statement is WRONG, or what it is compared with was damaged.",
    "not all checked": "Nothing wrong was found, but not everything could be checked.",
}


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
        return population_verify(place, version, as_json=as_json)
    with bar(f"verify {place}", as_json) as progress:
        report = verify_run(place, ledger, progress)
    say({"ok": report.ok, **asdict(report)}, as_json)
    if not report.ok:
        raise SystemExit(2)


def verify_statement(
    file: Annotated[
        str, typer.Argument(metavar="RUN|FILE", help="A run, its statement.json or report.html, or a copy; or a URL.")
    ],
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Its run, if the file is not in the run's folder.")
    ] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Compare a privacy statement with the ledger and the run that it is about, and say what could not be compared.

    Ends with 0 if everything agrees, 2 if something is wrong, 3 if nothing is wrong but not all could be checked.
    """
    from fedcore.operations.verify_statement import verify_statement as compare

    report = compare(file, run, ledger)
    if as_json:
        say({"verdict": report.verdict, **asdict(report)}, True)
    else:
        print(VERDICTS[report.verdict])
        print(f"\n{report.claims}\nRun {report.run or 'unknown'} of population {report.population_id or 'unknown'}.")
        parts = {
            "Wrong": report.problems,
            "Could not be checked": report.not_checked,
            "Checked": report.checked,
            "Since then": report.since,
        }
        for title, lines in parts.items():
            if lines:
                print(f"\n{title}:")
            for line in lines:
                print(f"  - {line}")
    raise SystemExit(EXITS[report.verdict])
