"""The table of commands: how each is called on a world, and what of it may differ between neighbouring worlds.

Every command of the command line is here, and every flow; `tests/audit/test_commands.py` fails for one that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.audit.neighbours import GMM, HISTOGRAMS, SHORT_GMM, World
from tests.audit.observing import Declared

Calls = Sequence[Sequence[object]]
JSON = "--json"
SCHEMA = ("--public-schema", "made up")
SHARED = ("--shared-ids", "the same clients")

TIMES = "times, which limitations.md declares"
SIZES = "bytes on disk and in memory, which limitations.md declares"
COUNTS = (
    "clients, rows or tokens, entries, blocks and like ids of a population, for operators: limitations.md declares them"
)
RAW = "the data themselves, in the place that was asked for"

SKETCHED = Declared(
    "ledger.sqlite: fedcore_id_sketches", None, "the noisy sketch of ids in the ledger, which shared-ids.md argues for"
)

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


def settings(values: dict) -> list[str]:
    return [part for name, value in values.items() for part in ("--set", f"{name}={_toml(value)}")]


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def _ingest(w: World) -> Calls:
    csv = ("--format", "csv", "--client", "client", "--token", "token", "--count", "count")
    made = ("--vocabulary", w / "vocabulary.txt", "--nominal-clients", "1000")
    return (
        ("population", "ingest", w / "source.csv", w / "made", *csv, *made, JSON),
        ("budget", "set", w / "made", "--epsilon", "3", "--delta", "1e-6", *SCHEMA, JSON),
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


def _promote(w: World) -> Calls:
    return (
        ("runs", "promote", w / "series/older", JSON),
        ("runs", "promote", w / "runs/finished", "--deployment", "weekly", "--because", "so"),
        ("runs", "promote", w / "runs/given", "--deployment", "weekly"),
    )


def _evaluate(w: World) -> Calls:
    return (
        ("evaluate", w / "runs/finished", w / "public", "--local", JSON),
        ("evaluate", w / "runs/finished", w / "counts", "--local"),
        ("evaluate", w / "runs/finished", w / "counts", "--not-private", w / "scores.json", JSON),
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
        lambda w: (
            ("population", "sketch", w / "source.csv", w / "schema.toml"),
            ("population", "sketch", w / "source.csv"),
        ),
        because="reads names and kinds of the head of a table; whether a column is of numbers may follow from one row",
    ),
    "population generate": Command(because="invents its clients"),
    "population describe": Command(
        lambda w: (("population", "describe", w / "counts", JSON), ("population", "describe", w / "rows")), DESCRIBED
    ),
    "population open-cohort": Command(because="copies a manifest and prints what `population describe` does"),
    "population check-ids": Command(
        because="compares ids, copies a manifest and prints counts of them, and ids where --show asks for them"
    ),
    "population vocabulary": Command(
        lambda w: (
            ("population", "vocabulary", w / "words", "--epsilon", "5", JSON),
            ("population", "vocabulary", w / "words", "--private", "--epsilon", "5", "--delta", "4e-8", JSON),
            ("population", "vocabulary", w / "words", "--private", "--epsilon", "3", "--delta", "1e-8"),
            ("population", "vocabulary", w / "words", "--private", "--epsilon", "90"),
            ("population", "vocabulary", w / "words", "--private", "--delta", "4e-7"),
            ("population", "vocabulary", w / "words", "--out", w / "words.txt"),
        ),
        exits=(0, 0, 0, 2, 2, 0),
    ),
    "population encode": Command(
        lambda w: (
            ("population", "vocabulary", w / "words", "--private", "--epsilon", "1", "--delta", "1e-8"),
            ("population", "encode", w / "words", w / "encoded", JSON),
            ("population", "encode", w / "words", w / "listed", "--vocabulary", w / "vocabulary.txt"),
            ("population", "encode", w / "encoded", w / "again"),
        ),
        (
            *DESCRIBED,
            *files_of("encoded/blocks/*", "listed/blocks/*"),
            Declared("encoded/*", None, RAW),
            Declared("listed/*", None, RAW),
            Declared("progress", PROGRESS, COUNTS),
        ),
        "writes private data where it is told to",
        exits=(0, 0, 0, 2),
    ),
    "population forget": Command(
        because="is told whom by its caller, and says how many of them were there, to whoever may read the data"
    ),
    "population compact": Command(because="writes the same data again; prints a version and bytes freed"),
    "population verify": Command(
        lambda w: (("population", "verify", w / "counts", JSON), ("population", "verify", w / "points")), STORED
    ),
    "population copy": Command(
        lambda w: (
            ("population", "copy", w / "counts", w / "copied", JSON),
            ("population", "copy", w / "counts", w / "copied"),
        ),
        (*STORED, *files_of("copied/blocks/*"), Declared("copied/*", None, RAW)),
        "writes private data where it is told to",
    ),
    "verify": Command(
        lambda w: (("verify", w / "counts", JSON), ("verify", w / "runs/finished", JSON), ("verify", w / "runs/given")),
        STORED,
    ),
    "verify-statement": Command(
        lambda w: (
            ("verify-statement", w / "runs/finished/statement.json", JSON),
            ("verify-statement", w / "runs/finished/statement.json"),
            ("verify-statement", w / "runs/given/run.json"),
        ),
        exits=(0, 0, 2),
    ),
    "budget set": Command(
        lambda w: (
            ("budget", "set", w / "bare", "--epsilon", "2", "--delta", "1e-6", *SCHEMA, *SHARED, JSON),
            ("budget", "set", w / "bare", "--epsilon", "9", "--delta", "1e-6", *SCHEMA, JSON),
        ),
        (SKETCHED,),
        exits=(0, 2),
    ),
    "budget raise": Command(
        lambda w: (
            ("budget", "raise", w / "bare", "--epsilon", "3", "--delta", "1e-6"),
            ("budget", "raise", w / "bare", "--epsilon", "1", "--delta", "1e-6"),
        ),
        exits=(0, 2),
    ),
    "budget divide": Command(
        lambda w: (
            ("budget", "divide", w / "bare", "--share", "a=1/3", "--share", "b=.5", JSON),
            ("budget", "divide", w / "bare", "--share", "b=.7"),
            ("budget", "divide", w / "counts", "--share", "a=.9999"),
        ),
        exits=(0, 2, 2),
    ),
    "budget public-schema": Command(
        lambda w: (("budget", "public-schema", w / "bare", "words of a public dictionary"),)
    ),
    "budget shared-ids": Command(
        lambda w: (("budget", "shared-ids", w / "bare"), ("budget", "shared-ids", w / "bare", "row numbers", JSON))
    ),
    "budget accept-loss": Command(
        lambda w: (("budget", "accept-loss", w / "bare", "--because", "nothing is lost", "--runs", w / "runs"),),
        exits=(2,),
    ),
    "ledger backup": Command(
        lambda w: (("ledger", "backup", w / "copy", JSON), ("ledger", "backup", w / "copy")),
        (Declared("copy", None, "the ledger, whose rows are compared"),),
    ),
    "ledger restore": Command(
        lambda w: (
            ("ledger", "backup", w / "copy"),
            ("ledger", "restore", w / "copy", "--check", "--runs", w / "runs", JSON),
            ("ledger", "restore", w / "copy", "--runs", w / "runs"),
        ),
        (Declared("copy", None, "the ledger, whose rows are compared"),),
        exits=(0, 0, 2),
    ),
    "budget show": Command(
        lambda w: (
            ("budget", "show", w / "counts", JSON),
            ("budget", "show", w / "points"),
            ("budget", "show", w / "bare"),
        )
    ),
    "budget plan": Command(
        lambda w: (
            ("budget", "plan", w / "counts", "--runs", "3", JSON),
            ("budget", "plan", w / "points", "--runs", "2", "--method", "private_gmm", "--set", "radius=60.0"),
        )
    ),
    "methods": Command(because="reads no population"),
    "plan": Command(_plan, PLANNED, "may say what this machine takes for clients of such a shape, not for these"),
    "select": Command(
        lambda w: (
            ("select", "histograms", w / "counts", "--try", "clusters=1,2", "--local", JSON),
            ("select", "federated_em", w / "rows", "--set", "algorithm=private", "--try", "components=1,2", "--local"),
        ),
        because="compares runs that are not private only: private ones are refused",
        exits=(2, 2),
    ),
    "train": Command(_train, exits=(0, 0, 0, 2, 2, 2)),
    "resume": Command(
        lambda w: (("resume", w / "runs/broken", "--local"), ("resume", w / "runs/broken", "--local", JSON)),
        exits=(0, 2),
    ),
    "runs list": Command(
        lambda w: (("runs", "list", "--runs", w / "runs", JSON), ("runs", "list", "--runs", "../series"))
    ),
    "runs show": Command(lambda w: (("runs", "show", w / "runs/finished", JSON), ("runs", "show", w / "runs/given"))),
    "runs abandon": Command(
        lambda w: (("runs", "abandon", w / "runs/given", JSON), ("runs", "abandon", w / "runs/given")), exits=(0, 2)
    ),
    "runs latest": Command(
        lambda w: (("runs", "latest", "--runs", "../series"), ("runs", "latest", "--runs", w / "runs", JSON))
    ),
    "runs promote": Command(_promote, exits=(0, 0, 2)),
    "runs prune": Command(
        lambda w: (
            ("runs", "prune", "--keep", "1", "--runs", w / "series", "--dry-run", JSON),
            ("runs", "prune", "--keep", "1", "--runs", "../series"),
        )
    ),
    "runs outliers": Command(
        lambda w: (("runs", "outliers", w / "runs/finished", w / "counts", JSON),),
        because="names clients, of runs that are not private only: a private run is refused",
        exits=(2,),
    ),
    "runs anomalies": Command(
        lambda w: (("runs", "anomalies", w / "runs/finished", w / "counts", JSON),),
        because="names clients, of runs that are not private only: a private run is refused",
        exits=(2,),
    ),
    "report": Command(
        lambda w: (
            ("report", w / "runs/finished", JSON),
            ("report", w / "runs/finished", "--plan", w / "plan.json", JSON),
        ),
        PLANNED,
        "the plan that is kept with the run says nothing exact of the population",
    ),
    "export": Command(
        lambda w: (
            ("export", w / "runs/finished", w / "exported"),
            ("export", w / "runs/finished", w / "exported.json", JSON),
            ("export", w / "runs/finished", w / "exported.npz"),
            ("export", w / "runs/finished", w / "exported.zarr"),
            ("export", w / "runs/finished", w / "exported.parquet", "--table", "profiles"),
            ("export", w / "runs/finished", w / "exported.joblib"),
        ),
        because="writes what is committed of the run",
        exits=(0, 0, 0, 0, 0, 2),
    ),
    "personalise": Command(
        lambda w: (
            ("personalise", w / "runs/finished", w / "counts", w / "own"),
            ("personalise", w / "runs/finished", w / "counts", w / "own.csv", "--set", "prior_tokens=9"),
        ),
        (
            *files_of("own/*/c/*"),
            Declared("own*", None, RAW),
            Declared("stdout", r"\bclients +\d+", COUNTS),
            Declared("progress", PROGRESS, COUNTS),
        ),
        "writes each client's own output where it is told to",
    ),
    "evaluate": Command(
        _evaluate,
        (Declared("scores.json", None, RAW), *(item for item in PLANNED if item.where == "*report.html")),
        "of a population that is not public into a file of the operator only",
        exits=(0, 2, 0),
    ),
    "serve": Command(because="runs the training flows of a file; the flows are audited"),
    "deploy": Command(
        lambda w: (("deploy", w / "deployments.toml"), ("deploy", w / "deployments.toml", "--size-from-plan")),
        because="registers names with a server: refused without; sizes are those that `plan` says",
        exits=(2, 2),
    ),
    "pipeline show": Command(
        lambda w: (("pipeline", "show", w / "pipelines.toml", *AT, JSON), ("pipeline", "show", w / "pipelines.toml")),
        RUN_TIMES,
        "names new files, and rows of them that are bad, to whoever may read them",
    ),
    "pipeline run": Command(
        lambda w: (("pipeline", "run", w / "pipelines.toml", "audit", "--local", *AT, JSON),),
        RUN_TIMES,
        "ingests, forgets, trains and exports as the commands of these names do",
    ),
    "watch": Command(
        lambda w: (("watch", w / "deployments.toml", "--once"),),
        because="reads records of runs and asks a server: refused without",
        exits=(2,),
    ),
    "backfill": Command(
        lambda w: tuple(
            ("backfill", w / "deployments.toml", name, "--versions", "1", "--dry-run") for name in ("nightly", "weekly")
        ),
        because="counts runs that fit by the ledger; without --dry-run the flows do the rest",
        exits=(0, 0),
    ),
    "reproduce": Command(because="simulates its clients or reads public benchmarks; nothing in it is private"),
    "demo": Command(
        because="makes its population of the machine's Python packages; `train` and `evaluate` then do the rest"
    ),
    "demo series": Command(because="invents its clients"),
    "budget cohorts": Command(
        lambda w: (
            ("budget", "cohorts", w / "counts", JSON),
            ("budget", "cohorts", w / "counts"),
            ("budget", "cohorts", w / "bare"),
        ),
        (Declared("*/versions/*", None, COUNTS),),
        "writes a manifest, beside the data",
    ),
}


def rows(table: Mapping[str, Command]) -> list[str]:
    """The lines of the table of docs/privacy/audits.md: command, calls, what may differ, what to know."""
    lines = []
    for name, command in table.items():
        differ = "; ".join(dict.fromkeys(item.because for item in command.may_differ)) or "nothing"
        calls = "" if command.calls is None else "yes"
        lines.append(f"| `{name}` | {calls or 'no'} | {differ if calls else ''} | {command.because} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows(COMMANDS)))
