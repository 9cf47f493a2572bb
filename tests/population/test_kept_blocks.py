"""Decoded blocks that the runs of one process which serves share: the same bits, bounded, gone with their slots."""

import os
import shutil
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.errors import ConfigError
from fedcore.population import kept_blocks
from fedcore.population.blocks import CountsBlock
from fedcore.population.copying import copy_population
from fedcore.population.erasing import forget
from fedcore.population.kept_blocks import VARIABLE, drop_gone, keeping, shared
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.population.conftest import names, some_counts, some_rows
from tests.test_engine import begin, to_end
from tests.toy import Toy

PLENTY = 2**30


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Where blocks are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    kept_blocks._of_this_process.cache_clear()
    return tmp_path / "cache" / "fedcore" / "blocks"


def made(path, kind="counts", clients=23, seed=0) -> Population:
    parts = some_counts if kind == "counts" else some_rows
    with PopulationWriter(path, kind, 7 if kind == "counts" else 3, clients_per_leaf=4, clients_per_block=8) as writer:
        writer.write(names(0, clients), parts(clients, seed=seed), parts(clients, seed=1))
        return writer.commit()


def used(population: Population, heldout: bool = False) -> None:
    """As a process would that has not met the blocks."""
    kept_blocks._of_this_process.cache_clear()
    for index in range(len(population.blocks)):
        shared(population, index, heldout, lambda index=index: population.read(index, heldout))


