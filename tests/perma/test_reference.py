"""The method with `profile = "paper"` and all clients in every round is the paper's algorithm."""

import numpy as np
from fedcore.papers.perma import reference
from fedcore.papers.perma.truth import shared_atoms
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedcore.methods.dictionary_learning.distances import d12
from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.methods.perma.matching import matched_atoms, path
from fedcore.randomness import stream
from tests.perma.run_in_memory import block_of, run

TOLERANCE = 1e-10  # largest distance of an atom, up to signs and order


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_perma(data):
    """Noise and few rounds, so that the compared dictionaries are not all the true one."""
    clients, features = data.draw(st.integers(1, 5)), data.draw(st.integers(3, 7))
    atoms = data.draw(st.integers(2, features))
    common = data.draw(st.integers(1, atoms))
    assume(atoms == common or common < features - 1)  # in the one dimension left, all local atoms would be equal too
    samples = data.draw(st.lists(st.integers(60, 120), min_size=clients, max_size=clients))
    seed, rounds = data.draw(st.integers(0, 10_000)), data.draw(st.integers(1, 5))
    zeta, noise = data.draw(st.sampled_from([0.1, 0.15, 0.25])), data.draw(st.sampled_from([0.0, 0.03, 0.1]))
    drawn = shared_atoms(seed, clients, features, common, atoms - common, samples, density=0.3, noise=noise).samples
    try:
        expected, local = reference.perma([y.T for y in drawn], atoms, common, rounds, zeta)
    except ValueError:  # an atom was chosen twice: the method drops atoms where the paper's dictionary would grow
        assume(False)
    ran = run(
        block_of(list(drawn)),
        profile="paper",
        atoms=atoms,
        global_atoms=common,
        rounds=rounds,
        threshold=zeta,
        clients_per_leaf=data.draw(st.integers(1, 5)),
    )
    assert not ran.column("collisions").any()
    assert d12(ran.state.common, expected.T) < TOLERANCE
    for ours, theirs in zip(ran.outputs()["local"], local, strict=True):
        assert d12(ours, theirs.T) < TOLERANCE


@given(st.integers(0, 10_000), st.integers(1, 6), st.lists(st.integers(3, 6), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_global_matching(seed, count, sizes):
    """Atoms of clients who share nothing, in different numbers: the same paths in the same order."""
    count = min(count, *sizes)
    dictionaries = [random_atoms(stream(seed, "client", client=i), size, 6) for i, size in enumerate(sizes)]
    found = path(dictionaries, count)
    common, local = reference.global_matching([atoms.T for atoms in dictionaries], count)
    np.testing.assert_allclose(matched_atoms(dictionaries, found).mean(axis=0), common.T, atol=1e-12)
    for atoms, index, theirs in zip(dictionaries, found.index, local, strict=True):
        np.testing.assert_array_equal(np.delete(atoms, index, axis=0), theirs.T)
