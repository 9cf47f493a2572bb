"""Client updates of federated EM per CPU-second, as ratios to hand-written NumPy in the same run.

K = 5 components, D = 10 columns, diagonal covariances, full participation; 20 rows for each client, or 1 .. 39. Floors
have all rows in memory, standardised, float64: `plain` is written as one writes it, `tiled` as fast as we could; both
give the sums over all rows, and `apart` the means of every client. Rounds of ours start from the float32 rows of the
store (in memory, or not: the flows) and standardise them. A ratio of 1 is the floor's speed, 0.5 half of it.

`--peer pfl=INTERPRETER` names one that has pfl (https://pypi.org/project/pfl/); without it that row is skipped.
"""

import json
import resource
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import floors, machine
from benchmarks.measured import Measured, in_turns
from benchmarks.populations import COLUMNS, COMPONENTS, ROWS, mixture_means, mixture_rows, with_rounds
from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.population.blocks import leaves
from fedcore.rounds.engine import InProcessBackend
from fedcore.rounds.method import PublicFacts
from fedcore.runs.store import Run
from fedcore.training.request import TrainRequest
from fedcore.training.session import concluding, start_run

FLOW_ROUNDS = (10, 60)
WARM_UP = 3  # rounds that size the futures
PEER_CLIENTS = 50
SETTINGS = {"components": COMPONENTS, "covariance": "diag"}


def measure(options) -> dict:
    equal = mixture_rows(options.dir, options.clients)
    ragged = mixture_rows(options.dir, options.clients, ragged=True)
    limits = machine.limits()
    with threadpool_limits(1):
        rows, per_row = in_memory(equal, options.repeats)
        core = next(row for row in rows if row["what"] == "core")
        # Rows are read once; products with 1, x and x^2 give responsibilities, and these the sums.
        flops = 4.0 * equal.n_rows * COMPONENTS * (1 + 2 * COLUMNS)
        core |= limits.shares(equal.n_clients / core["updates_per_cpu_s"], 4.0 * equal.n_rows * COLUMNS, flops)
        rows += in_memory(ragged, options.repeats, per_row)[0]
        rows += _run_store(equal, per_row)
    _whole_flow(equal, 1, FLOW_ROUNDS[0])  # imports Prefect and makes its database
    rows += [_flow(equal, workers, per_row, options.repeats) for workers in (1, 2)]
    rows.append(_peer(equal, rows[0]["updates_per_cpu_s"], options.peers.get("pfl")))
    return {"benchmark": "em", "clients": options.clients, "rows": rows + limits.rows()}


# --- one process, rows in memory ------------------------------------------------------------------------------------


def given_start(population) -> dict:
    """Public parameters, centre and scale to start from, which are near the truth."""
    first = population.read(0).x.astype(np.float64)
    centre, scale = first.mean(axis=0), first.std(axis=0)
    return {
        "weights": np.full(COMPONENTS, 1 / COMPONENTS),
        "means": (mixture_means() + 0.1 - centre) / scale,
        "covariances": np.tile(1 / scale**2, (COMPONENTS, 1)),
        "centre": centre,
        "scale": scale,
    }


def in_memory(population, repeats: int, per_row: dict | None = None) -> tuple[list[dict], dict]:
    """Floors (unless their seconds for each row are given) and ours, in turns; medians of CPU-seconds."""
    blocks = [population.read(index) for index in range(len(population.blocks))]
    parts = [leaf for block in blocks for leaf in leaves(block, population.clients_per_leaf)]
    given, clients, n = given_start(population), population.n_clients, population.n_rows
    theta = {name: given[name] for name in ("weights", "means", "covariances")}
    public = PublicFacts("rows", COLUMNS, population.clients_per_leaf, clients, None, 1.0, 0, warm_start=given)
    em = FederatedEM(FederatedEMConfig(algorithm="em", start="given", **SETTINGS))
    private = FederatedEM(FederatedEMConfig(algorithm="private", components=COMPONENTS, covariance="diag"))
    state = private.init(public)
    model, scale, released = GaussianMixture(COMPONENTS, COLUMNS, "diag"), state.scaling(), private.message(state)
    round_message = em.message(
        replace(
            em.init(replace(public, rho=None, clients=clients)),
            phase="rounds",
            **{name: getattr(state, name) for name in ("theta", "previous", "layout", "statistic", "centre", "scale")},
            variance=np.ones(COLUMNS),
            clients=float(clients),
            rows=float(n),
            effective_clients=float(clients),
        )
    )
    round_message = replace(round_message, monitor=False)

    def core():
        return [em.client_update(round_message, leaf, None) for leaf in parts]

    def apart():
        for leaf in parts:
            own = rows_of(leaf, scale)
            model.e_mean(theta, own.y, own.ptr)

    def clipped():
        return [private.client_update(released, leaf, None) for leaf in parts]

    ours = {"core": core, "clients apart": apart, "clipped, private": clipped}
    if per_row is None:
        x = (np.concatenate([block.x for block in blocks]).astype(np.float64) - given["centre"]) / given["scale"]
        arguments = (theta["weights"], theta["means"], theta["covariances"])
        ours = {
            "floor plain": floors.mixture(x, *arguments),
            "floor tiled": floors.mixture_in_tiles(x, *arguments),
            "floor apart": floors.mixture_by_client(x, ROWS, *arguments),
            **ours,
        }
    middle = in_turns(ours, repeats)
    per_row = per_row or {
        name.removeprefix("floor "): middle[name].map(lambda spent: spent / n)
        for name in middle
        if name.startswith("floor")
    }
    kind = "equal" if n == ROWS * clients else "1 to 39 rows"
    return [_row(name, kind, clients, n, spent, per_row) for name, spent in middle.items()], per_row


