"""The canary attack along the whole path of the product, kept for every private method, unit and relation:

    population -> reserve -> charge -> draw -> publish -> the values that the ledger has stored

The attacker knows everybody but the canary, the code, and what the ledger published; see `tests/audit/attack.py`.

    python -m tests.audit.kept [--pairs N] [NAME ...]     prints the table of claimed and shown mu
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import numpy as np
import scipy.sparse as sp

import fedcore.training.publishing
from fedcore.population.blocks import leaves
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import Ledger, create_ledger
from fedcore.privacy.mechanisms import NoiseSource, SecureNoise
from fedcore.privacy.plan import Relation, Unit
from fedcore.rounds.caches import BLOCKS
from fedcore.rounds.clients import block_key
from fedcore.rounds.statistics import merge
from fedcore.training import budget
from fedcore.training.budget import remember_head
from fedcore.training.shared_ids import register
from fedcore.training.spec import RunSpec
from tests import sessions
from tests.audit.attack import CANARY, CLIENTS, INSTEAD, evidence
from tests.audit.bounds import mu_lower_bound
from tests.audit.em_releases import rows_of_client
from tests.sessions import to_end

MU = 1.5  # claimed, of every run
RUNS_OF_A_LEDGER = 40  # a reservation replays the chain
BUDGET, DELTA = 4000.0, 1e-6


@dataclass(frozen=True)
class Kept:
    """A method in a unit and a relation. people: its clients without and with the canary, neighbours in the relation,
    each a vector of counts or an array of rows. start: public arrays of a warm start."""

    method: str
    settings: dict
    people: tuple[Sequence[np.ndarray], Sequence[np.ndarray]]
    kind: str = "rows"
    unit: Unit = "client"
    relation: Relation = "add_or_remove_one"
    start: dict[str, np.ndarray] = field(default_factory=dict)

    def write(self, path: Path, people: Sequence[np.ndarray], ledger: Ledger) -> Population:
        features = len(people[0]) if self.kind == "counts" else people[0].shape[1]
        named = {"id": ledger.id, "url": ledger.url}
        with PopulationWriter(
            path, self.kind, features, clients_per_leaf=64, clients_per_block=512, dtype="float64", ledger=named
        ) as writer:
            names = [f"c{number}" for number in range(len(people))]
            if self.kind == "counts":
                writer.write(names, sp.csr_matrix(np.array(people)))
            else:
                ptr = np.concatenate([[0], np.cumsum([len(own) for own in people])]).astype(np.int64)
                writer.write(names, (ptr, np.concatenate(people)))
            made = writer.commit(Provenance(sources=("made",)))
        ledger.register(made.id)
        ledger.set_budget(made.id, BUDGET, DELTA, unit=self.unit, relation=self.relation)
        register(made, ledger)
        ledger.declare_shared_ids(made.id, "the same clients without and with the canary")
        remember_head(made, ledger)
        return made


# --- the table ------------------------------------------------------------------------------------------------------

COUNTS, ROWS = [*CLIENTS], [rows_of_client(vector) for vector in CLIENTS]
HISTOGRAMS = {"clusters": 2, "rounds": 2, "overseed": 2, "clip": 0.5, "nominal_clients": 60, "spare_releases": 0}
EM = {
    "algorithm": "private",
    "components": 1,
    "covariance": "known",
    "gamma": 0.1,
    "clip": 0.5,
    "rounds": 2,
    "standardise": False,
    "nominal_clients": 60,
    "spare_releases": 0,
}
GMM = {
    "components": 2,
    "radius": 60.0,
    "sigma_min": 1.0,
    "least_weight": 0.3,
    "depth": 1,
    "covariance": "spherical",
    "spare_releases": 0,
}
MIXTURE = {"components": 2, "rounds": 1, "nominal_clients": 300, "spare_releases": 0}
PROFILE = {
    "by": ["0"],
    "categories": [[2]],
    "bounds": [[-100.0, 100.0], None, None],
    "nominal_clients": 100,
    "spare_releases": 0,
    "anyway": True,
}
DICTIONARIES = {
    "private": True,
    "atoms": 2,
    "global_atoms": 2,
    "sparsity": 1,
    "rounds": 2,
    "nominal_clients": 300,
    "spare_releases": 0,
}
FAR, OPPOSITE = np.array([[600.0, 300.0, 0.0, 0.0]]), np.array([[-600.0, -300.0, 0.0, 0.0]])
ACROSS = np.array([[0.0, 0.0, 600.0, 300.0]])  # products of rows and of codes have no sign


def _points(people: int = 300) -> list[np.ndarray]:
    """So many clients of one row in two groups that a run at this price finds them."""
    generator, centres = np.random.default_rng(0), np.zeros((2, 4))
    centres[:, 0] = 30.0, -30.0
    return [centres[number % 2][None] + 1.5 * generator.normal(size=(1, 4)) for number in range(people)]


def _with_gaps(people: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Two in ten have a gap in each row, in one of two columns; the canary, who is first or last of these, has none."""
    gone = {1: np.arange(4) == 0, 6: np.arange(4) == 1}
    return [np.where(gone.get(number % 10, False), np.nan, own) for number, own in enumerate(people)]


