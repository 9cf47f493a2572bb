"""The table of commands: how each is called on a world, and what of it may differ between neighbouring worlds.

Every command of the command line is here, and every flow; `tests/audit/test_commands.py` fails for one that is not.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcore.population.store import Population
from fedcore.sites.identity import FILE, Identity
from fedcore.sites.study import Schema, write_study
from fedcore.storage.files import json_bytes
from tests.audit.neighbours import GMM, HISTOGRAMS, SHORT_GMM, World
from tests.audit.observing import Declared
from tests.sites.studies import study_of

Calls = Sequence[Sequence[object]]
JSON = "--json"
SCHEMA = "--public-schema 'made up'"

# Declared in docs/privacy/limitations.md; numbers are shown to operators.
TIMES = "times"
SIZES = "bytes on disk and in memory"
COUNTS = "numbers of clients, rows, tokens, entries, blocks and similar ids"
RAW = "the data, in the place that the caller names"

# Argued in docs/privacy/shared-ids.md.
SKETCHED = Declared("ledger.sqlite: fedcore_id_sketches", None, "the noisy sketch of ids in the ledger")

PROGRESS = r"(\{'completed': \d+, 'total': \d+\}\n?)+"  # one line for each block
# In what `population ingest` and `describe` say of a population. Stored sizes follow from how well data pack.
DESCRIBED = (
    Declared(
        "stdout",
        r'"?\b((heldout_)?(clients|tokens|rows|entries|blocks|clipped_values|alike_ids)|records_\w+)"?:? +\d+',
        COUNTS,
    ),
    Declared("stdout", r'"?\bbytes"?:? +\d+', SIZES),
)
STORED = (
    Declared("stdout", r'"?\bbytes(_copied|_present)?"?:? +\d+', SIZES),
    Declared("stdout", r'"?\b(blocks(_copied|_present)?|kept)"?:? +\d+', COUNTS),
    Declared("progress", PROGRESS, COUNTS),
)


def files_of(*places: str) -> tuple[Declared, ...]:
    """Blocks of a population, and chunks of outputs, are files: their number follows from that of clients and rows."""
    return tuple(
        Declared(f"{mode}{place}", None, COUNTS, may_lack=True) for place in places for mode in ("", "mode of ")
    )


# In a plan. What of the population's size it says is nominal.
PLANNED = (
    Declared("*", r'"(seconds\w*|client_seconds|pace|\w*_seconds|\w*_seconds_per_cell)": [-\d.e+]+', TIMES),
    Declared("*", r'"(\w*bytes\w*|server|server_half|whole|half)": [-\d.e+]+', SIZES),
    Declared("stdout", r"\bpace +\d[\d.e+-]*", TIMES),
    Declared("stdout", r"\b[\d,]+\.\d+ (s|MiB)( \([\d.]+ h\))?", TIMES),
    Declared("stdout", r"\b\d+\.\d+(e[-+]\d+)?\b|(?<= )\d+(?= \n)", TIMES),
    Declared("stdout", r'\{"what": "\w*(seconds|bytes)\w*".*?\}', TIMES),
    Declared("*report.html", r"promise\.json(?s:.*?)[\d.]+ KiB|report\.html(?s:.*?)[\d.]+ KiB", SIZES),
    Declared("*report.html", r"<tr><td>[\w ]*(seconds|bytes)[\w ]*</td>.*?</tr>", TIMES),
)


@dataclass(frozen=True)
class Command:
    """calls: the arguments of its calls on a world, one after the other; none if it needs no private population.
    may_differ: what may be another in a neighbouring world. because: why there are no calls, or what to know of them.
    exits: codes that the calls end with, if not 0.
    """

    calls: Callable[[World], Calls] | None = None
    may_differ: Sequence[Declared] = ()
    because: str = ""
    exits: Sequence[int] = ()


AT = ("--at", "2026-01-01T03:00:00Z")
RUN_TIMES = (
    Declared("*", r'"seconds": [\d.e-]+', TIMES),
    Declared("*", r'"(began|ended)": "[-\dTZ:]+"', TIMES),
    Declared("stdout", r"\d{8}T\d{6}Z", TIMES),
)


def lines(*texts: str) -> Callable[[World], Calls]:
    """Calls as a shell reads them; @NAME is a place of the world."""
    return lambda w: [[w / word[1:] if word[0] == "@" else word for word in shlex.split(text)] for text in texts]


def settings(values: dict) -> list[str]:
    return [part for name, value in values.items() for part in ("--set", f"{name}={_toml(value)}")]


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def _ingest(w: World) -> Calls:
    csv = ("--format", "csv", "--client", "client", "--token", "token", "--count", "count")
    made = ("--vocabulary", w / "vocabulary.txt", "--declared-clients", "1000")
    return (
        ("population", "ingest", w / "source.csv", w / "made", *csv, *made, JSON),
        ("budget", "set", w / "made", "--epsilon", "3", "--delta", "1e-6", *shlex.split(SCHEMA), JSON),
        ("population", "ingest", w / "more.csv", w / "made", *csv, "--append"),
        (
            *("population", "ingest", w / "source.csv", w / "made_of_rows", "--kind", "rows", "--columns", "count"),
            *("--bounds", "count=0:2", "--format", "csv", JSON),
        ),
    )


def _train(w: World) -> Calls:
    em = {"algorithm": "private", "covariance": "known", "components": 2, "rounds": 2, "epsilon": 1.0}
    start = ("--start-from", w / "start.npz", "--public-start", "made up")
    local, runs = ("--local", "--runs", w / "runs"), lambda name: ("--run-id", name)
    exact = w.folder / "runs" / "exact"
    return (
        ("train", "histograms", w / "counts", *settings(HISTOGRAMS), *local, *runs("aaa"), JSON),
        ("train", "federated_em", w / "rows", *settings(em), *start, *local, *runs("bbb")),
        ("train", "private_gmm", w / "points", *settings(SHORT_GMM), *local, *runs("ccc"), JSON),
        ("train", "histograms", w / "counts", *settings({"epsilon": 90.0}), *local, *runs("ddd"), JSON),
        ("train", "histograms", w / "counts", *settings(HISTOGRAMS), "--start-from", exact, *local, *runs("eee")),
        (
            *("train", "histograms", w / "counts", *settings({"rounds": 2, "epsilon": 1.0}), "--start-from", exact),
            *("--public-start", "ok", *local, *runs("fff")),
        ),
    )


def _mailbox(w: World) -> Path:
    """A mailbox with a study over `counts`, whose keys and seed are fixed. The folder `site` is that of a site."""
    place, site = Path(w / "mailbox"), Path(w / "site")
    if place.exists():
        return place
    for folder in (place, site):
        folder.mkdir()
    known = {}
    for number, name in enumerate(("a", "b"), 1):
        (site / FILE).write_bytes(json_bytes({"format": 1, "name": name, "secret": f"{number:064x}"}))
        (site / FILE).chmod(0o600)
        known[name] = Identity.load(site)
        if name == "a":
            (site / FILE).rename(site / "other.json")
    schema = Schema.of(Population.open(w / "counts"), "client", "add_or_remove_one")
    write_study(known["a"], study_of(known, schema=schema, rho=0.01), place)
    return place


def _join(w: World) -> Calls:
    asked = ("study", "join", str(_mailbox(w)), "--identity", w / "site", "--population")
    return (
        (*asked, w / "counts", "--runs", w / "runs", "--yes", JSON),
        (*asked, w / "counts", "--runs", w / "runs", "--yes"),
        (*asked, w / "points", "--yes"),
    )


def _plan(w: World) -> Calls:
    em = {"algorithm": "private", "covariance": "known", "components": 2, "rounds": 2, "epsilon": 1.0}
    short = ("--local", "--runs", w / "runs", "--calibration", "0.5")
    return (
        ("plan", "private_gmm", w / "points", *settings(GMM), *short, JSON),
        ("plan", "histograms", w / "counts", *settings(HISTOGRAMS), *short, "--save", w / "plan.json"),
        (
            *("plan", "federated_em", w / "rows", *settings(em), *short, JSON),
            *("--start-from", w / "start.npz", "--public-start", "made up", "--deadline", "1h"),
        ),
        ("plan", "histograms", w / "counts", *settings(HISTOGRAMS), *short, "--clients", "100000", JSON),
    )


COMMANDS: dict[str, Command] = {
    "population ingest": Command(
        _ingest,
        (
            *DESCRIBED,
            Declared("made/*", None, RAW),
            Declared("made_of_rows/*", None, RAW),
            SKETCHED,
            Declared("progress", PROGRESS, "rows read so far: " + COUNTS),
            Declared("stderr", r"\d+%", "rows read so far: " + COUNTS),
        ),
        "reads private files and writes them as a population; names and modes of its files are compared",
    ),
    "population sketch": Command(
        lines("population sketch @source.csv @schema.toml", "population sketch @source.csv --json"),
        (Declared("stderr", r"\b[\d,]+ (rows|missing|of [\d,]+|%)", COUNTS),),
        "reads the head of a table; the kind of a column is a vote of its values, which one row may decide",
    ),
    "population generate": Command(because="invents its clients"),
    "population describe": Command(lines("population describe @counts --json", "population describe @rows"), DESCRIBED),
    "population open-cohort": Command(because="copies a manifest and prints what `population describe` does"),
    "population vocabulary": Command(
        lines(
            "population vocabulary @words --epsilon 5 --json",
            "population vocabulary @words --private --epsilon 5 --delta 4e-8 --json",
            "population vocabulary @words --private --epsilon 3 --delta 1e-8",
            "population vocabulary @words --private --epsilon 90",
            "population vocabulary @words --private --delta 4e-7",
            "population vocabulary @words --out @words.txt",
        ),
        exits=(0, 0, 0, 2, 2, 0),
    ),
    "population encode": Command(
        lines(
            "population vocabulary @words --private --epsilon 1 --delta 1e-8",
            "population encode @words @encoded --json",
            "population encode @words @listed --vocabulary @vocabulary.txt",
            "population encode @encoded @again",
        ),
        (
            *DESCRIBED,
            *files_of("encoded/blocks/*", "listed/blocks/*"),
            Declared("encoded/*", None, RAW),
            Declared("listed/*", None, RAW),
            Declared("progress", PROGRESS, COUNTS),
        ),
        "writes private data to the place that the caller names",
        exits=(0, 0, 0, 2),
    ),
    "population forget": Command(
        because="its caller lists the clients; prints how many of them existed, for operators who may read the data"
    ),
    "population compact": Command(because="writes the same data again; prints a version and bytes freed"),
    "population verify": Command(lines("population verify @counts --json", "population verify @points"), STORED),
    "population copy": Command(
        lines("population copy @counts @copied --json", "population copy @counts @copied"),
        (*STORED, *files_of("copied/blocks/*"), Declared("copied/*", None, RAW)),
        "writes private data to the place that the caller names",
    ),
    "verify": Command(lines("verify @counts --json", "verify @runs/finished --json", "verify @runs/given"), STORED),
    "verify-statement": Command(
        lines(
            "verify-statement @runs/finished/statement.json --json",
            "verify-statement @runs/finished/statement.json",
            "verify-statement @runs/given/run.json",
        ),
        exits=(0, 0, 2),
    ),
    "budget set": Command(
        lines(
            f"budget set @bare --epsilon 2 --delta 1e-6 {SCHEMA} --shared-ids 'the same clients' --json",
            f"budget set @bare --epsilon 9 --delta 1e-6 {SCHEMA} --json",
        ),
        (SKETCHED,),
        exits=(0, 2),
    ),
    "budget raise": Command(
        lines("budget raise @bare --epsilon 3 --delta 1e-6", "budget raise @bare --epsilon 1 --delta 1e-6"),
        exits=(0, 2),
    ),
    "budget divide": Command(
        lines(
            "budget divide @bare --share a=1/3 --share b=.5 --json",
            "budget divide @bare --share b=.7",
            "budget divide @counts --share a=.9999",
        ),
        exits=(0, 2, 2),
    ),
    "budget public-schema": Command(lines("budget public-schema @bare 'words of a public dictionary'")),
    "budget shared-ids": Command(lines("budget shared-ids @bare", "budget shared-ids @bare 'row numbers' --json")),
    "budget accept-loss": Command(
        lines("budget accept-loss @bare --because 'nothing is lost' --runs @runs"), exits=(2,)
    ),
    "ledger backup": Command(
        lines("ledger backup @copy --json", "ledger backup @copy"),
        (Declared("copy", None, "the ledger, whose rows are compared"),),
    ),
    "ledger restore": Command(
        lines(
            "ledger backup @copy",
            "ledger restore @copy --check --runs @runs --json",
            "ledger restore @copy --runs @runs",
        ),
        (Declared("copy", None, "the ledger, whose rows are compared"),),
        exits=(0, 0, 2),
    ),
    "budget show": Command(lines("budget show @counts --json", "budget show @points", "budget show @bare")),
    "budget plan": Command(
        lines(
            "budget plan @counts --runs 3 --json", "budget plan @points --runs 2 --method private_gmm --set radius=60.0"
        )
    ),
    "methods": Command(because="reads no population"),
    "plan": Command(_plan, PLANNED, "may state what this machine takes for clients of such a shape, not for these"),
    "select": Command(
        lines(
            "select histograms @counts --try clusters=1,2 --local --json",
            "select federated_em @rows --set algorithm=private --try components=1,2 --local",
        ),
        because="compares non-private runs only; private ones are refused",
        exits=(2, 2),
    ),
    "train": Command(_train, exits=(0, 0, 0, 2, 2, 2)),
    "resume": Command(lines("resume @runs/broken --local", "resume @runs/broken --local --json"), exits=(0, 2)),
    "runs list": Command(lines("runs list --runs @runs --json", "runs list --runs ../series")),
    "runs show": Command(lines("runs show @runs/finished --json", "runs show @runs/given")),
    "runs abandon": Command(lines("runs abandon @runs/given --json", "runs abandon @runs/given"), exits=(0, 2)),
    "runs latest": Command(lines("runs latest --runs ../series", "runs latest --runs @runs --json")),
    "runs promote": Command(
        lines(
            "runs promote @series/older --json",
            "runs promote @runs/finished --deployment weekly --because so",
            "runs promote @runs/given --deployment weekly",
        ),
        exits=(0, 0, 2),
    ),
    "runs prune": Command(
        lines("runs prune --keep 1 --runs @series --dry-run --json", "runs prune --keep 1 --runs ../series")
    ),
    "runs outliers": Command(
        lines("runs outliers @runs/finished @counts --json"),
        because="lists clients of non-private runs only; a private run is refused",
        exits=(2,),
    ),
    "runs anomalies": Command(
        lines("runs anomalies @runs/finished @counts --json"),
        because="lists clients of non-private runs only; a private run is refused",
        exits=(2,),
    ),
    "report": Command(
        lines("report @runs/finished --json", "report @runs/finished --plan @plan.json --json"),
        PLANNED,
        "the plan that is kept with the run holds no exact number of the population",
    ),
    "export": Command(
        lines(
            "export @runs/finished @exported",
            "export @runs/finished @exported.json --json",
            "export @runs/finished @exported.npz",
            "export @runs/finished @exported.zarr",
            "export @runs/finished @exported.parquet --table profiles",
            "export @runs/finished @exported.joblib",
        ),
        because="writes the committed state of the run",
        exits=(0, 0, 0, 0, 0, 2),
    ),
    "predict": Command(
        lines("predict @runs/finished @counts @own", "predict @runs/finished @counts @own.csv --set prior_tokens=9"),
        (
            *files_of("own/*/c/*"),
            Declared("own*", None, RAW),
            Declared("stdout", r"\bclients +\d+", COUNTS),
            Declared("progress", PROGRESS, COUNTS),
        ),
        "writes each client's own output to the place that the caller names",
    ),
    "evaluate": Command(
        lines(
            "evaluate @runs/finished @public --local --json",
            "evaluate @runs/finished @counts --local",
            "evaluate @runs/finished @counts --not-private @scores.json --json",
        ),
        (Declared("scores.json", None, RAW), *(item for item in PLANNED if item.where == "*report.html")),
        "for a population that is not public, writes only to a file of the operator",
        exits=(0, 2, 0),
    ),
    "serve": Command(because="runs the training flows of a file; the flows are audited"),
    "up": Command(
        lines("up @deployments.toml --check", "up @deployments.toml --check --json"),
        because="without --check it ingests, sets budgets and serves as the commands of these names do",
    ),
    "down": Command(because="ends the process that `up` recorded; reads no population"),
    "status": Command(
        lines("status @runs --json", "status @runs"),
        because="reads records of runs and the ledger for operators, as `runs list` and `budget show` do",
    ),
    "deploy": Command(
        lines("deploy @deployments.toml", "deploy @deployments.toml --size-from-plan"),
        because="registers names with a server; refused without one; sizes are those of `plan`",
        exits=(2, 2),
    ),
    "pipeline show": Command(
        lines("pipeline show @pipelines.toml --at 2026-01-01T03:00:00Z --json", "pipeline show @pipelines.toml"),
        RUN_TIMES,
        "lists new files and their invalid rows, for operators who may read them",
    ),
    "pipeline run": Command(
        lines("pipeline run @pipelines.toml audit --local --at 2026-01-01T03:00:00Z --json"),
        RUN_TIMES,
        "ingests, forgets, trains and exports as the commands of these names do",
    ),
    "watch": Command(
        lines("watch @deployments.toml --once"),
        because="reads records of runs and contacts a server; refused without one",
        exits=(2,),
    ),
    "backfill": Command(
        lambda w: tuple(
            ("backfill", w / "deployments.toml", name, "--versions", "1", "--dry-run") for name in ("nightly", "weekly")
        ),
        because="counts runs that fit by the ledger; without --dry-run it starts the audited flows",
        exits=(0, 0),
    ),
    "reproduce": Command(because="simulates its clients or reads public benchmarks; nothing in it is private"),
    "demo": Command(because="makes its population of the machine's Python packages; then runs `train` and `evaluate`"),
    "site init": Command(because="draws the key of a site; reads no population"),
    "site serve": Command(
        because="makes runs as `train` does; `tests/sites/test_serve.py` compares what sites post of neighbours"
    ),
    "study new": Command(because="reads a manifest and a budget, and draws the seed of the study; no data are open"),
    "study join": Command(
        _join,
        because="prints what follows from the study, declared sizes and the budget; no data are open",
        exits=(0, 0, 2),
    ),
    "study show": Command(
        lambda w: [("study", "show", str(_mailbox(w)), JSON), ("study", "show", str(_mailbox(w)))],
        because="reads the mailbox only",
    ),
    "budget cohorts": Command(
        lines("budget cohorts @counts --json", "budget cohorts @counts", "budget cohorts @bare"),
        (Declared("*/versions/*", None, COUNTS),),
        "writes a manifest, next to the data",
    ),
}


def rows(table: Mapping[str, Command]) -> list[str]:
    """The lines of the table of docs/notes/privacy-audits.md: command, calls, what may differ, what to know."""
    lines = []
    for name, command in table.items():
        differ = "; ".join(dict.fromkeys(item.because for item in command.may_differ)) or "nothing"
        calls = "" if command.calls is None else "yes"
        lines.append(f"| `{name}` | {calls or 'no'} | {differ if calls else ''} | {command.because} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows(COMMANDS)))
