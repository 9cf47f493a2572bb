"""`fedcore population`: make, inspect and copy populations of clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fedcore.cli.help_text import group_of
from fedcore.cli.options import Json, Ledger, PopulationArgument, Settings, open_population, stamp
from fedcore.cli.terminal import announce, bar, read_settings, say, table

if TYPE_CHECKING:
    from fedcore.population.erasing import Erased
    from fedcore.population.store import Population

COMMANDS = {  # those that load what reads files
    "ingest": "fedcore.cli.ingesting:population_ingest",
    "sketch": "fedcore.cli.ingesting:population_sketch",
}
population_app = typer.Typer(
    cls=group_of(COMMANDS), no_args_is_help=True, help="Make and inspect populations of clients."
)


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
    from fedcore.population.synthetic import synthesise
    from fedcore.training.budget import ledger_name

    chosen = read_settings(None, settings) | ({} if clients is None else {"clients": clients})
    with bar(f"generate {preset}", as_json) as progress:
        made = synthesise(dest, preset, seed, chosen, ledger=ledger_name(ledger), progress=progress)
    register(made, ledger)
    show(made, as_json)


@population_app.command("describe")
def population_describe(population: PopulationArgument, version: int | None = None, as_json: Json = False) -> None:
    """Show what a population holds, from its manifest."""
    show(open_population(population, version), as_json)


def register(population: Population, ledger: str | None) -> None:
    from fedcore.cli import shared_ids
    from fedcore.training.budget import ledger_of

    shared_ids.register(population, ledger_of(population, ledger, to_show=True))


def show(population: Population, as_json: bool) -> None:
    from fedcore.population.describing import describe

    told = describe(population)
    if as_json:
        return say(told, True)
    cohorts = told.pop("cohorts")
    say({name: value for name, value in told.items() if value is not None}, False)
    if cohorts:
        table("Cohorts", cast("list[dict]", cohorts))
    if told["alike_ids"]:
        print(
            f"\nGroups of client ids that differ only in case, width or inner blanks: {told['alike_ids']}. Each id is "
            "a client with its own protection. If a group is one person, ingest all sources again with --fold-ids."
        )


@population_app.command("open-cohort")
def population_open_cohort(
    population: PopulationArgument,
    declared_clients: Annotated[
        int | None, typer.Option(min=1, help="Declared number of clients in the population, including this cohort.")
    ] = None,
    through: Annotated[
        str | None, typer.Option(metavar="LABEL", help="For calendar periods: declare all periods up to this one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Open a cohort without an append: make a new version with the same clients and one more cohort."""
    from fedcore.population.conversion import open_cohort

    show(open_cohort(open_population(population), declared_clients, through), as_json)


