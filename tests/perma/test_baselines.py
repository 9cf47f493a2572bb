"""Baselines: each must do on easy data what it is for."""

import numpy as np
import pytest
from fedcore.papers.perma import baselines
from fedcore.papers.perma.baselines import consensus_admm, fedavg_k_svd, k_svd_step, personalised_pca
from fedcore.papers.perma.truth import sparse_codes

from fedcore.methods.dictionary_learning.distances import d12
from fedcore.methods.dictionary_learning.operators import normalise, random_atoms
from fedcore.methods.dictionary_learning.sparse_codes import omp
from fedcore.methods.perma.learners import Coder

CLIENTS, D = 5, 12


@pytest.fixture(scope="module")
def sparse():
    """(true atoms (8, d), samples of five clients): three atoms a sample."""
    generator = np.random.default_rng(0)
    atoms = random_atoms(generator, 8, D)
    codes = [sparse_codes(generator, 150, 8, 0.25, 0.3) for _ in range(CLIENTS)]
    return atoms, [x @ atoms for x in codes]


def near(atoms, size=0.15):
    return normalise(atoms + size * np.random.default_rng(1).normal(size=atoms.shape))[0]


def loss(samples, atoms, k=3):
    return sum(float(((y - omp(y, atoms, k) @ atoms) ** 2).sum()) for y in samples)


# --- personalised PCA -----------------------------------------------------------------------------------------------


def test_personalised_pca_finds_what_is_shared():
    generator = np.random.default_rng(2)
    frame = random_atoms(generator, D, D)
    samples = []
    for client in range(CLIENTS):
        own = frame[2 + 2 * client : 4 + 2 * client]
        scores = generator.normal(size=(400, 4)) * [3.0, 3.0, 2.0, 2.0]
        samples.append(scores @ np.concatenate([frame[:2], own]) + 0.05 * generator.normal(size=(400, D)))
    found = personalised_pca(samples, 2, 2, 60, seed=1)
    assert np.linalg.norm(frame[:2] - frame[:2] @ found.common.T @ found.common, 2) < 0.1
    for client, local in enumerate(found.local):
        own = frame[2 + 2 * client : 4 + 2 * client]
        assert np.linalg.norm(own - own @ local.T @ local, 2) < 0.1
        both = np.concatenate([found.common, local])
        np.testing.assert_allclose(both @ both.T, np.eye(4), atol=1e-10)
    assert found.losses[-1] < found.losses[0] and found.losses[-1] < 2 * D * 0.05**2


def test_without_local_components_it_is_the_pooled_one():
    generator = np.random.default_rng(3)
    samples = [generator.normal(size=(50, D)) * np.linspace(3, 0.1, D) for _ in range(3)]
    found = personalised_pca(samples, 3, 0, 3, seed=1)
    best = baselines.singular_vectors(samples, 3)
    # equal sizes, so the mean of second moments is the pooled one; the averaging of rounds moves it a little
    assert np.linalg.norm(best - best @ found.common.T @ found.common, 2) < 0.1
    assert found.local.shape == (3, 0, D)


# --- consensus ADMM, K-SVD ------------------------------------------------------------------------------------------


def test_the_truth_is_a_fixed_point(sparse):
    atoms, samples = sparse
    coder = Coder("omp", sparsity=8)  # as many as there may be: codes of the true atoms are exact
    assert d12(consensus_admm(samples, atoms, coder, 3), atoms) < 1e-7
    assert d12(fedavg_k_svd(samples, atoms, 8, 3), atoms) < 1e-6


def test_both_learn_from_a_start_nearby(sparse):
    atoms, samples = sparse
    start = near(atoms)
    for found in (consensus_admm(samples, start, Coder("omp", sparsity=3), 15), fedavg_k_svd(samples, start, 3, 15)):
        assert d12(found, atoms) < 0.5 * d12(start, atoms)
        assert loss(samples, found) < 0.5 * loss(samples, start)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0)


def test_a_step_of_k_svd_lowers_the_error_at_its_codes(sparse):
    atoms, samples = sparse
    start = near(atoms, 0.4)
    moved = k_svd_step(samples[0], start, 3)
    codes = omp(samples[0], start, 3)
    best = np.linalg.lstsq(codes, samples[0], rcond=None)[0]
    before = ((samples[0] - codes @ start) ** 2).sum()
    assert loss(samples[:1], moved) < before and ((samples[0] - codes @ best) ** 2).sum() <= before


def test_an_unused_atom_stays(sparse):
    _, samples = sparse
    start = np.concatenate([near(sparse[0]), np.zeros((1, D))])
    np.testing.assert_array_equal(k_svd_step(samples[0], start, 2)[-1], 0.0)


def test_small_clients_weigh_little(sparse):
    """One odd client of two samples hardly moves the mean of K-SVD."""
    atoms, samples = sparse
    odd = np.random.default_rng(4).normal(size=(2, D))
    a, b = fedavg_k_svd(samples, atoms, 3, 1), fedavg_k_svd([*samples, odd], atoms, 3, 1)
    assert d12(a, b) < 0.02


# --- pooled ---------------------------------------------------------------------------------------------------------


def test_singular_vectors_are_best(sparse):
    _, samples = sparse
    together = np.concatenate(samples)
    best = baselines.singular_vectors(samples, 4)
    values = np.linalg.svd(together, compute_uv=False)
    rest = ((together - together @ best.T @ best) ** 2).sum()
    assert rest == pytest.approx((values[4:] ** 2).sum(), rel=1e-9)
    np.testing.assert_allclose(best @ best.T, np.eye(4), atol=1e-12)


def test_images_without_learning():
    training = [np.array([[1.0, 3.0]]), np.array([[3.0, 3.0], [5.0, 0.0]])]
    images = np.ones((2, 2))
    np.testing.assert_array_equal(baselines.zero_image(images), 0.0)
    np.testing.assert_array_equal(baselines.mean_image(images, training), [[3.0, 2.0]] * 2)


def test_scikit_learn(sparse):
    pytest.importorskip("sklearn")
    atoms, samples = sparse
    together = np.concatenate(samples[:2])
    found = baselines.mini_batch_dictionary(together, 8, 1, alpha=0.1, passes=3, batch=50)
    assert found.shape == (8, D)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0)
    assert loss(samples, found) < 0.5 * loss(samples, random_atoms(np.random.default_rng(1), 8, D))
