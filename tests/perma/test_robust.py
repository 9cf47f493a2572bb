"""The robust learner by rounds of the method, held against the same loop on arrays in memory."""

from dataclasses import replace

import numpy as np
import pytest

from fedcore.methods.dictionary_learning import distances
from fedcore.methods.dictionary_learning.distances import d12
from fedcore.methods.dictionary_learning.operators import polar, random_atoms
from fedcore.methods.perma import Perma, PermaConfig
from fedcore.methods.perma.robust import RobustCoder, huber
from fedcore.randomness import stream
from tests.perma.robust_loop import TO_KEEP, learn_background, separate
from tests.perma.run_in_memory import block_of, facts, run

ROBUST = {"profile": "robust", "atoms": 6, "global_atoms": 4, "sparsity": 2, "rounds": 5}


def scene(clients=6, rows=60, d=40, gross=0.1, seed=5):
    """(shared atoms, clean samples, samples): rank-4 samples, a tenth of the numbers of each replaced by large ones."""
    generator = stream(seed, "scene")
    atoms = random_atoms(generator, 4, d)
    clean = generator.normal(size=(clients, rows, 4)) @ atoms
    there = generator.random(clean.shape) < gross
    return atoms, clean, np.where(there, clean + generator.uniform(1, 3, clean.shape), clean)


def near(atoms, seed=0):
    return polar(atoms + 0.1 * stream(seed, "near").normal(size=atoms.shape))


def miss(atoms, found):
    return np.linalg.norm(atoms - atoms @ found.T @ found, 2)


@pytest.mark.parametrize("aggregate", ["mean", "median"])
def test_rounds_are_the_loop_in_memory(aggregate):
    atoms, _, seen = scene()
    start = near(atoms)
    ran = run(block_of(list(seen)), **ROBUST, aggregate=aggregate, given={"global": start})
    expected = learn_background(list(seen), start, 5, how=aggregate)
    np.testing.assert_allclose(ran.state.common, expected, atol=1e-10)
    assert len(ran.infos) == 6 and not ran.column("collisions").any()
    assert ran.column("loss")[-1] < ran.column("loss")[0]
    assert ran.column("movement")[-1] == pytest.approx(
        d12(expected, learn_background(list(seen), start, 4, how=aggregate))
    )


def test_a_run_from_its_own_start_sees_through_gross_errors(monkeypatch):
    atoms, clean, seen = scene()
    robust = run(block_of(list(seen)), **{**ROBUST, "rounds": 20})
    with monkeypatch.context() as patch:
        patch.setattr("fedcore.methods.perma.robust.TO_LEARN", RobustCoder(cut=1e9))
        plain = run(block_of(list(seen)), **{**ROBUST, "rounds": 20})
    assert miss(atoms, robust.state.common) < 0.1 < 0.5 < miss(atoms, plain.state.common)
    out = robust.outputs()
    back = out["rows_global"].reshape(seen.shape)
    assert np.median(np.abs(back - clean)) < 0.02
    np.testing.assert_allclose(back[0], TO_KEEP(seen[0], robust.state.common)[0] @ robust.state.common, atol=1e-6)


def test_local_atoms_are_those_of_the_separation():
    """In the last round, from singular vectors of what the global atoms of that round leave."""
    atoms, _, seen = scene(clients=3)
    rows = list(seen)
    ran = run(block_of(rows), **ROBUST, aggregate="mean", given={"global": near(atoms)})
    before = learn_background(rows, near(atoms), 4)
    out = ran.outputs()
    for client in range(3):
        expected = separate(seen[client], before, 2, 2)
        assert d12(out["local"][client], expected.local) < 1e-7
        assert np.linalg.norm(out["local"][client] @ out["local"][client].T - np.eye(2)) < 1e-10
    left = seen[0] - out["rows_global"][:60]
    np.testing.assert_allclose(out["rows_local"][:60], left @ out["local"][0].T @ out["local"][0], atol=1e-5)
    assert ran.memory["fitted"].tolist() == [1, 1, 1]
    assert (ran.column("nonzero")[1:-1] == 4).all() and ran.column("nonzero")[-1] > 4


def test_huber_loss_by_hand():
    rest = np.array([0.5, -1.0, 3.0, -4.0])
    np.testing.assert_allclose(huber(rest, np.clip(rest, -1, 1)), [0.25, 1.0, 5.0, 7.0])


