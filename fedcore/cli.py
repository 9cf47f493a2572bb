"""The command line. The only file of fedcore that loads `flows` and `tasks`, by name and only when a command needs
them, so that `--help` is quick.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from fedcore.errors import ConfigError, FedcoreError
from fedcore.terminal import bar, format_options, parse_bytes, read_settings, say, table

app = typer.Typer(name="fedcore", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Federated, private, unsupervised learning over populations too large for memory.")  # fmt: skip
population_app = typer.Typer(no_args_is_help=True, help="Make and inspect populations of clients.")
runs_app = typer.Typer(no_args_is_help=True, help="List, show and give up runs.")
budget_app = typer.Typer(no_args_is_help=True, help="The privacy budget of a population.")
app.add_typer(population_app, name="population")
app.add_typer(runs_app, name="runs")
app.add_typer(budget_app, name="budget")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, nothing else.")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of the runs.")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; repeatable.")]
Cache = Annotated[str, typer.Option("--cache", help="Decoded blocks that each process may keep, e.g. 512MiB.")]
Ledger = Annotated[str | None, typer.Option("--ledger", help="URL of the ledger, if it was moved; else FEDCORE_LEDGER "
                                            "or what the population names.")]  # fmt: skip
PopulationArgument = Annotated[str, typer.Argument(metavar="POPULATION", help="Folder or URL of the population.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, max=256, help="Dask worker processes (default 2).")]
Dask = Annotated[str | None, typer.Option("--dask", metavar="ADDRESS", help="A running Dask scheduler.")]
Local = Annotated[bool, typer.Option("--local", help="The same rounds without Prefect; in this process unless "
                                     "--workers or --dask is given.")]  # fmt: skip


def main() -> None:
    """Run the command line. A user's mistake is one message and exit code 2."""
    try:
        app()
    except FedcoreError as error:
        fail(error, "--json" in sys.argv)


