"""Small worlds for the search: everything that a flow and its workers may write lies below one folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Collection
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fedcore.methods.names import OWN
from fedcore.methods.registry import make_method
from fedcore.population.blocks import leaves
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.privacy.grid import grid_step
from fedcore.privacy.ledger.ledger import create_ledger
from fedcore.rounds.caches import BLOCKS
from fedcore.rounds.engine import Training
from fedcore.runs.store import Run
from fedcore.training.budget import public_facts
from fedcore.training.shared_ids import register
from tests.audit.search import Secrets
from tests.conftest import write_population

CLIENTS, FEATURES, LEAF = 40_000, 8, 4096
TOKENS = 918273645546  # of the canary
SETTINGS = {"clusters": 2, "rounds": 2, "epsilon": 4.0, "nominal_clients": 50_000}
REPOSITORY = Path(__file__).parents[2]
PROGRAM = "import json, sys; from tests.audit.world import flows; flows(json.loads(sys.argv[1]))"


def canary_name(world: str) -> str:
    return f"canary-7QK2X9-{world}"


def populate(path: Path, world: str, seed: int, ledger: dict) -> Population:
    """40 000 clients, one of whom nobody could mistake for another."""
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(40, generator.dirichlet(np.ones(FEATURES)), CLIENTS).astype(np.float64)
    counts[CLIENTS // 3] = 0
    counts[CLIENTS // 3, 2] = TOKENS
    names = [f"client-{i}" for i in range(CLIENTS)]
    names[CLIENTS // 3] = canary_name(world)
    sizes = {"leaf": LEAF, "block": 2 * LEAF, "nominal_clients": 50_000}
    source = Provenance(sources=("made",))
    return write_population(
        path, "counts", FEATURES, names, sp.csr_matrix(counts), provenance=source, ledger=ledger, **sizes
    )


def make_worlds(folder: Path, methods: dict[str, str], on_workers: Collection[str], database: Path) -> None:
    """One population and one private run by a flow for each of `methods` (name -> class); those named in `on_workers`
    with Dask workers, others in the flow's own process. database: Prefect's, to begin with.
    """
    for name in ("home/prefect", "temporary", "here"):
        (folder / name).mkdir(parents=True)
    shutil.copy(database, folder / "home" / "prefect")
    url = f"sqlite:///{folder / 'ledger.sqlite'}"
    ledger = create_ledger(url)
    for seed, world in enumerate(methods):
        made = populate(folder / "populations" / world, world, seed, {"id": ledger.id, "url": ledger.url})
        ledger.register(made.id)
        ledger.set_budget(made.id, 8.0, 1e-6)
        register(made, ledger)
        ledger.declare_shared_ids(made.id, "the same clients in each world")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "DASK"))}
    environment |= {
        "HOME": str(folder / "home"),
        "PREFECT_HOME": str(folder / "home" / "prefect"),
        "TMPDIR": str(folder / "temporary"),
        "FEDCORE_LEDGER": url,
        "PYTHONPATH": str(REPOSITORY),
        "PREFECT_LOGGING_LEVEL": "DEBUG",
        "PYTHONUNBUFFERED": "1",
    }
    request = json.dumps({"folder": str(folder), "methods": methods, "on_workers": [*on_workers]})
    with open(folder / "out", "w") as out, open(folder / "err", "w") as err:
        code = subprocess.run(
            [sys.executable, "-c", PROGRAM, request],
            env=environment,
            cwd=folder / "here",
            stdout=out,
            stderr=err,
            timeout=400,
        ).returncode
    assert code == 0, (folder / "err").read_text()[-3000:]


def flows(request: dict) -> None:
    """What the other process does: the runs, one after the other."""
    from fedcore.flows.train import FLOWS, Compute

    from fedcore.methods.histograms.config import HistogramsConfig

    folder, moved = Path(request["folder"]), Training.move

    def move(training):
        """Before every step of the server temporary files are kept, since the cluster removes its own at the end."""
        keep_files(Path(tempfile.gettempdir()), folder / "kept")
        return moved(training)

    Training.move = move
    for world, method in request["methods"].items():
        OWN["histograms"] = method
        FLOWS["histograms"](
            config=HistogramsConfig(**SETTINGS),
            compute=Compute(workers=2 if world in request["on_workers"] else None),
            run_id=world,
            population=str(folder / "populations" / world),
            runs=str(folder / "runs"),
        )


def keep_files(source: Path, dest: Path) -> None:
    dest.mkdir(exist_ok=True)
    for path in source.rglob("*"):
        try:
            if path.is_file():
                (dest / f"{uuid.uuid4().hex[:8]}-{path.name}").write_bytes(path.read_bytes())
        except FileNotFoundError:  # gone in the meantime
            continue


def secrets_of(folder: Path, world: str) -> Secrets:
    """All that a run of this world may not tell: the canary, and the exact sums of its rounds, whole and by leaf."""
    run, population = Run.open(folder / "runs" / world), Population.open(folder / "populations" / world)
    method = make_method("histograms", run.info["config"])
    state, published = method.init(public_facts(method, population, run.info["rho"], run.info["seed"])), run.releases()
    plan, whole, real = method.plan(public_facts(method, population, run.info["rho"], 0)), {TOKENS}, set()
    for number in sorted({planned.round for planned in plan}):
        names = [planned.name for planned in plan if planned.round == number]
        message, total = method.message(state), dict.fromkeys(names, 0)
        for index in range(len(population.blocks)):
            for leaf in leaves(population.read(index), population.clients_per_leaf):
                for name, grid in method.release_values(message, method.client_update(message, leaf, None)[0]).items():
                    whole.update(grid.ravel().tolist())
                    total[name] = total[name] + grid
        for exact in total.values():
            whole.update(exact.ravel().tolist())
            if exact.shape[-1] == FEATURES:
                counts = exact * grid_step(message.clip) / message.whitening  # in clients, by cell and token
                real.update(np.concatenate([counts.ravel(), counts.sum(axis=-1).ravel(), [counts.sum()]]).tolist())
        state, _ = method.server_update(state, {name: published[name] for name in names})
    BLOCKS.clear()
    return Secrets({canary_name(world).encode()}, whole, {value for value in real if value > 100})
