"""Warm starts of the model "background": the image of an earlier run, or of a file, in place of the pass for the mean.

Gains and offsets are found anew, and modes too: from those of an earlier run the rounds ended farther from the truth.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.state import DictionariesState


def warm_start_of(state: DictionariesState) -> dict[str, np.ndarray]:
    """background: (d,) the image. Raises ConfigError before the first round."""
    if state.round < 1:
        raise ConfigError("stopped before it had a background.", "Name a run that has.")
    return {"background": state.common[0]}


def checked_warm_start(
    config: DictionariesConfig, arrays: Mapping[str, np.ndarray], what: str, features: int
) -> dict[str, np.ndarray]:
    """The array 'background' as float64 (d,). Raises ConfigError, naming `what`."""
    image = arrays.get("background")
    if image is None or image.dtype.kind not in "iuf" or not np.isfinite(image).all():
        raise ConfigError(f"{what} has no array 'background' of finite numbers.")
    if image.shape != (features,):
        raise ConfigError(f"'background' of {what} has shape {image.shape}, and the run needs {(features,)}.")
    return {"background": np.asarray(image, np.float64)}
