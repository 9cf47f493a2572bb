"""How a run begins, on the server: from a public warm start, or by an initialisation that reads the clients' rows.

A warm start has public parameters by name, with centre and scale if rows are to be standardised. What an earlier run
ended with is one: its parameters in standardised units, its centre and its scale.

The initialisation is the phases "moments", "pick", "clusters", "penalties" and "trials" of
`fedcore.methods.federated_em.server`. Both end in `enter_rounds`, with S_0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import scipy

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.federated_em import choice, models
from fedcore.methods.federated_em.config import AUTO_SHARE, CANDIDATES, PSEUDO_ROWS, FederatedEMConfig
from fedcore.methods.federated_em.differences import remembers
from fedcore.methods.federated_em.incomplete import fitted_to_cells, settled
from fedcore.methods.federated_em.messages import (
    BITS_PER_NUMBER,
    ClusterMessage,
    MomentsMessage,
    Scaling,
    SeedMessage,
    TrialMessage,
    bits_to_client,
    plain_scaling,
)
from fedcore.methods.federated_em.resolution import AXES, component_step, first_resolution
from fedcore.methods.federated_em.sampled import AnyMixture, Sample
from fedcore.methods.federated_em.search import searched
from fedcore.methods.federated_em.seeding import decoded_sums
from fedcore.methods.federated_em.series import SERIES_NAMES, Precision, arrays_of
from fedcore.methods.federated_em.state import FederatedEMState, pack
from fedcore.methods.mixture_models.client_sums import divisors_of
from fedcore.methods.mixture_models.contract import CurvedEM, Theta
from fedcore.methods.mixture_models.counts import CountMixture
from fedcore.methods.mixture_models.initialisation import lloyd_step, parameters_from_clusters
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables
from fedcore.methods.mixture_models.released import NATS_OF_NOISE
from fedcore.methods.mixture_models.student import DEGREES, StudentMixture, degrees_in
from fedcore.methods.mixture_models.validation import FEWEST
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts, RoundInfo

START = "federated_em/start"
MARGIN = 1e-9  # by which a statistic is inside the domain of its model after a step
SMALLEST_BATCH, LONGEST_INNER = 32, 8  # of VR-FedEM
SMALLEST_TOTAL, LARGEST_TOTAL = 1e-100, 1e100  # of the weights of all rows, so that squares neither vanish nor overflow
DENSE = 0.1  # of the counts are above 0: from there dense steps of EM are faster
CONSTANT = 1e-12  # a variance this small relative to the squared mean is rounding
NOT_PARAMETERS = ("centre", "scale", "column_means", "part_scales", "pseudo_rows", *SERIES_NAMES, NATS_OF_NOISE)

Step = tuple[FederatedEMState, RoundInfo]


# --- warm starts ----------------------------------------------------------------------------------------------------


def warm_start_of(state: FederatedEMState) -> dict[str, np.ndarray]:
    """The parameters, what rows and clipped parts were scaled by, and how precise a private run knows them. Raises
    ConfigError before there are any."""
    if not len(state.theta):
        raise ConfigError("stopped before it had parameters.", "Name a run that has.")
    scales = {
        "centre": state.centre,
        "scale": state.scale,
        "column_means": state.mean,
        "part_scales": state.part_scales,
    }
    if state.pseudo_rows != PSEUDO_ROWS:  # they were chosen, from rows that the parameters have seen since
        scales["pseudo_rows"] = np.array([state.pseudo_rows])
    scales |= arrays_of(Precision(state.pooled_weight, state.pooled_variance))
    return {**state.parameters(), **{name: array for name, array in scales.items() if len(array)}}


def public_parameters(public: PublicFacts, model: CurvedEM) -> Theta:
    """The model's parameters among the arrays of the warm start. Raises ConfigError if they are not such."""
    arrays = _arrays(public)
    theta = {name: np.asarray(array, np.float64) for name, array in arrays.items() if name not in NOT_PARAMETERS}
    if isinstance(model, StudentMixture):  # the settings say which
        theta[DEGREES] = np.array([model.degrees])
    return model.check_theta(theta)


