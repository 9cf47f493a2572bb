"""Settings of the method `federated_em`: one validated model for the TOML file, the command line and the flow."""

from __future__ import annotations

import math
from typing import Self

from pydantic import model_validator

from fedcore.methods.federated_em.belonging import Only, misplaced
from fedcore.methods.federated_em.settings import (
    BATCH_GAMMA,
    NATURAL_GAMMA,
    PRIVATE_GAMMA,
    REDUCED_GAMMA,
    TABLES,
    Settings,
)


class FederatedEMConfig(Settings):
    """FedEM and VR-FedEM (Dieuleveut, Fort, Moulines, Robin 2021), EM, and a private variant.

    None means "by the algorithm"; each description says what that is.
    """

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        chosen = Only((self.algorithm,), (self.model,), (self.kind,), (self.codec_name,))
        if told := misplaced(self, chosen):
            raise ValueError(told)
        for wrong, text in (
            ((self.model in TABLES) != (self.table_rows is not None), f"{self.model} needs the rows of one table"),
            (self.natural and not self.mixture, f"natural units are of mixtures, not of {self.model}"),
            (self.natural and not self.variant.memories, "natural units need memories"),
            (self.weight_column is not None and self.batch is not None, "batches are drawn of rows without weights"),
            (not self.private and self.epsilon is not None, f"{self.algorithm} spends no budget: it is not private"),
            (self.accelerated and self.gamma is not None, "em of mixtures accelerates its steps: leave gamma out"),
            (
                self.accelerated and self.monitor_every is not None,
                "em of mixtures looks in every pass: leave monitor_every out",
            ),
            (self.private and self.start_name != "given", "a private run starts from public parameters: given"),
            (self.private and self.weights == "rows", "a private run counts each client once, not by its rows"),
        ):
            if wrong:
                raise ValueError(text)
        return self

    def step(self, omega: float, effective_clients: float) -> float:
        """gamma_0: as given, or the practical rule with omega_p = omega + (1 + omega)(1 - p) / p. The steps of the
        theorems need constants that nobody knows, and that for mixtures are not even finite."""
        if self.gamma is not None:
            return self.gamma
        if self.private:
            return PRIVATE_GAMMA
        p = self.participation
        omega_p = omega + (1 + omega) * (1 - p) / p
        rule = 1.0
        if self.natural:  # absent clients are known by what they sent last: nothing is divided by p
            rule = NATURAL_GAMMA
        elif omega_p > 0:
            rule = min(1.0, 0.5 * p * math.sqrt(effective_clients) / ((1 + omega) * math.sqrt(omega_p)))
        if self.variance_reduced:
            return min(rule, REDUCED_GAMMA)
        return min(rule, BATCH_GAMMA) if self.batch is not None else rule
