"""What the server says to the clients. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class StartMessage:
    """Asks every client for its own fit, of which some clients send theirs.

    compared: a client sends its fit if its uniform number is at most this
    """

    compared: float
    seed: int


@dataclass(frozen=True, slots=True)
class TrialMessage:
    """One round of the trial of robust weights (`fedcore.methods.mixed_effects.robust_trial`).

    chains: (10, p + p p + 1); judged: whether clients judge the fits, instead of going on with them
    """

    chains: np.ndarray
    smallest: float
    judged: bool


@dataclass(frozen=True, slots=True)
class RegressionMessage:
    """One round of one component: `fedcore.methods.mixed_effects.regression.Common`, units of the data.

    mean: (p,); between: (p, p); noise, smallest: of the noise variance; robust: whether weights are
    """

    mean: np.ndarray
    between: np.ndarray
    noise: float
    smallest: float
    robust: bool


@dataclass(frozen=True, slots=True)
class MixtureMessage:
    """One round of several components (`fedcore.methods.mixed_effects.mixture_rounds`), of F fits.

    number:  from 1, in the trial and again after it
    fits:    (F, R, p + p p + 1); robust: of each fit
    held:    whether rows that clients hold out are left out; judged: whether the fits are judged by them
    again:   whether clients also start from the common coefficients
    orders:  (K, R) int32 order of every client's components, in round 1 if all starts were compared; else (0, R)
    centres: (R, p) the common coefficients
    """

    number: int
    seed: int
    fits: np.ndarray
    smallest: float
    robust: tuple[bool, ...]
    held: bool
    judged: bool
    again: bool
    orders: np.ndarray
    centres: np.ndarray


Message = StartMessage | TrialMessage | RegressionMessage | MixtureMessage
