"""How many flows may use a population at once: one that writes, and as many readers as its file asks for.

That is scheduling, so that flow runs wait for one another in place of failing; what keeps populations whole are their
own locks. A process that was killed holds its place for a minute.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Literal

from prefect import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from fedcore.storage.files import absolute, place

LEASE_SECONDS = 60.0
Use = Literal["writes", "reads"]


def limit_name(population: str, use: Use) -> str:
    where = absolute(place(population))
    return f"fedcore-{use}-{where.rstrip('/').rpartition('/')[2]}-{sha256(where.encode()).hexdigest()[:8]}"


def make_limits(readers: Mapping[str, int | None]) -> None:
    """Tell the server how many flows may use each population: one writer, and so many readers (None: any number)."""
    with get_client(sync_client=True) as client:
        for population, most in readers.items():
            client.upsert_global_concurrency_limit_by_name(limit_name(population, "writes"), 1)
            if most is not None:
                client.upsert_global_concurrency_limit_by_name(limit_name(population, "reads"), most)


@contextmanager
def using(population: str, use: Use) -> Iterator[None]:
    """Inside, this flow run has one of the places; nothing is waited for where the server knows no limit."""
    name = limit_name(population, use)
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            name = ""
    if not name:
        yield
        return
    with concurrency(name, lease_duration=LEASE_SECONDS, raise_on_lease_renewal_failure=False):
        yield
