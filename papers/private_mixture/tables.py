"""`private_mixture` beside what people would use, at the same (epsilon, delta) for one record.

    mixture   labels and density on mixtures of normal distributions, by columns, components and separation
    set       the same on published sets, where FEDCORE_DATA names their folder
    server    the same on the mixture that FedDP-KMeans' authors publish, with their server rows
    family    groups that are claimed where there is one

Learners and their scores are in `fedcore.papers.private_mixture.runs`. All numbers are measured here; none is taken
from a paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from fedcore.papers.experiment import Cell, Options, Place, ResultTable
from fedcore.papers.fedem.runs import data_file, own_data_only
from fedcore.papers.private_gmm.private_kmeans import BLOCK_ROWS, LLOYD_ROUNDS, SUMS
from fedcore.papers.private_mixture import runs
from fedcore.papers.private_mixture.data import FAMILIES, SETS

EPSILONS = (0.5, 1.0, 4.0)
PICTURED = 1.0  # epsilon of the figure
SHAPES, SEPARATIONS = ((2, 2), (5, 3), (10, 5)), (1, 2, 4, 8)
DEVELOPMENT = ("gvhd_flow", "pendigits", "satellite", "letter", "mnist")
SEEDS, SET_SEEDS, SERVER_SEEDS, QUICK_SEEDS, FREE_SEEDS = 10, 5, 2, 2, 3
QUICK_MIXTURES, QUICK_FAMILIES = (("mixture", 2, 2, 4), ("mixture", 5, 3, 2)), ("t3",)

Cells = Mapping[str, dict[str, Any]]  # results, by key of the cell
LEARNERS = (*runs.BUDGETED, "EM", "k-means", "one normal", "truth")


class PrivateMixtureTables:
    """See the module. A `fedcore.papers.experiment.Experiment`."""

    name = "private-mixture"
    title = "Private mixtures beside other private clusterings"

    def cells(self, options: Options, place: Place) -> Sequence[Cell]:
        own_data_only(options)
        return [*(_quick_cells(options) if options.quick else _all_cells(options))]

    def compute(self, cell: Cell, options: Options, place: Place) -> dict[str, Any]:
        return COMPUTE[cell.arguments["part"]](**{k: v for k, v in cell.arguments.items() if k != "part"})

    def table(self, options: Options, results: Cells) -> ResultTable:
        return ResultTable(f"{self.title}; records, δ 1e-6", [*_rows(results)], SETUP)

    def figure(self, options: Options, results: Cells) -> bytes:
        from fedcore.papers.private_mixture.figure import labels_by_separation

        return labels_by_separation(_lines(results, PICTURED), PICTURED)


# --- cells ----------------------------------------------------------------------------------------------------------


def _name(data: Sequence[Any]) -> str:
    return "-".join(f"{part:g}" if isinstance(part, (int, float)) else part for part in data)


def _of(data: Sequence[Any], epsilons: Sequence[float], seeds: int, free: int) -> Iterator[Cell]:
    """Without privacy, and at each budget."""
    name = _name(data)
    about: dict[str, Any] = {"data": [*data]}
    yield Cell(f"free-{name}", f"{name}, without privacy", {"part": "free", **about, "seeds": free})
    for epsilon in epsilons:
        arguments = {"part": "private", **about, "epsilon": epsilon, "seeds": seeds}
        yield Cell(f"private-{name}-{epsilon:g}", f"{name}, epsilon {epsilon:g}", arguments)


def _family(family: str, seeds: int) -> Cell:
    arguments = {"part": "family", "family": family, "epsilon": 1.0, "seeds": seeds}
    return Cell(f"family-{[*FAMILIES].index(family)}", f"one group: {family}", arguments)


def _quick_cells(options: Options) -> Iterator[Cell]:
    seeds = options.seeds or QUICK_SEEDS
    for data in QUICK_MIXTURES:
        yield from _of(data, (1.0,), seeds, seeds)
    for family in QUICK_FAMILIES:
        yield _family(family, seeds)


def _all_cells(options: Options) -> Iterator[Cell]:
    seeds = options.seeds or SEEDS
    for d, k in SHAPES:
        for separation in SEPARATIONS:
            yield from _of(("mixture", d, k, separation), EPSILONS, seeds, seeds)
    for family in FAMILIES:
        yield _family(family, seeds)
    for name in DEVELOPMENT:
        if data_file(*SETS[name].file) is not None:
            of_set = options.seeds or SET_SEEDS
            yield from _of(("set", name), EPSILONS, of_set, min(of_set, FREE_SEEDS))
    of_server = options.seeds or SERVER_SEEDS
    yield from _of(("server",), EPSILONS, of_server, 1)


def _seeds(count: int) -> range:
    return range(1, count + 1)


def _private(data: list, epsilon: float, seeds: int) -> dict[str, Any]:
    return runs.privately(data, epsilon, _seeds(seeds))


def _free(data: list, seeds: int) -> dict[str, Any]:
    return runs.without_privacy(data, _seeds(seeds))


def _claims(family: str, epsilon: float, seeds: int) -> dict[str, Any]:
    return runs.claims(family, epsilon, _seeds(seeds))


COMPUTE: dict[str, Callable[..., dict[str, Any]]] = {"private": _private, "free": _free, "family": _claims}

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


def _row(what: str, data: str, epsilon: str, values: Mapping[str, str]) -> dict[str, str]:
    return {"what": what, "data": data, "ε": epsilon, **{name: values.get(name, "") for name in LEARNERS}}


def _rows(results: Cells) -> Iterator[dict[str, str]]:
    names = [key.removeprefix("free-") for key in results if key.startswith("free-")]
    for measure, what in WORDS.items():
        for name in names:
            for epsilon in EPSILONS:
                found = results.get(f"private-{name}-{epsilon:g}")
                if found is None or (measure == "seconds" and epsilon != 1.0):
                    continue
                everything = {**found, **results[f"free-{name}"]}
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


def _lines(results: Cells, epsilon: float) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """By shape and learner, separations and median agreement; a refusal counts as none."""
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for d, k in SHAPES:
        for separation in SEPARATIONS:
            name = _name(("mixture", d, k, separation))
            cell = results.get(f"private-{name}-{epsilon:g}")
            if cell is None:
                continue
            for learner, tried in {**cell, **results[f"free-{name}"]}.items():
                lines = found.setdefault(f"{d} columns, {k} components", {})
                x, y = lines.setdefault(learner, ([], []))
                x.append(separation)
                y.append(float(np.median([one["ari"] or 0.0 for one in tried])))
    return found
