"""What the next round of a federated EM run needs; arrays and scalars only, so that a checkpoint is Zarr and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from fedcore.methods.federated_em.anderson import Trail, empty_trail
from fedcore.methods.federated_em.config import PSEUDO_ROWS
from fedcore.methods.federated_em.messages import Scaling
from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.hidden_cells import HiddenCells
from fedcore.methods.mixture_models.student import degrees_in
from fedcore.methods.mixture_models.validation import Split

ROUNDING = 1e-9  # of sums of weights


@dataclass(frozen=True, slots=True)
class FederatedEMState:
    """State after a pass over the clients. q: length of the statistic; P: of all parameters; d: columns.

    phase:    a key of `fedcore.methods.federated_em.server.PHASES`, or "done"; in a private run "rounds" or "done"
    round:    rounds of Algorithm 1 or 2 finished
    step:     passes finished within the phases "clusters", "trials" and "starts"
    seed:     of the streams of simulation randomness
    population: clients of the population; 0 in a private run, which does not know it
    clients, rows: clients that have rows, and their rows; in a private run the declared number of clients, and 0
    effective_clients: 1 / sum w_i^2
    centre, scale: (d,) what rows are standardised by; (0,) if they are not
    variance, mean, seen: (d,) of the standardised columns, and how many of their entries are not missing; (0,) while
              they are not known
    picked:   (R, j, d) the seeds of R initialisations so far, later the centres of their clusters
    starts:   (R, q) statistics of the initialisations, or of the penalties, that are tried
    start_memories, start_rounds: (R, q) V_k of each start in the phase "starts", and (R, 3) what else its next round
              needs: heard, resolution and settled; (0, 0) else
    won:      the start that was taken after that phase; -1 else
    waiting:  (R, q) statistics of the initialisations while penalties are tried; (0, 0) else
    statistic: (q,) S_k
    theta, previous: (P,) T(S_k) and T(S_{k-1}), packed in the order of `layout`
    layout:   JSON, the name and shape of every parameter array; see `parameters`
    memory:   (q,) V_k, the weighted sum of all clients' memories; zeros where there are none
    heard:    the weight of the clients who have answered in natural units, whose memories are in that sum
    resolution: D of the next round in natural units; 0 for other codecs
    settled:  whether what a step gains has been little: from then on only a share of the clients answers
    since_full: rounds of VR-FedEM since the last full pass; 0 if one is due
    shortened: rounds whose step was cut back
    first_objective, slope: at the start, and how much it fell a round between the last two looks; None before
    exact_gain: nats a row that EM's own step would have gained, to first order, at the last look within the rounds;
              None where it is not known
    best, best_objective, best_round: the statistic with the lowest objective of those that were looked at; (0,) before
    last_objective: of the last statistic, which is not that of the run if an earlier one was better
    gamma:    step of the next round, before it decreases and before it is cut back
    cut_back: steps that were cut back within the present window
    batch, inner_rounds: rows of a client's batch (0: all), rounds between full passes (0: not VR-FedEM)
    objective: as it was last computed, in round `looked`; None before
    expectations, bits_up, bits_down: costs so far: conditional expectations of rows, and bits
    multipliers: (T,) noise multipliers of the planned releases; (0,) if not private
    part_scales: (q,) the diagonal of D of a private run; (0,) if not private
    spread:   of a private run, what its relation multiplies the sensitivity of a release by
    pooled_weight, pooled_variance: of the statistic of a private run that continues a series, and of the last one of
              any (`fedcore.methods.federated_em.series.Precision`); 0 else
    penalty_share: the penalty as a share of the data, once their number is known; None where the settings alone say it
    pseudo_rows: those that were chosen, here or by the run that this one starts from; PSEUDO_ROWS before
    chosen:   the number that the run chose for the setting of its model that is "auto", -1 for no limit of a rank; 0
              before, and where there is none
    validation: the share of each client's rows that takes no part in training
    hides_cells: whether that share is of the observed cells of tables, not of rows
    first_share, sample_share: of the rows in level 1 of the sample and in all of it, see
              `fedcore.methods.federated_em.search`; 0 if the run does not search
    sampled:  rows of the sample
    first_gain: of the first accelerated step over all rows, nats a row; None before the second
    ends:     (R,) objectives of the chains of the search, nats a row; (0,) if there was none
    points, fields: (m, q) of an accelerated run, see `fedcore.methods.federated_em.anderson.Trail`; its `best` and
              `objective` are best and best_objective here, its `gain` is slope
    waiting_rows: the share of the others that takes no part while the penalty is chosen; 0 else
    """

    phase: str
    round: int
    step: int
    seed: int
    population: int
    clients: float
    rows: float
    effective_clients: float
    centre: np.ndarray
    scale: np.ndarray
    variance: np.ndarray
    mean: np.ndarray
    seen: np.ndarray
    picked: np.ndarray
    starts: np.ndarray
    statistic: np.ndarray
    theta: np.ndarray
    previous: np.ndarray
    layout: str
    memory: np.ndarray
    gamma: float
    cut_back: int
    batch: int
    inner_rounds: int
    objective: float | None
    looked: int
    expectations: float
    bits_up: float
    bits_down: float
    multipliers: np.ndarray
    part_scales: np.ndarray
    penalty_share: float | None = None
    pseudo_rows: float = PSEUDO_ROWS
    validation: float = 0.0
    hides_cells: bool = False
    waiting_rows: float = 0.0
    chosen: float = 0.0
    waiting: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    heard: float = 0.0
    resolution: float = 0.0
    settled: bool = False
    start_memories: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    start_rounds: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    won: int = -1
    since_full: int = 0
    shortened: int = 0
    first_objective: float | None = None
    slope: float | None = None
    exact_gain: float | None = None
    best: np.ndarray = field(default_factory=lambda: np.zeros(0))
    best_objective: float | None = None
    best_round: int = 0
    last_objective: float | None = None
    spread: float = 1.0
    pooled_weight: float = 0.0
    pooled_variance: float = 0.0
    first_share: float = 0.0
    sample_share: float = 0.0
    sampled: float = 0.0
    first_gain: float | None = None
    ends: np.ndarray = field(default_factory=lambda: np.zeros(0))
    points: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    fields: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def parameters(self) -> dict[str, np.ndarray]:
        """T(S_k) by name, of standardised rows; empty before there is an initial value."""
        return unpack(self.theta, self.layout)

    def trail(self) -> Trail:
        """The last points of an accelerated run."""
        if not len(self.best):
            return empty_trail(len(self.statistic))
        return Trail(self.points, self.fields, self.best, cast(float, self.best_objective), self.slope)

    @property
    def gaps(self) -> bool:
        """Whether rows that take part have missing entries, more than rounding of their weights explains."""
        return bool((self.seen <= (1.0 - ROUNDING) * self.rows).any())

    def scaling(self) -> Scaling:
        """How rows are read and standardised, the moments of the columns, and the tails of the components."""
        moments = self.centre, self.scale, self.variance, self.mean, self.seen
        return Scaling(*moments, self.penalty_share, self.split(), self.chosen, degrees_in(self.parameters()))

    def split(self) -> Split | HiddenCells | None:
        """Which rows, or cells, take no part at present; None: all take part."""
        if self.hides_cells:
            return HiddenCells(self.seed, self.validation)
        split = Split(self.seed, self.validation) if self.validation else None
        return Split(self.seed, self.waiting_rows, split) if self.waiting_rows else split


def empty(**fields: Any) -> FederatedEMState:
    """A state before anything is known, with these fields set."""
    none = np.zeros(0)
    defaults: dict[str, Any] = dict(
        phase="moments",
        round=0,
        step=0,
        seed=0,
        population=0,
        clients=0.0,
        rows=0.0,
        effective_clients=0.0,
        centre=none,
        scale=none,
        variance=none,
        mean=none,
        seen=none,
        picked=np.zeros((0, 0, 0)),
        starts=np.zeros((0, 0)),
        statistic=none,
        theta=none,
        previous=none,
        layout="{}",
        memory=none,
        gamma=0.0,
        cut_back=0,
        batch=0,
        inner_rounds=0,
        objective=None,
        looked=0,
        expectations=0.0,
        bits_up=0.0,
        bits_down=0.0,
        multipliers=none,
        part_scales=none,
    )
    return FederatedEMState(**{**defaults, **fields})


def pack(theta: Theta) -> tuple[np.ndarray, str]:
    """All parameters as one float64 vector, and the layout to take it apart."""
    arrays = {name: np.asarray(theta[name], np.float64) for name in theta}
    flat = np.concatenate([array.ravel() for array in arrays.values()]) if arrays else np.zeros(0)
    return flat, json.dumps({name: list(array.shape) for name, array in arrays.items()})


def unpack(flat: np.ndarray, layout: str) -> dict[str, np.ndarray]:
    """The parameters by name. Raises ValueError if vector and layout do not fit."""
    shapes, theta, start = json.loads(layout), {}, 0
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape))
        theta[name] = flat[start:stop].reshape(shape)
        start = stop
    if start != len(flat):
        raise ValueError(f"{len(flat)} parameters do not fit the layout {layout}")
    return theta
