"""The default learner: sums over all clients, codes of mixed length, local atoms that pay, runs of a series."""

from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers.perma.baselines import singular_vectors

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.dictionaries import Dictionaries, DictionariesConfig, server, sums
from fedcore.methods.dictionaries.clients import local_atoms
from fedcore.methods.dictionaries.start import atoms_of, global_atoms_of, least_sparsity_of, sparsity_of
from fedcore.methods.dictionaries.state import SumsMessage
from fedcore.methods.dictionaries.sums import (
    SharedSums,
    ahead,
    client_factors,
    client_weights,
    drawn_sparsity,
    levelled,
    median_of_votes,
    numbers_of_rows,
    orthonormal_atoms,
    singular_atoms,
    vote,
)
from fedcore.methods.dictionary_learning import distances
from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.methods.dictionary_learning.sparse_codes import omp, without_unused
from fedcore.randomness import stream
from tests.run_in_memory import block_of, facts, run_method

D, TRUE = 12, random_atoms(stream(0, "shared"), 20, 12)


def samples(seed, n, atoms=TRUE, k=2):
    """(n, d) of k atoms each."""
    generator = stream(seed, "samples")
    codes = np.zeros((n, len(atoms)))
    for row in codes:
        row[generator.choice(len(atoms), k, replace=False)] = generator.choice([-1.0, 1.0], k) * (
            1 + generator.random(k)
        )
    return codes @ atoms


def default(**settings):
    return Dictionaries(DictionariesConfig(**{"rounds": 12, "atoms": 20, "global_atoms": 20, **settings}))


def error(rows, atoms, k=2):
    return float(((rows - omp(rows, atoms, k) @ atoms) ** 2).mean())


def test_sizes_follow_the_features():
    config = DictionariesConfig()
    for d, wanted in ((784, (100, 120, 20, 5)), (64, (100, 120, 16, 4)), (16, (32, 39, 4, 1)), (2, (4, 5, 1, 1))):
        assert tuple(f(config, d) for f in (global_atoms_of, atoms_of, sparsity_of, least_sparsity_of)) == wanted
    assert global_atoms_of(DictionariesConfig(atoms=60), 784) == 50 and global_atoms_of(DictionariesConfig(), 3) == 6
    assert atoms_of(DictionariesConfig(global_atoms=50), 784) == 60
    assert atoms_of(DictionariesConfig(private=True), 784, 30) == 30  # nobody asked for local ones
    assert least_sparsity_of(DictionariesConfig(sparsity=3, least_sparsity=2), 784) == 2


def test_numbers_of_samples_depend_on_names_alone():
    rows = np.arange(50)
    whole = numbers_of_rows(3, "x", 2, 10, np.array([0, 4]), rows)
    np.testing.assert_array_equal(numbers_of_rows(3, "x", 2, 14, np.array([0]), rows[20:])[0], whole[1, 20:])
    drawn = drawn_sparsity(whole, 5, 20)
    assert drawn.min() == 5 and drawn.max() == 20 and np.bincount(drawn[0], minlength=21)[5:].min() >= 2
    assert (drawn_sparsity(np.array([0.0, 1.0]), 3, 3) == 3).all()