@population_app.command("verify")
def population_verify(
    population: PopulationArgument,
    version: int | None = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="Also read this source again and compare every client and value. Repeat it for each append, in the "
            "order of the appends: sources of one name are matched to versions from the newest one back.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="With --against: an option of the ingest that no manifest keeps, such as heldout=FILE or na=n/a,-. It "
            "is used for all sources; repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read every block and compare it with its checksum; with --against also with the source."""
    from dataclasses import asdict

    from fedcore.errors import ConfigError

    if option and not against:
        raise ConfigError("--option needs a source to read.", "Name the source: --against SOURCE.")
    opened, said = open_population(population, version), read_settings(None, option)
    if against:
        from fedcore.population.ingest.against import checked, compare

        checked(opened, said)
    with bar(f"verify {population}", as_json) as progress:
        report = opened.verify(progress)
    if report.problems:
        from fedcore.operations.events import block_damaged

        announce(lambda: [block_damaged(opened, problem) for problem in report.problems])
    found = {"ok": report.ok, "blocks": report.blocks, "bytes": report.bytes, "cohorts": len(opened.manifest.cohorts)}
    compared = None
    if against and report.ok:
        with bar(f"compare {population}", as_json) as progress:
            compared = compare(opened, against, said, progress)
        counts = asdict(compared)
        counts.pop("examples")
        found |= {"ok": compared.ok, "against": counts}
    say({**found, "problems": list(report.problems), "remarks": list(report.remarks)}, as_json)
    if compared is not None and compared.examples and not as_json:
        print("Clients that differ:", *(repr(one) for one in compared.examples), sep="\n  ")
    if not found["ok"]:
        raise SystemExit(2)


@population_app.command("copy")
def population_copy(
    source: Annotated[str, typer.Argument(help="Folder or URL of the population.")],
    dest: Annotated[str, typer.Argument(help="Folder or URL to copy it to.")],
    version: Annotated[int | None, typer.Option(min=1, help="Version to copy; default: the newest.")] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove older versions at DEST that the source lacks, with their data.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy a version between folders and object storage. After an interruption, run it again to continue."""
    from dataclasses import asdict

    from fedcore.population.copying import copy_population

    with bar(f"copy {source}", as_json) as progress:
        copied = copy_population(source, dest, version=version, progress=progress, prune=prune)
    say(asdict(copied), as_json)


@population_app.command("vocabulary")
def population_vocabulary(
    population: PopulationArgument,
    private: Annotated[
        bool, typer.Option("--private", help="Make a release; without it, print its cost and the releases so far.")
    ] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="What the release may spend of the budget; default: 0.3 of the rho left.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="What it may spend of the budget's delta for thresholding steps; default: all of it."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for all words released so far, one a line.")] = None,
    test_noise: Annotated[
        str | None,
        typer.Option(help="Key of pseudo-random noise, for tests with a test ledger; the release is not private."),
    ] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Release a private vocabulary from the clients' own words, once, before any run. Every word in it is used
    by enough clients to hide each of them. `fedcore population encode` makes a population of counts with it.
    """
    from fedcore.storage.files import write_whole
    from fedcore.training import vocabulary
    from fedcore.training.budget import ledger_of

    store = open_population(population)
    found = ledger_of(store, ledger, to_show=not private)
    shown: dict = {"population": str(population)}
    if private:
        made = vocabulary.release_vocabulary(store, found, epsilon=epsilon, delta=delta, test_noise=test_noise)
        words = made.words
        shown |= {"run": made.run_id, "words": len(words), "new": made.new, "given_up": made.given_up}
        shown |= {"statement": made.statement.to_json() if as_json else made.statement.text()}
    else:
        planned = vocabulary.plan_vocabulary(store, found.balance(store.id), epsilon, delta)
        words = vocabulary.as_text(vocabulary.released_words(found, store.id))
        shown |= {"words": len(words), "rho": planned.rho, "delta": planned.delta}
        shown |= {"releases": vocabulary.release_rows(planned.releases), "verdict": planned.in_words}
    if out is not None:
        write_whole(out, "".join(f"{word}\n" for word in words).encode())
    if as_json:
        return say({**shown, "vocabulary": list(words)}, True)
    releases = shown.pop("releases", None)
    say(shown, False)
    if releases:
        table("Releases", releases)


@population_app.command("encode")
def population_encode(
    source: Annotated[str, typer.Argument(metavar="WORDS", help="Folder of a population of words.")],
    dest: Annotated[str, typer.Argument(help="Folder of the population of counts to make.")],
    vocabulary: Annotated[
        Path | None, typer.Option(help="Public file, a word or piece a line; default: all words released privately.")
    ] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Make counts of words: one column for each word of a vocabulary and a last one for all others. It is the same
    population, with the same id and budget, so that the vocabulary's release and all runs add up.
    """
    from fedcore.population.encoding import encode
    from fedcore.population.ingest.batches import read_vocabulary
    from fedcore.training.budget import ledger_of
    from fedcore.training.vocabulary import vocabulary_to_encode

    store = open_population(source)
    words = vocabulary_to_encode(store, ledger_of(store, ledger)) if vocabulary is None else read_vocabulary(vocabulary)
    with bar(f"encode {source}", as_json) as progress:
        made = encode(store, dest, words, progress, split=vocabulary is not None)
    show(made, as_json)


@population_app.command("forget")
def population_forget(
    population: PopulationArgument,
    clients: Annotated[Path | None, typer.Option(help="File with the ids of clients, one a line, UTF-8.")] = None,
    cohorts: Annotated[str | None, typer.Option(metavar="..N", help="All clients in the cohorts 1 to N.")] = None,
    without_trace: Annotated[
        bool,
        typer.Option("--without-trace", help="Keep no hash of them: a client that returns is new, with a new budget."),
    ] = False,
    runs: Annotated[
        str | None,
        typer.Option(metavar="RUNS", help="Folder of runs; those that are not private lose their client memory."),
    ] = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Delete clients from a population, with every version that has them. What was published and spent stays."""
    from fedcore.operations.forgetting import forget
    from fedcore.population.ingest.batches import read_ids

    wanted, last = [] if clients is None else read_ids(clients), last_cohort(clients, cohorts)
    opened = open_population(population)
    with bar(f"forget in {population}", as_json) as progress:
        done = forget(
            opened,
            clients=wanted,
            cohorts_to=last,
            without_trace=without_trace,
            runs=runs,
            stamp=stamp(),
            ledger_url=ledger,
            progress=progress,
        )
    told = {**erased(done.erased), "runs": list(done.runs)}
    if as_json:
        return say({**told, "explained": done.explained, "not_reached": list(done.not_reached)}, True)
    say({name: value for name, value in told.items() if value is not None}, False)
    print(f"\n{done.explained}\n\nNot reached:", *done.not_reached, sep="\n  ")


def last_cohort(clients: Path | None, cohorts: str | None) -> int | None:
    """N of "..N". Raises ConfigError unless one of the two is given."""
    from fedcore.errors import ConfigError

    if (clients is None) == (cohorts is None):
        raise ConfigError("pass either clients or cohorts to forget.", "Give --clients FILE or --cohorts ..N.")
    if cohorts is None:
        return None
    number = cohorts.removeprefix("..")
    if not cohorts.startswith("..") or not number.isdecimal():
        raise ConfigError(f"--cohorts must be ..N for the cohorts 1 to N, such as ..12, not {cohorts!r}.")
    return int(number)


def erased(done: Erased) -> dict:
    made = done.population
    pays = f"{done.holes:.0%} of the clients are holes: `fedcore population compact` removes them."
    return {
        "population": str(made.path),
        "version": made.version,
        "forgotten": done.clients,
        "unknown": done.unknown,
        "bytes_freed": done.freed,
        "holes": round(done.holes, 4),
        "hint": pays if done.worth_compacting else None,
    }


@population_app.command("compact")
def population_compact(population: PopulationArgument, ledger: Ledger = None, as_json: Json = False) -> None:
    """Write the remaining clients to new blocks, without the holes of forgotten ones, and remove earlier versions.
    Clients get new indices.
    """
    from fedcore.operations.forgetting import compact

    opened = open_population(population)
    with bar(f"compact {population}", as_json) as progress:
        done = compact(opened, ledger_url=ledger, progress=progress)
    say(
        {"population": str(done.population.path), "version": done.population.version, "bytes_freed": done.freed},
        as_json,
    )