def fail(error: FedcoreError, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": error.message, "remedy": error.remedy}))
    print(f"{type(error).__name__}: {error.message}", file=sys.stderr)
    if error.remedy:
        print(error.remedy, file=sys.stderr)
    raise SystemExit(2)


# --- small helpers --------------------------------------------------------------------------------------------------


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S")


def open_population(path: str, version: int | None = None):
    from fedcore.population.store import Population

    return Population.open(path, version=version)


def use_ledger(url: str | None) -> None:
    """Name the ledger for this process and its children."""
    if url is not None:
        os.environ["FEDCORE_LEDGER"] = url


# --- populations ----------------------------------------------------------------------------------------------------


@population_app.command("ingest")
def population_ingest(
    source: Annotated[str, typer.Argument(help="File, folder or pattern to read.")],
    dest: Annotated[str, typer.Argument(help="Folder of the population to make.")],
    format: Annotated[str | None, typer.Option(help="csv, parquet, npz, npy, or text; guessed by default.")] = None,
    kind: Annotated[str | None, typer.Option(help="counts or rows; guessed by default.")] = None,
    client: Annotated[str | None, typer.Option(help="Column (or array) that names the client.")] = None,
    token: Annotated[str | None, typer.Option(help="Column of the token (counts).")] = None,
    count: Annotated[str | None, typer.Option(help="Column of the count (counts).")] = None,
    vocabulary: Annotated[Path | None, typer.Option(help="File with one token a line.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Option of the format, "
                      "such as prefix=train or heldout_prefix=test; repeatable.")] = None,
    append: Annotated[bool, typer.Option("--append", help="Add to an existing population: a new version.")] = False,
    memory: Annotated[str, typer.Option(help="Peak memory to stay below.")] = "512MiB",
    tolerance: Annotated[int, typer.Option(min=0, help="Bad rows to drop before giving up.")] = 0,
    nominal_clients: Annotated[int | None, typer.Option(min=1, help="Public size to plan private runs with.")] = None,
    public_for_evaluation: Annotated[str | None, typer.Option(metavar="REASON", help="Declare that this population is "
                                     "public and may be evaluated on, and why.")] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Turn files into a population: whole clients in blocks, whatever the order and size of the input."""
    from fedcore.budgets import ledger_name
    from fedcore.population.ingest import describe, ingest

    with bar(f"ingest {source}", as_json) as progress:
        made = ingest(
            source, dest, format=format, kind=kind, client=client, token=token, count=count, vocabulary=vocabulary,
            append=append, memory=parse_bytes(memory), tolerance=tolerance, nominal_clients=nominal_clients,
            public_for_evaluation=public_for_evaluation, ledger=None if append else ledger_name(ledger),
            progress=progress, **format_options(option),
        )  # fmt: skip
    register(made, ledger)
    say(describe(made), as_json)


def register(population, ledger: str | None) -> None:
    from fedcore.budgets import ledger_of

    ledger_of(population, ledger).register(population.id)


@population_app.command("generate")
def population_generate(
    preset: Annotated[str, typer.Argument(help="Name of the preset, e.g. reddit-like.")],
    dest: Annotated[str, typer.Argument(help="Folder of the population to make.")],
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    settings: Settings = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Generate a synthetic population, block by block."""
    from fedcore.budgets import ledger_name
    from fedcore.population.ingest import describe
    from fedcore.population.synthetic import synthesise

    chosen = read_settings(None, settings) | ({} if clients is None else {"clients": clients})
    with bar(f"generate {preset}", as_json) as progress:
        made = synthesise(dest, preset, seed, chosen, ledger=ledger_name(ledger), progress=progress)
    register(made, ledger)
    say(describe(made), as_json)


@population_app.command("describe")
def population_describe(population: PopulationArgument, version: int | None = None, as_json: Json = False) -> None:
    """What a population holds, from its manifest."""
    from fedcore.population.ingest import describe

    say(describe(open_population(population, version)), as_json)


@population_app.command("verify")
def population_verify(population: PopulationArgument, version: int | None = None, as_json: Json = False) -> None:
    """Read every block and compare it with its checksum."""
    with bar(f"verify {population}", as_json) as progress:
        report = open_population(population, version).verify(progress)
    say({"ok": report.ok, "blocks": report.blocks, "bytes": report.bytes, "problems": list(report.problems)}, as_json)
    if not report.ok:
        raise SystemExit(2)


@population_app.command("copy")
def population_copy(
    source: Annotated[str, typer.Argument(help="Folder or URL of the population.")],
    dest: Annotated[str, typer.Argument(help="Folder or URL to copy it to.")],
    version: Annotated[int | None, typer.Option(min=1, help="Version to copy; default: the newest.")] = None,
    as_json: Json = False,
) -> None:
    """Copy a version between folders and object storage; run it again to go on after an interruption."""
    from dataclasses import asdict

    from fedcore.population.remote import copy_population

    with bar(f"copy {source}", as_json) as progress:
        copied = copy_population(source, dest, version=version, progress=progress)
    say(asdict(copied), as_json)


# --- methods --------------------------------------------------------------------------------------------------------


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="One method, for its settings.")] = None,
            as_json: Json = False) -> None:  # fmt: skip
    """List the methods; or one method's settings with ranges, defaults and privacy."""
    from fedcore.methods import METHODS, method_class, summary

    if name is None:
        rows = [{"method": n, "reads": method_class(n).kind, "what": summary(method_class(n))} for n in METHODS]
        return say({"methods": rows}, True) if as_json else table("Methods", rows)
    schema = method_class(name).Config.model_json_schema()
    if as_json:
        return say({"method": name, "schema": schema}, True)
    rows = [
        {"setting": field, "type": _type(item), "default": str(item.get("default")), "range": _range(item),
         "what": item.get("description", "")}
        for field, item in schema["properties"].items()
    ]  # fmt: skip
    table(f"{name}: {summary(method_class(name))}", rows)


def _type(item: dict) -> str:
    if "enum" in item:
        return " | ".join(map(str, item["enum"]))
    if "anyOf" in item:
        return " | ".join(_type(part) for part in item["anyOf"]).replace("null", "none")
    return item.get("const") or item.get("type", "")


