"""What any correct `fedcore.privacy.rounded_gaussian` does, as checks of a module; mutants of it must fail one of them.

Thresholds are computed with mpmath, not with the balls of the code.
"""

from fractions import Fraction
from functools import cache

import mpmath
import numpy as np

SMALL_SCALES = (0.75, 1.0, 3.7, 11.3)
WIDE_SCALES = tuple(2.0**power for power in (15, 20, 26, 32, 35, 37))
WIDEST_SCALES = (2.0**39, 1.3 * 2.0**42, 2.0**48)  # where every cell is slow
EXACT_BITS = 400


class Given:
    """Bits that a check chooses. hidden: all further bits are 0, or all are 1, or those of a whole number."""

    def __init__(self, words, hidden=0, length=0):
        self.left = np.asarray(words, np.uint64)
        self.hidden, self.length, self.asked = hidden, length, []

    def words(self, n):
        taken, self.left = self.left[:n], self.left[n:]
        assert len(taken) == n
        self.asked.append(n)
        return taken

    def more(self, n):
        if self.length:  # the bits of a number, the first ones first, and then zeros
            self.length -= n
            if self.length >= 0:
                return self.hidden >> self.length & (2**n - 1)
            return self.hidden << -self.length & (2**n - 1) if self.length > -n else 0
        return (2**n - 1) * self.hidden


@cache
def threshold(odd: int, scale: Fraction, bits: int) -> int:
    """floor(2^bits 2 Q(odd / (2 s))): |Y| >= (odd + 1) / 2 exactly if U is below the threshold."""
    with mpmath.workprec(EXACT_BITS + bits):
        x = mpmath.mpf(odd) * scale.denominator / (2 * scale.numerator)
        value = mpmath.erfc(x / mpmath.sqrt(2)) * mpmath.mpf(2) ** bits
        assert abs(value - mpmath.nint(value)) > mpmath.mpf(2) ** -100  # never so near that it is not decided
        return int(mpmath.floor(value))


def outcome(module, k, scale, hidden=0, sign=0):
    bits = Given([2 * k + sign], hidden)
    return int(module.add(np.zeros(1, np.int64), scale, bits)[0])


def expect(module, k, scale, hidden, magnitude):
    for sign in (0, 1):
        found = outcome(module, k, scale, hidden, sign)
        assert abs(found) == magnitude, (k, scale, hidden, found, magnitude)
        assert magnitude == 0 or (found < 0) == (sign == 1)


def around_the_threshold(module, j, scale):
    """The words below, at and above the threshold between |Y| = j and j - 1."""
    k = threshold(2 * j - 1, Fraction(scale), 63)
    expect(module, k - 1, scale, 1, j)
    expect(module, k + 1, scale, 0, j - 1)
    expect(module, k, scale, 0, j)
    expect(module, k, scale, 1, j - 1)


def check_all_outcomes(module):
    for scale in SMALL_SCALES:
        j = 1
        while threshold(2 * j - 1, Fraction(scale), 63) > 2 * threshold(2 * j + 1, Fraction(scale), 63) - 8:
            if threshold(2 * j - 1, Fraction(scale), 63) < 4:
                break
            around_the_threshold(module, j, scale)
            j += 1
        for rest in range(j, j + 400):
            k = threshold(2 * rest - 1, Fraction(scale), 63)
            if k < 4:  # neighbouring words would hold several thresholds
                break
            around_the_threshold(module, rest, scale)


def check_random_thresholds(module):
    random = np.random.default_rng(5)
    for scale in WIDE_SCALES:
        for z in random.uniform(0.0, 6.0, 25):
            around_the_threshold(module, max(int(z * scale), 1), scale)


def check_hidden_bits(module):
    """Wide noise, small k: what decides lies behind the first word, in bits that are drawn. Wider noise: any k."""
    random = np.random.default_rng(6)
    for scale, least in [*((scale, 4.9) for scale in WIDE_SCALES[3:]), *((scale, 0.0) for scale in WIDEST_SCALES)]:
        for z in random.uniform(least, 8.0, 15):
            j = max(int(z * scale), 1)
            bits = 63 + 64
            exact = threshold(2 * j - 1, Fraction(scale), bits)
            for tail, magnitude in ((exact - 1, j), (exact + 1, j - 1)):
                source = Given([2 * (tail >> 64)], tail & (2**64 - 1), 64)
                assert module.add(np.zeros(1, np.int64), scale, source)[0] == magnitude


