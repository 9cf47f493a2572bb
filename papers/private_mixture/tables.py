"""`private_mixture` beside what people would use, at the same (epsilon, delta) for one record.

    mixture   labels and density on mixtures of normal distributions, by columns, components and separation
    set       the same on published sets, where FEDCORE_DATA names their folder
    server    the same on the mixture that FedDP-KMeans' authors publish, with their server rows
    family    groups that are claimed where there is one

Learners and their scores are in `fedcore.papers.private_mixture.runs`. All numbers are measured here; none is taken
from a paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from fedcore.papers.columns import given
from fedcore.papers.data import data_file
from fedcore.papers.private_gmm.private_kmeans import BLOCK_ROWS, LLOYD_ROUNDS, SUMS
from fedcore.papers.private_mixture import runs
from fedcore.papers.private_mixture.data import FAMILIES, SETS
from fedcore.papers.private_mixture.figure import labels_by_separation
from fedcore.papers.table import Condition, Experiment, Found, Options, Row, Trial

EPSILONS = (0.5, 1.0, 4.0)
PICTURED = 1.0  # epsilon of the figure
SHAPES, SEPARATIONS = ((2, 2), (5, 3), (10, 5)), (1, 2, 4, 8)
DEVELOPMENT = ("gvhd_flow", "pendigits", "satellite", "letter", "mnist")
SEEDS, SET_SEEDS, SERVER_SEEDS, QUICK_SEEDS, FREE_SEEDS = 10, 5, 2, 2, 3
QUICK_MIXTURES, QUICK_FAMILIES = (("mixture", 2, 2, 4), ("mixture", 5, 3, 2)), ("t3",)

LEARNERS = (*runs.BUDGETED, "EM", "k-means", "one normal", "truth")


# --- conditions -----------------------------------------------------------------------------------------------------


def _name(data: Sequence[Any]) -> str:
    return "-".join(f"{part:g}" if isinstance(part, (int, float)) else part for part in data)


def conditions(options: Options) -> dict[str, Condition]:
    found: dict[str, Condition] = {}

    def of(data: Sequence[Any], epsilons: Sequence[float], seeds: int, free: int) -> None:
        """Without privacy, and at each budget."""
        name, about = _name(data), {"data": [*data]}
        title = f"{name}, without privacy"
        found[f"free-{name}"] = Condition(title, {"part": "free", **about, "seeds": free}, once=True)
        for epsilon in epsilons:
            asked = {"part": "private", **about, "epsilon": epsilon, "seeds": seeds}
            found[f"private-{name}-{epsilon:g}"] = Condition(f"{name}, epsilon {epsilon:g}", asked, once=True)

    def family(name: str, seeds: int) -> None:
        asked = {"part": "family", "family": name, "epsilon": 1.0, "seeds": seeds}
        found[f"family-{[*FAMILIES].index(name)}"] = Condition(f"one group: {name}", asked, once=True)

    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    if options.quick:
        for data in QUICK_MIXTURES:
            of(data, (1.0,), seeds, seeds)
        for name in QUICK_FAMILIES:
            family(name, seeds)
        return found
    for d, k in SHAPES:
        for separation in SEPARATIONS:
            of(("mixture", d, k, separation), EPSILONS, seeds, seeds)
    for name in FAMILIES:
        family(name, seeds)
    for name in DEVELOPMENT:
        if data_file(*SETS[name].file) is not None:
            of_set = options.seeds or SET_SEEDS
            of(("set", name), EPSILONS, of_set, min(of_set, FREE_SEEDS))
    of(("server",), EPSILONS, options.seeds or SERVER_SEEDS, 1)
    return found


def measure(trial: Trial) -> dict[str, Any]:
    seeds = range(1, trial["seeds"] + 1)
    match trial["part"]:
        case "private":
            return runs.privately(trial["data"], trial["epsilon"], seeds)
        case "free":
            return runs.without_privacy(trial["data"], seeds)
    return runs.claims(trial["family"], trial["epsilon"], seeds)


# --- the table ------------------------------------------------------------------------------------------------------

WORDS = {"ari": "labels", "nll": "nats", "seconds": "CPU seconds"}
NOT_HERE = "not installed"
SETUP = (
    "labels: adjusted Rand index of held-out rows with their components or classes, median over seeds of the noise "
    "(and of the data, where they are synthetic). refused: runs without an answer, which are not in the median.",
    "nats: negative log-likelihood of a held-out row; of mixtures and of server above the truth's, of sets in the "
    "units of docs/private-mixture.md. Empty for k-means, which gives no density.",
    "groups claimed: runs that claim several groups in data with one; a refusal claims nothing. k-means claims as many "
    "as it is asked for. EM: by BIC, of at most as many.",
    "Every learner is asked for the true number of components, of a set for that of docs/private-mixture.md.",
    "Given beforehand, which private_mixture is not: the smallest box that holds all training rows (private_gmm, "
    "DP-Lloyd, diffprivlib, S&A). That itself is not private. private_gmm is also given sigma_min .01 and "
    "least_weight .05, in the box's units. wide box: three times as wide in every column.",
    f"DP-Lloyd: {LLOYD_ROUNDS} rounds from a start that looks at no data, {SUMS:g} of each for sums. diffprivlib: its "
    "KMeans, whose delta is 0: a stronger promise at the same epsilon.",
    f"S&A: sample and aggregate, blocks of {BLOCK_ROWS} rows for each component. averages: of the blocks' centres, in "
    "the order of their first coordinate. boxes: those that hold a centre of half of the blocks, else refused.",
    "server: 100,000 rows of 100 columns, the mixture that FedDP-KMeans' authors publish for privacy of single rows. "
    "The learner was written anew after their paper and public code, with their clip, shares and server rows (20 of "
    "each component and 100 uniform ones, which are public, as is the clip of 11), at the same total budget. server "
    "rows alone: k-means of the public rows, no budget.",
    "EM, k-means, one normal: scikit-learn on standardised columns, without privacy.",
)


def _row(what: str, data: str, epsilon: str, values: Mapping[str, str]) -> Row:
    return Row({"what": what, "data": data, "ε": epsilon}, None, values)


def _rows(results: Found) -> Iterator[Row]:
    names = [key.removeprefix("free-") for key in results.by_condition if key.startswith("free-")]
    for measure, what in WORDS.items():
        for name in names:
            for epsilon in EPSILONS:
                found = results.get(f"private-{name}-{epsilon:g}")
                if found is None or (measure == "seconds" and epsilon != 1.0):
                    continue
                everything = {**found, **results.one(f"free-{name}")}
                values = {learner: _shown(runs_of, measure) for learner, runs_of in everything.items()}
                if "diffprivlib" not in found and measure == "ari":
                    values["diffprivlib"] = NOT_HERE
                yield _row(what, name.removeprefix("set-"), f"{epsilon:g}", values)
    for number, family in enumerate(FAMILIES):
        claimed = results.get(f"family-{number}")
        if claimed is not None:
            yield _row("groups claimed", family, "1", {name: _counted(found) for name, found in claimed.items()})


def _shown(found: Sequence[Mapping[str, Any]], measure: str) -> str:
    """The median over runs, and how many were refused."""
    values = [one[measure] for one in found if one[measure] is not None]
    refused = sum(one["groups"] == 0 for one in found)
    if measure == "seconds":
        return f"{float(np.median(values)):.2g}"
    said = f"{refused} of {len(found)} refused" if refused else ""
    if not values:
        return said if measure == "ari" else ""
    median = f"{float(np.median(values)):.2f}"
    return f"{median}, {said}" if said and measure == "ari" else median


def _counted(groups: Sequence[int]) -> str:
    claimed, refused = sum(one > 1 for one in groups), sum(one == 0 for one in groups)
    return f"{claimed} of {len(groups)}" + (f", {refused} refused" if refused else "")


def _lines(results: Found, epsilon: float) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """By shape and learner, separations and median agreement; a refusal counts as none."""
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for d, k in SHAPES:
        for separation in SEPARATIONS:
            name = _name(("mixture", d, k, separation))
            cell = results.get(f"private-{name}-{epsilon:g}")
            if cell is None:
                continue
            for learner, tried in {**cell, **results.one(f"free-{name}")}.items():
                lines = found.setdefault(f"{d} columns, {k} components", {})
                x, y = lines.setdefault(learner, ([], []))
                x.append(separation)
                y.append(float(np.median([one["ari"] or 0.0 for one in tried])))
    return found


PRIVATE_MIXTURE = Experiment(
    name="private-mixture",
    title="Private mixtures beside other private clusterings",
    heading=lambda found: "; records, δ 1e-6",
    conditions=conditions,
    measure=measure,
    rows=_rows,
    columns=lambda options: dict.fromkeys(LEARNERS, given),
    notes=lambda found: SETUP,
    figure=lambda found: labels_by_separation(_lines(found, PICTURED), PICTURED),
)
