"""Sizes from held-out samples: found where samples have them, and otherwise a run is the one that does not look."""

import numpy as np
import pytest

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries import Dictionaries, DictionariesConfig, structure_server
from fedcore.methods.dictionaries.state import DictionariesState, StructureMessage
from fedcore.methods.dictionary_learning import distances
from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.methods.dictionary_learning.sparse_codes import omp_with_errors
from fedcore.population.blocks import leaves
from fedcore.randomness import stream
from fedcore.rounds.statistics import merge, values
from tests.run_in_memory import block_of, facts, run_method

D, SHARED, OWN, CLIENTS = 48, 12, 8, 8
COMMON = random_atoms(stream(1, "structure"), SHARED, D)


def own_atoms(client):
    return random_atoms(stream(client, "structure/own"), OWN, D)


def sparse(generator, atoms, count, k):
    at = generator.permuted(np.tile(np.arange(len(atoms)), (count, 1)), axis=1)[:, :k]
    return np.einsum("nk,nkd->nd", generator.standard_normal(at.shape), atoms[at])


def planted(client, count, name="rows"):
    """(count, d) sums of two shared and two own atoms, and little noise."""
    generator = stream(client, f"structure/{name}")
    rows = sparse(generator, COMMON, count, 2) + sparse(generator, own_atoms(client), count, 2)
    return rows + 0.02 * generator.standard_normal(rows.shape)


def left(rows, atoms, k=4):
    """Share of the energy that k of the atoms leave."""
    return float(omp_with_errors(rows, atoms, k)[1].sum() / (rows**2).sum())


def default(**settings):
    return Dictionaries(DictionariesConfig(**settings))


def lines(outputs, state):
    rank = outputs["rank"] - len(state.common)
    return [np.concatenate([state.common, own[:count]]) for own, count in zip(outputs["local"], rank, strict=True)]


@pytest.fixture(scope="module")
def found():
    return run_method(default(), block_of([planted(client, 300) for client in range(CLIENTS)]))


@pytest.mark.slow
def test_sizes_are_those_that_made_the_samples(found):
    assert found.state.sparsity == 4 and found.state.structured and found.state.phase == "done"
    outputs, fresh = found.outputs(), [planted(client, 100, "fresh") for client in range(CLIENTS)]
    errors = [left(*pair) for pair in zip(fresh, lines(outputs, found.state), strict=True)]
    oracle = [left(rows, np.concatenate([COMMON, own_atoms(client)])) for client, rows in enumerate(fresh)]
    assert np.mean(errors) < 2 * np.mean(oracle) and len(found.infos) <= found.method.total_rounds(found.state)
    for client, atoms in enumerate(lines(outputs, found.state)):
        assert (np.abs(own_atoms(client) @ atoms.T).max(1) > 0.98).all()
    assert outputs["rows_atoms"].shape == (CLIENTS * 300, 4) and found.method.fitted_model(found.state).nonzero == 4
    assert "codes of 4 atoms" in found.method.outcome(found.state) and "warning" not in found.method.outcome(
        found.state
    )
    unlooked = run_method(default(rounds=60), found.block)
    fixed = [left(*pair) for pair in zip(fresh, lines(unlooked.outputs(), unlooked.state), strict=True)]
    assert np.mean(errors) < 0.7 * np.mean(fixed)


def test_leaves_and_tiles_change_nothing_but_rounding(monkeypatch):
    monkeypatch.setattr(structure_server, "STEPS", 1)
    method, block = default(), block_of([planted(client, 300) for client in range(CLIENTS)])
    state, memory, asked = method.init(facts(block)), None, set()
    while (message := method.message(state)) is not None:
        statistics, after = method.client_update(message, block, memory)
        if isinstance(message, StructureMessage):
            asked.add(message.ask)
            with monkeypatch.context() as small:
                small.setattr(distances, "TILE_NUMBERS", 130 * D)
                in_tiles = method.client_update(message, block, memory)[0]
            total = None
            for leaf in leaves(block, 3):
                mine = {name: value[leaf.first : leaf.first + leaf.clients] for name, value in memory.items()}
                total = merge(total, method.client_update(message, leaf, mine)[0])
            whole = values(statistics)
            for other in (values(in_tiles), values(total)):
                for name in whole.keys() - {"most"}:
                    np.testing.assert_allclose(other[name], whole[name], rtol=1e-6, atol=1e-6)
        memory = after
        state, _ = method.server_update(state, values(statistics))
    assert asked == {"look", "claims", "grow", "held"} and state.structured