def _row(name: str, kind: str, clients: int, rows: int, cpu: float, per_row: dict, **more) -> dict:
    cpu = cpu if isinstance(cpu, Measured) else Measured([cpu])
    ratios = {
        f"of_{floor}": cpu.map(lambda value, spent=spent: float(spent) * rows / value)
        for floor, spent in per_row.items()
    }
    speed = {
        "updates_per_cpu_s": cpu.map(lambda value: clients / value),
        "ns_per_row": cpu.map(lambda value: value / rows * 1e9),
    }
    return {"what": name, "rows": kind, **speed, **ratios, **more}


# --- through the engine and the run store ---------------------------------------------------------------------------


def _run_store(population, per_row: dict) -> list[dict]:
    """EM, and FedEM whose memories are written and read in every round, in this process; CPU- and wall seconds. The
    tiled floor takes turns with the rounds."""
    given, found = given_start(population), []
    x = np.concatenate([population.read(index).x for index in range(len(population.blocks))]).astype(np.float64)
    x = (x - given["centre"]) / given["scale"]
    floor = floors.mixture_in_tiles(x, given["weights"], given["means"], given["covariances"])
    for name, settings in (
        ("em, run store", {"algorithm": "em", "tol": 0.0}),
        ("fedem, run store", {"algorithm": "fedem"}),
    ):
        with tempfile.TemporaryDirectory() as folder:
            request = TrainRequest(
                method="federated_em",
                population=str(population.path),
                runs=folder,
                run_id="r",
                settings=with_rounds(SETTINGS | settings, 8),
                cache_bytes=8 * 2**30,
            )
            session, spent, least = start_run(request, InProcessBackend(), stamp=""), [], []
            with concluding(session):
                goes_on = True
                while goes_on:
                    began = process_time()
                    floor()
                    started, phase = process_time(), session.training.state.phase
                    goes_on = session.training.step() is not None
                    if phase == "rounds":
                        spent.append(process_time() - started)
                        least.append(started - began)
            wall = [row["seconds_round"] for row in session.run.metrics()][-len(spent) - 1 : -1]
        cpu = Measured(spent[2:])
        row = _row(name, "equal", population.n_clients, population.n_rows, cpu, per_row, wall_s=Measured(wall[2:]))
        found.append(row | {"of_tiled": Measured(least[2:]).over(cpu)})
    return found


def _flow(population, workers: int, per_row: dict, repeats: int) -> dict:
    """Prefect, Dask and Zarr: CPU-seconds of all processes for each round, from short and long runs."""
    pairs = [[_whole_flow(population, workers, rounds) for rounds in FLOW_ROUNDS] for _ in range(repeats)]
    cpu = Measured((long["cpu"] - short["cpu"]) / (FLOW_ROUNDS[1] - FLOW_ROUNDS[0]) for short, long in pairs)
    return _row(
        f"em, flow, {workers} workers",
        "equal",
        population.n_clients,
        population.n_rows,
        cpu,
        per_row,
        **{f"{name}_s": Measured(long[name] for _, long in pairs) for name in ("wall", "clients")},
    )


def _whole_flow(population, workers: int, rounds: int) -> dict:
    """cpu: seconds of this process and all its children; wall, clients: medians of a round's."""
    from fedcore.flows.train import Compute, train_federated_em

    config, before = FederatedEMConfig(algorithm="em", max_passes=rounds + 2, tol=0.0, **SETTINGS), _cpu()
    with tempfile.TemporaryDirectory() as folder:
        path = train_federated_em(
            population=str(population.path),
            config=config,
            runs=folder,
            compute=Compute(workers=workers, cache_bytes=4 * 2**30),
        )
        metrics = Run.open(Path(path)).metrics()[-rounds - 1 : -1][WARM_UP:]
    wall, clients = (median(row[name] for row in metrics) for name in ("seconds_round", "seconds_clients"))
    return {"cpu": _cpu() - before, "wall": wall, "clients": clients}


def _cpu() -> float:
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


# --- peers ----------------------------------------------------------------------------------------------------------


def _peer(population, floor: float, interpreter: str | None) -> dict:
    """Client updates of pfl on some of the clients. floor: updates of the plain floor per CPU-second."""
    if interpreter is None:
        return {"what": "pfl", "skipped": "no --peer pfl=INTERPRETER"}
    block, given = population.read(0), given_start(population)
    x = block.x[: PEER_CLIENTS * ROWS].astype(np.float64).reshape(PEER_CLIENTS, ROWS, COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(
            Path(folder) / "given.npz",
            rows=(x - given["centre"]) / given["scale"],
            weights=given["weights"],
            means=given["means"],
            variances=given["covariances"],
        )
        command = [interpreter, str(Path(__file__).with_name("peer_pfl.py")), str(Path(folder) / "given.npz")]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"what": "pfl", "skipped": (done.stderr.strip().splitlines() or ["it failed"])[-1]}
    answer = json.loads(done.stdout)
    speed = PEER_CLIENTS / answer["seconds"]
    return {"what": f"pfl {answer['version']}", "rows": "equal", "updates_per_cpu_s": speed, "of_plain": speed / floor}
