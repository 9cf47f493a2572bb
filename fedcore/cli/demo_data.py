"""Real data that any machine with this package has: the source files of its Python packages.

A client is one file of an installed third-party package. The vocabulary is made from the standard library's files,
which are no clients, so it tells nothing about them. A fifth of the files, chosen by a hash of their names, is no part
of the private population: these files count as public, and their second halves are held out for evaluation.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fedcore.errors import IngestError
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.training.budget import ledger_name, ledger_of, remember_head

VOCABULARY = 1000
NOMINAL_CLIENTS = 8000  # declared, not counted: about what an installation of this package brings
EPSILON, DELTA = 8.0, 1e-6
PUBLIC_SHARE = 5  # one file in five
BATCH = 1024
LARGEST = 4 * 2**20  # bytes of a file that are read
TOKEN = re.compile(r"[A-Za-z_]+")
WHY_VOCABULARY = "the vocabulary is made of the standard library, whose files are no clients"
WHY_PUBLIC = "a fifth of the source files, set aside as public and no part of the private population"


def prepare(folder: Path, say: Callable[[str], None]) -> tuple[Population, Population]:
    """Make folder/population (private, with a budget in folder/ledger.sqlite) and folder/evaluation (public).

    Raises IngestError if there are no packages to read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    say("Vocabulary: the tokens found in most files of the standard library, which are no clients.")
    vocabulary = most_common_tokens(library_files(), VOCABULARY)
    say("Clients: the source files of the installed third-party packages; one file, one client.")
    clients, public = split(package_files())
    if len(clients) < 100:
        raise IngestError("there are too few installed packages to learn from.", "Install the package with pip.")
    ledger_url = f"sqlite:///{(folder / 'ledger.sqlite').resolve()}"
    ledger = ledger_name(ledger_url)
    private = write(
        folder / "population", clients, vocabulary, halves=False, ledger=ledger, nominal_clients=NOMINAL_CLIENTS
    )
    evaluation = write(folder / "evaluation", public, vocabulary, halves=True, public_for_evaluation=WHY_PUBLIC)
    account = ledger_of(private, ledger_url)
    account.register(private.id)
    account.set_budget(private.id, EPSILON, DELTA, public_schema=WHY_VOCABULARY)
    remember_head(private, account)
    say(
        f"{private.n_clients} files are private clients (the run is planned for a declared {NOMINAL_CLIENTS}); "
        f"{evaluation.n_clients} others are public: their first halves are known, their second halves held out."
    )
    say(f"Budget: epsilon = {EPSILON:g} at delta = {DELTA:g}, for each file, for ever.")
    return private, evaluation


def library_files() -> list[Path]:
    """Source files of the standard library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib"}
    return sorted(path for path in root.rglob("*.py") if not skipped & set(path.relative_to(root).parts))


def package_files() -> list[tuple[str, Path]]:
    """(name, path) of the source files of the installed packages, but for this one."""
    root = Path(sysconfig.get_paths()["purelib"])
    own = {"fedcore", "flows", "tasks", "deployments"}
    files = sorted((str(path.relative_to(root)), path) for path in root.rglob("*.py"))
    return [(name, path) for name, path in files if Path(name).parts[0] not in own]


def split(files: Iterable[tuple[str, Path]]) -> tuple[list, list]:
    """(private, public) by a hash of the name."""
    parts: tuple[list, list] = ([], [])
    for name, path in files:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=4).digest()
        parts[int.from_bytes(digest) % PUBLIC_SHARE == 0].append((name, path))
    return parts


def read(path: Path) -> str:
    """The text of a source file; what is no UTF-8 counts as a separator, and a file that has gone is empty."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(LARGEST)
    except OSError:
        return ""


def most_common_tokens(files: Iterable[Path], size: int) -> list[str]:
    """The tokens that occur in most files; ties in alphabetical order."""
    files_with: Counter[str] = Counter()
    for path in files:
        files_with.update(set(TOKEN.findall(read(path))))
    return sorted(files_with, key=lambda token: (-files_with[token], token))[:size]


def counts(texts: list[str], column: dict[str, int]) -> sp.csr_matrix:
    """(texts, d) counts of the known tokens."""
    rows: list[int] = []
    columns: list[int] = []
    data: list[int] = []
    for row, text in enumerate(texts):
        found = Counter(column[token] for token in TOKEN.findall(text) if token in column)
        rows.extend([row] * len(found))
        columns.extend(found.keys())
        data.extend(found.values())
    return sp.csr_matrix((np.array(data, np.int64), (rows, columns)), shape=(len(texts), len(column)))


def _batches(files: list[tuple[str, Path]]) -> Iterator[list[tuple[str, Path]]]:
    remaining = iter(files)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def write(dest: Path, files: list[tuple[str, Path]], vocabulary: list[str], *, halves: bool, **options) -> Population:
    """A population of the files; with `halves`, the second half of the lines of each is held out."""
    column = {token: index for index, token in enumerate(vocabulary)}
    with PopulationWriter(dest, "counts", len(vocabulary), vocabulary=vocabulary, **options) as writer:
        for batch in _batches(files):
            texts = [read(path) for _, path in batch]
            heldout = None
            if halves:
                lines = [text.splitlines(keepends=True) for text in texts]
                texts = ["".join(part[: len(part) // 2]) for part in lines]
                heldout = counts(["".join(part[len(part) // 2 :]) for part in lines], column)
            writer.write([name for name, _ in batch], counts(texts, column), heldout)
        return writer.commit(Provenance(sources=("installed Python packages",)))