def _records(canary: np.ndarray | None) -> list[np.ndarray]:
    """Clients of three rows each; the canary is a record of the first."""
    rows = np.concatenate(_points()).reshape(100, 3, 4)
    return [rows[0] if canary is None else np.vstack([rows[0], canary]), *rows[1:]]


def _answers(*people: list[float]) -> list[np.ndarray]:
    """Clients of one row: two numbers and an answer. Fifty of them, and those that are given."""
    return [np.array([row]) for row in [[float(n), 2.0 * n, float(n % 2)] for n in range(50)] + [*people]]


def _table() -> dict[str, Kept]:
    found = {}
    for relation in ("add_or_remove_one", "replace_one"):
        replaced = relation == "replace_one"
        counts = [*COUNTS, INSTEAD] if replaced else COUNTS
        found[f"histograms, client, {relation}"] = Kept(
            "histograms", HISTOGRAMS, (counts, [*COUNTS, CANARY]), "counts", relation=relation
        )
        # Opposite statistics, since a replacement may change a sum of any sign by twice the clip.
        far = [np.full((1, 2), 50.0)]
        found[f"federated_em, client, {relation}"] = Kept(
            "federated_em",
            EM,
            ([*ROWS, -far[0]] if replaced else ROWS, ROWS + far),
            relation=relation,
            start={"weights": np.ones(1), "means": np.zeros((1, 2))},
        )
        points = [*_points(), OPPOSITE] if replaced else _points()
        across = [*_points(), ACROSS] if replaced else _points()
        found[f"private_gmm, client, {relation}"] = Kept(
            "private_gmm", GMM | {"nominal_clients": 300}, (points, [*_points(), FAR]), relation=relation
        )
        found[f"private_gmm, record, {relation}"] = Kept(
            "private_gmm",
            GMM | {"nominal_clients": 300},
            (_records(OPPOSITE if replaced else None), _records(FAR)),
            unit="record",
            relation=relation,
        )
        found[f"private_mixture, client, {relation}"] = Kept(
            "private_mixture", MIXTURE, (_with_gaps(across), _with_gaps([*_points(), FAR])), relation=relation
        )
        found[f"private_mixture, record, {relation}"] = Kept(
            "private_mixture",
            MIXTURE,
            (_with_gaps(_records(ACROSS if replaced else None)), _with_gaps(_records(FAR))),
            unit="record",
            relation=relation,
        )
        without = _answers([-90.0, 50.0, 1.0]) if replaced else _answers()
        for unit in ("client", "record"):
            found[f"profile, {unit}, {relation}"] = Kept(
                "profile", PROFILE, (without, _answers([90.0, -50.0, 0.0])), unit=unit, relation=relation
            )
        found[f"dictionaries, client, {relation}"] = Kept(
            "dictionaries", DICTIONARIES, (across, [*_points(), FAR]), relation=relation
        )
    return found


KEPT = _table()


# --- noise ----------------------------------------------------------------------------------------------------------


class HalfScale(SecureNoise):
    """Half of the noise that is paid for."""

    def draw(self, planned, run_key, values):
        return super().draw(replace(planned, noise_multiplier=planned.noise_multiplier / 2), run_key, values)


