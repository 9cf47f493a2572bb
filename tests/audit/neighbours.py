"""Neighbouring worlds: everything that commands work on, made of one set of private clients or of a neighbour of it.

A world is one folder, at the same place as all others, one after the other. Its private populations, runs, ledger,
sources and settings are made by the same calls in every world; only one client differs. Noise is replayed: a release
that another world published before is published again, as if the noise had wanted it so. Identifiers, tokens, secrets
and the ledger's clock are the same in every world, so that a digest is another only if what it covers is.
"""

from __future__ import annotations

import csv
import hashlib
import os
import random
import secrets
import shutil
import sys
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import matplotlib.font_manager  # noqa: F401  it writes a file below HOME when it is first imported
import numpy as np
import pytest
import scipy.sparse as sp

import fedcore.cli.options
import fedcore.operations.in_process
import fedcore.population.versions
import fedcore.privacy.vocabulary
import fedcore.rounds.clients
import fedcore.rounds.engine
import fedcore.training.publishing
import fedcore.training.vocabulary
from fedcore.planning import calibration
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.words import RECORD
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import Ledger, create_ledger, open_ledger
from fedcore.privacy.mechanisms import SecureNoise, TestNoise
from fedcore.rounds.caches import BLOCKS
from fedcore.training.budget import remember_head
from fedcore.training.request import Series
from fedcore.training.shared_ids import register
from tests import sessions
from tests.audit.em_releases import STARTS, rows_of_client
from tests.conftest import small_counts, write_counts
from tests.private_gmm.worlds import CENTRES, D
from tests.sessions import to_end

DELTA, NOMINAL = 1e-6, 1000
PIPELINE = """
[[deployment]]
name = "piped"
method = "histograms"
population = "counts"
runs = "piped"
config = { clusters = 2, rounds = 2, epsilon = 0.2, anyway = true }

[[pipeline]]
name = "audit"
population = "counts"
runs = "piped"
step = [
    { do = "train", deployment = "piped" },
    { do = "export", deployment = "piped", to = "piped.json", when = "if_promoted" },
]
"""
HISTOGRAMS = {"clusters": 2, "rounds": 2, "epsilon": 1.0}
EM = {"algorithm": "private", "covariance": "known", "components": 2, "rounds": 2, "epsilon": 1.0}
# So much budget that the phases of a run are those of its data, and so little that one client of sixteen matters.
GMM = {
    "components": 3,
    "depth": 2,
    "covariance": "full",
    "radius": 60.0,
    "sigma_min": 0.1,
    "least_weight": 0.2,
    "epsilon": 90.0,
    "spare_releases": 0,
}
# One that is quick, for runs.
SHORT_GMM = {
    "components": 2,
    "depth": 1,
    "covariance": "spherical",
    "radius": 60.0,
    "sigma_min": 1.0,
    "epsilon": 20.0,
    "spare_releases": 0,
}
EXACT = {"algorithm": "algorithm2", "clusters": 2, "rounds": 2}

BASE = small_counts(64, 7).toarray()  # whole blocks: one client more needs another one
ROWS = 1200  # of the client that holds many
CHANGED = 1  # the client that differs: of the first leaf, which a measurement may take
POINTS = np.repeat([0, 1, 2], (8, 4, 4))  # groups of a leaf's clients


class Replay(SecureNoise):
    """Publishes for a release what was published for the one of the same name before; at first, noise of a test."""

    def __init__(self, published: dict[tuple, np.ndarray]):
        self.published = published

    def draw(self, planned, run_key, values):
        drawn = TestNoise("replayed").draw(planned, run_key, values)
        return self.published.setdefault((run_key, planned.round, planned.name, planned.shape), drawn)


class Entropy:
    """Random bytes that are none: the same for the same place in the code that asks, the same number of times, so that
    what one place asks for more often changes nothing at others. seed: of another sequence.
    """

    LIBRARIES = (random.__file__, secrets.__file__, uuid.__file__)

    def __init__(self, seed: str):
        self.seed, self.asked, self.lock = seed, Counter(), threading.Lock()

    def __call__(self, size: int) -> bytes:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename in self.LIBRARIES:
            frame = frame.f_back
        where = f"{frame.f_code.co_filename} {frame.f_code.co_name}"
        with self.lock:
            number = self.asked[where]
            self.asked[where] += 1
        return hashlib.shake_256(f"{self.seed} {where} {number}".encode()).digest(size)


