"""Noise in shares: each of m sites adds a part of the noise of their total. Argument: docs/privacy/sites.md.

A method plans the noise of the total, of scale s. Each site adds round(s_i Z) with s_i >= s / sqrt(m), and its ledger
charges the noise of the m - t sites that do not collude with the attacker. All comparisons are exact, in fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from fedcore.errors import ConfigError
from fedcore.privacy.accounting import rounded_down, rounded_up
from fedcore.privacy.gdp import mu_of
from fedcore.privacy.mechanisms import SecureNoise, TestNoise
from fedcore.privacy.plan import NoiseShare as NoiseShare
from fedcore.privacy.plan import PlannedRelease
from fedcore.privacy.plan import Terms as Terms

SMALLEST_SCALE = 64.0  # of a share: the sum of rounded shares is then within 10**-17000 of a rounded sum
DEVIATIONS = 40  # of the total's noise, that fit into the range with the sum
RANGE = 2**62  # of a total's magnitude: half of what a sum modulo 2**64 can hold
# Costs are rounded up and multipliers down. The plan keeps this part of its rho back, so that the charged costs never
# add up to more than the rho of the run.
ROUNDING = Fraction(1, 2**48)


# --- costs ----------------------------------------------------------------------------------------------------------


def planned_rho(rho: float, terms: Terms) -> float:
    """The rho with which a method plans the total: rho (m - t) / m, rounded down by at most 2**-47 of it.

    rho: what the run may cost the people of each site. If the costs of a plan add up to at most this, its `charged`
    releases cost at most `rho`, exactly.
    """
    return rounded_down(Fraction(rho) * terms.honest / terms.sites * (1 - ROUNDING))


def second_mu(rho: float, terms: Terms) -> float:
    """The mu of a run of cost rho if all other sites collude: sqrt(2 rho (m - t)), rounded up.

    rho: sum of the costs of the `charged` releases. One share of the noise is left then.
    """
    return mu_of(rounded_up(Fraction(rho) * terms.honest))


def charged(planned: PlannedRelease, terms: Terms) -> PlannedRelease:
    """What the ledger of each site reserves and charges for a release of the total.

    planned: as the method plans it. Its noise multiplier becomes sigma sqrt((m - t) / m), rounded down, and it gets its
    `noise_share`. Raises ConfigError for a thresholding step, and for a share whose scale is below SMALLEST_SCALE.
    The scale s_i of the share is the smallest float for which these hold exactly: m s_i**2 >= s**2 for the scale s of
    the total, and (m - t) s_i**2 >= the square of the charged scale.
    """
    multiplier, scale = _multiplier_and_scale(planned, terms)
    share = NoiseShare(terms.sites, terms.collusion, terms.study, scale, planned.scale)
    return replace(planned, noise_multiplier=multiplier, noise_share=share)


def charged_plan(plan: Sequence[PlannedRelease], terms: Terms, nominal: int) -> tuple[PlannedRelease, ...]:
    """`charged` for each release of a plan, whose totals cannot leave the range of sums modulo 2**64.

    `nominal`: declared number of clients (or records) of all sites. Raises ConfigError, also for a plan in which
    `nominal` x sensitivity + 40 s is 2**62 grid units or more.
    """
    for planned in plan:
        if nominal * planned.sensitivity + DEVIATIONS * Fraction(planned.scale) >= RANGE:
            raise ConfigError(
                f"Release {planned.name!r}: the sum over {nominal} clients could leave the range of masked sums.",
                "Use a coarser grid, or fewer clients.",
            )
    return tuple(charged(planned, terms) for planned in plan)


def check_share(planned: PlannedRelease) -> None:
    """Raises ConfigError unless the noise of a release with a share covers what is charged for it, and what it planned.

    In fractions: (m - t) s_i**2 >= the square of the charged scale, D**2 / (2 (m - t) s_i**2) <= rho, m s_i**2 >= s**2.
    """
    share = planned.noise_share
    if share is None:
        raise ConfigError(f"Release {planned.name!r} has no share of the noise.")
    _check_scale(planned, share.scale)
    square = Fraction(share.scale) ** 2
    covers = share.honest * square >= Fraction(planned.scale) ** 2
    covers = covers and Fraction(planned.sensitivity) ** 2 <= 2 * share.honest * square * Fraction(planned.rho)
    if not (covers and share.sites * square >= Fraction(share.total) ** 2):
        raise ConfigError(
            f"Release {planned.name!r}: shares of scale {share.scale!r} at {share.sites} sites, of which "
            f"{share.collusion} may collude, are less noise than is planned and charged."
        )


def check_shares(plan: Sequence[PlannedRelease]) -> None:
    """Raises ConfigError unless no release of a plan has a share of noise, or all have one: on the same terms, and as
    `check_share` says.
    """
    terms = {terms_of(planned) for planned in plan}
    if len(terms) > 1:
        raise ConfigError("The releases of a plan have shares of noise on different terms, or some have none.")
    if terms != {None}:
        for planned in plan:
            check_share(planned)


def terms_of(planned: PlannedRelease) -> Terms | None:
    """The terms of a release with a share of the noise; None for one without."""
    share = planned.noise_share
    return None if share is None else Terms(share.sites, share.collusion, share.study)


def _multiplier_and_scale(planned: PlannedRelease, terms: Terms) -> tuple[float, float]:
    """(charged noise multiplier, scale of a share)."""
    honest, sites = terms.honest, terms.sites
    multiplier = _root(Fraction(planned.noise_multiplier) ** 2 * honest / sites, up=False)
    known = replace(planned, noise_multiplier=multiplier).scale
    scale = _root(max(Fraction(planned.scale) ** 2 / sites, Fraction(known) ** 2 / honest), up=True)
    _check_scale(planned, scale)
    return multiplier, scale


def _check_scale(planned: PlannedRelease, scale: float) -> None:
    if planned.delta:
        raise ConfigError(
            f"Release {planned.name!r} is a thresholding step, which several sites cannot make together.",
            "Choose settings, or a method, without thresholds.",
        )
    if not (math.isfinite(scale) and scale >= SMALLEST_SCALE):
        raise ConfigError(
            f"Release {planned.name!r}: one site's share of its noise has a scale of {scale:.4g} grid units, and at "
            f"least {SMALLEST_SCALE:g} is needed.",
            "Use a finer grid, a smaller epsilon, or fewer sites.",
        )


def _root(square: Fraction, *, up: bool) -> float:
    """The smallest float whose square is at least this, or the largest one whose square is at most this."""
    root = math.sqrt(square)
    while Fraction(root) ** 2 > square:
        root = math.nextafter(root, 0.0)
    while Fraction(math.nextafter(root, math.inf)) ** 2 <= square:
        root = math.nextafter(root, math.inf)
    return root if not up or Fraction(root) ** 2 == square else math.nextafter(root, math.inf)


# --- noise ----------------------------------------------------------------------------------------------------------


class ShareNoise:
    """One site's share of the noise, exact, on bits of the operating system: `fedcore.privacy.mechanisms.SecureNoise`.

    The share is added modulo 2**64, so nothing saturates. Releases are those that `charged` made.
    """

    secure = True
    label = (
        "Gaussian, in shares of the sites, rounded to whole grid steps (exact sampler, bits from the operating system)"
    )

    def ready(self, planned: PlannedRelease, values: np.ndarray) -> None:
        """As `NoiseSource.ready`. Also raises ConfigError for a share that does not cover its cost."""
        check_share(planned)
        SecureNoise().ready(_as_planned(planned), values)

    def draw(self, planned: PlannedRelease, run_key: str, values: np.ndarray) -> np.ndarray:
        """values + round(s_i Z) modulo 2**64; both int64 of shape `planned.shape`. Raises what `ready` raises."""
        self.ready(planned, values)
        return modulo_sum(values, SecureNoise().draw(_as_planned(planned), run_key, np.zeros_like(values)))


class TestShareNoise:
    """Repeatable shares for tests, without protection. They add up to `TestNoise(key)` of the total, modulo 2**64.

    index: of the site, from 0 to m - 1. The last site's share is what the others leave.
    """

    __test__ = False  # not a test class of pytest
    secure = False
    label = TestNoise.label

    def __init__(self, key: str, index: int) -> None:
        self.key = key
        self.index = index

    def ready(self, planned: PlannedRelease, values: np.ndarray) -> None:
        """As `ShareNoise.ready`."""
        check_share(planned)
        TestNoise(self.key).ready(_as_planned(planned), values)

    def draw(self, planned: PlannedRelease, run_key: str, values: np.ndarray) -> np.ndarray:
        """values + the share of this site modulo 2**64; both int64 of shape `planned.shape`."""
        self.ready(planned, values)
        share, zeros = planned.noise_share, np.zeros_like(values)
        if share is None or not 0 <= self.index < share.sites:
            raise ConfigError(f"There is no site {self.index} in release {planned.name!r}.")
        if self.index < share.sites - 1:
            return modulo_sum(values, self._share(self.index, planned, zeros))
        total = TestNoise(self.key).draw(_of_scale(planned, share.total), run_key, zeros)
        for index in range(share.sites - 1):
            total = modulo_sum(total, -self._share(index, planned, zeros))
        return modulo_sum(values, total)

    def _share(self, index: int, planned: PlannedRelease, zeros: np.ndarray) -> np.ndarray:
        return TestNoise(f"{self.key} of site {index}").draw(_as_planned(planned), "", zeros)


def modulo_sum(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """values + others modulo 2**64, as int64 of the same shape. Both: int64 or uint64."""
    total: np.ndarray = values.astype(np.uint64) + others.astype(np.uint64)
    return total.astype(np.int64)


def _as_planned(planned: PlannedRelease) -> PlannedRelease:
    """A release whose scale is that of the share."""
    share = planned.noise_share
    return planned if share is None else _of_scale(planned, share.scale)


def _of_scale(planned: PlannedRelease, scale: float) -> PlannedRelease:
    return replace(planned, sensitivity=1, noise_multiplier=scale)
