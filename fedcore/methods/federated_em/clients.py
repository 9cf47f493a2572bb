"""What one leaf of clients computes in a run that is not private: mean statistics, compressed differences, memories.

Vectorised over the clients. A client's part depends on its own rows, its own memory, the message and its own named
random streams only. Weights w_i of the clients stand for the paper's 1 / n. Rows of weight 0 are not among the rows
here (`fedcore.methods.federated_em.row_weights`).

Source: Dieuleveut, Fort, Moulines, Robin 2021, Algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import scipy

from fedcore.errors import PopulationError
from fedcore.methods.federated_em import criteria, models
from fedcore.methods.federated_em.codecs import Codec, check_finite
from fedcore.methods.federated_em.coded_starts import kept_memory, of_start, with_number
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.differences import compressed_differences, treats_clients_singly
from fedcore.methods.federated_em.leaf_rows import LeafRows, rows_of
from fedcore.methods.federated_em.messages import (
    InitialMemoryMessage,
    MomentsMessage,
    ObjectiveMessage,
    RoundMessage,
    StartsMessage,
    TrialMessage,
)
from fedcore.methods.federated_em.weighted_sums import (
    Weights,
    sum_of_losses,
    total_of,
    weighted_loss,
    weighted_statistic,
    weighted_statistics_and_losses,
)
from fedcore.methods.mixture_models.contract import CurvedEM, is_sparse
from fedcore.methods.mixture_models.hidden_cells import HiddenCells, hidden_only, without_hidden
from fedcore.methods.mixture_models.validation import Split, training_part, validation_part
from fedcore.population.blocks import ClientBlock, RowsBlock
from fedcore.randomness import stream
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import FloatSum, Stack, Statistic, Statistics

SAMPLE = "federated_em/sample"


def _leaf_and_weights(
    config: FederatedEMConfig,
    message: TrialMessage | InitialMemoryMessage | RoundMessage | ObjectiveMessage,
    block: ClientBlock,
) -> tuple[LeafRows, Weights]:
    leaf = rows_of(block, message.scaling, config.rows_per_observation, config.weight_column)
    return leaf, Weights(config.by_rows, message.clients, message.rows)


# --- passes before and after the rounds -----------------------------------------------------------------------------


def moments(config: FederatedEMConfig, model: CurvedEM, message: MomentsMessage, block: ClientBlock) -> Statistics:
    """sizes: (3,) clients with rows, observations, sum of m_i^2. moments: (3, d) number, sum and sum of squares of the
    entries of every column (for tables: of every cell). held_back: rows, or cells of tables, that are held out, if
    there may be any. If rows have weights, these are added up instead of counted. sample: (n, 2 + d) if requested, the
    rows that were drawn: the uniform number of each, its relative weight, and its values. For token counts (n, 4), with
    the column and value of each count, and a count of 0 for a client without any.

    Raises PopulationError for rows that the model cannot read, and for invalid weights.
    """
    each, weighted = config.rows_per_observation, config.weight_column
    everything = leaf = rows_of(block, None, each, weighted)
    check_rows(config, model, block, everything)
    if message.split is not None:
        leaf = rows_of(training_rows(block, message.split), None, each, weighted)
    if config.fits_cells and not config.by_rows:  # the tables of a client have one vote together
        each_table = np.repeat(leaf.sizes, np.diff(leaf.observation_ptr))
        leaf = replace(leaf, weights=1.0 / each_table)
    sizes = np.array([np.count_nonzero(leaf.sizes), leaf.sizes.sum(), np.sum(leaf.sizes**2)])
    if is_sparse(leaf.y):
        total, squares = leaf.y.sum(axis=0), leaf.y.multiply(leaf.y).sum(axis=0)
        columns = np.vstack([np.full(leaf.y.shape[1], leaf.y.shape[0]), np.asarray(total), np.asarray(squares)])
    else:
        columns = np.zeros((3, each * leaf.y.shape[1]))
        for observations, rows in leaf.pieces():
            entries = np.asarray(rows, np.float64).reshape(-1, columns.shape[1])
            own = leaf.weights_at(observations)
            with np.errstate(over="ignore"):  # the server refuses an infinite sum
                columns += column_moments(entries, own)
    statistics: dict[str, Statistic] = {
        "sizes": FloatSum.at(block.leaf, sizes),
        "moments": FloatSum.at(block.leaf, columns),
    }
    if message.split is not None:
        others = rows_of(_other_rows(block, message.split), None, each, weighted)
        statistics["held_back"] = FloatSum.at(block.leaf, float(_held_back(others, message.split)))
    if message.sample:
        statistics["sample"] = Stack({block.first: _sample(config, message, block, leaf)})
    return statistics


def _sample(config: FederatedEMConfig, message: MomentsMessage, block: ClientBlock, leaf: LeafRows) -> np.ndarray:
    """Every row has its own uniform, named by its leaf and its place there, and is drawn if that is small enough.
    Drawing rows within every leaf, not whole leaves, keeps the sample honest where the rows are sorted."""
    generator, drawn = stream(message.seed, SAMPLE, block.leaf), list[np.ndarray]()
    for observations, rows in leaf.pieces():
        uniforms: np.ndarray = generator.random(int(rows.shape[0]))
        chosen = np.flatnonzero(uniforms < message.sample)
        counts: np.ndarray = np.ones(len(chosen))
        own = leaf.weights_at(observations)
        if own is not None:
            counts *= own[chosen]
        if not config.by_rows:
            counts /= leaf.sizes[np.searchsorted(leaf.ptr, observations.start + chosen, "right") - 1]
        heads, found = np.column_stack([uniforms[chosen], counts]), cast(Any, rows)[chosen]
        drawn.append(np.column_stack(_entries(heads, found) if is_sparse(found) else [heads, np.asarray(found)]))
    return np.concatenate(drawn) if drawn else np.zeros((0, 4 if is_sparse(leaf.y) else 2 + leaf.y.shape[1]))


def _entries(heads: np.ndarray, y: scipy.sparse.csr_matrix) -> list[np.ndarray]:
    """Heads, columns and values, one for each stored entry of the rows y (n, V); a row without any has a 0."""
    filled = np.maximum(np.diff(y.indptr), 1)
    own, ends = np.zeros((filled.sum(), 2)), np.cumsum(filled)
    stored = np.ones(len(own), bool)
    stored[ends[np.diff(y.indptr) == 0] - 1] = False
    own[stored] = np.column_stack([y.indices, y.data])
    return [np.repeat(heads, filled, axis=0), own]


def column_moments(entries: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """(3, d) number, sum and sum of squares of the finite entries (n, d) of every column, by the rows' weights (n,)."""
    seen = np.isfinite(entries)
    y = np.where(seen, entries, 0.0)
    if weights is None:
        return np.vstack([seen.sum(axis=0), y.sum(axis=0), np.sum(y * y, axis=0)])
    return np.vstack([weights @ seen, weights @ y, weights @ (y * y)])


