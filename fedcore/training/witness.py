"""Witnesses of the ledger: a ledger that was restored to an older state would lack part of what was spent.

The newest record that was seen is kept with the population (its witness, from the day on which the population was
made) and in the head of every run. If FEDCORE_ANCHOR names a folder or URL, it is also kept there, outside of
what one administrator can write. A private run starts only with a ledger that contains what all of them saw. To
continue without lost records, an operator must acknowledge the loss once, by a record of the chain that every later
statement shows: `accept_loss`.

The first use of an anchor records its place in the chain and in the witness. From then on the anchor is read and
written there, whether or not the variable is set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fedcore.errors import ConfigError, FedcoreError, LedgerError, LedgerRolledBack, PopulationError
from fedcore.population import layout
from fedcore.population import manifest as manifests
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import ChainHead
from fedcore.runs.store import Run, list_runs
from fedcore.storage import files
from fedcore.storage import objects as object_storage
from fedcore.storage.files import Place, is_remote, json_bytes, place
from fedcore.storage.plain import plain

if TYPE_CHECKING:  # a run that is not private needs no database
    from fedcore.privacy.ledger.ledger import Ledger

WITNESS = layout.WITNESS
ANCHOR = "FEDCORE_ANCHOR"
COMMAND = "fedcore budget accept-loss"
ACCEPT = f"If it cannot be restored, acknowledge the loss: {COMMAND}"


@object_storage.reading_once()
def check_witnesses(population: Population, ledger: Ledger) -> None:
    """Raises LedgerRolledBack if the ledger lacks what the population or the anchor saw, or if one of these records is
    gone; LedgerError if the anchor cannot be reached.
    """
    if complaint := missing_witness(population, ledger):
        raise LedgerRolledBack(complaint, f"Restore it from a backup of the population. {ACCEPT} {population.path}")
    for look, who in ((_witness, ""), (lambda _: _anchored(population, ledger), " by the anchor")):
        if (head := look(population)) is not None:
            _check(population.id, ledger, {who: head})


def missing_witness(population: Population, ledger: Ledger) -> str:
    """What to say if the population's witness is gone, although it had one; empty if all is well."""
    if layout.read_beside(population.path, WITNESS) is not None:
        return ""
    if ledger.length(population.id) <= 1 and not _had_one(population):
        return ""
    return (
        f"{WITNESS} of population {population.path.name!r} is missing, so it is unknown whether ledger {ledger.id} "
        "is the newest one or an older copy that lacks part of what was spent."
    )


def _had_one(population: Population) -> bool:
    """Whether a version names a ledger: the witness is written together with the first that does."""
    stored = (manifests.load(population.path, version) for version in layout.versions(population.path))
    return any(made.ledger is not None for made in stored)


def check_runs(runs: str | Place, population: Population, ledger: Ledger) -> None:
    """Raises LedgerRolledBack if the ledger lacks what a run of this folder saw, and the loss was not acknowledged."""
    _check(population.id, ledger, {f" by run {run_id!r}": head for run_id, head in _run_heads(runs, population.id)})


def remember_head(population: Population, ledger: Ledger) -> None:
    """Keep the newest record of the ledger with the population, and at the anchor.

    Raises PopulationError if it cannot be written, LedgerError if the anchor cannot.
    """
    _remember(population, ledger, _anchor(population, ledger))


def _remember(population: Population, ledger: Ledger, anchor: str | None) -> None:
    """The same with the anchor at this place; None: without one."""
    if anchor is not None:
        _write_anchor(anchor, population, ledger)
        if ledger.anchor(population.id) is None:  # the first time; the anchor has a record before its place is known
            ledger.set_anchor(population.id, anchor)
            _write_anchor(anchor, population, ledger)
    anchored = {} if anchor is None else {"anchored": anchor}
    content = json_bytes({**plain(ledger.head(population.id)), **anchored})
    try:
        layout.write_beside(population.path, WITNESS, content)
    except OSError as error:
        raise PopulationError(
            f"cannot write {WITNESS} of population {population.path.name!r}: {error.strerror or error}.",
            "A private run keeps there what it saw of the ledger. Free some space or give permission to write; then "
            "try again, or resume.",
        ) from error


