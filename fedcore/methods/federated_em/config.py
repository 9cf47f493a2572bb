"""Settings of the method `federated_em`: one validated model for the TOML file, the command line and the flow."""

from __future__ import annotations

import math
from typing import Self

from pydantic import model_validator

from fedcore.methods.federated_em.contradictions import contradictions
from fedcore.methods.federated_em.settings import BATCH_GAMMA, NATURAL_GAMMA, PRIVATE_GAMMA, REDUCED_GAMMA, Settings


class FederatedEMConfig(Settings):
    """FedEM and VR-FedEM (Dieuleveut, Fort, Moulines, Robin 2021), their special cases, and a private variant.

    None means "by the algorithm"; each description says what that is.
    """

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        for wrong, text in contradictions(self):
            if wrong:
                raise ValueError(text)
        return self

    def step(self, omega: float, effective_clients: float) -> float:
        """gamma_0: as given, by the theorems, or the practical rule with omega_p = omega + (1 + omega)(1 - p) / p."""
        if self.gamma is not None:
            return self.gamma
        if self.private:
            return PRIVATE_GAMMA
        p = self.participation
        omega_p = omega + (1 + omega) * (1 - p) / p
        if self.v_min is not None:
            return self._step_of_theorem(omega, omega_p, effective_clients)
        rule = 1.0
        if self.natural:  # absent clients are known by what they sent last: nothing is divided by p
            rule = NATURAL_GAMMA
        elif omega_p > 0:
            rule = min(1.0, 0.5 * p * math.sqrt(effective_clients) / ((1 + omega) * math.sqrt(omega_p)))
        if self.variance_reduced:
            return min(rule, REDUCED_GAMMA)
        return min(rule, BATCH_GAMMA) if self.batch is not None else rule

    def _step_of_theorem(self, omega: float, omega_p: float, clients: float) -> float:
        """gamma_max of Theorem 1, with omega_p for absent clients; or the step of Theorem 3."""
        v, field, objective = self.v_min, self.field_lipschitz, self.objective_lipschitz
        if v is None or field is None or objective is None:
            raise ValueError("the constants of the theorems are not known")
        if self.variance_reduced:
            if self.v_max is None:
                raise ValueError("v_max is not known")
            noise = (1 + omega) * math.sqrt(omega + (1 + 10 * omega) / 8)
            ratio = self.v_max * field / (objective * math.sqrt(clients))
            return v / objective / (1 + 4 * math.sqrt(2) * ratio * noise)
        largest = v / (2 * objective)
        if omega_p == 0:
            return largest
        scale = 2 * math.sqrt(2) * field * (1 + omega) * math.sqrt(omega_p)
        return min(largest, self.participation * math.sqrt(clients) / scale)
