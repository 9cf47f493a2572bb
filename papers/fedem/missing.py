"""FedMissEM: federated EM over incomplete tables, on drawn tables and on real ones with hidden cells.

The application of Dieuleveut, Fort, Moulines, Robin 2021 is to counts of birds, which need a licence. Here:

    gaussian, poisson   many observers see 40 % of one low-rank table each, and a quarter of the cells is seen by nobody
    trend               a seasonal Poisson table with 99 % of its cells missing; its monthly totals are asked for
    real                tables of species by site of FEDCORE_DATA, if there are any, with cells hidden; see
                        `fedcore.papers.fedem.hidden_cells`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import numpy as np
from fedcore.papers.columns import brief, median, verdict
from fedcore.papers.data import rows_population
from fedcore.papers.fedem import runs
from fedcore.papers.fedem.hidden_cells import hidden_notes, hidden_results, hidden_rows, tables
from fedcore.papers.table import Condition, Experiment, Found, Options, Row, Trial, line_for_each

from fedcore.methods.mixture_models.low_rank_tables import LowRankTables
from fedcore.methods.mixture_models.nuclear_norm import Family, mean
from fedcore.randomness import stream

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
                settings = {**common, **FEDEM, "algorithm": algorithm, "levels": levels}
                add(f"{algorithm}_{levels}", family, f"{name}, s {levels}", settings)
    for trend in trends_of(options):
        common = {**TREND, "table_rows": TRENDS[trend][1], "rounds": TREND_ROUNDS}
        add("em", trend, "EM", {**common, "algorithm": "em", "gamma": 1.0})
        add("fedem", trend, "FedEM, s 4, γ .5", {**common, "levels": 4, "gamma": 0.5})
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
