"""What a run has learnt: its model, its outcome in a line, and its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.mixture_models.segments import Columns, of_numbers, segments_table
from fedcore.methods.mixture_models.tables import by_component, correlations_table, known, positions
from fedcore.methods.mixture_models.whole_rows import STEP, WholeMap
from fedcore.methods.private_mixture.columns import missing_shares, noise_of
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.density import PrivateMixtureModel
from fedcore.methods.private_mixture.errors import Errors, errors_of
from fedcore.methods.private_mixture.feasibility import EXPECT, words_of
from fedcore.methods.private_mixture.layout import Layout, layout_now
from fedcore.methods.private_mixture.plan import PLACE_CELLS, PLACE_ENDS
from fedcore.methods.private_mixture.state import NORMAL, RUNNING, MixedState, PrivateMixtureState
from fedcore.rounds.results import Column, Features, Positions, Result, Table, heaviest, of_columns, segment_names

SHOWN = 2.0  # standard errors: a smaller share of rows left out is not mentioned in the outcome
MORE = 4.0  # standard errors: below, noise shows more units than are declared in 1 of 30,000 runs with all rows
LISTED = 3  # columns, in the outcome
NARROW = 1 / 30  # of the standard deviation of all rows: a component may be a single value
OF_ATOM = 0.2  # of the width of zeros: they have 1 / sqrt(12) of it
MUCH = 0.05  # of the rows in the background, from which on the outcome mentions it
REPEATED = (
    "The released histograms show repeated values at zero only. For columns of whole or rounded numbers use the "
    "setting steps."
)


def model_of(config: PrivateMixtureConfig, state: PrivateMixtureState) -> PrivateMixtureModel:
    """Raises RunError before the run has finished."""
    if not state.done:
        raise RunError("the run has not finished, so it has no mixture.", "Resume it.")
    whole: WholeMap = state.map
    group = state.group if len(state.group) else np.zeros(len(state.means), np.int64)
    return PrivateMixtureModel(
        state.centre,
        state.scale,
        whole.centre * STEP,
        whole.linear(),
        state.weights,
        state.means,
        state.covariances,
        group,
        layout_now(config, state),
        state.probabilities if isinstance(state, MixedState) else None,
    )


def outcome_of(config: PrivateMixtureConfig, state: PrivateMixtureState) -> str:
    """What a finished run has found, in one line; empty before."""
    if state.outcome == RUNNING:
        return ""
    left_out = int((~state.told).sum())
    said = f"; {left_out} of {state.features} columns say nothing: noise drowned their scale" if left_out else ""
    layout = layout_now(config, state)
    said += _alone(layout)
    if narrow := [str(layout.numeric[column]) for column in _narrow(layout, state)]:
        more = f" and {len(narrow) - LISTED} more" if len(narrow) > LISTED else ""
        said += (
            f"; columns that may hold repeated values other than zero: {', '.join(narrow[:LISTED])}{more}. A component "
            f"there is less than {NARROW:.1%} as wide as all rows. The histograms cannot show whether it is one value; "
            "if numbers come in steps, use the setting steps"
        )
    background = float(state.weights[-1])
    if background > MUCH:
        said += f"; {100 * background:.0f} % of the rows are in the broad background, far from all components"
    if not state.warm:
        before, now = words_of(config, state)
        if now != before:
            said += f"; by the first releases the expected utility is {now}, not {before}: {EXPECT[now]}"
    said += _filled(layout, missing_shares(config, state))
    share, error = rows_left_out(config, state)
    if share >= SHOWN * error:
        said += (
            f"; about {100 * share:.1f} ± {100 * error:.1f} % of the rows are left out: they hold an infinite number, "
            f"or there are fewer than the declared {state.declared:,} {state.unit}s"
        )
    elif share <= -MORE * error:
        said += (
            f"; how many rows are left out is unknown, because there are more {state.unit}s than the declared "
            f"{state.declared:,}"
        )
    return _found(state) + said


def _filled(layout: Layout, missing: np.ndarray) -> str:
    """In which columns gaps were filled, those with the most of them first, for the outcome. missing: (d,) shares."""
    found = [int(column) for column in np.argsort(-missing, kind="stable") if missing[column] > 0]
    if not found:
        return ""
    named = ", ".join(f"{layout.numeric[column]} ({100 * missing[column]:.1f} %)" for column in found[:LISTED])
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    filled = f"; missing numbers were filled from the rest of their rows, in columns {named}{more}"
    return f"{filled}; density dips were tested on complete rows only"


def _alone(layout: Layout) -> str:
    """Which columns stand alone, and how many zeros they have, for the outcome."""
    found = np.flatnonzero(layout.alone)
    said = [
        f"; column {layout.numeric[column]} stands alone: {100 * layout.share[column]:.0f} % zeros, and noise drowned "
        "the other numbers"
        for column in found[:LISTED]
    ]
    more = f"; {len(found) - LISTED} more columns stand alone" if len(found) > LISTED else ""
    return "".join(said) + more


def _narrow(layout: Layout, state: PrivateMixtureState) -> np.ndarray:
    """The columns in which a component is so narrow that it may be one repeated value."""
    if state.outcome == NORMAL:
        return np.zeros(0, np.int64)
    back = np.linalg.pinv(state.map.linear()) * state.scale
    own = np.sqrt(np.einsum("ai,kab,bi->ki", back, state.covariances, back)).min(axis=0)
    limit = np.minimum(
        NARROW * np.sqrt((back**2).sum(axis=0)), np.where(layout.atoms > 0, OF_ATOM * layout.atoms, np.inf)
    )
    return np.flatnonzero((own < limit) & (layout.steps == 0) & ~layout.alone)


def rows_left_out(config: PrivateMixtureConfig, state: PrivateMixtureState) -> tuple[float, float]:
    """The share of the rows of the declared units that no release counts, and its standard error by noise. For clients
    it is the mean over clients of the share of a client's own rows. Both follow from released counts."""
    # A run of a series counts rows by component; also the cells of components that were dropped have noise.
    name, cells = (f"em_p_{config.rounds - 1}", config.components + 1) if state.warm else ("count", 1)
    noise = noise_of(config, state, name) * math.sqrt(cells)
    return 1.0 - state.count / state.declared, noise / state.declared