def public_scaling(config: FederatedEMConfig, public: PublicFacts) -> Scaling:
    """centre and scale of the warm start, both or neither. The variances after that are taken to be 1, and the means
    (which only models of counts use) to be its `column_means`. Raises ConfigError for arrays that do not fit.
    """
    arrays, d = _arrays(public), config.columns(public.features)
    mean = _vector(arrays, "column_means", d) if "column_means" in arrays else np.zeros(0)
    degrees = degrees_in(arrays) if config.tails == "auto" else config.degrees
    if "centre" not in arrays and "scale" not in arrays:
        return replace(plain_scaling(d * config.rows_per_observation), mean=mean, degrees=degrees)
    centre, scale = (_vector(arrays, name, d) for name in ("centre", "scale"))
    if not (scale > 0).all():
        raise ConfigError("'scale' of the start must be positive.")
    return Scaling(centre, scale, np.ones(d), mean, np.zeros(0), degrees=degrees)


def public_pseudo_rows(public: PublicFacts) -> float:
    """The pseudo-rows that the earlier run chose, or the default. Raises ConfigError for what is no such number."""
    arrays = _arrays(public)
    if "pseudo_rows" not in arrays:
        return PSEUDO_ROWS
    chosen = float(_vector(arrays, "pseudo_rows", 1)[0])
    if chosen < 0:
        raise ConfigError("'pseudo_rows' of the start must not be negative.")
    return chosen


def public_model(config: FederatedEMConfig, public: PublicFacts) -> CurvedEM:
    """The model as public facts alone make it."""
    return models.model_of(config, public_scaling(config, public))


def part_scales(public: PublicFacts, q: int) -> np.ndarray:
    """(q,) the diagonal of D of a private run: `part_scales` of the warm start, or ones."""
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


# --- the phases of an initialisation --------------------------------------------------------------------------------


def moments_message(config: FederatedEMConfig, state: FederatedEMState) -> MomentsMessage:
    return MomentsMessage(state.split(), state.sample_share, state.seed)


