"""Synthetic populations that benchmarks share; made once and kept, each with a budget that no benchmark uses up."""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
from fedcore.papers.fedgrem.simulation import simulated_clients
from fedcore.papers.perma.clips import surveillance
from fedcore.papers.perma.truth import shared_atoms

from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.synthetic import PUBLIC, client_names, generate, settings_of, synthesise, true_centres
from fedcore.population.synthetic import RUN as GENERATED
from fedcore.population.writer import PopulationWriter
from fedcore.randomness import stream
from fedcore.training.budget import ledger_name, ledger_of, remember_head

COMPONENTS, COLUMNS, ROWS = 5, 10, 20  # of `mixture_rows`; ragged clients have 1 .. 39 rows, 20 in the mean
RUN = 10_240  # clients drawn together
DRAWN = 1_000_000  # of `reddit_like`: to draw ten million takes half an hour


def kept(folder: Path, name: str) -> Path:
    """Where a population is, or will be; its ledger lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["FEDCORE_LEDGER"] = f"sqlite:///{(folder / 'ledger.sqlite').resolve()}"
    return folder / name


def given_a_budget(made: Population, unit: str = "client") -> None:
    """That no benchmark uses up."""
    ledger = ledger_of(made)
    ledger.register(made.id)
    ledger.set_budget(made.id, 1e6, 1e-10, unit=unit)
    remember_head(made, ledger)


def reddit_like(folder: Path, clients: int) -> Population:
    """The preset with `clients` clients. Beyond the first DRAWN they hold what those do, one after the other."""
    path = kept(folder, f"reddit-like-{clients}")
    if not path.exists() and clients <= DRAWN:
        given_a_budget(synthesise(path, "reddit-like", 1, {"clients": clients}, ledger=ledger_name()))
    elif not path.exists():
        given_a_budget(_repeated(reddit_like(folder, DRAWN), path, clients))
    return Population.open(path)


def _repeated(drawn: Population, path: Path, clients: int) -> Population:
    """Counts of so many clients, those of `drawn` again and again."""
    with PopulationWriter(
        path, "counts", drawn.features, nominal_clients=clients, public_for_evaluation=PUBLIC, ledger=ledger_name()
    ) as writer:
        for index in cycle(range(len(drawn.blocks))):
            counts = drawn.read(index).csr[: clients - writer.clients]
            writer.write(client_names(writer.clients, counts.shape[0]), counts)
            if writer.clients == clients:
                return writer.commit(Provenance(sources=("benchmark",)))


def reddit_like_documents(folder: Path, clients: int) -> Population:
    """The same with as many held-out tokens as others for every client, as if its documents had been dealt to both."""
    path = kept(folder, f"reddit-like-documents-{clients}")
    settings = settings_of("reddit-like", {"clients": clients, "test_tokens": 500, "heldout_clients": clients})
    if not path.exists():
        centres = true_centres(settings, 1)
        with PopulationWriter(
            path, "counts", settings.features, nominal_clients=clients, halves="document", ledger=ledger_name()
        ) as writer:
            for run, first in enumerate(range(0, clients, GENERATED)):
                train, heldout = generate(settings, 1, run, centres)
                writer.write(client_names(first, train.shape[0]), train, heldout)
            made = writer.commit(Provenance(sources=("benchmark",)))
        given_a_budget(made)
    return Population.open(path)


def clients_of(folder: Path, name: str, draw: Callable[[], Iterable[np.ndarray]]) -> Population:
    """Rows of a few clients, float32; drawn if they are not there yet."""
    path = kept(folder, name)
    if not path.exists():
        drawn = list(draw())
        ptr = np.cumsum([0, *(len(rows) for rows in drawn)]).astype(np.int64)
        with PopulationWriter(
            path,
            "rows",
            drawn[0].shape[1],
            nominal_clients=len(drawn),
            public_for_evaluation=PUBLIC,
            ledger=ledger_name(),
        ) as writer:
            writer.write(client_names(0, len(drawn)), (ptr, np.concatenate(drawn).astype(np.float32)))
            made = writer.commit(Provenance(sources=("benchmark",)))
        given_a_budget(made)
    return Population.open(path)


def similar_mixtures(folder: Path, clients: int) -> Population:
    """Of the simulations of FedGrEM: 150 rows in 10 columns, 5 components that differ a little between clients."""
    draw = partial(simulated_clients, 1, clients=clients, outliers=0, h=0.5, concentration=20.0)
    return clients_of(folder, f"similar-mixtures-{clients}", lambda: draw().rows)


def shared_dictionaries(folder: Path, clients: int) -> Population:
    """200 samples of 64 numbers, of 16 atoms that all clients have and 16 of their own."""
    draw = partial(shared_atoms, 1, clients=clients, features=64, common=16, local=16, samples=200)
    return clients_of(folder, f"shared-dictionaries-{clients}", lambda: draw().samples)


def still_cameras(folder: Path, clients: int) -> Population:
    """24 frames of 60 x 80 pixels in three colours, a row each, of a scene for every client."""

    def draw() -> Iterator[np.ndarray]:
        for seed in range(1, clients + 1):
            yield surveillance(seed, frames=24, height=60, width=80).frames.reshape(24, -1)

    return clients_of(folder, f"still-cameras-{clients}", draw)


def with_rounds(settings: dict, rounds: int) -> dict:
    """The settings of a run of so many rounds; em counts reads of the rows, of which two make no step."""
    return settings | ({"max_passes": rounds + 2} if settings.get("algorithm") == "em" else {"rounds": rounds})


def mixture_means() -> np.ndarray:
    """(5, 10) the means of the components of `mixture_rows`, which have variances of 1."""
    return stream(1, "benchmark/means").normal(0.0, 2.0, (COMPONENTS, COLUMNS))


def mixture_rows(folder: Path, clients: int, ragged: bool = False) -> Population:
    """Rows of a Gaussian mixture, float32. A client prefers some components."""
    path = kept(folder, f"mixture-{'ragged-' * ragged}{clients}")
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
        given_a_budget(made)
    return Population.open(path)
