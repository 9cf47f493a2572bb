"""What a run of federated EM has learnt, for people: the parameters of its model, in the units of the data."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from fedcore.methods.federated_em.config import Counts, FederatedEMConfig, Tables
from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.nuclear_norm import Family, mean
from fedcore.methods.mixture_models.segments import of_numbers, segments_table
from fedcore.methods.mixture_models.student import degrees_in
from fedcore.methods.mixture_models.tables import by_component, components_table, correlations_table, positions
from fedcore.rounds.results import (
    Column,
    Features,
    Profiles,
    Result,
    Table,
    distinguishing,
    heaviest,
    of_coefficient,
    of_columns,
)

TOP = 8  # features of a profile
NO_ERRORS = (
    "The effect of the privacy noise on these numbers is unknown, so none has an error. Noise carries over from round "
    "to round, and how much depends on the clients' numbers of rows and on how many are clipped. Both are hidden."
)
HEAVY = (
    "Components are Student-t with {:g} degrees of freedom. Standard deviations are those of their rows. Covariances "
    "in exported arrays are scale matrices, which are smaller."
)
CAPTION = "The features whose share of a component exceeds their share of the mean the most."


def result_of(config: FederatedEMConfig, theta: Theta, features: Features) -> Result:
    """Tables of the parameters theta, which are in the units of the data; empty without any.

    gaussian          segments, components, means, standard_deviations (or a column of components), correlations, and
                      a figure
    regression        components with residual standard deviations, coefficients
    models of counts  components with the features that distinguish them, and a figure of these; rates or probabilities
                      of populations of rows
    gaussian_imputer  columns with mean and standard deviation, correlations
    tables            expected_entries

    Components are numbered from 0, in the order of the parameters and of the clients' outputs. Names A, B ... are those
    of the largest, the second largest ... component.
    """
    if not theta:
        return Result()
    learnt = _learnt(config, theta, features)
    if not config.private:
        return learnt
    first, *others = learnt.tables
    first = replace(first, note=f"{first.note} {NO_ERRORS}".strip())
    others = [replace(table, shown=table.shown and table.name != "correlations") for table in others]
    return replace(learnt, tables=(first, *others))


def _learnt(config: FederatedEMConfig, theta: Theta, features: Features) -> Result:
    if config.model.name == "gaussian":
        return _gaussian(config, theta, features)
    if config.model.name == "regression":
        return Result(_regression(theta, features))
    if isinstance(config.model, Counts):
        return _counts(config, theta, features)
    if isinstance(config.model, Tables):
        return Result((_expected_entries(config, theta, features),))
    return Result(_imputer(theta, features))


def _gaussian(config: FederatedEMConfig, theta: Theta, features: Features) -> Result:
    means, order = theta["means"], order_of(theta)
    first = of_columns(features, means.shape[1])
    by_column = by_component("means", "Means", first, means, order=order)
    if config.model.covariance == "known":
        segments = segments_table(theta["weights"], order, [of_numbers(features, means, None)])
        components = components_table(theta["weights"], order=order)
        return Result((segments, components, by_column), (positions(features, means, None, order=order),))
    covariances, degrees, note = theta["covariances"], degrees_in(theta), ""
    if degrees is not None:
        covariances, note = covariances * (degrees / (degrees - 2.0)), HEAVY.format(degrees)
    if config.model.covariance == "spherical":
        own = np.sqrt(covariances)
        spread = np.repeat(own[:, None], means.shape[1], axis=1)
        column = Column("standard deviation", own[order].tolist())
        components = components_table(theta["weights"], column, order=order, note=note)
        segments = segments_table(theta["weights"], order, [of_numbers(features, means, spread)])
        return Result((segments, components, by_column), (positions(features, means, spread, order=order),))
    variances = covariances if config.model.covariance == "diag" else np.diagonal(covariances, axis1=-2, axis2=-1)
    title, deviations = "Standard deviations", np.sqrt(variances)
    spread = np.broadcast_to(deviations, means.shape)
    if config.model.covariance == "tied":
        within = Table("standard_deviations", title, (*first, Column("all components", deviations.tolist())))
    else:
        within = by_component("standard_deviations", title, first, deviations, order=order)
    segments = segments_table(theta["weights"], order, [of_numbers(features, means, spread)])
    tables = [segments, components_table(theta["weights"], order=order, note=note), by_column, within]
    if config.model.covariance == "full":
        tables += filter(None, [correlations_table(features, covariances, order)])
    elif config.model.covariance == "tied":
        tables += filter(None, [correlations_table(features, covariances[None])])
    return Result(tuple(tables), (positions(features, means, spread, order=order),))


def order_of(theta: Theta) -> list[int]:
    """Components from the largest on, which are the segments A, B ..."""
    return heaviest(len(theta["weights"]), theta["weights"], len(theta["weights"]))


def _regression(theta: Theta, features: Features) -> tuple[Table, ...]:
    coefficients, order = theta["coefficients"], order_of(theta)
    inputs = coefficients.shape[1] - 1  # the last column of the data is the response; the last coefficient, intercept
    response, unit = features.name(inputs), features.unit(inputs)
    deviations = Column("residual standard deviation", np.sqrt(theta["variances"])[order].tolist(), unit)
    title = f"Coefficients of the regression of {response}"
    names = [*(features.name(i) for i in range(inputs)), "intercept"]
    first = [Column("input", names)]
    units = [*(of_coefficient(unit, features.unit(i)) for i in range(inputs)), unit]
    if any(units):
        first.append(Column("unit", units))
    components = components_table(theta["weights"], deviations, order=order)
    return components, by_component("coefficients", title, first, coefficients, order=order)


def _counts(config: FederatedEMConfig, theta: Theta, features: Features) -> Result:
    name = "rates" if config.model.name == "poisson" else "probabilities"
    values, weights, what = theta[name], theta["weights"], "token" if config.model.kind == "counts" else "column"
    overall, order = weights @ values, order_of(theta)
    profiles = [[features.name(int(i), what) for i in distinguishing(values[k], overall, TOP)[0]] for k in order]
    components = components_table(weights, Column(f"{what}s that distinguish it", profiles), order=order)
    figure = Profiles("profiles", "Profiles of the components", CAPTION, values, overall, weights)
    if config.model.kind == "counts":  # a vocabulary is too long for a table
        return Result((components,), (figure,))
    by_column = by_component(name, name.capitalize(), of_columns(features, values.shape[1]), values, order=order)
    return Result((components, by_column), (figure,))


def _imputer(theta: Theta, features: Features) -> tuple[Table, ...]:
    covariance = theta["covariance"]
    deviations = np.sqrt(np.diagonal(covariance)).tolist()
    own = (Column("mean", theta["mean"].tolist()), Column("standard deviation", deviations))
    columns = Table("columns", "Columns", (*of_columns(features, len(covariance)), *own))
    return columns, *filter(None, [correlations_table(features, covariance[None])])


def _expected_entries(config: FederatedEMConfig, theta: Theta, features: Features) -> Table:
    entries = mean(cast(Family, config.model.name.removesuffix("_tables")), theta["natural"])
    rows = Column("row", list(range(len(entries))))
    columns = (Column(features.name(i), own.tolist(), features.unit(i)) for i, own in enumerate(entries.T))
    return Table("expected_entries", "Expected entries of the table", (rows, *columns))
