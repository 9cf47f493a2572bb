"""Synthetic clients who share atoms: what the generator promises."""

import numpy as np
import pytest
from fedcore.papers.perma.truth import shared_atoms, sparse_codes
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import ConfigError


@given(st.integers(0, 10**6), st.integers(1, 8), st.data())
@settings(max_examples=30, deadline=None)
def test_dictionaries_are_orthonormal_and_share_their_first_atoms(seed, features, data):
    common = data.draw(st.integers(0, features))
    local = data.draw(st.lists(st.integers(0, features - common), min_size=1, max_size=4))
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=len(local), max_size=len(local)))
    drawn = shared_atoms(seed, len(local), features, common, local, sizes)
    assert [len(own) for own in drawn.samples] == sizes and [len(own) for own in drawn.local] == local
    for client, own in enumerate(drawn.samples):
        atoms = drawn.atoms(client)
        np.testing.assert_allclose(atoms @ atoms.T, np.eye(len(atoms)), atol=1e-12)
        np.testing.assert_array_equal(atoms[:common], drawn.common)
        np.testing.assert_allclose(own @ atoms.T @ atoms, own, atol=1e-12)  # no noise: in the span


def test_codes_have_the_density_and_the_floor():
    n, r, density = 4000, 5, 0.2
    codes = sparse_codes(np.random.default_rng(3), n, r, density, 0.3)
    there = codes != 0
    assert abs(there.mean() - density) < 5 * np.sqrt(density * (1 - density) / (n * r))
    size = np.abs(codes[there])
    assert size.min() == 0.3
    raised = 0.2358228  # of a standard normal: P(|z| < .3)
    assert abs((size == 0.3).mean() - raised) < 5 * np.sqrt(raised * (1 - raised) / there.sum())
    assert abs(np.sign(codes[there]).mean()) < 5 / np.sqrt(there.sum())


def test_other_clients_change_nobody():
    few, many = shared_atoms(7, 3), shared_atoms(7, 5, samples=[200, 200, 200, 20, 10])
    for a, b in zip(few.samples, many.samples[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(few.common, many.common)


def test_clients_turn_the_complement_in_their_own_way():
    drawn = shared_atoms(1, 4)
    products = np.abs(drawn.local[0] @ drawn.local[1].T)
    assert products.max() < 0.999
    np.testing.assert_allclose(drawn.local[0] @ drawn.common.T, 0, atol=1e-12)


def test_garbage_and_noise():
    drawn = shared_atoms(2, 4, garbage=1, noise=0.1)
    assert list(drawn.garbage) == [False, False, False, True]
    shape = drawn.samples[0].shape
    clean = shared_atoms(2, 4)
    rest = np.concatenate([drawn.samples[i] - clean.samples[i] for i in range(3)])
    assert abs(rest.std() - 0.1) < 5 * 0.1 / np.sqrt(2 * rest.size)
    # Nine tenths of six numbers are there: hardly a sample of garbage is sparse in the true atoms.
    codes = drawn.samples[3] @ drawn.atoms(3).T
    assert (np.abs(codes) > 0.15).mean() > 0.7 and shape == drawn.samples[3].shape


@pytest.mark.parametrize(
    "asked",
    [
        {"features": 6, "common": 4, "local": 3},
        {"clients": 2, "local": [1, 2, 3]},
        {"clients": 2, "samples": [5]},
        {"common": -1},
        {"clients": 2, "samples": [5, -5]},
    ],
)
def test_what_does_not_fit_is_refused(asked):
    with pytest.raises(ConfigError):
        shared_atoms(1, **asked)
