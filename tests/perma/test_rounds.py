"""Rounds in memory: recovery, weak, late and useless clients, bad input (small versions of acceptance A1, A5 to A8)."""

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore.errors import ConfigError, PopulationError, RunError
from fedcore.methods.dictionary_learning import distances
from fedcore.methods.dictionary_learning.distances import d12
from fedcore.methods.dictionary_learning.operators import normalise, random_atoms
from fedcore.methods.dictionary_learning.result import parts_together
from fedcore.methods.dictionary_learning.sparse_codes import without_unused
from fedcore.methods.perma import Perma, PermaConfig
from fedcore.methods.perma.clients import unused
from fedcore.methods.perma.learners import coder_of
from fedcore.randomness import stream
from tests.perma.run_in_memory import block_of, facts, run

SMALL = {"profile": "recommended", "atoms": 6, "global_atoms": 3, "rounds": 15, "starts": 3}


def task(seed, clients=10, d=6, shared=3, sizes=200, theta=0.2, floor=0.3, garbage=0):
    """(samples of each client, dictionaries, global atoms): section 5.1 of the paper; the last `garbage` clients have
    dense codes and a dictionary that is not orthogonal."""
    generator = stream(seed, "task")
    basis = random_atoms(generator, d, d)
    rows, dictionaries = [], []
    for i, n in enumerate(np.broadcast_to(sizes, clients)):
        rest = random_atoms(generator, d - shared, d - shared) @ basis[shared:] if d > shared else basis[:0]
        atoms, density = np.concatenate([basis[:shared], rest]), theta
        if i >= clients - garbage:
            atoms, density = generator.standard_normal((d, d)), 0.9
        codes = generator.standard_normal((n, d)) * (generator.random((n, d)) < density)
        rows.append(np.where((codes != 0) & (np.abs(codes) < floor), floor * np.sign(codes), codes) @ atoms)
        dictionaries.append(atoms)
    return rows, np.array(dictionaries), basis[:shared]


def errors(ran, dictionaries, common):
    """(error of the global atoms, of every client's local ones)"""
    local = ran.outputs()["local"]
    own = [d12(a, b[len(common) :]) for a, b in zip(local, dictionaries, strict=True)]
    return d12(ran.state.common, common), np.array(own)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"profile": "paper", "starts": 3},
        {"profile": "scripts", "starts": 3},
        {"matcher": "path"},
        {"learner": "gradient"},
        {"refine_steps": 2},
        {"aggregate": "mean"},
    ],
    ids=str,
)
def test_global_and_local_atoms_are_recovered(settings):
    rows, dictionaries, common = task(1)
    ran = run(block_of(rows), **{**SMALL, **settings})
    error, own = errors(ran, dictionaries, common)
    assert error < 1e-2 and (own < 1e-2).sum() >= 9
    assert len(ran.infos) == 1 + SMALL["rounds"]
    assert set(ran.infos[1].scalars) == set(ran.infos[-1].scalars)


def test_useless_clients_do_not_spoil_it():
    failures = 0
    for seed in range(4):
        rows, _, common = task(100 + seed, clients=12, garbage=2)
        failures += d12(run(block_of(rows), **SMALL).state.common, common) > 1e-2
    assert failures == 0


def test_a_client_of_ten_samples_gets_the_global_atoms():
    sizes = np.full(10, 200)
    sizes[0] = 10
    good = 0
    for seed in range(4):
        rows, _, common = task(200 + seed, sizes=sizes)
        good += d12(run(block_of(rows), **SMALL).state.common, common) < 1e-2
    assert good >= 3


def test_the_number_of_global_atoms_can_be_left_open():
    rows, dictionaries, common = task(3)
    for rule in ("null", "jump"):
        ran = run(block_of(rows), **{**SMALL, "global_atoms": rule})
        assert ran.state.common.shape == (3, 6) and d12(ran.state.common, common) < 1e-2
        assert ran.infos[0].scalars["global_atoms"] == 3 and "scores" in ran.infos[0].note
    rows, _, _ = task(4, shared=0)
    ran = run(block_of(rows), **{**SMALL, "global_atoms": "null", "norm": "polar"})
    assert ran.state.common.shape == (0, 6) and ran.outputs()["local"].shape == (10, 6, 6)


def test_sizes_never_change_and_collisions_are_counted():
    rows, _, _ = task(5, clients=4)
    rows = [r + 0.8 * stream(5, "noise").standard_normal(r.shape) for r in rows]
    for align in ("lsa", "seq", "greedy"):
        ran = run(
            block_of(rows),
            **{**SMALL, "align": align, "global_atoms": 5, "norm": "none", "aggregate": "mean", "learner": "gradient"},
        )
        assert ran.memory["local"].shape == (4, 1, 6) and ran.state.common.shape == (5, 6)
        if align != "greedy":
            assert not ran.column("collisions").any()


