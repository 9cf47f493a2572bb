"""The table of a version's blocks: a manifest of many blocks is packed, reads as the other kind does, and is refused if
it is damaged; nothing that is done with one looks at every block for every block, or at every client."""

import json
from base64 import b64encode
from collections.abc import Callable

import numpy as np
import pytest

from fedcore.errors import ManifestError, PopulationError
from fedcore.population import block_table, cohorts, layout
from fedcore.population import manifest as manifests
from fedcore.population.block_table import Blocks, total_of
from fedcore.population.cohorts import Runs, of_each
from fedcore.population.conversion import begin_cohorts, open_cohort
from fedcore.population.copying import copy_population
from fedcore.population.erasing import compact, forget
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.conftest import write_population
from tests.population.conftest import names, some_counts, some_rows
from tests.population.contents import ids_of


@pytest.fixture
def packed(monkeypatch):
    monkeypatch.setattr(block_table, "PACKED_ABOVE", 2)


def stored(population: Population) -> dict:
    return json.loads(layout.version_file(population.path, population.version).read_bytes())


def test_a_manifest_of_many_blocks_is_packed(packed, counts_population):
    content = stored(counts_population)
    assert "packed-blocks" in content["needs"] and isinstance(content["blocks"], dict)
    assert Population.open(counts_population.path) == counts_population and counts_population.verify().ok
    assert content["checksum"] == counts_population.checksum
    assert content["blocks"]["heldout.words"] == -1 and isinstance(content["blocks"]["train.entries"], str)


def test_few_blocks_are_listed_as_before(monkeypatch, counts_population):
    content = stored(counts_population)
    assert "packed-blocks" not in content["needs"] and len(content["blocks"]) == 3
    monkeypatch.setattr(block_table, "PACKED_ABOVE", 2)  # of a fedcore that packs
    old = Population.open(counts_population.path)
    assert old == counts_population and old.checksum == content["checksum"]
    made = forget(old, clients=["user 9"]).population
    assert isinstance(stored(made)["blocks"], dict) and made.verify().ok
    assert made.blocks[0] == old.blocks[0] and made.blocks[1].slot != old.blocks[1].slot


@pytest.mark.parametrize("kind", ["counts", "rows"])
def test_packed_versions_are_appended_to_forgotten_copied_and_compacted(packed, tmp_path, kind):
    features, some = (7, some_counts) if kind == "counts" else (3, some_rows)
    made = write_population(tmp_path / "p", kind, features, names(0, 10), some(10), leaf=2, block=2)
    with PopulationWriter.extending(made) as writer:
        for entry in made.blocks:
            writer.keep(entry)
        writer.write(names(10, 2), some(2))
        more = writer.commit()
    assert more.blocks[:5] == made.blocks[:] and ids_of(more) == names(0, 12)
    after = forget(more, clients=["user 2", "user 3", "user 6"]).population
    assert [block.void for block in after.blocks] == [False, True, False, False, False, False]
    assert after.blocks[1].digest is None and after.blocks[1].parts == () and after.verify().ok
    assert Population.open(after.path) == after and after.manifest.order == ((1, 2), (0, 2), (1, 2), (0, 1), (1, 5))
    copy_population(str(after.path), str(tmp_path / "q"))
    assert Population.open(tmp_path / "q").manifest == after.manifest
    assert len(compact(after).population.participants()) == 1


