"""Warm starts: a run that begins with a global dictionary of an earlier run, or of a file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries import series
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.operators import polar
from fedcore.methods.dictionaries.sizes import atoms_of, global_atoms_of
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.rounds.method import PublicFacts

RELEASED = "released"  # of a warm start: these very clients have made the atoms, in a private run


def warm_start_of(state: DictionariesState) -> dict[str, np.ndarray]:
    """global: (rg, d) the global dictionary; of private runs also RELEASED; of others the sums that `series` names, of
    the learner that has any. Raises ConfigError before the first round."""
    if not state.begun:
        raise ConfigError("stopped before it had a global dictionary.", "Name a run that has.")
    if len(state.scales):
        return {"global": state.common, RELEASED: np.ones(1)}
    return {"global": state.common} | (series.arrays_of(state) if state.cap > 0 else {})


def checked_warm_start(
    config: DictionariesConfig, arrays: Mapping[str, np.ndarray], what: str, features: int
) -> dict[str, np.ndarray]:
    """The array 'global' as float64 (rg, d), atoms scaled to norm 1, and those of `series`. Raises ConfigError, naming
    `what`."""
    if "background" in arrays:
        raise ConfigError(f"{what} has the background of a camera.", "Train the method background from it.")
    common = arrays.get("global")
    if common is None or common.dtype.kind not in "iuf" or not np.isfinite(common).all():
        raise ConfigError(f"{what} has no array 'global' of finite numbers.")
    if config.automatic:
        raise ConfigError("a run from a given global dictionary needs global_atoms as a number.")
    _check_shape(config, common, what, features)
    common = np.asarray(common, np.float64)
    norms = np.linalg.norm(common, axis=1)
    if not (norms > 0).all():
        raise ConfigError(f"'global' of {what} has an atom of norm 0.")
    if config.private:
        return {"global": common / norms[:, None], **({RELEASED: np.ones(1)} if RELEASED in arrays else {})}
    kept = series.checked(arrays, what, (len(common), features)) if config.nested else {}
    return {"global": common / norms[:, None]} | kept


def first_global_dictionary(config: DictionariesConfig, public: PublicFacts) -> np.ndarray:
    """(rg, d) from the warm start; (0, d) if the settings ask for none. Raises ConfigError if none fits.

    start = "sums" takes one where there is one, so that the first run of a series and the later ones are asked alike.
    """
    if config.start == "local" or config.start == "sums" and public.warm_start is None:
        return np.zeros((0, public.features))
    if public.warm_start is None or "global" not in public.warm_start:
        raise ConfigError(
            'start = "given" needs a global dictionary to start from.',
            "Name a start: an earlier run, or a file with an array 'global'.",
        )
    common = given_atoms(config, public)
    return polar(common) if config.robust else common


def given_atoms(config: DictionariesConfig, public: PublicFacts) -> np.ndarray:
    """(rg, d) of a warm start that there is. Raises ConfigError if they are of another shape."""
    assert public.warm_start is not None
    common = np.asarray(public.warm_start["global"], np.float64)
    _check_shape(config, common, "the start", public.features)
    return common


def _check_shape(config: DictionariesConfig, common: np.ndarray, what: str, features: int) -> None:
    """Raises ConfigError unless it is (rg, d); with global_atoms = "auto" any rg is as good that atoms has room for."""
    open_number = config.global_atoms == "auto" and common.ndim == 2 and len(common)
    shape = (len(common) if open_number else global_atoms_of(config, features), features)
    if common.shape != shape:
        raise ConfigError(f"'global' of {what} has shape {common.shape}, and the run needs {shape}.")
    most = atoms_of(config, features, len(common) if config.nested else 0)
    if len(common) > most:
        raise ConfigError(f"{what} has {len(common)} atoms, and clients' dictionaries {most}.", "Raise atoms.")
