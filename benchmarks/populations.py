"""Synthetic populations that benchmarks share; made once and kept."""

import os
from pathlib import Path

from fedcore.budgets import ledger_name, ledger_of, remember_head
from fedcore.population.store import Population
from fedcore.population.synthetic import synthesise


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
