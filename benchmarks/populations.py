"""Synthetic populations that benchmarks share; made once and kept."""

import os
from pathlib import Path

import numpy as np

from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.synthetic import PUBLIC, client_names, synthesise
from fedcore.population.writer import PopulationWriter
from fedcore.randomness import stream
from fedcore.training.budget import ledger_name, ledger_of, remember_head

COMPONENTS, COLUMNS, ROWS = 5, 10, 20  # of `mixture_rows`; ragged clients have 1 .. 39 rows, 20 in the mean
RUN = 10_240  # clients drawn together


def reddit_like(folder: Path, clients: int) -> Population:
    """The preset with `clients` clients and a budget that no benchmark uses up."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["FEDCORE_LEDGER"] = f"sqlite:///{(folder / 'ledger.sqlite').resolve()}"
    path = folder / f"reddit-like-{clients}"
    if not path.exists():
        made = synthesise(path, "reddit-like", 1, {"clients": clients}, ledger=ledger_name())
        ledger = ledger_of(made)
        ledger.register(made.id)
        ledger.set_budget(made.id, 1e6, 1e-10)
        remember_head(made, ledger)
    return Population.open(path)


def mixture_means() -> np.ndarray:
    """(5, 10) the means of the components of `mixture_rows`, which have variances of 1."""
    return stream(1, "benchmark/means").normal(0.0, 2.0, (COMPONENTS, COLUMNS))


def mixture_rows(folder: Path, clients: int, ragged: bool = False) -> Population:
    """Rows of a Gaussian mixture, float32, and a budget that no benchmark uses up. A client prefers some components."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["FEDCORE_LEDGER"] = f"sqlite:///{(folder / 'ledger.sqlite').resolve()}"
    path = folder / f"mixture-{'ragged-' * ragged}{clients}"
    if not path.exists():
        means = mixture_means()
        with PopulationWriter(
            path, "rows", COLUMNS, nominal_clients=clients, public_for_evaluation=PUBLIC, ledger=ledger_name()
        ) as writer:
            for first in range(0, clients, RUN):
                generator, count = stream(1, "benchmark/rows", first), min(RUN, clients - first)
                sizes = generator.integers(1, 2 * ROWS, count) if ragged else np.full(count, ROWS)
                ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
                shares = np.repeat(np.cumsum(generator.dirichlet(np.ones(COMPONENTS), count), axis=1), sizes, axis=0)
                labels = (generator.random((len(shares), 1)) > shares[:, :-1]).sum(axis=1)
                rows = means[labels] + generator.normal(size=(len(shares), COLUMNS))
                writer.write(client_names(first, count), (ptr, rows.astype(np.float32)))
            made = writer.commit(Provenance(sources=("benchmark",)))
        ledger = ledger_of(made)
        ledger.register(made.id)
        ledger.set_budget(made.id, 1e6, 1e-10)
        remember_head(made, ledger)
    return Population.open(path)