def counts_of(world: str) -> np.ndarray:
    """(clients, 7) counts. "two": as many clients, tokens and entries as in "one", of another client."""
    counts = BASE.copy()
    if world == "two":
        counts[CHANGED] = np.roll(counts[CHANGED], 3)
        assert (counts[CHANGED] != BASE[CHANGED]).any()
    if world == "six":
        counts = np.insert(counts, CHANGED, [0, 0, 2**40, 0, 0, 1, 0], axis=0)
    if world == "rows":
        counts[CHANGED] = 0
        counts[CHANGED, 2] = ROWS
    if world == "blocks":
        counts = np.vstack([counts, counts[CHANGED]])
    if world == "bytes":
        there = np.flatnonzero(counts[CHANGED])
        counts[CHANGED, there] = 10**12 + 987654321 * there
    return counts


def heldout_of(world: str) -> np.ndarray:
    """(clients, 7) held-out counts of the same clients."""
    heldout = counts_of(world)[:, ::-1].copy()
    if world == "halves":
        heldout[CHANGED] = 0
    return heldout


def rows_of(world: str) -> list[np.ndarray]:
    """The rows of each client."""
    clients = [rows_of_client(vector) for vector in counts_of(world)]
    return _with_many(world, clients)


def _with_many(world: str, clients: list[np.ndarray]) -> list[np.ndarray]:
    if world in ("six", "rows"):
        clients[CHANGED] = np.resize(clients[CHANGED], (ROWS, clients[CHANGED].shape[1]))
    return clients


def points_of(world: str) -> list[np.ndarray]:
    """(1, 4) of each client: one row, of three groups."""
    generator = np.random.default_rng(0)
    rows = CENTRES[np.tile(POINTS, 4)] + 0.3 * generator.normal(size=(4 * len(POINTS), D))
    far = np.array([3000.0, 0.0, 4000.0, 0.0])
    if world == "two":
        rows[len(POINTS) - 1] = far
    if world == "bytes":
        rows[CHANGED] += np.pi * 1e-3
    if world == "six":
        rows = np.insert(rows, CHANGED, far, axis=0)
    if world == "blocks":
        rows = np.vstack([rows, rows[CHANGED]])
    return _with_many(world, [row[None] for row in rows])


WORLDS = {
    "one": "the clients as they are",
    "again": "the same clients once more: nothing differs from the first",
    "secret": "the same clients under other secrets of their populations: what differs from the first covers a secret",
    "two": "another client in the place of one; as many clients, rows, tokens and entries",
    "six": "one client more, which is absurd, with many rows, in another block",
    "rows": "a client has many rows and many of one token, or fewer tokens",
    "blocks": "a client more, like one that is there, in another block",
    "bytes": "the values of a client take other bytes",
    "halves": "a client has nothing held out",
    "words": "a client has many more words, and long ones",
}


