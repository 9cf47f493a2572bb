"""Which backend answers the rounds of a flow."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedcore.population.sizing import is_small
from fedcore.population.store import Population
from fedcore.rounds.engine import Backend, InProcessBackend


@contextmanager
def backend_for(
    population: Population, workers: int | None = None, address: str | None = None, private: bool = False
) -> Iterator[Backend]:
    """Where the blocks of a population are answered: by the workers of `fedcore.tasks.dask_backend.dask_client`; or by
    this process itself, if there is a single block, which cannot be shared out, or if the population is small and no
    number of workers is asked for. Workers at `address` are used in any case: they may be where the data are.
    """
    small = workers is None and is_small(population.n_clients, sum(population.sizes()))
    if address is None and (small or len(population.blocks) == 1):
        yield InProcessBackend()
        return
    from fedcore.tasks.dask_backend import dask_backend  # Dask takes a quarter of a second to import

    with dask_backend(workers, address, private) as backend:
        yield backend