def test_a_run_from_a_given_global_dictionary():
    rows, dictionaries, common = task(7)
    ran = run(block_of(rows), **SMALL, given={"global": common})
    error, own = errors(ran, dictionaries, common)
    assert error < 1e-6 and (own < 1e-2).sum() >= 9
    assert ran.infos[0].scalars["bytes_up"] == 0
    method = Perma(PermaConfig(**SMALL))
    for arrays, why in (
        ({}, "no array 'global'"),
        ({"global": np.eye(6)[:2]}, "shape"),
        ({"global": np.zeros((3, 6))}, "norm 0"),
        ({"global": np.full((3, 6), np.nan)}, "finite"),
    ):
        with pytest.raises(ConfigError, match=why):
            method.checked_warm_start(arrays, "the file", 6)
    np.testing.assert_allclose(method.checked_warm_start({"global": 2 * common}, "x", 6)["global"], common)
    np.testing.assert_allclose(method.warm_start_of(ran.state)["global"], ran.state.common)
    with pytest.raises(ConfigError, match="before it had"):
        method.warm_start_of(method.init(facts(block_of(rows), start={"global": common})))
    with pytest.raises(ConfigError, match="global_atoms as a number"):
        Perma(PermaConfig(global_atoms="null")).checked_warm_start({"global": common}, "x", 6)


def test_leaves_change_nothing_but_the_order_of_sums():
    sizes = stream(8, "sizes").integers(30, 200, 10)
    rows, _, _ = task(8, sizes=sizes)
    for settings in ({}, {"aggregate": "mean"}):
        settings = {**SMALL, "rounds": 4, "start_steps": 30, **settings}
        whole, leaves = run(block_of(rows), **settings), run(block_of(rows), clients_per_leaf=3, **settings)
        np.testing.assert_allclose(whole.state.common, leaves.state.common, atol=1e-9)


def test_heavy_clients_in_tiles_give_the_same_run(monkeypatch):
    rows, _, _ = task(9, clients=4, sizes=[200, 90, 60, 150])
    for settings in ({}, {"learner": "gradient"}):
        settings = {**SMALL, "rounds": 4, "start_steps": 30, **settings}
        whole = run(block_of(rows), **settings)
        with monkeypatch.context() as patch:
            patch.setattr(distances, "TILE_NUMBERS", 6 * 64)
            patch.setattr(distances, "STACK_NUMBERS", 6 * 64)
            tiles = run(block_of(rows), **settings)
        assert d12(tiles.state.common, whole.state.common) < 1e-7  # the order of equally sure atoms may differ
        for name in ("rows_global", "rows_local", "loss"):
            np.testing.assert_allclose(tiles.outputs()[name], whole.outputs()[name], atol=1e-5)


# --- irregular clients and bad input ----------------------------------------------------------------------------------


def test_empty_silent_and_tiny_clients_are_told_apart():
    rows, _, common = task(10, clients=8)
    rows += [np.zeros((0, 6)), np.zeros((40, 6)), rows[0][:1], rows[1][:4]]
    for settings in ({}, {"learner": "gradient"}):
        ran = run(block_of(rows), **{**SMALL, "rounds": 5, **settings})
        assert ran.infos[0].scalars["silent"] == 2 and ran.infos[0].scalars["few_samples"] == 2
        assert ran.column("active_clients").tolist() == [10] * 5
        out = ran.outputs()
        assert out["rank"].tolist() == [6] * 8 + [0, 0, 6, 6]
        assert np.isnan(out["loss"][8]) and out["loss"][9] == 0 and not out["local"][8:10].any()
        assert all(np.isfinite(value).all() for name, value in out.items() if name != "loss")
        if "learner" not in settings:
            assert d12(ran.state.common, common) < 1e-2


def test_nobody_with_samples_is_an_error():
    with pytest.raises(PopulationError, match="other than zero"):
        run(block_of([np.zeros((0, 6)), np.zeros((3, 6))]), **SMALL)


def test_values_that_are_not_finite_are_an_error():
    rows, _, _ = task(11, clients=3)
    rows[1][7, 2] = np.nan
    with pytest.raises(PopulationError, match="client number 1"):
        run(block_of(rows), **SMALL)


def test_one_and_two_clients():
    for clients in (1, 2):
        rows, _, common = task(12, clients=clients)
        ran = run(block_of(rows), **SMALL)
        assert np.isfinite(ran.state.common).all()
        if clients == 2:
            assert d12(ran.state.common, common) < 1e-2


def test_clients_that_stay_far_are_left_out():
    rows, _, common = task(14, clients=10, garbage=1)
    ran = run(block_of(rows), **{**SMALL, "aggregate": "mean", "far": 0.02, "rounds": 30})
    assert not ran.column("left_out")[1:6].any()  # many are far at first: then nobody is left out
    assert ran.column("left_out")[6:].max() == 1
    kept = run(block_of(rows), **{**SMALL, "aggregate": "mean", "far": None, "rounds": 30})
    assert kept.column("left_out")[1:].sum() == 0
    assert d12(ran.state.common, common) < d12(kept.state.common, common)


