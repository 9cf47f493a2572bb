"""The global atoms as scikit-learn takes a dictionary, with the codes of its own that are nearest to the method's."""

from __future__ import annotations

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.sizes import sparsity_of
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.rounds.fitted import FittedDictionary

SOFT = (
    "codes are those of the run drawn towards zero by the threshold: scikit-learn has soft thresholds and no hard ones"
)


def fitted_model_of(config: DictionariesConfig, state: DictionariesState) -> FittedDictionary:
    """Samples are coded with the global atoms alone; clients' own atoms are not in the state.

    Atoms are scaled to norm 1 for matching pursuit, which scikit-learn means for such. Raises RunError if the run has
    no global atoms.
    """
    atoms = state.common
    if not state.begun or not len(atoms):
        raise RunError("the run has no global atoms.", "Resume it, or train with global_atoms of 1 or more.")
    if config.code == "threshold":
        return FittedDictionary(atoms, "threshold", None, config.threshold, state.round, SOFT)
    if config.code == "lasso":
        return FittedDictionary(atoms, "lasso_cd", None, config.alpha, state.round)
    norms = np.linalg.norm(atoms, axis=1, keepdims=True)
    unit = atoms / np.where(norms > 0, norms, 1.0)
    return FittedDictionary(unit, "omp", min(sparsity_of(config, unit.shape[1]), *unit.shape), None, state.round)