def check_deep_tail(module):
    """z from 9 to 40: the first word is 0, and further ones tell."""
    for scale in (1.0, 3.7, 2.0**16, 2.0**37):
        for z in (9, 12.5, 20, 31, 40):
            j, bits = int(z * scale), 63 + 64 * 24
            exact = threshold(2 * j - 1, Fraction(scale), bits)
            for tail, magnitude in ((exact - 1, j), (exact + 1, j - 1)):
                length = bits - 63
                source = Given([2 * (tail >> length)], tail & (2**length - 1), length)
                assert module.add(np.zeros(1, np.int64), scale, source)[0] == magnitude


def check_words(module):
    """n cells read 8 n bytes, each once; every cell is the magnitude of its own word."""
    random, chunk = np.random.default_rng(7), module.CHUNK
    words = random.integers(0, 2**64, 2 * chunk + 5, np.uint64, endpoint=False)
    source, scale = Given(words), 2.0**20
    noise = module.add(np.zeros(len(words), np.int64), scale, source)
    assert source.asked == [chunk, chunk, 5] and not len(source.left)
    ends = [0, 1, chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 2 * chunk + 4]
    cells = [*ends, *random.integers(0, 2 * chunk, 200).tolist()]
    for cell in cells:
        word = int(words[cell])
        magnitude = module._magnitude(word >> 1, Fraction(scale), Given([]), abs(int(noise[cell])))
        assert noise[cell] == (-magnitude if word & 1 else magnitude), cell
    guessed = {module._magnitude(int(words[0]) >> 1, Fraction(3.7), Given([]), guess) for guess in (0, 1, 7, 90)}
    assert len(guessed) == 1  # any guess leads there


def check_both_paths_agree(module):
    random, scale = np.random.default_rng(8), 2.0**37
    words = random.integers(0, 2**64, 400, np.uint64, endpoint=False)
    noise = module.add(np.zeros(400, np.int64), scale, Given(words))
    for word, value in zip(words.tolist(), noise.tolist(), strict=True):
        k = word >> 1
        z = mpmath_quantile(k)
        with mpmath.workprec(200):
            assert abs(abs(value) - z * mpmath.mpf(scale)) < 0.5 + scale * 2.0**-40


@cache
def mpmath_quantile(k):
    with mpmath.workprec(200):
        u = mpmath.mpf(2 * k + 1) / mpmath.mpf(2) ** 64
        return mpmath.sqrt(2) * mpmath.erfinv(1 - u)


def check_saturation(module):
    ends = np.iinfo(np.int64)
    values = np.array([ends.max, ends.min, ends.max, ends.min, ends.max - 10**6, 0], np.int64)
    words = np.array([2**40, 2**40 + 1, 2**40 + 1, 2**40, 2**63, 2**63], np.uint64)  # +, -, -, + far out; + and + near
    noised = module.add(values, 2.0**30, Given(words))
    far = abs(outcome(module, 2**39, 2.0**30))
    assert noised.tolist()[:4] == [ends.max, ends.min, ends.max - far, ends.min + far]
    assert noised[4] == min(ends.max, ends.max - 10**6 + int(noised[5]))


def check_polynomials(module):
    """`_z` at the ends and the middle of every piece, within 2^-44."""
    from fedcore.privacy import normal_table

    for index in range(0, normal_table.COUNT):
        middle, half = normal_table.piece(index)
        ks = np.array([middle - half, middle, min(middle + half - 1, 2**63 - 1)], np.int64)
        found = module._z(ks)
        for k, value in zip(ks.tolist(), found.tolist(), strict=True):
            k = int(float(k))  # what the polynomial is given
            assert abs(value - normal_table_quantile(k)) < 2.0**-44, (index, k)


@cache
def normal_table_quantile(k):
    from flint import arb, ctx

    from fedcore.privacy import normal_table

    with ctx.workprec(200):
        z = normal_table.quantile(arb(k))
        return float(z)


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}
