"""How many atoms are global: Figure 7 of the PerMA paper, and how often rules that read it are right.

Source: Liang, Shi, Al Kontar, Fattahi 2023, Section 3.2: stop when the length of the shortest path jumps. Here on
problems of ten dimensions with 0, 2 ... 10 global atoms, from clients' dictionaries of five starts each.
"""

from __future__ import annotations

import numpy as np
from fedcore.papers.perma import learning
from fedcore.papers.perma.truth import shared_atoms
from fedcore.papers.table import Column, Condition, Experiment, Found, Options, Row, Trial

from fedcore.methods.perma.matching import by_jump, by_null, path, star
from fedcore.randomness import stream

FEATURES, SAMPLES, CLIENTS, STARTS = 10, 400, 10, 5
TRUE = (0, 2, 4, 6, 8, 10)
PROBLEMS, QUICK_PROBLEMS = 10, 2
JUMP, EDGE, HALF, QUARTER, NULL = (
    "largest ratio of path lengths",
    "mean edge of the path < .5",
    "star score < .5",
    "star score < .25",
    "star score < half of the null",
)
RULES = (JUMP, EDGE, HALF, QUARTER, NULL)


def conditions(options: Options) -> dict[str, Condition]:
    count = options.seeds or (QUICK_PROBLEMS if options.quick else PROBLEMS)
    return {
        f"rg-{wanted}": Condition(f"{wanted} global atoms", {"common": wanted, "problems": count}, once=True)
        for wanted in TRUE
    }


def measure(trial: Trial) -> dict:
    wanted, seeds = trial["common"], range(1, trial["problems"] + 1)
    drawn = [shared_atoms(seed, CLIENTS, FEATURES, wanted, FEATURES - wanted, SAMPLES) for seed in seeds]
    started = learning.start(drawn, list(seeds), STARTS)
    chosen: dict[str, list[int]] = {name: [] for name in RULES}
    for s, seed in enumerate(seeds):
        own = started.dictionaries(s)
        lengths, scores = path(own, FEATURES).scores, star(own, 1, stream(seed, "dictionaries/anchors")).all_scores
        chosen[JUMP].append(by_jump(lengths, CLIENTS))
        chosen[EDGE].append(leading(np.sort(lengths) / (CLIENTS - 1) < 0.5))
        chosen[HALF].append(leading(scores < 0.5))
        chosen[QUARTER].append(leading(scores < 0.25))
        chosen[NULL].append(by_null(scores, FEATURES, CLIENTS, seed))
        if s == 0:
            first = {"lengths": lengths.tolist(), "scores": scores.tolist()}
    return {"chosen": chosen, **first}


def hits(wanted: int) -> Column:
    return lambda found, row: found.one(f"rg-{wanted}")["chosen"][row.of].count(wanted)


NOTES = (
    "The paper's rule is the jump of path lengths, shown for one problem (its Figure 7). Problems here: "
    f"N = {CLIENTS}, d = {FEATURES} square dictionaries, {SAMPLES} samples, density .2, {STARTS} "
    "starts with thresholds down to .15.",
    "The jump can answer neither 0 nor all. With square dictionaries 9 and 10 global atoms are the same thing.",
    "null: best star score of clients who share nothing, in as many dimensions as are left.",
)


def figure(found: Found) -> bytes:
    from fedcore.evaluation.curves import Panel, panels_figure

    at = range(1, FEATURES + 1)
    shown = {f"{wanted} global": found.one(f"rg-{wanted}") for wanted in TRUE[1:-1]}
    edges = {name: (at, [length / (CLIENTS - 1) for length in one["lengths"]]) for name, one in shown.items()}
    scores = {name: (at, one["scores"]) for name, one in shown.items()}
    return panels_figure(
        [
            Panel(edges, "Figure 7: mean edge of successive shortest paths", "path", "distance"),
            Panel(scores, "The same by the star: median distance from the anchor's atom", "atom", "distance"),
        ]
    )


def leading(good: np.ndarray) -> int:
    """How many are true before the first that is not."""
    return int(len(good) if good.all() else np.argmin(good))


RG = Experiment(
    name="perma-rg",
    title="Choosing the number of global atoms: hits of the rules",
    conditions=conditions,
    measure=measure,
    rows=lambda found: [Row({"rule": rule}, rule) for rule in RULES],
    columns=lambda options: {
        **{f"{wanted} global": hits(wanted) for wanted in TRUE},
        "hits": lambda found, row: sum(hits(wanted)(found, row) for wanted in TRUE),
        "of": lambda found, row: sum(len(found.one(f"rg-{wanted}")["chosen"][row.of]) for wanted in TRUE),
    },
    notes=lambda found: NOTES,
    figure=figure,
)
