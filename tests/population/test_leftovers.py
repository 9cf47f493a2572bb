"""What stays on the disk after any sequence of operations, whichever of them a kill or a full disk ended."""

from __future__ import annotations

import builtins
import errno
import os
import random
from pathlib import Path

import pytest

from fedcore.errors import FedcoreError
from fedcore.population import copying, layout, versions
from fedcore.population import manifest as manifests
from fedcore.population.conversion import begin_cohorts, open_cohort
from fedcore.population.copying import copy_population
from fedcore.population.erasing import compact, forget
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.conftest import write_population
from tests.population.conftest import names, some_counts

WAYS = ("append", "append", "append", "forget", "forget", "compact", "cohort", "copy", "copy", "copy", "roll back")


class Killed(BaseException):
    """A process that was killed: it removes nothing on its way out."""


def ending(patch: pytest.MonkeyPatch, after: int, full: bool) -> None:
    """From now on the disk takes this many changes. Then it is full, or the process is dead and changes nothing."""
    done = 0

    def change(removes: bool) -> None:
        nonlocal done
        done += 1
        if done > after and full and not removes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if done > after and not full:
            raise Killed

    def patched(name: str, removes: bool = False) -> None:
        real = getattr(os, name)
        patch.setattr(os, name, lambda *args, **more: (change(removes), real(*args, **more))[1])

    real_open, real_os_open = builtins.open, os.open

    def opened(file, mode="r", *args, **more):
        if set(mode) & set("wax+"):
            change(False)
        return real_open(file, mode, *args, **more)

    def os_opened(path, flags, *args, **more):
        if flags & os.O_CREAT:
            change(False)
        return real_os_open(path, flags, *args, **more)

    for name in ("mkdir", "link", "rename", "replace", "unlink", "rmdir"):
        patched(name, removes=name in ("unlink", "rmdir"))
    patch.setattr(builtins, "open", opened)
    patch.setattr("io.open", opened)
    patch.setattr(os, "open", os_opened)


def named(path: Path) -> set[str]:
    """What manifests name, below the folders in which leftovers are swept."""
    found: set[str] = set()
    for version in layout.versions(path):
        made = manifests.load(path, version)
        found.update(f"blocks/{slot}" for slot in made.blocks.slots())
        found.update([f"vocabularies/{made.vocabulary.sha256}.txt"] if made.vocabulary else [])
        found.update([f"forgotten/{made.suppression}.txt", "forgotten/key"] if made.suppression else [])
    return found


def there(path: Path) -> set[str]:
    """What is there, in the same folders."""
    folders = [path / name for name in (layout.BLOCKS, layout.VOCABULARIES, layout.FORGOTTEN)]
    found = {f"{folder.name}/{one.name}" for folder in folders if folder.is_dir() for one in folder.iterdir()}
    return found - {"blocks/zarr.json"}


