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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fedcore.papers.data import data_file
from fedcore.papers.private_gmm import baselines, runs
from fedcore.papers.private_gmm.baselines import SETTINGS, Setting
from fedcore.papers.table import Condition, Experiment, Found, Options, Row, Trial, given, verdict

from fedcore.evaluation.figures import COLOURS, SOFT, _figure, _png, _text, _title

EPSILONS = (0.5, 1.0, 4.0)
SLOPE_COLUMNS = (25, 50, 100, 200, 400)
KINDS = ("gaussian", "t3", "cube", "ring", "needle")


@dataclass(frozen=True, slots=True)
class Published:
    """What the specification prints for a setting.

    n: by epsilon, its n and the largest error there; rival: by epsilon, sample-and-aggregate's rows of a block and
    number of blocks; enough: a comfortable n, and the error there at epsilon 1; em: EM's (n, error)
    """

    n: Mapping[float, tuple[int, str]]
    rival: Mapping[float, tuple[int, int]]
    enough: tuple[int, str]
    em: tuple[tuple[int, str], ...]


SPEC = {
    SETTINGS[0]: Published(
        n={0.5: (2000, "1.5"), 1.0: (1000, ".6"), 4.0: (1000, ".25")},
        rival={1.0: (8, 800), 4.0: (8, 100)},
        enough=(50_000, ".04"),
        em=((5000, ".11"),),
    ),
    SETTINGS[1]: Published(
        n={0.5: (5000, ".6"), 1.0: (5000, ".4"), 4.0: (1000, ".44")},
        rival={1.0: (12, 800), 4.0: (12, 400)},
        enough=(50_000, ".05"),
        em=((10_000, ".09"),),
    ),
    SETTINGS[2]: Published(
        n={0.5: (10_000, "2.5"), 1.0: (10_000, "1.3"), 4.0: (2000, "2.3")},
        rival={1.0: (40, 1600), 4.0: (40, 800)},
        enough=(50_000, ".14"),
        em=((10_000, ".18"), (50_000, ".09")),
    ),
    SETTINGS[3]: Published(
        n={0.5: (20_000, "2.2"), 1.0: (10_000, "1.3"), 4.0: (2000, "2.7")},
        rival={1.0: (80, 3200), 4.0: (80, 800)},
        enough=(50_000, ".21"),
        em=((20_000, ".17"),),
    ),
    SETTINGS[4]: Published(
        n={0.5: (50_000, "2.5"), 1.0: (50_000, ".7"), 4.0: (10_000, "1.1")},
        rival={1.0: (80, 12_800), 4.0: (80, 1600)},
        enough=(100_000, ".17"),
        em=((50_000, ".12"),),
    ),
}
GAIN_WANTED = 5  # times fewer rows than sample-and-aggregate, at epsilon 1, in the last two settings
SLOPE_WANTED, SLOPE_GAP = 1.5, 0.5


def key_of(setting: Setting) -> str:
    """Of the cells of a setting."""
    return f"{setting.features}-{setting.components}-{setting.separation:g}"


# --- rows -----------------------------------------------------------------------------------------------------------

WORDS = {"labels": "labels right", "means": "means within 1 σ"}
COLUMNS = (
    "what",
    "data",
    "ε",
    "spec",
    "ours",
    "ours at 2 n",
    "ours, means",
    "S&A, spec",
    "S&A, labels",
    "S&A, means",
    "S&A / ours, labels",
    "S&A / ours, means",
    "without privacy",
)


def rows_of(results: Found) -> list[Row]:
    """All rows of the cells that there are."""
    return [*_main_rows(results), *_enough_rows(results), *_variant_rows(results), *_real_rows(results)]


def _row(**texts: str) -> Row:
    return Row({}, None, texts)


def number(value: int | None) -> str:
    return "none" if value is None else f"{value:,}".replace(",", " ")


def error(value: float | None) -> str:
    """ ".25" """
    return "" if value is None else f"{value:.2f}".removeprefix("0")


def outcomes(found: Mapping[str, Any]) -> str:
    """ "20/20 right; .25, .31": median and largest of the runs' largest errors of a mean."""
    counts = ", ".join(
        f"{found[name]}/{found['runs']} {name}" for name in (runs.RIGHT, runs.WRONG, runs.REFUSED) if found[name]
    )
    return f"{counts}; {error(found['mean_error'])}, {error(found['worst_error'])}" if found["right"] else counts


def times(more: int | None, fewer: int | None) -> str:
    return "" if more is None or fewer is None else f"{more / fewer:.2g}"


def _main_rows(results: Found) -> Iterator[Row]:
    for setting in SETTINGS:
        for epsilon in EPSILONS:
            found = results.get(f"search-{key_of(setting)}-{epsilon:g}")
            if found is not None:
                yield _main_row(results, setting, epsilon, found)


