"""What a run of federated EM has learnt, for people: the parameters of its model, in the units of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.settings import COUNT_MODELS, TABLES
from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.nuclear_norm import Family, mean
from fedcore.rounds.results import Column, Features, Profiles, Result, Table, distinguishing

TOP = 8  # features of a profile
STRONGEST = 10  # correlations that are listed of a covariance
CAPTION = "The features whose share of a component exceeds their share of the mean the most."


def result_of(config: FederatedEMConfig, theta: Theta, features: Features) -> Result:
    """Tables of the parameters theta, which are in the units of the data; empty without any.

    gaussian          components, means, standard_deviations (or a column of components), correlations
    regression        components with residual standard deviations, coefficients
    models of counts  components with the features that distinguish them, and a figure of these; rates or probabilities
                      of populations of rows
    gaussian_imputer  columns with mean and standard deviation, correlations
    tables            expected_entries

    Components are numbered from 1, in the order of the parameters.
    """
    if not theta:
        return Result()
    if config.model == "gaussian":
        return Result(_gaussian(config, theta, features))
    if config.model == "regression":
        return Result(_regression(theta, features))
    if config.model in COUNT_MODELS:
        return _counts(config, theta, features)
    if config.model in TABLES:
        return Result((_expected_entries(config, theta, features),))
    return Result(_imputer(theta, features))


def _gaussian(config: FederatedEMConfig, theta: Theta, features: Features) -> tuple[Table, ...]:
    means = theta["means"]
    names = [features.name(i) for i in range(means.shape[1])]
    by_column = _by_component("means", "Means", "column", names, means)
    if config.covariance == "known":
        return _components(theta), by_column
    covariances = theta["covariances"]
    if config.covariance == "spherical":
        return _components(theta, Column("standard deviation", np.sqrt(covariances).tolist())), by_column
    title = "Standard deviations"
    if config.covariance == "diag":
        spread = _by_component("standard_deviations", title, "column", names, np.sqrt(covariances))
        return _components(theta), by_column, spread
    if config.covariance == "full":
        variances = np.diagonal(covariances, axis1=1, axis2=2)
        spread = _by_component("standard_deviations", title, "column", names, np.sqrt(variances))
        return _components(theta), by_column, spread, _correlations(names, covariances)
    common = np.sqrt(np.diagonal(covariances))
    spread = Table("standard_deviations", title, (Column("column", names), Column("all components", common.tolist())))
    return _components(theta), by_column, spread, _correlations(names, covariances[None])


def _regression(theta: Theta, features: Features) -> tuple[Table, ...]:
    coefficients = theta["coefficients"]
    response = features.name(coefficients.shape[1] - 1)  # the last column of the data; the last coefficient, intercept
    names = [*(features.name(i) for i in range(coefficients.shape[1] - 1)), "intercept"]
    deviations = Column("residual standard deviation", np.sqrt(theta["variances"]).tolist())
    title = f"Coefficients of the regression of {response}"
    return _components(theta, deviations), _by_component("coefficients", title, "input", names, coefficients)


def _counts(config: FederatedEMConfig, theta: Theta, features: Features) -> Result:
    name = "rates" if config.model == "poisson" else "probabilities"
    values, weights, what = theta[name], theta["weights"], "token" if config.kind == "counts" else "column"
    overall = weights @ values
    profiles = [[features.name(int(i), what) for i in distinguishing(row, overall, TOP)[0]] for row in values]
    components = _components(theta, Column(f"{what}s that distinguish it", profiles))
    figure = Profiles("profiles", "Profiles of the components", CAPTION, values, overall, weights)
    if config.kind == "counts":  # a vocabulary is too long for a table
        return Result((components,), (figure,))
    names = [features.name(i) for i in range(values.shape[1])]
    return Result((components, _by_component(name, name.capitalize(), "column", names, values)), (figure,))


def _imputer(theta: Theta, features: Features) -> tuple[Table, ...]:
    covariance = theta["covariance"]
    names = [features.name(i) for i in range(len(covariance))]
    columns = Table(
        "columns",
        "Columns",
        (
            Column("column", names),
            Column("mean", theta["mean"].tolist()),
            Column("standard deviation", np.sqrt(np.diagonal(covariance)).tolist()),
        ),
    )
    return columns, _correlations(names, covariance[None])


def _expected_entries(config: FederatedEMConfig, theta: Theta, features: Features) -> Table:
    entries = mean(cast(Family, config.model.removesuffix("_tables")), theta["natural"])
    rows = Column("row", list(range(1, len(entries) + 1)))
    columns = (Column(features.name(i), own.tolist()) for i, own in enumerate(entries.T))
    return Table("expected_entries", "Expected entries of the table", (rows, *columns))


def _components(theta: Theta, *more: Column) -> Table:
    weights = theta["weights"]
    number = Column("component", list(range(1, len(weights) + 1)))
    return Table("components", "Components", (number, Column("share", weights.tolist(), "%"), *more))


def _by_component(name: str, title: str, heading: str, names: Sequence[str], values: np.ndarray) -> Table:
    """values: (G, d), one row of the table for each of the d names."""
    columns = (Column(f"component {g + 1}", own.tolist()) for g, own in enumerate(values))
    return Table(name, title, (Column(heading, names), *columns))


def _correlations(names: Sequence[str], covariances: np.ndarray) -> Table:
    """The strongest ones of each covariance (G, d, d), or of the one that all components share (1, d, d)."""
    first, second = np.triu_indices(len(names), 1)
    found: list[tuple[int, str, str, float]] = []
    for component, covariance in enumerate(covariances):
        deviations = np.sqrt(np.diagonal(covariance))
        correlations = (covariance / np.outer(deviations, deviations))[first, second]
        for at in np.argsort(-np.abs(correlations), kind="stable")[:STRONGEST]:
            found.append((component + 1, names[first[at]], names[second[at]], float(correlations[at])))
    headings = ("component", "column", "other column", "correlation")
    columns = [Column(heading, [row[i] for row in found]) for i, heading in enumerate(headings)]
    return Table(
        "correlations", f"Strongest correlations, at most {STRONGEST} each", tuple(columns[len(covariances) == 1 :])
    )
