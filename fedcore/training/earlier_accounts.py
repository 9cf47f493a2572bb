"""Accounts from before the first release, whose people must not get a fresh budget unnoticed.

Such ledgers are refused (`fedcore.privacy.ledger.formats`), so their people can only be ingested again, into a new
ledger. While one is found at a ledger's location, a budget needs a declaration of what was spent before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedcore.errors import LAST_READER, ConfigError, LedgerMissing, LedgerRetired
from fedcore.population.store import Population
from fedcore.privacy.ledger.balances import SpentBefore
from fedcore.privacy.ledger.ledger import Ledger, default_ledger_url, open_ledger
from fedcore.training.budget import from_the_root

SQLITE = b"SQLite format 3\0"  # how every file of SQLite begins
RETIRED = "an account in zCDP, or recounted from it"
OPTIONS = "--spent-before RHO --spent-before-reason TEXT"


def spent_before(rho: float | None, reason: str | None) -> SpentBefore | None:
    """The two options of `fedcore budget set`. Raises ConfigError if one of them is missing."""
    if (rho is None) != (reason is None):
        raise ConfigError("A starting charge needs its rho and its reason.", f"Pass both: {OPTIONS}")
    return None if rho is None or reason is None else SpentBefore(rho, reason)


def require_declaration(population: Population, ledger: Ledger) -> None:
    """Raises LedgerRetired if a refused account is found at a ledger's location: its people may be these people."""
    found = next(_refused(population, ledger), None)
    if found is None or ledger.balance(population.id).budget is not None:
        return
    raise LedgerRetired(
        f"Population {population.path.name!r} has no budget yet, and {found}. If these are the same people, what they "
        "have spent there must count.",
        f"Read it there with commit {LAST_READER} of fedcore, and declare it with {OPTIONS}; RHO is 0 if these "
        "are other people. docs/privacy/ledger.md shows how to find RHO.",
    )


def _refused(population: Population, ledger: Ledger) -> Iterator[str]:
    """What is refused: in the population's ledger, at the default location, in files of the data folder."""
    if (of := ledger.retired()) is not None:
        yield f"its ledger {ledger.id} holds {RETIRED}, that of population {of!r}"
    for url in _places(population):
        try:
            other = open_ledger(url)
        except LedgerMissing:
            continue
        except LedgerRetired as refused:
            yield refused.message.rstrip(".")
            continue
        if other.id != ledger.id and (of := other.retired()) is not None:
            yield f"the ledger {other.url!r} holds {RETIRED}, that of population {of!r}"


def _places(population: Population) -> list[str]:
    """Addresses of ledgers, each once: the default one, that of the manifest if it is a file, and all SQLite files of
    the user's data folder, so that renaming a ledger does not hide it.
    """
    from platformdirs import user_data_path

    named = population.manifest.ledger
    urls = [default_ledger_url()]
    urls += [named.url] if named is not None and named.url.startswith("sqlite:") else []
    folder = user_data_path("fedcore")
    files = [path for path in sorted(folder.iterdir()) if _is_sqlite(path)] if folder.is_dir() else []
    return list(dict.fromkeys([*map(from_the_root, urls), *(f"sqlite:///{path}" for path in files)]))


def _is_sqlite(path: Path) -> bool:
    if not path.is_file() or path.name.startswith("."):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError:
        return False
