"""Real data that any machine with this package has: the source files of its Python packages.

A client is one file of an installed third-party package. The vocabulary is released privately from the clients' own
words. The release and the run are charged to the same budget. All other words are one more cell. A fifth of the files,
chosen by a hash of their names, are not in the private population. These files count as public, and their second halves
are held out for evaluation.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fedcore.errors import IngestError
from fedcore.population.encoding import encode
from fedcore.population.ingest.sources_text import by_half, sections
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.words import OTHER, as_words, records_of
from fedcore.population.writer import PopulationWriter
from fedcore.training.budget import ledger_name, ledger_of, set_budget
from fedcore.training.vocabulary import release_vocabulary

NOMINAL_CLIENTS = 8000  # declared, not counted: about what an installation of this package brings
EPSILON, DELTA, DELTA_EXTRA = 8.0, 1e-6, 1e-7
PUBLIC_SHARE = 5  # one file in five
BATCH = 1024
LARGEST = 4 * 2**20  # bytes of a file that are read
TOKEN = re.compile(r"[A-Za-z_]+")
WHY_VOCABULARY = "the vocabulary is released from this budget; the tokeniser is that of the program"
SOURCES = Provenance(sources=("installed Python packages",))
WHY_PUBLIC = "a fifth of the source files, set aside as public and no part of the private population"


def prepare(folder: Path, say: Callable[[str], None]) -> tuple[Population, Population]:
    """Make folder/words and folder/population (one private population, with a budget in folder/ledger.sqlite) and
    folder/evaluation (public).

    Raises IngestError if there are no packages to read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    say("Clients: the source files of the installed third-party packages; one file, one client.")
    clients, public = split(package_files())
    if len(clients) < 100:
        raise IngestError("there are too few installed packages to learn from.", "Install the package with pip.")
    ledger_url = f"sqlite:///{(folder / 'ledger.sqlite').resolve()}"
    ledger = ledger_name(ledger_url)
    words = write_words(folder / "words", clients, ledger=ledger, nominal_clients=NOMINAL_CLIENTS)
    account = ledger_of(words, ledger_url)
    set_budget(words, account, EPSILON, DELTA, delta_extra=DELTA_EXTRA, public_schema=WHY_VOCABULARY)
    say(f"Budget: epsilon = {EPSILON:g} at delta = {DELTA:g}, for each file, permanently.")
    released = release_vocabulary(words, account)
    say(
        f"Vocabulary: {len(released.words)} words, each used by enough files to hide every one, released for 0.3 of "
        "the budget."
    )
    private = encode(words, folder / "population", released.words)
    vocabulary = [*released.words, OTHER]
    evaluation = write(folder / "evaluation", public, vocabulary, public_for_evaluation=WHY_PUBLIC)
    say(
        f"{private.n_clients} files are private clients (the run is planned for a declared {NOMINAL_CLIENTS}); "
        f"{evaluation.n_clients} others are public: their first halves are known, their second halves held out."
    )
    return private, evaluation


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


def counts(texts: list[str], column: dict[str, int]) -> scipy.sparse.csr_matrix:
    """(texts, d) counts of the known tokens, and of all others in the last column."""
    rows: list[int] = []
    columns: list[int] = []
    data: list[int] = []
    for row, text in enumerate(texts):
        found = Counter(column.get(token, len(column) - 1) for token in TOKEN.findall(text))
        rows.extend([row] * len(found))
        columns.extend(found.keys())
        data.extend(found.values())
    return scipy.sparse.csr_matrix((np.array(data, np.int64), (rows, columns)), shape=(len(texts), len(column)))


def _batches(files: list[tuple[str, Path]]) -> Iterator[list[tuple[str, Path]]]:
    remaining = iter(files)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def write_words(dest: Path, files: list[tuple[str, Path]], **options: Any) -> Population:
    """Write a population of the files' words, in two halves by section. How well one half of a file predicts the other
    shows the run how much weight an estimate should give to the file's own words.
    """
    with PopulationWriter(dest, "words", 1, halves="document", **options) as writer:
        for batch in _batches(files):
            halves: tuple[list[Counter[str]], list[Counter[str]]] = ([], [])
            for name, path in batch:
                found = Counter[str](), Counter[str]()
                for second, text in by_half(name, sections(StringIO(read(path)))):
                    found[second].update(TOKEN.findall(text))
                for half, counted in zip(halves, found, strict=True):
                    half.append(counted)
            writer.write([name for name, _ in batch], _records(halves[0]), _records(halves[1]))
        return writer.commit(SOURCES)


def _records(found: list[Counter[str]]) -> tuple[np.ndarray, np.ndarray]:
    """(ptr (C + 1,), records (N,)) of the words of clients."""
    ptr = np.concatenate([[0], np.cumsum([len(one) for one in found])])
    amounts = np.array([amount for one in found for amount in one.values()], np.int64)
    return ptr, records_of(as_words([token for one in found for token in one]), amounts)


def write(dest: Path, files: list[tuple[str, Path]], vocabulary: list[str], **options: Any) -> Population:
    """A population of the files, of which the second half of the lines of each is held out."""
    column = {token: index for index, token in enumerate(vocabulary)}
    with PopulationWriter(dest, "counts", len(vocabulary), vocabulary=vocabulary, **options) as writer:
        for batch in _batches(files):
            lines = [read(path).splitlines(keepends=True) for _, path in batch]
            parts = [
                counts(["".join(part) for part in halves], column)
                for halves in ([part[: len(part) // 2] for part in lines], [part[len(part) // 2 :] for part in lines])
            ]
            writer.write([name for name, _ in batch], parts[0], parts[1])
        return writer.commit(SOURCES)
