"""What the privacy statement of a run over several sites adds: against whom it holds, and the second cost.

Argument: docs/privacy/sites.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from fedcore.errors import ConfigError
from fedcore.privacy.accounting import Budget, rounded_up
from fedcore.privacy.noise_shares import Terms, check_shares, second_mu, terms_of
from fedcore.privacy.plan import PlannedRelease

TRUST_AMONG_SITES = (
    "Each site is the curator of its own data: raw sums exist in the memory of its workers and of its flow process, "
    "and on the wire between them. It adds its share of the noise there. Only noisy sums under masks leave the site."
)
NOT_COVERED_AMONG_SITES = (
    "A site as a whole: runs with and without it show its noisy total.",
    "A person with data at several sites, who is not recognised there, and loses the sum of their mu.",
    "The result, if a site adds other numbers than the sums of its data.",
)


@dataclass(frozen=True, slots=True)
class AmongSites(Terms):
    """The terms of the study, and what the run costs if all other sites collude with the attacker.

    epsilon: at the delta of the conversion.
    """

    rho: float
    mu: float
    epsilon: float

    def text(self, delta: float) -> str:
        """For a person. delta: of the run."""
        others = self.sites - 1
        known = f"up to {self.collusion} of the {others} other sites know" if others > 1 else "the other site knows"
        first = (
            f"Sites: each of {self.sites} sites added its own data and its share of the noise (study {self.study}). "
            f"The cost above holds against an attacker who reads the mailbox and knows all that {known}"
        )
        if self.honest == 1:
            return f"{first}. These are all other sites, and no assumption about encryption is made."
        return (
            f"{first}. It assumes that X25519, HKDF-SHA256 and ChaCha20 are secure, and holds up to a total variation "
            f"distance of 10^-16000. If all other sites collude, this run costs mu = {self.mu:.6g} (rho = "
            f"{self.rho:.6g}), which implies ({self.epsilon:.4g}, {delta:.3g})-differential privacy."
        )


def among_sites(planned: PlannedRelease, rho: float, budget: Budget) -> AmongSites | None:
    """Of a run of cost rho, one of whose releases is this; None if one place adds all of the noise."""
    terms = terms_of(planned)
    if terms is None:
        return None
    most = rounded_up(Fraction(rho) * terms.honest)
    of_all = second_mu(rho, terms), budget.epsilon_of(most)
    return AmongSites(terms.sites, terms.collusion, terms.study, most, *of_all)


def contradictions(
    said: AmongSites | None, plan: list[PlannedRelease], rho: float, budget: Budget
) -> Iterator[tuple[str, object, object]]:
    """(what, what is stated, what follows) of the entry `sites` of a statement. rho: of the run."""
    if not plan:
        return
    found = among_sites(plan[0], rho, budget)
    if said != found:
        yield "sites", said, found
    try:
        check_shares(plan)
    except ConfigError as error:
        yield "the noise of the sites", "as listed", error.message
