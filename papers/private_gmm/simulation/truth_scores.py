"""Scores of an estimated mixture against the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from fedcore.papers.private_gmm.simulation.mixtures import Truth

from fedcore.methods.mixture_models.alignment import matching


@dataclass(frozen=True, slots=True)
class Scores:
    """An estimate after the best matching of components (Hungarian, by means in units of sigma_i).

    order: (k,) int64, estimate[order[i]] is component i; mean_errors: (k,) |mean - mu_i| / sigma_i; weight_error:
    largest |w - w_i|, None without weights; trace_error: largest |tr S / tr Sigma_i - 1|, None without covariances;
    accuracy: share of rows whose nearest estimated mean is their component's, None without rows.
    """

    order: np.ndarray
    mean_errors: np.ndarray
    weight_error: float | None
    trace_error: float | None
    accuracy: float | None


def scores(
    truth: Truth,
    means: np.ndarray,
    *,
    weights: np.ndarray | None = None,
    covariances: np.ndarray | None = None,
    rows: np.ndarray | None = None,
    labels: np.ndarray | None = None,
) -> Scores:
    """An estimate beside the truth. means: (k, d); weights: (k,); covariances: (k, d, d); rows: (n, d) with their true
    labels (n,). Raises ValueError for another number of components than the truth has."""
    sigmas = truth.sigmas
    order = matching(means, truth.means)
    errors = np.linalg.norm(means[order] - truth.means, axis=1) / sigmas
    weight = None if weights is None else float(np.abs(np.asarray(weights)[order] - truth.weights).max())
    trace = None
    if covariances is not None:
        found = np.trace(np.asarray(covariances)[order], axis1=1, axis2=2)
        trace = float(np.abs(found / np.trace(truth.covariances, axis1=1, axis2=2) - 1).max())
    accuracy = None
    if rows is not None and labels is not None:
        accuracy = float(np.mean(nearest(rows, means[order]) == labels))
    return Scores(order.astype(np.int64), errors, weight, trace, accuracy)


def nearest(rows: np.ndarray, means: np.ndarray) -> np.ndarray:
    """(n,) int64, the nearest of the means (k, d) to each row (n, d); the first one if several are."""
    centre = means.mean(axis=0)  # differences stay exact enough for means far from 0
    x, m = rows - centre, means - centre
    return np.argmin((m * m).sum(axis=1)[None, :] - 2 * (x @ m.T), axis=1).astype(np.int64)
