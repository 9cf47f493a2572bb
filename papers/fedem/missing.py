"""FedMissEM: federated EM over incomplete tables, on drawn tables and on real ones with hidden cells.

The application of Dieuleveut, Fort, Moulines, Robin 2021 is to counts of birds, which need a licence. Here:

    gaussian, poisson   many observers see 40 % of one low-rank table each, and a quarter of the cells is seen by nobody
    trend               a seasonal Poisson table with 99 % of its cells missing; its monthly totals are asked for
    real                tables of species by site of FEDCORE_DATA, if there are any, with cells hidden

Of the cells observed in a real table a fifth is hidden for the score, a tenth to choose each method's one setting.
Sites are dealt to five clients in turn. The scale is log(1 + count), on which the error of all methods is a root mean
square, relative to that of the column means.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from fedcore.papers.data import data_file, needed_data, rows_population
from fedcore.papers.fedem import runs
from fedcore.papers.table import (
    Condition,
    Experiment,
    Found,
    Options,
    Row,
    Trial,
    brief,
    line_for_each,
    median,
    verdict,
)
from scipy.stats import poisson

from fedcore.methods.mixture_models.low_rank_tables import LowRankTables
from fedcore.methods.mixture_models.nuclear_norm import Family, mean, soft_threshold
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
            (f"{label}, FedEM s {levels}", {"codec": levels, "gamma": 0.5}),
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


OBSERVERS, SITES, MONTHS, RANK = 50, 60, 40, 2
OBSERVED, NEVER = 0.4, 0.25
SPREAD = 0.35  # standard deviation of the natural parameters; EM slows down where intensities differ more
ROUNDS, PENALTY = 300, 0.5
FEDEM = {"gamma": 0.5, "participation": 0.75, "norms_by_part": False}
LEVELS = (4, 16)

# trend: groups of observers, sites, months, share that is missing, whether that is of the cells of every group's table
# or of the cells that any group has seen
TRENDS = {"each": (10, 200, 60, 0.99), "pooled": (10, 2000, 48, 0.99)}
TREND_ROUNDS = 100
TREND = {"model": "poisson_tables", "rank": 2, "nuclear_penalty": PENALTY}
SITE_SPREAD, LEVEL, SEASON, GROWTH = 0.7, 1.0, 0.8, 0.01  # of the log-intensity

# Orders of magnitude that an implementation must reach (ours to state; the paper shows figures)
SETTLED, NEAR_EM, BROKEN = 1e-6, 1e-4, 1.0
POISSON_ERROR, OPTIMAL, CORRELATION = 0.5, 1e-6, 0.9


TITLES = {
    "gaussian": "Gaussian",
    "poisson": "Poisson",
    "each": "trend, 99 % of each table missing",
    "pooled": "trend, 99 % of cells seen by nobody",
}
NOTES = (
    f"Gaussian, Poisson: {OBSERVERS} observers of one table of {SITES} sites and {MONTHS} months with natural "
    f"parameters of rank {RANK} and standard deviation {SPREAD:g}; {NEVER:.0%} of the cells are seen by nobody, each "
    f"other one by an observer with probability {OBSERVED:g}; nuclear penalty {PENALTY:g}; FedEM with γ .5, p .75, "
    f"dithering with s levels and one 2-norm for all {SITES * MONTHS} cells, {ROUNDS} rounds. error: on the cells that "
    "nobody saw, root mean square of estimated less true natural parameters, relative to that of their true mean.",
    "‖h‖²: median over the last fifth of the rounds; where it is not small, the run has not converged. θ off EM's: "
    "largest difference of a natural parameter to EM's after as many rounds. MB up: of all messages with their real "
    "code, first memories included and uncompressed; raw: without a codec. Messages to the clients are not compressed.",
    f"trend: 10 groups of observers, log-intensity {LEVEL:g} + a site's N(0, {SITE_SPREAD:g}²) + {SEASON:g} sin(2 π "
    f"month / 12) + {GROWTH:g} month, visits at random, rank at most 2, {TREND_ROUNDS} rounds; correlation of the "
    "estimated monthly totals over all sites with the true ones; after so few rounds the seasons are flatter than the "
    "true ones. The paper's data (eBird, France) need a licence.",
)


def levels_of(options: Options) -> tuple[int, ...]:
    return LEVELS[:1] if options.quick else LEVELS


def conditions(options: Options) -> dict[str, Condition]:
    found = {}

    def add(line: str, data: str, label: str, settings: dict) -> None:
        unlike = {"θ off EM's": ""} if data in TRENDS or label == "EM" else {}
        asked = {"data": data, "settings": settings}
        found[f"{data}_{line}"] = Condition(f"{data} {label}", asked, {"data": TITLES[data], "method": label}, unlike)

    for family in ("gaussian", "poisson"):
        common = {"model": f"{family}_tables", "table_rows": SITES, "nuclear_penalty": PENALTY, "rounds": ROUNDS}
        add("em", family, "EM", {**common, "algorithm": "em", "gamma": 1.0})
        for algorithm, name in (("fedem", "FedEM"), ("naive", "naive")):
            for levels in () if options.quick and family == "poisson" else levels_of(options):
                settings = {**common, **FEDEM, "algorithm": algorithm, "codec": levels}
                add(f"{algorithm}_{levels}", family, f"{name}, s {levels}", settings)
    for trend in trends_of(options):
        common = {**TREND, "table_rows": TRENDS[trend][1], "rounds": TREND_ROUNDS}
        add("em", trend, "EM", {**common, "algorithm": "em", "gamma": 1.0})
        add("fedem", trend, "FedEM, s 4, γ .5", {**common, "codec": 4, "gamma": 0.5})
    real = {f"real_{name}": Condition(name, {"data": "real", "table": name}) for name in tables(options)}
    return found | real


def trends_of(options: Options) -> list[str]:
    return [trend for trend in TRENDS if not (options.quick and trend == "pooled")]


def measure(trial: Trial) -> dict:
    data, seed = trial["data"], trial.seed
    if data == "real":
        return hidden_results(trial)
    if data in TRENDS:
        return trend_results(trial)
    population = rows_population(trial.place, f"{data}-{seed}", partial(observers_of, data, seed), "synthetic")
    ran = runs.traced(trial.place, trial.key, trial["settings"], population, seed)
    theta, (truth, never) = ran.state.parameters()["natural"], truth_of(data, seed)
    model = cast(LowRankTables, runs.model_of(ran.method, ran.state))
    spectral, along = model.optimality(ran.state.parameters(), ran.rows)
    return ran.results() | {
        "error": relative_error(theta, truth, never),
        "natural": theta.ravel().tolist(),
        "optimality": max(spectral, abs(along)),
    }


# --- drawn tables ---------------------------------------------------------------------------------------------------


def truth_of(family: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(SITES, MONTHS) natural parameters, and which cells nobody sees."""
    generator = stream(seed, f"fedem-missing/{family}")
    left, right = generator.standard_normal((SITES, RANK)), generator.standard_normal((MONTHS, RANK))
    return SPREAD * left @ right.T / np.sqrt(RANK), generator.random((SITES, MONTHS)) < NEVER


