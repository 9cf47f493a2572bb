"""Hidden cells of tables of continuous columns: a mixture that chooses its number of components, and other imputers.

A fifth of the cells is hidden at random. Columns are standardised by the cells that are left. No row loses all of its
cells, and of sets with more than `MOST_ROWS` rows as many are drawn. The error is the root mean square over the hidden
cells, in standard deviations of the columns.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from fedcore.papers.data import data_file
from fedcore.papers.fedem.defaults import MIXTURES
from fedcore.papers.fedem.missing import HIDDEN, column_means, iterative_imputer, soft_imputed
from fedcore.papers.table import Column, Condition, Experiment, Found, Options, Seeds, Trial, mean, verdict

from fedcore.interface.federated_mixture import FederatedMixture
from fedcore.randomness import stream

BUNDLED = ("wine", "breast_cancer", "diabetes")  # with scikit-learn
FILES = {
    "vowel": ("tabular", "vowel.npz"),
    "satellite": ("tabular", "satellite.npz"),
    "letter": ("tabular", "letter.npz"),
    "pendigits": ("pendigits", "pendigits.npz"),
    "shuttle": ("tabular", "shuttle.npz"),
    "gvhd_flow": ("tabular", "gvhd_flow.npz"),
    "wisdm": ("wisdm", "wisdm.npz"),
}
QUICK = ("wine", "vowel")
MOST_ROWS = 10_000
PENALTIES = tuple(2.0**power for power in range(-1, 7))  # of soft-impute
CHOICE, SOFT_STEPS = 0.1, 100  # of the cells that are left, for its choice; steps of soft-impute
COVERAGE, DRAWS = 0.9, 19  # the truth is between the extremes of 19 draws in 18 of 20 cases
LEAST, MOST = 0.88, 0.92  # of the intervals cover
OURS = "FederatedMixture"
RIVALS = ("IterativeImputer", "KNNImputer", "soft-impute", "column means")


def sets(options: Options) -> tuple[str, ...]:
    """Names of the sets that are there."""
    names = QUICK if options.quick else (*FILES, *BUNDLED)
    return tuple(name for name in names if name not in FILES or data_file(*FILES[name]) is not None)


def rows_of(name: str) -> np.ndarray:
    """(n, d) float64, without columns that are constant."""
    if name in MIXTURES:
        x = MIXTURES[name].read()[0]
    else:
        from sklearn.datasets import load_diabetes

        x = load_diabetes().data
    x = np.asarray(x, np.float64)
    if len(x) > MOST_ROWS:
        x = x[np.sort(stream(0, "imputation/rows", 0).permutation(len(x))[:MOST_ROWS])]
    return x[:, np.ptp(x, axis=0) > 0]


def hidden_cells(x: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(standardised rows with NaN in hidden cells, standardised rows, which cells are hidden)."""
    hidden = stream(seed, "imputation/hidden", 0).random(x.shape) < HIDDEN
    hidden[hidden.all(axis=1), 0] = False
    seen = np.where(hidden, np.nan, x)
    centre, scale = np.nanmean(seen, axis=0), np.nanstd(seen, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return (seen - centre) / scale, (x - centre) / scale, hidden


def soft(y: np.ndarray, seed: int) -> np.ndarray:
    """soft-impute with the penalty that suits a tenth of the cells best."""
    held = ~np.isnan(y) & (stream(seed, "imputation/choice", 0).random(y.shape) < CHOICE)
    train = np.where(held, np.nan, y)
    errors = [np.mean((soft_imputed(train, one, SOFT_STEPS) - y)[held] ** 2) for one in PENALTIES]
    return soft_imputed(y, PENALTIES[int(np.argmin(errors))], SOFT_STEPS)


def nearest(y: np.ndarray) -> np.ndarray:
    from sklearn.impute import KNNImputer

    return np.asarray(KNNImputer().fit_transform(y))


def measure(trial: Trial) -> dict:
    """Errors by method, CPU seconds of each, and what intervals and draws of ours cover."""
    y, truth, hidden = hidden_cells(rows_of(trial["data"]), trial.seed)
    results: dict = {"error": {}, "seconds": {}}

    def note(label: str, fill: Callable[[], np.ndarray]) -> None:
        before = time.process_time()
        filled = fill()
        results["seconds"][label] = time.process_time() - before
        results["error"][label] = float(np.sqrt(np.mean((filled - truth)[hidden] ** 2)))

    mixture = FederatedMixture("auto", random_state=trial.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        note(OURS, lambda: mixture.fit(y).impute(y))
        note("IterativeImputer", lambda: np.asarray(iterative_imputer(y)))
        note("KNNImputer", lambda: nearest(y))
        note("soft-impute", lambda: soft(y, trial.seed))
        note("column means", lambda: column_means(y))
    low, high = mixture.impute_intervals(y, COVERAGE)
    drawn = mixture.impute(y, draws=DRAWS)
    within = {"intervals": (low <= truth) & (truth <= high)}
    within["draws"] = (drawn.min(axis=0) <= truth) & (truth <= drawn.max(axis=0))
    covered = {name: float(inside[hidden].mean()) for name, inside in within.items()}
    return results | {"covered": covered, "components": len(mixture.weights_), "rows": list(y.shape)}


def conditions(options: Options) -> dict[str, Condition]:
    return {name: Condition(name, {"data": name}, {"data": name}) for name in sets(options)}


def error_of(found: Found, data: str, label: str) -> float:
    return found.mean(data, lambda result: result["error"][label])


def column_of(label: str) -> Column:
    return lambda found, row: format(error_of(found, str(row.of), label), ".3f")


def covered(found: Found, data: str, what: str) -> float:
    """The share of the hidden cells that intervals or draws cover."""
    return found.mean(data, lambda result: result["covered"][what])


def best(found: Found) -> list[str]:
    """Sets on which ours has the least mean error."""
    rivals = {data: min(error_of(found, data, label) for label in RIVALS) for data in found.by_condition}
    return [data for data, least in rivals.items() if error_of(found, data, OURS) < least]


def checks(found: Found) -> Iterator[str]:
    first, number = best(found), len(found.by_condition)
    needed = -(-8 * number // 10)
    yield f"Least error on {len(first)} of {number} sets, asked {needed}, {verdict(len(first) >= needed)}."
    for what in ("intervals", "draws"):
        shares = [covered(found, data, what) for data in found.by_condition]
        outside = sum(not LEAST <= share <= MOST for share in shares)
        text = f"{min(shares):.3f} to {max(shares):.3f}" if shares else "nothing"
        yield f"{what.capitalize()} cover {text}, asked {LEAST:g} to {MOST:g}, {verdict(not outside)} ({outside} sets)."


def figure(found: Found) -> bytes:
    from fedcore.evaluation.curves import Panel, panels_figure

    names = list(found.by_condition)
    curves = {label: (range(len(names)), [error_of(found, one, label) for one in names]) for label in (OURS, *RIVALS)}
    return panels_figure([Panel(curves, ", ".join(names), "set", "error")])


IMPUTATION = Experiment(
    name="imputation",
    title="Hidden cells of continuous tables",
    conditions=conditions,
    measure=measure,
    columns=lambda options: {
        "components": lambda found, row: ", ".join(map(str, found.values(str(row.of), "components"))),
        **{label: column_of(label) for label in (OURS, *RIVALS)},
        "intervals": mean(lambda result: result["covered"]["intervals"]),
        "draws": mean(lambda result: result["covered"]["draws"]),
        "CPU-s": mean(lambda result: result["seconds"][OURS], ".1f"),
    },
    notes=lambda found: [
        f"{HIDDEN:.0%} of the cells hidden at random; at most {MOST_ROWS} rows. Root mean square error of the hidden "
        "cells in standard deviations, mean over the seeds. FederatedMixture with n_components = auto, nothing else "
        "set; IterativeImputer and KNNImputer of scikit-learn as they come; soft-impute with the penalty that suits a "
        "tenth of the cells best. intervals, draws: share of hidden cells within the intervals of 90 %, and within the "
        f"extremes of {DRAWS} draws. components: of each seed."
    ],
    checks=checks,
    figure=figure,
    seeds=Seeds(3, quick=1),
)
