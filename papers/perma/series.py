"""The default learner of dictionaries on generated samples: series of runs over clients that come, and hostile clients.

Samples of 12 numbers are sums of 2 of 20 atoms. *Series*: four clients of 40 samples come between two runs; the atoms
stay, or turn a little from run to run. The later runs start from scratch or from the run before, and the error is that
of fresh samples of the latest law. *Hostile*: of twelve clients two have garbage, as large as samples or larger; the
error is that of the others' law. *Uneven*: nobody is hostile, but samples, or clients, are of very different size; the
error is that of samples of one size.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from fedcore.papers.data import rows_population
from fedcore.papers.perma.learning import train
from fedcore.papers.perma.truth import reconstructed
from fedcore.papers.table import Condition, Experiment, Found, Options, Place, Seeds, Trial, mean
from threadpoolctl import threadpool_limits

from fedcore.methods.dictionary_learning.operators import normalise, random_atoms
from fedcore.randomness import stream

FEATURES, TRUE, K = 12, 20, 2
SETTINGS = {"atoms": TRUE, "global_atoms": TRUE, "sparsity": K, "least_sparsity": K, "rounds": 20}
RUNS, NEW, SAMPLES, FRESH = 6, 4, 40, 400
TURN = {"stay": 0.0, "turn": 0.25}  # of the atoms from run to run, in units of their norm
WAYS: dict[str, float | None] = {"from scratch, all clients": None, "from the run before, all clients": 0.0}
WAYS |= {f"new clients, and sums with forgetting {f:g}": f for f in (0.5, 0.8, 0.95, 1.0)}
HOSTILE = {"none": 0.0, "as large": 1.0, "twice as large": 2.0, "four times as large": 4.0}
HOSTILE |= {"a million times as large": 1e6}
UNEVEN = {"samples": (1.0, 0.0), "clients": (0.0, 1.0)}  # standard deviations of the logarithms of their sizes


def drawn(generator: np.random.Generator, atoms: np.ndarray, count: int) -> np.ndarray:
    """(count, d) samples, each of K atoms."""
    at = generator.permuted(np.tile(np.arange(len(atoms)), (count, 1)), axis=1)[:, :K]
    codes = generator.choice([-1.0, 1.0], at.shape) * (1 + generator.random(at.shape))
    return np.einsum("nk,nkd->nd", codes, atoms[at])


def worlds(seed: int, turn: float) -> tuple[list[np.ndarray], np.ndarray]:
    """(samples of each client, in the order in which they come; fresh samples of the latest law)."""
    generator = stream(seed, "dictionary-series")
    atoms, rows = random_atoms(generator, TRUE, FEATURES), []
    for run in range(RUNS):
        if run:
            atoms = normalise(atoms + turn * random_atoms(generator, TRUE, FEATURES))[0]
        rows += [drawn(generator, atoms, SAMPLES) for _ in range(NEW)]
    return rows, drawn(generator, atoms, FRESH)


def error(fresh: np.ndarray, atoms: np.ndarray) -> float:
    """Share of the samples' energy that K of the atoms leave."""
    return float(((fresh - reconstructed(fresh, atoms, K)) ** 2).sum() / (fresh**2).sum())


def of_series(place: Place, key: str, seed: int, world: str, way: str) -> tuple[float, float]:
    rows, fresh = worlds(seed, TURN[world])
    start, forgetting, seconds, atoms = None, WAYS[way], 0.0, fresh[:0]
    for run in range(RUNS):
        if forgetting is None and run < RUNS - 1:
            continue  # of these only the last one counts
        now = rows[: NEW * (run + 1)]
        population = rows_population(place, f"{world}-{seed}-{run}", partial(list, now), "generated")
        settings = SETTINGS if forgetting is None else SETTINGS | {"forgetting": forgetting}
        began = time.process_time()
        trained = train(place, f"{key}-{run}", settings, population, seed, start, method="dictionaries")
        seconds, atoms = time.process_time() - began, trained.common
        start = None if forgetting is None else trained.method.warm_start_of(trained.state)
    return error(fresh, atoms), seconds


