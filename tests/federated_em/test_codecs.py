"""Codecs: unbiased, no noisier than promised, and exactly as long as they say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcore.errors import ConfigError, WorkerFailed
from fedcore.methods.federated_em.bits import BitReader, BitWriter, gamma_length
from fedcore.methods.federated_em.codecs import NORM_BITS, Dithering, Identity, dithering_omega
from fedcore.methods.federated_em.level_codes import level_bits
from fedcore.randomness import client_uniforms

Q = 210
CODECS = {
    "identity": Identity(Q),
    **{f"dithering-{s}": Dithering((Q,), s) for s in (1, 2, 4, 16)},
    "block-2": Dithering((*range(16, Q, 16), Q), 1),
    "block-3": Dithering((10, 70, Q), 3),
}


def draws(codec, count: int, round: int = 0) -> np.ndarray:
    return client_uniforms(5, "test/codec", round, 0, count, max(codec.draws, 1))


def exact_variance(codec: Dithering, x: np.ndarray) -> np.ndarray:
    """(C,) E ||Quant(x) - x||^2 = sum (N / s)^2 f (1 - f) of one block, f the fraction of s |x| / N."""
    result = np.zeros(len(x))
    for start, stop in zip((0, *codec.blocks[:-1]), codec.blocks, strict=True):
        norms = np.linalg.norm(x[:, start:stop], axis=1)[:, None]
        scaled = np.abs(x[:, start:stop]) * codec.levels / np.where(norms > 0, norms, 1.0)
        fraction = scaled - np.floor(scaled)
        result += np.sum((norms / codec.levels) ** 2 * fraction * (1 - fraction), axis=1)
    return result


def fixed_bits(codec: Dithering) -> int:
    """Length of a message without any code: a norm for each block and ceil(log2(2 s + 1)) bits for each level."""
    return NORM_BITS * len(codec.blocks) + codec.q * math.ceil(math.log2(2 * codec.levels + 1))


def entropy_bits(levels: np.ndarray) -> np.ndarray:
    """(C,) float64: order-0 entropy of the signed levels of each message (C, q), summed; what no symbol code beats."""
    bits = np.zeros(len(levels))
    for level in np.unique(levels):
        count = (levels == level).sum(axis=1)
        bits -= count * np.log2(np.maximum(count, 1) / levels.shape[1])
    return bits


# --- bits -----------------------------------------------------------------------------------------------------------


def test_gamma_codes_worked_by_hand():
    """1 -> 1, 2 -> 010, 5 -> 00101, 8 -> 0001000."""
    writer = BitWriter()
    for number in (1, 2, 5, 8):
        writer.gamma(number)
    assert "".join(writer.parts) == "1010001010001000"
    message, length = writer.finish()
    assert length == 16 and message == bytes([0b10100010, 0b10001000])
    reader = BitReader(message)
    assert [reader.gamma() for _ in range(4)] == [1, 2, 5, 8]
    with pytest.raises(ValueError, match="too early"):
        reader.bit()


@given(st.lists(st.integers(1, 2**31), min_size=1))
def test_gamma_lengths(numbers):
    writer = BitWriter()
    for number in numbers:
        writer.gamma(number)
    assert writer.finish()[1] == gamma_length(np.array(numbers)).sum()


def test_a_message_worked_by_hand():
    """x = (3, 0, -4, 0 | 0): norm 5, s = 5, levels 3, 0, -4, 0, whatever xi is; the second block is zero.

    Sparse: gamma(3) = 3; gap 1: 1, sign 1, gamma(3) = 3; gap 2: 3, sign 1, gamma(4) = 5: 17 bits.
    Dense: gamma(4) + 1 = 6; 1; gamma(5) + 1 = 6; 1; 1: 15 bits. In front: 0 and 32 bits, 1, and the flag: 35.
    """
    codec = Dithering((4, 5), 5)
    x = np.array([[3.0, 0.0, -4.0, 0.0, 0.0]])
    for xi in (1e-9, 0.5, 1 - 1e-9):
        norms, levels = codec.quantise(x, np.full((1, 5), xi))
        assert norms.tolist() == [[5.0, 0.0]] and levels.tolist() == [[3, 0, -4, 0, 0]]
    assert level_bits(levels) == ([17], [15]) and codec.bits(norms, levels) == [50]
    message, length = codec.to_bits(x[0], np.full(5, 0.5))
    assert length == 50 and codec.from_bits(message).tolist() == x[0].tolist()


@pytest.mark.parametrize("q", [1, 7, 63, 64, 65, 130, 700])
@pytest.mark.parametrize("largest", [1, 3, 127, 100_000])
def test_lengths_of_levels_are_sums_of_code_lengths(q, largest):
    rng = np.random.default_rng(q)
    scale = largest ** rng.random((40, q))
    filled = rng.random((40, q)) < rng.random((40, 1)) ** 2
    levels = (np.rint(rng.uniform(-1, 1, (40, q)) * scale) * filled).astype(np.int8 if largest < 128 else np.int32)
    sparse, dense = level_bits(levels)
    for row, own in enumerate(levels.astype(np.int64)):
        places = np.flatnonzero(own)
        numbers = [len(places) + 1, *np.diff(places, prepend=-1), *np.abs(own[places])]
        assert sparse[row] == gamma_length(np.array(numbers)).sum() + len(places)
        assert dense[row] == gamma_length(np.abs(own) + 1).sum() + len(places)


def test_zero_is_one_bit_for_each_block():
    codec = Dithering((4, 5), 3)
    decoded, bits = codec.transmit(np.zeros((2, 5)), np.full((2, 5), 0.999))
    assert not decoded.any() and bits.tolist() == [2, 2]
    message, length = codec.to_bits(np.zeros(5), np.full(5, 0.9))
    assert length == 2 and not codec.from_bits(message).any()


finite = st.floats(-1e30, 1e30, allow_subnormal=True)


@settings(max_examples=60)
@given(st.sampled_from([1, 2, 3, 16, 1000]), st.data())
def test_wire_format_and_counts_agree(levels, data):
    """Any message survives its wire format exactly, and is exactly as long as the vectorised count says."""
    cuts = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True).map(sorted))
    codec = Dithering(tuple(cuts), levels)
    x = data.draw(arrays(np.float64, (3, codec.q), elements=st.one_of(st.just(0.0), finite)))
    uniforms = draws(codec, 3)
    decoded, bits = codec.transmit(x, uniforms)
    assert np.all(np.isfinite(decoded)) and not decoded[x == 0].any()
    for row in range(3):
        message, length = codec.to_bits(x[row], uniforms[row])
        assert length == bits[row] and len(message) == -(-length // 8)
        assert codec.from_bits(message).tobytes() == decoded[row].tobytes()


@pytest.mark.parametrize("name", CODECS)
def test_round_trip(name):
    codec, x = CODECS[name], np.random.default_rng(0).standard_t(2, (50, Q))
    uniforms = draws(codec, 50)
    decoded, bits = codec.transmit(x, uniforms)
    for row in range(50):
        message, length = codec.to_bits(x[row], uniforms[row])
        assert length == bits[row] and len(message) == -(-length // 8)
        assert np.array_equal(codec.from_bits(message, uniforms[row]), decoded[row])


@pytest.mark.parametrize("name", CODECS)
def test_a_message_does_not_depend_on_its_neighbours(name):
    codec, x = CODECS[name], np.random.default_rng(1).normal(size=(20, Q))
    uniforms = draws(codec, 20)
    together, bits = codec.transmit(x, uniforms)
    for row in range(20):
        alone, length = codec.transmit(x[row : row + 1], uniforms[row : row + 1])
        assert np.array_equal(alone[0], together[row]) and length[0] == bits[row]


# --- statistics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CODECS)
def test_unbiased(name):
    """z-score of the mean of 4000 draws, for every coordinate, with the codec's own spread there.

    Dithering draws coordinate by coordinate; 6 standard deviations in 210 coordinates happen with probability 4e-7.
    """
    codec, x = CODECS[name], np.random.default_rng(2).normal(size=Q)
    decoded, _ = codec.transmit(np.tile(x, (4000, 1)), draws(codec, 4000))
    spread = decoded.std(axis=0) / math.sqrt(4000)
    error = np.abs(decoded.mean(axis=0) - x)
    # an entry that is never drawn at all shows no spread: of the smallest |x| in a norm, allow what one draw adds
    assert np.all(error <= 6 * np.maximum(spread, np.abs(decoded).max() / 4000))


@pytest.mark.parametrize(
    "name, empirical",
    [("dithering-1", 13.5), ("dithering-2", 6.2), ("dithering-4", 2.6), ("dithering-16", 0.15), ("block-2", 3.0)],
)
def test_variance_stays_below_its_bound(name, empirical):
    """The worst of 300 random directions is near what was measured before, and below omega."""
    codec, generator = CODECS[name], np.random.default_rng(3)
    x = np.concatenate(
        [generator.normal(size=(100, Q)), generator.standard_t(1.5, (100, Q)), generator.choice([-1.0, 1.0], (100, Q))]
    )
    errors = np.zeros(len(x))
    for round in range(60):
        decoded, _ = codec.transmit(x, draws(codec, len(x), round))
        errors += np.sum((decoded - x) ** 2, axis=1) / 60
    ratio = errors / np.sum(x * x, axis=1)
    exact = exact_variance(codec, x) / np.sum(x * x, axis=1)
    assert exact.max() <= codec.omega * (1 + 1e-6)
    assert ratio.mean() == pytest.approx(exact.mean(), rel=0.05)
    assert exact.max() == pytest.approx(empirical, rel=0.15)


@given(data=st.data())
def test_exact_variance_never_exceeds_omega(data):
    levels, length = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 40))
    x = data.draw(arrays(np.float64, (1, length), elements=st.floats(-10, 10, width=16)))
    codec = Dithering((length,), levels)
    bound = codec.omega * np.sum(x * x)
    assert exact_variance(codec, x)[0] <= bound * (1 + 1e-6) + 1e-6 * np.sum(x * x)


def test_bounds_of_the_specification():
    assert [dithering_omega(Q, s) for s in (2, 4, 16)] == pytest.approx([7.25, 3.28, 0.205], abs=0.005)
    assert dithering_omega(Q, 1) == pytest.approx(13.49, abs=0.005)
    assert dithering_omega(6, 4) == 0.09375 and dithering_omega(6, 2) == 0.375 and dithering_omega(16, 1) == 3.0
    assert Dithering((2, 18, 22), 1).omega == 3.0 and Identity(3).omega == 0


@pytest.mark.parametrize(
    "s, nonzeros, fixed, dense, sparse, entropy",
    [
        (1, 11.6, 452, 277, 143, 109),
        (2, 23.3, 662, 312, 213, 161),
        (4, 46.4, 872, 381, 315, 238),
        (16, 139, 1292, 669, 648, 511),
    ],
)
def test_bits_of_gaussian_messages(s, nonzeros, fixed, dense, sparse, entropy):
    codec = Dithering((Q,), s)
    x = np.random.default_rng(4).normal(size=(2000, Q))
    norms, levels = codec.quantise(x, draws(codec, 2000))
    assert fixed_bits(codec) == fixed
    assert np.count_nonzero(levels, axis=1).mean() == pytest.approx(nonzeros, rel=0.03)
    sparse_length, dense_length = level_bits(levels)
    assert 32 + dense_length.mean() == pytest.approx(dense, rel=0.03)
    assert 32 + sparse_length.mean() == pytest.approx(sparse, rel=0.03)
    assert 32 + entropy_bits(levels).mean() == pytest.approx(entropy, rel=0.06)
    assert codec.bits(norms, levels).mean() == pytest.approx(min(dense, sparse), rel=0.03)


# --- edges ----------------------------------------------------------------------------------------------------------


def test_the_norm_is_rounded_up_and_levels_never_exceed_s():
    x = np.array([[1 / 3, 0.0], [1 + 2**-40, 0.0], [-1e-300, 0.0], [1e-200, 1e-200]])
    norms, levels = Dithering((2,), 3).quantise(x, np.full((4, 2), 1e-9))
    assert np.all(norms[:, 0].astype(np.float64) >= np.abs(x).max(axis=1)) and np.abs(levels).max() <= 3
    assert norms[1, 0] > 1 and norms[2, 0] > 0


@pytest.mark.parametrize("name", ["dithering-4", "identity", "block-2"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_sent(name, bad):
    codec, x = CODECS[name], np.ones((3, Q))
    x[1, 7] = bad
    with pytest.raises(WorkerFailed, match="client 41 is not finite"):
        codec.transmit(x, draws(codec, 3), np.arange(40, 43))


@pytest.mark.parametrize("name", ["dithering-4", "block-2"])
def test_what_float32_cannot_hold_is_never_sent(name):
    codec, x = CODECS[name], np.ones((3, Q))
    x[2] = 1e39
    with pytest.raises(WorkerFailed, match="client 2 "):
        codec.transmit(x, draws(codec, 3))
    with pytest.raises(WorkerFailed, match="client 0 "):  # every entry fits, the norm does not
        Dithering((Q,), 2).transmit(np.full((1, Q), 3e38), np.full((1, Q), 0.5))


def test_settings_that_make_no_codec():
    for bad in (lambda: Dithering((), 1), lambda: Dithering((3, 3), 1), lambda: Dithering((3,), 0)):
        with pytest.raises(ConfigError):
            bad()