def test_a_table_is_its_blocks(counts_population):
    table = counts_population.blocks
    entries = list(table)
    assert Blocks.of(entries) == table and Blocks.of(table) is table and Blocks.unpacked(table.packed()) == table
    assert table[-1] == entries[-1] == table[2] and table[1:] == tuple(entries[1:]) and entries[1] in table
    with pytest.raises(IndexError):
        table[3]
    assert total_of(entries) == total_of(table) == sum(part.total for entry in entries for part in entry.parts)
    assert table.slots() == [entry.slot for entry in entries]
    assert table.fingerprints() == [entry.digest for entry in entries]
    assert table.starting_at(8) == 1 and table.starting_at(9) is None and table.starting_at(23) is None
    assert table != table.changed({1: entries[1].model_copy(update={"slot": "another-longer-name"})})
    assert table.changed({1: entries[1]}) == table
    for ranges in ((), ((0, 1),), ((7, 9),), ((8, 16),), ((0, 1), (22, 23)), ((16, 40),)):
        wanted = [any(low < e.first + e.clients and e.first < high for low, high in ranges) for e in entries]
        assert table.overlapping(ranges).tolist() == wanted


def test_numbers_of_more_than_64_bits_are_listed(packed, counts_population):
    entry = counts_population.blocks[0]
    large = entry.model_copy(update={"train": entry.train.model_copy(update={"total": 2**70})})
    table = counts_population.blocks.changed({0: large})
    assert table[0] == large and not table.packable and table.sum_of("train.total") > 2**70


def decoded(content: dict) -> manifests.Manifest:
    """What is read of a manifest of this content, with the checksum that goes with it."""
    content = {name: value for name, value in content.items() if name != "checksum"}
    return manifests.decode(json.dumps({**content, "checksum": manifests.checksum_of(content)}).encode(), "here")


@pytest.mark.parametrize("above", [2, 1000])
def test_what_pydantic_writes_of_a_manifest_is_read_again(monkeypatch, tmp_path, above):
    monkeypatch.setattr(block_table, "PACKED_ABOVE", above)
    made = write_population(tmp_path / "p", "counts", 7, names(0, 10), some_counts(10), leaf=2, block=2)
    manifest = forget(made, clients=["user 2", "user 3"]).population.manifest
    text = manifest.model_dump_json()
    assert json.loads(text) == manifest.model_dump(mode="json")
    assert json.loads(text)["blocks"] == manifest.blocks.listed()
    assert manifests.Manifest.model_validate_json(text) == manifest
    assert manifests.Manifest(**manifest.model_dump()) == manifest


def number(values: list[int]) -> str:
    return b64encode(np.array(values, "<i8")).decode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": None}, "not text"),
        ({"slots": "../x\na\nb"}, "folder"),
        ({"slots": "a\nb"}, "one digest"),
        ({"slots": "a\n\nb"}, "void"),
        ({"slots": "v000001-000000\nv000001-000000\nb"}, "twice"),
        ({"digests": "zz"}, "hexadecimal"),
        ({"clients": number([8, 8])}, "clients"),
        ({"clients": number([8, 8, 0])}, "clients"),
        ({"clients": number([8, 7, 8])}, "whole leaves"),
        ({"clients": 8}, "24 clients, not 23"),
        ({"clients": 2**62}, "too many"),
        ({"clients": "?"}, "blocks"),
        ({"clients": 1.5}, "neither"),
        ({"clients": 2**64}, "neither"),
        ({"train.dtype": 4}, "train.dtype"),
        ({"train.entries": -1}, "train.entries"),
        ({"train.total": -1}, "train.total"),
        ({"train.dtype": -1}, "train.dtype"),
        ({"train.words": 1}, "dictionaries"),
        ({"heldout.total": -2}, "heldout.total"),
        ({"heldout.entries": 5, "heldout.total": -1, "heldout.dtype": -1}, "held-out part"),
        ({"heldout.entries": 5, "heldout.total": 5, "heldout.dtype": -1}, "held-out part"),
        ({"heldout.entries": -1, "heldout.total": 7, "heldout.dtype": -1}, "held-out part"),
        ({"heldout.entries": -1, "heldout.total": -1, "heldout.dtype": 0}, "held-out part"),
        ({"heldout.entries": -1, "heldout.total": -1, "heldout.dtype": -1, "heldout.words": 3}, "held-out part"),
        ({"bytes": -1}, "bytes"),
        ({"more": 1}, "columns"),
    ],
)
def test_a_damaged_table_is_refused(packed, counts_population, changes, words):
    content = stored(counts_population)
    content["blocks"] |= changes
    with pytest.raises(ManifestError, match=words):
        decoded(content)


