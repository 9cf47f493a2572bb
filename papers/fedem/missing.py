"""FedMissEM: federated EM over incomplete tables, on drawn tables and on real ones with hidden cells.

The application of Dieuleveut, Fort, Moulines, Robin 2021 is to counts of birds, which need a licence. Here:

    gaussian, poisson   many observers see 40 % of one low-rank table each, and a quarter of the cells is seen by nobody
    trend               a seasonal Poisson table with 99 % of its cells missing; its monthly totals are asked for
    real                tables of species by site of FEDCORE_DATA, if there are any, with cells hidden; see
                        `fedcore.papers.fedem.hidden_cells`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np
from fedcore.papers.experiment import Cell, Options, Place, ResultTable
from fedcore.papers.fedem import hidden_cells as real
from fedcore.papers.fedem import runs

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


class FedEMMissing:
    """See the module. A `fedcore.papers.experiment.Experiment`."""

    name = "fedem-missing"
    title = "Federated EM over incomplete tables"

    def cells(self, options: Options, place: Place) -> Sequence[Cell]:
        runs.own_data_only(options)
        found = []
        for seed in runs.seeds_of(options):
            found += [
                Cell(
                    f"{line}-{seed}", f"{data} {label}, seed {seed}", {"data": data, "settings": settings, "seed": seed}
                )
                for line, (data, label, settings) in lines(options).items()
            ]
            found += [
                Cell(f"real_{name}-{seed}", f"{name}, seed {seed}", {"data": "real", "table": name, "seed": seed})
                for name in real.tables(options)
            ]
        return found

    def compute(self, cell: Cell, options: Options, place: Place) -> dict:
        data, seed = cell.arguments["data"], cell.arguments["seed"]
        if data == "real":
            return real.compute(place, cell.key, cell.arguments["table"], seed, options)
        if data in TRENDS:
            return trend_results(place, cell, seed)
        population = runs.rows_population(place, f"{data}-{seed}", partial(observers_of, data, seed), "synthetic")
        ran = runs.traced(place, cell.key, cell.arguments["settings"], population, seed)
        theta, (truth, never) = ran.state.parameters()["natural"], truth_of(data, seed)
        model = cast(LowRankTables, runs.model_of(ran.method, ran.state))
        spectral, along = model.optimality(ran.state.parameters(), ran.rows)
        return ran.results() | {
            "error": relative_error(theta, truth, never),
            "natural": theta.ravel().tolist(),
            "optimality": max(spectral, abs(along)),
        }

    def table(self, options: Options, results: Mapping[str, dict]) -> ResultTable:
        rows = []
        for line, (data, label, _) in lines(options).items():
            median, known = partial(runs.median_of, results, line), partial(runs.known_median, results, line)
            rows.append(
                _row(
                    TITLES[data],
                    label,
                    error=runs.brief(median(lambda c: c.get("error")), ".3f", never=""),
                    correlation=runs.brief(median(lambda c: c.get("correlation")), ".3f", never=""),
                    field=runs.brief(known(lambda c: runs.tail(c["mean_field"]))),
                    away="" if data in TRENDS or label == "EM" else runs.brief(away(results, line, f"{data}_em")),
                    rounds=f"{known(lambda c: len(c['epochs']) - 1):g}",
                    cut=f"{known(lambda c: c['cut_back']):g}",
                    up=f"{known(lambda c: c['bits_up'][-1]) / 8e6:.4g}",
                    raw=f"{known(lambda c: c['raw_up']) / 8e6:.4g}",
                )
            )
        for name in TRENDS if not options.quick else ("each",):
            plain = runs.known_median(results, f"{name}_em", lambda c: c["plain"])
            rows.append(_row(TITLES[name], "mean count of a month", correlation=f"{plain:.3f}"))
        for name in real.tables(options):
            rows += [
                _row(f"{name}, hidden cells", label, **values) for label, values in real.rows(results, name).items()
            ]
        return ResultTable(self.title, rows, [*NOTES, *real.notes(options), *findings(results, options)])

    def figure(self, options: Options, results: Mapping[str, dict]) -> bytes:
        from fedcore.evaluation.curves import Panel, panels_figure

        panels = []
        for family in ("gaussian", "poisson"):
            curves = {
                label: (range(len(cell["mean_field"])), cell["mean_field"])
                for line, (data, label, _) in lines(options).items()
                if data == family
                for cell in [results[f"{line}-1"]]
            }
            panels.append(Panel(curves, TITLES[family], "rounds", "‖h‖²", log_y=True))
        cell = results["each_fedem-1"]
        months = {
            "truth": (range(len(cell["truth"])), cell["truth"]),
            "FedEM": (range(len(cell["estimate"])), cell["estimate"]),
        }
        panels.append(Panel(months, f"{TITLES['each']}: expected counts of all sites", "months", "counts"))
        return panels_figure(panels)


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


def _row(
    data: str,
    method: str,
    *,
    error: str = "",
    correlation: str = "",
    field: str = "",
    away: str = "",
    rounds: str = "",
    cut: str = "",
    up: str = "",
    raw: str = "",
) -> dict[str, str]:
    return {
        "data": data,
        "method": method,
        "error": error,
        "correlation": correlation,
        "‖h‖²": field,
        "θ off EM's": away,
        "rounds": rounds,
        "cut back": cut,
        "MB up": up,
        "raw MB": raw,
    }


def levels_of(options: Options) -> tuple[int, ...]:
    return LEVELS[:1] if options.quick else LEVELS


def lines(options: Options) -> dict[str, tuple[str, str, dict]]:
    """line: (data, label, settings)."""
    found = {}
    for family in ("gaussian", "poisson"):
        common = {"model": f"{family}_tables", "table_rows": SITES, "nuclear_penalty": PENALTY, "rounds": ROUNDS}
        found[f"{family}_em"] = family, "EM", {**common, "algorithm": "em", "gamma": 1.0}
        for algorithm, name in (("fedem", "FedEM"), ("naive", "naive")):
            if options.quick and family == "poisson":
                continue
            for levels in levels_of(options):
                settings = {**common, **FEDEM, "algorithm": algorithm, "levels": levels}
                found[f"{family}_{algorithm}_{levels}"] = family, f"{name}, s {levels}", settings
    for trend, (_, sites, _, _) in TRENDS.items():
        if options.quick and trend == "pooled":
            continue
        common = {**TREND, "table_rows": sites, "rounds": TREND_ROUNDS}
        found[f"{trend}_em"] = trend, "EM", {**common, "algorithm": "em", "gamma": 1.0}
        found[f"{trend}_fedem"] = trend, "FedEM, s 4, γ .5", {**common, "levels": 4, "gamma": 0.5}
    return found


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


def away(results: Mapping[str, dict], line: str, reference: str) -> float:
    """Largest difference of a natural parameter between two lines; the median over the seeds."""
    gaps = [
        np.max(np.abs(np.subtract(cell["natural"], results[f"{reference}-{key.rpartition('-')[2]}"]["natural"])))
        for key, cell in results.items()
        if key.rpartition("-")[0] == line
    ]
    return float(np.median(gaps))


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


def trend_results(place: Place, cell: Cell, seed: int) -> dict:
    """correlation: of estimated and true monthly totals; plain: of the mean observed count of every month instead."""
    name = cell.arguments["data"]
    population = runs.rows_population(place, f"{name}-{seed}", partial(groups_of, name, seed), "synthetic")
    ran = runs.traced(place, cell.key, cell.arguments["settings"], population, seed)
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


def findings(results: Mapping[str, dict], options: Options) -> list[str]:
    def field(line: str) -> float:
        return runs.known_median(results, line, lambda cell: runs.tail(cell["mean_field"]))

    levels = levels_of(options)
    fields = [field(f"gaussian_fedem_{s}") for s in levels]
    gaps = [away(results, f"gaussian_fedem_{s}", "gaussian_em") for s in levels]
    naive = [field(f"gaussian_naive_{s}") for s in levels]
    error = runs.known_median(results, "poisson_em", lambda cell: cell["error"])
    optimal = {
        family: runs.known_median(results, f"{family}_em", lambda cell: cell["optimality"])
        for family in ("gaussian", "poisson")
    }
    trends = {
        line: runs.known_median(results, line, lambda cell: cell["correlation"])
        for line, (data, *_) in lines(options).items()
        if data in TRENDS
    }
    listed = ", ".join(f"{line.replace('_', ' ')} {value:.3f}" for line, value in trends.items())
    return [
        f"Gaussian, compressed: ‖h‖² {_by_levels(levels, fields)}, asked < {SETTLED:.0e}, "
        f"{runs.verdict(max(fields) < SETTLED)}; θ off EM's {_by_levels(levels, gaps)}, asked < {NEAR_EM:.0e}, "
        f"{runs.verdict(max(gaps) < NEAR_EM)}.",
        f"Gaussian, without memories: ‖h‖² {_by_levels(levels, naive)}, asked > {BROKEN:g}, "
        f"{runs.verdict(min(naive) > BROKEN)}.",
        f"Poisson EM: error {error:.3f}, asked < {POISSON_ERROR:g}, {runs.verdict(error < POISSON_ERROR)}.",
        f"EM's θ minimises the observed objective (a check without EM): off by {optimal['gaussian']:.1e} and "
        f"{optimal['poisson']:.1e}, asked < {OPTIMAL:.0e}, {runs.verdict(max(optimal.values()) < OPTIMAL)}.",
        f"Trends: correlation {listed}; asked > {CORRELATION:g}, "
        f"{runs.verdict(min(trends.values()) > CORRELATION)}. With visits at random the mean observed count of a month "
        "does about as well, so this asks little.",
    ]


def _by_levels(levels: Sequence[int], values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1e} (s {s})" for s, value in zip(levels, values, strict=True))
