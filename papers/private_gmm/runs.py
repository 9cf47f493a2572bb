"""What the cells of `fedcore reproduce private-gmm` compute: the private learner on simulated and on real rows.

The learner runs in memory, with records as units, delta = 1e-6, and
pseudo-random noise of the same distribution: privacy: none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fedcore.papers.data import needed_data
from fedcore.papers.private_gmm import simulation
from fedcore.papers.private_gmm.baselines import DELTA, RIGHT_LABELS, Setting, score_values
from fedcore.papers.private_gmm.simulation import Prior, Structureless, Truth
from fedcore.papers.simulation import ran

from fedcore.errors import ConfigError
from fedcore.methods.private_gmm import PrivateGMM, PrivateMixture
from fedcore.methods.private_gmm.config import Covariance, PrivateGMMConfig
from fedcore.methods.private_gmm.integer_rows import BASIS_BITS, ONE
from fedcore.methods.private_gmm.state import PrivateGMMState
from fedcore.methods.private_gmm.tree import REST
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.mechanisms import NoiseSource, SecureNoise, TestNoise
from fedcore.privacy.plan import Relation, Unit
from fedcore.rounds.method import PublicFacts, RoundInfo


@dataclass(frozen=True, slots=True)
class Learned:
    """mixture: or the reason of a failure. state: the last. rho: spent, of rho_planned. infos: of the rounds."""

    mixture: PrivateMixture
    state: PrivateGMMState
    rho: float
    rho_planned: float
    infos: tuple[RoundInfo, ...]


def learn(
    x: np.ndarray,
    config: PrivateGMMConfig,
    *,
    epsilon: float,
    delta: float,
    unit: Unit = "record",
    ptr: np.ndarray | None = None,
    relation: Relation = "add_or_remove_one",
    noise: NoiseSource | None = None,
    seed: int = 0,
    clients_per_leaf: int | None = None,
    on_round: Callable[[PrivateGMMState, RoundInfo], None] | None = None,
) -> Learned:
    """Learn from rows (n, d), with all of (epsilon, delta) and no spares.

    unit: what is protected. ptr: (C + 1,) rows of the clients; None: every row is a client of its own. noise: secure by
    default. seed: of the public shifts of boxes. clients_per_leaf: None: all at once; the result does not depend on it.
    Raises ConfigError as `PrivateGMM.plan` does.
    """
    rho = make_budget(epsilon, delta).rho_max
    method = PrivateGMM(config)
    public = PublicFacts("rows", np.shape(x)[1], 1024, None, None, rho, seed, relation, None, unit)
    found = ran(
        method, x, public, noise or SecureNoise(), ptr=ptr, clients_per_leaf=clients_per_leaf, on_round=on_round
    )
    return Learned(method.mixture(found.state), found.state, found.rho, found.rho_planned, found.infos)


RIGHT, WRONG, REFUSED = "right", "wrong", "refused"
FAR_OFF = 10.0  # sigma: an answer whose mean is further off is wrong, whatever the labels
ACCURATE = 1.0  # sigma: what goal "means" asks besides
GRID = (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
FINE_GRID = tuple(round(1000 * 2 ** (step / 4)) for step in range(37))  # to 512,000


def config_of(
    prior: Prior, components: int, *, covariance: Covariance = "spherical", depth: int = 1
) -> PrivateGMMConfig:
    return PrivateGMMConfig(
        components=components,
        covariance=covariance,
        radius=prior.radius,
        depth=depth,
        sigma_min=prior.sigma_min,
        least_weight=prior.least_weight,
    )


def run_once(
    truth: Truth,
    rows: int,
    seed: int,
    epsilon: float,
    key: str,
    *,
    radius_factor: float = 2.0,
    covariance: Covariance = "spherical",
    depth: int = 1,
) -> dict:
    """{"outcome", "mean_error", "accuracy", "weight_error", "trace_error"}; scores None if refused.

    right: k components, 99 % of the rows nearest to their own mean, no mean further off than 10 sigma. mean_error: the
    largest of a component, in sigma. key: of the noise, which also depends on epsilon, rows and seed.
    """
    x, labels = simulation.sample(truth, rows, seed)
    config = config_of(simulation.prior(truth, radius_factor), truth.components, covariance=covariance, depth=depth)
    noise = TestNoise(f"{key}|{epsilon:g}|{rows}|{seed}")
    found = learn(x, config, epsilon=epsilon, delta=DELTA, noise=noise, seed=seed).mixture
    if not found.found:
        nothing = dict.fromkeys(("mean_error", "accuracy", "weight_error", "trace_error"))
        return {"outcome": REFUSED, **nothing}
    scored = simulation.scores(
        truth, found.means, weights=found.weights, covariances=found.matrices(), rows=x, labels=labels
    )
    values = score_values(scored)
    right = values["accuracy"] >= RIGHT_LABELS and values["mean_error"] <= FAR_OFF
    return {"outcome": RIGHT if right else WRONG, **values}


def summary(runs: Sequence[Mapping]) -> dict:
    """Counts of outcomes; median and worst mean_error, lowest accuracy, worst weight and trace error of answers."""
    counts = {name: sum(run["outcome"] == name for run in runs) for name in (RIGHT, WRONG, REFUSED)}
    answers = [run for run in runs if run["outcome"] != REFUSED]

    def over(name: str, of: Callable[[list[float]], float]) -> float | None:
        return float(of([run[name] for run in answers])) if answers else None

    return {
        "runs": len(runs),
        **counts,
        "mean_error": over("mean_error", np.median),
        "worst_error": over("mean_error", max),
        "accuracy": over("accuracy", min),
        "weight_error": over("weight_error", max),
        "trace_error": over("trace_error", max),
    }


def at(setting: Setting, rows: int, epsilon: float, seeds: Sequence[int]) -> dict:
    """`summary` over seeds, which change the mixture, its rows and the noise."""
    key = f"{setting.features}-{setting.components}-{setting.separation:g}"
    return summary([run_once(setting.truth(seed), rows, seed, epsilon, key) for seed in seeds])


def reached(found: Mapping, goal: str) -> bool:
    """Goal "labels": every run right. Goal "means": besides, no mean of any run further off than 1 sigma."""
    return found["right"] == found["runs"] and (goal == "labels" or found["worst_error"] <= ACCURATE)


def smallest(
    setting: Setting, epsilon: float, seeds: Sequence[int], grid: Sequence[int] = GRID, *, twice: bool = True
) -> dict:
    """{"labels", "means": the first n of the grid that reaches the goal, None if none does}, "tried": [{"n",
    **summary}], "twice": the summary at twice the n of goal "labels", None without one or if not wanted."""
    tried: list[dict[str, Any]] = []
    first: dict[str, int | None] = {"labels": None, "means": None}
    for rows in grid:
        tried.append({"n": rows, **at(setting, rows, epsilon, seeds)})
        for goal in first:
            if first[goal] is None and reached(tried[-1], goal):
                first[goal] = rows
        if None not in first.values():
            break
    n = first["labels"]
    return {**first, "tried": tried, "twice": at(setting, 2 * n, epsilon, seeds) if n and twice else None}


# --- variants, and nothing to find ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Variant:
    """A cell that differs from the main table. expected: the specification's words; mixture, run: further arguments."""

    title: str
    features: int
    components: int
    separation: float
    rows: int
    expected: str
    mixture: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


