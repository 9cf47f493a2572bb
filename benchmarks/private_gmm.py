"""Passes of private_gmm over rows out of core: CPU-seconds beside hand-written NumPy in the same run, and memory.

5 components 10 apart in 20 columns, float32 rows, records as units, 100 rows for each client; `--clients 100000`: 10^7
rows. Passes are timed on a tenth of the clients, with their rows in memory. The floor makes the same sums of the same
pass in float64, in tiles, for whichever values the run has published so far: it cuts, projects and counts, but neither
rounds to whole numbers nor looks for rows that are not finite. A ratio of 1 is the floor's speed, 4 a quarter of it.

Then `fedcore train private_gmm --local` on a tenth of the clients and on all of them: peak memory, seconds of a pass.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
from fedcore.papers.private_gmm.simulation import mixture, prior, sample
from threadpoolctl import threadpool_limits

from benchmarks import machine
from benchmarks.command import train
from benchmarks.measured import in_turns
from benchmarks.populations import given_a_budget, kept
from fedcore.methods.private_gmm.boxes import CUBE_BITS, SLACK, keys_of
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.method import PrivateGMM
from fedcore.methods.private_gmm.state import BoxesMessage, Message, OffsetsMessage, ProfilesMessage
from fedcore.population.blocks import leaves
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.synthetic import PUBLIC, client_names
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.mechanisms import TestNoise
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.statistics import merge
from fedcore.training.budget import ledger_name

COLUMNS, COMPONENTS, SEPARATION, ROWS = 20, 5, 10.0, 100
BATCH = 1024  # clients drawn together
CACHE = 256  # MiB
TILE = 2**14  # rows of the floor


def measure(options) -> dict:
    small, large = (population_of(options.dir, clients) for clients in (options.clients // 10, options.clients))
    with threadpool_limits(1):
        limits = machine.limits()
        rows = _passes(small, options.repeats, limits)
    rows += [_whole_run(population) for population in (small, large)]
    return {"benchmark": "private_gmm", "clients": options.clients, "rows": rows + limits.rows()}


def population_of(folder: Path, clients: int) -> Population:
    """Made block by block and kept; with a budget for records."""
    path, truth = kept(folder, f"separated-{clients}"), mixture(COLUMNS, COMPONENTS, SEPARATION, 1)
    if not path.exists():
        with PopulationWriter(
            path, "rows", COLUMNS, nominal_clients=clients, public_for_evaluation=PUBLIC, ledger=ledger_name()
        ) as writer:
            for first in range(0, clients, BATCH):
                count = min(BATCH, clients - first)
                rows, _ = sample(truth, count * ROWS, first + 1)
                writer.write(client_names(first, count), (np.arange(count + 1) * ROWS, rows.astype(np.float32)))
            made = writer.commit(Provenance(sources=("benchmark",)))
        given_a_budget(made, "record")
    return Population.open(path)


def settings() -> dict:
    told = prior(mixture(COLUMNS, COMPONENTS, SEPARATION, 1))
    return {
        "components": COMPONENTS,
        "radius": told.radius,
        "sigma_min": told.sigma_min,
        "depth": 1,
        "least_weight": told.least_weight,
    }


# --- passes in memory -----------------------------------------------------------------------------------------------


def _passes(population: Population, repeats: int, limits: machine.Limits) -> list[dict]:
    """CPU-seconds of every kind of pass, ours and the floor's: medians of the repeats, means over passes of a kind."""
    blocks = [population.read(index) for index in range(len(population.blocks))]
    parts = [leaf for block in blocks for leaf in leaves(block, population.clients_per_leaf)]
    n = sum(len(leaf.x) for leaf in parts)
    ours, floor, flops = defaultdict(list), defaultdict(list), defaultdict(list)
    for message, answer in _messages(parts):
        taken = in_turns({"ours": lambda: answer(message), "floor": lambda: floor_pass(message, parts)}, repeats)  # noqa: B023
        ours[message.kind].append(float(taken["ours"]))
        floor[message.kind].append(float(taken["floor"]))
        flops[message.kind].append(_flops(message, n))
    found = [_row(kind, n, float(np.mean(ours[kind])), float(np.mean(floor[kind])), len(ours[kind])) for kind in ours]
    for row, kind in zip(found, ours, strict=True):
        row |= limits.shares(row["cpu_s"], 4.0 * n * COLUMNS, float(np.mean(flops[kind])))
    whole = [sum(map(sum, times.values())) for times in (ours, floor)]
    return [*found, _row("all passes", n, *whole, 1)]


