import errno
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.population import layout, slots
from fedcore.population import manifest as manifests
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.conftest import write_population


def some_counts(clients: int, features: int = 7, seed: int = 0) -> sp.csr_matrix:
    generator = np.random.default_rng(seed)
    dense = generator.integers(1, 9, (clients, features)) * (generator.random((clients, features)) < 0.4)
    return sp.csr_matrix(dense.astype(np.int64))


def some_rows(clients: int, features: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 6, clients)
    x = generator.normal(size=(int(lengths.sum()), features)).astype(np.float32)
    x[generator.random(x.shape) < 0.1] = np.nan
    return np.concatenate([[0], np.cumsum(lengths)]), x


def names(first: int, clients: int) -> list[str]:
    return [f"user {number}" for number in range(first, first + clients)]


def sealed_again(population: Population) -> Population:
    """The population with the digests that its files have now: as from a faulty writer."""
    blocks = []
    for entry in population.blocks:
        folder = layout.block_folder(population.path, entry.slot)
        (folder / slots.LIST).unlink()
        digest, size = slots.write_list(folder)
        blocks.append(entry.model_copy(update={"digest": digest, "bytes": size}))
    made = population.manifest.model_copy(update={"blocks": tuple(blocks)})
    layout.version_file(population.path, made.version).write_bytes(manifests.encode(made))
    return Population.open(population.path)


@pytest.fixture
def counts_population(tmp_path):
    """23 clients in leaves of 4 and blocks of 8, with held-out counts."""
    with PopulationWriter(tmp_path / "p", "counts", 7, clients_per_leaf=4, clients_per_block=8) as writer:
        writer.write(names(0, 23), some_counts(23), some_counts(23, seed=1))
        return writer.commit()


@pytest.fixture
def rows_population(tmp_path):
    """10 clients with dense rows, in leaves and blocks of 4."""
    return write_population(tmp_path / "p", "rows", 3, names(0, 10), some_rows(10), leaf=4, block=4)


@pytest.fixture
def refuse(monkeypatch):
    """Makes a system call about a path fail, the next so many times; done: after it has worked all the same."""

    def refuse(name: str, path: Path, times: int = 1, done: bool = False) -> None:
        real, left = getattr(os, name), [times]

        def call(*arguments, **options):
            about = arguments[-1] if name == "link" else arguments[0]
            about = os.readlink(f"/proc/self/fd/{about}") if isinstance(about, int) else os.fspath(about)
            if about != str(path) or not left[0]:
                return real(*arguments, **options)
            left[0] -= 1
            if done:
                real(*arguments, **options)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, name, call)

    return refuse