THREE = (20, 3)
VARIANTS = {
    "radius": Variant("R 10,000 times the need", *THREE, 10.0, 10_000, "4 of 4, .17", run={"radius_factor": 1e4}),
    "scales": Variant(
        "scales 1, 1, 10; two levels", *THREE, 10.0, 10_000, "4 of 4, .44", {"scales": (1, 1, 10)}, {"depth": 2}
    ),
    "scales-more": Variant(
        "scales 1, 1, 10; two levels", *THREE, 10.0, 50_000, ".05", {"scales": (1, 1, 10)}, {"depth": 2}
    ),
    "weights-few": Variant(
        "weights .1, .2, .3, .4", 20, 4, 12.0, 10_000, "1 of 4, else refused", {"weights": (0.1, 0.2, 0.3, 0.4)}
    ),
    "weights": Variant("weights .1, .2, .3, .4", 20, 4, 12.0, 20_000, "4 of 4", {"weights": (0.1, 0.2, 0.3, 0.4)}),
    "shapes": Variant(
        "not spherical: axes .4 to 1",
        30,
        4,
        12.0,
        20_000,
        "3 of 3, .11",
        {"axis_spread": (0.4, 1.0)},
        {"covariance": "full"},
    ),
    "separation-7": Variant("separation 7", *THREE, 7.0, 10_000, "4 of 4"),
    "separation-6": Variant("separation 6", *THREE, 6.0, 10_000, "6 of 6, labels 99.8 %"),
    "separation-5": Variant("separation 5", *THREE, 5.0, 10_000, "3 of 4, else refused"),
    "separation-3": Variant("separation 3", *THREE, 3.0, 10_000, "refused"),
    "separation-2": Variant("separation 2", *THREE, 2.0, 10_000, "refused"),
}


