"""Who remembers the ledger: a ledger that was put back to an older state would have forgotten what was spent.

The newest record that was seen is kept beside the population (its witness, from the day on which the population was
made), in the head of every run, and, where FEDCORE_ANCHOR names a folder or URL, outside of all that one administrator
may write. A private run starts only with a ledger that contains what all of them saw. Who goes on although something is
lost says so, once, by a record of the chain that every later statement shows: `accept_loss`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedcore.errors import ConfigError, FedcoreError, LedgerError, LedgerRolledBack, PopulationError
from fedcore.population import layout
from fedcore.population import manifest as manifests
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import ChainHead
from fedcore.runs.store import Run, list_runs
from fedcore.storage import files
from fedcore.storage.files import Place, is_remote, json_bytes, place

if TYPE_CHECKING:  # a run that is not private needs no database
    from fedcore.privacy.ledger.ledger import Ledger

WITNESS = layout.WITNESS
ANCHOR = "FEDCORE_ANCHOR"
ACCEPT = "If it cannot be restored, go on with a recorded loss: fedcore budget accept-loss"


def check_witnesses(population: Population, ledger: Ledger) -> None:
    """Raises LedgerRolledBack if the ledger lacks what the population or the anchor saw, or if one of these records is
    gone; LedgerError if the anchor cannot be reached.
    """
    if complaint := missing_witness(population, ledger):
        raise LedgerRolledBack(complaint, f"Restore it from a backup of the population. {ACCEPT} {population.path}")
    for head, who in ((_witness(population), ""), (_anchored(population), " by the anchor")):
        if head is not None:
            _check(population.id, ledger, {who: head})


def missing_witness(population: Population, ledger: Ledger) -> str:
    """What to say if the population's witness is gone, although it had one; empty if all is well."""
    if layout.read_beside(population.path, WITNESS) is not None:
        return ""
    if ledger.length(population.id) <= 1 and not _had_one(population):
        return ""
    return (
        f"{WITNESS} of population {population.path.name!r} is missing, so nobody can tell whether ledger {ledger.id} "
        "is the newest one or an older copy that has forgotten what was spent."
    )


def _had_one(population: Population) -> bool:
    """Whether there was a witness before there was a budget: earlier versions of fedcore made it with the budget."""
    stored = (manifests.load(population.path, version) for version in layout.versions(population.path))
    return next((made.schema_version > 1 for made in stored if made.ledger is not None), False)


def check_runs(runs: str | Place, population: Population, ledger: Ledger) -> None:
    """Raises LedgerRolledBack if the ledger lacks what a run of this folder saw, and nobody accepted that loss."""
    _check(population.id, ledger, {f" by run {run_id!r}": head for run_id, head in _run_heads(runs, population.id)})


def remember_head(population: Population, ledger: Ledger) -> None:
    """Keep the newest record of the ledger beside the population, and with the anchor.

    Raises PopulationError if it cannot be written, LedgerError if the anchor cannot.
    """
    head = ledger.head(population.id).to_json()
    anchor = _anchor(population.id)
    if anchor is not None:  # before the population says that there is a record there
        try:
            files.write_whole(anchor, json_bytes(head))
        except (OSError, FedcoreError) as error:
            raise _unreachable(anchor, "written", error) from error
    anchored = {"anchored": True} if anchor is not None or _says_anchored(population) else {}
    content = json_bytes({**head, **anchored})
    try:
        layout.write_beside(population.path, WITNESS, content)
    except OSError as error:
        raise PopulationError(
            f"cannot write {WITNESS} of population {population.path.name!r}: {error.strerror or error}.",
            "A private run keeps there what it saw of the ledger. Free some space or give permission to write; then "
            "try again, or resume.",
        ) from error


def accept_loss(population: Population, ledger: Ledger, reason: str, runs: str | Place) -> list[ChainHead]:
    """Go on with a ledger that lacks what the population, the anchor or runs of this folder saw, or with a population
    whose witness is gone. Returns the heads that are lost.

    Raises ConfigError if nothing is lost, or for an empty reason.
    """
    ledger.register(population.id)  # it may have gone back to a time before that
    missing, remembered = False, [head for _, head in _run_heads(runs, population.id)]
    for look in (lambda: _witness(population), lambda: _anchored(population)):
        try:
            head = look()
        except LedgerRolledBack:  # it is damaged or gone
            missing = True
        else:
            remembered += [] if head is None else [head]
    missing = missing or bool(missing_witness(population, ledger))
    lost = _not_accepted(population.id, ledger, remembered)
    if not lost and not missing:
        raise ConfigError(
            f"nothing is lost: ledger {ledger.id} contains all that population {population.path.name!r}, its runs and "
            "its anchor saw."
        )
    ledger.accept_loss(population.id, reason, lost)
    remember_head(population, ledger)
    return lost


