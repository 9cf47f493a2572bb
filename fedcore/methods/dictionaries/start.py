"""Starts of a run: atoms of an earlier run or of a file; and the sums that a run of a series keeps from earlier runs.

If new clients have come and the earlier ones are unchanged, only the new clients answer. The sums of the run before
represent the earlier clients, with the weight `forgetting`, coded by the atoms of that time (Mairal, Bach, Ponce,
Sapiro 2010 do so from sample to sample). If any of their samples have changed, or no client is new, all clients answer,
from the atoms of the run before.

Numbers of atoms, of atoms of a code and of rounds, where the settings let them depend on the features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.methods.dictionary_learning.operators import given_global
from fedcore.rounds.method import PublicFacts

GLOBAL_ATOMS = 100
OVERCOMPLETE = 2  # global atoms at most, for each feature
PRIVATE_ATOMS, PRIVATE_SPARSITY = 64, 10  # noise costs the square of the number of atoms
LOCAL_SHARE = 5  # global atoms for each local one
SPARSITY = 20
FEATURES_PER_CODE = 4  # a code of more atoms than this share of the features compresses nothing
SHORT = 4  # a number of atoms of a code that is asked for, up to which codes of far fewer atoms are of no use
WIDEST = 4  # ratio of the largest and the least number of atoms of a code while learning
ROUNDS, PRIVATE_ROUNDS = 60, 20


def global_atoms_of(config: DictionariesConfig, features: int) -> int:
    """Global atoms rg, from settings and public facts alone."""
    if config.global_atoms is not None:
        return config.global_atoms
    if config.atoms is not None:
        return config.atoms - config.atoms // (LOCAL_SHARE + 1)
    return min(PRIVATE_ATOMS if config.private else GLOBAL_ATOMS, OVERCOMPLETE * features)


def atoms_of(config: DictionariesConfig, features: int, common: int = 0) -> int:
    """Atoms r of a client's dictionary at most: global and local ones. common: global ones, where these are known."""
    if config.atoms is not None:
        return config.atoms
    count = common or global_atoms_of(config, features)
    if config.private:  # which learns no local atoms; a client has some if they are asked for
        return count
    return count + -(-count // LOCAL_SHARE)


def local_atoms_of(config: DictionariesConfig, state: DictionariesState, count: int) -> int:
    """Local atoms of a client at most, next to `count` global ones. A private run learns none; clients have some only
    where they are asked for. A run that found its sizes says how many."""
    if state.structured:
        return state.width
    if config.private and config.atoms is None:
        return 0
    return max(atoms_of(config, state.features, count) - count, 0)


def sparsity_of(config: DictionariesConfig, features: int) -> int:
    """Atoms k of a sample's code."""
    most = PRIVATE_SPARSITY if config.private else SPARSITY
    return config.sparsity or max(min(most, features // FEATURES_PER_CODE), 1)


def sizes_are_open(config: DictionariesConfig) -> bool:
    """Whether a run may find its sizes: no setting fixes one, all clients answer, and it is not private."""
    fixed = (config.atoms, config.global_atoms, config.sparsity, config.least_sparsity, config.rounds)
    return all(size is None for size in fixed) and config.participation == 1 and not config.private


def code_length(config: DictionariesConfig, state: DictionariesState) -> int:
    """Atoms k of a sample's code once atoms are learnt: as the run found, else as `sparsity_of` says."""
    return state.sparsity if state.structured else sparsity_of(config, state.features)


def warning(config: DictionariesConfig, state: DictionariesState) -> str:
    """Of codes that are as long as the shared dictionary, for people; else empty."""
    length, atoms = code_length(config, state), len(state.common)
    if not state.begun or length < atoms:
        return ""
    return (
        f"warning: codes may have {length} atoms, and there are {atoms} shared ones: such codes leave nothing out, so "
        "that shared atoms mean no more than any others of the same span; lower sparsity"
    )


def least_sparsity_of(config: DictionariesConfig, features: int) -> int:
    """Least k of a sample while global atoms are learnt, at most `sparsity_of`."""
    k = sparsity_of(config, features)
    short = k - 1 if config.sparsity is not None and k <= SHORT else k // WIDEST
    return min(config.least_sparsity or max(short, 1), k)


def rounds_of(config: DictionariesConfig) -> int:
    """Rounds T."""
    return config.rounds or (PRIVATE_ROUNDS if config.private else ROUNDS)


RELEASED = "released"  # of a warm start: these very clients have made the atoms, in a private run
CODE_LENGTH = "code_length"  # of a warm start: atoms of a code that the run found
SAME = 1e-9  # share by which sums of the same numbers differ at most, if they are added in another order
SERIES_NAMES = ("sums_codes", "sums_samples", "known")


# --- warm starts ----------------------------------------------------------------------------------------------------


def warm_start_of(state: DictionariesState) -> dict[str, np.ndarray]:
    """global: (rg, d) the global dictionary; of private runs also RELEASED; of those that found their sizes
    CODE_LENGTH, (1,); of others the sums that SERIES_NAMES are.
    Raises ConfigError before the first round."""
    if not state.begun:
        raise ConfigError("stopped before it had a global dictionary.", "Name a run that has.")
    if len(state.scales):
        return {"global": state.common, RELEASED: np.ones(1)}
    if state.structured:
        return {"global": state.common, CODE_LENGTH: np.array([state.sparsity], np.float64)}
    return {"global": state.common} | (series_arrays_of(state) if state.cap > 0 else {})


def checked_warm_start(
    config: DictionariesConfig, arrays: Mapping[str, np.ndarray], what: str, features: int
) -> dict[str, np.ndarray]:
    """The array 'global' as float64 (rg, d), atoms scaled to norm 1, and those of a series. Raises ConfigError, naming
    `what`."""
    if "background" in arrays:
        raise ConfigError(f"{what} has the background of a camera.", "Train the method background from it.")
    common = given_global(arrays, what, lambda common: _check_shape(config, common, what, features))
    if config.private:
        return {"global": common, **({RELEASED: np.ones(1)} if RELEASED in arrays else {})}
    if CODE_LENGTH in arrays and sizes_are_open(config):
        return {"global": common, CODE_LENGTH: checked_length(arrays[CODE_LENGTH], what)}
    return {"global": common} | checked_series(arrays, what, (len(common), features))


def checked_length(length: np.ndarray, what: str) -> np.ndarray:
    """(1,) float64, at least 1. Raises ConfigError, naming `what`."""
    if length.shape != (1,) or length.dtype.kind not in "iuf" or not 1 <= float(length[0]) <= SPARSITY:
        raise ConfigError(f"{CODE_LENGTH!r} of {what} is not one number from 1 to {SPARSITY}.")
    return np.asarray(length, np.float64)


def given_atoms(config: DictionariesConfig, public: PublicFacts) -> np.ndarray:
    """(rg, d) of the warm start; (0, d) if there is none. Raises ConfigError if they are of another shape."""
    if public.warm_start is None or "global" not in public.warm_start:
        return np.zeros((0, public.features))
    common = np.asarray(public.warm_start["global"], np.float64)
    _check_shape(config, common, "the start", public.features)
    return common


def _check_shape(config: DictionariesConfig, common: np.ndarray, what: str, features: int) -> None:
    """Raises ConfigError unless it is (rg, d); without global_atoms any rg is as good that atoms has room for."""
    open_number = config.global_atoms is None and common.ndim == 2 and len(common)
    shape = (len(common) if open_number else global_atoms_of(config, features), features)
    if common.shape != shape:
        raise ConfigError(f"'global' of {what} has shape {common.shape}, and the run needs {shape}.")
    most = atoms_of(config, features, len(common))
    if len(common) > most:
        raise ConfigError(f"{what} has {len(common)} atoms, and clients' dictionaries {most}.", "Raise atoms.")


# --- series ---------------------------------------------------------------------------------------------------------


def series_arrays_of(state: DictionariesState) -> dict[str, np.ndarray]:
    """As arrays of a warm start: sums of codes (rg, rg), of codes and samples (rg, d), and (3,) how many clients and
    samples they are of, and the samples' prints; none before there are any, or where prints are not finite."""
    there = state.round and len(state.xx) and state.population and state.rows
    if not there or not math.isfinite(state.prints):
        return {}
    xx, xy = state.xx, state.xy
    if state.remembers:
        xx, xy = state.old_xx + xx, state.old_xy + xy
    known = np.array([state.population, state.rows, state.prints], np.float64)
    return dict(zip(SERIES_NAMES, (xx, xy, known), strict=True))


def checked_series(arrays: Mapping[str, np.ndarray], what: str, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """The arrays of a series as float64; empty if there are none. shape: (rg, d). Raises ConfigError, naming `what`."""
    if not any(name in arrays for name in SERIES_NAMES):
        return {}
    shapes = dict(zip(SERIES_NAMES, ((shape[0], shape[0]), shape, (3,)), strict=True))
    for name, expected in shapes.items():
        array = arrays.get(name)
        if array is None or array.dtype.kind not in "iuf" or array.shape != expected or not np.isfinite(array).all():
            raise ConfigError(f"{what} has no array {name!r} of finite numbers of shape {expected}.")
    return {name: np.asarray(arrays[name], np.float64) for name in SERIES_NAMES}


def begun_series(state: DictionariesState, arrays: Mapping[str, np.ndarray], forgetting: float) -> DictionariesState:
    """The first state of a run with what is remembered of the series, if clients have come since."""
    if not forgetting or not all(name in arrays for name in SERIES_NAMES):
        return state
    xx, xy, known = (np.asarray(arrays[name], np.float64) for name in SERIES_NAMES)
    clients, rows = (int(number) for number in known[:2])
    if not 0 < clients < state.population or len(xx) != len(state.common):
        return state
    old_xx, old_xy = forgetting * xx, forgetting * xy
    return replace(state, old_xx=old_xx, old_xy=old_xy, seen=clients, seen_rows=rows, seen_prints=float(known[2]))


def after_count(state: DictionariesState, rows: float, prints: float) -> DictionariesState:
    """The state once it is known what samples the clients of earlier runs have now: sums of others are dropped."""
    same = int(rows) == state.seen_rows and math.isclose(prints, state.seen_prints, rel_tol=SAME)
    if not state.remembers or same:
        return state
    none = np.zeros((0, 0))
    return replace(state, old_xx=none, old_xy=none, seen=0, seen_rows=0)