def test_new_clients_are_served_with_codes_of_that_length(found):
    new = block_of([planted(100, 300), planted(101, 10), np.zeros((2, D))])
    outputs = found.method.personalise(found.state, new, None)
    atoms = lines(outputs, found.state)
    assert left(planted(100, 100, "fresh"), atoms[0]) < 0.5 * left(planted(100, 100, "fresh"), found.state.common)
    assert outputs["rank"][1:].tolist() == [len(found.state.common), 0] and outputs["rows_atoms"].shape[1] == 4


def test_a_later_run_goes_on_from_sizes_that_were_found(found):
    given = found.method.checked_warm_start(found.method.warm_start_of(found.state), "it", D)
    assert given["code_length"].tolist() == [4]
    later = run_method(default(), found.block, given=given)
    assert later.state.sparsity == 4 and len(later.infos) <= 20
    fresh = [planted(client, 100, "fresh") for client in range(CLIENTS)]
    of_both = [
        [left(*pair) for pair in zip(fresh, lines(ran.outputs(), ran.state), strict=True)] for ran in (later, found)
    ]
    assert np.mean(of_both[0]) < 1.3 * np.mean(of_both[1])
    assert set(default(rounds=3).checked_warm_start(given, "it", D)) == {"global"}
    with pytest.raises(ConfigError, match="code_length"):
        found.method.checked_warm_start(given | {"code_length": np.zeros(1)}, "it", D)


@pytest.mark.parametrize("kind", ["nothing own", "own, and of no length"])
def test_a_search_that_is_refused_changes_no_bit(kind):
    rows = [planted(0, 60, f"rows-{client}") for client in range(4)]
    if kind != "nothing own":
        rows = [
            own[:, None] * random_atoms(stream(i, "x"), 12, D)[np.arange(60) % 12]
            for i, own in enumerate(np.abs(stream(0, "sizes").standard_normal((4, 60))) + 0.5)
        ]
        rows = [own + 0.4 * stream(i, "noise").standard_normal((60, D)) for i, own in enumerate(rows)]
    looked, unlooked = (run_method(default(**settings), block_of(rows)) for settings in ({}, {"rounds": 60}))
    assert [note for info in looked.infos if (note := info.note) and "sizes stay as the features say" in note]
    assert not looked.state.structured and looked.method.outcome(looked.state) == ""
    np.testing.assert_array_equal(looked.state.common, unlooked.state.common)
    known, anew = looked.outputs(), unlooked.outputs()
    for name in known:
        np.testing.assert_array_equal(known[name], anew[name])


def test_what_is_set_is_not_looked_for():
    for setting in ({"atoms": 9}, {"global_atoms": 9}, {"sparsity": 2}, {"least_sparsity": 1}, {"rounds": 2}):
        method = default(**setting)
        assert not structure_server.searches(method.config, method.init(facts(block_of([np.ones((3, D))] * 9))))
    for people, d in ((2, D), (9, 8)):
        method = default()
        assert not structure_server.searches(method.config, method.init(facts(block_of([np.ones((3, d))] * people))))


def test_what_each_atom_takes_adds_up_to_the_error():
    rows, atoms, k = planted(0, 30), COMMON, np.arange(30) % 5
    gains = np.zeros((30, 6))
    errors = omp_with_errors(rows, atoms, k, gains)[1]
    np.testing.assert_allclose((rows**2).sum(1) - gains.sum(1), errors, atol=1e-12)
    assert ((gains > 0).sum(1) == k).all() and (np.diff(gains, axis=1) <= 0).all()


@pytest.mark.parametrize("private", [False, True])
def test_codes_as_long_as_the_dictionary_are_named(private):
    state = DictionariesState("done", 3, 0, D, 9, common=COMMON)
    settings = {"private": True} if private else {}
    assert "warning: codes may have 12 atoms" in default(sparsity=12, **settings).outcome(state)
    assert default(sparsity=11, **settings).outcome(state) == ""