def test_norms_are_capped_at_what_the_median_client_says():
    norms = np.array([1e-200, 1.0, 2.0, 3.0, 1e250])
    votes = np.bincount(vote(norms), minlength=sums.BINS).astype(float)
    assert 2.0 <= median_of_votes(votes) <= 2.0 * 2**0.25 and median_of_votes(0 * votes) == 0
    assert (
        vote(np.array([np.inf])) == len(votes) - 1
        and median_of_votes(np.arange(len(votes)) // (len(votes) - 1)) == np.inf
    )


def test_loud_samples_count_as_one_of_the_median_client():
    rows = np.array([[[30.0, 40.0], [0.6, 0.8], [0.0, 0.0]]])
    level = levelled(rows, 6.0)
    np.testing.assert_allclose(level.samples, [[[1.2, 1.6], [0.6, 0.8], [0.0, 0.0]]])
    assert level.loud == 1 and level.nonzero == 2 and level.energy == pytest.approx(5.0)
    for cap in (0.0, np.inf, 60.0):
        assert levelled(rows, cap).samples is rows and client_factors(level.energy, level.nonzero, 0.0) == 1
    factors = client_factors(np.array([2.0, 50.0, 0.0]), np.array([2.0, 2.0, 0.0]), 6.0)
    np.testing.assert_allclose(factors, [1.0, 0.5, 1.0])  # root mean squares 1, 5 and none; 2.5 are allowed


def test_no_client_counts_for_more_than_three_median_ones_nor_an_odd_one_for_much():
    """Samples of the median client: 50; of its energy codes left a tenth. Worked by hand."""
    sizes, left = np.array([10.0, 50.0, 200.0, 1000.0]), np.array([0.1, 0.2, 0.4, 0.05])
    message = SumsMessage(3, 0, TRUE, 1.0, 1, 2, 0.0, 0, 50.0, 0.1)
    assert client_weights(sizes, left, message).tolist() == [1, 1, 0.75, 0.15]
    found = client_weights(sizes, left, replace(message, number=4))
    assert np.allclose(found, [1, 1, 0.75 / 4, 0.15])  # more than two tenths left: by the square of the ratio
    assert (client_weights(sizes, left, replace(message, rows=0.0)) == 1).all()
    assert np.allclose(client_weights(sizes, 0 * left, replace(message, number=9)), [1, 1, 0.75, 0.15])


def test_atoms_that_are_wasted_begin_anew_at_the_most_used_one():
    atoms = np.eye(4, 5)
    atoms[3] = np.array([0.995, 0.1, 0, 0, 0]) / np.hypot(0.995, 0.1)  # nearly the first, and used less
    energy, generator = np.array([5.0, 9.0, 0.01, 4.0]), stream(0, "wasted")
    assert without_unused(atoms, energy, generator)[1] == 0
    found, replaced = without_unused(atoms, energy, generator, wasted=True)
    assert replaced == 2 and np.array_equal(found[:2], atoms[:2])
    assert found[2] @ atoms[1] > 0.999 and found[3] @ atoms[0] > 0.999  # copies of the two most used ones


@pytest.mark.parametrize("size", [60, 6000])
def test_one_client_with_a_hundred_times_the_rows_takes_no_atoms_from_the_others(size):
    """Twenty clients with 60 rows of 3 of 30 atoms, one of whom has rows of other atoms, and perhaps many of them."""
    generator, own = stream(3, "influence"), random_atoms(stream(3, "influence/own"), 30, 32)
    other = random_atoms(generator, 30, 32)
    rows = [samples(client, 60, own, 3) for client in range(20)]
    settings = {"rounds": None, "atoms": 30, "global_atoms": 30, "sparsity": 3}
    clean = run_method(default(**settings), block_of(rows)).state.common
    found = run_method(default(**settings), block_of([*rows[:-1], samples(20, size, other, 3)])).state.common
    fresh = samples(21, 500, own, 3)
    assert error(fresh, found, 3) <= 1.2 * error(fresh, clean, 3) + 1e-4 * (fresh**2).mean()


def test_sums_are_those_of_the_pooled_samples():
    rows, k = samples(1, 30), np.arange(30) % 4 + 1
    whole, parts = SharedSums.none(20, D), SharedSums.none(20, D)
    left = whole.add(rows, TRUE, k)
    rest = np.concatenate([parts.add(rows[a:b], TRUE, k[a:b]) for a, b in ((0, 7), (7, 30))])
    np.testing.assert_allclose(rest, left, atol=1e-20)
    np.testing.assert_allclose(parts.xx, whole.xx, atol=1e-12)
    np.testing.assert_allclose(parts.xy, whole.xy, atol=1e-12)
    assert parts.nonzero == whole.nonzero <= k.sum()
    codes = np.stack([omp(row[None], TRUE, int(count))[0] for row, count in zip(rows, k, strict=True)])
    np.testing.assert_allclose(whole.xy, codes.T @ rows, atol=1e-12)


def test_first_atoms_and_longer_moves():
    generator, rows = stream(1, "first"), samples(2, 40) @ np.diag([1.0] * 5 + [0.0] * (D - 5))
    first = singular_atoms(rows.T @ rows, 8, generator)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1)
    expected = singular_vectors([rows], 5)
    np.testing.assert_allclose(np.abs(np.diag(first[:5] @ expected.T)), 1, atol=1e-9)
    spanned = orthonormal_atoms(rows[:3], generator)
    np.testing.assert_allclose(spanned @ spanned.T, np.eye(3), atol=1e-12)
    now, before = np.eye(2), np.array([[1.0, -0.1], [0.0, 1.0]])
    assert ahead(now, before, 10) is now and ahead(now, np.zeros((0, 0)), 30) is now
    further = ahead(now, before, 11)
    assert further[0, 1] > 0 and further[1].tolist() == [0, 1] and np.allclose(np.linalg.norm(further, axis=1), 1)


