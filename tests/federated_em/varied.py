"""Settings of federated EM and every part of a `Variant` beside them, for tests."""

from fedcore.papers.fedem.paper_federated_em import PaperFederatedEMConfig


class Varied(PaperFederatedEMConfig):
    """trial_rounds: few of them, so that a test ends soon."""

    trial_rounds: int = 6
