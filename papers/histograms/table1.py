"""Table 1 of Setlur, Feldman, Talwar (2023) beside a faithful and a sound version of its algorithms.

    non-private   the paper's estimators without noise
    faithful      Algorithm 3 as printed, on the rows of clients that Algorithm 1 returns: not private, whatever its
                  epsilon says (`paper_histograms`, algorithm "published"); with the noise of the paper's own
                  composition theorem, and with the noise of exact accounting
    sound         `histograms`, start included, at its total epsilon

The paper's data are not available. All columns but the paper's are computed on the synthetic preset "reddit-like",
which was made to have the paper's non-private pattern, or on a population of the caller's.

Oracles know the parameters of the synthetic population: a bound for all estimates that must learn them.

    centre known   alpha / (alpha + m_u) P_c(u) + m_u / (alpha + m_u) q_u
    mixture        sum_c r_c(u) [alpha P_c + x_u] / (alpha + m_u),
                   ln r_c(u) = ln w_c + sum over x_ui > 0 of [lnGamma(alpha P_ci + x_ui) - lnGamma(alpha P_ci)] + const

The first is the posterior mean (Lemma 2.2) if the client's cluster is known as well as the centres and alpha, the
second if it is not; both if the population is a mixture of Dirichlets (`SyntheticSettings.beta` is None). They are one
formula over responsibilities: that of a known cluster is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fedcore.papers.histograms.algorithms import sizes_of
from fedcore.papers.histograms.config import Algorithm2
from fedcore.papers.histograms.method import PaperHistograms
from fedcore.papers.simulation import over_heldout, simulate
from fedcore.papers.table import (
    Condition,
    Experiment,
    Found,
    Options,
    Place,
    Row,
    Seeds,
    Trial,
    given,
    mean_and_interval,
    shown,
)
from scipy.special import gammaln, softmax

from fedcore.errors import PopulationError, WrongKind
from fedcore.evaluation.evaluate import check_public
from fedcore.methods.histograms import HistogramsState, scores
from fedcore.methods.histograms.clients import inverse_totals
from fedcore.methods.histograms.simplex import project
from fedcore.methods.histograms.state import initial_state
from fedcore.population.blocks import CountsBlock, segment_sums
from fedcore.population.store import Population
from fedcore.population.synthetic import (
    SyntheticSettings,
    cluster_weights,
    settings_of,
    synthesise,
    true_centres,
    true_clusters,
)
from fedcore.rounds.method import AnyMethod, PublicFacts
from fedcore.rounds.statistics import FloatSum, Statistic, Statistics

# --- oracles ----------------------------------------------------------------------------------------------------------


SHAPE_FLOOR = 1e-9  # of a Dirichlet parameter alpha P


def known_clusters(clusters: np.ndarray, k: int) -> np.ndarray:
    """(C, k) float64 responsibilities of clients whose cluster is known. clusters: (C,) ints of 0 .. k - 1."""
    return np.eye(k)[clusters]


def posterior_clusters(block: CountsBlock, centres: np.ndarray, weights: np.ndarray, alpha: float) -> np.ndarray:
    """(C, k) float64: r_c(u). A client without tokens has the weights.

    centres: (k, d) true, floored so that alpha P >= 1e-9. weights: (k,) positive, sum 1. Cost: stored entries times k.
    """
    shapes = alpha * project(centres, SHAPE_FLOOR / alpha)
    logs = np.empty((block.clients, len(centres)))
    for c, shape in enumerate(shapes):
        at = shape[block.indices]
        logs[:, c] = np.log(weights[c]) + segment_sums(gammaln(at + block.data) - gammaln(at), block.indptr)
    return softmax(logs, axis=1)


def oracle_values(
    block: CountsBlock,
    client: np.ndarray,
    tokens: np.ndarray,
    responsibilities: np.ndarray,
    centres: np.ndarray,
    alpha: float,
) -> np.ndarray:
    """(len(tokens),) float64: the estimate of client[i] at tokens[i]; for scores that need few tokens of a client.

    client: positions in the block. responsibilities: (C, k), of either function above.
    """
    share = (alpha / (alpha + block.totals))[client]
    base = np.zeros(len(tokens))
    if len(tokens) == 0:
        return base
    for weight, row in zip(responsibilities.T, centres, strict=True):
        base += weight[client] * row[tokens]
    own = np.asarray(block.csr[client, tokens], np.float64).ravel() * inverse_totals(block)[client]
    return share * base + (1.0 - share) * own


PRESET = "reddit-like"
QUICK_CLIENTS, FULL_CLIENTS, SEEDS = 20_000, 100_000, 3
EPSILONS, DELTA = (15.0, 5.0, 2.0, 1.0), 1e-10

# Setlur, Feldman, Talwar 2023, Table 1 (Reddit, epsilon 15, delta 1e-10): non-private, private
PAPER = {
    "Local": (5.093, 5.093),
    "FedAvg": (1.054, 1.115),
    "IFCA": (1.036, 1.110),
    "Algorithm 2 + DimRed": (0.971, 0.990),
    "Algorithm 2": (0.930, 1.053),
    "FedAvg + FT": (0.912, 0.958),
    "IFCA + FT": (0.875, 0.948),
    "Algorithm 2 + DimRed + FT": (0.883, 0.904),
    "Algorithm 2 + FT": (0.868, 0.951),
}

# For each line: which training it comes from, and which of its scores it is.
LINES = {
    "Local": ("algorithm2", "Local"),
    "FedAvg": ("fedavg", "FedAvg"),
    "IFCA": ("ifca", "Algorithm 2"),
    "IFCA, start at the mean": ("ifca-mean", "Algorithm 2"),
    "Algorithm 2 + DimRed": ("dimred", "Algorithm 2"),
    "Algorithm 2": ("algorithm2", "Algorithm 2"),
    "Algorithm 2, start at the mean": ("algorithm2-mean", "Algorithm 2"),
    "Local mixture": ("algorithm2-mean", "Local mixture"),
    "Oracle centres": ("oracle", "Algorithm 2"),
    "Oracle, centre known": ("oracle", "centre known"),
    "Oracle, mixture": ("oracle", "mixture"),
}
WITHOUT_FT = ("Local", "Oracle, centre known", "Oracle, mixture")  # they mix by themselves

NON_PRIVATE: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": "fedavg"},
    "ifca": {"algorithm": "ifca", "start": "uniform"},
    "ifca-mean": {"algorithm": "ifca", "start": "perturbed_mean"},
    "dimred": {"algorithm": "algorithm2", "start": "algorithm1", "reduction": "eigenvectors"},
    "algorithm2": {"algorithm": "algorithm2", "start": "algorithm1"},
    "algorithm2-mean": {"algorithm": "algorithm2", "start": "perturbed_mean"},
}
# Every round of Algorithm 3 draws its centres afresh, so a few rounds at the noise of 50 are as good as 50. Floors are
# those that did best for each noise on another data set of the preset.
PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    "kov": {
        "fedavg": {"clusters": 1, "rounds": 1, "published_rounds": 1, "published_floor": 1e-4},
        "ifca": {"algorithm": "published_ifca", "start": "uniform", "rounds": 50},
        "dimred": {"reduction": "eigenvectors", "rounds": 5},
        "algorithm2": {"rounds": 5},
    },
    "exact": {
        "fedavg": {"clusters": 1, "rounds": 1, "published_rounds": 1, "published_floor": 1e-4},
        "ifca": {"algorithm": "published_ifca", "start": "uniform", "rounds": 50},
        "dimred": {"reduction": "eigenvectors", "rounds": 15},
        "algorithm2": {"rounds": 15},
    },
}
LITERAL: dict[str, Any] = {"algorithm": "published", "rounds": 3, "published_noise": "mean"}
SOUND: dict[str, dict[str, Any]] = {"fedavg": {"clusters": 1}, "dimred": {"reduction": "frequency"}, "algorithm2": {}}


# --- conditions and measurements ------------------------------------------------------------------------------------


def conditions(options: Options) -> dict[str, Condition]:
    wanted = [("non-private", name, settings) for name, settings in NON_PRIVATE.items()]
    wanted += [
        (f"faithful-{accounting}", name, {"algorithm": "published", **settings, "accounting": accounting})
        for accounting, trainings in PUBLISHED.items()
        for name, settings in trainings.items()
    ]
    wanted += [("literal", "algorithm2", LITERAL)]
    wanted += [(f"sound-{epsilon:g}", name, settings) for epsilon in EPSILONS for name, settings in SOUND.items()]
    truth = {} if options.population else {"oracle": Condition("truth", {"column": "oracle"})}
    return truth | {
        f"{column}-{name}": Condition(f"{column} {name}", {"column": column, "settings": settings})
        for column, name, settings in wanted
    }


def check(options: Options) -> None:
    if options.population is None:
        return
    population = Population.open(options.population)
    if population.kind != "counts":
        raise WrongKind(f"population {population.path.name!r} holds {population.kind}, not counts.")
    check_public(population)
    if not population.has_heldout:
        raise PopulationError(f"population {population.path.name!r} has no held-out part.", "Ingest it with one.")


def clients(options: Options) -> int:
    return QUICK_CLIENTS if options.quick else FULL_CLIENTS


def measure(trial: Trial) -> dict:
    column, seed, place = trial["column"], trial.seed, trial.place
    path = Path(trial.options.population or place.folder / "populations" / f"{PRESET}-{seed}")
    if not path.exists():
        synthesise(path, PRESET, seed, {"clients": clients(trial.options)})
    population = Population.open(path)
    if column == "oracle":
        return oracle(place, population, settings_of(PRESET, {"clients": clients(trial.options)}), seed)
    epsilon = float(column.removeprefix("sound-")) if column.startswith("sound-") else None
    budget = None if epsilon is None else (epsilon, DELTA)
    name = "paper_histograms" if epsilon is None else "histograms"
    method, state = simulate(place, trial.key, name, dict(trial["settings"]), population, seed=seed, budget=budget)
    return _scores(place, population, method, state)


# --- the table ------------------------------------------------------------------------------------------------------

TITLES = {
    "non-private": "non-private",
    "faithful-kov": "faithful, theorem",
    "faithful-exact": "faithful, exact",
    **{f"sound-{epsilon:g}": f"sound ε {epsilon:g}" for epsilon in EPSILONS},
}
SHOWN = list(TITLES.values())


def values(found: Found, column: str, training: str, score: str) -> list[float]:
    """The score with every seed; empty if the column has no such training."""
    condition = training if training == "oracle" and column == "non-private" else f"{column}-{training}"
    return [one[score] for one in found[condition] if score in one] if condition in found else []


def rows(found: Found) -> Iterator[Row]:
    for ft in ("", " + FT"):
        for line, (training, score) in LINES.items():
            if ft and line in WITHOUT_FT:
                continue
            texts = {}
            for column, title in TITLES.items():
                # The mean of a faithful run is exact; what it publishes is its one centre.
                own = "Algorithm 2" if column.startswith("faithful") and line == "FedAvg" else score
                source = "algorithm2" if column.startswith("sound") and score == "Local mixture" else training
                texts[title] = shown(values(found, column, source, own + ft))
            if any(texts.values()):
                exact, private = (f"{value:.3f}" for value in PAPER[line + ft]) if line + ft in PAPER else ("", "")
                yield Row({"estimate": line + ft}, texts={**texts, "paper": exact, "paper, private": private})


def notes(found: Found) -> list[str]:
    note = values(found, "literal", "algorithm2", "Algorithm 2")
    return [
        "Data: not the paper's, which are not available. + FT: mixed with the client's own histogram; its "
        "weight is chosen on a fifth of the clients that have held-out tokens, and the others are scored.",
        "faithful: Algorithm 3 as printed on rows of clients (Algorithm 1), DimRed without noise: epsilon 15 "
        "is what the paper's argument claims for it, but it is not private. theorem: noise by the paper's "
        "composition theorem, corrected (KOV15); exact: by exact composition over the same 50 rounds.",
        f"Noise on the mean, as line 4 of Algorithm 3 is printed (theorem's noise): Algorithm 2 {shown(note)}.",
        f"sound: the whole pipeline at this total epsilon, delta {DELTA:g}, one client's data added or "
        "removed; DimRed keeps the most frequent tokens of the noised mean; the local mixture is over the "
        "same centres.",
        f"Local is a statement about its smoothing, {scores.SMOOTHING:g}.",
    ]


def figure(found: Found) -> bytes:
    from fedcore.evaluation.curves import curves_figure

    curves = {}
    for line in ("FedAvg", "Algorithm 2", "FedAvg + FT", "Algorithm 2 + FT", "Local mixture + FT"):
        training = "fedavg" if line.startswith("FedAvg") else "algorithm2"
        at = [mean_and_interval(values(found, f"sound-{epsilon:g}", training, line)) for epsilon in EPSILONS]
        curves[line] = range(len(at)), [middle for middle, _ in at], [half or 0.0 for _, half in at]
    ticks = [f"{epsilon:g}" for epsilon in EPSILONS]
    title = "Sound private estimates by total epsilon"
    return curves_figure(curves, title, "total epsilon", "mean KL, nats", ticks=ticks)


def heading(found: Found) -> str:
    where = found.options.population or f"preset {PRESET}, n = {clients(found.options)}"
    return f"; {where}, {len(found.seeds)} seeds, 95 % intervals"


# --- truth ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Truth:
    """centres (k, d), weights (k,), clusters (heldout clients,): what made the synthetic population."""

    centres: np.ndarray
    weights: np.ndarray
    clusters: np.ndarray


def oracle_leaf(truth: Truth, leaf: CountsBlock) -> Statistics:
    """Sums of KL of both oracle estimates for every alpha of the grid, over validation and evaluated clients.

    Raises ValueError if the leaf has no held-out part.
    """
    heldout, d = leaf.heldout, leaf.features
    if heldout is None:
        raise ValueError("the block has no held-out counts")
    client = np.repeat(np.arange(leaf.clients), np.diff(heldout.indptr))
    test = heldout.data * inverse_totals(heldout)[client]
    constant = segment_sums(test * np.log(test), heldout.indptr)
    numbers = np.minimum(leaf.first + np.arange(leaf.clients), len(truth.clusters) - 1)  # beyond: nothing held out
    known = known_clusters(truth.clusters[numbers], len(truth.centres))
    losses: dict[str, list[np.ndarray]] = {"centre known": [], "mixture": []}
    for alpha in scores.PRIOR_TOKENS:
        guessed = posterior_clusters(leaf, truth.centres, truth.weights, alpha)
        for name, responsibilities in (("centre known", known), ("mixture", guessed)):
            p = oracle_values(leaf, client, heldout.indices, responsibilities, truth.centres, alpha)
            smooth = (p + scores.SMOOTHING) / (1 + d * scores.SMOOTHING)
            losses[name].append(constant - segment_sums(test * np.log(smooth), heldout.indptr))
    validation, usable = scores.validation_clients(leaf.first, leaf.clients), heldout.totals > 0
    statistics: dict[str, Statistic] = {"evaluated_clients": FloatSum.at(leaf.leaf, np.sum(usable & ~validation))}
    for name, lines in losses.items():
        for part, chosen in (("validation", usable & validation), ("evaluated", usable & ~validation)):
            statistics[f"{part} {name}"] = FloatSum.at(leaf.leaf, np.stack(lines)[:, chosen].sum(axis=1))
    return statistics


def oracle(place: Place, population: Population, settings: SyntheticSettings, seed: int) -> dict:
    truth = Truth(
        true_centres(settings, seed),
        cluster_weights(settings),
        true_clusters(settings, seed, 0, settings.heldout_clients),
    )
    statistics = over_heldout(place, population, oracle_leaf, truth)
    found = {}
    for name in ("centre known", "mixture"):
        best = int(np.argmin(statistics[f"validation {name}"]))
        found[name] = float(statistics[f"evaluated {name}"][best] / statistics["evaluated_clients"])
    return found | _scores(place, population, PaperHistograms(), _state_of(truth))


def _state_of(truth: Truth) -> HistogramsState:
    """The state of a run that has learnt the truth."""
    k, d = truth.centres.shape
    public = PublicFacts("counts", d, 1, None, 1, None, 0)
    state = initial_state("done", sizes_of(Algorithm2(clusters=k), public), public)
    return replace(state, round=1, centres=truth.centres, counts=truth.weights, mean=truth.weights @ truth.centres)


# --- scores ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trained:
    method: AnyMethod
    state: HistogramsState


def score_leaf(trained: Trained, leaf: CountsBlock) -> Statistics:
    return trained.method.score_block(trained.state, leaf, None)


def _scores(place: Place, population: Population, method: AnyMethod, state: HistogramsState) -> dict:
    """Mean KL by estimate; + FT with the weight chosen on the validation clients."""
    table = method.score_table(over_heldout(place, population, score_leaf, Trained(method, state)))
    found: dict[str, float] = {}
    for row in table.to_json("")["rows"]:
        if row["chosen_by"] == "validation clients" or (row["prior_tokens"] is None and not row["chosen_by"]):
            found.setdefault(row["method"], row["kl"])  # Local is there twice; the first is at the usual smoothing
    return found


# --- the experiment -------------------------------------------------------------------------------------------------

TABLE_1 = Experiment(
    name="histograms-table1",
    title="Mean KL(held out || estimate), nats",
    heading=heading,
    conditions=conditions,
    check=check,
    population=True,
    seeds=Seeds(SEEDS),
    measure=measure,
    rows=rows,
    columns=lambda options: dict.fromkeys(
        ("paper", "non-private", "paper, private", *list(TITLES.values())[1:]), given
    ),
    notes=notes,
    figure=figure,
)