def _range(item: dict) -> str:
    words = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    found = [f"{words[key]} {part[key]:g}" for part in [item, *item.get("anyOf", [])] for key in words if key in part]
    return ", ".join(found)


# --- training -------------------------------------------------------------------------------------------------------


@app.command()
def train(
    method: Annotated[str, typer.Argument(help="Name of the method; `fedcore methods` lists them.")],
    population: PopulationArgument,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    settings: Settings = None,
    runs: Runs = Path("runs"),
    run_id: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    version: Annotated[int | None, typer.Option(min=1, help="Version of the population; default: the newest.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Names the simulation's random streams; protects nobody.")] = 0,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    cache: Cache = "512MiB",
    ledger: Ledger = None,
    test_noise: Annotated[str | None, typer.Option(help="Key of pseudo-random noise, for tests with a test ledger; "
                          "the run is not private.")] = None,
    start_from: Annotated[str | None, typer.Option(metavar="RUN_OR_FILE", help="Start from the centres of a run, of an "
                          ".npz file, or of the 'previous' run on this population.")] = None,
    public_start: Annotated[str | None, typer.Option(metavar="REASON", help="Why that start is public, if it is not a "
                            "private run.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Train a model; with Prefect and Dask by default, in this process with --local."""
    from pydantic import ValidationError

    from fedcore.methods import explain, make_method
    from fedcore.session import TrainRequest, check, start

    use_ledger(ledger)
    try:
        request = TrainRequest(method=method, population=str(population), settings=read_settings(config, settings),
                               runs=str(runs), run_id=run_id, version=version, seed=seed,
                               cache_bytes=parse_bytes(cache), test_noise=test_noise, start_from=start_from,
                               public_start_because=public_start)  # fmt: skip
    except ValidationError as error:
        raise ConfigError(f"the run cannot be made: {explain(error)}", "See `fedcore train --help`.") from None
    check(request)  # a mistake is told at once, not after a server has started
    if local:
        private = make_method(method, request.settings).private
        path = in_process(lambda backend: start(request, backend, stamp=stamp()), workers, dask, private, as_json)
    else:
        flows = import_module("flows.train")
        path = flows.FLOWS[request.method](
            population=str(population), config=make_method(method, request.settings).config, runs=str(runs),
            compute=flows.Compute(workers=workers or 2, dask=dask, cache_bytes=request.cache_bytes), seed=seed,
            run_id=run_id, version=version, test_noise=test_noise, start_from=start_from,
            public_start_because=public_start,
        )  # fmt: skip
    show_run(Path(path), as_json)


@app.command()
def resume(
    run: RunArgument,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    cache: Cache = "512MiB",
    take_over: Annotated[bool, typer.Option("--take-over", help="Take it from a holder that seems alive.")] = False,
    population: Annotated[str | None, typer.Option(help="Where the population is now, if it was moved.")] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Go on with a run after its last committed round."""
    from fedcore.runs import Run
    from fedcore.session import asked, check_resumable
    from fedcore.session import resume as reopen

    use_ledger(ledger)
    opened = Run.open(run)
    check_resumable(opened)
    asked(opened)
    moved = None if population is None else str(population)
    if local:
        path = in_process(lambda backend: reopen(run, backend, cache_bytes=parse_bytes(cache), take_over=take_over,
                                                 population=moved),
                          workers, dask, asked(opened)["private"], as_json)  # fmt: skip
    else:
        flows = import_module("flows.train")
        compute = flows.Compute(workers=workers or 2, dask=dask, cache_bytes=parse_bytes(cache))
        path = flows.resume_run(run=str(run), compute=compute, take_over=take_over, population=moved)
    show_run(Path(path), as_json)


def in_process(begin, workers: int | None, dask: str | None, private: bool, quiet: bool) -> Path:
    """Rounds without Prefect; on a Dask cluster if workers or an address were given."""
    from fedcore.engine import InProcessBackend

    if workers is None and dask is None:
        return _rounds(begin(InProcessBackend()), quiet, lambda: [])
    cluster = import_module("tasks.dask_backend")
    with cluster.dask_client(workers or 2, dask, private) as client:
        backend = cluster.DaskBackend(client)
        return _rounds(begin(backend), quiet, backend.memory_of_workers)


def _rounds(session, quiet: bool, memory_of_workers) -> Path:
    from rich.console import Console
    from rich.progress import Progress

    from fedcore.engine import peak_memory
    from fedcore.evaluation.report import write_report
    from fedcore.session import ending

    with Progress(console=Console(stderr=True), disable=quiet) as progress, ending(session):
        total = session.method.total_rounds(session.training.state)
        shown = progress.add_task(f"run {session.run.id}", total=total, completed=session.run.round)
        while (info := session.training.step()) is not None:
            total = session.method.total_rounds(session.training.state)
            progress.update(shown, completed=session.run.round, total=total)
            if info.note:
                progress.console.print(f"round {session.run.round}: {info.note}")
        session.run.note(peak_memory_of_workers=memory_of_workers(), peak_memory_of_flow=peak_memory())
        progress.update(shown, completed=session.run.round, total=session.run.round)
    write_report(session.run, session.population.vocabulary())
    return session.run.path


def show_run(path: Path, as_json: bool, whole: bool = False) -> None:
    """A run and its privacy statement; the whole statement with every release, or its first lines."""
    from fedcore.evaluation.report import run_summary
    from fedcore.runs import Run

    value = run_summary(Run.open(path)) | {"run": str(path)}
    if as_json:
        return say(value, True)
    statement = value.pop("privacy", None) or {}
    value.pop("metrics", None)
    say(value, False)
    text = statement.get("text", "")
    print("\n" + (text if whole else text.split("\nReleases")[0]))


# --- runs -----------------------------------------------------------------------------------------------------------


@runs_app.command("list")
def runs_list(runs: Runs = Path("runs"), as_json: Json = False) -> None:
    """The runs of a folder."""
    from fedcore.runs import list_runs

    rows = []
    for run in list_runs(runs):
        info, population = run.info, run.info.get("population") or {}
        rows.append({"run": str(run.path), "method": info.get("method"), "population": population.get("name"),
                     "version": population.get("version"), "status": run.status, "rounds": max(run.round, 0),
                     "private": bool(info.get("private")) and not info.get("test_noise"),
                     "started": info.get("started")})  # fmt: skip
    if as_json:
        return say({"runs": rows}, True)
    table(f"Runs in {runs}", rows) if rows else print(f"no runs in {runs}")


@runs_app.command("show")
def runs_show(run: RunArgument, as_json: Json = False) -> None:
    """One run: settings, status, last metrics, privacy statement."""
    show_run(run, as_json, whole=True)


@runs_app.command("abandon")
def runs_abandon(run: RunArgument, ledger: Ledger = None, as_json: Json = False) -> None:
    """Give a run up for good: what it reserved and never charged goes back to the budget."""
    from fedcore.session import abandon

    say({"run": str(abandon(run, ledger_url=ledger).path), "status": "abandoned"}, as_json)


@app.command()
def report(run: RunArgument, as_json: Json = False) -> None:
    """Write the run's report.html again and print where it is."""
    from fedcore.evaluation.report import write_report
    from fedcore.runs import Run
    from fedcore.session import vocabulary_of

    opened = Run.open(run)
    say({"report": str(write_report(opened, vocabulary_of(opened)))}, as_json)


@app.command()
def personalise(
    run: RunArgument,
    population: PopulationArgument,
    dest: Annotated[Path, typer.Argument(help="Folder to make; one row for each client.")],
    as_json: Json = False,
) -> None:
    """Write each client's own output: sensitive, for that client only, not differentially private."""
    from fedcore.personalise import personalise as write

    with bar(f"personalise {population}", as_json) as progress:
        written = write(run, population, dest, progress=progress)
    say(written, as_json)


@app.command()
def evaluate(
    run: RunArgument,
    population: PopulationArgument,
    not_private: Annotated[Path | None, typer.Option(metavar="FILE", help="Evaluate a population that is not public; "
                           "the result goes into this file only, marked not private.")] = None,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Score a run on held-out data, with the baselines beside it."""
    from fedcore.evaluation.evaluate import check_public, evaluate_run, write_not_private

    store = open_population(population)
    if not_private is not None:
        write_not_private(evaluate_run(run, store), not_private)
        return say({"not_private": str(not_private)}, as_json)  # the scores go into the file and nowhere else
    check_public(store)
    if local:
        result = evaluate_run(run, store, keep=True)
    else:
        flows = import_module("flows.evaluate")
        result = flows.evaluate_run_flow(run=str(run), population=str(population), workers=workers or 2, dask=dask)
    if as_json:
        return say(result, True)
    table(result["title"], result["rows"])


# --- budgets --------------------------------------------------------------------------------------------------------

Epsilon = Annotated[float, typer.Option("--epsilon", help="Total epsilon of everything ever released.")]
Delta = Annotated[float, typer.Option("--delta", help="Total delta; well below 1 / number of clients.")]


@budget_app.command("set")
def budget_set(
    population: PopulationArgument,
    epsilon: Epsilon,
    delta: Delta,
    delta_extra: Annotated[float | None, typer.Option(help="Part of delta kept for thresholding steps (10 % by "
                           "default).")] = None,
    relation: Annotated[str, typer.Option(help="Against what a client is protected: add_or_remove_one, or replace_one, "
                        "which costs more noise.")] = "add_or_remove_one",
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Set the budget of a population: once, for all runs to come."""
    from fedcore.budgets import ledger_of, remember_head

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    found.register(store.id)  # in case the process that ingested died just before it did
    found.set_budget(store.id, epsilon, delta, delta_extra=delta_extra, relation=relation)
    remember_head(store, found)
    budget_show(population, None, as_json)


@budget_app.command("raise")
def budget_raise(population: PopulationArgument, epsilon: Epsilon, delta: Delta, ledger: Ledger = None,
                 as_json: Json = False) -> None:  # fmt: skip
    """Raise the budget; the raise is kept and shown for ever."""
    from fedcore.budgets import ledger_of, remember_head

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    found.raise_budget(store.id, epsilon, delta)
    remember_head(store, found)
    budget_show(population, None, as_json)


@budget_app.command("show")
def budget_show(population: PopulationArgument, ledger: Ledger = None, as_json: Json = False) -> None:
    """What is spent, reserved and left, with the history; verifies the chain first."""
    from fedcore.budgets import ledger_of

    use_ledger(ledger)
    store = open_population(population)
    found = ledger_of(store)
    found.verify(store.id)
    balance, history = found.balance(store.id), found.history(store.id)
    if as_json:
        return say({"population": str(population), **balance.to_json(), "history": history}, True)
    say({"population": str(population), **balance.to_json()}, False)
    table("History", [{"seq": row["seq"], "what": row["kind"], "run": row.get("run_id"), "release": row.get("name")}
                      for row in history])  # fmt: skip


@budget_app.command("plan")
def budget_plan(
    population: PopulationArgument,
    runs: Annotated[int, typer.Option(min=1, help="Equal runs to share what is left.")],
    epsilon: Annotated[float | None, typer.Option(help="What each run would ask for; default: all that fits.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    settings: Settings = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """What each of some equal runs of `histograms` may spend, and what that buys: a run without a start (cold) and one
    from the centres of the run before (warm). The loss from noise is an estimate, before shrinkage, from the nominal
    number of clients and clusters of equal size. Nothing is reserved and no data are opened.
    """
    from fedcore.budget_plan import equal_runs, histograms
    from fedcore.budgets import ledger_of

    use_ledger(ledger)
    store = open_population(population)
    method = histograms(read_settings(config, settings))
    planned = equal_runs(method, store, ledger_of(store).balance(store.id), runs, epsilon)
    planned = {"population": str(population), **planned}
    if as_json:
        return say(planned, True)
    sketches = [{"run": name, **planned.pop(name)} for name in ("cold", "warm")]
    say(planned, False)
    table("Each run", sketches)


# --- everything else ------------------------------------------------------------------------------------------------


@app.command()
def serve(file: Annotated[Path, typer.Argument(help="TOML file of deployments.")]) -> None:
    """Serve scheduled training runs until stopped; starts a Prefect server here if PREFECT_API_URL names none."""
    from fedcore.deployment import read_deployments

    deployments = read_deployments(file)
    with import_module("flows.server").server() as base:
        print(f"Prefect UI: {base}", file=sys.stderr)
        import_module("flows.serve").serve(deployments)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of the experiment; without one they are listed.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version of the same table.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, max=100, help="Repetitions, for intervals (default 3).")] = None,
    population: Annotated[Path | None, typer.Option(help="A population instead of the experiment's own data.")] = None,
    dir: Annotated[Path | None, typer.Option("--dir", help="Folder of the experiment; the same one goes on with what "
                                             "is missing. Default: reproduce-NAME.")] = None,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    cache: Cache = "512MiB",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rebuild a table or a figure of a paper: its column beside ours. Nothing in it is private."""
    from fedcore.reproduce import EXPERIMENTS, experiment
    from fedcore.reproduce.experiment import Options

    if name is None:
        rows = [{"name": n, "what": experiment(n).title} for n in EXPERIMENTS]
        return say({"experiments": rows}, True) if as_json else table("Experiments", rows)
    found = experiment(name)
    options = Options(quick=quick, seeds=seeds, population=None if population is None else str(population))
    folder = dir or Path(f"reproduce-{name}")
    if local:
        result = reproduce_here(found, options, folder, workers, dask, parse_bytes(cache), as_json)
    else:
        flow = import_module("flows.reproduce").reproduce_flow
        result = flow(name=name, options=options, folder=str(folder),
                      compute={"workers": workers or 2, "dask": dask, "cache_bytes": parse_bytes(cache)})  # fmt: skip
    if as_json:
        return say({"title": result.title, "rows": list(result.rows), "notes": list(result.notes),
                    "folder": str(folder)}, True)  # fmt: skip
    table(result.title, result.rows)
    print("\n".join(["", *(f"- {note}" for note in result.notes), f"- Also in {folder} as table.md and figure.png."]))


def reproduce_here(found, options, folder: Path, workers: int | None, dask: str | None, cache: int, quiet: bool):
    """An experiment without Prefect."""
    from fedcore.engine import InProcessBackend
    from fedcore.reproduce.experiment import Place
    from fedcore.reproduce.experiment import reproduce as run

    with bar(f"reproduce {found.name}", quiet) as progress:
        def tell(done: int, cells: int, title: str) -> None:
            progress(done, cells)

        if workers is None and dask is None:
            return run(found, options, Place(folder, InProcessBackend(), cache), tell)
        cluster = import_module("tasks.dask_backend")
        with cluster.dask_client(workers or 2, dask) as client:
            return run(found, options, Place(folder, cluster.DaskBackend(client), cache), tell)


@app.command()
def demo(
    dir: Annotated[Path, typer.Option("--dir", help="Folder for everything the demo makes.")] = Path("fedcore-demo"),
    local: Local = False,
    workers: Workers = None,
) -> None:
    """A private training run over real data that this machine has: the source files of its Python packages."""
    from fedcore.demo import prepare

    if (dir / "runs").exists():
        raise ConfigError(f"{str(dir)!r} holds a demo already.", "Choose another --dir, or delete that folder.")
    prepare(dir, say=lambda text: print(text, file=sys.stderr))
    use_ledger(f"sqlite:///{(dir / 'ledger.sqlite').resolve()}")
    train("histograms", dir / "population", runs=dir / "runs", run_id="demo", workers=workers, local=local)
    evaluate(dir / "runs" / "demo", dir / "evaluation", workers=workers, local=local)
    print(f"\nReport:  {dir / 'runs' / 'demo' / 'report.html'}\n"
          f"Budget:  fedcore budget show {dir / 'population'}\n"
          f"Run:     fedcore runs show {dir / 'runs' / 'demo'}")  # fmt: skip


if __name__ == "__main__":
    main()
