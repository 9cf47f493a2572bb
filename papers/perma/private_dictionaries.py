"""Private dictionaries next to public cosines and private principal components, at the same budget.

    dictionary-private         patches of generated pictures (k = 5, 10) and sums of Gabor functions (k = 5)
    dictionary-private-mnist   images of digits, half of a client's of one digit (k = 10)
    dictionary-cosines         on such images, with the default settings, for which clients and epsilon cosines win

Sums are those of few clients, and the noise is that of n: the sums are multiplied by n over that number of clients. All
releases are noisy, delta is 1e-6, noise is simulated: privacy: none. Errors are of fresh rows, rebuilt from k atoms by
matching pursuit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from fedcore.papers.perma import generated
from fedcore.papers.perma import mnist as perma_mnist
from fedcore.papers.perma.truth import reconstructed
from fedcore.papers.simulation import ran
from fedcore.papers.table import Column, Condition, Experiment, Found, Options, Row, Seeds, Trial, mean
from threadpoolctl import threadpool_limits

from fedcore.methods.dictionaries import Dictionaries, DictionariesConfig
from fedcore.methods.dictionaries.private.clients import ENERGIES, MomentsMessage, ScaleMessage, client_update, unpacked
from fedcore.methods.dictionaries.private.plan import MOMENTS, SCALE, SCALE_SHARE, likely_noise
from fedcore.population.blocks import RowsBlock
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.grid import GRID_NORM
from fedcore.privacy.mechanisms import TestNoise, simulated_gaussian
from fedcore.privacy.plan import PlannedRelease
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.statistics import values

DELTA = 1e-6
EPSILONS, CLIENTS = (1.0, 4.0, 15.0), (2_000, 10_000, 100_000)
BORDER_EPSILONS, BORDER_CLIENTS = (0.25, 0.5, 1.0, 2.0, 4.0), (500, 1_000, 2_000, 4_000)
LEAF = 100  # clients that are answered at a time


class Rows(NamedTuple):
    """training: of each client (m, d); fresh: (n, d)."""

    training: list[np.ndarray]
    fresh: np.ndarray


class Task(NamedTuple):
    """data: seed -> rows; atoms, k: of the dictionary and of a code; side: pixels of a row's picture."""

    title: str
    data: Callable[[int], Rows]
    atoms: int
    k: int
    side: int = generated.SIDE


def made(family: Callable) -> Callable[[int], Rows]:
    """1,000 clients with 50 rows each, and 3 fresh rows of each."""

    def rows(seed: int) -> Rows:
        training, fresh = family(seed, clients=1000, rows=(50, 3))
        return Rows(training, np.concatenate(fresh))

    return rows


def digits(clients: int, images: int, fresh: int) -> Callable[[int], Rows]:
    """Clients by resampling the training images, half of each of one digit; the first test images are fresh ones."""

    def rows(seed: int) -> Rows:
        x, y, x_test, _ = perma_mnist.stored()
        draw = stream(seed, "dictionary-private/digits")
        of_digit, half = [np.flatnonzero(y == digit) for digit in range(10)], images // 2
        at = [
            np.concatenate([draw.choice(of_digit[client % 10], half), draw.integers(len(y), size=images - half)])
            for client in range(clients)
        ]
        return Rows([flat(x[mine]) for mine in at], flat(x_test[:fresh]))

    return rows


def flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1) / 255.0


TASKS = {
    "patches-5": Task("patches, k = 5", made(generated.patches), 64, 5),
    "patches-10": Task("patches, k = 10", made(generated.patches), 64, 10),
    "gabor-5": Task("Gabor, k = 5", made(generated.gabor), 64, 5),
}
DIGITS = Task("MNIST, k = 10", digits(1000, 50, 3000), 100, 10, perma_mnist.SIDE)
BORDER = Task("MNIST, default settings", digits(250, 20, 1500), 64, 10, perma_mnist.SIDE)

# --- learners -------------------------------------------------------------------------------------------------------


class Enlarged:
    """Noise for sums that stand for `times` as many clients; none at all if `noisy` is False."""

    secure, label = False, "simulated"

    def __init__(self, key: str, times: int, noisy: bool = True):
        self.source, self.times, self.noisy = TestNoise(key), times, noisy

    def ready(self, planned: PlannedRelease, values: np.ndarray) -> None:
        self.source.ready(planned, values)

    def draw(self, planned: PlannedRelease, run_key: str, values: np.ndarray) -> np.ndarray:
        larger = values * self.times
        return self.source.draw(planned, run_key, larger) if self.noisy else larger


