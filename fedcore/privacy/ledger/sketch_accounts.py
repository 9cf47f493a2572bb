"""What a ledger keeps to find people who are in several of its populations: noisy sketches and keyed digests of blocks.

They depend on data, so they are no part of the chain, and their key is a file that no copy of a ledger or population
has. The chain has what the budget owner declares. The argument is docs/privacy/shared-ids.md.
"""

from __future__ import annotations

import glob
import json
import os
import stat
from collections.abc import Collection, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, inspect, update

from fedcore.errors import LedgerError, LedgerTampered, SharedIds
from fedcore.privacy.id_sketch import Sketch
from fedcore.privacy.ledger import database as db
from fedcore.privacy.ledger import tables
from fedcore.privacy.ledger.accounts import checked_reason
from fedcore.privacy.ledger.replay import SHARED_IDS
from fedcore.privacy.ledger.rows import RESTORE, decoded_list, find, find_all
from fedcore.privacy.ledger.share_accounts import ShareAccounts
from fedcore.storage.files import OTHERS, check_regular, sweep_abandoned
from fedcore.storage.shared import create_in, open_folder

KEY_BYTES, DIGEST_BYTES = 32, 16


@dataclass(frozen=True, slots=True)
class KeptSketch:
    """A row. name: of the population's folder; key: name of the key; version, manifest: the version that it describes;
    clients: the first N of that version are in the sketch; sketch: None where ids name no people, or their data are
    public; blocks: keyed digests of all versions so far; undeclared: populations that share people with this one, and
    the population itself until it is compared; declared: populations of which the budget owner has declared that
    """

    population_id: str
    name: str
    key: str
    version: int
    manifest: str
    clients: int
    sketch: Sketch | None
    blocks: frozenset[bytes]
    undeclared: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()