@pytest.mark.parametrize("wide", [False, True])
def test_a_default_run_learns_from_clients_of_any_size(monkeypatch, wide):
    if wide:
        monkeypatch.setattr(server, "WIDE", 4)
    sizes = (300, 90, 40, 9, 1, 1)
    rows = [samples(10 + i, n) for i, n in enumerate(sizes)] + [np.zeros((0, D)), np.zeros((4, D))]
    method, fresh = default(), samples(99, 200)
    whole = run_method(method, block_of(rows))
    leaves = run_method(method, block_of(rows), clients_per_leaf=3)
    np.testing.assert_allclose(leaves.state.common, whole.state.common, atol=1e-9)
    assert error(fresh, whole.state.common) < 0.5 * error(fresh, singular_vectors(rows, D))
    first = whole.infos[0].scalars
    assert (first["clients"], first["silent"], first["few_samples"]) == (6, 2, 3)
    out = whole.outputs()
    assert out["rank"].tolist() == [20] * 6 + [0, 0] and np.isnan(out["loss"][6]) and out["loss"][7] == 0
    with pytest.raises(PopulationError, match="other than zero"):
        run_method(method, block_of(rows[-2:]))


def test_clients_that_shout_are_heard_little_louder_than_others(monkeypatch):
    rows = [samples(20 + i, 40) for i in range(8)]
    noise, fresh = stream(1, "loud").standard_normal((2, 20, D)), samples(98, 100)
    quiet = run_method(default(), block_of(rows))
    runs = {size: run_method(default(), block_of([*rows, *(size * noise)])) for size in (1.0, 1.5, 2.0, 1e9)}
    monkeypatch.setattr(server, "LOUD", 1e12)
    heard, unchanged = (run_method(default(), block_of(own)) for own in ([*rows, *(1e9 * noise)], rows))
    np.testing.assert_array_equal(quiet.state.common, unchanged.state.common)  # nobody shouts, and nothing is scaled
    assert (quiet.column("loud_rows") == 0).all() and (runs[1e9].column("loud_rows") == 40 / 360).all()
    assert (runs[1.5].column("loud_clients") == 2 / 10).all()
    errors = {size: error(fresh, run.state.common) for size, run in runs.items()}
    assert max(errors.values()) < 0.5 * error(fresh, heard.state.common), errors


def test_a_loud_client_is_the_same_in_tiles(monkeypatch):
    rows = [samples(20 + i, 40) for i in range(3)] + [4 * samples(30, 90), 2 * samples(31, 80)]
    whole = run_method(default(rounds=3), block_of(rows))
    monkeypatch.setattr(distances, "TILE_NUMBERS", 60 * D)
    tiles = run_method(default(rounds=3), block_of(rows))
    for name in ("loud_rows", "loud_clients", "loss"):
        np.testing.assert_allclose(tiles.column(name), whole.column(name), rtol=1e-9)
    assert whole.column("loud_clients")[0] > 0 < whole.column("loud_rows")[0]
    np.testing.assert_allclose(tiles.state.common, whole.state.common, atol=1e-9)


def test_local_atoms_are_kept_where_held_out_samples_say_so():
    basis = random_atoms(stream(2, "basis"), 9, D)
    common, own = basis[:6], basis[6:]
    shared, mixed = samples(31, 120, common), samples(32, 120, np.concatenate([common, own]))

    def found(rows, size=None):
        return local_atoms(lambda: iter([rows]), size or len(rows), common, 3, 2, 2, 6, 0, 5)

    assert found(mixed).shape == (3, D) and error(mixed, np.concatenate([common, found(mixed)])) < 0.5 * error(
        mixed, common
    )
    assert len(found(shared + 1e-3 * stream(1, "n").standard_normal(shared.shape))) == 0
    assert len(found(mixed[:8])) == 0 and len(found(np.zeros((40, D)))) == 0
    for client in range(6):  # of some the first tile is held out as a whole
        one_by_one = (lambda: (row[None] for row in mixed[:20]), 20, common, 3, 2, 2, 1, 0, client)
        assert len(local_atoms(*one_by_one)) <= 1
    run = run_method(default(atoms=9, global_atoms=6, sparsity=2), block_of([mixed, mixed[:2]]))
    assert run.outputs()["rank"][1] == 6 and run.infos[-1].scalars["with_local_atoms"] <= 1