def test_a_table_that_is_packed_in_another_way_is_refused(packed, counts_population):
    content = stored(counts_population)
    digests = content["blocks"]["digests"]
    for changes in (
        {"digests": digests.upper()},
        {"digests": f"{digests[:64]} {digests[64:]}"},
        {"digests": f"{digests} "},
        {"heldout.words": number([-1, -1, -1])},
    ):
        with pytest.raises(ManifestError, match="not packed as"):
            decoded({**content, "blocks": content["blocks"] | changes})
    assert manifests.checksum(decoded(content)) == content["checksum"]


@pytest.mark.parametrize("above", [2, 1000])
def test_a_name_of_a_slot_is_at_most_that_of_a_folder(monkeypatch, tmp_path, above):
    monkeypatch.setattr(block_table, "PACKED_ABOVE", above)
    content = stored(write_population(tmp_path / "p", "counts", 7, names(0, 23), some_counts(23), leaf=2, block=8))

    def named(name: str) -> dict:
        text = json.dumps(content["blocks"]).replace("v000001-000001", name)
        return {**content, "blocks": json.loads(text)}

    assert decoded(named("a" * 255)).blocks[1].slot == "a" * 255
    with pytest.raises(ManifestError, match=r"blocks.*(folder|pattern)"):
        decoded(named("a" * 256))


def test_a_table_of_the_other_form_is_refused(packed, counts_population):
    content = stored(counts_population)
    other = [{**content, "blocks": counts_population.blocks.listed()}, {**content, "needs": ["stripped-ids"]}]
    for one in other:
        with pytest.raises(ManifestError, match="blocks"):
            decoded(one)


@pytest.mark.parametrize("leaf", [2**63, 2**70])
def test_a_leaf_may_be_larger_than_every_block(counts_population, leaf):
    content = {**stored(counts_population), "clients_per_leaf": leaf}
    with pytest.raises(ManifestError, match="block 0 does not hold whole leaves"):
        decoded(content)
    first = content["blocks"][0]
    alone = {**content, "blocks": [first], "n_clients": first["clients"], "n_rows": first["train"]["total"]}
    assert decoded(alone).clients_per_leaf == leaf


def void(first: int, clients: int) -> dict:
    part = {"entries": 0, "total": 0, "dtype": "int32"}
    return {"void": True, "first": first, "clients": clients, "train": part, "id_bytes": 0, "bytes": 0}


def of_voids(content: dict, sizes: list[int], order: list[list[int]], leaf: int = 1) -> dict:
    """The content with void blocks of these sizes alone."""
    blocks = [void(sum(sizes[:at]), size) for at, size in enumerate(sizes)]
    made = {"blocks": blocks, "n_clients": sum(sizes), "n_rows": 0, "order": order, "clients_per_leaf": leaf}
    return {**content, **made, "needs": ["holes", *content["needs"]]}


def test_a_void_block_of_many_clients_is_no_array_of_them(counts_population):
    content = stored(counts_population)
    for size in (2**40, 2**62):
        assert decoded(of_voids(content, [size], [[0, size]])).blocks.void.all()
        with pytest.raises(ManifestError, match="not forgotten"):
            decoded(of_voids(content, [size], [[0, size - 1], [1, 1]]))


@pytest.mark.parametrize(
    ("order", "whole"),
    [
        ([[0, 9]], True),
        ([[1, 1], [0, 8]], False),
        ([[0, 8], [1, 1]], False),
        ([[0, 4], [1, 1], [0, 4]], False),
        ([[0, 2], [1, 1], [0, 6]], False),
        ([[0, 3], [1, 1], [0, 5]], False),
    ],
)
def test_void_blocks_are_holes_from_end_to_end(counts_population, order, whole):
    content = of_voids(stored(counts_population), [3, 2, 4], order)
    if whole:
        assert decoded(content).blocks.void.all()
        return
    with pytest.raises(ManifestError, match="a void block has clients that were not forgotten"):
        decoded(content)


