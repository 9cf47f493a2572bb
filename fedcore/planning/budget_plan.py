"""What is left of a budget, cut into equal runs: what each may ask for, what it buys, what noise costs it.

Everything here is made from the budget and from public facts; no data are opened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from fedcore.errors import BudgetExceeded, BudgetMissing, ConfigError
from fedcore.methods.histograms.method import Histograms
from fedcore.methods.histograms.sensitivities import spread
from fedcore.methods.histograms.sizes import bought, sizes_of, strength
from fedcore.methods.registry import make_method
from fedcore.population.store import Population
from fedcore.privacy.accounting import epsilon_of, rho_of
from fedcore.privacy.ledger.ledger import Balance
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts
from fedcore.training.budget import check_kind, checked_unit, facts, nominal_clients, settle

DIGITS = 4  # of an epsilon that is shown, rounded down so that what is shown fits
WORDS = (  # least strength (fedcore.methods.histograms.sizes), what it means; the steps are those of the size rules
    (50.0, "strong: noise costs little"),
    (18.0, "good: noise is visible, and the clusters are worth it"),
    (8.0, "fair: noise costs about as much as some of the clusters bring"),
    (3.0, "weak: few clusters, and little better than one mean for all"),
    (0.0, "too weak for clusters: expect no more than a mean"),
)


@dataclass(frozen=True, slots=True)
class Sketch:
    """One run as it would be planned. rounds T, clusters K, cells K' of the first rounds, releases in all.

    strength: SNR of eight rounds with one cell; loss_nats: estimate of `noise_loss`.
    """

    rounds: int
    clusters: int
    first_cells: int
    releases: int
    strength: float
    in_words: str
    loss_nats: float


def equal_runs(
    method: Histograms, population: Population, balance: Balance, runs: int, epsilon: float | None = None
) -> dict:
    """What each of `runs` equal runs may spend; epsilon: what each would ask for instead. JSON-ready.

    Spare releases are set aside in each run's share and come back at its end if no draw was lost; `epsilon_if_no_spare`
    is what a run then costs. Raises BudgetMissing, BudgetExceeded if nothing is left, ConfigError, and
    WrongKind or PrivacyError if such runs would be refused for what the population holds or promises.
    """
    if balance.budget is None:
        raise BudgetMissing(
            f"population {population.path.name!r} has no privacy budget.",
            f"Set one: fedcore budget set {population.path} --epsilon E --delta D",
        )
    check_kind(method, population)
    checked_unit(method, balance.unit, population)
    if runs < 1:
        raise ConfigError(f"a number of runs is at least 1, not {runs}.")
    delta = balance.budget.delta_conv
    if not balance.rho_left > 0:
        raise BudgetExceeded(
            f"the budget of population {population.path.name!r} is used up.",
            "Nothing can be planned without `fedcore budget raise`.",
        )
    if epsilon is None:
        epsilon = rounded_down(epsilon_of(balance.rho_left / runs, delta))
    share = rho_of(epsilon, delta)
    fitting = int(min(balance.rho_left / share, 10**9))
    sketches, spent = {}, None
    for name in ("cold", "warm"):
        plan, sketch = sketch_of(method, population, balance, share, name == "warm")
        spent = sum(planned.rho for planned in plan) if spent is None else spent
        sketches[name] = asdict(sketch)
    return {
        "relation": balance.relation,
        "rho_left": balance.rho_left,
        "epsilon_left": epsilon_of(balance.rho_left, delta),
        "delta": balance.budget.delta,
        "runs": runs,
        "nominal_clients": nominal_clients(method, population),
        "epsilon_per_run": epsilon,
        "rho_per_run": share,
        "spare_releases": method.config.spare_releases,
        "rho_if_no_spare": spent,
        "epsilon_if_no_spare": epsilon_of(spent, delta),
        "fits": runs <= fitting,
        "runs_that_fit": fitting,
        **sketches,
    }


def sketch_of(
    method: Histograms, population: Population, balance: Balance, share: float, warm: bool
) -> tuple[list[PlannedRelease], Sketch]:
    """A run of this share of rho, from nothing or from the centres of an earlier equal run."""

    def public(rho: float, start: Mapping[str, np.ndarray] | None = None) -> PublicFacts:
        return facts(method, population, rho, 0, balance.relation, start)

    plan, rho = settle(method, public, share)
    if warm:
        k = sizes_of(method.config, public(rho)).clusters
        start = {"centres": np.full((k, population.features), 1.0 / population.features)}
        plan, rho = settle(method, lambda rho: public(rho, start), share)
    else:
        start = None
    sizes = sizes_of(method.config, public(rho, start))
    nominal, features, effective = bought(method.config, public(rho, start))
    b = strength(nominal, features, effective, method.config.clip)
    sigma = [planned.noise_multiplier for planned in plan if planned.name.startswith("clusters")][-1]
    loss = noise_loss(
        sigma * spread(balance.relation),
        method.config.clip,
        features,
        nominal / sizes.clusters,
        pooled=sizes.rounds > 1,
    )
    return plan, Sketch(sizes.rounds, sizes.clusters, sizes.cells(1), len(plan), b, strength_in_words(b), loss)


def noise_loss(sigma: float, clip: float, features: int, clients: float, pooled: bool) -> float:
    """Nats of KL that noise adds to a cluster's centre: (C sigma)**2 sum(w / P) / (2 N**2), N clients of the cluster.

    Before shrinkage, which saves a part of it. sum(w / P) is not known beforehand and set to its largest value, d: for
    w ~ P sqrt(1 / m_eff + P) it is d where all tokens are equally frequent, and less otherwise (Chebyshev's sum
    inequality). sigma: noise multiplier times the spread of the relation. pooled: two rounds are added, which halves
    the loss.
    """
    return (clip * sigma) ** 2 * features / (2 * clients**2) / (2 if pooled else 1)


def strength_in_words(b: float) -> str:
    return next(words for least, words in WORDS if b >= least)


def rounded_down(value: float) -> float:
    """To four digits, downwards."""
    unit = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    return float(f"{math.floor(value / unit) * unit:.{DIGITS}g}")


def histograms(settings: dict) -> Histograms:
    """The method with these settings. Raises ConfigError if they are not those of a private run."""
    method = make_method("histograms", settings)
    if not method.private:
        raise ConfigError(
            f"algorithm {method.config.algorithm!r} is not private and has no budget to plan.",
            'Leave the algorithm out, or set it to "private".',
        )
    return method
