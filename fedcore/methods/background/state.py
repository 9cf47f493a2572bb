"""What the next round needs. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

SMALLEST = 12  # pixels of the sides of a picture that is registered


@dataclass(frozen=True, slots=True)
class BackgroundState:
    """State after a round. d: pixels of a frame, of all channels; K: modes.

    phase:     "start" until the range of the pixels is known, "mean" unless an image was given, "rounds", "noise",
               "done"
    round:     number of rounds after the mean, those of the noise included
    seed:      of the streams of simulation randomness
    features:  d
    given:     whether the run began with the image of a warm start, or with one for each scene
    every:     every k-th client shows its scene
    height, width: of a picture; 0 if rows are none
    shaken:    whether frames are registered (`fedcore.methods.background.shakes`)
    clients, rows: those with frames, and their frames
    images:    (1 + K, d) the background and its modes; (0, d) before there is one
    energies:  (K,) mean squares of the codes of the modes
    low, high: range of the pixels, in the units of the data
    spread:    median spread of the frames about the image before the last round, -1 before there is any
    noise:     (d,) standard deviation of each pixel about its background; (0,) before there is any
    leaders:   (S, G) signatures of several scenes (`fedcore.methods.background.scenes`); (0, 0) for a single one.
               Several have their images, energies and noise one after the other, and spread is their median
    modes, spreads, shakes: (S,) of each of several scenes; shakes is 1 where frames are registered
    """

    phase: str
    round: int
    seed: int
    features: int
    images: np.ndarray
    given: bool = False
    clients: float = 0.0
    rows: float = 0.0
    energies: np.ndarray = field(default_factory=lambda: np.zeros(0))
    low: float = 0.0
    high: float = 0.0
    spread: float = -1.0
    noise: np.ndarray = field(default_factory=lambda: np.zeros(0))
    leaders: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    modes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    spreads: np.ndarray = field(default_factory=lambda: np.zeros(0))
    every: int = 1
    height: int = 0
    width: int = 0
    shaken: bool = False
    shakes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def picture(self) -> tuple[int, int] | None:
        """(height, width), or None if rows are no pictures, or too small ones to be registered."""
        return (self.height, self.width) if min(self.height, self.width) >= SMALLEST else None

    @property
    def registered(self) -> tuple[int, int] | None:
        """`picture` if frames are registered, else None."""
        return self.picture if self.shaken else None
