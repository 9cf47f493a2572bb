"""Hidden cells of tables of species: models that choose their rank or penalty, and soft-impute.

Tables, hidden cells and the score are those of `fedcore.papers.fedem.missing`; all rows are in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from fedcore.papers.data import rows_population
from fedcore.papers.fedem import missing
from fedcore.papers.fedem.missing import COLUMN_MEANS, SOFT_PENALTIES, column_means, iterative_imputer, soft_imputed
from fedcore.papers.simulation import simulate
from fedcore.papers.table import Column, Condition, Experiment, Found, Seeds, Trial, verdict

from fedcore.interface.federated_mixture import FederatedMixture
from fedcore.methods.federated_em.models import model_of

MOST_COLUMNS = 100  # of the imputer; a mixture needs as many rows as columns
NEAR = 1.01  # times the least error
OURS = ("gaussian_tables", "gaussian_imputer", "FederatedMixture")
RIVALS = ("soft-impute", "IterativeImputer")


def measure(trial: Trial) -> dict:
    """Error of each method relative to the column means; None where it was not tried."""
    counts = missing.counts_of(trial["data"])
    seen, validation, hidden = missing.hide(counts, trial.seed)
    log, truth = np.log1p(seen), np.log1p(counts)
    kept, centre = ~np.isnan(log).all(axis=1), column_means(log)

    def error(estimate: np.ndarray, cells: np.ndarray) -> float:
        return float(np.sqrt(np.mean((estimate - truth)[cells] ** 2)))

    def trained(label: str, y: np.ndarray, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        key = f"{trial.key}-{label}"
        population = rows_population(trial.place, key, lambda: [y])
        method, state = simulate(
            trial.place, key, "federated_em", {"algorithm": "em", **settings}, population, seed=trial.seed
        )
        return method.config.decided(state.chosen), state

    def by_tables() -> np.ndarray:
        settings = {"model": "gaussian_tables", "table_rows": len(log), "nuclear_penalty": "auto"}
        _, state = trained("tables", log - centre, settings)
        return state.parameters()["natural"].reshape(log.shape) + centre

    def by_imputer() -> np.ndarray:
        config, state = trained("imputer", log[kept], {"model": "gaussian_imputer", "rank": "auto"})
        y = (log[kept] - state.centre) / state.scale
        rows = model_of(config, state.scaling()).personalise(state.parameters(), y)["imputed"]
        return _with(centre, kept, rows * state.scale + state.centre)

    soft = min((soft_imputed(log, one) for one in SOFT_PENALTIES), key=lambda estimate: error(estimate, validation))
    found = {"soft-impute": error(soft, hidden), "gaussian_tables": error(by_tables(), hidden)}
    iterative = iterative_imputer(log)
    if iterative is not None:
        found["IterativeImputer"] = error(iterative, hidden)
    if log.shape[1] <= MOST_COLUMNS:
        found["gaussian_imputer"] = error(by_imputer(), hidden)
    if log.shape[1] <= len(log):
        mixture = FederatedMixture("auto", random_state=trial.seed).fit(log[kept])
        found["FederatedMixture"] = error(_with(centre, kept, mixture.impute(log[kept])), hidden)
    least = error(centre, hidden)
    return {label: found[label] / least if label in found else None for label in (*OURS, *RIVALS)}


def _with(centre: np.ndarray, kept: np.ndarray, rows: np.ndarray) -> np.ndarray:
    estimate = np.array(centre)
    estimate[kept] = rows
    return estimate


def _median(found: Found, data: str, label: str) -> float:
    """inf where the method was not tried."""
    known = found.known_median(data, label)
    return float("inf") if known is None else known


def _column(label: str) -> Column:
    return lambda found, row: format(_median(found, str(row.of), label), ".3f")


def checks(found: Found) -> list[str]:
    lines = []
    for data in found.by_condition:
        ours, rival = (min(_median(found, data, label) for label in labels) for labels in (OURS, RIVALS))
        lines.append(f"{data}: {ours:.3f}, asked {NEAR:g} times {rival:.3f}, {verdict(ours <= NEAR * rival)}.")
    return lines


def figure(found: Found) -> bytes:
    from fedcore.evaluation.curves import Panel, panels_figure

    names = list(found.by_condition)
    curves = {one: (range(len(names)), [_median(found, data, one) for data in names]) for one in (*OURS, *RIVALS)}
    return panels_figure([Panel(curves, ", ".join(names), "table", "relative error")])


SPECIES = Experiment(
    name="imputation-species",
    title="Hidden cells of tables of species",
    conditions=lambda options: {one: Condition(one, {"data": one}, {"data": one}) for one in missing.tables(options)},
    measure=measure,
    columns=lambda options: {label: _column(label) for label in (*OURS, *RIVALS)},
    notes=lambda found: [
        f"Root mean square error of log(1 + count) relative to {COLUMN_MEANS}, median over the seeds. Ours choose "
        "their penalty, rank or number of components; soft-impute has the penalty that suits the cells held out for "
        f"the choice best. inf: not tried, for more than {MOST_COLUMNS} columns, or more columns than rows."
    ],
    checks=checks,
    figure=figure,
    seeds=Seeds(3, quick=1),
)
