"""Means and covariances of one Gaussian in a few clipped rounds. privacy: none (simulated noise).

Biswas, Dong, Kamath, Ullman 2020 (CoinPress), for add/remove of one record and zCDP. Differences: rows are clipped at a
quantile of all n rows, not of a single one, inputs are not changed, and n is a noised count that the caller gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.reproduce.private_gmm_theory.mechanisms import Ball, clipped, present, scale_of_rho, symmetric_noise

SHARES = {"count": 0.05, "coarse": 0.15, "covariance": 0.4, "mean": 0.4}  # of a leaf's rho


@dataclass(frozen=True, slots=True)
class Component:
    """One Gaussian. rows: a noised count; mean: (d,); covariance: (d, d), positive definite."""

    rows: float
    mean: np.ndarray
    covariance: np.ndarray


def norm_quantile(d: int, beta: float) -> float:
    """gamma(d, beta) = sqrt(d + 2 sqrt(d ln(1/beta)) + 2 ln(1/beta)): |N(0, I_d)| exceeds it with probability at most
    beta (Laurent and Massart 2000)."""
    log = math.log(1 / beta)
    return math.sqrt(d + 2 * math.sqrt(d * log) + 2 * log)


def split_rho(rho: float, rounds: int) -> list[float]:
    """A quarter for all rounds but the last together, the rest for the last."""
    return [rho] if rounds == 1 else [0.25 * rho / (rounds - 1)] * (rounds - 1) + [0.75 * rho]


def private_mean(
    rows: np.ndarray, ball: Ball, count: float, rhos: Sequence[float], rng: np.random.Generator, *, beta: float = 0.05
) -> Ball:
    """CPMean: the mean of N(mu, I) with mu in the ball, and a ball that holds mu with probability about 1 - beta.

    count: a noised number of rows, at least 1. Costs the sum of rhos: every round releases a sum of rows clipped to
    R_t = r + gamma(d, beta/n) about the last centre, of L2 sensitivity R_t.
    """
    d, count = rows.shape[1], max(count, 1.0)
    quantile = norm_quantile(d, beta / (len(rhos) * count))
    for rho in rhos:
        reach = Ball(ball.centre, ball.radius + quantile)
        scale = scale_of_rho(reach.radius, rho)
        step = (clipped(rows, reach).sum(axis=0) + scale * rng.standard_normal(d)) / count
        radius = norm_quantile(d, beta / len(rhos)) * math.sqrt(1 / count + (scale / count) ** 2)
        ball = Ball(ball.centre + step, radius)
    return ball


def private_covariance(
    rows: np.ndarray, upper: float, count: float, rhos: Sequence[float], rng: np.random.Generator, *, beta: float = 0.05
) -> np.ndarray:
    """CPCov: (d, d), positive semidefinite, the covariance of N(0, Sigma) with Sigma <= upper * I.

    Costs the sum of rhos: every round releases the second moment of whitened rows clipped to gamma(d, beta/n), of L2
    sensitivity gamma^2.
    """
    d, count = rows.shape[1], max(count, 1.0)
    quantile = norm_quantile(d, beta / (len(rhos) * count))
    ball, whiten = Ball(np.zeros(d), quantile), np.eye(d) / math.sqrt(upper)
    data = rows[present(rows)]
    for number, rho in enumerate(rhos):
        z = clipped(data @ whiten.T, ball)
        scale = scale_of_rho(quantile**2, rho)
        moment = (z.T @ z + symmetric_noise(d, scale, rng)) / count
        values, vectors = np.linalg.eigh(moment)
        values = np.maximum(values, 0.0)
        if number + 1 < len(rhos):
            slack = 2 * math.sqrt(d / count) + d / count + 2 * math.sqrt(d) * scale / count
            whiten = (vectors / np.sqrt(values + slack)) @ vectors.T @ whiten
    back = np.linalg.inv(whiten)
    found = back @ ((vectors * values) @ vectors.T) @ back.T
    return (found + found.T) / 2


def private_gaussian(
    rows: np.ndarray,
    ball: Ball,
    sigma_min: float,
    sigma_max: float,
    rho: float,
    rng: np.random.Generator,
    *,
    beta: float = 0.05,
    mean_rounds: int = 3,
    covariance_rounds: int = 3,
) -> Component | None:
    """A leaf: noised count, coarse mean, covariance about it, mean again in whitened coordinates. rho-zCDP in total.

    ball: holds the mean; sigma_min^2 I <= Sigma <= sigma_max^2 I. Without pairs of records, which few cells keep whole
    (slip S2); the coarse mean's error adds its square to the covariance. None if the noised count is below 2.
    """
    part = {name: share * rho for name, share in SHARES.items()}
    count = float(present(rows).sum() + scale_of_rho(1.0, part["count"]) * rng.standard_normal())
    if count < 2:
        return None
    scaled = Ball(ball.centre / sigma_max, ball.radius / sigma_max)
    coarse = private_mean(rows / sigma_max, scaled, count, split_rho(part["coarse"], mean_rounds), rng, beta=beta)
    centre = coarse.centre * sigma_max
    covariance = private_covariance(
        rows - centre, sigma_max**2, count, split_rho(part["covariance"], covariance_rounds), rng, beta=beta
    )
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, sigma_min**2)
    whiten, colour = (vectors / np.sqrt(values)) @ vectors.T, (vectors * np.sqrt(values)) @ vectors.T
    start = Ball(np.zeros(rows.shape[1]), coarse.radius * sigma_max / math.sqrt(float(values.min())))
    mean = private_mean((rows - centre) @ whiten.T, start, count, split_rho(part["mean"], mean_rounds), rng, beta=beta)
    return Component(count, centre + colour @ mean.centre, (vectors * values) @ vectors.T)