def kept_in(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*/*.arrays"))


def never():
    raise AssertionError("it was read from the store")


def fields(block) -> list:
    if block is None:
        return []
    arrays = [getattr(block, name) for name in kept_blocks.ARRAYS[type(block)]]
    features = block.features if isinstance(block, CountsBlock) else None
    bits = [(array.dtype, array.shape, array.tobytes()) for array in arrays]
    return [type(block), block.first, block.leaf, features, bits, fields(block.heldout)]


@pytest.mark.parametrize("heldout", [False, True])
@pytest.mark.parametrize("kind", ["counts", "rows"])
def test_a_kept_block_is_the_block(tmp_path, kind, heldout):
    population = made(tmp_path / "p", kind)
    with keeping(PLENTY):
        used(population, heldout)
        kept_blocks._of_this_process.cache_clear()
        for index in range(len(population.blocks)):
            plain = fields(population.read(index, heldout))
            assert fields(shared(population, index, heldout, never)) == plain and bool(plain[-1]) == heldout
            assert fields(shared(population, index, heldout, never)) == plain, "once it is known"
        with pytest.raises(AssertionError):
            shared(population, 0, not heldout, never)


def test_a_training_ends_with_the_same_bits_and_decodes_each_block_once(tmp_path, monkeypatch):
    plain = to_end(begin(tmp_path, Toy(), name="plain"))
    reads, real = [], Population.read
    monkeypatch.setattr(Population, "read", lambda *found: (reads.append(found[1]), real(*found))[1])
    with keeping(PLENTY):
        for name in ("one", "other"):
            training = begin(tmp_path, Toy(), name=name, population=Population.open(tmp_path / "p-plain"))
            training.source = replace(training.source, cache_bytes=0)
            assert to_end(training).centre.tobytes() == plain.centre.tobytes()
    assert sorted(reads) == list(training.blocks)


def test_without_anybody_who_serves_nothing_is_kept(tmp_path, cache):
    used(made(tmp_path / "p"))
    with keeping(PLENTY):
        pass
    used(made(tmp_path / "q"))
    assert list(cache.iterdir()) == []


def test_only_their_user_can_open_them(tmp_path, cache):
    before = os.umask(0)
    try:
        with keeping(PLENTY):
            used(made(tmp_path / "p"))
            found = list(cache.rglob("*"))
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (cache, *found)}
            assert {modes[path] for path in (cache, *found) if path.is_dir()} == {0o700}
            assert {modes[path] for path in kept_in(cache)} == {0o600} and len(kept_in(cache)) == 3
    finally:
        os.umask(before)
    cache.chmod(0o750)
    with pytest.raises(ConfigError, match="Others can open"), keeping(PLENTY):
        pass


def test_all_together_are_bounded_and_blocks_of_a_population_do_not_drive_out_each_other(tmp_path, cache):
    first, second = made(tmp_path / "p"), made(tmp_path / "q", seed=5)
    with keeping(PLENTY):
        used(first)
        sizes = [file.stat().st_size for file in kept_in(cache)]
    limit = sum(sizes) - min(sizes)
    with keeping(limit):
        used(first)
        before = kept_in(cache)
        assert len(before) == 2
        used(second)
        assert kept_in(cache) == before, "they may be needed by a run that goes on"
        for file in before:
            os.utime(file, (time.time() - 60, time.time() - 60))
        used(first)
        assert kept_in(cache) == before
        for file in before:
            os.utime(file, (time.time() - 60, time.time() - 60))
        used(second)
        after = kept_in(cache)
        assert after and not set(after) & set(before)
        assert sum(file.stat().st_size for file in after) <= limit
    with keeping(0):
        used(first)
        assert kept_in(cache) == []


def test_who_is_forgotten_is_not_kept(tmp_path, cache):
    population, other = made(tmp_path / "p"), made(tmp_path / "q")
    with keeping(PLENTY):
        for one in (population, other):
            used(one)
            used(one, heldout=True)
        gone = {file for file in kept_in(cache) if population.blocks[1].digest in file.name}
        gone = {file for file in gone if (file.parent / "population").read_text() == population.location}
        before = set(kept_in(cache))
        forget(population, clients=[str(population.client_ids(1)[2])])
        assert len(gone) == 2 and set(kept_in(cache)) == before - gone
        after = Population.open(tmp_path / "p")
        used(after)
        assert len(kept_in(cache)) == len(before) - 1


def test_what_was_kept_of_a_population_that_is_gone_goes_before_long(tmp_path, cache, monkeypatch):
    """Whoever removed it, and wherever."""
    monkeypatch.setattr(kept_blocks, "LOOK", 0.02)
    population = made(tmp_path / "p")
    with keeping(PLENTY):
        used(population)
        assert len(kept_in(cache)) == 3
        shutil.rmtree(tmp_path / "p")
        until = time.monotonic() + 10
        while kept_in(cache) and time.monotonic() < until:
            time.sleep(0.01)
        assert not kept_in(cache)


def test_another_population_at_the_same_place_is_another(tmp_path, cache):
    with keeping(PLENTY):
        used(made(tmp_path / "p"))
        shutil.rmtree(tmp_path / "p")
        other = made(tmp_path / "p", seed=7)
        with pytest.raises(AssertionError):
            shared(other, 0, False, never)
        drop_gone()
        assert not kept_in(cache)


@pytest.mark.parametrize("damage", [b"", b"x" * 10, None])
def test_a_damaged_file_is_read_from_the_store_again(tmp_path, cache, damage):
    population = made(tmp_path / "p")
    plain = fields(population.read(0))
    with keeping(PLENTY):
        used(population)
        (file,) = (file for file in kept_in(cache) if population.blocks[0].digest in file.name)
        content = bytearray(file.read_bytes())
        content[-40] ^= 1
        file.write_bytes(bytes(content) if damage is None else damage)
        kept_blocks._of_this_process.cache_clear()
        assert fields(shared(population, 0, False, lambda: population.read(0))) == plain
        assert fields(shared(population, 0, False, never)) == plain, "it is kept again"


def test_who_writes_into_a_block_changes_neither_the_file_nor_anybody_elses(tmp_path):
    population = made(tmp_path / "p")
    with keeping(PLENTY):
        used(population)
        mine, other = (shared(population, 0, False, never) for _ in range(2))
        plain = fields(other)
        mine.data[:] = 7
        assert fields(other) == plain == fields(shared(population, 0, False, never))


def test_a_full_disk_keeps_nothing_and_stops_nobody(tmp_path, cache, monkeypatch):
    population = made(tmp_path / "p")

    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def write(self, piece):
            raise OSError(28, "No space left on device")

    with keeping(PLENTY):
        monkeypatch.setattr(kept_blocks.files, "opened", lambda path, private: path.touch() or Full())
        used(population)
        assert [path for path in cache.rglob("*.arrays")] == []


def test_what_a_process_that_was_killed_has_left_goes(tmp_path, cache):
    population = made(tmp_path / "p")
    with keeping(PLENTY):
        used(population)
        (folder,) = cache.iterdir()
        shutil.copytree(folder, cache / "1-dead")  # nobody holds its lock
        drop_gone()
        assert list(cache.iterdir()) == [folder] and len(kept_in(cache)) == 3


def test_nobody_is_in_a_block_without_clients(tmp_path, cache):
    population = made(tmp_path / "p")
    forget(population, clients=population.client_ids(0).tolist())
    after = Population.open(tmp_path / "p")
    assert after.blocks[0].void
    with keeping(PLENTY):
        used(after)
        assert len(kept_in(cache)) == len(after.blocks) - 1


def test_of_a_population_behind_a_url_what_was_pruned_goes_too(tmp_path, cache):
    url = f"memory://kept-{tmp_path.name}"
    made(tmp_path / "p")
    copy_population(tmp_path / "p", url)
    population = Population.open(url)
    plain = fields(population.read(0))
    with keeping(PLENTY):
        used(population)
        assert fields(shared(population, 0, False, never)) == plain
        forgotten = forget(Population.open(tmp_path / "p"), clients=[str(population.client_ids(1)[2])]).population
        drop_gone(remote=True)
        assert len(kept_in(cache)) == 3
        copy_population(forgotten.path, url, prune=True)
        drop_gone()
        assert len(kept_in(cache)) == 3
        drop_gone(remote=True)
        assert len(kept_in(cache)) == 2
