"""Formats of files and of `--json`: what the code declares, and what commands print and write in a small world."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from fedcore.operations.deployment import DeploymentFile
from fedcore.population.ingest.request import OLD_NAMES
from fedcore.population.ingest.schema import Schema
from fedcore.population.manifest import Manifest
from fedcore.privacy.ledger import tables
from fedcore.privacy.statement import PrivacyStatement
from fedcore.runs import digests
from fedcore.sites.identity import Identity
from fedcore.sites.mailbox import Header, Kind
from fedcore.sites.study import Study
from fedcore.storage import arrays
from tests.audit.commands import COMMANDS, JSON
from tests.audit.neighbours import World, build_world, in_world
from tests.command import fedcore
from tests.stability.names import all_commands

MODELS = {"manifest": Manifest, "schema file": Schema, "deployment file": DeploymentFile, "study": Study}
# Whose keys are names of settings, metrics, packages, columns, files or schedules.
OPEN = {"settings", "config", "metrics", "software", "options", "schema", "kinds", "columns", "records", "states"}
OPEN |= {"files", "pipelines", "table", "shares", "releases", "best", "rounds_answered"}
NAME = re.compile(r"[a-z][a-z_]*")
FILES = {
    "run.json": "runs/*/run.json",
    "head.json": "runs/*/head.json",
    "statement.json": "runs/*/statement.json",
    "result.json": "runs/*/result.json",
    "comparison.json": "*/*/comparison.json",
    "latest-NAME.json": "*/latest-*.json",
    "plan": "plan.json",
    "ledger-head.json": "*/ledger-head.json",
    "digests.json": "*/blocks/*/digests.json",
    "about.json of outputs": "*.about.json",
    "export in JSON": "exported.json",
    "study.json": "mailbox/study.json",
    "identity.json": "site/*.json",
}
NOT_SAMPLED = {
    "down": "needs a process of `up`",
    "watch": "needs a Prefect server",
    "deploy": "needs a Prefect server",
    "reproduce": "makes tables of papers, for minutes",
    "site serve": "prints what `runs show` does of each run",
    "runs outliers": "a list for operators, by method",
    "budget accept-loss": "needs a ledger that was restored; prints what `budget show` does",
}


# --- what the code declares -------------------------------------------------------------------------------------------


def declared() -> dict[str, str]:
    found = {"ledger schema": str(tables.SCHEMA), "run.json schema": str(digests.SCHEMA)}
    found |= {"arrays schema": str(arrays.SCHEMA)}
    found |= {f"option of an ingest, old name {old}": new for old, new in OLD_NAMES.items()}
    for title, model in MODELS.items():
        schema = model.model_json_schema()
        for name, definition in {title: schema, **schema.get("$defs", {})}.items():
            where = title if name == title else f"{title} {name}"
            for key, item in definition.get("properties", {}).items():
                found[f"{where}.{key}"] = type_of(item) + (
                    "" if key in definition.get("required", ()) else ", optional"
                )
    found |= {f"statement.{one.name}": str(one.type) for one in fields(PrivacyStatement)}
    for kind in get_args(Kind):
        header = Header(b"", 1, int(kind == "answer"), "SITE", kind)
        found[f"mailbox file {kind}"] = f"{header.name}, signed {' '.join(json.loads(header.line(b'')))}"
    for table in tables.metadata.sorted_tables:
        for column in table.columns:
            found[f"ledger {table.name}.{column.name}"] = f"{column.type}{'' if column.nullable else ', not null'}"
    return found


def type_of(item: dict[str, Any]) -> str:
    if "$ref" in item:
        return item["$ref"].rpartition("/")[2]
    if choices := item.get("anyOf") or item.get("oneOf") or item.get("allOf"):
        return " or ".join(dict.fromkeys(map(type_of, choices)))
    if "enum" in item or "const" in item:
        return " or ".join(map(repr, item.get("enum", [item.get("const")])))
    kind = item.get("type", "any")
    return f"{kind} of {type_of(item['items'])}" if isinstance(item.get("items"), dict) else str(kind)


# --- what commands print and write ------------------------------------------------------------------------------------


def more_calls(w: World) -> dict[str, list[list[object]]]:
    """Calls that the table of the audit has not, by command, in an order in which they can be made."""
    forgotten, runs = w.folder / "forgotten.txt", ("--runs", w / "runs")
    forgotten.write_text("c1\n")
    em = ["federated_em", w / "rows", "--set", "components=2", "--local", *runs, "--run-id", "exact-em"]
    sites = {"a": Identity.create("a", w.folder / "other-site"), "b": Identity.load(w.folder / "site")}
    study = [w / "new.json", "--method", "histograms", "--population-like", w / "made", "--epsilon-a-run", "0.2"]
    study += [part for name, one in sites.items() for part in ("--site", f"{name}={one.public.hex()}:1000")]
    return {
        "methods": [[], ["histograms"]],
        "population generate": [["reddit-like", w / "invented", "--clients", "20"]],
        "train": [em],
        "runs anomalies": [[w / "runs/exact-em", w / "rows"]],
        "select": [["federated_em", w / "rows", "--try", "components=1,2", "--local", *runs]],
        "population forget": [[w / "public", "--clients", forgotten]],
        "population compact": [[w / "public"]],
        "population open-cohort": [[w / "counts"]],
        "site init": [["a", "--identity", w / "new-site"]],
        "study new": [[*study, "--identity", w / "site", "--mailbox", w / "new-mailbox"]],
    }


@cache
def sampled() -> tuple[dict[str, str], dict[str, str], set[str]]:
    """Fields of `--json` by command, fields of files, and commands that were made: those of the audit's table and more,
    in one of its worlds."""
    speaks = {name.removeprefix("fedcore ") for name, one in all_commands() if any(JSON in p.opts for p in one.params)}
    with TemporaryDirectory() as folder:
        published: dict = {}
        world = build_world(Path(folder) / "world", "one", published)
        calls = [(name, call) for name, one in COMMANDS.items() if one.calls for call in one.calls(world)]
        calls += [(name, [*name.split(), *call]) for name, some in more_calls(world).items() for call in some]
        printed: dict[str, set[str]] = {}
        for name, call in calls:
            with in_world(world, published):
                ended = fedcore(*call, *([JSON] if name in speaks and JSON not in call else []))
            if name in speaks and ended.out:
                add(printed, "an error" if ended.code and "error" in ended.json else name, [ended.json])
        files: dict[str, set[str]] = {}
        for name, pattern in FILES.items():
            add(files, name, (json.loads(text) for path in world.folder.glob(pattern) for text in documents(path)))
        with closing(sqlite3.connect(world.folder / "ledger.sqlite")) as connection:
            for kind, payload in connection.execute("SELECT kind, payload FROM fedcore_records"):
                add(files, f"ledger record {kind}", [json.loads(payload)])
        files |= {f"run folder: {path.name}": set() for path in world.folder.glob("runs/*/*")}
        for kind in ("counts", "rows", "words"):
            groups = (path.parent.relative_to(world.folder / kind) for path in (world.folder / kind).rglob("zarr.json"))
            files |= {f"population of {kind}: {re.sub(r'v[0-9-]+', 'SLOT', str(group))}": set() for group in groups}
    return joined(printed), joined(files), {key.partition(".")[0] for key in printed}


def documents(path: Path) -> list[str]:
    return path.read_text().splitlines()[:1] if path.suffix == ".jsonl" else [path.read_text()]


def add(found: dict[str, set[str]], name: str, values: Iterable[Any]) -> None:
    for value in values:
        for place, kind in shape(value, name):
            if place != name:
                found.setdefault(place, set()).add(kind)


def joined(found: dict[str, set[str]]) -> dict[str, str]:
    return {name: "|".join(sorted(kinds)) for name, kinds in found.items()}


def shape(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """(place, type) of every field. A list is as its items are; keys that are data, such as names of settings, are not
    looked into."""
    if isinstance(value, dict):
        yield place, "object"
        whole = place.rpartition(".")[2] in OPEN or not all(NAME.fullmatch(key) for key in value)
        for key, one in value.items():
            if not whole:
                yield from shape(one, f"{place}.{key}")
    elif isinstance(value, list):
        yield place, "array"
        for one in value:
            yield from shape(one, f"{place}[]")
    else:
        kinds = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
        yield place, kinds[type(value)]
