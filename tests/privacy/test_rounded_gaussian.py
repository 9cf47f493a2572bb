"""The rounded Gaussian: certificate, all outcomes, tails, both paths, law; and mutants, each of which must fail."""

import hashlib
import math
import types
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from fedcore.errors import PrivacyError, SensitivityError
from fedcore.privacy import normal_table, rounded_gaussian
from fedcore.privacy.rounded_gaussian import StreamBits, SystemBits, add, ready
from tests.privacy.rounded_gaussian_checks import CHECKS, Given

SOURCE = Path(rounded_gaussian.__file__).read_text()


def test_the_table_is_the_one_that_is_made_and_its_error_is_proved():
    table = normal_table.make_table()
    assert table.tobytes() == np.load(normal_table.FILE).tobytes()
    assert hashlib.sha256(table.astype("<f8").tobytes()).hexdigest() == normal_table.SHA256
    bound = normal_table.proved_bound(table)
    assert bound <= normal_table.CERTIFIED
    # What the fast path allows for: hidden bits and the rounding of k by Mills' ratio, the table, the product with s.
    mills = math.sqrt(math.pi / 2) * (2.0**-42 + 2.0**-53)
    assert mills + bound + 2.0**-49 < 2.0**-40


@pytest.mark.parametrize("check", CHECKS)
def test_law(check):
    CHECKS[check](rounded_gaussian)


MUTANTS = {
    "scale x .99": ("scaled = scale * _z(k)", "scaled = 0.99 * scale * _z(k)"),
    "scale x .99 in the slow path": ("(2 * scale.numerator) / arb(2)", "(2 * scale.numerator) * 100 / 99 / arb(2)"),
    "scale (1 - 1e-9)": ("scaled = scale * _z(k)", "scaled = scale * (1 - 1e-9) * _z(k)"),
    "sign dropped": ("np.where(words & np.uint64(1), -magnitude, magnitude)", "magnitude"),
    "sign taken from k": ("np.where(words & np.uint64(1),", "np.where(k & 1,"),
    "words reused in the next chunk": (
        "words = bits.words(size)",
        "words = bits.__dict__.setdefault('once', bits.words(size))[:size]",
    ),
    "float32": ("    return result\n", "    return result.astype(np.float32).astype(np.float64)\n"),
    "no refinement": ("decided = (k >=", "decided = (k >= -1) | (k >="),
    "bound 2^-60": ("2.0**-40 * (1 + 2.0**-20)", "2.0**-60 * (1 + 2.0**-20)"),
    "bound without the scale": ("ERROR * scale <", "ERROR <"),
    "small k not refined": ("(k >= SMALLEST_FAST) & (np.abs", "(np.abs"),
    "a uniform of 52 bits": (
        "k = (words >> np.uint64(1)).astype(np.int64)",
        "k = (words >> np.uint64(12) << np.uint64(11)).astype(np.int64)",
    ),
    "hidden bits are zero": ("bits.more(MORE)", "0 * bits.more(MORE)"),
    "threshold wrong by 2^-62": ("arb(2).sqrt()).erfc()", "arb(2).sqrt()).erfc() + arb(2) ** -62"),
    "degree 5": (
        "result: np.ndarray = table[normal_table.DEGREE][index]\n    for n in range(normal_table.DEGREE - 1, -1, -1)",
        "result = table[5][index]\n    for n in range(4, -1, -1)",
    ),
    "sums wrap": ("np.where(passed, ends, total)", "total"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_fails(mutant):
    old, new = MUTANTS[mutant]
    assert SOURCE.count(old) >= 1
    module = types.ModuleType("mutant")
    module.__dict__["__annotations__"] = {}
    exec(compile(SOURCE.replace(old, new), mutant, "exec"), module.__dict__)
    killed = []
    for name, check in CHECKS.items():
        try:
            check(module)
        except AssertionError:
            killed.append(name)
            break
    assert killed, f"nothing notices: {mutant}"


def test_refusals_come_before_anything_is_drawn(monkeypatch):
    for scale in (0.0, -1.0, math.inf, math.nan, 2.0**48 * 1.001):
        with pytest.raises(SensitivityError):
            ready(scale)
        with pytest.raises(SensitivityError):
            add(np.zeros(1, np.int64), scale, Given([]))
    monkeypatch.setattr(normal_table, "SHA256", "0" * 64)
    rounded_gaussian._table.cache_clear()
    with pytest.raises(PrivacyError, match="not the one that was proved"):
        ready(1.0)
    monkeypatch.undo()
    ready(1.0)
    monkeypatch.setattr("os.urandom", lambda n: (_ for _ in ()).throw(NotImplementedError()))
    with pytest.raises(PrivacyError, match="random bits"):
        ready(1.0)


def test_shapes_and_a_stream_that_can_be_made_again():
    values = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    one, two = (add(values, 100.0, StreamBits("key", 3, "sums")) for _ in range(2))
    assert one.shape == (2, 3, 4) and one.dtype == np.int64 and (one == two).all()
    others = [StreamBits("kez", 3, "sums"), StreamBits("key", 4, "sums"), StreamBits("key", 3, "sumt")]
    assert all((add(values, 100.0, bits) != one).any() for bits in others)
    assert add(np.zeros((0, 5), np.int64), 1.0, SystemBits()).shape == (0, 5)
    parts, whole = StreamBits("k", 0, "n"), StreamBits("k", 0, "n")
    pieces = np.concatenate([parts.words(n) for n in (1, 2**13, 5)])
    assert (pieces == whole.words(2**13 + 6)).all() and len(set(pieces.tolist())) == len(pieces)
    assert parts.more(64) != parts.more(64) and 0 <= parts.more(5) < 32
    assert len(SystemBits().words(3)) == 3 and 0 <= SystemBits().more(3) < 8


CELLS = 10**7


@pytest.mark.slow
def test_the_law_of_ten_million_cells():
    small = add(np.zeros(CELLS, np.int64), 3.7, SystemBits())
    edges = np.arange(-16, 17)
    expected = np.diff(scipy.stats.norm.cdf(np.concatenate([[-np.inf], edges + 0.5, [np.inf]]) / 3.7))
    observed = np.bincount(np.clip(small, -16, 17) + 16, minlength=34)
    assert scipy.stats.chisquare(observed, CELLS * expected).pvalue > 1e-6
    wide = add(np.zeros(CELLS, np.int64), 2.0**30, SystemBits()) / 2.0**30
    assert scipy.stats.kstest(wide, "norm").pvalue > 1e-6
    assert abs(wide.var() - 1) < 6 * math.sqrt(2 / CELLS) and abs(wide.mean()) < 6 / math.sqrt(CELLS)
    assert abs(np.mean(wide[1:] * wide[:-1])) < 6 / math.sqrt(CELLS)  # neighbours, also over the ends of chunks
    parity = np.mean(add(np.zeros(CELLS, np.int64), 2.0**20, SystemBits()) & 1)
    assert abs(parity - 0.5) < 6 * 0.5 / math.sqrt(CELLS)
