"""What a run of histograms has learnt, for people: the centres by the tokens that distinguish them from the mean.

What a private run released is known up to noise of a known size. With S the released sums of a cell, whose token j has
noise of the variance s^2 w_j (w sums to 1), and N = sum S its noisy count,

    share of a token, p_j = S_j / N      var p_j = s^2 (w_j - 2 p_j w_j + p_j^2) / N^2
    share of a cell                      as `fedcore.methods.mixture_models.tables.share_errors` says, with noise s of N

to first order in s / N. These are errors of what was released of the cell, as if the same clients had been asked again
about the same centres. Shares after denoising have none: denoising takes noise off and adds a bias of
unknown size.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.histograms.pool import Pool
from fedcore.methods.histograms.state import HistogramsState
from fedcore.methods.mixture_models.tables import known, share_errors
from fedcore.rounds.results import Column, Features, Profiles, Result, Table, distinguishing, heaviest

TOP = 8  # tokens of a profile
MOST_FREQUENT = 100  # tokens of the mean that are listed
CAPTION = "The tokens whose share of a centre exceeds their share of the mean the most."
DENOISED = "Released: the share as it was published, with its noise; share: what was made of it by denoising."


def result_of(state: HistogramsState, features: Features) -> Result:
    """Centres with their shares, the tokens that distinguish them from the mean, and the most frequent tokens of the
    mean; empty before the first centres, and of a run without centres before its end."""
    centres, mean = state.centres, state.mean
    if not centres.size or not (np.isfinite(centres).all() and np.isfinite(mean).all()):
        return Result()
    if state.round == 0:
        return Result((_frequent(state, features),)) if state.phase == "done" else Result()
    counts = np.maximum(state.counts, 0.0)  # noised counts may be negative
    weights = counts / counts.sum() if counts.shape == centres.shape[:1] and counts.sum() > 0 else None
    order = heaviest(len(centres), weights, len(centres))
    found = [distinguishing(centres[k], mean, TOP)[0] for k in order]
    tokens = [[features.name(int(i), "token") for i in own] for own in found]
    shares = None if weights is None else [float(weights[k]) for k in order]
    pool = _released(state)
    of_shares = None
    if pool is not None and weights is not None:
        of_shares = known(np.where(counts > 0, share_errors(counts, pool.count_noise), np.nan)[order])
    table = Table(
        "profiles",
        "Centres",
        (
            Column("centre", [int(k) for k in order]),
            Column("share", shares or [None] * len(centres), "%", of_shares),
            Column("tokens that distinguish it", tokens),
        ),
    )
    tables = (table, _telling(state, features, order, found), _frequent(state, features))
    return Result(tables, (Profiles("profiles", "Profiles of the centres", CAPTION, centres, mean, weights),))


def _released(state: HistogramsState) -> Pool | None:
    """The sums of the cells of a private run; None if they are not kept, or those of other cells."""
    pool = state.history.cells
    return pool if len(pool) == len(state.centres) and (pool.weights > 0).all() else None


def _telling(state: HistogramsState, features: Features, order: list[int], found: list[np.ndarray]) -> Table:
    """The tokens that tell the centres from the mean, with their shares."""
    cells = np.array([k for k, own in zip(order, found, strict=True) for _ in own], np.int64)
    tokens = np.concatenate([np.zeros(0, np.int64), *found]).astype(np.int64)
    columns = [
        Column("centre", cells.tolist()),
        Column("token", [features.name(int(i), "token") for i in tokens]),
        Column("share", state.centres[cells, tokens].tolist(), "%"),
        Column("share of the mean", state.mean[tokens].tolist(), "%"),
    ]
    pool = _released(state)
    if pool is not None:
        columns.insert(3, _released_shares(state, pool, cells, tokens))
    note = "" if pool is None else DENOISED
    return Table("tokens", "Tokens that distinguish the centres", tuple(columns), note)


def _released_shares(state: HistogramsState, pool: Pool, cells: np.ndarray, tokens: np.ndarray) -> Column:
    """Shares of tokens in cells (n,) as they were released; None of a token that a reduction left out."""
    place, there = tokens, np.ones(len(tokens), bool)
    if len(state.kept):
        place = np.minimum(np.searchsorted(state.kept, tokens), len(state.kept) - 1)
        there = state.kept[place] == tokens
    counts, noise = pool.counts[cells], pool.count_noise[cells]
    shares, w = pool.one_release[cells, place] / counts, state.metric[place]
    errors = noise / np.abs(counts) * np.sqrt(w - 2 * shares * w + shares**2)
    there &= counts > 0
    values = [float(share) if kept else None for share, kept in zip(shares, there, strict=True)]
    return Column("released", values, "%", known(np.where(there, errors, np.nan)))


def _frequent(state: HistogramsState, features: Features) -> Table:
    """The most frequent tokens of the mean."""
    tokens = np.argsort(-state.mean, kind="stable")[:MOST_FREQUENT]
    columns = [
        Column("token", [features.name(int(i), "token") for i in tokens]),
        Column("share", state.mean[tokens].tolist(), "%"),
    ]
    every, variances = state.history.everybody, state.history.noise
    note = ""
    if every.sums.shape == (1, len(state.mean)) and float(every.sums.sum()) > 0 and variances.any():
        total = float(every.sums.sum())
        shares = every.sums[0, tokens] / total
        squares = variances[tokens] * (1 - 2 * shares) + shares**2 * variances.sum()
        columns.append(Column("released", shares.tolist(), "%", known(np.sqrt(squares) / total)))
        note = DENOISED
    title = "The mean" if len(tokens) == len(state.mean) else f"The {len(tokens)} most frequent tokens of the mean"
    return Table("mean", title, tuple(columns), note)
