"""Warm starts of the model "background": the image and the modes of an earlier run, or of a file.

Gains, offsets and codes are found anew. The pass for the mean image is left out, and where the start has modes the
sketch, so that a few rounds are enough.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries.background_modes import in_order
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.state import DictionariesState


def warm_start_of(state: DictionariesState) -> dict[str, np.ndarray]:
    """background: (1 + K, d) the image, and its modes; energies: (K,); spread: (1,) of the frames about it.
    Raises ConfigError before the first round."""
    if state.round < 1:
        raise ConfigError("stopped before it had a background.", "Name a run that has.")
    return {"background": state.common, "energies": state.energies, "spread": np.array([state.spread])}


def checked_warm_start(
    config: DictionariesConfig, arrays: Mapping[str, np.ndarray], what: str, features: int
) -> dict[str, np.ndarray]:
    """The arrays 'background' as float64 (1 + K, d) or (d,), and, where K > 0, 'energies' (K,); K at most `modes`: the
    others, which have less energy, are left out; 'spread' (1,) above 0, if it is there. Raises ConfigError, naming
    `what`."""
    images, energies = arrays.get("background"), arrays.get("energies", np.zeros(0))
    for array in (images, energies):
        if array is None or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise ConfigError(f"{what} has no array 'background' of finite numbers, with its 'energies'.")
    assert images is not None
    images = np.atleast_2d(np.asarray(images, np.float64))
    if images.shape != (1 + energies.size, features) or energies.ndim != 1 or (energies <= 0).any():
        raise ConfigError(
            f"'background' of {what} has shape {images.shape} and {energies.size} energies, and the run needs an "
            f"image of {features} numbers and its modes, each with an energy above 0."
        )
    modes, energies = in_order(images[1:], images[0], np.asarray(energies, np.float64))
    start = {"background": np.concatenate([images[:1], modes[: config.modes]]), "energies": energies[: config.modes]}
    spread = np.asarray(arrays.get("spread", np.zeros(0)), np.float64).ravel()
    return start | ({"spread": spread} if spread.size == 1 and 0 < spread[0] < np.inf else {})