def one_step(rng: random.Random, path: Path, other: Path) -> None:
    """Any operation on the population at `path`."""
    way = rng.choice(WAYS)
    some = names(0, 14)
    rng.shuffle(some)
    if way == "copy":
        copy_population(path, other, version=rng.choice([None, *layout.versions(path)]), prune=rng.random() < 0.3)
        return
    population = Population.open(path)
    if way == "roll back":  # to the newest version of a backup, whose blocks are all here
        found = layout.versions(path)
        if len(found) > 1:
            layout.version_file(path, rng.choice(found[-2:])).unlink()
    elif way == "append":
        mine = [one for number in range(len(population.blocks)) for one in population.client_ids(number).tolist()]
        new = [one for one in some if one not in mine][: rng.randint(1, 4)]
        kept = rng.randint(0, len(population.blocks))
        with PopulationWriter.extending(population) as writer:
            for number, entry in enumerate(population.blocks):
                if number < kept or entry.void:
                    writer.keep(entry)
                else:
                    writer.write(
                        population.client_ids(number).tolist(), population.read_clients(number, 0, entry.clients)
                    )
                    writer.close_block()
            writer.write(new, some_counts(len(new)))
            writer.commit()
    elif way == "forget":
        forget(population, clients=some[: rng.randint(0, 3)], without_trace=rng.random() < 0.3)
    elif way == "compact":
        compact(population)
    elif population.manifest.cohorts:
        open_cohort(population)
    else:
        begin_cohorts(population, lambda version, checksum, token: token)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int = 25) -> dict[str, int]:
    """Any steps on two populations, of which each may be copied to the other. Returns how many ended how."""
    rng, sweep, wrong = random.Random(seed), versions.sweep, list[set[str]]()
    ended = {"done": 0, "refused": 0, "killed": 0, "swept": 0}

    def swept(path: Path) -> None:
        before = there(path)
        sweep(path)
        ended["swept"] += there(path) != before
        wrong.append(there(path) ^ named(path))

    places = [folder / "p", folder / "q"]
    tokens = [f"token {number}" for number in range(7)]
    with PopulationWriter(places[0], "counts", 7, clients_per_leaf=1, clients_per_block=2, vocabulary=tokens) as writer:
        writer.write(names(0, 5), some_counts(5))
        writer.commit()
    copy_population(*places)
    for _ in range(steps):
        rng.shuffle(places)
        after = rng.choice([rng.randrange(12), rng.randrange(120), 10**9])
        with monkeypatch.context() as patch:
            patch.setattr(versions, "sweep", swept)
            ending(patch, after, full=rng.random() < 0.3)
            try:
                one_step(rng, *places)
                ended["done"] += 1
            except FedcoreError:
                ended["refused"] += 1
            except Killed:
                ended["killed"] += 1
        wrong += [named(path) - there(path) for path in places]
        assert not any(wrong), (seed, wrong)
    for path in places:
        with versions.writing(Population.open(path)):
            assert there(path) == named(path)
        assert Population.open(path).verify().ok
    return ended


@pytest.mark.parametrize("seed", range(2))
def test_leftovers_are_removed_and_nothing_else(tmp_path, monkeypatch, seed):
    ended = run(tmp_path, monkeypatch, seed)
    assert min(ended.values()) > 0, ended


def leave(path: Path, version: int) -> Path:
    """A slot as a dead writer of this version leaves it."""
    slot = path / layout.BLOCKS / versions.slot_name(version, 999)
    slot.mkdir()
    return slot


def test_a_copy_removes_what_a_dead_writer_of_its_version_left(tmp_path):
    population = write_population(tmp_path / "p", "counts", 7, names(0, 5), some_counts(5), leaf=1, block=2)
    copy_population(population.path, tmp_path / "q")
    left = leave(tmp_path / "q", 2)
    begin_cohorts(population, lambda version, checksum, token: token)
    copy_population(population.path, tmp_path / "q")
    assert not left.exists() and there(tmp_path / "q") == named(tmp_path / "q")


def test_forgetting_removes_each_slot_that_no_manifest_names(tmp_path):
    """Also one of a version that is there, as a restored backup may bring it back."""
    population = write_population(tmp_path / "p", "counts", 7, names(0, 5), some_counts(5), leaf=1, block=2)
    left = [leave(tmp_path / "p", version) for version in (1, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "check_and_sweep", lambda path, parent: None)
        forget(population, clients=["user 1"])
    assert not any(slot.exists() for slot in left) and there(tmp_path / "p") == named(tmp_path / "p")


def test_what_an_interrupted_copy_brought_is_removed(tmp_path, monkeypatch):
    """Slots of another branch may have the number of a version that is there."""
    population = write_population(tmp_path / "p", "counts", 7, names(0, 5), some_counts(5), leaf=1, block=2)
    copy_population(population.path, tmp_path / "q")
    population = begin_cohorts(population, lambda version, checksum, token: token)
    with PopulationWriter.extending(Population.open(tmp_path / "q")) as writer:  # another version 2, with a new slot
        for entry in writer.parent.blocks:
            writer.keep(entry)
        writer.write(names(9, 1), some_counts(1))
        other = writer.commit()
    begin_cohorts(other, lambda version, checksum, token: token)
    monkeypatch.setattr(copying, "_copy_vocabulary", lambda source, target: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        copy_population(other.path, population.path)
    assert there(population.path) > named(population.path)
    with versions.writing(population):
        assert there(population.path) == named(population.path)