def of_hostile(place: Place, key: str, seed: int, kind: str) -> tuple[float, float]:
    generator = stream(seed, "dictionary-series/hostile")
    atoms = random_atoms(generator, TRUE, FEATURES)
    rows = [drawn(generator, atoms, SAMPLES) for _ in range(12)]
    if size := HOSTILE[kind]:
        rows[-2:] = [size * generator.standard_normal((SAMPLES, FEATURES)) / 2 for _ in range(2)]
    population = rows_population(place, f"hostile-{kind}-{seed}", lambda: rows, "generated")
    began = time.process_time()
    trained = train(place, key, SETTINGS, population, seed, method="dictionaries")
    return error(drawn(generator, atoms, FRESH), trained.common), time.process_time() - began


def of_uneven(place: Place, key: str, seed: int, kind: str) -> tuple[float, float]:
    generator, (of_samples, of_clients) = stream(seed, "dictionary-series/uneven"), UNEVEN[kind]
    atoms = random_atoms(generator, TRUE, FEATURES)
    rows = [
        drawn(generator, atoms, SAMPLES)
        * np.exp(of_samples * generator.standard_normal((SAMPLES, 1)) + of_clients * generator.standard_normal())
        for _ in range(12)
    ]
    population = rows_population(place, f"uneven-{kind}-{seed}", lambda: rows, "generated")
    began = time.process_time()
    trained = train(place, key, SETTINGS, population, seed, method="dictionaries")
    seconds = time.process_time() - began
    return error(drawn(generator, atoms, FRESH), trained.common), seconds


def conditions(options: Options) -> dict[str, Condition]:
    found = {}
    for what, kinds in (("hostile", HOSTILE), ("uneven", UNEVEN)):
        for number, kind in enumerate(kinds):
            title = f"{what}: {kind}"
            found[f"{what}-{number}"] = Condition(title, {"what": what, "kind": kind}, {"clients": title})
    for world in TURN:
        for number, way in enumerate(WAYS):
            asked = {"what": "series", "world": world, "way": way}
            found[f"{world}-{number}"] = Condition(f"atoms {world}, {way}", asked, {"clients": f"atoms {world}; {way}"})
    return found


def measure(trial: Trial) -> dict:
    place, key, seed = trial.place, trial.key, trial.seed
    with threadpool_limits(1):
        if trial["what"] == "series":
            left, seconds = of_series(place, key, seed, trial["world"], trial["way"])
        else:
            measured = of_hostile if trial["what"] == "hostile" else of_uneven
            left, seconds = measured(place, key, seed, trial["kind"])
    return {"error": left, "cpu": seconds}


def figure(found: Found) -> bytes:
    from fedcore.evaluation.images import grid_figure

    atoms = random_atoms(stream(1, "dictionary-series"), TRUE, FEATURES)
    return grid_figure({"true atoms": atoms[:10].reshape(10, 3, 4)}, SERIES.title)


def notes(found: Found) -> list[str]:
    return [
        f"{len(found.seeds)} seeds; error: share of the energy of fresh samples that {K} atoms leave. Series: "
        f"{RUNS} runs, {NEW} new clients of {SAMPLES} samples for each; CPU seconds of the last run."
    ]


SERIES = Experiment(
    name="dictionary-series",
    title="Default learner of dictionaries: clients that come, and hostile ones",
    seeds=Seeds(5, quick=1, together=100),
    conditions=conditions,
    measure=measure,
    columns=lambda options: {
        "error": mean("error", ".4f"),
        "worst": lambda found, row: f"{max(found.values(str(row.of), 'error')):.4f}",
        "CPU s": mean("cpu", ".2f"),
    },
    notes=notes,
    figure=figure,
)
