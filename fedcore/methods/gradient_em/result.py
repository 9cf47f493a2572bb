"""What a run has learnt, for people: the common centres, and how much clients differ from them."""

from __future__ import annotations

import numpy as np

from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import coordinates_of, to_data
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.methods.mixture_models.tables import component_columns, of_inputs, positions
from fedcore.rounds.results import Column, Features, Result, Table, of_columns


def result_of(
    config: GradientEMConfig, state: GradientEMState, features: Features, *, estimated: bool = True
) -> Result:
    """Tables, and for Gaussians a figure of the centres. The tables centres, differences and standard_deviations have a
    row for each column of the population (of a regression: each input).

    estimated: whether differences between clients are estimated.

    components:  a row for each component: its common weight, if there is one; and how many clients are left apart as
                 outliers and do not count in the differences, if these are estimated from all clients. A client can
                 count as a part of one
    centres:     the common centres, in the units of the data
    differences: standard deviations of the clients' centres around the common one, in the units of the data; if they
                 are estimated
    standard_deviations: of rows within a component, in the units of the data; of Gaussians whose covariance is known

    Where every client has its own units (`standardise = "clients"`), they are standard deviations of the client's rows.
    Empty before the first round.
    """
    if state.round < 1:
        return Result()
    centres = to_data(config, coordinates_of(state), state.centres, None)
    names = [f"component {r}" for r in range(len(centres))]
    of = _coordinates(config, features)
    units = ", in standard deviations of each client's own rows" if config.standardise == "clients" else ""
    tables = [Table("centres", f"Common centres{units}", (*of, *component_columns(names, centres)))]
    if estimated:
        deviations = _between_clients(config, state)
        title = f"Standard deviations of clients' centres around the common ones{units}"
        tables.append(Table("differences", title, (*of, *component_columns(names, deviations))))
    components = [Column("component", list(range(len(centres))))]
    spread = None
    if len(state.weights):
        components.append(Column("share", state.weights.tolist(), "%"))
    if config.model == "gaussian" and len(state.covariance):
        within = spread = np.broadcast_to(_within(state, centres.shape[1]), centres.shape)
        title = f"Standard deviations of rows within a component{units}"
        tables.append(Table("standard_deviations", title, (*of, *component_columns(names, within))))
    if estimated and config.participation == 1:
        apart = np.maximum(state.clients - state.spread_sums[:, 2], 0.0)
        components.append(Column("clients left apart", np.round(apart, 1).tolist()))
    if len(components) > 1:
        tables.insert(0, Table("components", "Components", tuple(components)))
    figures = (positions(_own_units(config, features), centres, spread),) if config.model == "gaussian" else ()
    return Result(tuple(tables), figures)


def _coordinates(config: GradientEMConfig, features: Features) -> tuple[Column, ...]:
    """Names, and units if there are any, of the p numbers of a centre: columns; or inputs of a regression, the last
    column being its response. Units of each client's own rows are none."""
    if config.model != "regression":
        return of_columns(_own_units(config, features), features.count)
    return of_inputs(features, config.intercept)


def _own_units(config: GradientEMConfig, features: Features) -> Features:
    """The columns; units of each client's own rows are none."""
    return Features(features.count, features.names) if config.standardise == "clients" else features


def _within(state: GradientEMState, p: int) -> np.ndarray:
    """(p,) or (R, p) standard deviations of rows within a component, in the units of the data."""
    deviations: np.ndarray = np.sqrt(np.diagonal(state.covariance, axis1=-2, axis2=-1))
    return deviations * (state.scale if len(state.scale) else np.ones(p))


def _between_clients(config: GradientEMConfig, state: GradientEMState) -> np.ndarray:
    """(R, p) standard deviations in the units of the data. In the model's units they are equal in all coordinates;
    there the covariance within a component is the identity."""
    p = state.centres.shape[1]
    within = np.ones(p)
    if len(state.covariance):
        within = np.sqrt(np.broadcast_to(np.diagonal(state.covariance, axis1=-2, axis2=-1), (len(state.spread), p)))
    scale = state.scale if len(state.scale) else np.ones(p)
    return np.sqrt(state.spread)[:, None] * within * scale
