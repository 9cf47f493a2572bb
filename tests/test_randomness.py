"""Streams are named: content is a function of the name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.randomness import client_uniforms, stream


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