def test_more_clients_than_64_bits_hold_are_refused(counts_population):
    content = stored(counts_population)
    for sizes in ([2**63], [2**63 - 1, 1], [2**63 - 1, 2**63 - 1, 2], [2**70]):
        with pytest.raises(ManifestError, match="too many clients"):
            decoded(of_voids(content, sizes, [[0, sum(sizes)]]))


@pytest.mark.parametrize("error", [OverflowError, MemoryError])
@pytest.mark.parametrize("where", ["fault", "unpacked"])
def test_numbers_that_no_array_holds_are_a_fault_of_the_manifest(packed, monkeypatch, counts_population, error, where):
    def fails(*given: object) -> None:
        raise error("too large")

    content = stored(counts_population)
    monkeypatch.setattr(Blocks, where, fails)
    with pytest.raises(ManifestError, match="64 bits or in memory"):
        decoded(content)


def test_an_append_looks_up_each_block_a_few_times(tmp_path, monkeypatch):
    blocks, looked = 60, []
    made = write_population(tmp_path / "p", "counts", 7, names(0, blocks), some_counts(blocks), leaf=1, block=1)
    real = Blocks.__getitem__
    monkeypatch.setattr(Blocks, "__getitem__", lambda table, at: (looked.append(at), real(table, at))[1])
    entries = list(made.blocks)
    with PopulationWriter.extending(made) as writer:
        for entry in entries:
            writer.keep(entry)
        with pytest.raises(PopulationError, match="does not follow"):
            writer.keep(entries[0])
        writer.write(["one more"], some_counts(1))
        assert writer.commit().n_clients == blocks + 1
    assert len(looked) < 12 * blocks


def test_cohorts_of_a_billion_clients_are_runs():
    order = ((1, 3), (0, 2), (2, 10**9))
    assert of_each(order, 2, 4).tolist() == [1, 0, 0, 2] and of_each(order, 10**9, 2).tolist() == [2, 2]
    runs = Runs.of(order)
    assert runs.between(4, 10**9) == ((0, 1), (2, 10**9 - 5)) and runs.between(3, 3) == runs.between(4, 4) == ()
    assert runs.between(0, 10**9 + 5) == order and runs.between(10**9 + 5, 10**9 + 5) == ()


@pytest.mark.parametrize("cohorts_to", [None, 1])
def test_forgetting_converts_the_order_a_few_times_for_any_number_of_blocks(tmp_path, monkeypatch, cohorts_to):
    blocks, looked = 40, []
    made = write_population(tmp_path / "p", "counts", 7, names(0, 2 * blocks), some_counts(2 * blocks), leaf=2, block=2)
    begun = begin_cohorts(made, lambda version, checksum, token: token)
    before = open_cohort(forget(begun, clients=names(0, 2 * blocks)[::4]).population, None)

    def counted(name: str, real: Callable[..., object]) -> None:
        monkeypatch.setattr(cohorts, name, lambda *given: (looked.append(name), real(*given))[1])

    for name in ("_where", "mask"):
        counted(name, getattr(cohorts, name))
    real = Runs.of.__func__
    monkeypatch.setattr(Runs, "of", classmethod(lambda cls, order: (looked.append("of"), real(cls, order))[1]))
    chosen = {"clients": names(0, 2 * blocks)[1::4]} if cohorts_to is None else {"cohorts_to": cohorts_to}
    after = forget(before, **chosen)
    assert after.clients == (blocks // 2 if cohorts_to is None else 3 * blocks // 2)
    assert len(looked) < blocks // 2
    looked.clear()
    if cohorts_to is None:
        compact(after.population)
        assert len(looked) < blocks // 2