@contextmanager
def half_sensitivity() -> Iterator[None]:
    """Every release is planned as if a unit could change half of what it can: its price stays, its noise is half."""
    fitted = budget.fit_plan

    def halved(method, facts_for, share):
        plan, public = fitted(method, facts_for, share)
        return tuple(replace(planned, sensitivity=planned.sensitivity // 2) for planned in plan), public

    with mock.patch.object(budget, "fit_plan", halved):
        yield


# --- runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What a run left in the ledger. rho: charged. values: by release, as they are stored."""

    spec: RunSpec
    rho: float
    values: dict[str, np.ndarray]


def run_once(kept: Kept, population: Population, ledger: Ledger, folder: Path, name: str, noise: NoiseSource) -> Seen:
    """A run by the product's own session; what the ledger holds of it afterwards."""
    start = {}
    if kept.start:
        np.savez(folder / "start.npz", **kept.start)
        start = {"start_from": str(folder / "start.npz"), "public_start_because": "made up"}
    settings = kept.settings | {"epsilon": _epsilon()}
    with mock.patch.object(fedcore.training.publishing, "noise_of", lambda test_noise: noise):
        session = sessions.begin(population, folder, kept.method, settings, run_id=name, **start)
        to_end(session)
    account = ledger.account(population.id).runs[name]
    values = {planned.name: ledger.published(name, planned.name) for planned in session.spec.releases}
    held = {planned: value for planned, value in values.items() if value is not None}
    assert len(held) == len(account.spent()), "what is published was charged, once"
    return Seen(session.spec, math.fsum(attempt.rho for attempt in account.spent()), held)


def _epsilon() -> float:
    from fedcore.privacy.accounting import make_budget

    return make_budget(BUDGET, DELTA).epsilon_of(MU**2 / 2) * (1 + 2e-4)


def statistic(seen: Seen, worlds: Sequence[Population]) -> float:
    """The log-likelihood ratio of "the canary is there" from what the ledger published alone."""
    method, plan = seen.spec.method, {planned.name: planned for planned in seen.spec.releases}
    state, total = method.init(seen.spec.public), 0.0
    while (message := method.message(state)) is not None:
        absent, present = (_sums(method, message, population) for population in worlds)
        for name in absent:
            total += evidence([seen.values[name]], absent[name], present[name], plan[name].scale)
        state, _ = method.server_update(state, {name: seen.values[name] for name in absent})
    return total


def _sums(method, message, population: Population) -> dict[str, np.ndarray]:
    total = None
    for index in range(len(population.blocks)):
        block = BLOCKS.get(block_key(population, index), lambda index=index: population.read(index), 2**28)
        for leaf in leaves(block, population.clients_per_leaf):
            total = merge(total, method.client_update(message, leaf, None)[0])
    return method.release_values(message, total)


def attacked(
    kept: Kept, pairs: int, noise: Callable[[], NoiseSource] = SecureNoise
) -> tuple[np.ndarray, np.ndarray, float]:
    """(pairs,) statistics without and with the canary, and the mu that the ledger charged for each run, at most."""
    found: tuple[list[float], list[float]] = ([], [])
    charged = 0.0
    for first in range(0, pairs, RUNS_OF_A_LEDGER // 2):
        with _folder() as folder:
            ledger = create_ledger(f"sqlite:///{folder / 'ledger.sqlite'}")
            worlds = [kept.write(folder / name, people, ledger) for name, people in zip("ab", kept.people, strict=True)]
            for number in range(first, min(pairs, first + RUNS_OF_A_LEDGER // 2)):
                for world in (0, 1):
                    name = f"run-{number}-{world}"
                    seen = run_once(kept, worlds[world], ledger, folder, name, noise())
                    charged = max(charged, math.sqrt(2 * seen.rho))
                    found[world].append(statistic(seen, worlds))
            ledger.verify(worlds[0].id)
    return np.array(found[0]), np.array(found[1]), charged


@contextmanager
def _folder() -> Iterator[Path]:
    """In memory where there is such a place: what is durable is not under audit here."""
    shared = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None))
    try:
        with mock.patch.dict(os.environ, {"FEDCORE_LEDGER": f"sqlite:///{path / 'ledger.sqlite'}"}):
            yield path
    finally:
        BLOCKS.clear()
        shutil.rmtree(path, ignore_errors=True)


def distance_of(absent: np.ndarray, present: np.ndarray) -> float:
    """mu if the statistics are normal, as they are for honest noise and for noise of another scale."""
    return float((present.mean() - absent.mean()) / math.sqrt((absent.var(ddof=1) + present.var(ddof=1)) / 2))


BUILDS: dict[str, Callable[[], NoiseSource]] = {"the product": SecureNoise, "half of the noise": HalfScale}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit.kept")
    parser.add_argument("--pairs", type=int, default=600)
    parser.add_argument("--build", choices=BUILDS, action="append")
    parser.add_argument("names", nargs="*", help="of the table; they may be cut off at their end")
    asked = parser.parse_args(arguments)
    print("| method, unit, relation | build | pairs | mu charged | mu shown, at least | mu estimated |")
    print("|---|---|---|---|---|---|", flush=True)
    wrong = 0
    for name, kept in KEPT.items():
        if asked.names and not any(name.startswith(wanted) for wanted in asked.names):
            continue
        for build in asked.build or BUILDS:
            absent, present, charged = attacked(kept, asked.pairs, BUILDS[build])
            shown, estimated = mu_lower_bound(absent, present), distance_of(absent, present)
            print(
                f"| {name} | {build} | {asked.pairs} | {charged:.3f} | {shown:.2f} | "
                f"{estimated:.2f} +- {math.sqrt((2 + estimated**2 / 4) / asked.pairs):.2f} |",
                flush=True,
            )
            wrong += (shown > charged) != (build != "the product")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
