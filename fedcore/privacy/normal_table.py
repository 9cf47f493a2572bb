"""The table of half-normal quantiles that `fedcore.privacy.rounded_gaussian` looks up, and the proof of its error.

    python -m fedcore.privacy.normal_table          computes the table again and proves its bound
        python -m fedcore.privacy.normal_table --write  and writes it to this module's folder

z(u) = Q^-1(u / 2) for u in (0, 1), with Q = 1 - Phi. An argument is a whole number k of 63 bits that stands for
u = k 2^-63. Every octave [2^e, 2^(e+1)) of k from e = 42 on is cut into 32 pieces; on each of them z is a polynomial of
degree 7, the Taylor polynomial about the middle of the piece, in t = (k - middle) / half the width, so -1 <= t <= 1.
All bounds are computed with balls of Arb (python-flint), so that they hold whatever is rounded.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from flint import arb

FILE = Path(__file__).with_name("rounded_gaussian.npy")
SHA256 = "b8bdb1f94cee6175c6b5382253d2ae92eeb56f7551c860b72a9713e55f410011"  # of the table's little-endian bytes
DEGREE = 7
FIRST_OCTAVE, LAST_OCTAVE = 42, 62
PIECES = 32  # of an octave
COUNT = (LAST_OCTAVE - FIRST_OCTAVE + 1) * PIECES
PRECISION = 300
CERTIFIED = 2.0**-44  # what `proved_bound` has to stay below


def piece(index: int) -> tuple[int, int]:
    """(middle, half the width) of a piece, both whole numbers in units of k."""
    octave, within = FIRST_OCTAVE + index // PIECES, index % PIECES
    half = 2 ** (octave - 6)
    return 2**octave + (2 * within + 1) * half, half


@cache
def hermite_like(order: int) -> tuple[int, ...]:
    """Coefficients, lowest first, of H_n with H_1 = 1 and H_(n+1) = n z H_n + H_n'; none is negative.

    The n-th derivative of z with respect to p = u / 2 is (-1 / phi(z))^n H_n(z).
    """
    if order == 1:
        return (1,)
    before = hermite_like(order - 1)
    coefficients = [0] * (len(before) + 1)
    for power, value in enumerate(before):
        coefficients[power + 1] += (order - 1) * value
        if power:
            coefficients[power - 1] += power * value
    return tuple(coefficients)


def quantile(k: arb) -> arb:
    """z of k, a ball."""
    from flint import arb

    return (k / 2**63).erfcinv() * arb(2).sqrt()


def _taylor(k: arb, half: int, order: int) -> arb:
    """The n-th coefficient of z about k in units of `half`, n = 0 included."""
    from flint import arb

    z = quantile(k)
    if order == 0:
        return z
    density = (-z * z / 2).exp() / (2 * arb.pi()).sqrt()
    step = arb(half) / 2**64  # in p
    derivative = sum((value * z**power for power, value in enumerate(hermite_like(order))), arb(0))
    return (-step / density) ** order * derivative / arb.fac_ui(order)


def make_table() -> np.ndarray:
    """(8, 672) float64: row n holds the n-th coefficient of every piece, each the nearest float."""
    from flint import arb, ctx

    table = np.empty((DEGREE + 1, COUNT))
    with ctx.workprec(PRECISION):
        for index in range(COUNT):
            middle, half = piece(index)
            for order in range(DEGREE + 1):
                table[order, index] = nearest_float(_taylor(arb(middle), half, order))
    return table


def nearest_float(ball: arb) -> float:
    """The float nearest to every number of the ball. Raises ArithmeticError if the ball does not decide it."""
    low, high = float(ball.lower()), float(ball.upper())
    if low != high:
        raise ArithmeticError(f"{ball} is too wide for one float")
    return low


def proved_bound(table: np.ndarray) -> float:
    """An upper bound, over all pieces and all -1 <= t <= 1, on |what `rounded_gaussian` evaluates - z|, t being exact.

    The sum of the remainder of Taylor's series, of the rounding of the coefficients and of that of Horner's rule. The
    remainder's derivative grows towards small k, since no H_n has a negative coefficient: its largest value is that at
    the left end.
    """
    from flint import arb, ctx

    worst = 0.0
    unit = arb(2) ** -53
    with ctx.workprec(PRECISION):
        for index in range(COUNT):
            middle, half = piece(index)
            remainder = abs(_taylor(arb(middle - half), half, DEGREE + 1))
            stored = [arb(float(value)) for value in table[:, index]]
            rounded = sum((abs(_taylor(arb(middle), half, n) - stored[n]) for n in range(DEGREE + 1)), arb(0))
            # Horner's rule: every product and every sum is off by a factor 1 +- 2^-53 of its result.
            size, error = abs(stored[DEGREE]), arb(0)
            for n in range(DEGREE - 1, -1, -1):
                product = size + error
                size = size + abs(stored[n])
                error = error + product * unit
                error = error + (size + error) * unit
            worst = max(worst, float((remainder + rounded + error).upper()))
    return math.nextafter(worst, math.inf)


def main() -> int:
    table = make_table()
    bound = proved_bound(table)
    print(f"error of the table: at most {bound:.3g} = 2^{math.log2(bound):.2f}; needed: 2^{math.log2(CERTIFIED):.0f}")
    if not bound <= CERTIFIED:
        return 1
    if "--write" in sys.argv[1:]:
        np.save(FILE, table, allow_pickle=False)
    same = FILE.is_file() and np.load(FILE).tobytes() == table.tobytes()
    print(f"{FILE.name} holds these bits: {'yes' if same else 'no'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
