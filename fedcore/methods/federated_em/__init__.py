"""Federated expectation maximisation: FedEM and VR-FedEM (Dieuleveut, Fort, Moulines, Robin 2021)."""

from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.method import FederatedEM
from fedcore.methods.federated_em.state import FederatedEMState

__all__ = ["FederatedEM", "FederatedEMConfig", "FederatedEMState"]
