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

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from fedcore.papers.experiment import Cell, Options, Place, ResultTable
from fedcore.papers.fedem.runs import data_file, own_data_only
from fedcore.papers.private_gmm import baselines, runs
from fedcore.papers.private_gmm.baselines import SETTINGS, Setting
from fedcore.papers.private_gmm.simulation import Structureless
from fedcore.papers.private_gmm.table import (
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

SEEDS, QUICK_SEEDS, ACCEPT_SEEDS, REAL_SEEDS = 6, 2, 20, 10
RIVAL_COLUMNS = (25, 50, 100, 200)  # blocks of more columns take too long
SLOPE_SETTING = (5, 12.0)
SLOPE_SEEDS = 2
RIVAL_SIZES = tuple(range(10, 401, 10))
RIVAL_NUMBERS = tuple(round(50 * 2 ** (step / 4)) for step in range(33))  # to 12,800
QUICK = ((SETTINGS[0], 1.0), (SETTINGS[1], 4.0))
PICTURE = (SETTINGS[1], 20_000, 1.0, 1)


class PrivateGMMTables:
    """See the module. A `fedcore.papers.experiment.Experiment`."""

    name = "private-gmm"
    title = "Private mixtures of separated Gaussians: rows needed"

    def cells(self, options: Options, place: Place) -> Sequence[Cell]:
        own_data_only(options)
        return [*(_quick_cells(options) if options.quick else _all_cells(options))]

    def compute(self, cell: Cell, options: Options, place: Place) -> dict:
        return COMPUTE[cell.arguments["part"]](**{k: v for k, v in cell.arguments.items() if k != "part"})

    def table(self, options: Options, results: Mapping[str, dict]) -> ResultTable:
        return ResultTable(f"{self.title}; records, δ 1e-6", rows_of(results), [*SETUP, *findings(results)])

    def figure(self, options: Options, results: Mapping[str, dict]) -> bytes:
        from fedcore.papers.private_gmm.figure import recursion_and_growth

        names = {"ours": "this method", "rival": "sample-and-aggregate"}
        lines = {
            f"{name}, {WORDS[goal]}{_slope_of(line)}": line
            for who, name in names.items()
            for goal in WORDS
            if len((line := growth(results, who, goal))[0]) > 1
        }
        return recursion_and_growth(results["picture"], lines)


def _slope_of(line: tuple[Sequence[int], Sequence[int]]) -> str:
    return f": slope {slope(line):.2f}" if len(line[0]) > 2 else ""


# --- cells ----------------------------------------------------------------------------------------------------------


def _cell(part: str, key: str, title: str, **arguments) -> Cell:
    return Cell(f"{part}-{key}" if key else part, title, {"part": part, **arguments})


def _of(setting: Setting) -> list:
    return [setting.features, setting.components, setting.separation]


def _search_cell(setting: Setting, epsilon: float, seeds: int) -> Cell:
    return _cell(
        "search",
        f"{key_of(setting)}-{epsilon:g}",
        f"smallest n, {key_of(setting)}, epsilon {epsilon:g}",
        setting=_of(setting),
        epsilon=epsilon,
        seeds=seeds,
    )


def _rival_cell(setting: Setting, seeds: int) -> Cell:
    key = key_of(setting)
    return _cell("rival", key, f"sample-and-aggregate, {key}", setting=_of(setting), seeds=seeds)


def _nothing_cell(kind: str, components: int, seeds: int) -> Cell:
    return _cell(
        "nothing", f"{kind}-{components}", f"no structure: {kind}", kind=kind, components=components, seeds=seeds
    )


def _picture_cell() -> Cell:
    setting, *rest = PICTURE
    return _cell("picture", "", "the recursion of one run", setting=_of(setting), rest=rest)


def _quick_cells(options: Options) -> Iterator[Cell]:
    seeds = options.seeds or QUICK_SEEDS
    yield _picture_cell()
    for setting, epsilon in QUICK:
        yield _search_cell(setting, epsilon, seeds)
    yield _rival_cell(QUICK[0][0], 1)
    yield _nothing_cell("ring", 3, seeds)


def _all_cells(options: Options) -> Iterator[Cell]:
    seeds = options.seeds or SEEDS
    yield _picture_cell()
    for setting in SETTINGS:
        for epsilon in EPSILONS:
            yield _search_cell(setting, epsilon, seeds)
        (rows, _), em = SPEC[setting].enough, SPEC[setting].em
        yield _cell(
            "enough", key_of(setting), f"{rows} rows, {key_of(setting)}", setting=_of(setting), rows=rows, seeds=seeds
        )
        for n in sorted({rows, *(n for n, _ in em)}):
            yield _cell(
                "em",
                f"{key_of(setting)}-{n}",
                f"EM, {key_of(setting)}, {n} rows",
                setting=_of(setting),
                rows=n,
                seeds=min(seeds, 3),
            )
    for name in runs.VARIANTS:
        yield _cell("variant", name, runs.VARIANTS[name].title, name=name, seeds=seeds)
    for kind in KINDS:
        for components in (2, 3):
            yield _nothing_cell(kind, components, options.seeds or 10)
    for name, known in runs.REAL.items():
        if data_file("tabular", f"{name}.npz") is not None:
            for components in (2, known.components):
                yield _cell(
                    "real",
                    f"{name}-{components}",
                    f"{name}, {components} components asked",
                    name=name,
                    components=components,
                    seeds=options.seeds or REAL_SEEDS,
                )
    for setting in SETTINGS:
        for epsilon in EPSILONS:
            rows = 2 * SPEC[setting].n[epsilon][0]
            key = key_of(setting)
            title = f"{key}, epsilon {epsilon:g}, {rows} rows"
            yield _cell(
                "accept",
                f"{key}-{epsilon:g}",
                title,
                setting=_of(setting),
                epsilon=epsilon,
                rows=rows,
                seeds=options.seeds or ACCEPT_SEEDS,
            )
    for setting in SETTINGS[:-1]:
        yield _rival_cell(setting, min(seeds, 3))
    slopes = [("ours", columns) for columns in SLOPE_COLUMNS] + [("rival", columns) for columns in RIVAL_COLUMNS]
    for who, columns in slopes:
        yield _cell(
            "slope",
            f"{who}-{columns}",
            f"n against d, {who}, {columns} columns",
            who=who,
            columns=columns,
            seeds=min(seeds, SLOPE_SEEDS),
        )
    yield _rival_cell(SETTINGS[-1], min(seeds, 3))


def _seeds(count: int) -> range:
    return range(1, count + 1)


def _search(setting: list, epsilon: float, seeds: int) -> dict:
    return runs.smallest(Setting(*setting), epsilon, _seeds(seeds))


def _at(setting: list, rows: int, seeds: int, epsilon: float = 1.0) -> dict:
    return runs.at(Setting(*setting), rows, epsilon, _seeds(seeds))


def _em(setting: list, rows: int, seeds: int) -> dict:
    found = [baselines.em_scores(Setting(*setting), rows, seed) for seed in _seeds(seeds)]
    return {
        "worst_error": max(one["mean_error"] for one in found),
        "mean_error": float(np.median([one["mean_error"] for one in found])),
        "accuracy": min(one["accuracy"] for one in found),
    }


def _rival(setting: list, seeds: int) -> dict:
    chosen = Setting(*setting)
    block = baselines.smallest_block(chosen, seeds=_seeds(seeds))
    return {"b": block, "rows": [] if block is None else baselines.smallest_numbers(chosen, block, seeds=_seeds(seeds))}


def _slope(who: str, columns: int, seeds: int) -> dict:
    """{goal: n or None}."""
    setting = Setting(columns, *SLOPE_SETTING)
    if who == "ours":
        found = runs.smallest(setting, 1.0, _seeds(seeds), runs.FINE_GRID, twice=False)
        return {goal: found[goal] for goal in WORDS}
    block = baselines.smallest_block(setting, seeds=_seeds(seeds), sizes=RIVAL_SIZES)
    if block is None:
        return {"b": None, **dict.fromkeys(WORDS)}
    rows = baselines.smallest_numbers(setting, block, (1.0,), seeds=_seeds(seeds), numbers=RIVAL_NUMBERS)
    return {"b": block, **{row["goal"]: row["n"] for row in rows}}


def _variant(name: str, seeds: int) -> dict:
    return runs.variant(name, _seeds(seeds))


def _nothing(kind: Structureless, components: int, seeds: int) -> dict:
    return runs.nothing_there(kind, components, _seeds(seeds))


def _real(name: str, components: int, seeds: int) -> dict:
    return {
        "1": runs.real(name, components, 1.0, _seeds(seeds)),
        "4": runs.real(name, components, 4.0, _seeds(seeds)),
        "em": runs.real_em(name, components),
        "normal": runs.real_em(name, 1),
    }


def _picture(setting: list, rest: list) -> dict:
    return runs.pictured(Setting(*setting), *rest)


COMPUTE: dict[str, Callable[..., dict]] = {
    "search": _search,
    "accept": _at,
    "enough": _at,
    "em": _em,
    "rival": _rival,
    "slope": _slope,
    "variant": _variant,
    "nothing": _nothing,
    "real": _real,
    "picture": _picture,
}