def _found(state: PrivateMixtureState) -> str:
    if state.outcome == NORMAL:
        return "one normal distribution: more components gain nothing that noise would not"
    k, found = len(state.means), int(state.group.max()) + 1 if len(state.group) else 1
    said = "one group: no separate groups found" if found == 1 else f"{found} separate groups"
    return f"{k} components, {said}"


def result_of(config: PrivateMixtureConfig, state: PrivateMixtureState, features: Features) -> Result:
    """Segments, weights, groups, means, standard deviations and correlations of the components, the largest first, the
    tested edges, and the share of rows left out; empty before the run has finished.

    Component 0 is row 0 of the state's arrays, and label 0 of the clients' outputs; the same holds for groups. Shares,
    means and standard deviations have standard errors where `errors_of` gives some; the first table states why others
    have none.
    """
    if not state.done:
        return Result()
    model = model_of(config, state)
    k, shown = model.components, np.flatnonzero(~model.layout.alone)
    numbers, stored = _chosen(features, model.layout.numeric), features
    features = _chosen(features, model.layout.numeric[shown])
    order = heaviest(k, model.weights[:-1], k)
    means, covariances = model.means_of_data()[:, shown], model.covariances_of_data()[:, shown][:, :, shown]
    deviations = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    found = errors_of(config, state, model)
    of_means, of_deviations = _if_any(found.means[:, shown]), _if_any(found.deviations[:, shown])
    columns = [of_numbers(features, means, deviations, of_means)] if len(shown) else []
    segments = segments_table(
        model.weights,
        order,
        columns + _categories(stored, model),
        errors=_if_any(found.weights),
        people=state.declared,
        unit=state.unit,
        groups=model.group,
    )
    background = [*order, k]
    components = Table(
        "components",
        "Components",
        (
            Column("segment", [*segment_names(k), None]),
            Column("component", [*order, "background"]),
            Column("share", model.weights[background].tolist(), "%", _known(found.weights[background])),
            Column("group", [*(int(model.group[j]) for j in order), None]),
        ),
        found.why,
    )
    tables, figures = [segments, components], list[Positions]()
    if len(shown):
        first = of_columns(features, len(shown))
        tables += [
            by_component("means", "Means", first, means, order=order, errors=of_means),
            by_component(
                "standard_deviations",
                "Standard deviations",
                first,
                deviations,
                order=order,
                errors=of_deviations,
                note=REPEATED if (model.layout.steps[shown] == 0).any() else "",
            ),
            *_correlations(features, covariances, order, found.correlations[:, shown][:, :, shown], found.why),
        ]
        figures.append(positions(features, means, deviations, of_means, order))
    if (forms := _forms(numbers, model.layout, state)) is not None:
        tables.append(forms)
    if isinstance(state, MixedState):
        tables.append(_answers(stored, model, order, found))
    if len(state.p):
        tables.append(_valleys(config, state, dict(zip(order, segment_names(k), strict=True))))
    if (gaps := _missing(config, state, numbers)) is not None:
        tables.append(gaps)
    tables.append(_left_out(config, state))
    return Result(tuple(tables), tuple(figures))


