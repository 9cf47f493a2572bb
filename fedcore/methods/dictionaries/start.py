"""Warm starts: a run that begins with a global dictionary of an earlier run, or of a file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.operators import polar
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.rounds.method import PublicFacts


def warm_start_of(state: DictionariesState) -> dict[str, np.ndarray]:
    """global: (rg, d) the global dictionary. Raises ConfigError before the matching."""
    if state.phase == "start":
        raise ConfigError("stopped before it had a global dictionary.", "Name a run that has.")
    return {"global": state.common}


def checked_warm_start(
    config: DictionariesConfig, arrays: Mapping[str, np.ndarray], what: str, features: int
) -> dict[str, np.ndarray]:
    """The array 'global' as float64 (rg, d), atoms scaled to norm 1. Raises ConfigError, naming `what`."""
    common = arrays.get("global")
    if common is None or common.dtype.kind not in "iuf" or not np.isfinite(common).all():
        raise ConfigError(f"{what} has no array 'global' of finite numbers.")
    if config.automatic:
        raise ConfigError("a run from a given global dictionary needs global_atoms as a number.")
    shape = (config.global_atoms, features)
    if common.shape != shape:
        raise ConfigError(f"'global' of {what} has shape {common.shape}, and the run needs {shape}.")
    common = np.asarray(common, np.float64)
    norms = np.linalg.norm(common, axis=1)
    if not (norms > 0).all():
        raise ConfigError(f"'global' of {what} has an atom of norm 0.")
    return {"global": common / norms[:, None]}


def first_global_dictionary(config: DictionariesConfig, public: PublicFacts) -> np.ndarray:
    """(rg, d) from the warm start; (0, d) if the settings ask for none. Raises ConfigError if none fits."""
    if config.start != "given":
        return np.zeros((0, public.features))
    if public.warm_start is None or "global" not in public.warm_start:
        raise ConfigError(
            'start = "given" needs a global dictionary to start from.',
            "Name a start: an earlier run, or a file with an array 'global'.",
        )
    common = np.asarray(public.warm_start["global"], np.float64)
    wanted = (config.global_atoms, public.features)
    if common.shape != wanted:
        raise ConfigError(f"'global' of the start has shape {common.shape}, and the run needs {wanted}.")
    return polar(common) if config.robust else common
