"""Names of flow runs: the one that a person gave, or one that says what the run is about."""

from collections.abc import Callable
from functools import cache
from typing import Any, cast

from prefect.runtime import flow_run


def kept(named: Callable[[], str]) -> Callable[[], str]:
    """The name of a flow run: what it is called already, if a person called it so, or what `named` makes."""

    def name() -> str:
        mine = flow_run.name
        return str(mine) if mine and not made_up(str(mine)) else named()

    return name


def made_up(name: str) -> bool:
    """Whether a name is two words of those that Prefect draws names from, as "brave-otter"."""
    parts = name.split("-")
    return len(parts) == 2 and set(parts) <= _words()


@cache
def _words() -> frozenset[str]:
    from coolname.data import config  # Prefect draws its names with it

    parts = cast(list[dict[str, Any]], list(config.values()))
    return frozenset(word for part in parts if part["type"] == "words" for word in part["words"])
