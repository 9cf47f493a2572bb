"""Real tables of species by site with hidden cells: how well the federated models fill them in.

A fifth of the observed cells is hidden for the score, a tenth to choose each method's one setting. Sites are dealt to
five clients in turn. The scale is log(1 + count), on which the error of all methods is a root mean square, relative to
that of the column means.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from fedcore.papers.columns import brief
from fedcore.papers.data import data_file, needed_data, rows_population
from fedcore.papers.fedem import runs
from fedcore.papers.table import Found, Options, Row, Trial
from scipy.stats import poisson

from fedcore.methods.mixture_models.nuclear_norm import soft_threshold
from fedcore.randomness import stream

SOURCES = {
    "aravo": "abundance classes of 82 plants at 75 sites",
    "bci": "225 trees in 50 plots",
    "skylark": "a bird at 55 sites in 8 years, 54 % really missing",
}
FOLDER = "biodiversity"
CLIENTS = 5
HIDDEN, VALIDATION = 0.2, 0.1
PENALTIES = (4.0, 8.0, 16.0, 32.0)  # of all sites together; a fifth of it is the penalty of the mean of clients
SOFT_PENALTIES = (1.0, 2.0, 4.0, 8.0)
RANKS = (1, 2, 3, 5)
TABLE_ROUNDS, IMPUTER_ROUNDS = 100, 40
SOFT_STEPS = 300
COLUMN_MEANS = "column means"
Model = Callable[[Mapping[str, Any], float], tuple[np.ndarray, runs.Ran]]  # from settings, and the one to be chosen


def tables(options: Options) -> tuple[str, ...]:
    """Names of the tables that are there; two of them for a quick table."""
    there = tuple(name for name in SOURCES if data_file(FOLDER, f"{name}.npz") is not None)
    return tuple(name for name in there if name != "bci") if options.quick else there


def counts_of(name: str) -> np.ndarray:
    """(sites, columns) float64 counts, NaN where missing."""
    with np.load(needed_data(FOLDER, f"{name}.npz"), allow_pickle=False) as stored:
        return stored["counts"].astype(np.float64)


def hide(counts: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(counts with NaN in hidden cells too, cells for the choice, cells for the score); masks of the table's shape."""
    uniforms = np.where(np.isnan(counts), 1.0, stream(seed, "fedem-missing/hidden").random(counts.shape))
    hidden, validation = uniforms < HIDDEN, (uniforms >= HIDDEN) & (uniforms < HIDDEN + VALIDATION)
    return np.where(hidden | validation, np.nan, counts), validation, hidden


def hidden_results(trial: Trial) -> dict:
    """label: {error, setting, ...} of every method."""
    place, key, name, seed = trial.place, trial.key, trial["table"], trial.seed
    counts = counts_of(name)
    seen, validation, hidden = hide(counts, seed)
    truth = np.log1p(counts)

    def error(estimate: np.ndarray, cells: np.ndarray) -> float:
        return float(np.sqrt(np.mean((estimate[cells] - truth[cells]) ** 2)))

    def best(settings: Sequence[float], estimate: Callable[[float], np.ndarray]) -> tuple[float, np.ndarray]:
        found = [(setting, estimate(setting)) for setting in settings]
        return min(found, key=lambda each: error(each[1], validation))

    log = np.log1p(seen)
    found: dict[str, dict[str, Any]] = {COLUMN_MEANS: {"error": error(column_means(log), hidden)}}
    penalty, estimate = best(SOFT_PENALTIES, lambda penalty: soft_imputed(log, penalty))
    found["soft-impute, all sites in one place"] = {"error": error(estimate, hidden), "setting": f"penalty {penalty:g}"}
    imputed = iterative_imputer(log)
    if imputed is not None:
        found["IterativeImputer of scikit-learn"] = {"error": error(imputed, hidden)}

    dealt = [np.arange(client, len(counts), CLIENTS) for client in range(CLIENTS)]
    own_tables = rows_population(place, f"{name}-tables-{seed}", lambda: [_only(seen, own) for own in dealt])
    own_rows = rows_population(place, f"{name}-rows-{seed}", lambda: [log[own] for own in dealt])

    def poisson_tables(settings: Mapping[str, Any], penalty: float) -> tuple[np.ndarray, runs.Ran]:
        model = {"model": "poisson_tables", "table_rows": len(counts), "rounds": TABLE_ROUNDS}
        settings = {**settings, **model, "nuclear_penalty": penalty / CLIENTS}
        ran = runs.traced(place, key, settings, own_tables, seed, every=TABLE_ROUNDS)
        return expected_log(np.exp(ran.state.parameters()["natural"])), ran

    def gaussian_imputer(settings: Mapping[str, Any], rank: float) -> tuple[np.ndarray, runs.Ran]:
        settings = {**settings, "model": "gaussian_imputer", "rank": int(rank), "rounds": IMPUTER_ROUNDS}
        ran = runs.traced(place, key, settings, own_rows, seed, every=IMPUTER_ROUNDS)
        rows = runs.model_of(ran.method, ran.state).personalise(ran.state.parameters(), ran.rows)["imputed"]
        estimate = np.empty_like(log)
        estimate[np.concatenate(dealt)] = rows * ran.state.scale + ran.state.centre
        return estimate, ran

    def by_em(model: Model) -> Callable[[float], np.ndarray]:
        return lambda setting: model({"algorithm": "em"}, setting)[0]

    ranks = [rank for rank in RANKS if rank < counts.shape[1]]
    models: tuple[tuple[str, Model, Sequence[float], str, int], ...] = (
        ("poisson_tables", poisson_tables, PENALTIES, "penalty", 16),
        ("gaussian_imputer", gaussian_imputer, ranks, "rank", 64),
    )
    for label, model, choices, word, levels in models:
        setting, _ = best(choices, by_em(model))
        for algorithm, settings in (
            (f"{label}, EM", {"algorithm": "em", "gamma": 1.0}),
            (f"{label}, FedEM s {levels}", {"levels": levels, "gamma": 0.5}),
        ):
            estimate, ran = model(settings, setting)
            trace = ran.trace
            found[algorithm] = {
                "error": error(estimate, hidden),
                "setting": f"{word} {setting:g}",
                "rounds": ran.state.round,
                "mean_field": trace.mean_field[-1],
                "cut_back": int(trace.cut_back),
                "bits_up": trace.bits_up[-1],
                "raw_up": trace.raw_up,
            }
    return found


