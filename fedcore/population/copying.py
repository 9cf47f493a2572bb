"""Copying a version of a population between folders and object storage, in either direction.

What no manifest names does not exist, so the order is everything: slots, vocabulary and groups first, the manifest
last. A copy that was interrupted is taken up again by the same command. It keeps the population id, hence the budget.

Whom the source has forgotten is still in older versions of a copy, until these are pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from fedcore.errors import ChunkError, ManifestError, PopulationError
from fedcore.population import layout, slots, suppression
from fedcore.population import manifest as manifests
from fedcore.population.block_table import BlockEntry
from fedcore.population.manifest import Manifest
from fedcore.population.slots import Slot
from fedcore.population.store import Population
from fedcore.storage import files
from fedcore.storage import objects as object_storage
from fedcore.storage.parsing import parse_json


@dataclass(frozen=True, slots=True)
class Copied:
    """What `copy_population` did. kept: blocks that were there already; bytes: of the blocks that were copied; pruned:
    versions that were removed there.
    """

    dest: str
    population_id: str
    version: int
    blocks: int
    kept: int
    bytes: int
    pruned: int = 0


def copy_population(
    source: str | layout.Place,
    dest: str | layout.Place,
    version: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    prune: bool = False,
) -> Copied:
    """Copies one version (default: the newest) with everything that it names.

    source, dest: folders or URLs. Blocks that are there with the right size and checksum are not copied again; each
    block that is copied is compared with the manifest's checksum while it is read. Holds at most about 32 MiB, or one
    stored file. progress: called with (blocks done, blocks). prune: remove versions at `dest`, before the one that is
    copied, that the source no longer has, and everything that no version there names. A bucket that keeps versions of
    its objects keeps these too.

    Raises ChunkError or ManifestError if the source is damaged, and PopulationError if `dest` holds anything else, is
    another branch of the same population, cannot be written, or cannot be reached. The version is then not visible.
    """
    store, target = Population.open(source, version), layout.place(dest)
    made = store.manifest
    here = files.absolute(target)
    if here == store.location:
        raise PopulationError(f"{target} cannot be copied onto itself.", "Name another place.")
    with _locked(target, private=made.ledger is not None):
        there = _refuse_others(store, target)
        fresh = there is None
        _mark(target, made)
        if not layout.is_remote(target):
            with layout.named_os_errors(target):
                files.make_folder(target / layout.BLOCKS, made.ledger is not None)
            _remove_leftovers(target, {*made.blocks.slots(), *(there or ())})
        kept, size = 0, 0
        for index, entry in enumerate(made.blocks):
            if entry.void:
                pass
            elif not fresh and _is_there(target, entry):
                kept += 1
            else:
                if not fresh:
                    _remove(layout.block_folder(target, entry.slot))
                size += _copy_slot(store, index, entry, target)
            if progress is not None:
                progress(index + 1, len(made.blocks))
        _copy_vocabulary(store, target)
        if made.suppression is not None:
            with layout.named_os_errors(target):
                suppression.copy(store.path, target, made.suppression)
        for name in (f"{layout.BLOCKS}/{layout.ROOT}", layout.ROOT):
            _put(target, name, _group(store, name))
        copy_witness(store, target)
        _commit(target, made)
        pruned = _prune(store, target) if prune else 0
        _unmark(target, made)
    return Copied(here, made.population_id, made.version, len(made.blocks), kept, size, pruned)


@contextmanager
def _locked(target: layout.Place, private: bool) -> Iterator[None]:
    """Makes the place and, if it is local, holds its writer lock. Object storage has none, hence the marker.

    private: whether new folders are for their owner's eyes only
    """
    with ExitStack() as stack:
        if not layout.is_remote(target):
            with layout.named_os_errors(target):
                files.make_folder(target, private, durable=True)
                stack.enter_context(layout.writer_lock(target))
                layout.refuse_links(target, 2)
        yield


def _refuse_others(store: Population, target: layout.Place) -> set[str] | None:
    """The slots that manifests there name; None if the place is empty. Raises PopulationError if it holds something
    that the copy must not be mixed with.
    """
    made = store.manifest
    remedy = "Name another place."
    found: dict[str, str] = {}
    known = layout.versions(target)
    for version in known:
        there = manifests.load(target, version)
        if there.population_id != made.population_id:
            raise PopulationError(f"There is another population at {target} (id {there.population_id}).", remedy)
        if version == made.version and there != made:
            raise PopulationError(f"{target} has another version {version} of this population.", remedy)
        found |= dict(zip(there.blocks.slots(), there.blocks.fingerprints(), strict=True))
    for slot, fingerprint in zip(made.blocks.slots(), made.blocks.fingerprints(), strict=True):
        if found.get(slot, fingerprint) != fingerprint:
            raise PopulationError(
                f"{target} was appended to separately: its slot {slot} differs from that of {store.path}.", remedy
            )
    marker = layout.read_beside(target, layout.MARKER)
    if marker is not None and marker.decode("ascii", "replace") != made.population_id:
        raise PopulationError(
            f"Another population is being copied to {target}, or was and was left unfinished.",
            f"Name another place; or delete {target} first, if no other process is copying there.",
        )
    if known or marker is not None:
        return {*found}
    if layout.is_remote(target):
        occupied = bool(object_storage.names(target))
    else:
        occupied = layout.is_occupied(target)
    if occupied:
        raise PopulationError(f"{target} is not empty and holds no population.", "Name a new or empty place.")
    return None


def _remove_leftovers(target: layout.Place, named: set[str]) -> None:
    """Remove other slots, of a dead writer or copy. Once their version is there, no writer looks at them
    (`versions.sweep`).
    """
    for slot, size in files.listing(target / layout.BLOCKS).items():
        if size is None and slot not in named:
            _remove(layout.block_folder(target, slot))


def _mark(target: layout.Place, made: Manifest) -> None:
    content = made.population_id.encode()
    try:
        _create(target / layout.MARKER, content)
    except FileExistsError:
        if layout.read_beside(target, layout.MARKER) != content:
            raise PopulationError(f"Another population is being copied to {target}.", "Name another place.") from None


def _unmark(target: layout.Place, made: Manifest) -> None:
    try:
        _remove(target / layout.MARKER)
    except PopulationError as error:
        raise PopulationError(
            f"Version {made.version} was copied to {target}, and it is whole; only {layout.MARKER}, which marks a copy "
            "that is not finished, could not be removed.",
            "Run the same command again.",
        ) from error


def _is_there(target: layout.Place, entry: BlockEntry) -> bool:
    """Whether the slot is there: its size is compared first, and then its checksum, for which it is read."""
    folder = layout.block_folder(target, entry.slot)
    with layout.named_os_errors(target):
        return _size(folder) == entry.bytes and _fingerprint(target, entry) == (entry.fingerprint, entry.bytes)


def _fingerprint(target: layout.Place, entry: BlockEntry) -> tuple[str, int]:
    return slots.fingerprint(Slot.of(target, entry))


def _size(folder: layout.Place) -> int:
    if layout.is_remote(folder):
        return sum(object_storage.sizes(folder).values())
    return sum(file.stat().st_size for file in layout.files_of(folder))


def _copy_slot(store: Population, index: int, entry: BlockEntry, target: layout.Place) -> int:
    """Copies a block into a slot that is not there. Returns the bytes copied."""
    folder = layout.block_folder(target, entry.slot)
    hasher, held = slots.Fingerprint(), 0
    batch: dict[str, bytes] = {}
    for name, content in _source_files(store, index, entry):
        hasher.add(name, content)
        if batch and held + len(content) > object_storage.BATCH_BYTES:
            _write_files(folder, batch)
            batch, held = {}, 0
        batch[name] = content
        held += len(content)
    _write_files(folder, batch)
    if hasher.result() != (entry.fingerprint, entry.bytes):
        raise ChunkError(
            f"Block {index} (slot {entry.slot}) of {store.path}, version {store.version}: the stored files do not "
            "match their checksum. The version was not copied.",
            "Restore it from a backup, then copy again.",
        )
    with layout.named_os_errors(target):
        if layout.is_remote(folder):
            arrived = _size(folder) == entry.bytes
        else:
            files.seal(folder)
            files.flush(folder.parent)
            arrived = _fingerprint(target, entry) == (entry.fingerprint, entry.bytes)
    if not arrived:
        raise PopulationError(f"The files in {folder} differ from what was written.", "Copy again.")
    return entry.bytes


def _source_files(store: Population, index: int, entry: BlockEntry) -> Iterator[tuple[str, bytes]]:
    try:
        yield from layout.contents(layout.block_folder(store.path, entry.slot))
    except OSError as error:
        raise ChunkError(
            f"Block {index} (slot {entry.slot}) of {store.path}, version {store.version}, cannot be read: "
            f"{error.strerror or type(error).__name__}. The version was not copied.",
            "Restore it from a backup, then copy again.",
        ) from error


def _write_files(folder: layout.Place, batch: dict[str, bytes]) -> None:
    if layout.is_remote(folder):
        if batch:
            object_storage.write_many(folder, batch)
        return
    with layout.named_os_errors(folder):
        for name, content in batch.items():
            files.make_folder((folder / name).parent)
            with files.opened(folder / name) as handle:
                handle.write(content)


def _copy_vocabulary(store: Population, target: layout.Place) -> None:
    named, tokens = store.manifest.vocabulary, store.vocabulary()
    if named is not None and tokens is not None:
        content = "".join(f"{token}\n" for token in tokens).encode()
        _put(target, f"{layout.VOCABULARIES}/{named.sha256}.txt", content)


def _group(store: Population, name: str) -> bytes:
    try:
        return layout.read_bytes(store.path / name)
    except OSError as error:
        raise ManifestError(
            f"{store.path / name} cannot be read: {error.strerror or type(error).__name__}.",
            "Restore it from a backup.",
        ) from error


def copy_witness(store: Population, target: layout.Place) -> None:
    """Copies what the source saw of the ledger, unless the target saw more: a witness never goes back."""
    content = layout.read_beside(store.path, layout.WITNESS)
    if content is None:
        return
    there = layout.read_beside(target, layout.WITNESS)
    if there is not None:
        new, old = _seen(content), _seen(there)
        if new is None or old is None or new <= old:
            return
    _put(target, layout.WITNESS, content)


def _seen(witness: bytes) -> int | None:
    """The number of records that a witness has seen; None if it is damaged, which the next private run will report."""
    try:
        return int(parse_json(witness)["seq"])
    except (ValueError, TypeError, KeyError):
        return None


def _commit(target: layout.Place, made: Manifest) -> None:
    """Writes the manifest, unless the same is there already."""
    file = layout.version_file(target, made.version)
    if not layout.is_remote(target):
        with layout.named_os_errors(target):
            files.make_folder(target / layout.VERSIONS, layout.is_closed(target))
            files.flush(target)
    try:
        _create(file, manifests.encode(made))
    except FileExistsError:
        if manifests.load(target, made.version) != made:
            raise PopulationError(
                f"Another process was first to make version {made.version} of {target}.", "Name another place."
            ) from None


def _prune(store: Population, target: layout.Place) -> int:
    """Removes older versions that the source no longer has; first the manifests, then what none names any more."""
    kept = {*store.versions()}
    gone = [one for one in layout.versions(target) if one < store.version and one not in kept]
    for one in gone:
        _remove(layout.version_file(target, one))
    with layout.named_os_errors(target):
        files.flush(target / layout.VERSIONS)
    named = [manifests.load(target, one) for one in layout.versions(target)]
    lists = {f"{one.suppression}.txt" for one in named if one.suppression}
    names = {
        layout.BLOCKS: {layout.ROOT, *(slot for one in named for slot in one.blocks.slots())},
        layout.VOCABULARIES: {f"{one.vocabulary.sha256}.txt" for one in named if one.vocabulary},
        layout.FORGOTTEN: lists | {layout.KEY} if lists else lists,
    }
    for folder, stays in names.items():
        for name in files.listing(target / folder):
            if name not in stays:
                _remove(target / folder / name)
    return len(gone)


# --- one file, at either kind of place -------------------------------------------------------------------------------


def _create(file: layout.Place, content: bytes) -> None:
    """Writes a file that must not exist. Raises FileExistsError."""
    if layout.is_remote(file):
        object_storage.create(file, content)
        return
    try:
        layout.create_exclusively(file, content)
    except FileExistsError:
        raise
    except OSError:
        with layout.named_os_errors(file.parent):
            raise


def _put(target: layout.Place, name: str, content: bytes) -> None:
    """Writes a file completely and durably; nothing is written if it is there already."""
    folder = name.rpartition("/")[0]
    with layout.named_os_errors(target):
        if layout.read_beside(target, name) == content:
            return
        if not layout.is_remote(target):
            files.make_folder(target / folder, layout.is_closed(target))
        layout.write_beside(target, name, content)


def _remove(path: layout.Place) -> None:
    with layout.named_os_errors(path):
        files.remove(path)