def test_who_took_no_part_is_served_as_if_it_had():
    """Own atoms are a function of shared ones, seed, number and rows; codes are those that rebuild the samples."""
    own = random_atoms(stream(5, "own"), 6, D)
    rows = [np.concatenate([samples(i, 60), samples(9, 60, own[i : i + 1], 1)]) for i in range(5)] + [np.zeros((3, D))]
    ran = run_method(default(atoms=14, global_atoms=10, sparsity=2), block_of(rows))
    known, anew = ran.outputs(), ran.method.personalise(ran.state, ran.block, None)
    assert known["rank"].max() > 10 and known.keys() == anew.keys()
    for name in known:
        assert np.array_equal(known[name], anew[name], equal_nan=True), name
    atoms, weights = known["rows_atoms"], known["rows_weights"]
    assert atoms.shape == (len(ran.block.x), 2) and atoms.min() == -1 and (atoms[weights == 0] == -1).all()
    for client in range(5):
        whole = np.concatenate([ran.state.common, known["local"][client]])
        for row in range(*ran.block.ptr[client : client + 2]):
            made = weights[row] @ whole[atoms[row]]
            assert np.allclose(made, known["rows_global"][row] + known["rows_local"][row], atol=1e-5)


def test_runs_of_a_series_remember_sums():
    rows = [samples(40 + i, 40) for i in range(6)]
    method, first = default(rounds=8, forgetting=0.5), block_of(rows[:4])
    earlier = run_method(method, first)
    left = method.checked_warm_start(method.warm_start_of(earlier.state), "it", D)
    later = run_method(method, block_of(rows), given=left)
    assert later.column("active_clients").tolist() == [2] * 8 and "4 clients are remembered" in later.infos[0].note
    again = method.warm_start_of(later.state)
    assert again["known"].tolist() == [6, 240, later.state.prints]
    np.testing.assert_allclose(again["sums_codes"], later.state.xx + 0.5 * left["sums_codes"])
    shuffled = block_of([rows[0][::-1], *rows[1:]])
    assert run_method(method, shuffled, given=left).column("active_clients")[0] == 2
    fewer, other = [rows[0][:5], *rows[1:]], [np.vstack([1.001 * rows[0][:1], rows[0][1:]]), *rows[1:]]
    for block in (first, block_of(fewer), block_of(other)):  # nobody came; samples are fewer; one is another
        assert run_method(method, block, given=left).column("active_clients")[0] == block.clients
    everybody = run_method(default(rounds=8, forgetting=0), block_of(rows), given=left)
    assert everybody.column("active_clients")[0] == 6
    assert set(method.warm_start_of(replace(earlier.state, round=0))) == {"global"}  # sums of nobody yet
    for wrong in ({"known": np.zeros(2)}, {"sums_codes": np.full((20, 20), np.nan)}):
        with pytest.raises(ConfigError, match="has no array"):
            method.checked_warm_start(left | wrong, "it", D)


def test_sizes_follow_the_atoms_that_are_given():
    given, block = {"global": TRUE[:5]}, block_of([samples(50, 30), samples(51, 30)])
    run = run_method(Dictionaries(DictionariesConfig(rounds=1)), block, given=given)
    assert run.outputs()["local"].shape == (2, 1, D)  # a fifth of the atoms that there are
    with pytest.raises(ConfigError, match="clients' dictionaries"):
        default(atoms=4, global_atoms=None).init(facts(block, start={"global": samples(52, 40)}))


def test_clients_that_are_sampled_answer_and_others_do_not():
    rows = [samples(60 + i, 40) for i in range(10)]
    ran = run_method(default(participation=0.5), block_of(rows))
    assert 0 < ran.column("active_clients").mean() < 10
    fresh = samples(97, 100)
    assert error(fresh, ran.state.common) < 0.5 * error(fresh, singular_vectors(rows, D))