def check_rows(config: FederatedEMConfig, model: CurvedEM, block: ClientBlock, leaf: LeafRows) -> None:
    """Raises PopulationError that names the client, and the row among its own."""
    torn = np.flatnonzero(np.diff(leaf.ptr) % leaf.rows_per_observation)
    if len(torn):  # rows of two clients would make one table
        raise PopulationError(
            f"client {block.first + torn[0]}: its rows do not make whole tables of {leaf.rows_per_observation} rows.",
            "Pad missing rows with NaN.",
        )
    try:
        model.check_rows(leaf.y)
    except PopulationError as wrong:
        for client, (low, high) in enumerate(zip(leaf.ptr[:-1], leaf.ptr[1:], strict=True)):
            try:
                model.check_rows(leaf.y[low:high])
            except PopulationError as error:
                column = config.weight_column
                told = "" if column is None else f" Not counted are column {column}, the weights, and rows of weight 0."
                raise PopulationError(f"client {block.first + client}: {error.message}{told}", error.remedy) from None
        raise wrong


def trials(config: FederatedEMConfig, model: CurvedEM, message: TrialMessage, block: ClientBlock) -> Statistics:
    """totals: (R, q) sum of w_i s_bar_i for each initialisation; losses: (R,) their objectives, without the penalty.

    weight: (1,) sum of w_i, which is 1 unless w_i counts rows that take no part; held_out: (1 + R,) these rows, and the
    sum of their losses for each initialisation, if some take no part.
    """
    everything, block = block, training_rows(block, message.scaling.split)
    leaf, weights = _leaf_and_weights(config, message, block)
    totals, losses = weighted_statistics_and_losses(model, message.thetas, leaf, weights)
    weight = float(weights.of_clients(leaf.sizes).sum())
    statistics = {
        "totals": FloatSum.at(block.leaf, totals),
        "losses": FloatSum.at(block.leaf, losses),
        "weight": FloatSum.at(block.leaf, weight),
    }
    if message.scaling.split is not None:
        others = validation_part(cast(RowsBlock, everything), cast(Split, message.scaling.split))
        held = rows_of(others, message.scaling, weight_column=config.weight_column)
        sums = [sum_of_losses(model, theta, held) for theta in message.thetas]
        statistics["held_out"] = FloatSum.at(block.leaf, [held.sizes.sum(), *sums])
    return statistics


