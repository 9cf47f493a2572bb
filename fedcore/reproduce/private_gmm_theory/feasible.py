"""How many rows the theorems ask for, and whether the practical learner can work at all. privacy: none needed: public.

Sample sizes are sums of terms whose constants and powers of logarithms the paper leaves open; here every constant is 1
and every logarithm is written out where the proof has one. They serve to compare terms, not to promise anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtri

from fedcore.reproduce.private_gmm_theory.easy import projected_dimension
from fedcore.reproduce.private_gmm_theory.mechanisms import above_threshold_error, zcdp_rho
from fedcore.reproduce.private_gmm_theory.partition import UnitBudget, unit_budget

RECURSIVE_POWER = 2 * math.log2(21)  # of k in the PCA term: radius k^log2(21) sqrt(d) sigma, squared
AUTHORS_COMPOSITION = 6.0  # epsilon_0 sqrt(6 T ln(1/delta))


def general_separation(components: int, rows: int, weight: float, constant: float = 100.0) -> float:
    """Theorem 5.1 for two components of this weight, in units of sigma_i + sigma_j: C (sqrt(k ln n) + 2/sqrt(w))."""
    return constant * (math.sqrt(components * math.log(rows)) + 2 / math.sqrt(weight))


def flatness_dimension(rows: int, components: int, beta: float) -> float:
    """The least d at which a sphere fulfils condition (7): sqrt(d) sqrt(ln(nk/beta)) <= d/8, so 64 ln(nk/beta)."""
    return 64 * math.log(rows * components / beta)


def easy_terms(
    d: int,
    components: int,
    epsilon: float,
    delta: float,
    alpha: float,
    rows: int,
    beta: float,
    *,
    exponent: float = 0.1,
    dimension: int | None = None,
) -> dict[str, float]:
    """Theorem 4.4, term by term. rows: only inside logarithms. dimension: l, published by default."""
    kept = projected_dimension(rows, components, beta) if dimension is None else dimension
    log = math.log(1 / delta)
    return {
        "learning": components * d / alpha**2,
        "pca": components**3 * d**1.5 * math.sqrt(log) / (kept * epsilon),
        "mean": components * d * math.sqrt(log) / (alpha * epsilon),
        "variance": components / (alpha * epsilon),
        "one_cluster": (components**1.5 * math.sqrt(kept) * log / epsilon) ** (1 / (1 - exponent)),
    }


def general_terms(
    d: int,
    components: int,
    epsilon: float,
    delta: float,
    alpha: float,
    least_weight: float,
    *,
    ratio: float = 10.0,
    exponent: float = 0.1,
) -> dict[str, float]:
    """Theorem 5.1, term by term. ratio: sigma_max / sigma_min."""
    log = math.log(1 / delta)
    return {
        "learning": d**2 / (alpha**2 * least_weight),
        "private learning": d**2 / (epsilon * alpha * least_weight),
        "preconditioning": d**1.5 * math.sqrt(math.log(ratio)) / (least_weight * epsilon),
        "pca": components**RECURSIVE_POWER * d**1.5 * log / (least_weight * epsilon),
        "one_cluster": (math.sqrt(components) * log / (least_weight * epsilon)) ** (1 / (1 - exponent)),
        "no false split": d / least_weight * math.log(1 / least_weight),
    }


def aggregation_blocks(d: int, components: int, epsilon: float, delta: float) -> float:
    """Theorem 6.1: (sqrt(k d) + k^1.5) ln(1/delta) / epsilon blocks, each of a non-private sample."""
    return (math.sqrt(components * d) + components**1.5) * math.log(1 / delta) / epsilon


@dataclass(frozen=True, slots=True)
class Literal:
    """What the published constants mean. dimension: l; flatness: least d; separation: in sigma_i + sigma_j; unit and
    unit_basic: budgets of a step by the authors' advanced bound and by basic composition; gamma, gamma_basic: rows of
    slack of PTerrificRadius; rows, rows_basic: at which t = n w_min/2 is above 2 Gamma for equal weights."""

    dimension: int
    flatness: float
    separation: float
    unit: UnitBudget
    unit_basic: UnitBudget
    gamma: float
    gamma_basic: float
    rows: float
    rows_basic: float


def literal(components: int, epsilon: float, delta: float, rows: int, beta: float = 0.05, radii: int = 60) -> Literal:
    """The published constants at these sizes; radii: of the grid."""
    advanced = UnitBudget(
        epsilon / (4 * math.sqrt(AUTHORS_COMPOSITION * components * math.log(1 / delta)) + 2), delta / (8 * components)
    )
    basic = unit_budget(epsilon, delta, components, advanced=False)
    gammas = [above_threshold_error(radii, unit.epsilon, beta, 2.0) for unit in (advanced, basic)]
    return Literal(
        projected_dimension(rows, components, beta),
        flatness_dimension(rows, components, beta),
        general_separation(components, rows, 1 / components),
        advanced,
        basic,
        *gammas,
        *(4 * components * gamma for gamma in gammas),
    )


# --- the practical learner ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Three conditions of spherical components of unit variance; each has (needed, available) with needed < available.

    boxes: the threshold of box counts, against t; profiles: noise of distance profiles of 12 k candidates, against t/8;
    pca: noise of the second moment, against n w_min separation^2 / 4.
    """

    boxes: tuple[float, float]
    profiles: tuple[float, float]
    pca: tuple[float, float]

    @property
    def feasible(self) -> bool:
        return all(needed < available for needed, available in (self.boxes, self.profiles, self.pca))


def feasible(
    rows: int,
    d: int,
    components: int,
    separation: float,
    epsilon: float,
    delta: float,
    *,
    least_weight: float | None = None,
    radius: float | None = None,
    scales: int = 1,
    widths: int = 8,
    shifts: int = 2,
    partition: float = 0.6,
    shares: tuple[float, float, float] = (0.35, 0.20, 0.30),
) -> Feasibility:
    """Whether box counts, distance profiles and PCA stand out of their noise. A forecast before any data are seen.

    least_weight: 0.6/k by default; radius: of the ball that a node is bounded to, sqrt(d) + separation/sqrt(2) by
    default; scales: depth D; shares: of a level's rho for PCA, boxes, profiles.
    """
    weight = 0.6 / components if least_weight is None else least_weight
    reach = math.sqrt(d) + separation / math.sqrt(2) if radius is None else radius
    rho = partition * zcdp_rho(epsilon, delta / 2) / scales
    pca, boxes, profiles = (math.sqrt(2 * rho * share) for share in shares)
    size, histograms = weight * rows / 2, widths * shifts
    spread = math.sqrt(2 * histograms) / boxes
    threshold = 1 - spread * float(ndtri(delta / (2 * scales * histograms)))
    return Feasibility(
        (threshold, size),
        (math.sqrt(12 * components) / profiles, size / 8),
        (2 * math.sqrt(d) * reach**2 / pca, rows * weight * separation**2 / 4),
    )


def least_rows(d: int, components: int, separation: float, epsilon: float, delta: float, **settings) -> int:
    """The smallest number of rows at which `feasible` holds, to 1 %. settings: as of `feasible`."""
    low, high = 1, 1
    while not feasible(high, d, components, separation, epsilon, delta, **settings).feasible:
        low, high = high, 2 * high
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        good = feasible(middle, d, components, separation, epsilon, delta, **settings).feasible
        low, high = (low, middle) if good else (middle, high)
    return high
