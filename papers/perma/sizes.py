"""The default learner of dictionaries on rows with and without sizes of their own, and what odd clients do to it.

    dictionary-sizes       numbers of atoms and lengths of codes found from held-out rows, against fixed ones
    dictionary-influence   one client with very many rows, clients with garbage, clients that act together

Errors are the fraction of the energy of fresh rows that k atoms leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from fedcore.papers.data import needed_data, rows_population
from fedcore.papers.perma import generated, learners
from fedcore.papers.perma.generated import Rows
from fedcore.papers.perma.learning import Trained, train
from fedcore.papers.perma.truth import reconstructed
from fedcore.papers.table import Column, Condition, Experiment, Found, Options, Row, Seeds, Trial, mean
from threadpoolctl import threadpool_limits

from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.randomness import stream

FIXED = {"rounds": 60}  # the default, but for the search for sizes


def film(seed: int) -> Rows:
    """Patches of the film of a tree, less their middle grey; a client is three frames."""
    with np.load(needed_data("video_tree", "tree.npz"), allow_pickle=False) as stored:
        frames = stored["frames"].mean(axis=-1) / 255
    side, draw = generated.SIDE, stream(seed, "dictionary-sizes/film")
    found: Rows = ([], [])
    view = np.lib.stride_tricks.sliding_window_view(frames, (side, side), axis=(1, 2))
    for first in range(0, len(view) - 2, 3):
        for part, count in zip(found, (400, 200), strict=True):
            at = (draw.integers(first, first + 3, count), *(draw.integers(n, size=count) for n in view.shape[1:3]))
            part.append(view[at].reshape(count, -1) - 0.5)
    return found


DATA: dict[str, tuple[str, Callable[[int], Rows], tuple[int, ...]]] = {
    "planted": ("planted", generated.planted, (4, 8, 16)),
    "sounds": ("generated sounds: harmonics of any phase, and clicks", generated.sounds, (5, 10, 20)),
    "spectra": ("generated spectra of notes", generated.spectra, (5, 10, 20)),
    "patches": ("generated patches", generated.patches, (5, 10, 20)),
    "genes": ("generated counts of genes", generated.genes, (5, 10, 20)),
    "mnist": ("MNIST", partial(learners.mnist, quick=False), (5, 10, 20)),
    "femnist": ("FEMNIST", partial(learners.femnist, quick=False), (5, 10, 20)),
    "film": ("patches of a film of a tree", film, (5, 10, 20)),
}
FILES = {"mnist": "mnist.npz", "femnist": "femnist.npz", "film": "tree.npz"}
QUICK = ("planted", "patches")


def left(trained: Trained, fresh: list[np.ndarray], k: int) -> float:
    """Fraction of the energy of all clients' fresh rows that k of their shared and own atoms leave."""
    ranks = trained.outputs["rank"] - len(trained.common)
    rest = 0.0
    for client, rows in enumerate(fresh):
        atoms = np.concatenate([trained.common, trained.local[client][: ranks[client]]])
        rest += float(((rows - reconstructed(rows, atoms, k)) ** 2).sum())
    return rest / float(sum((rows**2).sum() for rows in fresh))


def measure_sizes(trial: Trial) -> dict:
    _, data, lengths = DATA[trial["data"]]
    training, fresh = data(trial.seed)
    population = rows_population(trial.place, trial.key, lambda: training, "generated, or a published data set")
    found: dict = {}
    for way, settings in (("found", {}), ("fixed", FIXED)):
        if way == "fixed" and not found["structured"]:  # the search was refused: the same bits
            found |= {"fixed": found["found"]}
            break
        began = time.process_time()
        with threadpool_limits(1):
            trained = train(trial.place, trial.key, settings, population, trial.seed, method="dictionaries")
        found |= {f"{way}_cpu": time.process_time() - began, way: [left(trained, fresh, k) for k in lengths]}
        if way == "found":
            state, own = trained.state, trained.outputs["rank"] - len(trained.common)
            refused = [info.note for info in trained.infos if "sizes stay" in (info.note or "")]
            found |= {"structured": bool(state.structured), "length": int(state.sparsity), "shared": len(state.common)}
            found |= {"own": float(own.mean()), "why": refused[0].split(": ", 1)[1] if refused else ""}
    return found


