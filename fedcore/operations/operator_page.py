"""The operator's page in the Prefect UI: the facts of `fedcore.operations.overview` as markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fedcore.operations.population_page import cell, sentences

MOST_CHANGES = 8  # of a deployment


def operator_page(
    facts: Mapping[str, Any], title: str, links: Mapping[str, str] | None = None, now: datetime | None = None
) -> str:
    """Markdown, what needs attention first.

    facts: as `overview` returns them; title: of the page; links: addresses of more, by what they show; now: UTC
    """
    moment = datetime.now(UTC) if now is None else now
    parts = [
        f"# {cell(title)}",
        "",
        f"{moment:%Y-%m-%d %H:%M} UTC. {_states(facts['states'])} For operators: do not publish this page.",
        "",
        *_alerts(facts["alerts"], facts["unread"]),
        "",
        "## Runs and budget",
        "",
        *_deployments(facts["deployments"]),
        *_going_on(facts["runs"]),
        "",
        "## What changed",
        "",
        *(line for one in facts["changes"] for line in _changes(one)),
        *([] if facts["changes"] else ["No deployment has two finished runs yet.", ""]),
    ]
    if links:
        parts += ["## More", "", *(f"- [{cell(what)}]({where})" for what, where in links.items())]
    return "\n".join(parts) + "\n"


def _states(states: Mapping[str, int]) -> str:
    if not states:
        return "No runs yet."
    return f"Runs: {', '.join(f'{many} {what}' for what, many in states.items())}."


def _alerts(alerts: Sequence[Mapping[str, str]], unread: Sequence[str]) -> list[str]:
    found = [f"- **{cell(one['what'])}** {sentences(one['remedy'])}".rstrip() for one in alerts]
    found += [f"- {sentences(words)}" for words in unread]
    if not found:
        return ["## Nothing needs attention"]
    return [f"## {len(found)} {'thing needs' if len(found) == 1 else 'things need'} attention", "", *found]


def _deployments(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A list: a table is wider than the screen of a telephone."""
    return [f"- **{cell(row['deployment'])}**: {cell(_in_words(row))}" for row in rows] or ["No deployments."]


def _in_words(row: Mapping[str, Any]) -> str:
    began = "" if row["last run"] is None else f", began {row['last run']} UTC"
    said = [f"{str(row['outcome']).rstrip('.')}{began}."]
    said += [f"Now: {row['now']}."] if row["now"] else []
    said += [f"Next start {row['next start']} UTC."] if row["next start"] else []
    if row["runs left"] is not None:
        days = row["days left"]
        lasts = "" if days is None else " (less than a day)" if days < 1 else f" ({days:g} days)"
        said.append(f"Runs left in the privacy budget, if no new clients come: {row['runs left']}{lasts}.")
    return " ".join(said)


def _going_on(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    running = [row for row in runs if row["status"] == "running"]
    return ["", *(f"- {cell(row['run'])}: running, {row['rounds']} rounds made" for row in running)] if running else []


def _changes(found: Mapping[str, Any]) -> list[str]:
    lines = [f"**{cell(found['deployment'])}**, run {cell(found['run'])}. {cell(found['said'])}", ""]
    for one in found["changes"][:MOST_CHANGES]:
        note = f" ({cell(one['note'])})" if one["note"] else ""
        values = " → ".join(cell(value) for value in (one["before"], one["now"]) if value)
        lines.append(f"- {cell(one['kind'])}: {cell(one['what'])}: {values}{note}")
    left = len(found["changes"]) - MOST_CHANGES
    return [*lines, *([f"- {left} more, in the report"] if left > 0 else []), ""]
