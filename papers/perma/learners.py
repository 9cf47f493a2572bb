"""Learners of shared dictionaries on images that clients hold out: the default, PerMA's profiles, and learners of all
images in one place.

    dictionary-mnist     ten clients, 450 images of a digit of their own and 50 of the others, held out in the same mix
    dictionary-femnist   sixty writers with 8 to some hundreds of images each, held out as many of each

100 shared atoms. Mean squared errors of held-out images rebuilt by matching pursuit from k = 5, 10, 20 atoms; means
over all clients' images. The default's own local atoms are on top of its 100, and stand in columns of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from fedcore.papers.data import needed_data, rows_population
from fedcore.papers.perma import baselines
from fedcore.papers.perma import mnist as perma_mnist
from fedcore.papers.perma.learning import train
from fedcore.papers.perma.truth import reconstructed
from fedcore.papers.table import Column, Condition, Experiment, Found, Options, Place, Row, Trial, mean
from threadpoolctl import threadpool_limits

from fedcore.randomness import stream

ATOMS = 100
KEPT = (5, 10, 20)
ALPHAS = (0.1, 0.3, 1.0, 3.0)
WRITERS, FEWEST, HELD = 60, 8, 20
PIXELS = perma_mnist.SIDE**2
PERMA = {
    "atoms": ATOMS,
    "global_atoms": ATOMS,
    "code": "top_k",
    "sparsity": 20,
    "starts": 1,
    "start_steps": 30,
    "rounds": 30,
}


class Images(NamedTuple):
    """Of each client: samples (n_i, pixels) to learn from, held (m_i, pixels); values of [0, 1]."""

    samples: list[np.ndarray]
    held: list[np.ndarray]


class Learnt(NamedTuple):
    """common: (r, d) atoms that all clients share; own: (l_i, d) of each client beside them; None if nobody has any."""

    common: np.ndarray | None
    own: list[np.ndarray] | None = None


class Line(NamedTuple):
    title: str
    learn: Callable[[Place, str, Images, int, bool], Learnt]


# --- learners -------------------------------------------------------------------------------------------------------


def zero(place: Place, key: str, images: Images, seed: int, quick: bool) -> Learnt:
    return Learnt(None)


def svd(place: Place, key: str, images: Images, seed: int, quick: bool) -> Learnt:
    return Learnt(baselines.singular_vectors(images.samples, ATOMS))


def method(
    place: Place, key: str, images: Images, seed: int, quick: bool, settings: Mapping[str, object], of: str
) -> Learnt:
    population = rows_population(place, f"images-{seed}", lambda: images.samples, "a published research data set")
    if quick:
        settings = {**settings, "rounds": 8, **({"start_steps": 3} if "start_steps" in settings else {})}
    trained = train(place, key, settings, population, seed, method=of)
    wanted = len(trained.common)
    ranks = np.maximum(trained.outputs["rank"] - wanted, 0)
    own = [local[:rank] for local, rank in zip(trained.local, ranks, strict=True)]
    return Learnt(trained.common, own if ranks.any() else None)


def one_place(place: Place, key: str, images: Images, seed: int, quick: bool, alpha: float) -> Learnt:
    rows = np.concatenate(images.samples)
    return Learnt(baselines.mini_batch_dictionary(rows, ATOMS, seed, alpha=alpha, passes=1 if quick else 5))


def alone(place: Place, key: str, images: Images, seed: int, quick: bool) -> Learnt:
    passes = 1 if quick else 5
    return Learnt(None, [baselines.mini_batch_dictionary(own, ATOMS, seed, passes=passes) for own in images.samples])


LINES = {
    "zero": Line("zero image", zero),
    "svd": Line("singular vectors of all images, best k", svd),
    "statistics": Line("**default: statistics**", partial(method, settings={}, of="dictionaries")),
    **{
        name: Line(f"PerMA, profile {name}", partial(method, settings={**PERMA, "profile": name}, of="perma"))
        for name in ("recommended", "paper", "scripts", "robust")
    },
    "alone": Line("scikit-learn, each client alone", alone),
    **{
        f"pooled-{alpha:g}": Line(f"scikit-learn, all images, alpha {alpha:g}", partial(one_place, alpha=alpha))
        for alpha in ALPHAS
    },
}
QUICK_LINES = ("zero", "svd", "statistics", "recommended", "pooled-1")


# --- data -----------------------------------------------------------------------------------------------------------


def mnist(seed: int, quick: bool) -> Images:
    """The clients of `perma-mnist`, and for each 90 held-out images of its digit and 10 of the others."""
    samples, _, _ = perma_mnist.data(seed, perma_mnist.FULL)
    _, _, x, y = perma_mnist.stored()
    order = stream(seed, "dictionary-learners/held-out").permutation(len(y))
    held = []
    for client in range(len(samples)):
        mine = y[order] == perma_mnist.own_digit(client)
        chosen = np.concatenate([order[mine][:90], order[~mine][10 * client : 10 * (client + 1)]])
        held.append(x[chosen].reshape(len(chosen), -1) / 255.0)
    return _smaller(Images(samples, held)) if quick else Images(samples, held)


def femnist(seed: int, quick: bool) -> Images:
    """Writers drawn at random, each with as many images to learn from as the logarithm, evenly drawn, says, and other
    ones held out; ink is 1."""
    with np.load(needed_data("femnist", "femnist.npz"), allow_pickle=False) as stored:
        x, writer = stored["x"], stored["client"]
    generator = stream(seed, "dictionary-learners/writers")
    samples, held = [], []
    for one in generator.permutation(int(writer.max()) + 1)[:WRITERS]:
        mine = generator.permutation(np.flatnonzero(writer == one))
        most = len(mine) - HELD
        size = int(round(FEWEST * (most / FEWEST) ** generator.random()))
        images = 1.0 - x[mine].reshape(len(mine), -1) / 255.0
        samples.append(images[HELD : HELD + size])
        held.append(images[:HELD])
    return _smaller(Images(samples, held)) if quick else Images(samples, held)


def _smaller(images: Images) -> Images:
    return Images(*([own[:40] for own in part[:10]] for part in images))


# --- scores ---------------------------------------------------------------------------------------------------------


def errors(learnt: Learnt, held: Sequence[np.ndarray]) -> dict[str, list[float]]:
    """JSON. shared, own: MSE for each k, of the shared atoms alone and with the clients' own, where there are such."""
    found: dict[str, list[float]] = {}
    if learnt.common is not None or learnt.own is None:
        rows = np.concatenate(held)
        found["shared"] = [_mse(rows, learnt.common, k) for k in KEPT]
    if learnt.own is not None:
        common = np.zeros((0, PIXELS)) if learnt.common is None else learnt.common
        sizes = np.array([len(rows) for rows in held], np.float64)
        of_client = [
            [_mse(rows, np.concatenate([common, own]), k) for rows, own in zip(held, learnt.own, strict=True)]
            for k in KEPT
        ]
        found["own"] = [float(np.average(by, weights=sizes)) for by in of_client]
    return found


