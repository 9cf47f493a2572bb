"""Penalised federated gradient EM: FedGrEM (Tian, Weng, Feng 2024)."""

from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.method import GradientEM
from fedcore.methods.gradient_em.state import GradientEMState

__all__ = ["GradientEM", "GradientEMConfig", "GradientEMState"]
