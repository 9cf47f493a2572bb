"""`fedcore population sketch`: what is printed of a draft, and the questions of `--interactive`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date
from typing import Any

import typer

from fedcore.population.ingest.sketch import Draft, unit_of
from fedcore.population.words import OTHER

NONE = "-"


def show(draft: Draft) -> None:
    """What each column is and which values do not fit, on stderr: counts of the operator's, which go into no file."""
    width = max((len(one.name) for one in draft.verdicts), default=0)
    print(f"What the first {draft.rows:,} rows hold (for you alone, not in the draft):", file=sys.stderr)
    for one in draft.verdicts:
        what = "client; " if one.name == draft.table.get("client") else ""
        either = "; day and month could be the other way round" if one.either else ""
        either += f"; {one.unclear!r} could also be between thousands, as in 1{one.unclear}234" if one.unclear else ""
        print(f"  {one.name:<{width}}  {what}{one.in_words}{either}", file=sys.stderr)


def show_open(draft: Draft) -> None:
    """What is still to be filled in, one line for each."""
    for one in draft.asks():
        usual = one.get("usual")
        names = {"client": "the column of the client", "values": "its public list of values", "bounds": "bounds"}
        shown = ", ".join(map(str, usual)) if usual else ""
        usually = "" if not shown else f" (likely: {shown})" if one["key"] == "client" else f" (usual: {shown})"
        print(f"To fill in: {one['column'] or '[table]'}: {names[one['key']]}{usually}", file=sys.stderr)


def ask(draft: Draft) -> None:
    """Fills in a draft by questions on the terminal. An empty answer takes what is in brackets."""
    print("Answer from public facts, not from the data. `-` leaves a question open.", file=sys.stderr)
    _ask_client(draft)
    clients = _prompt("About how many clients are there, as far as that is public?", NONE, _whole)
    if clients is not None:
        draft.table["declared_clients"] = clients
    for one in draft.verdicts:
        if one.either and one.name in draft.columns:
            _ask_order(draft, one.name)
        if one.unclear and one.name in draft.columns:
            _ask_mark(draft, one.name, one.unclear)
    asked = [open_one for open_one in draft.asks() if open_one["column"] is not None]
    outside = other = None
    for open_one in asked:
        name, said = open_one["column"], draft.columns[open_one["column"]]
        if open_one["key"] == "values":
            values = _prompt(f"{name}: its public list of values, with commas between them", NONE, _values)
            if values is None:
                del draft.columns[name]
                continue
            if OTHER not in values:
                other = other or _choice("A value that is in no such list becomes", ("other", "missing", "invalid"))
                values += [OTHER] * (other == "other")
                said |= {} if other == "other" else {"outside": other}
            said["values"] = values
            continue
        usual = " ".join(map(str, open_one["usual"])) if open_one["usual"] else NONE
        bounds = _prompt(
            f"{name}: lowest and highest value that is possible", usual, _dates if "date" in said else _numbers
        )
        if bounds is not None:
            outside = outside or _choice("A value out of bounds becomes", ("missing", "clip", "invalid"))
            said |= {"bounds": bounds, "outside": outside}
            if "date" not in said and unit_of(name) and bounds == open_one["usual"]:
                said["unit"] = unit_of(name)


def _ask_client(draft: Draft) -> None:
    likely = draft.clients
    names = [one.name for one in draft.verdicts]

    def column(given: str) -> str:
        if given not in (*names, "record"):
            raise typer.BadParameter(f"There is no column {given!r}.")
        return given

    question = "Which column says whose a row is? `record`: none does, each row is protected by itself"
    usual = str(draft.table.get("client") or (likely[0] if likely else "record"))
    given = _prompt(question, usual, column)
    if given is not None and given != draft.table.get("client"):
        draft.name_client(None if given == "record" else given)


def _ask_order(draft: Draft, name: str) -> None:
    formats = draft.columns[name].get("formats", [])
    if _choice(f"{name}: what comes first, in a date like 01/02/2020?", ("day", "month")) == "month":
        swapped = [one.replace("%d", "%_").replace("%m", "%d").replace("%_", "%m") for one in formats]
        draft.columns[name]["formats"] = [
            swap if one[:2] in ("%d", "%m") and "%m" in one else one for one, swap in zip(formats, swapped, strict=True)
        ]


def _ask_mark(draft: Draft, name: str, mark: str) -> None:
    said = draft.columns[name]
    usual = ("thousands", "decimal") if said.get("thousands") == mark else ("decimal", "thousands")
    if _choice(f"{name}: what is the mark in a number like 1{mark}234?", usual) != usual[0]:
        said.pop("thousands", None)
        said |= {"decimal": mark} if usual[0] == "thousands" else {"decimal": ",."[mark == ","], "thousands": mark}


# --- answers ----------------------------------------------------------------------------------------------------------


def _prompt(question: str, usual: str, read: Callable[[str], Any]) -> Any:
    """The answer; None for `-`."""
    return typer.prompt(
        question,
        default=usual,
        err=True,
        value_proc=lambda given: None if given.strip() == NONE else read(given.strip()),
    )


def _choice(question: str, choices: tuple[str, ...]) -> str:
    def read(given: str) -> str:
        if given not in choices:
            raise typer.BadParameter(f"Answer one of {', '.join(choices)}.")
        return given

    return str(_prompt(f"{question} ({', '.join(choices)})", choices[0], read) or choices[0])


def _whole(given: str) -> int:
    try:
        number = int(given)
    except ValueError:
        number = 0
    if number < 1:
        raise typer.BadParameter("Give a whole number from 1, or -.")
    return number


def _values(given: str) -> list[str]:
    values = [one.strip() for one in given.split(",")]
    if "" in values or len(set(values)) < len(values) or OTHER in values[:-1]:
        raise typer.BadParameter("A value is empty or there twice.")
    return values


def _pair(given: str) -> list[str]:
    pair = given.replace(",", " ").replace(":", " ").split()
    if len(pair) != 2:
        raise typer.BadParameter("Give two values, the lower one first, such as 0 120.")
    return pair


def _numbers(given: str) -> list[float]:
    try:
        low, high = (float(one) for one in _pair(given))
    except ValueError:
        low = high = 0.0
    if not -float("inf") < low < high < float("inf"):
        raise typer.BadParameter("Give two numbers, the lower one first, such as 0 120.")
    return [int(one) if one.is_integer() else one for one in (low, high)]


def _dates(given: str) -> list[str]:
    try:
        low, high = (date.fromisoformat(one) for one in _pair(given))
    except ValueError:
        low = high = date.min
    if not low < high:
        raise typer.BadParameter("Give two dates, the earlier one first, such as 2000-01-01 2030-12-31.")
    return [low.isoformat(), high.isoformat()]