def _mse(rows: np.ndarray, atoms: np.ndarray | None, k: int) -> float:
    return float(np.mean((rows if atoms is None else rows - reconstructed(rows, atoms, k)) ** 2))


# --- experiments ----------------------------------------------------------------------------------------------------


def conditions(options: Options) -> dict[str, Condition]:
    lines = QUICK_LINES if options.quick else tuple(LINES)
    return {line: Condition(LINES[line].title, {"line": line}, {"learner": LINES[line].title}) for line in lines}


def measured(data: Callable[[int, bool], Images], trial: Trial) -> dict:
    images = data(trial.seed, trial.quick)
    with threadpool_limits(1):  # as the engine has it, so that seconds compare
        began = time.process_time()
        learnt = LINES[trial["line"]].learn(trial.place, trial.key, images, trial.seed, trial.quick)
        seconds = time.process_time() - began
    kept = 0 if learnt.own is None or learnt.common is None else sum(len(own) > 0 for own in learnt.own)
    sizes = sorted(len(own) for own in images.samples)
    return {**errors(learnt, images.held), "cpu": seconds, "clients": len(sizes), "kept": kept, "sizes": sizes}


def by_k(name: str) -> Column:
    """Means over the seeds for each k; empty for a learner without such atoms."""

    def text(found: Found, row: Row) -> str:
        if name not in found.one(str(row.of)):
            return ""
        return " / ".join(f"{one:.5f}".removeprefix("0") for one in np.mean(found.values(str(row.of), name), axis=0))

    return text


def clients_with_atoms(found: Found, row: Row) -> str:
    line = str(row.of)
    return f"{found.mean(line, 'kept'):g}" if found.one(line)["kept"] else ""


def columns(options: Options) -> dict[str, Column]:
    k = " / ".join(str(k) for k in KEPT)
    return {
        f"shared atoms, MSE k {k}": by_k("shared"),
        f"with own atoms, MSE k {k}": by_k("own"),
        "clients with own atoms": clients_with_atoms,
        "CPU s": mean("cpu", ".1f"),
    }


def held_out(data: Callable[[int, bool], Images], title: str, found: Found) -> bytes:
    from fedcore.evaluation.images import grid_figure

    shown = np.stack([rows[i] for rows in data(1, found.options.quick).held[:10] for i in range(5)])
    return grid_figure({"held out": shown.reshape(-1, perma_mnist.SIDE, perma_mnist.SIDE)}, title)


def notes(found: Found) -> list[str]:
    cell = found.one("statistics")
    texts = [
        f"Seeds {len(found.seeds)}; {cell['clients']} clients with {cell['sizes'][0]} to {cell['sizes'][-1]} "
        f"images, {sum(cell['sizes'])} in all (first seed); pixels of [0, 1]. Errors are means over held-out images of "
        "all clients, rebuilt by matching pursuit.",
        "scikit-learn: MiniBatchDictionaryLearning, 5 passes, its best alpha by each k. PerMA: codes of the 20 largest "
        "correlations, 30 steps of start and 30 rounds. The default has no settings.",
    ]
    best = np.min([found.one(line)["shared"] for line in found.by_condition if line.startswith("pooled")], axis=0)
    ratios = np.array(cell["shared"]) / best
    return [
        *texts,
        "Default's shared atoms over the best scikit-learn at each k, first seed: "
        + ", ".join(f"k {k}: {ratio:.3f}" for k, ratio in zip(KEPT, ratios, strict=True))
        + ".",
    ]


def learners(name: str, title: str, source: tuple[str, str], data: Callable[[int, bool], Images]) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        needs=(source,),
        conditions=conditions,
        measure=partial(measured, data),
        columns=columns,
        notes=notes,
        figure=partial(held_out, data, title),
    )


TITLE = "Learners of 100 shared atoms"
MNIST_TITLE = f"{TITLE}: MNIST, ten clients with a digit each"
DICTIONARY_MNIST = learners("dictionary-mnist", MNIST_TITLE, perma_mnist.SOURCE, mnist)

DICTIONARY_FEMNIST = learners(
    "dictionary-femnist", f"{TITLE}: FEMNIST, sixty writers of very unequal size", ("femnist", "femnist.npz"), femnist
)
