"""Private mixtures: rows needed, beside sample-and-aggregate and EM without privacy.

    search    the smallest n of 1k, 2k, 5k ... at which every seed succeeds, and errors there and at twice that n
    accept    20 seeds at twice the n of the specification
    enough    errors at a comfortable n
    rival     sample-and-aggregate: the smallest block, then the smallest number of blocks
    slope     n against d, 5 components 12 apart, on a finer grid
    variant, nothing, real, picture

Kamath, Sheffet, Singhal, Ullman 2019 print no experiments. The numbers beside ours are those of the specification that
this method was built from, measured with a prototype of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fedcore.papers.columns import given
from fedcore.papers.data import data_file
from fedcore.papers.private_gmm import baselines, runs
from fedcore.papers.private_gmm.baselines import SETTINGS, Setting
from fedcore.papers.private_gmm.figure import recursion_and_growth
from fedcore.papers.private_gmm.table import (
    COLUMNS,
    EPSILONS,
    KINDS,
    SETUP,
    SLOPE_COLUMNS,
    SPEC,
    WORDS,
    findings,
    growth,
    key_of,
    rows_of,
    slope,
)
from fedcore.papers.table import Condition, Experiment, Found, Options, Trial

SEEDS, QUICK_SEEDS, ACCEPT_SEEDS, REAL_SEEDS = 6, 2, 20, 10
RIVAL_COLUMNS = (25, 50, 100, 200)  # blocks of more columns take too long
SLOPE_SETTING = (5, 12.0)
SLOPE_SEEDS = 2
RIVAL_SIZES = tuple(range(10, 401, 10))
RIVAL_NUMBERS = tuple(round(50 * 2 ** (step / 4)) for step in range(33))  # to 12,800
QUICK = ((SETTINGS[0], 1.0), (SETTINGS[1], 4.0))
PICTURE = (SETTINGS[1], 20_000, 1.0, 1)


# --- conditions -----------------------------------------------------------------------------------------------------


def conditions(options: Options) -> dict[str, Condition]:
    found: dict[str, Condition] = {}

    def add(part: str, key: str, title: str, **settings: Any) -> None:
        found[f"{part}-{key}" if key else part] = Condition(title, {"part": part, **settings}, once=True)

    def search(setting: Setting, epsilon: float) -> None:
        key, title = f"{key_of(setting)}-{epsilon:g}", f"smallest n, {key_of(setting)}, epsilon {epsilon:g}"
        add("search", key, title, setting=_of(setting), epsilon=epsilon, seeds=seeds)

    def rival(setting: Setting, count: int) -> None:
        key = key_of(setting)
        add("rival", key, f"sample-and-aggregate, {key}", setting=_of(setting), seeds=count)

    def nothing(kind: str, components: int, count: int) -> None:
        title = f"no structure: {kind}"
        add("nothing", f"{kind}-{components}", title, kind=kind, components=components, seeds=count)

    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    setting, *rest = PICTURE
    add("picture", "", "the recursion of one run", setting=_of(setting), rest=rest)
    if options.quick:
        for setting, epsilon in QUICK:
            search(setting, epsilon)
        rival(QUICK[0][0], 1)
        nothing("ring", 3, seeds)
        return found
    for setting in SETTINGS:
        for epsilon in EPSILONS:
            search(setting, epsilon)
        (rows, _), em, key = SPEC[setting].enough, SPEC[setting].em, key_of(setting)
        add("enough", key, f"{rows} rows, {key}", setting=_of(setting), rows=rows, seeds=seeds)
        for n in sorted({rows, *(n for n, _ in em)}):
            add("em", f"{key}-{n}", f"EM, {key}, {n} rows", setting=_of(setting), rows=n, seeds=min(seeds, 3))
    for name in runs.VARIANTS:
        add("variant", name, runs.VARIANTS[name].title, name=name, seeds=seeds)
    for kind in KINDS:
        for components in (2, 3):
            nothing(kind, components, options.seeds or 10)
    for name, known in runs.REAL.items():
        if data_file("tabular", f"{name}.npz") is not None:
            for components in (2, known.components):
                title, count = f"{name}, {components} components asked", options.seeds or REAL_SEEDS
                add("real", f"{name}-{components}", title, name=name, components=components, seeds=count)
    for setting in SETTINGS:
        for epsilon in EPSILONS:
            rows, key, count = 2 * SPEC[setting].n[epsilon][0], key_of(setting), options.seeds or ACCEPT_SEEDS
            asked = {"setting": _of(setting), "epsilon": epsilon, "rows": rows, "seeds": count}
            add("accept", f"{key}-{epsilon:g}", f"{key}, epsilon {epsilon:g}, {rows} rows", **asked)
    for setting in SETTINGS[:-1]:
        rival(setting, min(seeds, 3))
    for who, of in (("ours", SLOPE_COLUMNS), ("rival", RIVAL_COLUMNS)):
        for columns in of:
            title = f"n against d, {who}, {columns} columns"
            add("slope", f"{who}-{columns}", title, who=who, columns=columns, seeds=min(seeds, SLOPE_SEEDS))
    rival(SETTINGS[-1], min(seeds, 3))
    return found


def _of(setting: Setting) -> list:
    return [setting.features, setting.components, setting.separation]


# --- measurements ---------------------------------------------------------------------------------------------------


def measure(trial: Trial) -> dict:
    asked = trial.cell.arguments
    setting = Setting(*asked["setting"]) if "setting" in asked else SETTINGS[0]
    seeds = range(1, asked.get("seeds", 0) + 1)
    match trial["part"]:
        case "search":
            return runs.smallest(setting, asked["epsilon"], seeds)
        case "accept" | "enough":
            return runs.at(setting, asked["rows"], asked.get("epsilon", 1.0), seeds)
        case "em":
            return _em(setting, asked["rows"], seeds)
        case "rival":
            b = baselines.smallest_block(setting, seeds=seeds)
            return {"b": b, "rows": [] if b is None else baselines.smallest_numbers(setting, b, seeds=seeds)}
        case "slope":
            return _slope(asked["who"], asked["columns"], seeds)
        case "variant":
            return runs.variant(asked["name"], seeds)
        case "nothing":
            return runs.nothing_there(asked["kind"], asked["components"], seeds)
        case "real":
            name, components = asked["name"], asked["components"]
            found = {f"{epsilon:g}": runs.real(name, components, epsilon, seeds) for epsilon in (1.0, 4.0)}
            return {**found, "em": runs.real_em(name, components), "normal": runs.real_em(name, 1)}
    return runs.pictured(setting, *asked["rest"])


def _em(setting: Setting, rows: int, seeds: Sequence[int]) -> dict:
    found = [baselines.em_scores(setting, rows, seed) for seed in seeds]
    return {
        "worst_error": max(one["mean_error"] for one in found),
        "mean_error": float(np.median([one["mean_error"] for one in found])),
        "accuracy": min(one["accuracy"] for one in found),
    }


def _slope(who: str, columns: int, seeds: Sequence[int]) -> dict:
    """{goal: n or None}."""
    setting = Setting(columns, *SLOPE_SETTING)
    if who == "ours":
        found = runs.smallest(setting, 1.0, seeds, runs.FINE_GRID, twice=False)
        return {goal: found[goal] for goal in WORDS}
    block = baselines.smallest_block(setting, seeds=seeds, sizes=RIVAL_SIZES)
    if block is None:
        return {"b": None, **dict.fromkeys(WORDS)}
    rows = baselines.smallest_numbers(setting, block, (1.0,), seeds=seeds, numbers=RIVAL_NUMBERS)
    return {"b": block, **{row["goal"]: row["n"] for row in rows}}


# --- the figure and the experiment ----------------------------------------------------------------------------------


def figure(found: Found) -> bytes:
    names = {"ours": "this method", "rival": "sample-and-aggregate"}
    lines = {
        f"{name}, {WORDS[goal]}{_slope_of(line)}": line
        for who, name in names.items()
        for goal in WORDS
        if len((line := growth(found, who, goal))[0]) > 1
    }
    return recursion_and_growth(found.one("picture"), lines)


def _slope_of(line: tuple[Sequence[int], Sequence[int]]) -> str:
    return f": slope {slope(line):.2f}" if len(line[0]) > 2 else ""


PRIVATE_GMM = Experiment(
    name="private-gmm",
    title="Private mixtures of separated Gaussians: rows needed",
    heading=lambda found: "; records, δ 1e-6",
    conditions=conditions,
    measure=measure,
    rows=rows_of,
    columns=lambda options: dict.fromkeys(COLUMNS, given),
    notes=lambda found: SETUP,
    checks=findings,
    figure=figure,
)