class World:
    """Everything below `folder`, which is the same for all worlds: places are in some digests and sizes."""

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        self.ledger: Ledger | None = None
        self.entered = 0
        self.secrets = Entropy("other secrets" if name == "secret" else "secrets")

    def __truediv__(self, name: str) -> str:
        return str(self.folder / name)

    def build(self) -> None:
        for name in (
            "here",
            "temporary",
            "home",
            "home/.prefect",
        ):  # Prefect makes the last one when a process imports it first
            (self.folder / name).mkdir(parents=True)
        self.ledger = create_ledger(self.ledger_url)
        self._populations()
        self._sources()
        self._runs()

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.folder / 'ledger.sqlite'}"

    def _named(self) -> dict[str, str]:
        assert self.ledger is not None
        return {"id": self.ledger.id, "url": self.ledger.url}

    def _populations(self) -> None:
        counts = sp.csr_matrix(counts_of(self.name))
        heldout = sp.csr_matrix(heldout_of(self.name))
        options = {"leaf": 16, "block": 64, "nominal_clients": NOMINAL, "ledger": self._named()}
        for name, epsilon in (("counts", 20.0), ("bare", None)):
            write_counts(self.folder / name, counts, heldout=heldout, **options)
            self._budget(name, epsilon)
        public = small_counts(40, 7, seed=5)
        write_counts(self.folder / "public", public, heldout=public, public_for_evaluation="made up", leaf=16, block=64)
        self._rows("rows", rows_of(self.name))
        self._budget("rows", 20.0)
        self._rows("points", points_of(self.name))
        self._budget("points", 200.0)
        self._words("words")
        self._budget("words", 20.0, delta_extra=DELTA / 10)

    def _rows(self, name: str, clients: list[np.ndarray]) -> None:
        with PopulationWriter(
            self.folder / name,
            "rows",
            clients[0].shape[1],
            clients_per_leaf=16,
            clients_per_block=64,
            dtype="float64",
            nominal_clients=NOMINAL,
            ledger=self._named(),
        ) as writer:
            ptr = np.concatenate([[0], np.cumsum([len(own) for own in clients])]).astype(np.int64)
            writer.write([f"c{i}" for i in range(len(clients))], (ptr, np.concatenate(clients)))
            writer.commit(Provenance(sources=("test",)))

    def _words(self, name: str) -> None:
        """The counts as words, and for each client one more, which spells its counts."""
        clients = counts_of(self.name)
        own = [("own" + "-".join(map(str, counts)))[:64].encode() for counts in clients]
        found = [
            [*((b"w%d" % token, n) for token, n in enumerate(counts) if n), (word, 1)]
            for counts, word in zip(clients, own, strict=True)
        ]
        if self.name == "words":
            found[CHANGED] += [(f"more{number:04d}".ljust(60, "x").encode(), 1) for number in range(500)]
        options = {"clients_per_leaf": 16, "clients_per_block": 64, "nominal_clients": NOMINAL}
        with PopulationWriter(self.folder / name, "words", 1, ledger=self._named(), **options) as writer:
            ptr = np.concatenate([[0], np.cumsum([len(words) for words in found])]).astype(np.int64)
            records = np.array([one for words in found for one in words], RECORD)
            writer.write([f"c{i}" for i in range(len(found))], (ptr, records))
            writer.commit(Provenance(sources=("test",)))

    def _budget(self, name: str, epsilon: float | None, delta_extra: float | None = None) -> None:
        made = Population.open(self / name)
        assert self.ledger is not None
        self.ledger.register(made.id)
        if epsilon is not None:
            terms = {} if delta_extra is None else {"delta_extra": delta_extra}
            self.ledger.set_budget(made.id, epsilon, DELTA, public_schema="made up", **terms)
        register(made, self.ledger)  # as ingest does: a run then opens no data before its reservation
        if epsilon is not None:
            self.ledger.declare_shared_ids(made.id, "the same clients")
        remember_head(made, self.ledger)

    def _sources(self) -> None:
        (self.folder / "vocabulary.txt").write_text("\n".join(f"t{i}" for i in range(7)))
        counts = counts_of(self.name)
        for name, rows in (("source.csv", counts[:40]), ("more.csv", counts[40:])):
            with open(self.folder / name, "w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["client", "token", "count"])
                for number, row in enumerate(rows):
                    writer.writerows([f"{name[0]}{number}", f"t{token}", n] for token, n in enumerate(row) if n)
        np.savez(self.folder / "start.npz", **STARTS["gaussian"], centre=np.zeros(2), scale=np.ones(2))
        (self.folder / "deployments.toml").write_text(
            "".join(
                f'[[deployment]]\nname = "{name}"\nmethod = "histograms"\npopulation = "counts"\nruns = "series"\n'
                f'schedule = {{ cron = "0 3 * * *" }}\n[deployment.config]\nepsilon = 1.0\n'
                for name in ("nightly", "weekly")
            )
        )
        (self.folder / "pipelines.toml").write_text(PIPELINE)

    def _runs(self) -> None:
        self.run("counts", "histograms", HISTOGRAMS, "finished")
        for name in ("broken", "given"):
            self.run("counts", "histograms", HISTOGRAMS, name, rounds=1)
        # Not private: what it holds is exact. It may be in the way of a private run of the same clients.
        self.run("counts", "paper_histograms", EXACT, "exact")
        for name in ("older", "newer"):
            self.run(
                "counts",
                "histograms",
                HISTOGRAMS | {"epsilon": 0.5},
                name,
                runs="series",
                deployment="nightly",
                series=Series(),
            )

    def run(self, population: str, method: str, settings: dict, name: str, rounds=None, runs="runs", **asked) -> None:
        """A run in this process; of so many rounds, or to its end."""
        asked |= {"runs": self / runs, "run_id": name}
        session = sessions.begin(self / population, self.folder, method, settings, **asked)
        if rounds is not None:
            for _ in range(rounds):
                session.training.step()
            session.close()
            return
        to_end(session)


def _replayed_words(published: dict):
    """Words that pass the threshold are what was published for the release of the same name before: the words of one
    client stay below it, as they do but for the delta that was paid.
    """
    real = fedcore.privacy.vocabulary.published

    def replayed(words, noised, planned):
        return published.setdefault((planned.name, planned.noise_multiplier), real(words, noised, planned))

    return replayed


@contextmanager
def in_world(world: World, published: dict) -> Iterator[None]:
    """The process as it is in this world: its folders, its ledger, replayed noise, and clocks that tick at every look,
    so that how often they are looked at is seen too. What is drawn at random is the same in every world that was
    entered as often; only the secrets of manifests are the world's own."""
    world.entered += 1
    ticks, now, entropy = iter(range(10**9)), 1.7e9 + 1000 * world.entered, Entropy(f"entered {world.entered}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCORE_LEDGER", world.ledger_url)
        patch.setenv("HOME", world / "home")
        patch.setenv("TMPDIR", world / "temporary")
        patch.setattr(tempfile, "tempdir", world / "temporary")
        with suppress(FileNotFoundError):
            patch.chdir(world.folder / "here")
        patch.setattr(os, "urandom", entropy)
        patch.setattr(random, "_urandom", entropy)
        own = SimpleNamespace(token_hex=lambda size: world.secrets(size).hex())
        patch.setattr(fedcore.population.versions, "secrets", own)
        at = datetime.fromtimestamp(now, UTC)
        patch.setattr(fedcore.cli.options, "datetime", SimpleNamespace(now=lambda zone: at))
        patch.setattr(fedcore.operations.in_process, "datetime", SimpleNamespace(now=lambda zone: at))
        for made in (create_ledger, open_ledger):
            patch.setitem(made.__kwdefaults__, "clock", lambda: now)
        patch.setattr(fedcore.training.publishing, "noise_of", lambda test_noise: Replay(published))
        patch.setattr(fedcore.training.vocabulary, "noise_of", lambda test_noise: Replay({}))
        patch.setattr(fedcore.privacy.vocabulary, "published", _replayed_words(published))
        patch.setattr(fedcore.rounds.engine, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
        patch.setattr(fedcore.rounds.clients, "peak_memory", lambda: 0)
        # What measures this machine says nothing of clients, and takes seconds.
        patch.setattr(calibration, "REPEATS", 0, raising=False)
        patch.setattr(calibration, "started_process", lambda *arguments: (0.5, 10**8, 2 * 10**8), raising=False)
        patch.setattr(calibration, "token_hex", lambda size=None: "the same noise", raising=False)
        patch.setattr(fedcore.rounds.clients, "_populations", {})
        BLOCKS.clear()
        yield
        BLOCKS.clear()


def build_world(folder: Path, name: str, published: dict) -> World:
    """The world of this name in a new folder. It is made as if it were at once, and moved away before the next."""
    world = World(folder, name)
    folder.mkdir(parents=True)
    with in_world(world, published):
        world.build()
    return world


class Worlds:
    """Worlds that are built once. Each copy has the place and the state of the original."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.published, self.built = folder, {}, {}
        for name in names:
            self.built[name] = build_world(folder / "world", name, self.published)
            (folder / "world").rename(folder / f"built {name}")

    def copy(self, name: str) -> World:
        """Raises FileExistsError until the copy before it is moved away."""
        copied = copy(self.built[name])
        copied.secrets = copy(copied.secrets)
        copied.secrets.asked = Counter(copied.secrets.asked)
        shutil.copytree(self.folder / f"built {name}", copied.folder)
        return copied
