"""How large blocks are made and how they are shared out: by hand, and as laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.population import sizing
from fedcore.population.ingest.ingest import ingest
from fedcore.population.sizing import (
    BlockLimit,
    block_limit,
    blocks_of,
    explicit_clients_per_block,
    is_small,
    shared_out,
)
from fedcore.population.writer import PopulationWriter

MIB = 1 << 20


@pytest.fixture
def machine(monkeypatch):
    """Sets the cores and the memory of this machine."""

    def have(cores: int, memory: int = 64 << 30):
        monkeypatch.setattr(sizing, "usable_cores", lambda: cores)
        monkeypatch.setattr(sizing, "usable_memory", lambda: memory)

    return have


def test_blocks_grow_with_the_clients_before_them():
    """parts = 4: a leaf up to 8 leaves, two up to 12, then 3, 3, 4, ...; whole leaves; 8 at most."""
    limit = BlockLimit(clients=80, bytes=10**9, parts=4)
    made = blocks_of(1000, 10, limit, 1.0)
    assert [block // 10 for block in made] == [1] * 8 + [2, 2, 3, 3, 4, 5, 6] + [8] * 8 + [3]
    assert sum(made) == 1000
    assert blocks_of(25, 10, limit, 1.0) == [10, 10, 5]


def test_a_number_of_clients_that_was_explicit_clients_per_block_holds_from_the_first_block(machine):
    machine(16)
    assert blocks_of(100, 4, block_limit(4, 31), 1.0) == [32, 32, 32, 4]
    assert explicit_clients_per_block(4, 32) == 32 and explicit_clients_per_block(4, block_limit(4).clients) is None
    assert explicit_clients_per_block(100, block_limit(100).clients) is None, "rounded up to leaves"


def test_bytes_close_a_block_at_the_next_leaf():
    assert blocks_of(100, 10, BlockLimit(1000, 250), 10.0) == [30, 30, 30, 10]
    assert blocks_of(30, 10, BlockLimit(1000, 1), 10.0) == [10, 10, 10]


@pytest.mark.parametrize(
    ("cores", "memory", "parts", "size"),
    [(2, 24 << 30, 4, 32 * MIB), (2, 2 << 30, 4, 16 * MIB), (64, 64 << 30, 128, 16 * MIB), (8, 1 << 30, 16, 2 * MIB)],
)
def test_cores_and_memory_decide(machine, cores, memory, parts, size):
    machine(cores, memory)
    assert block_limit(1024) == BlockLimit(8192, size, parts)
    assert block_limit(1024, 5000, 10) == BlockLimit(5120, 10, None)


def test_a_control_group_bounds_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(sizing, "CONTROL_GROUP", tmp_path)
    whole = sizing.usable_memory()
    (tmp_path / "memory.max").write_text("max\n")
    assert sizing.usable_memory() == whole
    (tmp_path / "memory.max").write_text(f"{2**28}\n")
    assert sizing.usable_memory() == 2**28
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(str(2**63 - 4096))
    assert sizing.usable_memory() == whole


@given(st.lists(st.floats(0, 1e6), max_size=60), st.integers(1, 8))
def test_shares_differ_by_no_more_than_a_block(sizes, parts):
    shares = shared_out(sizes, parts)
    assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
    assert all(share == sorted(share) for share in shares) and len(shares) == parts
    held = [sum(sizes[index] for index in share) for share in shares]
    assert max(held) - min(held) <= max(sizes, default=0.0) * (1 + 1e-9) + 1e-6


def test_neighbours_share_a_part():
    """Equal shares of 10.5: 8; 4, 3 and 2 from the end. The 2 that is left goes to the 8, a one to what has least."""
    assert shared_out([1, 1, 2, 2, 3, 4, 8], 2) == [[0, 1, 3, 4, 5], [2, 6]]
    assert shared_out([1.0] * 10, 3) == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert shared_out([5, 5], 4) == [[1], [0], [], []]


@pytest.mark.parametrize("clients", [5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000])
@pytest.mark.parametrize("cores", [1, 2, 4, 16])
def test_as_many_workers_as_cores_have_like_shares(machine, clients, cores):
    """None has more than a leaf, or a fiftieth, above an equal share."""
    machine(cores)
    made = blocks_of(clients, 1024, block_limit(1024), 800.0)
    largest = max(sum(made[block] for block in share) for share in shared_out(made, cores))
    assert largest <= max(clients / cores + 1024, 1.02 * clients / cores)
    assert len(made) <= 2 * cores * (3 + np.log(clients / 1024)) + clients / 8192


def rows(clients: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(clients + 1), np.arange(2.0 * clients).reshape(clients, 2)


def test_a_population_is_written_and_appended_to_in_such_blocks(tmp_path, machine):
    """Appending fills the last block and goes on; what it does not touch stays as it is."""
    machine(1)  # 2 parts
    matrix = tmp_path / "a.npz"
    ids = np.array([f"c{number}" for number in range(100)])
    np.savez(matrix, x=rows(50)[1], client=ids[:50])
    first = ingest(matrix, tmp_path / "p", clients_per_leaf=4)
    assert [entry.clients for entry in first.blocks] == [4, 4, 4, 4, 8, 12, 14]
    np.savez(matrix, x=rows(100)[1][50:], client=ids[50:])
    second = ingest(matrix, tmp_path / "p", append=True)
    assert [entry.clients for entry in second.blocks] == [4, 4, 4, 4, 8, 12, 16, 24, 24]
    assert [entry.slot for entry in second.blocks[:6]] == [entry.slot for entry in first.blocks[:6]]
    machine(8)
    with PopulationWriter.extending(second) as writer:
        assert writer.limit == block_limit(4)
    with PopulationWriter(tmp_path / "q", "rows", 2, clients_per_leaf=4, clients_per_block=8) as writer:
        writer.write(ids[:30].tolist(), rows(30))
        explicit_clients_per_block_once = writer.commit()
    assert [entry.clients for entry in explicit_clients_per_block_once.blocks] == [8, 8, 8, 6]
    with PopulationWriter.extending(explicit_clients_per_block_once) as writer:
        assert writer.limit == BlockLimit(8, block_limit(4).bytes, None)


def test_small_is_what_could_be_one_block():
    assert is_small(8192, 32 * MIB) and not is_small(8193, 1) and not is_small(1, 32 * MIB + 1)
