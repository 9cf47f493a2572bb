"""`fedcore site` and `fedcore study`: runs that several sites make together, each with rows that it does not share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fedcore.cli.help_text import Commands
from fedcore.cli.options import Dask, Json, Ledger, Local, Runs, Settings, Workers, open_population, stamp, use_ledger
from fedcore.cli.terminal import parse_seconds, read_settings, say, table, warn
from fedcore.cli.training import in_process
from fedcore.errors import ConfigError, FedcoreError, StudyError, Unreachable, needs
from fedcore.storage import files
from fedcore.storage.files import shortened

if TYPE_CHECKING:
    from fedcore.rounds.engine import Backend
    from fedcore.sites.identity import Identity
    from fedcore.sites.joining import Agreement, Joined
    from fedcore.sites.serve import Turn
    from fedcore.sites.study import StudySite
    from fedcore.training.publishing import Publishing
    from fedcore.training.request import TrainRequest
    from fedcore.training.session import Session
    from fedcore.training.spec import RunSpec

    _TurnOf = Callable[[Joined, bool, float], Turn]  # of a study: whether for one run, and seconds to wait

# Seconds that a process waits for other sites in a round before it looks after the next study, or ends: LONG if there
# is no next study.
SHORT: Final = 30.0
LONG: Final = 600.0

site_app = typer.Typer(cls=Commands, no_args_is_help=True, help="This site, in runs of several sites.")
study_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Studies: runs of several sites that share no rows.")

IdentityFolder = Annotated[
    str | None,
    typer.Option("--identity", metavar="FOLDER", help="Folder of this site; by default in the user's data folder."),
]
MailboxArgument = Annotated[str, typer.Argument(metavar="MAILBOX", help="Folder or URL that all sites can write to.")]


@site_app.command("init")
def site_init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the site, such as hospital-a.")],
    identity: IdentityFolder = None,
    as_json: Json = False,
) -> None:
    """Make the identity of this site, once. Prints its public key for proposers, and a fingerprint to compare."""
    from fedcore.sites.identity import Identity, fingerprint, site_folder

    made = Identity.create(name, identity)
    say(
        {
            "site": made.name,
            "key": made.public.hex(),
            "fingerprint": fingerprint(made.public),
            "folder": str(site_folder(identity)),
        },
        as_json,
    )


@site_app.command("serve")
def site_serve(
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Make one run of each study and end, for cron; without it, serve until you stop it."
        ),
    ] = False,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    identity: IdentityFolder = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Start and continue the runs of all studies that this site has joined: as flow runs of Prefect with Dask workers
    by default, in this process with --local. A process that was killed is followed by
    the next one: nothing is lost, and nothing is charged twice without a record of it.
    """
    from fedcore.sites.identity import Identity, site_folder
    from fedcore.sites.joining import joined_studies
    from fedcore.sites.serve import IDLE

    use_ledger(ledger)
    own, shown = Identity.load(identity), set()
    turn_of = _turns_here(own, workers, dask, as_json) if local else _turns_as_flows(own, identity, workers, dask)
    while True:
        turns, failed, studies = [], [], joined_studies(identity)
        waits = LONG if once or len(studies) == 1 else SHORT
        for joined in studies:
            try:
                turn = turn_of(joined, once, waits)
            except FedcoreError as error:
                failed.append(error)
                warn(f"study {joined.name}: {error}")
                continue
            turns.append(asdict(turn))
            if not as_json and turn not in shown and turn.state != IDLE:
                print(f"study {turn.study}, run {turn.run}: {turn.state} {turn.words}".rstrip(), flush=True)
            shown.add(turn)
        if not turns and not failed:
            raise ConfigError(f"The site in {site_folder(identity)} has joined no study.", "fedcore study join MAILBOX")
        if once:
            if as_json:
                say({"turns": turns}, True)
            if failed:
                raise failed[0]
            return
        time.sleep(SHORT)


def _now() -> datetime:
    return datetime.now(UTC)


def _turns_here(own: Identity, workers: int | None, dask: str | None, quiet: bool) -> _TurnOf:
    """Turns in this process."""
    from fedcore.sites.serve import take_turn

    making = _Making(workers, dask, quiet)
    return lambda joined, once, waits: take_turn(joined, own, making, waits=waits, once=once, now=_now)


def _turns_as_flows(own: Identity, identity: str | None, workers: int | None, dask: str | None) -> _TurnOf:
    """Turns as flow runs; there is none while a study has nothing to start or continue. Raises ExtraMissing."""
    from fedcore.sites.serve import Turn, idle_turn

    with needs("Without --local this command"):
        flows = import_module("fedcore.flows.sites")
    compute = flows.Compute(workers=workers, dask=dask)

    def turn_of(joined: Joined, once: bool, waits: float) -> Turn:
        if (idle := idle_turn(joined, own, once=once, now=_now)) is not None:
            return idle
        return Turn(**flows.site_run(study=joined.name, identity=identity, once=once, waits=waits, compute=compute))

    return turn_of


