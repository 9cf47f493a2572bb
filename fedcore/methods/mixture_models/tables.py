"""Tables and figure of a mixture, in the units of the data; the same for every method.

segments              a line for each component: its name and number, share, size and what sets it apart
components            a line for each component: name, number (as in the clients' outputs), share, what the method adds
means                 a line for each column of the data, with a column for each component, named A, B, C ...
standard_deviations   in the same form
correlations          a line for each pair of columns, the strongest in any component first
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from fedcore.rounds.results import Column, Features, Positions, Table, of_coefficient, segment_names

MIDDLE = "Dots are means{bars}; the pale bands show one standard deviation of a component's rows on either side."
Z95 = 1.959964  # 97.5 % quantile of the normal distribution
FALSE = 0.05  # chance that the noise alone makes any correlation of a table look different from zero
BEYOND_NOISE = "Only correlations that the privacy noise does not explain, at the 5 % level for all pairs together."
BARS = ", bars their 95 % intervals by the noise of privacy alone"


def of_inputs(features: Features, intercept: bool) -> tuple[Column, ...]:
    """Names, and units if there are any, of the coefficients of a regression whose response is the last column."""
    inputs, response = features.count - 1, features.unit(features.count - 1)
    names = [features.name(j) for j in range(inputs)] + ["intercept"] * intercept
    units = [of_coefficient(response, features.unit(j)) for j in range(inputs)] + [response] * intercept
    return (Column("input", names), Column("unit", units)) if any(units) else (Column("input", names),)


def _headings(count: int, order: Sequence[int] | None) -> list[str]:
    """Names of segments where there is an order, else the numbers of the components."""
    return [f"component {k}" for k in range(count)] if order is None else segment_names(len(order))


def component_columns(names: Sequence[str], values: np.ndarray) -> list[Column]:
    """A column for each component. values: (R, p)"""
    return [Column(name, own.tolist()) for name, own in zip(names, values, strict=True)]


def components_table(
    weights: np.ndarray,
    *more: Column,
    order: Sequence[int] | None = None,
    errors: np.ndarray | None = None,
    note: str = "",
) -> Table:
    """weights: (G,) shares; errors: (G,) of them, NaN where they are not known, or None. more: columns in the order.
    order: components from the largest on, which are the segments A, B ...; None: as they are, without names."""
    chosen = list(range(len(weights)) if order is None else order)
    own = None if errors is None else known(errors[chosen])
    share = Column("share", weights[chosen].tolist(), "%", own)
    names = () if order is None else (Column("segment", segment_names(len(chosen))),)
    return Table("components", "Components", (*names, Column("component", chosen), share, *more), note)


def by_component(
    name: str,
    title: str,
    first: Sequence[Column],
    values: np.ndarray,
    *,
    order: Sequence[int] | None = None,
    errors: np.ndarray | None = None,
    note: str = "",
) -> Table:
    """A column for each component. first: the columns before them. values, errors: (G, rows of the table), NaN where
    there is none. order: components from the largest on, which are the segments A, B ...; None: as they are."""
    chosen = list(range(len(values)) if order is None else order)
    columns = [
        Column(name, known(values[k]), "", None if errors is None else known(errors[k]))
        for name, k in zip(_headings(len(values), order), chosen, strict=True)
    ]
    return Table(name, title, (*first, *columns), note)


def correlations_table(
    features: Features, covariances: np.ndarray, order: Sequence[int] | None = None, errors: np.ndarray | None = None
) -> Table | None:
    """Of covariances (G, d, d), or of the one that all components share, (1, d, d); None for a single column.

    errors: (G, d, d) standard errors of the correlations by noise, NaN where unknown; None: there is no noise. With
    errors only correlations are kept that differ from zero by more than the noise explains, at FALSE for all of them
    together (Bonferroni), and None if there are none.
    """
    d = covariances.shape[1]
    if d < 2:
        return None
    first, second = np.triu_indices(d, 1)
    deviations = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    found = covariances[:, first, second] / (deviations[:, first] * deviations[:, second])
    noise = None if errors is None else errors[:, first, second]
    if noise is not None:
        limit = NormalDist().inv_cdf(1 - FALSE / (2 * noise.size))
        found = np.where(np.abs(found) > limit * np.nan_to_num(noise, nan=np.inf), found, np.nan)
    sizes = np.nan_to_num(np.abs(found)).max(axis=0)
    strongest = np.argsort(-sizes, kind="stable")
    if noise is not None and not len(strongest := strongest[sizes[strongest] > 0]):
        return None
    pairs = (
        Column("column", [features.name(int(i)) for i in first[strongest]]),
        Column("other column", [features.name(int(i)) for i in second[strongest]]),
    )
    title, found = "Correlations within components", found[:, strongest]
    if len(found) == 1 and order is None:
        return Table("correlations", title, (*pairs, Column("correlation", found[0].tolist())))
    noise = None if noise is None else np.where(np.isfinite(found), noise[:, strongest], np.nan)
    note = "" if noise is None else BEYOND_NOISE
    return by_component("correlations", title, pairs, found, order=order, errors=noise, note=note)


def positions(
    features: Features,
    means: np.ndarray,
    spread: np.ndarray | None,
    errors: np.ndarray | None = None,
    order: Sequence[int] | None = None,
) -> Positions:
    """The figure of means (G, d), spread (G, d) and errors (G, d)."""
    chosen = list(range(len(means)) if order is None else order)
    headings = (
        f"{features.name(i)} ({features.unit(i)})" if features.unit(i) else features.name(i)
        for i in range(means.shape[1])
    )
    return Positions(
        "positions",
        "Positions of the components",
        MIDDLE.format(bars="" if errors is None else BARS),
        tuple(headings),
        tuple(_headings(len(means), order)),
        means[chosen],
        None if spread is None else spread[chosen],
        None if errors is None else errors[chosen],
    )


def known(values: np.ndarray) -> list[float | None]:
    """None in place of what is not finite."""
    return [float(value) if np.isfinite(value) else None for value in values]


def share_errors(counts: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """(G,) standard errors of the shares counts / sum of counts, whose counts (G,) have independent noise (G,).

    With n the sum and p_g the shares,

        p_g = c_g / n,    dp_g = ((1 - p_g) dc_g - p_g sum of the other dc) / n,
        var p_g = ((1 - p_g)^2 s_g^2 + p_g^2 sum of the other s^2) / n^2

    to first order in the noise. Source: the delta method.
    """
    n = max(float(counts.sum()), 1e-300)
    p, squares = counts / n, noise**2
    errors: np.ndarray = np.sqrt((1 - p) ** 2 * squares + p**2 * (squares.sum() - squares)) / n
    return errors