def after_moments(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    """Sizes of the population, and what rows are standardised by."""
    clients, rows, squares = (float(number) for number in result["sizes"])
    if rows == 0:
        weight = "" if config.weight_column is None else f" of a weight (column {config.weight_column}) above 0"
        raise PopulationError(f"no client of the population has any rows{weight}.", "Check what was ingested.")
    if not SMALLEST_TOTAL < rows < LARGEST_TOTAL:
        raise PopulationError(
            f"the weights of all rows (column {config.weight_column}) add up to a number that is too "
            f"{'small' if rows < 1 else 'large'} to compute with.",
            "Give weights in rows: 2 for a row that stands for two.",
        )
    if "held_back" in result and not result["held_back"]:
        raise PopulationError(
            f"validation: no row is held back, because no client has {FEWEST} rows or its share of them is too small.",
            "Take a larger share, or leave validation out.",
        )
    count, total, square = result["moments"]
    if not np.isfinite(square).all():
        column = config.population_column(int(np.argmin(np.isfinite(square))))
        raise PopulationError(
            f"the values of column {column} are too large to be squared.", "Rescale it, or look for wrong values."
        )
    if config.model.name == "gaussian" and not count.all():
        column = config.population_column(int(np.argmin(count)))
        raise PopulationError(f"column {column} has no entry in any row.", "Leave the column out.")
    known = divisors_of(count)
    mean = total / known
    variance = np.maximum(square / known - mean**2, 0.0)
    state = replace(
        state, clients=clients, rows=rows, effective_clients=rows**2 / squares if config.by_rows else clients
    )
    if models.standardises(config):
        constant = variance <= CONSTANT * mean**2
        scale = np.where(constant, 1.0, np.sqrt(variance))
        if models.needs_common_scale(config):
            scale = np.full(len(mean), np.sqrt(variance.mean()) or 1.0)
        state = replace(state, centre=mean, scale=scale)
    if len(state.scale):
        mean, variance = (mean - state.centre) / state.scale, variance / state.scale**2
    state = replace(state, mean=mean, variance=variance, seen=count)
    state = _with_bits(config, state, BITS_PER_NUMBER * (3 + 3 * len(mean)) * clients, 0)
    state = replace(state, penalty_share=config.penalty_share(rows, state.pseudo_rows))
    if config.searches:
        return after_sample(config, state, result["sample"])
    if config.fits_cells:
        if config.undecided is not None:
            state = replace(state, chosen=_chosen_penalty(config, state))
        state = fitted_to_cells(config.decided(state.chosen), state)
    elif config.algorithm.start == "given":
        state = _with_initial_parameters(config, state, [state.parameters()])
    elif models.seeding_passes(config) == 0:
        seeds = [int(stream(state.seed, START, number).integers(2**62)) for number in range(config.starts_tried)]
        thetas = [models.initial_parameters(config, state.scaling(), seed) for seed in seeds]
        state = _with_initial_parameters(config, state, thetas)
    else:
        state = replace(state, phase="pick", picked=np.zeros((config.starts_tried, 0, len(mean))))
    return state, RoundInfo({"clients": clients, "rows": rows})


def after_sample(config: FederatedEMConfig, state: FederatedEMState, sample: np.ndarray) -> Step:
    """The search on the sample, as `fedcore.methods.federated_em.clients` gives it. It keeps no row of it."""
    sample = sample[np.argsort(sample[:, 0], kind="stable")]
    uniforms, counts, y = sample[:, 0], sample[:, 1], sample[:, 2:]
    if config.model.kind == "counts":
        uniforms, starts = np.unique(uniforms, return_index=True)
        places = sample[:, 2].astype(np.int64), np.append(starts, len(sample))
        counts, y = (
            counts[starts],
            scipy.sparse.csr_matrix((sample[:, 3], *places), shape=(len(starts), len(state.variance))),
        )
        y = y.toarray() if y.nnz > DENSE * y.shape[0] * y.shape[1] else y
    if len(state.centre):
        y = (y - state.centre) / state.scale
    rows = Sample(
        y,
        None if (counts == 1.0).all() else counts if config.by_rows else counts * (state.rows / state.clients),
        int(np.searchsorted(uniforms, state.first_share)),
        state.sample_share,
    )

    def model_with(chosen: float) -> Callable[[float, float], AnyMixture]:
        own = config.decided(chosen)

        def model_of(pseudo_rows: float, size: float) -> AnyMixture:
            share = own.penalty_share(size, pseudo_rows)
            scaling = replace(state.scaling(), penalty_share=share, degrees=own.degrees)
            model = cast(AnyMixture, models.model_of(own, scaling))
            return replace(model, relative=True) if isinstance(model, CountMixture) else model

        return model_of

    asked = state.pseudo_rows if config.tries_penalties is False else None
    by_distance = config.algorithm.start == "kmeans++"
    nu = asked
    if config.undecided == "components":
        number, nu = choice.chosen_components(model_with, rows, state.seed, asked, by_distance)
        state = replace(state, chosen=float(number))
    elif config.undecided == "rank":
        first = models.initial_parameters(config.decided(0.0), state.scaling(), state.seed)
        rank = choice.chosen_rank(cast(Any, model_with), rows, first, state.seed, state.pseudo_rows)
        state = replace(state, chosen=float(rank))
    model_of, config = model_with(state.chosen), config.decided(state.chosen)
    if config.mixture:
        tails = config.tails == "auto"
        found = searched(model_of, rows, state.seed, config.starts_tried, nu, by_distance, tails)
    else:
        found = settled(model_of, rows, models.initial_parameters(config, state.scaling(), state.seed), asked)
    chosen = PSEUDO_ROWS if asked is not None else found.pseudo_rows
    state = replace(
        state,
        pseudo_rows=chosen,
        penalty_share=config.penalty_share(state.rows, chosen),
        ends=found.ends,
        sampled=float(rows.count),
        expectations=found.row_steps,
        bits_up=float(sample.size * BITS_PER_NUMBER),
    )
    model = models.model_of(config, replace(state.scaling(), degrees=degrees_in(found.theta)))
    state = enter_rounds(config, model, state, model.statistic_of(found.theta))
    told = {"clients": state.clients, "rows": state.rows, "sampled_rows": state.sampled, "pseudo_rows": chosen}
    return state, RoundInfo({**told, "spread_of_starts": float(np.ptp(found.ends)), "bits_up": state.bits_up})


def _chosen_penalty(config: FederatedEMConfig, state: FederatedEMState) -> float:
    """The nuclear penalty of tables, from the moments of the cells."""
    scaling, tables = state.scaling(), state.rows if config.by_rows else state.clients

    def model_with(penalty: float) -> LowRankTables:
        return cast(LowRankTables, models.model_of(config.decided(penalty), scaling))

    return choice.chosen_penalty(model_with, scaling.mean * scaling.seen, scaling.seen, tables, state.seed)


def seed_message(config: FederatedEMConfig, state: FederatedEMState) -> SeedMessage:
    return SeedMessage(state.picked, config.algorithm.start == "kmeans++", state.scaling(), state.seed)


def after_seed(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    """One more seed of each initialisation."""
    drawn = [result[f"row_{restart}"] for restart in range(config.starts_tried)]
    if any(draw.score == -np.inf for draw in drawn):
        raise PopulationError(
            f"the population has fewer than {config.components} different rows.", "Ask for fewer components."
        )
    rows = np.stack([draw.payload["row"] for draw in drawn])
    rows = np.where(np.isnan(rows), state.mean, rows)  # a seed with gaps
    picked = np.concatenate([state.picked, rows[:, None, :]], axis=1)
    bits = BITS_PER_NUMBER * (len(rows) * state.clients + rows.size)  # scores of all, rows of those who won
    state = _with_bits(config, replace(state, picked=picked), bits, state.picked.size)
    if picked.shape[1] == models.seeding_passes(config):
        state = replace(state, phase="clusters", step=0)
    return state, RoundInfo({"picked": float(picked.shape[1])})


def cluster_message(config: FederatedEMConfig, state: FederatedEMState) -> ClusterMessage:
    # sums of weights say no more whether an entry is missing: they are rounded
    gaps = config.weight_column is not None or bool((state.seen < state.rows).any())
    own = ClusterMessage(state.picked, state.scaling(), gaps)
    if config.model.kind == "counts" or state.gaps or not config.follows_em:
        return own
    step = component_step(AXES, state.effective_clients)
    return replace(own, component_step=step, number=state.step, seed=state.seed, rows=state.rows)


def after_clusters(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    """A step of k-means; after the last one mixtures start from the clusters."""
    sums = np.asarray(result["clusters"])
    bits = BITS_PER_NUMBER * sums.size * state.clients
    if "costs" in result:
        sums, bits = decoded_sums(sums, state.rows, state.variance), float(result["costs"][0])
    sizes = sums[:, :, 0]
    info = RoundInfo({"smallest_cluster": float(sizes.min()), "largest_cluster": float(sizes.max())})
    state = _with_bits(config, state, bits, state.picked.size)
    step = state.step + 1
    if step < config.variant.cluster_rounds:
        moved = np.stack([lloyd_step(centres, own) for centres, own in zip(state.picked, sums, strict=True)])
        return replace(state, step=step, picked=moved), info
    model = models.model_of(config, state.scaling())
    thetas = [
        parameters_from_clusters(model, centres, own, state.mean, state.variance)
        for centres, own in zip(state.picked, sums, strict=True)
    ]
    return _with_initial_parameters(config, replace(state, step=0), thetas), info


def penalty_message(config: FederatedEMConfig, state: FederatedEMState) -> TrialMessage:
    candidates = candidate_models(config, state)
    thetas = tuple(model.maximise(s) for model, s in zip(candidates, state.starts, strict=True))
    return TrialMessage(thetas, state.scaling(), state.clients, state.rows)


def candidate_models(config: FederatedEMConfig, state: FederatedEMState) -> list[CurvedEM]:
    """The model with each of the penalties that are tried."""
    scaling = state.scaling()
    shares = [config.penalty_share(state.rows, chosen) for chosen in CANDIDATES]
    return [models.model_of(config, replace(scaling, penalty_share=share)) for share in shares]


def after_penalties(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    """An exact EM step with each penalty on the rows that take part; after the last one the penalty with the least loss
    on the others is taken, all rows take part again, and the initialisations wait no longer."""
    rows, *losses = (float(number) for number in result["held_out"])
    chosen = CANDIDATES[int(np.argmin(losses))] if rows else PSEUDO_ROWS  # clients of one or two rows hold back none
    info = {"held_out_loss": min(losses) / rows} if rows else {}
    found = np.asarray(result["totals"]) / float(result["weight"])
    starts = _inside(config, candidate_models(config, state), state.starts, found)
    state = replace(_with_costs_of_trials(config, state), starts=starts, step=state.step + 1)
    if state.step < config.variant.trial_rounds:
        return state, RoundInfo(info)
    model = models.model_of(config, state.scaling())
    thetas = [model.maximise(s) for s in state.waiting]
    state = replace(
        state,
        step=0,
        starts=np.zeros((0, model.q)),
        waiting=np.zeros((0, 0)),
        waiting_rows=0.0,
        pseudo_rows=chosen,
        penalty_share=config.penalty_share(state.rows, chosen),
    )
    return _with_starts(config, state, thetas), RoundInfo({**info, "pseudo_rows": chosen})


def trial_message(config: FederatedEMConfig, state: FederatedEMState) -> TrialMessage:
    model = models.model_of(config, state.scaling())
    thetas = tuple(model.maximise(s) for s in state.starts)
    return TrialMessage(thetas, state.scaling(), state.clients, state.rows)


def after_trials(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> Step:
    """An exact EM step of each initialisation; after the last one the best of them continues."""
    model = models.model_of(config, state.scaling())
    losses = [
        float(loss) + model.penalty(model.maximise(s)) for loss, s in zip(result["losses"], state.starts, strict=True)
    ]
    best, models_alike = int(np.argmin(losses)), [model] * len(losses)
    starts = _inside(config, models_alike, state.starts, np.asarray(result["totals"]))
    info = RoundInfo({"objective": losses[best], "spread_of_starts": max(losses) - min(losses)})
    state = replace(_with_costs_of_trials(config, state), starts=starts, step=state.step + 1)
    if state.step == config.variant.trial_rounds:
        state = enter_rounds(config, model, replace(state, starts=np.zeros((0, model.q)), step=0), starts[best])
    return state, info


def _inside(
    config: FederatedEMConfig, candidates: Sequence[CurvedEM], before: np.ndarray, found: np.ndarray
) -> np.ndarray:
    """(R, q): the statistics that an EM step found, or those before it where it left the domain of its model."""
    inside = [model.admissible(s, MARGIN) for model, s in zip(candidates, found, strict=True)]
    return np.where(np.array(inside)[:, None], found, before)


def _with_bits(config: FederatedEMConfig, state: FederatedEMState, up: float, down: int) -> FederatedEMState:
    """up: bits from all clients in a pass of the start. down: numbers to each client. Counted of runs that follow EM,
    which save them; tables of other runs compare rounds alone."""
    if not config.follows_em:
        return state
    to_clients = bits_to_client(down, 0) * state.clients
    return replace(state, bits_up=state.bits_up + up, bits_down=state.bits_down + to_clients)


def _with_costs_of_trials(config: FederatedEMConfig, state: FederatedEMState) -> FederatedEMState:
    """Every client answers for every statistic that is tried, uncompressed."""
    tried, q = state.starts.shape
    model = models.model_of(config, state.scaling())
    parameters = len(pack(model.maximise(state.starts[0]))[0])
    return replace(
        state,
        expectations=state.expectations + state.rows * tried,
        bits_up=state.bits_up + BITS_PER_NUMBER * q * state.clients * tried,
        bits_down=state.bits_down + bits_to_client(0, parameters) * state.clients * tried,
    )


def _with_initial_parameters(
    config: FederatedEMConfig, state: FederatedEMState, thetas: Sequence[Theta]
) -> FederatedEMState:
    """The penalty is chosen from the first of them, if it is to be chosen."""
    state = replace(state, picked=np.zeros((0, 0, 0)))
    if not config.tries_penalties:
        return _with_starts(config, state, thetas)
    model = models.model_of(config, state.scaling())
    return replace(
        state,
        phase="penalties",
        waiting_rows=AUTO_SHARE,
        waiting=np.stack([model.statistic_of(theta) for theta in thetas]),
        starts=np.stack([own.statistic_of(thetas[0]) for own in candidate_models(config, state)]),
    )


def _with_starts(config: FederatedEMConfig, state: FederatedEMState, thetas: Sequence[Theta]) -> FederatedEMState:
    """Several are tried; one continues to the rounds."""
    model = models.model_of(config, state.scaling())
    statistics = np.stack([model.statistic_of(theta) for theta in thetas])
    if len(statistics) > 1:
        return replace(state, phase="starts" if config.follows_em else "trials", starts=statistics)
    return enter_rounds(config, model, state, statistics[0])


def enter_rounds(
    config: FederatedEMConfig, model: CurvedEM, state: FederatedEMState, s: np.ndarray
) -> FederatedEMState:
    """S_0 = s, T(S_0), the step and the sizes of batches; next come the first memories, or the first round.

    Raises ConfigError if s is outside the domain of T.
    """
    if not config.searches and not model.admissible(
        s
    ):  # a search ends on the border where columns determine each other
        raise ConfigError("the start is outside the domain of the model.", "Start from other rows or parameters.")
    first = model.maximise(s)
    codec, (theta, layout) = models.codec_of(config, model, first, s), pack(first)
    asked = state.effective_clients * config.algorithm.participation
    batch, inner = batch_sizes(config, state.rows / state.clients)
    phase = "memory" if config.fills_memories and remembers(config, codec) else "rounds"
    return replace(
        state,
        phase=phase,
        statistic=s,
        theta=theta,
        previous=theta,
        layout=layout,
        memory=np.zeros(model.q),
        batch=batch,
        inner_rounds=inner,
        gamma=config.step(codec.omega, state.effective_clients),
        resolution=first_resolution(model.q, asked) if config.natural else 0.0,
    )


def batch_sizes(config: FederatedEMConfig, mean_rows: float) -> tuple[int, int]:
    """b, the rows of a client's batch, and k_in, the rounds between full passes. For VR-FedEM a batch is a twentieth of
    a client's rows, and at least SMALLEST_BATCH of them: smaller ones, as Theorem 3 has them, lead estimates of
    covariances out of their domain. It is used until batches cost about a pass."""
    if not config.variance_reduced:
        return config.algorithm.batch or 0, 0
    rows = max(1, math.ceil(mean_rows))
    batch = config.algorithm.batch or min(max(SMALLEST_BATCH, math.ceil(mean_rows / 20)), rows)
    return batch, config.variant.inner_rounds or max(2, min(LONGEST_INNER, math.ceil(mean_rows / batch)))