def _flops(message: Message, n: int) -> float:
    """Of the matrix products of a pass: into the basis, second moments, squared distances from places."""
    kind = message.kind.removeprefix("leaf ").replace("covariance", "moments")
    if kind == "moments":
        return 2.0 * n * COLUMNS**2
    if kind in ("boxes", "offsets", "profiles"):
        width = message.basis.shape[-1]
        return 2.0 * n * width * (COLUMNS + (len(message.candidates) if isinstance(message, ProfilesMessage) else 0))
    return 4.0 * n * COLUMNS


def _row(kind: str, n: int, ours: float, floor: float, passes: int) -> dict:
    return {"what": kind, "rows": n, "passes": passes, "cpu_s": ours, "floor_cpu_s": floor, "ratio": ours / floor}


def _messages(parts):
    """Every message of a run with test noise, and a function that answers it."""
    method = PrivateGMM(PrivateGMMConfig(**settings()))
    rho = make_budget(1.0, 1e-6).rho_max
    public = PublicFacts("rows", COLUMNS, 1024, None, None, rho, 0, "add_or_remove_one", None, "record")
    plan, state, noise = method.plan(public), method.init(public), TestNoise("benchmark")

    def answer(message):
        total = None
        for leaf in parts:
            total = merge(total, method.client_update(message, leaf, None)[0])
        return total

    while (message := method.message(state)) is not None:
        yield message, answer
        sums = method.release_values(message, answer(message))
        state, _ = method.server_update(
            state, {p.name: noise.draw(p, "", sums[p.name]) for p in plan if p.round == state.round + 1}
        )
    if not state.found:
        raise RuntimeError(f"the benchmark's run found nothing: {state.reason}")


def floor_pass(message: Message, parts) -> list[np.ndarray]:
    """The sums of one pass in float64, as one would write them for rows that are known to be finite."""
    total = None
    for part in parts:
        for low in range(0, len(part.x), TILE):
            x = part.x[low : low + TILE].astype(np.float64)
            found = _sums(message, x)
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
    return total


def _sums(message: Message, x: np.ndarray) -> list[np.ndarray]:
    if message.level >= 0:
        return FLOORS[message.kind](message, 0, x)
    at = _nearest(message.tree, x)
    found = [
        FLOORS[message.kind.removeprefix("leaf ").replace("covariance", "moments")](message, slot, x[at == slot])
        for slot in range(len(message.nodes))
    ]
    return [np.stack(parts) for parts in zip(*found, strict=True)]


def _nearest(tree, x: np.ndarray) -> np.ndarray:
    """(n,) the ball of the root's children; the benchmark's run splits the root once."""
    children = np.flatnonzero(tree.parent == 0)
    y = _cut(x, tree.centre[0], tree.radius[0])[0] @ (tree.basis[0] * 2.0**-14)
    balls = tree.ball[children] / ONE
    squares = -2 * y @ balls.T + (balls * balls).sum(axis=1) + np.einsum("ij,ij->i", y, y)[:, None]
    return np.argmin(squares / (tree.ball_radius[children] / ONE) ** 2, axis=1)


