"""What is audited of private federated EM (DP-A): its configurations, and clients with rows in place of counts.

`Rows` has what the audits use of `tests.audit.releases.Case`. A client is a vector of whole numbers there; here its
rows are made of consecutive pairs of them, with what is absurd as a count made absurd as a row.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np

from fedcore.methods.federated_em import FederatedEM, private
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.federated_em.messages import plain_scaling
from fedcore.methods.federated_em.models import model_of
from fedcore.population.blocks import RowsBlock
from fedcore.privacy.grid import grid_step
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.statistics import IntegerSum
from tests.federated_em.run_in_memory import block_of
from tests.federated_em.varied import Varied

COLUMNS = 2
ABSURD = {2**24 + 1: 1e200, 2**40: 1e9, 2**50: np.nan}
HALF = np.full(2, 0.5)
STARTS = {
    "gaussian": {"weights": HALF, "means": np.array([[-1.0, 0.5], [1.0, -0.5]])},
    "one": {"weights": np.ones(1), "means": np.zeros((1, COLUMNS))},
    "regression": {"weights": HALF, "coefficients": np.array([[1.0, 0.0], [-1.0, 0.5]]), "variances": np.ones(2)},
    "gaussian_imputer": {"mean": np.zeros(COLUMNS), "covariance": np.array([[1.0, 0.6], [0.6, 2.0]])},
    "poisson": {"weights": HALF, "rates": np.array([[1.0, 3.0], [4.0, 0.5]])},
}
COVARIANCES = {
    "diag": np.ones((2, COLUMNS)),
    "full": np.stack([np.eye(COLUMNS)] * 2),
    "tied": np.eye(COLUMNS),
    "spherical": np.ones(2),
}


def rows_of_client(vector: np.ndarray) -> np.ndarray:
    """(rows, 2): a pair of numbers is a row, of alternating sign; a pair of zeros is none."""
    vector = np.asarray(vector)
    pairs = np.append(vector, np.zeros(len(vector) % COLUMNS, np.int64)).reshape(-1, COLUMNS)
    rows = np.array([[ABSURD.get(int(value), float(value)) for value in pair] for pair in pairs])
    rows *= np.where(np.arange(len(rows)) % 2, -1.0, 1.0)[:, None]
    return rows[pairs.any(axis=1)]


@dataclass(frozen=True)
class Rows:
    """A configuration under audit. start: name of the given parameters. replaced: as in `Case`: 4, for contributions
    of any sign.
    """

    config: Varied
    relation: str = "add_or_remove_one"
    start: str = "gaussian"
    replaced: int = 4

    @property
    def method(self) -> FederatedEM:
        return FederatedEM(self.config)

    def public(self, features: int, rho: float = 0.5, seed: int = 0) -> PublicFacts:
        given = dict(STARTS[self.start])
        if self.start == "gaussian" and self.config.model.covariance != "known":
            given["covariances"] = COVARIANCES[self.config.model.covariance]
        if self.config.standardise:
            given |= {"centre": np.array([0.5, -1.0]), "scale": np.array([2.0, 0.25])}
        given["part_scales"] = np.linspace(0.5, 2.0, model_of(self.config, plain_scaling(COLUMNS)).q)
        return PublicFacts("rows", COLUMNS, 1024, 60, None, rho, seed, self.relation, given)

    def block(self, vectors) -> RowsBlock:
        return block_of([rows_of_client(vector) for vector in np.asarray(vectors)])

    def narrow(self, clip: float) -> Rows:
        return replace(self, config=self.config.model_copy(update={"clip": clip}))

    def allowed(self, planned: PlannedRelease, relation: str) -> int:
        """Largest squared L2 change of the array, in grid steps, when one client is added, or replaced."""
        if self.relation == relation or relation == "add_or_remove_one":
            return planned.sensitivity**2
        return self.replaced * planned.sensitivity**2


def _em(**settings) -> Varied:
    if settings.get("model") != "gaussian_imputer":
        settings = {"components": 2, **settings}
    return Varied(**{"algorithm": "private", "rounds": 2, "standardise": False, **settings})


ONE = {"components": 1, "covariance": "known", "gamma": 0.1}
CASES = {
    "em, known": Rows(_em(**ONE), start="one"),
    "em, replaced": Rows(_em(**ONE), "replace_one", start="one"),
    "em, diag": Rows(_em(covariance="diag", standardise=True, record_bound=30.0)),
    "em, full": Rows(_em(covariance="full", clip=0.5, gamma_decay=2.0)),
    "em, tied": Rows(_em(covariance="tied", record_bound=1e6)),
    "em, spherical": Rows(_em(covariance="spherical"), "replace_one"),
    "em, regression": Rows(_em(model="regression"), start="regression"),
    "em, imputer": Rows(_em(model="gaussian_imputer", standardise=True), start="gaussian_imputer"),
    "em, poisson": Rows(_em(model="poisson"), start="poisson"),
}


# --- larger leaves --------------------------------------------------------------------------------------------------

MODELS = [
    ("gaussian", "diag"),
    ("gaussian", "full"),
    ("gaussian", "tied"),
    ("gaussian", "spherical"),
    ("gaussian", "known"),
    ("regression", "full"),
    ("gaussian_imputer", "full"),
    ("poisson", "full"),
    ("multinomial", "full"),
    ("bernoulli", "full"),
]


def large_world(model: str, covariance: str, d: int, components: int, generator: np.random.Generator):
    """(method, message of its first round, float32 rows of 40 clients: none, one, many, some with equal numbers)."""
    g, own = components, {"covariance": covariance} if model == "gaussian" else {}
    own |= {} if model == "gaussian_imputer" else {"components": components}
    config = _em(model=model, record_bound=50.0, **own)
    matrix = generator.normal(size=(d, d))
    means, weights, shares = generator.normal(size=(g, d)), np.full(g, 1 / g), generator.random((g, d)) + 0.1
    regular = matrix @ matrix.T + np.eye(d)
    covariances = {
        "known": None,
        "spherical": np.full(g, 1.5),
        "diag": shares + 0.5,
        "tied": regular,
        "full": np.stack([regular] * g),
    }[covariance]
    given = {
        "gaussian": {"weights": weights, "means": means, "covariances": covariances},
        "regression": {"weights": weights, "coefficients": means, "variances": np.full(g, 0.7)},
        "gaussian_imputer": {"mean": means[0], "covariance": regular},
        "poisson": {"weights": weights, "rates": shares},
        "multinomial": {"weights": weights, "probabilities": shares / shares.sum(axis=1, keepdims=True)},
        "bernoulli": {"weights": weights, "probabilities": shares / 1.5},
    }[model]
    method = FederatedEM(config)
    public = PublicFacts(
        "rows", d, 1024, 60, None, 0.5, 0, warm_start={k: v for k, v in given.items() if v is not None}
    )
    sizes = [0, 1, 2, 3, 3, 3, 7, 8, 9, 16, 31, 32, 33, 100, 1000] + generator.integers(0, 40, 25).tolist()
    parts = [generator.normal(size=(size, d)).astype(np.float32) for size in generator.permutation(sizes)]
    if model == "gaussian_imputer":
        parts = [np.where(generator.random(own.shape) < 0.3, np.float32(np.nan), own) for own in parts]
    elif model != "gaussian":
        parts = [np.abs(np.rint(own)) for own in parts]
    return method, method.message(method.init(public)), parts


# --- sabotaged builds -----------------------------------------------------------------------------------------------


@contextmanager
def no_clip():
    """Clients contribute their whole scaled statistic, whatever its norm."""

    def unclipped(model, message, leaf):
        scaled = (model.e_mean(message.theta, leaf.y, leaf.ptr) - message.s) / message.part_scales
        return np.where(leaf.sizes[:, None] > 0, np.trunc(scaled / grid_step(message.clip)), 0.0)

    with mock.patch.object(private, "clipped_on_grid", unclipped):
        yield


@contextmanager
def rounded_up():
    """Grid values are rounded away from zero, so that a client at the clip leaves the bound by a hair."""

    def away(model, message, leaf):
        scaled = (model.e_mean(message.theta, leaf.y, leaf.ptr) - message.s) / message.part_scales
        norms = np.sqrt(np.sum(scaled * scaled, axis=1, keepdims=True))
        grid = scaled * np.minimum(1.0, message.clip / norms) / grid_step(message.clip)
        return np.where(leaf.sizes[:, None] > 0, np.sign(grid) * np.ceil(np.abs(grid)), 0.0)

    with mock.patch.object(private, "clipped_on_grid", away):
        yield


@contextmanager
def shared_clip():
    """The sum of a leaf is shared out over its clients: a client's part depends on who else is there."""
    kept = private.client_update

    def shared(config, model, message, block):
        sums = kept(config, model, message, block)
        return {
            name: IntegerSum(total.value() // max(1, np.count_nonzero(np.diff(block.ptr))))
            for name, total in sums.items()
        }

    with mock.patch.object(private, "client_update", shared):
        yield


@contextmanager
def clipped_together():
    """The sum of the leaf is clipped, not each client: the newcomer rescales the others' parts."""

    def together(config, model, message, block):
        leaf = rows_of(block, message.scaling)
        leaf = private.bounded_rows(leaf, message.bound, False)
        means = (model.e_mean(message.theta, leaf.y, leaf.ptr) - message.s) / message.part_scales
        total = np.where(leaf.sizes[:, None] > 0, means, 0.0).sum(axis=0)
        grid = total * min(1.0, message.clip / max(np.linalg.norm(total), 1e-300)) / grid_step(message.clip)
        return {message.release: IntegerSum(np.trunc(grid).astype(np.int64))}

    with mock.patch.object(private, "client_update", together):
        yield


@contextmanager
def precision_of_the_leaf():
    """Rows in half precision while all of a leaf are small: one client with a large number changes it for all."""
    kept = private.client_update

    def switched(config, model, message, block):
        small = not block.x.size or np.nanmax(np.abs(block.x)) < 1e3
        return kept(config, model, message, replace(block, x=(block.x + 1e-3).astype(np.float16 if small else float)))

    with mock.patch.object(private, "client_update", switched):
        yield


KERNELS = {
    "no clip": no_clip,
    "rounded up": rounded_up,
    "shared clip": shared_clip,
    "clipped together": clipped_together,
    "precision of the leaf": precision_of_the_leaf,
}
