"""Estimators whose fit may be private: with a separate budget for data that have none, or a part of a population's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sklearn.utils import Tags

from fedcore.errors import ConfigError
from fedcore.interface.data import Groups
from fedcore.interface.estimator import FederatedEstimator
from fedcore.interface.functions import set_budget
from fedcore.population.store import Population
from fedcore.privacy.plan import Unit


class PrivateEstimator(FederatedEstimator):
    """epsilon: of this fit; None: it is not private. delta, nominal_clients and public_schema are needed for data that
    have no budget yet; see the estimators."""

    epsilon: float | None
    delta: float | None
    nominal_clients: int | None
    public_schema: str | None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.epsilon is not None  # no seed draws the noise that protects people
        return tags

    def _population_options(self, place: Path, groups: Groups) -> dict[str, Any]:
        if self.epsilon is None:
            return {}
        from fedcore.training.budget import ledger_name  # a fit that is not private needs no database

        ledger = ledger_name(f"sqlite:///{place / 'ledger.sqlite'}")
        return {"nominal_clients": self.nominal_clients, "ledger": ledger}

    def _before_training(self, population: Population, place: Path) -> dict[str, Any]:
        if self.epsilon is None:
            return {}
        if Path(population.location).parent != place:  # it has a budget, of which this is the run's share
            return {"epsilon": self.epsilon}
        if self.delta is None or self.nominal_clients is None or not self.public_schema:
            missing = [name for name in ("delta", "nominal_clients", "public_schema") if not getattr(self, name)]
            raise ConfigError(
                f"a private fit of data that have no budget yet needs {missing[0]}.", "See the class's documentation."
            )
        unit: Unit = "record" if population.manifest.records else "client"
        set_budget(population, self.epsilon, self.delta, public_schema=self.public_schema, unit=unit)
        return {}