def initial_memory(
    config: FederatedEMConfig, model: CurvedEM, message: InitialMemoryMessage, block: ClientBlock
) -> tuple[Statistics, Memory]:
    """V_{0,i} = h_i(S_0) as memory "V"; sum: (q,) sum of w_i V_{0,i}."""
    leaf, weights = _leaf_and_weights(config, message, block)
    v = leaf.client_means(model, message.theta, np.ones(block.clients, bool))
    v -= message.s
    v[leaf.sizes == 0] = 0.0
    check_finite(v, block.first + np.arange(block.clients))
    return {"sum": FloatSum.at(block.leaf, weights.of_clients(leaf.sizes) @ v)}, {"V": v}


def objective(
    config: FederatedEMConfig, model: CurvedEM, message: ObjectiveMessage, block: ClientBlock
) -> dict[str, Statistic]:
    """loss: the objective without the penalty, nats per observation. entropy: of the rows' responsibilities, where
    settings are compared."""
    leaf, weights = _leaf_and_weights(config, message, block)
    statistics: dict[str, Statistic] = {
        "loss": FloatSum.at(block.leaf, weighted_loss(model, message.theta, leaf, weights))
    }
    if criteria.wanted(config):
        statistics["entropy"] = FloatSum.at(block.leaf, criteria.entropy(model, message.theta, leaf))
    return statistics


def training_rows(block: ClientBlock, split: Split | HiddenCells | None) -> ClientBlock:
    """The block without the rows that take no part; or with NaN in cells that take none."""
    if isinstance(split, HiddenCells):
        return without_hidden(cast(RowsBlock, block), split)
    return block if split is None else training_part(cast(RowsBlock, block), split)


def _other_rows(block: ClientBlock, split: Split | HiddenCells) -> ClientBlock:
    """What `training_rows` leaves out."""
    of = cast(RowsBlock, block)
    return hidden_only(of, split) if isinstance(split, HiddenCells) else validation_part(of, split)


def _held_back(leaf: LeafRows, split: Split | HiddenCells) -> float:
    """Rows, by their weights, or cells, that take no part; leaf: the rows of `_other_rows`."""
    if isinstance(split, Split):
        return float(leaf.sizes.sum())
    return sum(int(np.count_nonzero(np.isfinite(np.asarray(y)))) for _, y in leaf.pieces())