def variant(name: str, seeds: Sequence[int], epsilon: float = 1.0) -> dict:
    """`summary` of a variant."""
    chosen = VARIANTS[name]
    truths = {
        seed: simulation.mixture(chosen.features, chosen.components, chosen.separation, seed, **chosen.mixture)
        for seed in seeds
    }
    return summary([run_once(truths[seed], chosen.rows, seed, epsilon, name, **chosen.run) for seed in seeds])


def nothing_there(
    kind: Structureless,
    components: int,
    seeds: Sequence[int],
    *,
    features: int = 20,
    rows: int = 20_000,
    epsilon: float = 1.0,
) -> dict:
    """{"runs", "refused"} on data without separated components."""
    config = config_of(simulation.structureless_prior(kind, features, components), components)
    refused = 0
    for seed in seeds:
        noise = TestNoise(f"{kind}|{components}|{epsilon:g}|{rows}|{seed}")
        x = simulation.structureless(kind, features, rows, seed)
        refused += not learn(x, config, epsilon=epsilon, delta=DELTA, noise=noise, seed=seed).mixture.found
    return {"runs": len(seeds), "refused": refused}


# --- what a run publishes -------------------------------------------------------------------------------------------


def pictured(setting: Setting, rows: int, epsilon: float, seed: int) -> dict:
    """The recursion of one run, all of it from released values, in the first two directions of the released basis and
    in the units of the data: {"radii": of the ball of the root, before and after the first passes; "candidates":
    (M, 2); "balls": (m, 3) centre and radius; "leaves": (m, 3) mean and standard deviation; "reason"}."""
    truth = setting.truth(seed)
    prior = simulation.prior(truth)
    radii, candidates = [prior.radius], np.zeros((0, 2))

    def look(state: PrivateGMMState, info: RoundInfo) -> None:
        nonlocal candidates
        if state.tree_radius[0] != radii[-1]:
            radii.append(float(state.tree_radius[0]))
        if len(state.place):
            candidates = state.place

    x, _ = simulation.sample(truth, rows, seed)
    noise = TestNoise(f"picture|{epsilon:g}|{rows}|{seed}")
    config = config_of(prior, truth.components)
    learned = learn(x, config, epsilon=epsilon, delta=DELTA, noise=noise, seed=seed, on_round=look)
    state = learned.state
    step = float(state.tree_radius[0]) / ONE
    basis = state.tree_basis[0] * 2.0**-BASIS_BITS
    children = np.flatnonzero((state.tree_parent == 0) & (state.tree_kind != REST))
    balls = np.column_stack([state.tree_ball[children] * step, state.tree_ball_radius[children] * step])
    cells = np.zeros((0, 3))
    if learned.mixture.found:
        spread = np.sqrt(np.trace(learned.mixture.matrices(), axis1=1, axis2=2) / truth.features)
        cells = np.column_stack([((learned.mixture.means - state.tree_centre[0]) @ basis)[:, :2], spread])
    return {
        "radii": radii,
        "candidates": (candidates[:, :2] * step).tolist(),
        "balls": balls[:, [0, 1, -1]].tolist(),
        "leaves": cells.tolist(),
        "reason": learned.mixture.reason,
    }