# --- methods to compare with ----------------------------------------------------------------------------------------


def column_means(log: np.ndarray) -> np.ndarray:
    """The mean of the seen cells of every column, in all its cells; the overall mean for a column without any."""
    seen = ~np.isnan(log)
    total, number = np.where(seen, log, 0.0).sum(axis=0), seen.sum(axis=0)
    overall = total.sum() / max(number.sum(), 1)
    return np.broadcast_to(np.where(number > 0, total / np.maximum(number, 1), overall), log.shape)


def soft_imputed(log: np.ndarray, penalty: float, steps: int = SOFT_STEPS) -> np.ndarray:
    """Mazumder, Hastie, Tibshirani 2010, on columns less their means."""
    centre = column_means(log)
    theta, seen = np.zeros(log.shape), ~np.isnan(log)
    for _ in range(steps):
        theta = soft_threshold(np.where(seen, log - centre, theta), penalty)
    return centre + theta


def iterative_imputer(log: np.ndarray) -> np.ndarray | None:
    """scikit-learn's, as it comes; None if scikit-learn is not installed."""
    try:
        from sklearn.experimental import enable_iterative_imputer  # noqa: F401
        from sklearn.impute import IterativeImputer
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that ten rounds were not enough
        return IterativeImputer(random_state=0, keep_empty_features=True).fit_transform(log)


def expected_log(intensity: np.ndarray) -> np.ndarray:
    """E log(1 + X) of Poisson counts X: what a count model expects on the scale of the score."""
    counts = np.arange(int(poisson.ppf(1 - 1e-12, intensity.max())) + 2)
    return np.stack([poisson.pmf(counts, row[:, None]) @ np.log1p(counts) for row in intensity])


def _only(seen: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The whole table with the rows of one client."""
    table = np.full_like(seen, np.nan)
    table[own] = seen[own]
    return table


# --- their lines in the table -----------------------------------------------------------------------------------------


def hidden_rows(found: Found, name: str) -> Iterator[Row]:
    """Errors relative to the column means, medians over the seeds; the rest of the first seed."""
    for label, first in found.one(f"real_{name}").items():
        ratio = np.median([cell[label]["error"] / cell[COLUMN_MEANS]["error"] for cell in found[f"real_{name}"]])
        values = {"error": f"{ratio:.3f}"}
        if "rounds" in first:
            values |= {
                "‖h‖²": brief(first["mean_field"]),
                "rounds": f"{first['rounds']}",
                "cut back": f"{first['cut_back']}",
                "MB up": f"{first['bits_up'] / 8e6:.4g}",
                "raw MB": f"{first['raw_up'] / 8e6:.4g}",
            }
        method = f"{label} ({first['setting']})" if "setting" in first else label
        yield Row({"data": f"{name}, hidden cells", "method": method}, None, values)


def hidden_notes(options: Options) -> list[str]:
    there = tables(options)
    if not there:
        return ["Real tables are left out: FEDCORE_DATA names no folder with biodiversity/*.npz."]
    return [
        f"hidden cells: {', '.join(f'{name} ({SOURCES[name]})' for name in there)}; {HIDDEN:.0%} of the observed cells "
        f"hidden for the score, {VALIDATION:.0%} to choose the setting in brackets; sites dealt to {CLIENTS} clients. "
        "error: root mean square on log(1 + count), relative to the column means. poisson_tables fits counts (scored "
        "by E log(1 + X)), the others log(1 + count); soft-impute without the column means. IterativeImputer: "
        "scikit-learn's defaults, a row only where it is installed. Rounds, bits and ‖h‖² are of the first seed."
    ]
