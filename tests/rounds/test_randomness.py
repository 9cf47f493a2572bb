"""Streams are named: content is a function of the name."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.randomness import ClientDither, client_dither, client_uniforms, stream


@given(st.integers(0, 50), st.integers(1, 30), st.integers(1, 9))
def test_a_clients_uniforms_do_not_depend_on_the_block(first, clients, draws):
    whole = client_uniforms(3, "gumbel", 2, 0, first + clients, draws)
    part = client_uniforms(3, "gumbel", 2, first, clients, draws)
    assert (whole[first:] == part).all() and part.shape == (clients, draws)
    assert (part > 0).all() and (part < 1).all()


@pytest.mark.parametrize("other", [(4, "gumbel", 2), (3, "gumbels", 2), (3, "gumbel", 3)])
def test_another_name_is_another_stream(other):
    assert (client_uniforms(3, "gumbel", 2, 0, 8) != client_uniforms(*other, 0, 8)).all()
    assert stream(3, "gumbel", 2).random() != stream(*other).random()


def test_streams_of_two_clients_differ_and_repeat():
    assert stream(1, "a", 0, 5).random() == stream(1, "a", 0, 5).random()
    assert stream(1, "a", 0, 5).random() != stream(1, "a", 0, 6).random()


def test_uniforms_are_uniform():
    sample = client_uniforms(0, "u", 0, 0, 50_000, 2)
    # Standard error of a mean of 1e5 uniforms is 0.0009; five of them.
    assert np.allclose(sample.mean(), 0.5, atol=0.005) and np.allclose(sample.var(), 1 / 12, atol=0.002)


@given(st.integers(0, 50), st.integers(1, 30), st.integers(1, 40))
def test_a_clients_dither_does_not_depend_on_the_block(first, clients, draws):
    whole = client_dither(3, "codec", 2, 0, first + clients, draws)
    part = client_dither(3, "codec", 2, first, clients, draws)
    assert (whole[first:] == part).all() and part.shape == (clients, draws)
    assert (part > 0).all() and (part < 1).all()
    one_after_the_other = ClientDither(3, "codec", 2, 0, draws)
    assert (one_after_the_other.of_next(first) == whole[:first]).all()
    assert (one_after_the_other.of_next(clients) == part).all()


def test_a_stream_is_philox_with_its_key():
    key = np.frombuffer(hashlib.blake2b(b"7|start|3", digest_size=16).digest(), np.uint64)
    expected = np.random.Generator(np.random.Philox(key=key)).random(5)
    assert (stream(7, "start", 3).random(5) == expected).all()


def test_the_law_of_dither():
    """u = (2^32 k + m + 1/2) 2^-48: k is each draw's own, m its client's."""
    clients, draws = 20_000, 50
    u = client_dither(1, "codec", 0, 0, clients, draws)
    points = u * 2.0**48 - 0.5
    assert (points == np.floor(points)).all()
    k, m = np.divmod(points.astype(np.int64), 2**32)
    assert (m == m[:, :1]).all() and len(np.unique(m[:, 0])) > 0.999 * clients
    for words, bits in ((k, 16), (m[:, 0], 32)):
        counts = np.bincount(words.ravel() >> bits - 6, minlength=64)
        expected = words.size / 64
        assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * np.sqrt(2 * 63)
    between = np.corrcoef(u[:, :8].T) - np.eye(8)
    assert np.abs(between).max() < 5 / np.sqrt(clients)
    # Below the grid of 16 bits: a probability of 2^-19 is neither 0 nor 2^-16.
    rare = sum(np.count_nonzero(client_dither(s, "rare", 0, 0, clients, 240) < 2.0**-19) for s in range(4))
    assert 8 <= rare <= 80  # 36.6 are expected
