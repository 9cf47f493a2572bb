"""What is audited of private dictionaries: configurations, with clients as in `em_releases`, and sabotaged builds."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np

from fedcore.methods.dictionaries import Dictionaries, DictionariesConfig
from fedcore.methods.dictionaries.private import clients
from fedcore.population.blocks import RowsBlock
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.statistics import IntegerSum
from tests.audit.em_releases import COLUMNS, rows_of_client
from tests.federated_em.run_in_memory import block_of

GIVEN = {"global": np.array([[1.0, 0.0], [0.6, 0.8], [-0.6, 0.8]])}


@dataclass(frozen=True)
class Samples:
    """A configuration under audit. given: whether it starts from given atoms. replaced: as in `Case`."""

    config: DictionariesConfig
    relation: str = "add_or_remove_one"
    given: bool = False
    replaced: int = 4

    @property
    def method(self) -> Dictionaries:
        return Dictionaries(self.config)

    def public(self, features: int, rho: float = 0.5, seed: int = 0) -> PublicFacts:
        return PublicFacts("rows", COLUMNS, 1024, 60, None, rho, seed, self.relation, GIVEN if self.given else None)

    def block(self, vectors) -> RowsBlock:
        return block_of([rows_of_client(vector) for vector in np.asarray(vectors)])

    def allowed(self, planned: PlannedRelease, relation: str) -> int:
        """Largest squared L2 change of the array, in grid steps, when one client is added, or replaced."""
        if self.relation == relation or relation == "add_or_remove_one":
            return planned.sensitivity**2
        return self.replaced * planned.sensitivity**2


def _config(**settings) -> DictionariesConfig:
    return DictionariesConfig(**{"private": True, "global_atoms": 3, "sparsity": 1, "rounds": 2, **settings})


CASES = {
    "dictionaries": Samples(_config()),
    "dictionaries, replaced": Samples(_config(sparsity=2), "replace_one"),
    "dictionaries, given": Samples(_config(), given=True),
}


# --- sabotaged builds -----------------------------------------------------------------------------------------------


@contextmanager
def no_clip():
    """Clients contribute their whole means, whatever their norm."""
    with (
        mock.patch.object(clients, "clipped", lambda values, clip, bound: np.trunc(values * (bound / clip))),
        mock.patch.object(clients, "bound_norms", lambda grid, ptr: grid),
    ):
        yield


@contextmanager
def rounded_up():
    """Grid values are rounded away from zero, and not bounded once more."""

    def away(values, clip, bound):
        grid = values * (bound / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), clip))
        return np.sign(grid) * np.ceil(np.abs(grid))

    with mock.patch.object(clients, "clipped", away), mock.patch.object(clients, "bound_norms", lambda grid, ptr: grid):
        yield


@contextmanager
def parts_of_full_norm():
    """Every part of a round's vector has the bound of the whole."""
    with (
        mock.patch.object(clients, "STEP_BOUND", clients.GRID_NORM),
        mock.patch.object(clients, "ENERGY_BOUND", clients.GRID_NORM),
        mock.patch.object(clients, "bound_norms", lambda grid, ptr: grid),
    ):
        yield


@contextmanager
def shared_clip():
    """The sum of a leaf is shared out over its clients: a client's part depends on who else is there."""
    kept = clients.client_update

    def shared(message, block):
        filled = max(1, np.count_nonzero(np.diff(block.ptr)))
        return {name: IntegerSum(total.value() // filled) for name, total in kept(message, block).items()}

    with mock.patch.object(clients, "client_update", shared):
        yield


@contextmanager
def precision_of_the_leaf():
    """Rows in half precision while all of a leaf are small: one client with a large number changes it for all."""
    kept = clients.client_update

    def switched(message, block):
        small = not block.x.size or np.nanmax(np.abs(block.x)) < 1e3
        return kept(message, replace(block, x=(block.x + 1e-3).astype(np.float16 if small else float)))

    with mock.patch.object(clients, "client_update", switched):
        yield


KERNELS = {
    "no clip": no_clip,
    "rounded up": rounded_up,
    "parts of full norm": parts_of_full_norm,
    "shared clip": shared_clip,
    "precision of the leaf": precision_of_the_leaf,
}