def observers_of(family: str, seed: int) -> list[np.ndarray]:
    truth, never = truth_of(family, seed)
    generator = stream(seed, f"fedem-missing/{family}/observers")
    tables = []
    for _ in range(OBSERVERS):
        x = _drawn(generator, family, truth)
        tables.append(np.where(never | (generator.random(truth.shape) >= OBSERVED), np.nan, x))
    return tables


def _drawn(generator: np.random.Generator, family: str, natural: np.ndarray) -> np.ndarray:
    expected = mean(cast(Family, family), natural)
    if family == "gaussian":
        return expected + generator.standard_normal(expected.shape)
    return generator.poisson(expected).astype(np.float64)


def relative_error(natural: np.ndarray, truth: np.ndarray, never: np.ndarray) -> float:
    """On the cells that nobody saw; 1 for their true mean."""
    gap = natural[never] - truth[never]
    return float(np.sqrt(np.mean(gap**2)) / np.std(truth[never]))


def away(found: Found, line: str, reference: str) -> float:
    """Largest difference of a natural parameter between two lines; the median over the seeds."""
    pairs = zip(found.values(line, "natural"), found.values(reference, "natural"), strict=True)
    return float(np.median([np.max(np.abs(np.subtract(one, other))) for one, other in pairs]))


# --- trends ---------------------------------------------------------------------------------------------------------


def trend_truth(name: str, seed: int) -> np.ndarray:
    """(sites, months) log-intensities."""
    _, sites, months, _ = TRENDS[name]
    month = np.arange(months)
    season = LEVEL + SEASON * np.sin(2 * np.pi * month / 12) + GROWTH * month
    return SITE_SPREAD * stream(seed, f"fedem-missing/{name}").standard_normal(sites)[:, None] + season


def groups_of(name: str, seed: int) -> list[np.ndarray]:
    """The tables of the groups; "pooled": every cell that is seen is seen by one of them."""
    groups, sites, months, missing = TRENDS[name]
    generator, intensity = stream(seed, f"fedem-missing/{name}/groups"), np.exp(trend_truth(name, seed))
    shape = (groups, sites, months)
    if name == "pooled":
        owner = generator.integers(0, groups, shape[1:])
        seen = (owner == np.arange(groups)[:, None, None]) & (generator.random(shape[1:]) >= missing)
    else:
        seen = generator.random(shape) >= missing
    return list(np.where(seen, generator.poisson(intensity, shape), np.nan))


