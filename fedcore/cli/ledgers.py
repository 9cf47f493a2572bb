"""`fedcore ledger`: copy a whole ledger, and verify copies."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fedcore.cli.help_text import Commands
from fedcore.cli.options import Json, Ledger, use_ledger
from fedcore.cli.terminal import say, table

if TYPE_CHECKING:
    from fedcore.operations.ledger_drill import Drill

ledger_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Copies of the privacy ledger.")

EXITS = {"whole": 0, "damaged": 2, "older": 3}
VERDICTS = {
    "whole": "The copy is whole, and nothing that is known would be lost with it.",
    "older": "The copy is whole, and older than what was seen: with it in the ledger's place, private runs on these "
    "populations are refused until the newest copy is restored or the loss is accepted (fedcore budget accept-loss).",
    "damaged": "The copy is DAMAGED. Restore nothing from it.",
}


@ledger_app.command("backup")
def ledger_backup(
    dest: Annotated[str, typer.Argument(metavar="DEST", help="File of the copy: always SQLite, one file.")],
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Copy the whole ledger as it is at this moment, and verify the copy. Runs may continue meanwhile. From PostgreSQL,
    one transaction copies all tables. An earlier copy in DEST is replaced only by a newer one of the same ledger.
    """
    from fedcore.privacy.ledger.copies import backup
    from fedcore.privacy.ledger.ledger import default_ledger_url, open_ledger

    use_ledger(ledger)
    found = open_ledger(default_ledger_url())
    made = backup(found, dest)
    records = {population_id: made.length(population_id) for population_id in made.populations()}
    say({"ledger": found.id, "url": found.url, "copy": made.url, "verified": True, "records": records}, as_json)


@ledger_app.command("restore")
def ledger_restore(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="File of a copy.")],
    check: Annotated[bool, typer.Option("--check", help="Only check what the copy allows; write nothing.")] = False,
    runs: Annotated[
        list[str] | None,
        typer.Option("--runs", metavar="RUNS", help="Folder or URL of runs that saw the ledger; repeatable."),
    ] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Verify a copy, report later records, and restore it where no ledger is: at --ledger, FEDCORE_LEDGER, or the
    user's default place. An existing ledger is never overwritten, because budgets cannot be reset.

    Exits with 0 if nothing is lost, 2 if the copy is damaged, 3 if it is older than what the ledger, runs or
    populations saw.
    """
    from fedcore.operations.ledger_drill import DAMAGED, drill
    from fedcore.privacy.ledger.copies import open_copy, restore
    from fedcore.privacy.ledger.ledger import default_ledger_url

    use_ledger(ledger)
    url = default_ledger_url()
    found = drill(source, url, runs or ())
    restored = None
    if not check and found.verdict != DAMAGED:
        restored = restore(open_copy(source), url).url
    if as_json:
        say({"verdict": found.verdict, "restored": restored, **asdict(found)}, True)
    else:
        _show(found, restored)
    raise SystemExit(EXITS[found.verdict])


def _show(found: Drill, restored: str | None) -> None:
    print(VERDICTS[found.verdict])
    if restored is not None:
        print(f"It was restored to {restored}.")
    titles = {
        "Populations in the copy": found.populations,
        "Recorded since the copy was made": found.lost,
        "Runs that saw a record which it lacks": found.runs,
        "Populations that saw one": found.places,
    }
    for title, rows in titles.items():
        if rows:
            table(title, [{name: _cell(value) for name, value in row.items()} for row in rows])
    for line in (*found.problems, *found.remarks):
        print(line)


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value
