"""Small populations, a ledger of test noise, and the toy method for every test that asks."""

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.methods import METHODS
from fedcore.population.manifest import Provenance
from fedcore.population.writer import PopulationWriter


@pytest.fixture(autouse=True)
def own_ledger(tmp_path, monkeypatch):
    """No test touches the user's ledger."""
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", "tests.toy:Toy")


def small_counts(clients: int = 50, features: int = 7, seed: int = 0) -> sp.csr_matrix:
    """Random counts; every ninth client is empty."""
    generator = np.random.Generator(np.random.Philox(seed))
    counts = generator.poisson(0.8, (clients, features))
    counts[::9] = 0
    return sp.csr_matrix(counts)


def write_counts(path, matrix, *, leaf=4, block=8, heldout=None, **options):
    """A population of the rows of `matrix`."""
    with PopulationWriter(path, "counts", matrix.shape[1], clients_per_leaf=leaf, clients_per_block=block,
                          **options) as writer:  # fmt: skip
        writer.write([f"c{i}" for i in range(matrix.shape[0])], matrix, heldout)
        return writer.commit(Provenance(sources=("test",)))
