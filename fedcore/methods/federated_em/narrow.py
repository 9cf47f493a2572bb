"""Components whose density only the penalty bounds: apart from the penalty, they span fewer dimensions than their rows.
Columns of few values (a lattice) make such components, and so do columns that determine each other.

For such data the likelihood grows without bound as the penalty shrinks, whatever the rows mean. Then neither the
likelihood nor a held-out loss shows which number of components, or which penalty, is better.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.federated_em import models
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.state import FederatedEMState
from fedcore.rounds.results import Column, Features, Table

FACTOR = 10.0  # of the penalty's part of a variance, below which it is the penalty that keeps the variance up
SMALL = 1e-4  # of the variance of all rows: what is wider is an ordinary component under a large penalty


def narrow_columns(config: FederatedEMConfig, state: FederatedEMState) -> np.ndarray:
    """(G, d) bool: where the variance of a component's column, given its other columns, is small and kept up by the
    penalty; of a regression (G, 1), its residual. (0, 0) for models without variances, and before there are parameters.
    """
    theta, variance = state.parameters(), state.variance
    share = models.penalty_share(config, state.scaling())
    weights = theta.get("weights", np.ones(1))[:, None]
    if "variances" in theta:
        return _narrow(theta["variances"][:, None], share / weights, variance[-1:])
    covariances = theta.get("covariances", theta.get("covariance"))
    if covariances is None:
        return np.zeros((0, 0), bool)
    if config.model.name == "gaussian" and config.model.covariance in ("diag", "spherical"):
        if config.model.covariance == "spherical":
            covariances, variance = covariances[:, None], variance.mean(keepdims=True)
        return _narrow(covariances, share / weights, variance)
    given_others = 1.0 / np.diagonal(np.linalg.inv(covariances), axis1=-2, axis2=-1)
    if covariances.ndim == 2:  # all components have it, or there is only one
        return _narrow(given_others[None], np.full((1, 1), share), variance)
    return _narrow(given_others, share / weights, variance)


def _narrow(own: np.ndarray, shares: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """own: (G, d) variances; shares: (G, 1) penalties as shares of the components; pooled: (d,) variances of all."""
    return own < np.minimum(FACTOR * shares, SMALL) * pooled


def warning(config: FederatedEMConfig, state: FederatedEMState) -> str:
    """One sentence; empty if there is nothing to warn of."""
    narrow = narrow_columns(config, state)
    if not narrow.any():
        return ""
    alone = "" if len(narrow) == 1 else f"{np.count_nonzero(narrow.any(axis=1))} of {len(narrow)} components have "
    return (
        f"{alone}{'variances' if alone else 'Variances'} that only the penalty keeps above 0 (see the table of narrow "
        "columns): likelihoods of other settings cannot be compared with this one's."
    )


def narrow_table(config: FederatedEMConfig, state: FederatedEMState, features: Features) -> tuple[Table, ...]:
    """A row for each component that has such columns; nothing if none has."""
    narrow = narrow_columns(config, state)
    found = np.flatnonzero(narrow.any(axis=1))
    if not len(found):
        return ()
    if config.model.name == "regression":
        names = [[features.name(len(state.variance) - 1)]] * len(found)
    elif narrow.shape[1] < len(state.variance):
        names = [["all columns"]] * len(found)
    else:
        names = [[features.name(int(i)) for i in np.flatnonzero(narrow[g])] for g in found]
    columns: tuple[Column, ...] = (Column("columns", names),)
    if len(narrow) > 1:
        columns = (Column("component", found.tolist()), *columns)
    return (Table("narrow_columns", "Columns whose variance is the penalty's", columns),)