def at_lengths(name: str) -> Column:
    """Means over the seeds for each k."""
    return lambda found, row: " / ".join(f"{one:.4f}" for one in np.mean(found.values(str(row.of), name), axis=0))


def each(of: Callable[[dict], str]) -> Column:
    """The text of each seed; one, if they agree."""
    return lambda found, row: "; ".join(dict.fromkeys(of(one) for one in found[str(row.of)]))


def cpu_ratio(found: Found, row: Row) -> str:
    ratios = [one["found_cpu"] / one["fixed_cpu"] for one in found[str(row.of)] if "fixed_cpu" in one]
    return f"{np.mean(ratios):.2f}" if ratios else ""


def sizes_of(one: dict) -> str:
    return f"{one['shared']}, {one['own']:.1f}, {one['length']}" if one["structured"] else f"refused: {one['why']}"


def conditions_sizes(options: Options) -> dict[str, Condition]:
    names = QUICK if options.quick else tuple(DATA)
    return {
        name: Condition(
            DATA[name][0], {"data": name}, {"data": DATA[name][0], "k": " / ".join(map(str, DATA[name][2]))}
        )
        for name in names
    }


def needed(options: Options) -> None:
    """Raises ConfigError without the files of published sets."""
    for name in () if options.quick else FILES:
        needed_data({"film": "video_tree"}.get(name, name), FILES[name])


def figure(title: str, rows: Callable[[int], Rows]) -> Callable[[Found], bytes]:
    def drawn(found: Found) -> bytes:
        from fedcore.evaluation.images import grid_figure

        return grid_figure({"rows": rows(1)[0][0][:10].reshape(10, 8, 8)}, title)

    return drawn


SIZES = Experiment(
    name="dictionary-sizes",
    title="Sizes of dictionaries from held-out rows",
    seeds=Seeds(3, quick=1),
    conditions=conditions_sizes,
    check=needed,
    measure=measure_sizes,
    columns=lambda options: {
        "fixed": at_lengths("fixed"),
        "found": at_lengths("found"),
        "shared, own, length": each(sizes_of),
        "CPU, of fixed": cpu_ratio,
    },
    notes=lambda found: [f"{len(found.seeds)} seeds. Where the search is refused, both runs have the same bits."],
    figure=figure("Sizes of dictionaries from held-out rows: patches", generated.patches),
)

# --- influence ------------------------------------------------------------------------------------------------------

ODD = {"none": "no odd client", "many": "100 times", "garbage": "garbage", "together": "together"}
ATOMS, K, D = 30, 3, 32


def measure_influence(trial: Trial) -> dict:
    generator = stream(trial.seed, "dictionary-influence")
    true, other = (random_atoms(generator, ATOMS, D) for _ in range(2))

    def drawn(atoms: np.ndarray, count: int) -> np.ndarray:
        return generated.sums(generator, atoms, count, K) + 0.02 * generator.standard_normal((count, D))

    rows, kind = [drawn(true, 60) for _ in range(20)], trial["kind"]
    if kind == "many":
        rows[-1] = drawn(other, 6000)
    if kind == "garbage":
        rows[-2:] = [generator.standard_normal((60, D)) * np.sqrt(K / D) for _ in range(2)]
    if kind == "together":
        rows[-2:] = [drawn(other, 600) for _ in range(2)]
    population = rows_population(trial.place, trial.key, lambda: rows, "generated")
    settings = {"atoms": ATOMS, "global_atoms": ATOMS, "sparsity": K}
    with threadpool_limits(1):
        trained = train(trial.place, trial.key, settings, population, trial.seed, method="dictionaries")
    return {"error": left(trained, [drawn(true, 400)], K)}


def worst(found: Found, row: Row) -> str:
    return f"{max(found.values(str(row.of), 'error')):.4f}"


INFLUENCE = Experiment(
    name="dictionary-influence",
    title="Influence of odd clients on shared dictionaries",
    seeds=Seeds(6, quick=1),
    conditions=lambda options: {kind: Condition(what, {"kind": kind}, {"clients": what}) for kind, what in ODD.items()},
    measure=measure_influence,
    columns=lambda options: {
        "error, median": lambda found, row: f"{found.median(str(row.of), 'error'):.4f}",
        "mean": mean("error", ".4f"),
        "worst": worst,
    },
    notes=lambda found: [f"{len(found.seeds)} seeds."],
    figure=figure("Influence of odd clients on shared dictionaries", generated.planted),
)