def accept_loss(population: Population, ledger: Ledger, reason: str, runs: str | Place) -> list[ChainHead]:
    """Acknowledge lost records: a ledger that lacks what the population, the anchor or runs of this folder saw, a
    population whose witness is gone, or another anchor than the recorded one. Returns the heads that are lost.

    FEDCORE_ANCHOR names the anchor from then on. If it is unset, the recorded one stays. If that is out of reach, the
    population has none. A new place is no loss if the recorded anchor agrees with the ledger.

    Raises ConfigError if nothing is lost, or for an empty reason; LedgerError if the named anchor is out of reach.
    """
    ledger.register(population.id)  # it may have gone back to a time before that
    missing, remembered = bool(missing_witness(population, ledger)), [h for _, h in _run_heads(runs, population.id)]
    recorded, named, said = ledger.anchor(population.id), _named_anchor(), _said_of_anchor(population)
    old = recorded or (said if isinstance(said, str) else None)
    new = named or old
    missing = missing or (said is True and new is None)
    looks: list[tuple[str | None, Callable[[], ChainHead | None]]] = [(None, lambda: _witness(population))]
    for anchor in dict.fromkeys(one for one in (old, new) if one is not None):
        known = anchor == old or said is True
        looks.append((anchor, partial(_anchored_at, anchor, population, known=known)))
    for where, look in looks:
        try:
            head = look()
        except LedgerError as error:  # it is damaged, gone or out of reach
            missing = True
            if not isinstance(error, LedgerRolledBack):
                if where == named:
                    raise
                new = named
        else:
            remembered += [] if head is None else [head]
    lost = _not_accepted(population.id, ledger, remembered)
    if not lost and not missing and (recorded is None or new == recorded):
        raise ConfigError(
            f"nothing is lost: ledger {ledger.id} contains all that population {population.path.name!r}, its runs and "
            "its anchor saw."
        )
    if lost or missing:
        ledger.accept_loss(population.id, reason, lost)
    if new != recorded:
        if new is not None:
            _write_anchor(new, population, ledger)
        ledger.set_anchor(population.id, new, reason)
    _remember(population, ledger, new)
    if old is not None and old != new:
        with suppress(LedgerError):  # so that it refuses every ledger of before the move; it may be out of reach
            _write_anchor(old, population, ledger)
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
    """The heads that the ledger lacks, and whose loss was not acknowledged."""
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


def _named_anchor() -> str | None:
    """The place that FEDCORE_ANCHOR names, as it is recorded: absolute, without links."""
    named = os.environ.get(ANCHOR)
    return files.absolute(place(named)) if named else None


def _anchor(population: Population, ledger: Ledger) -> str | None:
    """The place of the population's anchor; None without one. Raises LedgerRolledBack if the ledger has recorded
    another place than FEDCORE_ANCHOR names, or none although the witness states one.
    """
    recorded, named, said = ledger.anchor(population.id), _named_anchor(), _said_of_anchor(population)
    if recorded is None and isinstance(said, str):
        raise LedgerRolledBack(
            f"{WITNESS} of population {population.path.name!r} states an anchor at {said}, and ledger {ledger.id} has "
            "no record of it.",
            f"Restore the ledger from a backup. {ACCEPT} {population.path}",
        )
    if recorded is not None and named not in (None, recorded):
        raise LedgerRolledBack(
            f"{ANCHOR} names {named}, and ledger {ledger.id} has recorded the anchor of population "
            f"{population.path.name!r} at {recorded}.",
            f"Unset the variable or name the recorded place. To record another one: {COMMAND} {population.path}",
        )
    return recorded or named


def _said_of_anchor(population: Population) -> str | bool | None:
    """Of the population's witness: the place of the anchor, or True if it only states that there is one."""
    try:
        content = json.loads(layout.read_beside(population.path, WITNESS) or b"{}")
    except (ValueError, RecursionError):
        return None
    said = content.get("anchored") if isinstance(content, dict) else None
    return said if isinstance(said, str) or said is True else None


def _anchored(population: Population, ledger: Ledger) -> ChainHead | None:
    where, said = _anchor(population, ledger), _said_of_anchor(population) is True
    if where is not None:
        return _anchored_at(where, population, known=said or ledger.anchor(population.id) is not None)
    if said:
        raise LedgerRolledBack(
            f"{WITNESS} of population {population.path.name!r} states that there is an anchor, and {ANCHOR} is not "
            "set: what the anchor saw of the ledger is not known.",
            f"Set {ANCHOR} to the place of the anchor. {ACCEPT} {population.path}",
        )
    return None


def _anchored_at(where: str, population: Population, *, known: bool) -> ChainHead | None:
    """The head in the anchor at this place; None if it has none. known: that it was written there. Raises LedgerError
    if the anchor cannot be reached, LedgerRolledBack if its record is damaged or gone.
    """
    anchor = _anchor_file(where, population)
    try:
        return _head_in(files.read_bytes(anchor), f"the anchor {anchor}")
    except FileNotFoundError:
        if not known:  # the first time
            return None
        raise LedgerRolledBack(
            f"the anchor has no record of population {population.path.name!r} at {anchor}, and one was written: "
            "another folder, or one that is not mounted, stands in its place.",
            f"Mount it, or restore the record. {ACCEPT} {population.path}",
        ) from None
    except LedgerRolledBack:
        raise
    except (OSError, FedcoreError) as error:
        raise _unreachable(anchor, "read", error) from error


def _anchor_file(where: str, population: Population) -> Place:
    folder = place(where)
    if not is_remote(folder) and not folder.is_dir():
        raise LedgerError(
            f"the anchor {where!r} is no folder: what it saw of the ledger is not known. Nothing was charged.",
            f"Mount it or make it. If it is lost, unset {ANCHOR}, then acknowledge the loss: {COMMAND} "
            f"{population.path}",
        )
    return folder / f"{population.id}.json"


def _write_anchor(where: str, population: Population, ledger: Ledger) -> None:
    """Keep the newest record of the ledger there. Raises LedgerError."""
    anchor = _anchor_file(where, population)
    try:
        files.write_whole(anchor, json_bytes(plain(ledger.head(population.id))))
    except (OSError, FedcoreError) as error:
        raise _unreachable(anchor, "written", error) from error


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
