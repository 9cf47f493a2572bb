"""What the experiments of federated EM share: runs whose mean field is traced, and their costs.

The measure of convergence is ||h(S_k)||^2, h(s) = s_bar(T(s)) - s: roots of h are the fixed points of EM. It takes a
pass over all rows at fixed parameters, made here directly, not by the clients; it is not counted in the epochs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fedcore.papers.fedem.paper_federated_em import PaperFederatedEM
from fedcore.papers.simulation import simulate
from fedcore.papers.table import Place, median

from fedcore.methods.federated_em import FederatedEM, FederatedEMState, models
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.mixture_models.contract import CurvedEM
from fedcore.population.store import Population
from fedcore.rounds.method import RoundInfo

NEVER_LOOKED_AT = 1_000_000  # the method's own looks at the objective would cost passes; the trace makes its own
SHARE = 1e-3  # regularisation of the tables, from before there were pseudo-rows
WINDOW = 0.5  # epochs before and after, over which a running median is taken
PLACES = 64  # bits of an uncompressed number


# --- traces ---------------------------------------------------------------------------------------------------------


@dataclass
class Trace:
    """Listens to a simulation. One point for the start (round 0) and one after each round.

    epochs: conditional expectations so far over rows; mean_field: ||h(S)||^2; bits_up: sent by all clients so far;
    raw_up: what these messages would have been without a codec; cut_back: rounds whose step was halved
    every: rounds between two looks at ||h||^2, each a pass; NaN where nobody looked
    """

    method: FederatedEM
    population: Population
    every: int = 1
    epochs: list[float] = field(default_factory=list)
    mean_field: list[float] = field(default_factory=list)
    bits_up: list[float] = field(default_factory=list)
    raw_up: float = 0.0
    bits_down: float = 0.0
    answers: float = 0.0
    cut_back: int = 0
    rows: np.ndarray | None = None

    def __call__(self, state: FederatedEMState, info: RoundInfo) -> None:
        if not len(state.statistic):
            return
        q = len(state.statistic)
        if "active_clients" in info.scalars:
            self.answers += info.scalars["active_clients"]
            self.raw_up += PLACES * q * info.scalars["active_clients"]
            self.cut_back += info.scalars["halvings"] > 0
        self.bits_down = state.bits_down
        if len(self.epochs) == state.round + 1:  # a pass that was no round: it cost, and S is where it was
            self.raw_up += state.bits_up - self.bits_up[-1]
            self.epochs[-1], self.bits_up[-1] = state.expectations / state.rows, state.bits_up
            return
        self.epochs.append(state.expectations / state.rows)
        self.bits_up.append(state.bits_up)
        looks = state.round % self.every == 0
        self.mean_field.append(mean_field(self.method, state, self.rows_of(state)) if looks else math.nan)

    def rows_of(self, state: FederatedEMState) -> np.ndarray:
        """(N, d) all rows, standardised as in this state; read once."""
        if self.rows is None:
            self.rows = all_rows(self.population, state, self.method)
        return self.rows


def all_rows(population: Population, state: FederatedEMState, method: FederatedEM) -> np.ndarray:
    """(N, d) all rows, as the model sees them."""
    blocks = (population.read(index) for index in range(len(population.blocks)))
    return np.concatenate(
        [np.asarray(rows_of(block, state.scaling(), method.config.rows_per_observation).y) for block in blocks]
    )


def mean_field(method: FederatedEM, state: FederatedEMState, rows: np.ndarray) -> float:
    """||h(S)||^2 with every row of equal weight, by a pass over all rows."""
    h = model_of(method, state).e_total(state.parameters(), rows) / state.rows - state.statistic
    return float(h @ h)


def model_of(method: FederatedEM, state: FederatedEMState) -> CurvedEM:
    """The model of the run, for standardised rows."""
    return models.model_of(method.config, state.scaling())


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished run: its method, last state and trace."""

    method: FederatedEM
    state: FederatedEMState
    trace: Trace

    @property
    def rows(self) -> np.ndarray:
        """(N, d) all rows, as the model sees them."""
        return self.trace.rows_of(self.state)

    def results(self) -> dict:
        """JSON of the trace; nll: mean negative log-likelihood of an observation, nats, without the penalty."""
        trace, state = self.trace, self.state
        losses = -model_of(self.method, state).log_likelihood(state.parameters(), self.rows)
        return {
            "epochs": trace.epochs,
            "mean_field": trace.mean_field,
            "bits_up": trace.bits_up,
            "raw_up": trace.raw_up,
            "bits_down": trace.bits_down,
            "answers": trace.answers,
            "cut_back": int(trace.cut_back),
            "nll": float(np.mean(losses)),
            "q": len(state.statistic),
        }


