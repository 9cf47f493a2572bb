"""Whether clients that are far out should count less, decided by held-out rows (`robust = "auto"`).

Each client splits its rows into five folds. For each fold, m, D and s2 are fitted without the fold's rows by
`TRIAL_ROUNDS` rounds twice, with robust weights and with t = 1: ten fits side by side, each with separate sums. Then,
with the density p of the fold's rows given the client's other rows,

    gain = sum over folds and clients t_k [log p(robust) - log p(t = 1)] / sum t_k n_k         nats a row

where t_k is the weight of the client in the robust fit, so that rows of hostile clients do not decide. All clients
count fully from then on if gain < -`CLEARLY`. Otherwise t stays: where the two are equal, it is the safe choice.

A density given the others is that of all rows over that of the others, so square systems suffice.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.mixed_effects import regression
from fedcore.methods.mixed_effects.regression import Common, Systems
from fedcore.methods.mixture_models.local_steps import Rows
from fedcore.methods.mixture_models.row_draws import FOLDS, folds

TRIAL_ROUNDS = 20
CLEARLY = 0.01
HELD = "gradient_em/held_out"  # the name of a stream stays, so that runs keep their bits
PREFIX = "rest_"


# --- clients ----------------------------------------------------------------------------------------------------------


def systems_without_folds(rows: Rows, seed: int, first: int) -> dict[str, np.ndarray]:
    """What clients remember for the trial: the systems (C, FOLDS, ...) of their rows without each fold."""
    sizes = np.diff(rows.ptr)
    fold = folds(seed, HELD, first + np.arange(len(sizes)), sizes)
    each = [regression.systems(rows.where(fold != f)) for f in range(FOLDS)]
    return {PREFIX + name: np.stack([getattr(own, name) for own in each], axis=1) for name in Systems._fields}


def without(memory: dict[str, np.ndarray], fold: int) -> Systems:
    return Systems(**{name: memory[PREFIX + name][:, fold] for name in Systems._fields})


def trial_sums(memory: dict[str, np.ndarray], chains: np.ndarray, smallest: float) -> np.ndarray:
    """(2 FOLDS, p p + p + 5): `regression.round_sums` of each fit."""
    p, found = memory["target"].shape[1], []
    for chain in range(2 * FOLDS):
        own = without(memory, chain % FOLDS)
        posterior = regression.posteriors(own, Common.of_row(chains[chain], p, smallest), chain < FOLDS)
        found.append(regression.round_sums(own, posterior))
    return np.stack(found)


def gain_sums(memory: dict[str, np.ndarray], chains: np.ndarray, smallest: float) -> np.ndarray:
    """(2,) the two sums of the gain."""
    every = Systems(**{name: memory[name] for name in Systems._fields})
    p, sums = every.target.shape[1], np.zeros(2)
    for fold in range(FOLDS):
        own = without(memory, fold)
        robust, plain = (Common.of_row(chains[fold + shift], p, smallest) for shift in (0, FOLDS))
        shares = regression.posteriors(own, robust).shares
        gains = regression.log_density_of_others(every, own, robust)
        gains -= regression.log_density_of_others(every, own, plain, robust=False)
        sums += [shares @ gains, shares @ (every.n - own.n)]
    return sums


# --- server -----------------------------------------------------------------------------------------------------------


def next_chains(chains: np.ndarray, sums: np.ndarray, p: int, smallest: float) -> np.ndarray:
    """sums: of `trial_sums`, over all clients."""
    before = (Common.of_row(row, p, smallest) for row in chains)
    return np.stack([regression.next_common(common, own).row() for common, own in zip(before, sums, strict=True)])


def chosen(sums: np.ndarray) -> tuple[bool, float]:
    """Whether weights are to be robust, and the gain, nats a row. sums: of `gain_sums`, over all clients."""
    gain = float(sums[0] / sums[1]) if sums[1] > 0 else 0.0
    return gain >= -CLEARLY, gain
