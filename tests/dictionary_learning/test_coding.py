"""Sparse codes against scikit-learn and against least squares."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.dictionary_learning.operators import normalise, random_atoms, top_k
from fedcore.methods.dictionary_learning.sparse_codes import omp, omp_with_errors
from fedcore.methods.perma.learners import Coder
from fedcore.randomness import stream


@given(st.integers(0, 10_000), st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_omp_is_scikit_learns(seed, k):
    from sklearn.linear_model import orthogonal_mp

    generator = stream(seed, "omp")
    atoms = normalise(generator.standard_normal((12, 9)) + 0.5)[0]
    y = generator.standard_normal((30, 9))
    np.testing.assert_allclose(omp(y, atoms, k), orthogonal_mp(atoms.T, y.T, n_nonzero_coefs=k).T, atol=1e-8)


def test_omp_in_several_lots_is_the_same(monkeypatch):
    generator = stream(1, "omp")
    atoms, y = normalise(generator.standard_normal((20, 8)))[0], generator.standard_normal((50, 8))
    whole = omp(y, atoms, 4)
    monkeypatch.setattr("fedcore.methods.dictionary_learning.sparse_codes.TILE_NUMBERS", 20 * 17)
    np.testing.assert_allclose(omp(y, atoms, 4), whole, atol=1e-12)


def test_omp_stops_when_nothing_is_left():
    atoms = np.vstack([np.eye(4), np.eye(4)[1], np.zeros(4)])  # a double and an empty atom
    y = np.array([[0.0, 0, 0, 0], [0, 2, 0, 0], [1, 2, 3, 4.0]])
    codes = omp(y, atoms, 6)
    assert np.count_nonzero(codes, axis=1).tolist() == [0, 1, 4]
    np.testing.assert_allclose(codes @ atoms, y, atol=1e-12)


def test_omp_with_a_number_of_atoms_for_each_sample():
    generator = stream(7, "omp")
    y, atoms = generator.standard_normal((3, 40, 9)), normalise(generator.standard_normal((3, 12, 9)))[0]
    k = generator.integers(0, 12, (3, 40))  # more than the rank too
    codes = omp(y, atoms, k)
    for count in range(12):
        np.testing.assert_allclose(codes[k == count], omp(y, atoms, count)[k == count], atol=1e-10)
    np.testing.assert_array_equal(np.count_nonzero(codes, axis=2), np.minimum(k, 9))
    np.testing.assert_allclose(omp(y, atoms[0], k)[1], omp(y[1], atoms[0], k[1]), atol=1e-12)
    errors = omp_with_errors(y, atoms, k)[1]
    np.testing.assert_allclose(errors, ((y - codes @ atoms) ** 2).sum(2), atol=1e-12)


def test_omp_takes_the_lowest_of_equal_atoms():
    generator = stream(8, "omp")
    atoms, y = normalise(generator.standard_normal((20, 40)))[0], generator.standard_normal((60, 40))
    doubled = np.concatenate([atoms, -atoms[::-1] * 3.0, atoms])
    codes = omp(y, doubled, 8)
    assert not codes[:, 20:].any()
    np.testing.assert_allclose(codes[:, :20], omp(y, atoms, 8), atol=1e-12)
    assert omp(np.ones((1, 5)), np.eye(5)[::-1], 2).tolist() == [[1, 1, 0, 0, 0]]


def test_omp_codes_are_least_squares_of_atoms_that_are_nearly_alike():
    generator = stream(9, "omp")
    atoms = normalise(np.ones(30) + 0.01 * generator.standard_normal((12, 30)))[0]
    y = generator.standard_normal((20, 12)) @ atoms
    codes = omp(y, atoms, 6)
    np.testing.assert_allclose(omp_with_errors(y, atoms, 6)[1], ((y - codes @ atoms) ** 2).sum(1), rtol=1e-8, atol=1e-9)
    for sample, code in zip(y, codes, strict=True):
        support = np.flatnonzero(code)
        best = np.linalg.lstsq(atoms[support].T, sample)[0]
        np.testing.assert_allclose(code[support], best, atol=1e-9 * np.abs(best).max())


def test_omp_takes_atoms_of_any_norm():
    generator = stream(2, "omp")
    atoms, y = normalise(generator.standard_normal((10, 6)))[0], generator.standard_normal((9, 6))
    scaled = atoms * np.arange(1.0, 11)[:, None]
    np.testing.assert_allclose(omp(y, scaled, 3) @ scaled, omp(y, atoms, 3) @ atoms, atol=1e-10)


def test_omp_with_orthonormal_atoms_is_top_k():
    atoms = random_atoms(stream(3, "omp"), 6, 6)
    y = stream(4, "omp").standard_normal((20, 6))
    np.testing.assert_allclose(omp(y, atoms, 2), top_k(y @ atoms.T, 2), atol=1e-12)
    assert omp(y, atoms[:0], 2).shape == (20, 0)


@pytest.mark.parametrize("code", ["threshold", "top_k", "omp"])
def test_stacks_are_coded_as_one_by_one(code):
    generator = stream(6, "stack")
    y, atoms = generator.standard_normal((3, 1, 10, 6)), normalise(generator.standard_normal((3, 2, 5, 6)))[0]
    coder = Coder(code, threshold=0.5, sparsity=2)
    together = coder(y, atoms)
    for i in range(3):
        for s in range(2):
            np.testing.assert_allclose(together[i, s], coder(y[i, 0], atoms[i, s]), atol=1e-12)