def _main_row(results: Found, setting: Setting, epsilon: float, found: dict[str, Any]) -> Row:
    n, largest = SPEC[setting].n[epsilon]
    by_n = {tried["n"]: tried for tried in found["tried"]}
    rival, cells = rival_of(results, setting, epsilon), {}
    for goal in WORDS:
        row = rival.get(goal)
        if row is not None:
            blocks = f" ({row['b']} x {number(row['m'])})" if row["m"] else ""
            cells[f"S&A, {goal}"] = number(row["n"]) + blocks
            cells[f"S&A / ours, {goal}"] = times(row["n"], found[goal])
    if epsilon in SPEC[setting].rival:
        b, m = SPEC[setting].rival[epsilon]
        cells["S&A, spec"] = f"{number(b * m)} ({b} x {number(m)})"
    em = results.get(f"em-{key_of(setting)}-{SPEC[setting].em[0][0]}")
    if em is not None and epsilon == 1.0:
        rows, paper = SPEC[setting].em[0]
        cells["without privacy"] = f"EM at {number(rows)}: {error(em['worst_error'])} (spec {paper})"
    if found["labels"] is not None:
        first = by_n[found["labels"]]
        cells["ours"] = f"{number(found['labels'])} ({error(first['mean_error'])}, {error(first['worst_error'])})"
        cells["ours at 2 n"] = outcomes(found["twice"])
    else:
        cells["ours"] = "none"
    return _row(
        what="smallest n",
        data=f"{setting.features}, {setting.components}, {setting.separation:g}",
        ε=f"{epsilon:g}",
        spec=f"{number(n)} ({largest})",
        **{"ours, means": number(found["means"])},
        **cells,
    )


def rival_of(results: Found, setting: Setting, epsilon: float) -> dict[str, dict[str, Any]]:
    """Rows of `smallest_numbers` by goal; {} where they were not asked for."""
    found = results.get(f"rival-{key_of(setting)}")
    return {row["goal"]: row for row in (found or {"rows": []})["rows"] if row["epsilon"] == epsilon}


def _enough_rows(results: Found) -> Iterator[Row]:
    for setting in SETTINGS:
        (rows, paper), found = SPEC[setting].enough, results.get(f"enough-{key_of(setting)}")
        if found is not None:
            em = results.one(f"em-{key_of(setting)}-{rows}")
            yield _row(
                what=f"{number(rows)} rows",
                data=f"{setting.features}, {setting.components}, {setting.separation:g}",
                ε="1",
                spec=paper,
                ours=f"{outcomes(found)}; labels {found['accuracy']:.2%}; weights {found['weight_error']:.4f}; "
                f"traces {found['trace_error']:.1%}",
                **{"without privacy": f"EM: {error(em['worst_error'])}"},
            )
    for setting in SETTINGS:
        for epsilon in EPSILONS:
            found = results.get(f"accept-{key_of(setting)}-{epsilon:g}")
            if found is not None:
                rows, paper = 2 * SPEC[setting].n[epsilon][0], "19/20 right; 1.0"
                yield _row(
                    what=f"{number(rows)} rows: 2 x spec",
                    data=f"{setting.features}, {setting.components}, {setting.separation:g}",
                    ε=f"{epsilon:g}",
                    spec=paper,
                    ours=outcomes(found),
                )


def _variant_rows(results: Found) -> Iterator[Row]:
    for name, chosen in runs.VARIANTS.items():
        if f"variant-{name}" in results:
            yield _row(
                what=f"{chosen.title}, {number(chosen.rows)} rows",
                spec=chosen.expected,
                ε="1",
                data=f"{chosen.features}, {chosen.components}, {chosen.separation:g}",
                ours=outcomes(results.one(f"variant-{name}")),
            )
    for kind in KINDS:
        for components in (2, 3):
            found = results.get(f"nothing-{kind}-{components}")
            if found is not None:
                yield _row(
                    what=f"no structure: {kind}, 20 000 rows",
                    data=f"20, {components}, none",
                    ε="1",
                    spec="all refused",
                    ours=f"{found['refused']}/{found['runs']} refused",
                )


def _real_rows(results: Found) -> Iterator[Row]:
    for name, known in runs.REAL.items():
        for components in (2, known.components):
            found = results.get(f"real-{name}-{components}")
            if found is None:
                continue
            for epsilon in ("1", "4"):
                yield _row(
                    what="real rows",
                    data=f"{name}, up to {components}",
                    ε=epsilon,
                    ours=_seen(found[epsilon]),
                    **{"without privacy": f"EM: {_fit(found['em'])}; one normal: {found['normal']['nll']:.2f}"},
                )


