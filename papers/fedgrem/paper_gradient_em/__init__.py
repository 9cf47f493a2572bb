"""FedGrEM and the methods that the paper compares it with, for the paper's tables."""

from fedcore.papers.fedgrem.paper_gradient_em.config import PaperGradientEMConfig
from fedcore.papers.fedgrem.paper_gradient_em.method import PaperGradientEM
from fedcore.papers.fedgrem.paper_gradient_em.state import PaperGradientEMState

__all__ = ["PaperGradientEM", "PaperGradientEMConfig", "PaperGradientEMState"]