def _chosen(features: Features, columns: np.ndarray) -> Features:
    """Some of the columns, by their numbers."""
    chosen = columns.tolist()
    if len(chosen) == features.count:
        return features
    units = None if features.units is None else [features.unit(i) for i in chosen]
    return Features(len(chosen), [features.name(i) for i in chosen], units, people=features.people)


def _forms(features: Features, layout: Layout, state: PrivateMixtureState) -> Table | None:
    """How columns with many zeros are read; None if there are none. features: the columns of numbers."""
    rows = []
    for column in np.flatnonzero((state.atoms > 0) | (state.steps > 0) | (state.share > 0)):
        share = None
        if layout.share[column] > 0:
            share, form = float(layout.share[column]), "stands alone: noise drowned the other numbers"
        elif layout.atoms[column] > 0:
            form = f"zeros apart, spread over a width of {layout.atoms[column]:.3g}"
        elif state.steps[column] > 0:
            form = "whole numbers, steps of 1"
        else:
            continue
        rows.append((features.name(int(column)), form, share))
    if not rows:
        return None
    names, forms, shares = (list(each) for each in zip(*rows, strict=True))
    return Table(
        "column_forms",
        "Columns with many zeros",
        (Column("column", names), Column("read as", forms), Column("share of zeros", shares, "%")),
        "Found in the first release. A column that stands alone has no information on components: its density is the "
        "share of zeros, and for other numbers even in the logarithm of their size. It is in no table of means.",
    )


def _if_any(errors: np.ndarray) -> np.ndarray | None:
    """None if no number has one."""
    return errors if np.isfinite(errors).any() else None


def _known(errors: np.ndarray) -> list[float | None] | None:
    return known(errors) if np.isfinite(errors).any() else None


def _answers(features: Features, model: PrivateMixtureModel, order: Sequence[int], errors: Errors) -> Table:
    """A line for each value of each category, with its probability in each component and among all units. errors: of
    them."""
    assert model.probabilities is not None
    names = [_values(features, own) for own in model.layout.categories]
    *components, everybody = model.probabilities
    first = (
        Column("category", [category for category, values in names for _ in values]),
        Column("value", [value for _, values in names for value in values]),
        Column("all", everybody.tolist(), "%", _known(errors.probabilities[-1])),
    )
    columns = [
        Column(name, components[j].tolist(), "%", _known(errors.probabilities[j]))
        for name, j in zip(segment_names(len(order)), order, strict=True)
    ]
    note = "Of those who have answered."
    if not np.isfinite(errors.probabilities).all():
        note += " The table of components states why numbers have no error bars."
    return Table("categories", "Categories", (*first, *columns), note)