def _seen(found: Mapping[str, Any]) -> str:
    counts = [
        f"{found['found'].count(m)} x {'refused' if m == 0 else f'{m} components'}" for m in sorted(set(found["found"]))
    ]
    if found["nll"]:
        ari = [one for one in found["ari"] if one is not None]
        counts.append(_fit({"nll": float(np.median(found["nll"])), "ari": float(np.median(ari)) if ari else None}))
    return "; ".join(counts)


def _fit(found: Mapping[str, Any]) -> str:
    return f"nll {found['nll']:.2f}" + ("" if found["ari"] is None else f", ARI {error(found['ari'])}")


# --- findings -------------------------------------------------------------------------------------------------------

SETUP = (
    "data: columns, components, separation. spec: the specification's prototype, n (largest error of a mean, in σ).",
    "ours: n (median, largest over the seeds of the largest error of a mean, in σ); every seed has k components and "
    "labels of at least 99 %. ours, means: n at which besides no mean of any seed is more than 1 σ off.",
    "R is twice what is needed, sigma_min .3 and w_min .6 of the true ones; spherical covariances, one level, unless "
    "said otherwise.",
    "S&A: sample-and-aggregate, n (rows of a block x blocks) for the same two goals; only k means and weights are "
    "aggregated, with a block sensitivity of sqrt(2k). Ratios compare like goals: labels with labels, means with "
    "means. The specification's column is for labels.",
    "without privacy: scikit-learn's GaussianMixture, 3 starts; the largest error over its seeds.",
    "real rows: entries are cut to public bounds and scaled by them to [-1, 1] ("
    + "; ".join(f"{name} {known.low:g} to {known.high:g}, {known.because}" for name, known in runs.REAL.items())
    + f"); R = sqrt(d), sigma_min {runs.FINEST:g}, w_min {runs.LEAST:g}. nll: nats per row, median over draws of the "
    "noise; ARI: adjusted Rand index of the labels with the classes.",
)


def growth(results: Found, who: str, goal: str) -> tuple[list[int], list[int]]:
    """(d, n) of the slope cells that found one."""
    found = {
        columns: results.one(f"slope-{who}-{columns}").get(goal)
        for columns in SLOPE_COLUMNS
        if f"slope-{who}-{columns}" in results
    }
    kept = {columns: n for columns, n in found.items() if n is not None}
    return list(kept), list(kept.values())


def slope(line: tuple[Sequence[int], Sequence[int]]) -> float:
    """Of log n against log d, by least squares."""
    return float(np.polyfit(np.log(line[0]), np.log(line[1]), 1)[0])


def of_part(results: Found, part: str) -> list[dict[str, Any]]:
    return [results.one(key) for key in results.by_condition if key.startswith(part)]


def findings(results: Found) -> list[str]:
    """What the specification asks for beside what was measured; of a quick table only what it holds."""
    found = [*_claim_of_acceptance(results), *_claim_of_gain(results), *_claim_of_slope(results)]
    answers = [one for cell in of_part(results, "search") for one in cell["tried"]]
    runs_made = sum(one["runs"] for one in answers)
    wrong = sum(one["wrong"] for one in answers)
    refused = sum(one["refused"] for one in answers)
    found.append(
        f"Wrong answers on both sides of the border (all runs of the searches): {wrong} of {runs_made}, "
        f"{refused} refused; asked at most 1 %, {verdict(wrong <= 0.01 * runs_made)}."
    )
    nothing = of_part(results, "nothing")
    refused, made = (sum(cell[name] for cell in nothing) for name in ("refused", "runs"))
    found.append(f"Data without structure: {refused} of {made} refused, {verdict(refused == made)}.")
    return found


def _claim_of_acceptance(results: Found) -> Iterator[str]:
    accepted = of_part(results, "accept")
    if accepted:
        good = [cell["right"] >= 0.95 * cell["runs"] and (cell["mean_error"] or np.inf) <= 1.0 for cell in accepted]
        yield (
            f"At twice the specification's n, 95 % right and a median error of at most 1 σ: {sum(good)} of "
            f"{len(good)} settings, {verdict(all(good))}."
        )
    enough = of_part(results, "enough")
    if enough:
        bounds = (
            ("mean_error", 0.3, "median error at most .3 σ"),
            ("weight_error", 0.01, "weights within .01"),
            ("trace_error", 0.05, "traces within 5 %"),
        )
        for name, most, words in bounds:
            worst = max(cell[name] for cell in enough)
            yield f"With 50 000 or 100 000 rows at ε 1, {words}: {worst:.3f}, {verdict(worst <= most)}."
        least = min(cell["accuracy"] for cell in enough)
        yield f"And labels of at least 99.9 %: {least:.2%}, {verdict(least >= 0.999)}."