# --- real rows ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RealSet:
    """low, high: public bounds of every entry, to which entries are cut and from which they are scaled to [-1, 1].
    because: why they are public. components: asked for, besides 2."""

    low: float
    high: float
    because: str
    components: int


REAL = {
    "gvhd_flow": RealSet(0, 1023, "channels of 10 bits", 4),
    "satellite": RealSet(0, 255, "pixels of 8 bits", 6),
    "shuttle": RealSet(-256, 256, "ours, the data in view: none are published", 7),
}
FINEST, LEAST = 0.01, 0.05  # sigma_min in the scaled units, and w_min


def real_rows(name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows (n, d) in [-1, 1] and their classes (n,), None if there are none. Raises ConfigError without the data."""
    known = REAL[name]
    with np.load(needed_data("tabular", f"{name}.npz")) as file:
        x, y = file["x"].astype(np.float64), file["y"] if "y" in file else None
    middle, half = (known.low + known.high) / 2, (known.high - known.low) / 2
    return (np.clip(x, known.low, known.high) - middle) / half, y


def real_run(x: np.ndarray, components: int, epsilon: float, key: str) -> Learned:
    """R = sqrt(d), the corner of the cube; any number of components from 2 to k; full covariances; one level."""
    config = PrivateGMMConfig(
        components=components, up_to=True, radius=x.shape[1] ** 0.5, sigma_min=FINEST, least_weight=LEAST, depth=1
    )
    return learn(x, config, epsilon=epsilon, delta=DELTA, noise=TestNoise(f"{key}|{components}|{epsilon:g}"))


def real(name: str, components: int, epsilon: float, seeds: Sequence[int]) -> dict:
    """{"found": components of every run, 0 if refused; "nll": nats per row and "ari": of the answers; "weights": of the
    last answer, "reasons": of the refusals, "factors": of epsilon that they forecast}."""
    x, classes = real_rows(name)
    seen: dict[str, list[Any]] = {name: [] for name in ("found", "nll", "ari", "weights", "reasons", "factors")}
    for seed in seeds:
        mixture = real_run(x, components, epsilon, f"{name}|{seed}").mixture
        seen["found"].append(mixture.components)
        if not mixture.found:
            seen["reasons"].append(mixture.reason)
            seen["factors"].append(mixture.epsilon_factor)
            continue
        seen["nll"].append(-float(mixture.log_likelihood(x).mean()))
        seen["weights"] = mixture.weights.tolist()
        seen["ari"].append(agreement(classes, mixture.labels(x)))
    return seen


def real_em(name: str, components: int, seed: int = 1) -> dict:
    """EM without privacy on the same rows, full covariances: {"nll", "ari"}; components 1: one normal."""
    try:
        from sklearn.mixture import GaussianMixture
    except ImportError as error:
        raise ConfigError("The EM baseline needs scikit-learn.", "Install fedcore with its extra 'bench'.") from error
    x, classes = real_rows(name)
    model = GaussianMixture(components, n_init=3, random_state=seed).fit(x)
    return {
        "nll": -float(model.score(x)),
        "ari": agreement(classes, model.predict(x)),
        "weights": model.weights_.tolist(),
    }


def agreement(classes: np.ndarray | None, labels: np.ndarray) -> float | None:
    """The adjusted Rand index; None without classes."""
    if classes is None:
        return None
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(classes, labels))