def test_leaves_stacks_and_streams_change_nothing_but_spreads(monkeypatch):
    """Clients of different sizes: padding of stacks must not enter the spread of residuals."""
    atoms, _, seen = scene()
    rows = [own[: 60 - 7 * i] for i, own in enumerate(seen)]
    whole = run(block_of(rows), **ROBUST)
    leaves = run(block_of(rows), **ROBUST, clients_per_leaf=2)
    np.testing.assert_allclose(whole.state.common, leaves.state.common, atol=1e-9)
    alone = learn_background(rows, run(block_of(rows), **{**ROBUST, "rounds": 1}).state.common, 4, how="median")
    np.testing.assert_allclose(whole.state.common, alone, atol=1e-9)
    monkeypatch.setattr(distances, "TILE_NUMBERS", 40 * 20)
    monkeypatch.setattr(distances, "STACK_NUMBERS", 40 * 20)
    tiles = run(block_of(rows), **ROBUST)  # 20 rows at a time: spreads are those of tiles
    assert miss(atoms, tiles.state.common) < 0.2
    assert np.isfinite(tiles.outputs()["rows_local"]).all()


def test_clients_who_come_and_go():
    atoms, _, seen = scene(clients=8)
    rows = [*seen, np.zeros((0, 40)), np.zeros((5, 40)), seen[0][:1]]
    ran = run(block_of(rows), **{**ROBUST, "rounds": 15})
    assert miss(atoms, ran.state.common) < 0.2
    out = ran.outputs()
    assert out["rank"].tolist() == [6] * 8 + [0, 0, 6]
    assert np.isfinite(out["local"]).all() and not out["local"][8:10].any()
    none = run(block_of(list(seen)), **{**ROBUST, "global_atoms": 0})
    assert none.state.common.shape == (0, 40) and not none.outputs()["rows_global"].any()
    every = run(block_of(list(seen)), **{**ROBUST, "global_atoms": 6})
    assert every.outputs()["local"].shape == (8, 0, 40)


def test_atoms_at_an_odd_address_give_the_same_bits():
    """What a worker gets over a wire need not lie at a multiple of eight bytes."""
    generator = stream(0, "odd")  # in matrices that are too small the other path gives the same last bits
    block = block_of([generator.normal(size=(247, 196)) for _ in range(2)])
    method = Perma(PermaConfig(**{**ROBUST, "atoms": 20, "global_atoms": 20}))
    state = method.init(facts(block, start={"global": random_atoms(generator, 20, 196)}))
    _, memory = method.client_update(method.message(state), block, None)
    message = method.message(replace(state, phase="rounds"))
    room = np.empty(message.common.nbytes + 3, np.uint8)
    odd = room[3:].view(np.float64).reshape(message.common.shape)
    odd[:] = message.common
    assert not odd.flags.aligned
    sent = [
        method.client_update(replace(message, common=common), block, memory)[0]["sent"].value()
        for common in (message.common, odd)
    ]
    np.testing.assert_array_equal(*sent)


def test_a_given_start_is_made_orthonormal():
    atoms, _, seen = scene()
    ran = run(block_of(list(seen)), **{**ROBUST, "rounds": 1}, given={"global": atoms + 0.05})
    np.testing.assert_allclose(ran.state.common @ ran.state.common.T, np.eye(4), atol=1e-10)
    np.testing.assert_allclose(
        ran.state.common, learn_background(list(seen), atoms + 0.05, 1, how="median"), atol=1e-10
    )


@pytest.mark.parametrize("norm", ["unit", "none"])
def test_its_atoms_are_orthonormal_whatever_the_norm(norm):
    _, _, seen = scene(clients=3)
    as_ever, other = (run(block_of(list(seen)), **{**ROBUST, "norm": how}) for how in ("polar", norm))
    np.testing.assert_array_equal(other.state.common, as_ever.state.common)


def test_the_profile_fills_in():
    found = PermaConfig(**ROBUST)
    assert (found.learner, found.matcher, found.aggregate, found.norm) == ("robust", "star", "median", "polar")
    assert found.robust and found.steps_of_start == 0 and not PermaConfig().robust
    assert PermaConfig(**found.model_dump()) == found