def _claim_of_gain(results: Found) -> Iterator[str]:
    for setting in SETTINGS[-2:]:
        rival, ours = rival_of(results, setting, 1.0), results.get(f"search-{key_of(setting)}-1")
        if not rival or not ours:
            continue
        for goal in WORDS:
            if rival[goal]["n"] is None or ours[goal] is None:
                yield f"Fewer rows than sample-and-aggregate, {key_of(setting)}, {goal}: not both found."
                continue
            gain = rival[goal]["n"] / ours[goal]
            yield (
                f"Fewer rows than sample-and-aggregate, {key_of(setting)}, ε 1, goal {goal}: {gain:.3g} times; "
                f"asked {GAIN_WANTED}, {verdict(gain >= GAIN_WANTED)}."
            )


def _claim_of_slope(results: Found) -> Iterator[str]:
    for goal, words in WORDS.items():
        ours, rival = growth(results, "ours", goal), growth(results, "rival", goal)
        if len(ours[0]) < 3 or len(rival[0]) < 3:
            continue
        own, other = slope(ours), slope(rival)
        yield (
            f"log n against log d, k 5, separation 12, ε 1, {words}: ours {_pairs(ours)}, slope {own:.2f}, asked at "
            f"most {SLOPE_WANTED}, {verdict(own <= SLOPE_WANTED)}; sample-and-aggregate {_pairs(rival)}, slope "
            f"{other:.2f}, asked {SLOPE_GAP} more than ours, {verdict(other >= own + SLOPE_GAP)}."
        )


def _pairs(line: tuple[Sequence[int], Sequence[int]]) -> str:
    return ", ".join(f"{columns}: {number(n)}" for columns, n in zip(*line, strict=True))


# --- figure -----------------------------------------------------------------------------------------------------------


Line = tuple[Sequence[float], Sequence[float]]


def recursion_and_growth(picture: Mapping, lines: Mapping[str, Line]) -> bytes:
    """Left: candidates, balls and cells of `private_gmm_runs.pictured`, released values only. Right: n against d with
    logarithmic axes, a line for each label; without lines it says so."""
    figure, grid = _figure((11.0, 4.6), 1, 2)
    _recursion(grid[0, 0], picture)
    _growth(grid[0, 1], lines)
    return _png(figure)


def _recursion(axes, picture: Mapping) -> None:
    from matplotlib.patches import Circle

    axes.set_title("One run, from released values only", **_title())
    for radius in picture["radii"][1:]:
        axes.add_patch(Circle((0, 0), radius, fill=False, color=SOFT, linewidth=1.0, linestyle=":"))
    for x, y, radius in picture["balls"]:
        axes.add_patch(Circle((x, y), radius, fill=False, color=COLOURS[1], linewidth=1.6))
    for x, y, spread in picture["leaves"]:
        axes.add_patch(Circle((x, y), 2 * spread, color=COLOURS[0], alpha=0.18, linewidth=0))
    for points, marker, colour, label in (
        (picture["candidates"], "o", COLOURS[2], "candidate centres"),
        ([leaf[:2] for leaf in picture["leaves"]], "x", COLOURS[0], "means, and 2 standard deviations"),
    ):
        at = np.asarray(points, np.float64).reshape(-1, 2)
        axes.plot(at[:, 0], at[:, 1], marker, color=colour, markersize=5, label=label)
    axes.plot([], [], color=COLOURS[1], label="terrific balls")
    axes.plot([], [], color=SOFT, linestyle=":", label="ball that rows are cut to, as it shrinks")
    axes.set_aspect("equal", adjustable="datalim")
    axes.autoscale_view()
    axes.set_xlabel("first direction of the released basis", **_text())
    axes.set_ylabel("second direction", **_text())
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def _growth(axes, lines: Mapping[str, Line]) -> None:
    axes.set_title("Rows needed against columns", **_title())
    if not lines:
        axes.set_axis_off()
        axes.text(0, 0.9, "not part of the quick version", transform=axes.transAxes, va="top", **_text())
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    for colour, (label, (x, y)) in zip(COLOURS, lines.items(), strict=False):
        axes.plot(x, y, color=colour, linewidth=1.8, marker="o", markersize=4, label=label)
    ticks = sorted({value for x, _ in lines.values() for value in x})
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    rows = [value for _, y in lines.values() for value in y]
    steps = [step * 10**power for power in range(2, 8) for step in (1, 2, 5)]
    shown = [step for step in steps if min(rows) <= 2 * step and step <= 2 * max(rows)]
    axes.set_yticks(shown, [f"{step:,}".replace(",", " ") for step in shown])
    axes.minorticks_off()
    axes.set_xlabel("columns d", **_text())
    axes.set_ylabel("rows n", **_text())
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


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