def facts(rows: Rows, clients: int, epsilon: float, seed: int) -> PublicFacts:
    rho = make_budget(epsilon, DELTA).rho_max
    return PublicFacts("rows", rows.fresh.shape[1], LEAF, clients, None, rho, seed)


def dictionary(task: Task, rows: Rows, clients: int, epsilon: float, seed: int, noisy: bool = True) -> np.ndarray:
    """(r, d) atoms of a private run with the budget of `clients`."""
    method = Dictionaries(DictionariesConfig(private=True, global_atoms=task.atoms, sparsity=task.k))
    noise = Enlarged(f"{task.title}|{clients}|{epsilon}|{seed}", clients // len(rows.training), noisy)
    ptr = np.cumsum([0, *map(len, rows.training)])
    x, public = np.concatenate(rows.training), facts(rows, clients, epsilon, seed)
    common: np.ndarray = ran(method, x, public, noise, ptr=ptr, clients_per_leaf=LEAF).state.common
    return common


def components(task: Task, rows: Rows, clients: int, epsilon: float, seed: int, noisy: bool = True) -> np.ndarray:
    """(r, d) eigenvectors of second moments, for which all of the budget is spent that finds the scale."""
    ptr = np.cumsum([0, *map(len, rows.training)]).astype(np.int64)
    block, d = RowsBlock(0, 0, ptr, np.concatenate(rows.training)), rows.fresh.shape[1]
    rho, generator = make_budget(epsilon, DELTA).rho_max, stream(seed, f"dictionary-private/{clients}|{epsilon}")

    def released(message: ScaleMessage | MomentsMessage, share: float) -> np.ndarray:
        total = values(client_update(message, block))[message.release] * (clients // len(rows.training))
        scale = GRID_NORM / math.sqrt(2 * share * rho)
        return simulated_gaussian(generator, total, scale if noisy else 0.0)

    tau = ENERGIES.quantile(released(ScaleMessage(SCALE), SCALE_SHARE) / GRID_NORM, 0.5)
    moments = unpacked(released(MomentsMessage(MOMENTS, tau), 1 - SCALE_SHARE), d)
    return np.ascontiguousarray(np.linalg.eigh(moments)[1][:, ::-1].T[: task.atoms])


def cosines(side: int, count: int, per: int = 1) -> np.ndarray:
    """(count, side^2) products of cosines of norm 1, lowest frequencies first. per: frequencies for one of a basis."""
    frequencies = np.arange(side * per) / per
    waves = np.cos(np.pi * (np.arange(side) + 0.5) * frequencies[:, None] / side)
    waves /= np.linalg.norm(waves, axis=1, keepdims=True)
    down, across = np.divmod(np.arange(len(waves) ** 2), len(waves))
    order = np.argsort(down**2 + across**2, kind="stable")[:count]
    return np.asarray((waves[down[order], :, None] * waves[across[order], None, :]).reshape(count, -1))


# --- dictionary-private ---------------------------------------------------------------------------------------------


def mse(rows: Rows, atoms: np.ndarray, k: int) -> float:
    return float(np.mean((rows.fresh - reconstructed(rows.fresh, atoms, k)) ** 2))


def measure(trial: Trial) -> dict:
    task = DIGITS if trial["task"] == "digits" else TASKS[trial["task"]]
    rows, clients, epsilon, noisy = task.data(trial.seed), trial["clients"], trial["epsilon"], trial["noisy"]
    with threadpool_limits(1):
        found = {
            name: mse(rows, learn(task, rows, clients, epsilon, trial.seed, noisy), task.k)
            for name, learn in (("pca", components), ("dictionary", dictionary))
        }
        if not noisy:
            found["cosines"] = mse(rows, cosines(task.side, task.atoms), task.k)
            found["more"] = mse(rows, cosines(task.side, 4 * task.atoms, per=2), task.k)
        return found


def conditions_of(tasks: dict[str, Task], options: Options) -> dict[str, Condition]:
    found = {}
    for name, task in tasks.items():
        asked = {"task": name, "clients": CLIENTS[-1], "epsilon": EPSILONS[-1], "noisy": False}
        found[f"{name}-exact"] = Condition(f"{task.title}, no noise", asked)
        for n in CLIENTS[1:2] if options.quick else CLIENTS:
            for epsilon in EPSILONS[1:2] if options.quick else EPSILONS:
                asked = {"task": name, "clients": n, "epsilon": epsilon, "noisy": True}
                found[f"{name}-{n}-{epsilon:g}"] = Condition(f"{task.title}, n = {n:,}, epsilon {epsilon:g}", asked)
    return found


def table_rows(tasks: dict[str, Task]) -> Callable[[Found], Iterator[Row]]:
    def rows(found: Found) -> Iterator[Row]:
        for name, task in tasks.items():
            yield Row({"data": f"{task.title}, no noise"}, f"{name}-exact")
            for n in CLIENTS:
                if any(key.startswith(f"{name}-{n}-") for key in found.conditions):
                    yield Row({"data": f"{task.title}, n = {n:,}"}, f"{name}-{n}")

    return rows


def cell(of: str, epsilon: float) -> Column:
    """At this epsilon; without noise, of the last epsilon."""

    def text(found: Found, row: Row) -> str:
        exact = str(row.of).endswith("exact") and epsilon == EPSILONS[-1]
        key = str(row.of) if exact else f"{row.of}-{epsilon:g}"
        return f"{found.mean(key, of):.3g}" if key in found else ""

    return text


def exact(of: str) -> Column:
    """Of the lines without noise."""
    return lambda found, row: f"{found.mean(str(row.of), of):.3g}" if str(row.of).endswith("exact") else ""


def columns(options: Options) -> dict[str, Column]:
    found: dict[str, Column] = {"cosines": exact("cosines"), "four times as many": exact("more")}
    for epsilon in EPSILONS:
        found |= {f"{epsilon:g}: {of}": cell(of, epsilon) for of in ("pca", "dictionary")}
    return found


def figure(title: str, task: Task) -> Callable[[Found], bytes]:
    def drawn(found: Found) -> bytes:
        from fedcore.evaluation.images import grid_figure

        atoms = cosines(task.side, 10)
        return grid_figure({"cosines": atoms.reshape(10, task.side, task.side)}, title)

    return drawn


def private(name: str, title: str, tasks: dict[str, Task], seeds: Seeds, needs: tuple = ()) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        needs=needs,
        seeds=seeds,
        conditions=lambda options: conditions_of(tasks, options),
        rows=table_rows(tasks),
        measure=measure,
        columns=columns,
        notes=lambda found: [
            f"{len(found.seeds)} seeds; mean squared errors of fresh rows. Sums are those of 1,000 clients."
        ],
        figure=figure(title, next(iter(tasks.values()))),
    )


PRIVATE_TITLE = "Private dictionaries and private principal components"
PRIVATE = private("dictionary-private", PRIVATE_TITLE, TASKS, Seeds(2, quick=1))
PRIVATE_MNIST = private(
    "dictionary-private-mnist", f"{PRIVATE_TITLE}: MNIST", {"digits": DIGITS}, Seeds(1), (perma_mnist.SOURCE,)
)

# --- dictionary-cosines ---------------------------------------------------------------------------------------------


def measure_border(trial: Trial) -> dict:
    rows, clients, epsilon = BORDER.data(trial.seed), trial["clients"], trial["epsilon"]
    energy = float(np.mean(rows.fresh**2))
    config = DictionariesConfig(private=True)
    with threadpool_limits(1):
        atoms = dictionary(BORDER, rows, clients, epsilon, trial.seed)
        public = mse(rows, cosines(BORDER.side, BORDER.atoms), BORDER.k) / energy
    noise = likely_noise(config, facts(rows, clients, epsilon, trial.seed))
    return {"left": mse(rows, atoms, BORDER.k) / energy, "cosines": public, "noise": noise}


COSINES = Experiment(
    name="dictionary-cosines",
    title="Private dictionaries and public cosines: MNIST",
    needs=(perma_mnist.SOURCE,),
    conditions=lambda options: {
        f"{n}-{epsilon:g}": Condition(
            f"n = {n:,}, epsilon {epsilon:g}", {"clients": n, "epsilon": epsilon}, {"n": f"{n:,}", "epsilon": epsilon}
        )
        for n in (BORDER_CLIENTS[:1] if options.quick else BORDER_CLIENTS)
        for epsilon in (BORDER_EPSILONS[-1:] if options.quick else BORDER_EPSILONS)
    },
    measure=measure_border,
    columns=lambda options: {name: mean(name, ".3g") for name in ("left", "cosines", "noise")},
    notes=lambda found: ["Fraction of the energy of 1,500 test images that is left; the noise that `plan` states."],
    figure=figure("Private dictionaries and public cosines: MNIST", BORDER),
)