def _categories(features: Features, model: PrivateMixtureModel) -> list[Columns]:
    """Shares of the values of categories by segment, for the sentences about segments."""
    if model.probabilities is None:
        return []
    told = [
        f"{category} = {value}"
        for own in model.layout.categories
        for category, values in [_values(features, own)]
        for value in values
    ]
    return [Columns(told, ["%"] * len(told), model.probabilities[:-1])]


def _correlations(
    features: Features, covariances: np.ndarray, order: Sequence[int], errors: np.ndarray, why: str
) -> list[Table]:
    """Those that stand out of the noise; all of them, for exports only, where it is unknown. errors: (k, d, d)."""
    noise = _if_any(errors)
    found = correlations_table(features, covariances, order, noise)
    if found is None:
        return []
    return [found if noise is not None else replace(found, shown=False, note=why)]


def _values(features: Features, own: Sequence[int]) -> tuple[str, list[str]]:
    """The name of a category and of its values, from those of its columns: city=Bern is the value Bern of city."""
    names = [features.name(column) for column in own]
    if len(names) == 1:
        return names[0], ["0", "1"]
    parts = [name.partition("=") for name in names]
    if len({(category, equals) for category, equals, _ in parts}) == 1 and parts[0][1]:
        return parts[0][0], [value for _, _, value in parts]
    return names[0], names


def _valleys(config: PrivateMixtureConfig, state: PrivateMixtureState, names: Mapping[int, str]) -> Table:
    """The tested edges. The units of an edge are a sum over noisy cells."""
    noise = noise_of(config, state, "valleys") * math.sqrt(PLACE_CELLS + PLACE_ENDS)
    return Table(
        "valleys",
        "Density dips between neighbouring components",
        (
            Column("segments", [" and ".join(sorted(_members(names, state, i) for i in pair)) for pair in state.edges]),
            Column("units", state.mass.tolist(), "", [noise] * len(state.mass)),
            Column("valley / lower peak", state.depth.tolist()),
            Column("p", state.p.tolist()),
        ),
        "p: how often noise and chance alone would show such a dip where there is a single peak.",
    )


def _missing(config: PrivateMixtureConfig, state: PrivateMixtureState, features: Features) -> Table | None:
    """The shares of gaps by column; None if none stands out of noise. features: the columns of numbers."""
    shares = missing_shares(config, state)
    found = np.flatnonzero(shares > 0)
    if not len(found):
        return None
    errors = None if state.warm else [noise_of(config, state, "columns") / max(state.count, 1.0)] * len(found)
    whose = " They are those of the first run of the series." if state.warm else ""
    return Table(
        "missing_numbers",
        "Missing numbers",
        (
            Column("column", [features.name(int(column)) for column in found]),
            Column("missing", shares[found].tolist(), "%", errors),
        ),
        f"Shares of rows, by released counts.{whose} A missing number is filled by a draw from the released mixture, "
        "given the rest of its row. How many rows miss a number is not released. Columns whose count may be noise are "
        "not listed.",
    )


def _left_out(config: PrivateMixtureConfig, state: PrivateMixtureState) -> Table:
    share, error = rows_left_out(config, state)
    known = share > -MORE * error  # else more units were counted than declared
    whole = "" if state.unit == "record" else " A client counts by the share of its rows that are read."
    return Table(
        "rows_left_out",
        "Rows left out",
        (
            Column(f"declared {state.unit}s", [state.declared]),
            Column("read, by the released count", [state.count], "", [error * state.declared]),
            Column("left out", [max(share, 0.0) if known else None], "%", [error if known else None]),
        ),
        f"A row with an infinite number is left out.{whole} The share left out compares the released count with the "
        f"declared number of {state.unit}s. If that number is too high, so is the share. If it is too low, the share "
        "is too low or unknown.",
    )


def _members(names: Mapping[int, str], state: PrivateMixtureState, node: int) -> str:
    """The components of a node of the tree, as segments."""
    return " + ".join(sorted(names[int(j)] for j in np.flatnonzero(state.node == node)))
