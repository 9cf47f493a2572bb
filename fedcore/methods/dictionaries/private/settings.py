"""What the settings of private runs are where nobody says, and which have no argument there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROUNDS = 20
YES = ("true", "1", "1.0", "yes", "y", "on", "t")  # as pydantic reads them, in any case


def with_private_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they were given, with the rounds of a private run where they ask for one and leave them out."""
    if str(settings.get("private", False)).lower() not in YES:
        return dict(settings)
    return {"rounds": ROUNDS} | dict(settings)


def contradictions(config: Any) -> tuple[tuple[bool, str], ...]:
    """(whether it holds, what is wrong with it) of settings of private runs, and of others that have some of theirs.

    config: a `DictionariesConfig`, which asks for this while it is made
    """
    if not config.private:
        return ((config.epsilon is not None, "epsilon is for private = true"),)
    return (
        (not config.nested, "a private run is one of learner = statistics, split = nested"),
        (config.code != "omp", "a private run codes by matching pursuit: code = omp"),
        (config.start == "local", "a private run matches no dictionaries of clients: start = sums or given"),
        (config.global_atoms == 0, "a private run learns global atoms: at least 1"),
        (config.ragged, "a private run learns no dictionary of each client: no ragged"),
        (config.participation < 1, "a private run asks all clients: sampling is not accounted for"),
        (config.weights != "clients", "a private run counts each client once: weights = clients"),
        (
            config.least_sparsity is not None,
            "all codes of a private run have at most sparsity atoms: no least_sparsity",
        ),
        (config.precision != "float64", "a private run sends atoms as they are: precision = float64"),
        (config.tolerance > 0, "a private run makes all of its rounds: no tolerance"),
    )
