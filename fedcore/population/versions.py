"""Making the next version of a local population: what must hold before, and the one step that makes it visible."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fedcore.errors import PopulationError, PopulationNotFound
from fedcore.population import cohorts, layout
from fedcore.population import manifest as manifests
from fedcore.population.block_table import Blocks
from fedcore.population.cohorts import Cohort, Order, holes_of
from fedcore.population.identifiers import Rule
from fedcore.population.manifest import SCHEMA_VERSION, Manifest, Provenance
from fedcore.population.store import Population
from fedcore.storage import files
from fedcore.storage.files import Place
from fedcore.storage.parsing import parse_json


@contextmanager
def writing(population: Population) -> Iterator[Path]:
    """Hold the writer lock of a population while its next version is made. Yields its folder, in which leftovers of
    dead writers were removed. Raises PopulationError if another process writes, or this is not the newest version;
    ConfigError for a URL.
    """
    path = layout.writable(population.path)
    if not path.is_dir():
        raise gone(path)
    with layout.named_os_errors(path), layout.writer_lock(path):
        check_and_sweep(path, population.version)
        yield path


def check_and_sweep(path: Path, parent: int | None) -> None:
    """Check, with the writer lock held, that the version after `parent` may be written here (None: the first), and
    remove leftovers of dead writers.
    """
    known = layout.versions(path)
    if parent is None and known:
        raise PopulationError(f"There is a population at {path} already.", "Append to it, or name another folder.")
    if parent is not None:
        if not known:
            raise gone(path)
        if known[-1] != parent:
            raise PopulationError(
                f"The population {path} has moved on to version {known[-1]}.", "Run the same command again."
            )
    sweep(path)


def gone(path: Path) -> PopulationNotFound:
    return PopulationNotFound(f"The population {path} is gone.", "Restore it from a backup.")


def intend(path: Path, version: int) -> None:
    """Says durably that all versions before this one are to go once it is there (`sweep`)."""
    layout.write_beside(path, layout.FORGET, files.json_bytes({"keeps": version}))


def sweep(path: Path) -> None:
    """Remove files that no manifest names, and finish or undo an interrupted forgetting of clients. Call with the
    writer lock held. Raises PopulationError for a symbolic link, through which it would remove files elsewhere.
    """
    layout.refuse_links(path, 2)
    first = intended(path)
    known = layout.versions(path)
    if first is not None and first in known:
        files.flush(path / layout.VERSIONS)  # of the version that stays
        for version in known:
            if version < first:
                layout.version_file(path, version).unlink()
        files.flush(path / layout.VERSIONS)
        known = [version for version in known if version >= first]
    # A copy that was interrupted may have brought slots of another branch. After a forgetting, no slot may be missed.
    doubt = first is not None or (path / layout.MARKER).exists()
    left = _unknown(path, () if doubt else known)
    for version in (*known[-1:], *known[:-1]):  # one at a time: there may be many, each of many blocks
        if not left and version != known[-1]:  # the newest is opened in any case: a newer fedcore may have written it
            break
        left -= _named(path, version)
    layout.sweep(path, left)
    if first is not None:
        for folder in (path / layout.BLOCKS, path / layout.FORGOTTEN):
            if folder.is_dir():
                files.flush(folder)
        (path / layout.FORGET).unlink()
        files.flush(path)


def _unknown(path: Path, known: Sequence[int]) -> set[Path]:
    """What may be named by no manifest: vocabularies, lists of forgotten clients and their key, and slots. Slots that
    were made for a known version are named by it: its writer, or copy, began after leftovers were removed.
    """
    made = {_stem(version) for version in known}
    blocks = path / layout.BLOCKS
    with os.scandir(blocks) if blocks.is_dir() else nullcontext(()) as entries:
        slots = [entry.name for entry in entries if entry.name.partition("-")[0] not in made and entry.is_dir()]
    others = (folder for name in (layout.VOCABULARIES, layout.FORGOTTEN) if (folder := path / name).is_dir())
    return {blocks / name for name in slots}.union(*(folder.iterdir() for folder in others))


def _named(path: Path, version: int) -> set[Path]:
    """What the manifest of a version names."""
    made = manifests.load(path, version)
    named = {layout.block_folder(path, slot) for slot in made.blocks.slots()}
    if made.vocabulary is not None:
        named.add(layout.vocabulary_file(path, made.vocabulary.sha256))
    if made.suppression is not None:
        named |= {path / layout.FORGOTTEN / name for name in (f"{made.suppression}.txt", layout.KEY)}
    return named


def intended(path: Place) -> int | None:
    """The first version that stays, if clients are being forgotten or were and it was interrupted; else None. Raises
    PopulationError.
    """
    content = layout.read_beside(path, layout.FORGET)
    if content is None:
        return None
    try:
        return int(parse_json(content)["keeps"])
    except (ValueError, TypeError, KeyError) as error:
        raise PopulationError(
            f"{path / layout.FORGET} is damaged; it states which versions must be deleted.",
            'Write {"keeps": N} into it; N is the newest version without the forgotten clients.',
        ) from error


def slot_name(version: int, number: int) -> str:
    """Of a new slot of a version."""
    return f"{_stem(version)}-{number:06d}"


def _stem(version: int) -> str:
    return f"v{version:06d}"


def following(old: Manifest, provenance: Provenance, **changes: Any) -> Manifest:
    """The manifest of the version after `old`, the same but for the changes; nothing counts again which ids are alike.
    Raises ManifestError.
    """
    same = {name: getattr(old, name) for name in type(old).model_fields}
    made = {
        **same,
        "schema_version": SCHEMA_VERSION,
        "secret": new_secret(),
        "version": old.version + 1,
        "provenance": provenance.model_copy(update={"parent": old.version, "alike_ids": old.provenance.alike_ids}),
        **changes,
    }
    return manifests.build(**{**made, "needs": needs(made, old.id_rule)})


def opening(old: Manifest, declared: int | None, newcomers: Order = (), day: str | None = None) -> dict[str, Any]:
    """Return the fields of the version after `old`, in which an append opens a cohort. declared: the new declared total
    of clients, None if not declared; newcomers: cohorts of the clients that follow, as pairs (cohort, clients); day: on
    which it opens, YYYY-MM-DD, today if None. Raises PopulationError if the total is less than before.
    """
    before, nominal = old.nominal_clients, None
    if declared is not None and before is not None:
        nominal = declared - before
        if nominal < 0:
            raise PopulationError(
                f"The declared number of clients is {declared}, fewer than the {before} of the previous version. The "
                "cohort of this append has the difference.",
                "Declare the new total; those who left stay in it, unless whole cohorts were removed.",
            )
    return {
        "cohorts": (*old.cohorts, cohorts.opened(len(old.cohorts) + 1, nominal, day=day)),
        "order": cohorts.joined((*old.order, *newcomers)),
        "nominal_clients": before if declared is None else declared,
    }


def declaring(
    known: tuple[Cohort, ...], labels: Sequence[str], nominal: int | None, order: Order, day: str | None = None
) -> dict[str, Any]:
    """Return the fields of a version that adds these periods to its calendar, each as a cohort. known: the earlier
    cohorts; `nominal`: declared number of clients in each new one; order: of all clients; day: as for `opening`.
    """
    new = (cohorts.opened(number, nominal, label, day) for number, label in enumerate(labels, len(known) + 1))
    made = (*known, *new)
    sizes = [cohort.nominal for cohort in made]
    total = None if None in sizes else sum(size for size in sizes if size is not None) or None
    return {"cohorts": made, "order": cohorts.joined(order), "nominal_clients": total}


def new_secret() -> str:
    return secrets.token_hex(32)


def needs(fields: Mapping[str, Any], rule: Rule) -> tuple[str, ...]:
    """What a reader must know to read a manifest with these fields. rule: of its ids"""
    features = (
        (manifests.COHORTS, fields.get("cohorts")),
        (manifests.HOLES, holes_of(fields.get("order", ()))),
        (rule, True),
        (manifests.PERIODS, fields["period"]),
        (manifests.HALVES, fields["halves"]),
        (manifests.COLUMNS, fields["columns"]),
        (manifests.RECORDS, fields["records"]),
        (manifests.IMAGE, fields["image"]),
        (manifests.DELIVERIES, fields.get("deliveries") or fields.get("occasions")),
        (manifests.PACKED, Blocks.of(fields["blocks"]).packable),
    )
    return tuple(name for name, there in features if there)


def commit(path: Path, made: Manifest) -> Population:
    """Makes a version visible, durably and at once: all that it names is there and flushed.

    Raises FileExistsError if there is such a version already, MayBeThere, or another OSError: then it is not there.
    """
    file = layout.version_file(path, made.version)
    files.make_folder(file.parent, layout.is_closed(path))
    for name in (layout.ROOT, f"{layout.BLOCKS}/{layout.ROOT}"):
        files.flush(path / name)
    files.flush(path)
    layout.create_exclusively(file, manifests.encode(made))
    return Population(path, made)