def as_in_the_paper(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the paper's codec and steps and the tables' penalty, where they do not name others. The
    algorithm "naive" is FedEM without memories.
    """
    common, own = {"safeguards": False, "regularisation": SHARE, "restarts": 1}, dict(settings)
    if own.get("algorithm") == "em":
        own.pop("codec", None)
        return {**common, **own}
    if own.get("algorithm") == "naive":
        own |= {"algorithm": "fedem", "memories": False}
    return {"codec": "dithering", **common, **own}


def traced(
    place: Place,
    key: str,
    settings: Mapping[str, Any],
    population: Population,
    seed: int,
    start: dict[str, np.ndarray] | None = None,
    every: int = 1,
) -> Ran:
    """Train with these settings of the method paper_federated_em, `as_in_the_paper`; see `simulate` and `Trace`."""
    settings = {"monitor_every": NEVER_LOOKED_AT, **as_in_the_paper(settings)}
    trace = Trace(PaperFederatedEM(PaperFederatedEM.Config(**settings)), population, every)
    _, state = simulate(
        place, key, "paper_federated_em", settings, population, seed=seed, warm_start=start, on_round=trace
    )
    return Ran(trace.method, state, trace)


# --- numbers of a table ---------------------------------------------------------------------------------------------


def tail(values: Sequence[float], share: float = 0.2) -> float:
    """Median over the last share of the values; what a run that does not settle ends with."""
    return float(np.median(values[-max(1, int(share * len(values))) :]))


def smoothed(epochs: Sequence[float], values: Sequence[float]) -> np.ndarray:
    """Running median over the points within half an epoch."""
    at, points = np.asarray(epochs), np.asarray(values)
    low, high = np.searchsorted(at, at - WINDOW, "right"), np.searchsorted(at, at + WINDOW, "left")
    low = np.minimum(low, np.arange(len(at)))
    high = np.maximum(high, np.arange(len(at)) + 1)
    return np.array([np.median(points[a:b]) for a, b in zip(low, high, strict=True)])


def epochs_to(epochs: Sequence[float], values: Sequence[float], bound: float) -> float | None:
    """Epochs until the running median is at most the bound; None if it never is."""
    there = np.flatnonzero(smoothed(epochs, values) <= bound)
    return float(epochs[there[0]]) if len(there) else None


def rounds_to(values: Sequence[float], bound: float) -> int | None:
    """Rounds until the values are at most the bound; None if they never are."""
    there = np.flatnonzero(np.asarray(values) <= bound)
    return int(there[0]) if len(there) else None


def message_bits(cell: dict) -> float:
    """Bits of a client's message in the rounds, the first memories left out."""
    return (cell["bits_up"][-1] - cell["bits_up"][0]) / cell["answers"]


COSTS = {  # of a run at its end
    "nll": median("nll", ".4f"),
    "‖h‖²": median(lambda c: c["mean_field"][-1]),
    "rounds": median(lambda c: len(c["epochs"]) - 1, "g"),
    "epochs": median(lambda c: c["epochs"][-1], ".1f"),
    "bits up / message": median(message_bits, ".0f"),
    "MB up": median(lambda c: c["bits_up"][-1] / 8e6, ".4g"),
    "raw MB": median(lambda c: c["raw_up"] / 8e6, ".4g"),
    "MB down": median(lambda c: c["bits_down"] / 8e6, ".4g"),
    "cut back": median("cut_back", "g"),
}
