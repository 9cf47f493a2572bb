"""A start given from outside: public parameters by name, with centre and scale if rows are to be standardised.

What an earlier run ended with is such a start: its parameters in standardised units, its centre and its scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.messages import Scaling, plain_scaling
from fedcore.methods.federated_em.models import model_of
from fedcore.methods.mixture_models.contract import CurvedEM
from fedcore.rounds.method import PublicFacts

NOT_PARAMETERS = ("centre", "scale", "column_means", "part_scales")


def checked_arrays(arrays: Mapping[str, np.ndarray], what: str) -> dict[str, np.ndarray]:
    """The arrays as float64. Raises ConfigError unless they are finite numbers."""
    for name, array in arrays.items():
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise ConfigError(f"{name!r} of {what} is not an array of finite numbers.")
    return {name: np.asarray(array, np.float64) for name, array in arrays.items()}


def parameters(public: PublicFacts, model: CurvedEM) -> dict[str, np.ndarray]:
    """The model's parameters among the arrays of the start. Raises ConfigError if they are not parameters of it."""
    arrays = _arrays(public)
    theta = {name: np.asarray(array, np.float64) for name, array in arrays.items() if name not in NOT_PARAMETERS}
    return dict(model.check_theta(theta))


def scaling(config: FederatedEMConfig, public: PublicFacts) -> Scaling:
    """centre and scale of the start, both or neither. The variances after that are taken to be 1, and the means
    (which only models of counts use) to be `column_means` of the start.
    """
    arrays, d = _arrays(public), public.features
    mean = _vector(arrays, "column_means", d) if "column_means" in arrays else np.zeros(0)
    if "centre" not in arrays and "scale" not in arrays:
        return replace(plain_scaling(d * config.unit), mean=mean)
    centre, scale = (_vector(arrays, name, d) for name in ("centre", "scale"))
    if not (scale > 0).all():
        raise ConfigError("'scale' of the start must be positive.")
    return Scaling(centre, scale, np.ones(d), mean, np.zeros(0))


def model(config: FederatedEMConfig, public: PublicFacts) -> CurvedEM:
    """The model as public facts alone make it."""
    return model_of(config, scaling(config, public))


def part_scales(public: PublicFacts, q: int) -> np.ndarray:
    """(q,) the diagonal of D of a private run: `part_scales` of the start, or ones."""
    arrays = _arrays(public)
    scales = _vector(arrays, "part_scales", q) if "part_scales" in arrays else np.ones(q)
    if not (scales > 0).all():
        raise ConfigError("'part_scales' of the start must be positive.")
    return scales


def _arrays(public: PublicFacts) -> Mapping[str, np.ndarray]:
    if public.warm_start is None:
        raise ConfigError(
            'start = "given" needs parameters to start from.',
            "Name a start: the result of an earlier run, or a file of arrays.",
        )
    return public.warm_start


def _vector(arrays: Mapping[str, np.ndarray], name: str, length: int) -> np.ndarray:
    vector = np.asarray(arrays.get(name, np.zeros(0)), np.float64)
    if vector.shape != (length,) or not np.isfinite(vector).all():
        raise ConfigError(f"{name!r} of the start must be {length} finite numbers.", "Give centre and scale together.")
    return vector