@dataclass(frozen=True)
class _Making:
    """Runs in this process, on a Dask cluster if workers or an address are given (`fedcore.sites.serve.Making`)."""

    workers: int | None
    dask: str | None
    quiet: bool

    def begin(self, request: TrainRequest, spec: RunSpec, publisher: Publishing) -> None:
        from fedcore.training.session import start_run

        self._make(lambda backend: start_run(request, backend, stamp=stamp(), spec=spec, publisher=publisher))

    def resume(self, path: str, publisher: Publishing) -> None:
        from fedcore.training.session import resume

        self._make(lambda backend: resume(path, backend, publisher=publisher))

    def _make(self, begin: Callable[[Backend], Session]) -> None:
        in_process(begin, self.workers, self.dask, True, self.quiet)


@study_app.command("new")
def study_new(
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="Where to keep a copy of the signed study.")],
    method: Annotated[str, typer.Option("--method", help="Name of a private method; `fedcore methods` lists them.")],
    like: Annotated[
        str,
        typer.Option(
            "--population-like",
            metavar="POPULATION",
            help="Population with the columns and the kind of budget that all sites have. Its data are not read.",
        ),
    ],
    epsilon: Annotated[
        float,
        typer.Option(
            "--epsilon-a-run",
            help="Epsilon that a run costs the people of each site, at the delta of the budget of that population.",
        ),
    ],
    sites: Annotated[
        list[str],
        typer.Option(
            "--site",
            metavar="NAME=KEY:CLIENTS",
            help="A site: name and key from `fedcore site init`, and the number of clients that its owner declares. "
            "Repeatable.",
        ),
    ],
    mailbox: Annotated[
        str, typer.Option("--mailbox", metavar="MAILBOX", help="Folder or URL for the files of the study.")
    ],
    settings: Settings = None,
    collusion: Annotated[
        int, typer.Option("--collusion", min=1, help="Number of sites that may work together against the others.")
    ] = 1,
    patience: Annotated[
        str, typer.Option("--patience", help="How long sites wait for each other before a run ends for all.")
    ] = "7d",
    every: Annotated[
        str | None,
        typer.Option("--every", help="Time between the starts of two runs; without it, each `site serve --once`."),
    ] = None,
    identity: IdentityFolder = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Propose a study: sign it and put it into the mailbox. Nothing is released, and no data are read."""
    import secrets

    from fedcore.privacy.noise_shares import charged_plan
    from fedcore.sites.identity import Identity
    from fedcore.sites.study import propose, write_study
    from fedcore.training.budget import ledger_of, required_budget

    use_ledger(ledger)
    proposer, population = Identity.load(identity), open_population(like)
    balance = ledger_of(population, to_show=True).balance(population.id)
    study = propose(
        proposer,
        method,
        read_settings(None, settings),
        population,
        seed=secrets.randbelow(2**63),
        unit=balance.unit or "client",
        relation=balance.relation or "add_or_remove_one",
        rho=required_budget(population, balance).rho_of(epsilon),
        sites=tuple(_site(text) for text in sites),
        collusion=collusion,
        patience=parse_seconds(patience),
        every=None if every is None else parse_seconds(every),
    )
    charged_plan(study.plan(1)[0], study.terms, study.nominal_clients)  # what no site could run is not proposed
    place = files.place(mailbox)
    if not files.is_remote(place):
        files.make_folder(place)
    write_study(proposer, study, file.absolute().parent, file.name)
    write_study(proposer, study, place)
    say(
        {
            "study": study.digest.hex(),
            "file": str(file),
            "mailbox": str(place),
            "sites": len(study.sites),
            "rho_a_run": study.rho,
            "next": f"at each site: fedcore study join {place} --population POPULATION",
        },
        as_json,
    )


def _site(text: str) -> StudySite:
    from pydantic import ValidationError

    from fedcore.sites.study import StudySite

    name, equals, rest = text.partition("=")
    key, colon, clients = rest.partition(":")
    try:
        return StudySite(name=name, key=key.lower(), nominal=int(clients.replace("_", "")))
    except (ValidationError, ValueError):
        raise ConfigError(
            f"--site {text[:150]!r} is not of the form NAME=KEY:CLIENTS.",
            "NAME and KEY are what `fedcore site init` prints. CLIENTS is the size that the data owner declares.",
        ) from None


@study_app.command("join")
def study_join(
    mailbox: MailboxArgument,
    population: Annotated[
        str, typer.Option("--population", metavar="POPULATION", help="Folder or URL of this site's population.")
    ],
    runs: Runs = "runs",
    yes: Annotated[bool, typer.Option("--yes", help="Agree without being asked, for scripts.")] = False,
    identity: IdentityFolder = None,
    ledger: Ledger = None,
    as_json: Json = False,
) -> None:
    """Agree to a study: shows what leaves this site, who sees it and what it costs, and asks. Nothing is charged."""
    from fedcore.sites.identity import Identity
    from fedcore.sites.joining import Joined, agreement, join
    from fedcore.sites.study import read_study
    from fedcore.training.budget import ledger_of

    use_ledger(ledger)
    place = files.place(mailbox)
    study, own, store = read_study(place), Identity.load(identity), open_population(population)
    found = agreement(study, own, store, ledger_of(store).balance(store.id))
    if not as_json:
        _show(found, store.path.name)
    if not yes and (as_json or sys.stdin is None or not sys.stdin.isatty()):
        raise ConfigError(
            "Joining a study needs a yes, and no terminal is there to ask.",
            "Compare the fingerprints with people at the other sites, then add --yes.",
        )
    if not yes and not typer.confirm("Did you compare all fingerprints by another way, and does this site join?"):
        raise StudyError("This site has not joined the study.", "Nothing was changed.")
    join(Joined(study, files.absolute(place), store.location, files.absolute(files.place(runs))), identity)
    if as_json:
        say(found.to_json(), True)
    else:
        print("\nJoined. Runs start with: fedcore site serve")


def _show(found: Agreement, population: str) -> None:
    """What a person agrees to. All texts of the study were checked to be printable when it was read."""
    from fedcore.sites.joining import sites_to_compare

    study, honest = found.study, len(found.study.sites) - found.study.collusion
    chosen = study.made_method().config.model_dump(mode="json", exclude_defaults=True)
    settings = ", ".join(f"{name} = {value}" for name, value in sorted(chosen.items())) or "all as by default"
    width = max(len(site.name) for site in study.sites)
    every = "with each `fedcore site serve --once`" if study.every is None else f"every {study.every:g} s"
    lines = [
        f"Study {study.digest.hex()[:16]}: {study.method}, proposed by {study.proposer.name}",
        f"Settings: {shortened(settings)}",
        "",
        f"This site is {found.site}, with population {population}.",
        f"In a run it posts {found.numbers} masked numbers of 8 bytes in {found.rounds} rounds, a key of the run, and "
        "how the run ended here. The masks of all sites cancel: the noisy totals can be read, and no sum of one site.",
        "All sites, and all who can read the mailbox, see that.",
        "",
        "Compare these fingerprints with people at the other sites, by telephone or in person:",
        *(
            f"  {row['name']:<{width}}  {row['fingerprint']}  {row['clients']} clients declared"
            for row in sites_to_compare(study)
        ),
        "",
        f"Cost of a run to this site's people: rho = {found.rho:.4g}, epsilon = {found.epsilon:.4g} at "
        f"delta {found.delta:.3g}, while at most {study.collusion} of the other sites work together with the mailbox.",
        f"If all others do: rho = {found.rho_all:.4g} ({honest} times as much), epsilon = {found.epsilon_all:.4g}.",
        f"The budget has enough left for {found.runs} runs.",
        f"A run starts {every}. A site that is away for {study.patience / 86400:.3g} days ends it for all.",
    ]
    print("\n".join(lines))


@study_app.command("show")
def study_show(mailbox: MailboxArgument, as_json: Json = False) -> None:
    """What a study states, how its newest run stands, what each site has posted, and whether all have the same model.
    Reads the mailbox only, and needs no identity.
    """
    from fedcore.sites.joining import sites_to_compare
    from fedcore.sites.mailbox import Mailbox
    from fedcore.sites.progress import final_states, posted, progress_of
    from fedcore.sites.study import read_study

    place = files.place(mailbox)
    study = read_study(place)
    box = Mailbox(place, study)
    newest = progress_of(box).to_json()
    made: Mapping[str, Mapping[str, object]]
    try:
        made = posted(box)
    except Unreachable:  # listing needs another right than all the rest
        unknown = None if as_json else "-"
        made = {site.name: {"files": unknown, "bytes": unknown} for site in study.sites}
    sites, run = [{**row, **made[row["name"]]} for row in sites_to_compare(study)], newest["run"]
    stated = {
        "study": study.digest.hex(),
        "method": study.method,
        "proposer": study.proposer.name,
        "collusion": study.collusion,
        "rho_a_run": study.rho,
        "patience_seconds": study.patience,
        "every_seconds": study.every,
    }
    if as_json:
        more = {"settings": study.settings, "software": study.software, "sites": sites, "newest_run": newest}
        return say({**stated, **more, "final_states": final_states(box, run)}, True)
    say(stated, False)
    answered, begun = newest["rounds_answered"], f"rounds of run {run}" if run else "no run yet"
    table("Sites", [{**row, begun: answered[row["name"]]} for row in sites])
    if newest["awaited"]:
        print(f"Awaited since {newest['awaited_since']}: {', '.join(newest['awaited'])}")
    if newest["ended"]:
        print(f"Run {run} was ended by: {', '.join(newest['ended'])}")
    if ends := final_states(box, run):
        same = "the same bits" if ends["same_bits"] else "different bits: compare their software and processors"
        if not ends["same_totals"]:
            same = "different totals: one of these sites was shown another mailbox"
        if len(ends["sites"]) > 1:
            print(f"States after run {ends['run']} at {', '.join(ends['sites'])}: {same}")
        if ends["unreadable"]:
            print(f"The end of run {ends['run']} cannot be read at: {', '.join(ends['unreadable'])}")