def test_atoms_that_nobody_uses_are_replaced():
    common, energy = np.eye(4), np.array([3.0, 0.0, 5.0, 0.0])
    found, count = without_unused(common, energy, stream(0, "split"))
    assert count == 2
    np.testing.assert_array_equal(found[[0, 2]], common[[0, 2]])
    assert found[1] @ common[2] > 0.99 and found[3] @ common[0] > 0.99 and found[1] @ common[2] < 1
    assert unused(np.array([[1.0, 0.0, 2.0]])).tolist() == [[False, True, False]]
    rows = [stream(i, "line").standard_normal((40, 1)) * np.eye(6)[i % 2] for i in range(4)]  # two directions in all
    ran = run(block_of(rows), atoms=5, global_atoms=2, learner="gradient", code="top_k", sparsity=1, rounds=4, starts=1)
    np.testing.assert_allclose(np.linalg.norm(ran.memory["local"], axis=2), 1)
    assert ran.column("unused_atoms")[-1] > 0


def test_parts_add_up_to_the_reconstruction():
    rows, dictionaries, common = task(16, clients=3)
    ran = run(block_of(rows), **SMALL)
    out = ran.outputs()
    whole = out["rows_global"] + out["rows_local"]
    np.testing.assert_allclose(whole, np.concatenate(rows), atol=1e-5)
    assert np.abs(out["rows_global"] @ dictionaries[0][3:].T).max() < 1e-5
    expected = parts_together(coder_of(ran.method.config))(rows[0], ran.state.common, out["local"][0])
    np.testing.assert_allclose(expected[0], out["rows_global"][:200], atol=1e-6)
    with pytest.raises(RunError, match="before its first round"):
        ran.method.personalise(ran.method.init(facts(ran.block)), ran.block, None)


def stuck(memory, number):
    """Before round 2 client 0 forgets its local atoms for ones that fit nothing in particular."""
    if number == 1:
        memory = {name: value.copy() for name, value in memory.items()}
        memory["local"][0] = random_atoms(stream(1, "stuck"), 6, 6)[:3]
    return memory


def test_local_atoms_that_are_stuck_begin_anew():
    """Half way through, in round 4; they are kept only where the objective falls."""
    rows, dictionaries, common = task(1)
    settings = {**SMALL, "rounds": 8, "given": {"global": common}, "change": stuck}
    never, anew = run(block_of(rows), **settings), run(block_of(rows), **settings, restarts=5)
    (_, before), (error, after) = errors(never, dictionaries, common), errors(anew, dictionaries, common)
    assert before[0] > 0.1 and after[0] < 1e-2 and error < 1e-6 and (after < 1e-2).all()
    assert anew.column("begun_anew").tolist() == [0, 0, 0, anew.column("begun_anew")[3], 0, 0, 0, 0]
    assert 1 <= anew.column("begun_anew")[3] < 10 and "begun_anew" not in never.infos[-1].scalars
    kept = run(block_of(rows), **{**settings, "change": None}, restarts=1)
    assert (errors(kept, dictionaries, common)[1] < 1e-2).all()  # one beginning may be worse, and is then left


@pytest.mark.parametrize(
    "settings, why",
    [
        ({"global_atoms": 7}, "0 to atoms"),
        ({"learner": "statistics"}, "orthogonal"),
        ({"global_atoms": "some"}, "global_atoms"),
        ({"lambda": 3}, "lambda"),
    ],
    ids=str,
)
def test_settings_that_do_not_agree(settings, why):
    with pytest.raises(ValidationError, match=why):
        PermaConfig(**{**SMALL, **settings})


def test_more_orthonormal_atoms_than_features_are_refused():
    rows, _, _ = task(17, clients=2)
    for settings in ({"atoms": 7}, {"atoms": 9, "global_atoms": 7, "learner": "gradient", "norm": "polar"}):
        with pytest.raises(ConfigError, match="do not fit into 6 features"):
            Perma(PermaConfig(**{**SMALL, **settings})).init(facts(block_of(rows)))


def test_profiles_fill_in_what_is_not_given():
    paper = PermaConfig(profile="paper", norm="unit")
    assert (paper.matcher, paper.aggregate, paper.align, paper.starts) == ("path", "mean", "greedy", 1)
    assert paper.norm == "unit" and paper.far is None
    again = PermaConfig(**paper.model_dump())
    assert again == paper
    assert PermaConfig().starts == 5 and PermaConfig(profile="scripts").norm == "polar"


def test_the_method_says_that_it_is_not_private():
    method = Perma(PermaConfig(**SMALL))
    assert not method.private and "matching" in method.not_private_because
    rows, _, _ = task(18, clients=2)
    assert method.plan(facts(block_of(rows))) == []
    assert normalise(np.zeros((1, 2)))[1][0] == 0