def trend_results(trial: Trial) -> dict:
    """correlation: of estimated and true monthly totals; plain: of the mean observed count of every month instead."""
    name, seed = trial["data"], trial.seed
    population = rows_population(trial.place, f"{name}-{seed}", partial(groups_of, name, seed), "synthetic")
    ran = runs.traced(trial.place, trial.key, trial["settings"], population, seed)
    truth = np.exp(trend_truth(name, seed)).sum(axis=0)
    estimate = np.exp(ran.state.parameters()["natural"]).sum(axis=0)
    tables = ran.rows.reshape(-1, *trend_truth(name, seed).shape)
    visited = ~np.isnan(tables).all(axis=(0, 1))
    plain = np.nanmean(tables[:, :, visited], axis=(0, 1))
    return ran.results() | {
        "correlation": float(np.corrcoef(truth, estimate)[0, 1]),
        "truth": truth.tolist(),
        "estimate": estimate.tolist(),
        "plain": float(np.corrcoef(truth[visited], plain)[0, 1]),
    }


# --- what the table says --------------------------------------------------------------------------------------------


def end(cell: dict) -> float:
    return runs.tail(cell["mean_field"])


def findings(found: Found) -> list[str]:
    levels = levels_of(found.options)
    fields = [found.median(f"gaussian_fedem_{s}", end) for s in levels]
    gaps = [away(found, f"gaussian_fedem_{s}", "gaussian_em") for s in levels]
    naive = [found.median(f"gaussian_naive_{s}", end) for s in levels]
    error = found.median("poisson_em", "error")
    optimal = {family: found.median(f"{family}_em", "optimality") for family in ("gaussian", "poisson")}
    trends = {
        f"{trend}_{line}": found.median(f"{trend}_{line}", "correlation")
        for trend in trends_of(found.options)
        for line in ("em", "fedem")
    }
    listed = ", ".join(f"{line.replace('_', ' ')} {value:.3f}" for line, value in trends.items())
    return [
        f"Gaussian, compressed: ‖h‖² {_by_levels(levels, fields)}, asked < {SETTLED:.0e}, "
        f"{verdict(max(fields) < SETTLED)}; θ off EM's {_by_levels(levels, gaps)}, asked < {NEAR_EM:.0e}, "
        f"{verdict(max(gaps) < NEAR_EM)}.",
        f"Gaussian, without memories: ‖h‖² {_by_levels(levels, naive)}, asked > {BROKEN:g}, "
        f"{verdict(min(naive) > BROKEN)}.",
        f"Poisson EM: error {error:.3f}, asked < {POISSON_ERROR:g}, {verdict(error < POISSON_ERROR)}.",
        f"EM's θ minimises the observed objective (a check without EM): off by {optimal['gaussian']:.1e} and "
        f"{optimal['poisson']:.1e}, asked < {OPTIMAL:.0e}, {verdict(max(optimal.values()) < OPTIMAL)}.",
        f"Trends: correlation {listed}; asked > {CORRELATION:g}, "
        f"{verdict(min(trends.values()) > CORRELATION)}. With visits at random the mean observed count of a month "
        "does about as well, so this asks little.",
    ]


def _by_levels(levels: Sequence[int], values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1e} (s {s})" for s, value in zip(levels, values, strict=True))


# --- the experiment -------------------------------------------------------------------------------------------------


def rows(found: Found) -> Iterator[Row]:
    yield from line_for_each(found)
    for name in trends_of(found.options):
        plain = found.median(f"{name}_em", "plain")
        labels = {"data": TITLES[name], "method": "mean count of a month"}
        yield Row(labels, None, {"correlation": f"{plain:.3f}"})
    for name in tables(found.options):
        yield from hidden_rows(found, name)


def off_em(found: Found, row: Row) -> str:
    line = str(row.of)
    return brief(away(found, line, f"{line.split('_')[0]}_em"))


def figure(found: Found) -> bytes:
    from fedcore.evaluation.curves import Panel, panels_figure

    panels = []
    for family in ("gaussian", "poisson"):
        curves = {
            str(one.labels["method"]): (range(len(cell["mean_field"])), cell["mean_field"])
            for line, one in found.conditions.items()
            if line.startswith(family)
            for cell in [found.one(line)]
        }
        panels.append(Panel(curves, TITLES[family], "rounds", "‖h‖²", log_y=True))
    cell = found.one("each_fedem")
    of = {"truth": cell["truth"], "FedEM": cell["estimate"]}
    months = {label: (range(len(counts)), counts) for label, counts in of.items()}
    panels.append(Panel(months, f"{TITLES['each']}: expected counts of all sites", "months", "counts"))
    return panels_figure(panels)


MISSING = Experiment(
    name="fedem-missing",
    title="Federated EM over incomplete tables",
    conditions=conditions,
    measure=measure,
    rows=rows,
    columns=lambda options: {
        "error": median(lambda c: c.get("error"), ".3f", none=""),
        "correlation": median(lambda c: c.get("correlation"), ".3f", none=""),
        "‖h‖²": median(end),
        "θ off EM's": off_em,
        **{name: runs.COSTS[name] for name in ("rounds", "cut back", "MB up", "raw MB")},
    },
    notes=lambda found: [*NOTES, *hidden_notes(found.options)],
    checks=findings,
    figure=figure,
)