def held_out(
    config: FederatedEMConfig, model: CurvedEM, message: RoundMessage | ObjectiveMessage, block: ClientBlock
) -> dict[str, Statistic]:
    """held_out: (3,) held-out rows (for tables, cells), the sum of their losses, and that sum in the units of the data;
    nothing if no rows are held out, or if the message does not request it."""
    split = message.scaling.split
    if split is None or (isinstance(message, RoundMessage) and not message.monitor):
        return {}
    leaf = rows_of(_other_rows(block, split), message.scaling, config.rows_per_observation, config.weight_column)
    sums = np.zeros(3)
    sums[0] = _held_back(leaf, split)
    for observations, y in leaf.pieces():
        losses = -model.log_likelihood(message.theta, y)
        unscaled = losses + models.log_scales(config, message.scaling, y)
        own = leaf.weights_at(observations)
        sums[1:] += [total_of(losses, own), total_of(unscaled, own)]
    return {"held_out": FloatSum.at(block.leaf, sums)}


# --- a round --------------------------------------------------------------------------------------------------------


def round_update(
    config: FederatedEMConfig,
    model: CurvedEM,
    codec: Codec,
    message: RoundMessage,
    block: ClientBlock,
    memory: Memory | None,
) -> tuple[Statistics, Memory | None]:
    """One client step of Algorithm 1 or 2 for every active client of the leaf.

    sum:    (q,) sum over the active clients of w_i Q_i
    costs:  (3,) active clients, conditional expectations, bits sent
    loss, total: the objective and the sum of w_i s_bar_i at theta, if they are monitored
    memory: (q,) sum of w_i V_i before the round, if it is audited
    heard:  in natural units, the weight of the clients who answer for the first time

    The memory holds V_i, and in VR-FedEM also S_i, each (C, q) float64. In natural units V_i is what the server knows
    of s_i. In addition "heard", (C,) bool, marks the clients of which it knows anything.
    """
    memory = kept_memory(memory, message.won)
    leaf, weights = _leaf_and_weights(config, message, block)
    statistics: dict[str, Statistic]
    if message.monitor:
        (total,), (loss,) = weighted_statistics_and_losses(model, [message.theta], leaf, weights)
    if treats_clients_singly(config, codec):
        statistics, memory = compressed_differences(config, model, codec, message, block, leaf, weights, memory)
    else:
        if not message.monitor:
            total = weighted_statistic(model, message.theta, leaf, weights)
        filled = np.count_nonzero(leaf.sizes)
        costs = [filled, leaf.sizes.sum(), filled * 64 * model.q]
        weight = float(weights.of_clients(leaf.sizes).sum())
        statistics = {
            "sum": FloatSum.at(block.leaf, total - weight * message.s),
            "costs": FloatSum.at(block.leaf, costs),
        }
        memory = None
    if message.monitor:
        statistics |= {"loss": FloatSum.at(block.leaf, loss), "total": FloatSum.at(block.leaf, total)}
    return statistics, memory


def rounds_of_starts(
    config: FederatedEMConfig, model: CurvedEM, message: StartsMessage, block: ClientBlock, memory: Memory | None
) -> tuple[Statistics, Memory]:
    """`round_update` for each start; names have the number of the start."""
    statistics: dict[str, Statistic] = {}
    remembered: Memory = {}
    for number, own in enumerate(message.rounds):
        known = None if memory is None else of_start(memory, number)
        found, kept = round_update(config, model, codec_of_round(config, model, own), own, block, known)
        statistics |= with_number(found, number)
        remembered |= with_number(kept or {}, number)
    return statistics, remembered


def codec_of_round(config: FederatedEMConfig, model: CurvedEM, message: RoundMessage) -> Codec:
    steps = message.resolution, message.everything, message.component_step
    return models.codec_of(config, model, message.theta, message.s, *steps)
