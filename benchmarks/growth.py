"""python -m benchmarks.growth HISTORY [--figure FILE.png]

What a client costs against how many there are, as a table in Markdown, from what `python -m benchmarks scale --history
HISTORY` measured: the last line of every cell."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import history

Cell = tuple[str, int, str]  # case, workers, blocks
COMPARED = 100_000  # clients, the size that others are divided by


def growth(lines: Sequence[Mapping]) -> dict[Cell, dict[int, Mapping[str, float]]]:
    """Medians by cell and number of clients, both in order."""
    found: dict[Cell, dict[int, Mapping[str, float]]] = {}
    for line in lines:
        if line["benchmark"] != "scale":
            continue
        labels = line["labels"]
        cell = labels["what"], labels["workers"], labels["blocks"]
        found.setdefault(cell, {})[labels["clients"]] = {
            name: value["median"] for name, value in line["quantities"].items()
        }
    return {cell: dict(sorted(sizes.items())) for cell, sizes in sorted(found.items())}


def table(found: Mapping[Cell, Mapping[int, Mapping[str, float]]]) -> list[str]:
    """A row for each cell and size; empty where a quantity was not measured."""
    rows = [
        "| what | workers | blocks | clients | us a client, CPU | of 100,000 | flow, MiB | largest worker, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (what, workers, blocks), sizes in found.items():
        unit = sizes.get(COMPARED, {}).get("cpu_us_per_client")
        for clients, row in sizes.items():
            spent = row.get("cpu_us_per_client")
            ratio = f"{spent / unit:.2f}" if spent and unit else ""
            shown = ["" if spent is None else f"{spent:.2f}", ratio]
            shown += [f"{row[name]:.0f}" if name in row else "" for name in ("flow_MiB", "worker_MiB")]
            rows.append(f"| {what} | {workers} | {blocks} | {clients:,} | {' | '.join(shown)} |")
    return rows


def draw(found: Mapping[Cell, Mapping[int, Mapping[str, float]]], file: Path) -> None:
    """CPU-microseconds of a client and memory of the largest worker: colours are cases, markers numbers of workers."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure((10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    colours = {what: f"C{at}" for at, what in enumerate(sorted({cell[0] for cell in found}))}
    markers = dict(zip(sorted({cell[1] for cell in found}), "os^Dv*", strict=False))
    styles = {"cached": "-", "store": "--"}
    named = (("cpu_us_per_client", "CPU-microseconds a client and round"), ("worker_MiB", "largest worker, MiB"))
    for panel, (name, label) in zip(panels, named, strict=True):
        for (what, workers, blocks), sizes in found.items():
            points = [(clients, row[name]) for clients, row in sizes.items() if name in row]
            if points:
                look = {"color": colours[what], "linestyle": styles[blocks], "marker": markers[workers]}
                panel.plot(*zip(*points, strict=True), ms=4, lw=1, **look)
        panel.set(xscale="log", yscale="log", xlabel="clients", ylabel=label)
    shown = [Line2D([], [], color=colour, label=what) for what, colour in colours.items()]
    shown += [Line2D([], [], color="0.4", linestyle=style, label=blocks) for blocks, style in styles.items()]
    shown += [Line2D([], [], color="0.4", lw=0, marker=one, label=f"{n} workers") for n, one in markers.items()]
    panels[0].legend(handles=shown, fontsize=7, ncols=2)
    figure.savefig(file, dpi=110)


def main() -> None:
    given = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    given.add_argument("history", type=Path)
    given.add_argument("--figure", type=Path, metavar="FILE.png")
    chosen = given.parse_args()
    found = growth(history.read(chosen.history))
    print("\n".join(table(found)))
    if chosen.figure is not None:
        draw(found, chosen.figure)


if __name__ == "__main__":
    main()