# --- what each of them saw --------------------------------------------------------------------------------------------


def _check(population_id: str, ledger: Ledger, seen: dict[str, ChainHead]) -> None:
    """seen: by who saw it."""
    lost = _not_accepted(population_id, ledger, seen.values())
    if lost:
        newest = max(lost, key=lambda head: head.seq)
        who = next(who for who, head in seen.items() if head == newest)
        raise LedgerRolledBack(
            f"ledger {ledger.id} does not contain record {newest.seq} of population {population_id!r}, which was seen "
            f"before{who}: an older copy was put in its place.",
            f"Restore the newest copy; what was spent since the older one cannot be forgotten. {ACCEPT}",
        )


def _not_accepted(population_id: str, ledger: Ledger, heads: Iterable[ChainHead]) -> list[ChainHead]:
    """The heads that the ledger lacks, and whose loss nobody accepted."""
    lost = list(dict.fromkeys(ledger.lacks(population_id, heads)))
    given_up = ledger.accepted(population_id) if lost and ledger.length(population_id) else set()
    return [head for head in lost if (head.seq, head.hash) not in given_up]


def _witness(population: Population) -> ChainHead | None:
    content = layout.read_beside(population.path, WITNESS)
    return None if content is None else _head_in(content, f"{WITNESS} of population {population.path.name!r}")


def _run_heads(runs: str | Place, population_id: str) -> list[tuple[str, ChainHead]]:
    """(run, head of the ledger that it saw last) of the runs on this population; those without one are left out."""
    return [(run.id, head) for run, of, head in seen_by_runs(runs) if of == population_id]


def seen_by_runs(runs: str | Place) -> list[tuple[Run, str, ChainHead]]:
    """(run, id of its population, head of the ledger that it saw last) of the runs of a folder that saw one."""
    found = []
    for run in list_runs(runs):
        info, seen = run.info.get("population"), run.head.get("ledger_head")
        if isinstance(info, dict) and (head := _head_of(seen)) is not None:
            found.append((run, str(info.get("id")), head))
    return found


def seen_beside(population: Population) -> ChainHead | None:
    """The head of the ledger that the population saw last; None if it has no witness. Raises LedgerRolledBack if that
    is damaged.
    """
    return _witness(population)


def _anchor(population_id: str) -> Place | None:
    """Where the anchor keeps the head of this population; None without an anchor. Raises LedgerError."""
    named = os.environ.get(ANCHOR)
    if not named:
        return None
    folder = place(named)
    if not is_remote(folder) and not folder.is_dir():
        raise LedgerError(
            f"the anchor {named!r} is no folder: what it saw of the ledger is not known. Nothing was charged.",
            f"Mount it or make it; or unset {ANCHOR}.",
        )
    return folder / f"{population_id}.json"


def _says_anchored(population: Population) -> bool:
    """Whether the population's witness says that an anchor has a record of it."""
    try:
        content = json.loads(layout.read_beside(population.path, WITNESS) or b"{}")
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("anchored") is True


def _anchored(population: Population) -> ChainHead | None:
    anchor = _anchor(population.id)
    if anchor is None:
        return None
    try:
        return _head_in(files.read_bytes(anchor), f"the anchor {anchor}")
    except FileNotFoundError:
        if not _says_anchored(population):  # the first time
            return None
        raise LedgerRolledBack(
            f"the anchor has no record of population {population.path.name!r} at {anchor}, and one was written: "
            "another folder, or one that is not mounted, stands in its place.",
            f"Mount it, or restore the record. {ACCEPT}",
        ) from None
    except LedgerRolledBack:
        raise
    except (OSError, FedcoreError) as error:
        raise _unreachable(anchor, "read", error) from error


def _unreachable(anchor: Place, what: str, error: Exception) -> LedgerError:
    reason = error.strerror if isinstance(error, OSError) else error
    return LedgerError(f"the anchor {anchor} cannot be {what}: {reason or type(error).__name__}.", "Try again later.")


def _head_in(content: bytes, what: str) -> ChainHead:
    try:
        head = _head_of(json.loads(content))
    except (ValueError, RecursionError):
        head = None
    if head is None:
        raise LedgerRolledBack(
            f"{what} is damaged, so the ledger cannot be checked.", f"Restore it from a backup. {ACCEPT}"
        )
    return head


def _head_of(value: Any) -> ChainHead | None:
    """The head in JSON; None if it is none."""
    if not isinstance(value, dict) or value.keys() - {"anchored"} != {"ledger_id", "seq", "hash"}:
        return None
    head = ChainHead(value["ledger_id"], value["seq"], value["hash"])
    right = isinstance(head.ledger_id, str) and isinstance(head.hash, str) and type(head.seq) is int
    return head if right and 0 <= head.seq < 2**53 else None