class SketchAccounts(ShareAccounts):
    """Accounts, and the sketches by which people who are in several of them are found."""

    # --- the key ------------------------------------------------------------------------------------------------

    @property
    def sketch_key_file(self) -> Path:
        """The key file: next to the file of a SQLite ledger; for a server's ledger in the user's data folder."""
        if (file := db.file_of(self._engine)) is not None:
            return file.with_name(f"{file.name}.ids.key")
        from platformdirs import user_data_path

        return user_data_path("fedcore") / f"ledger-{self.id}.ids.key"

    def sketch_key(self, *, make: bool = False) -> bytes | None:
        """The key of the sketches; None if there is none. make: then make one.

        Raises LedgerError if it cannot be read or made. A key that other users may read or write is refused, not
        repaired: the operator decides whether it is still a secret.
        """
        path = self.sketch_key_file
        try:
            if make and not path.exists():
                _make_key(path)
            check_regular(path)
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                key = file.read(KEY_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(
                f"the key {str(path)!r} of the ledger's sketches cannot be used: {error.strerror}.",
                "Give this user permission.",
            ) from None
        if mode & OTHERS:
            raise LedgerError(
                f"the key {str(path)!r} of the ledger's sketches may be used by other users (mode {mode:o}).",
                f"Take that away: chmod 600 {path}",
            )
        if len(key) != KEY_BYTES:
            raise LedgerError(
                f"the key {str(path)!r} of the ledger's sketches is damaged.", "Restore it, or remove it."
            )
        return key

    # --- sketches -----------------------------------------------------------------------------------------------

    def sketched(self) -> list[str]:
        """The ids of all populations with a sketch."""
        with self._transaction(write=False) as connection:
            if not _has_table(connection):
                return []
            c = tables.sketches.c.population_id
            return [row.population_id for row in find(connection, tables.sketches, columns=(c.name,), order=c)]

    def with_budget(self) -> set[str]:
        """The ids of all populations with a budget."""
        with self._transaction(write=False) as connection:
            c = tables.accounts.c
            rows = find(connection, tables.accounts, c.rho_max.is_not(None), columns=("population_id",))
        return {row.population_id for row in rows}

    def kept_sketch(self, population_id: str) -> KeptSketch | None:
        """What is kept of a population; None if nothing is. Raises LedgerTampered."""
        with self._transaction(write=False) as connection:
            return _kept(connection, population_id)

    def keep_sketch(self, kept: KeptSketch, before: KeptSketch | None) -> bool:
        """Replace what is kept of a population, unless that is not `before` any more: then False, and nothing happens.

        Lists of populations stay. Until `note_shared` is called, no run on the population is reserved: a process may
        die in between. Raises LedgerError if this user of a server may not add the table.
        """
        sketch = kept.sketch
        row = {
            "name": kept.name,
            "key": kept.key,
            "version": kept.version,
            "manifest": kept.manifest,
            "clients": kept.clients,
            "ids": 0 if sketch is None else sketch.ids,
            "parts": 0 if sketch is None else sketch.parts,
            "cells": b"" if sketch is None else sketch.to_bytes(),
            "blocks": b"".join(sorted(kept.blocks)),
        }
        try:
            with self._writing(kept.population_id) as writer:
                tables.sketches.create(writer.connection, checkfirst=True)
                there = _kept(writer.connection, kept.population_id)
                if _state(there) != _state(before):
                    return False
                undeclared = frozenset() if there is None else there.undeclared
                row["undeclared"] = _as_text(undeclared | {kept.population_id})
                if there is None:
                    new = {"population_id": kept.population_id, **row, "declared": _as_text(())}
                    writer.connection.execute(tables.sketches.insert().values(new))
                else:
                    _set(writer.connection, kept.population_id, **row)
        except db.NotAllowed:
            raise LedgerError(
                f"the ledger {self.url!r} has no table of sketches, and this user may not add it.",
                "Let the owner of its tables append to the population, or set its budget, once.",
            ) from None
        return True

    # --- declarations -------------------------------------------------------------------------------------------

    def note_shared(self, population_id: str, others: Collection[str]) -> list[str]:
        """Add populations that share people with this one to those found before; returns those of all of them that
        have a budget, and that neither owner has declared. While there is one, no run on this population is reserved.

        Only a declaration removes a population from the list. Raises LedgerTampered.
        """
        with self._writing(population_id) as writer:
            found = (_undeclared(writer.connection, population_id) | {*others}) - {population_id}
            left = found - _declared(writer.connection, population_id, found)
            _set(writer.connection, population_id, undeclared=_as_text(left))
            return sorted(left - _without_budget(writer.connection, left))

    def undeclared(self, population_id: str) -> list[str]:
        """What `note_shared` would return if nothing more was found; with the population itself if it is not compared.

        A population that got its budget after it was found counts as well. Raises LedgerTampered.
        """
        with self._transaction(write=False) as connection:
            return _open(connection, population_id)

    def declare_shared_ids(self, population_id: str, reason: str) -> None:
        """Record what the budget owner says of ids that are also in other populations; statements quote it.

        Raises BudgetMissing, ConfigError for an empty reason, LedgerTampered.
        """
        said = checked_reason(reason)
        with self._writing(population_id) as writer:
            self._recent(writer.connection, writer.account).required_budget()
            kept = _kept(writer.connection, population_id)
            if kept is not None:
                own = {population_id}
                declared = _as_text(kept.declared | (kept.undeclared - own))
                undeclared = _as_text(kept.undeclared & own)
                _set(writer.connection, population_id, undeclared=undeclared, declared=declared)
            writer.append(SHARED_IDS, None, {"reason": said})

    def _refuse_undeclared(self, connection: Connection, population_id: str) -> None:
        """Raises SharedIds if the ledger says that a comparison or a declaration is missing."""
        if not (open := _open(connection, population_id)):
            return
        if population_id in open:
            raise SharedIds(
                f"the ids of population {population_id!r} are not compared yet with those of other populations. "
                "Nothing was released.",
                "Compare them: fedcore budget shared-ids, with the path of the population.",
            )
        raise SharedIds(
            f"many ids of population {population_id!r} are also in another population with a budget, and the budget "
            "owner has not declared why. Nothing was released.",
            "See how many, then declare why: fedcore budget shared-ids, with the path of the population and a REASON.",
        )


def _has_table(connection: Connection) -> bool:
    return bool(inspect(connection).has_table(tables.sketches.name))


def _set(connection: Connection, population_id: str, **values: object) -> None:
    mine = tables.sketches.c.population_id == population_id
    connection.execute(update(tables.sketches).where(mine).values(**values))


def _state(kept: KeptSketch | None) -> tuple[object, ...] | None:
    return None if kept is None else (kept.key, kept.version, kept.manifest, kept.clients)


def _open(connection: Connection, population_id: str) -> list[str]:
    """Populations with a budget that share people with this one, which no owner has declared."""
    if not (found := _undeclared(connection, population_id)):
        return []
    return sorted(found - _declared(connection, population_id, found) - _without_budget(connection, found))


def _undeclared(connection: Connection, population_id: str) -> frozenset[str]:
    if not _has_table(connection):
        return frozenset()
    mine = tables.sketches.c.population_id == population_id
    rows = find(connection, tables.sketches, mine, columns=("undeclared",))
    return _ids(rows[0].undeclared) if rows else frozenset()


def _declared(connection: Connection, population_id: str, others: Set[str]) -> set[str]:
    """Those of the others of which the owner of this population, or theirs, has declared that they share people."""
    table, found = tables.sketches, set[str]()
    for row in find_all(
        connection, table, table.c.population_id, {population_id, *others}, columns=("population_id", "declared")
    ):
        declared = _ids(row.declared)
        if row.population_id == population_id:
            found |= declared & others
        elif population_id in declared:
            found.add(row.population_id)
    return found


def _without_budget(connection: Connection, populations: Set[str]) -> set[str]:
    c = tables.accounts.c
    missing = c.rho_max.is_(None)
    rows = find_all(connection, tables.accounts, c.population_id, populations, missing, columns=("population_id",))
    return {row.population_id for row in rows}


def _as_text(ids: Collection[str]) -> str:
    return json.dumps(sorted(ids))


def _ids(text: str) -> frozenset[str]:
    ids = decoded_list(text, "a list of populations")
    if not all(isinstance(one, str) for one in ids):
        raise LedgerTampered("a list of populations in the ledger holds something else.", RESTORE)
    return frozenset(ids)


def _kept(connection: Connection, population_id: str) -> KeptSketch | None:
    if not _has_table(connection):
        return None
    rows = find(connection, tables.sketches, tables.sketches.c.population_id == population_id)
    if not rows:
        return None
    row = rows[0]
    try:
        sketch = Sketch.of_bytes(row.cells, row.ids, row.parts) if row.cells else None
    except ValueError as error:
        raise LedgerTampered(
            f"the sketch of population {population_id!r} in the ledger is damaged ({error}).", RESTORE
        ) from None
    if len(row.blocks) % DIGEST_BYTES:
        raise LedgerTampered(
            f"the digests of blocks of population {population_id!r} in the ledger are damaged.", RESTORE
        )
    blocks = frozenset(row.blocks[at : at + DIGEST_BYTES] for at in range(0, len(row.blocks), DIGEST_BYTES))
    return KeptSketch(
        population_id,
        row.name,
        row.key,
        row.version,
        row.manifest,
        row.clients,
        sketch,
        blocks,
        _ids(row.undeclared),
        _ids(row.declared),
    )


def _make_key(path: Path) -> None:
    """Make a new key, whole or absent, that only this user may read. Of two processes the first one makes it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep_abandoned(path.parent, f".{glob.escape(path.name)}.*.partial")
    with suppress(FileExistsError), open_folder(path.parent) as folder:
        create_in(folder, path.name, os.urandom(KEY_BYTES))