def _cut(x: np.ndarray, centre: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    z = (x - centre) / radius
    squares = np.einsum("ij,ij->i", z, z)
    long = np.flatnonzero(squares > 1)
    z[long] /= np.sqrt(squares[long])[:, None]
    return z, squares


def _mean(message: Message, slot: int, x: np.ndarray) -> list[np.ndarray]:
    return [np.array(len(x)), _cut(x, message.centre[slot], message.radius[slot])[0].sum(axis=0)]


def _radii(message: Message, slot: int, x: np.ndarray) -> list[np.ndarray]:
    squares = _cut(x, message.centre[slot], message.radius[slot])[1]
    cells = np.searchsorted(message.edges / message.radius[slot] ** 2, squares)
    return [np.array(len(x)), np.bincount(cells, minlength=len(message.edges) + 1)]


def _moments(message: Message, slot: int, x: np.ndarray) -> list[np.ndarray]:
    z = _cut(x, message.centre[slot], message.radius[slot])[0]
    return [z.T @ z]


def _projected(message: Message, slot: int, x: np.ndarray) -> np.ndarray:
    """In steps of the ball, where boxes and candidates are."""
    return _cut(x, message.centre[slot], message.radius[slot])[0] @ (message.basis[slot] * (2.0**-14 * ONE))


def _corners(message: BoxesMessage | OffsetsMessage, y: np.ndarray) -> list[np.ndarray]:
    return [(y[:, : message.shifts.shape[1]] + (shift + ONE + SLACK)).astype(np.int64) for shift in message.shifts]


def _boxes(message: BoxesMessage, slot: int, x: np.ndarray) -> list[np.ndarray]:
    y, j = _projected(message, slot, x), message.halvings
    found = np.zeros(message.shapes[0], np.int64)
    for shift, corner in enumerate(_corners(message, y)):
        mine = np.flatnonzero(message.parents[:, 1] == shift)
        keys = keys_of(message.parents[mine, 2:], j)
        order = np.argsort(keys)
        own = keys_of(corner >> (CUBE_BITS - j), j)
        at = np.minimum(np.searchsorted(keys[order], own), len(mine) - 1)
        inside = keys[order][at] == own
        half = ((corner[inside] >> (CUBE_BITS - j - 1)) & 1) @ (1 << np.arange(corner.shape[1]))
        cells = mine[order][at[inside]] * found.shape[1] + half
        found += np.bincount(cells, minlength=found.size).reshape(found.shape)
    return [found]


def _offsets(message: OffsetsMessage, slot: int, x: np.ndarray) -> list[np.ndarray]:
    y = _projected(message, slot, x)
    corners, found = _corners(message, y), np.zeros((len(message.box), y.shape[1]))
    for box, (shift, halvings, *code) in enumerate(message.box):
        inside = ((corners[shift] >> (CUBE_BITS - halvings)) == np.array(code)).all(axis=1)
        found[box] = _cut(y[inside], message.middle[box], message.reach[box])[0].sum(axis=0)
    return [found]


def _profiles(message: ProfilesMessage, slot: int, x: np.ndarray) -> list[np.ndarray]:
    y, places = _projected(message, slot, x), message.candidates
    squares = np.einsum("ij,ij->i", y, y)[:, None] - 2 * y @ places.T + (places * places).sum(axis=1)
    cells = message.shapes[0][1]
    return [np.stack([np.bincount(np.searchsorted(message.edges, column), minlength=cells) for column in squares.T])]


FLOORS = {
    "mean": _mean,
    "radii": _radii,
    "moments": _moments,
    "boxes": _boxes,
    "offsets": _offsets,
    "profiles": _profiles,
}

# --- a whole run ----------------------------------------------------------------------------------------------------


def _whole_run(population: Population) -> dict:
    """`fedcore train --local` in a process of its own."""
    run = train(
        "private_gmm", population.path, {"epsilon": 1, "spare_releases": 0, **settings()}, workers=None, cache=CACHE
    )
    seconds = [row["seconds_clients"] for row in run.metrics if "seconds_clients" in row]
    return {
        "what": "whole run, --local",
        "rows": population.n_rows,
        "passes": len(seconds),
        "seconds_a_pass": float(np.mean(seconds)),
        "peak_MiB": run.flow / 2**20,
        "cache_MiB": CACHE,
        "stored_MiB": population.n_rows * COLUMNS * 4 / 2**20,
    }
