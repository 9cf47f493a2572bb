"""What the server asks the clients of a private run for. Frozen; arrays and scalars only. Each names its release."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcore.rounds.messages import POSITIVE


@dataclass(frozen=True, slots=True)
class ScaleMessage:
    """Asks for the cell of a client's mean energy."""

    release: str


@dataclass(frozen=True, slots=True)
class MomentsMessage:
    """Asks for second moments. clip: their Frobenius norm."""

    release: str
    clip: float = field(metadata=POSITIVE)


@dataclass(frozen=True, slots=True)
class PrivateSumsMessage:
    """Asks for what the atoms leave, by atom.

    atoms:    (r, d), norm 1
    sparsity: atoms in a code
    scale:    typical mean energy of a client's rows
    clip:     norm of what is left, times codes
    """

    release: str
    atoms: np.ndarray
    sparsity: int
    scale: float = field(metadata=POSITIVE)
    clip: float = field(metadata=POSITIVE)


PrivateMessage = ScaleMessage | MomentsMessage | PrivateSumsMessage
