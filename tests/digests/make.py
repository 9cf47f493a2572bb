"""Digests of the ends of small runs: `python -m tests.digests.make` writes them, `test_digests.py` compares.

Write them again only if a change is meant to change arithmetic or names, and say so in the message of its commit.
Names of cases may follow, to make those alone again: `python -m tests.digests.make histograms/private ...`.

    rounds    how many were made
    columns   of the metrics, in any round
    metrics   the last row of them, without times
    state     the last one
    memories  what the clients remember at the end, all blocks
    outputs   what personalisation gives the clients of the first block
    plan      planned releases: names, rounds, shapes, sensitivities, noise multipliers
    releases  published values

Each part has a SHA-256 of names, dtypes, shapes and bytes ("sha256"); another one of all that with floats left out
("exact"), which no processor changes; and a few numbers that tell of each array of floats what it holds ("floats").

Some runs branch on last bits: of two starts that end equally well, say, one is taken. Where BLAS has another kernel
they end elsewhere, and the file names them ("unstable"). Another machine, or this one in disguise, finds them:

    export OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"
    python -m tests.digests.make --mark
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy
import sklearn
import threadpoolctl

from fedcore.errors import ConfigError, RunError
from fedcore.methods.registry import method_class
from fedcore.population.blocks import leaves
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url
from fedcore.rounds.clients import memory_file, redacted
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, load_run
from fedcore.storage.arrays import read_values
from fedcore.training.personalise import trained
from fedcore.training.request import TrainRequest
from fedcore.training.session import start_run
from tests.digests.cases import CASES, EPSILON, Case
from tests.digests.populations import POPULATIONS, STARTS, People
from tests.sessions import to_end

FILE = Path(__file__).with_name("digests.json")
DIGITS = 12
RELATIVE = 1e-6
KEY = "digests"  # of the test noise
PLANNED = ("name", "round", "shape", "sensitivity", "delta")
PUBLIC = "drawn by a random number generator"


# --- runs -------------------------------------------------------------------------------------------------------------


def record_of(name: str, folder: Path) -> dict[str, Any]:
    """What is kept of the run of this name, made below the folder; the environment names a ledger there."""
    case = CASES[name]
    population = _population(folder / "population", POPULATIONS[case.population](), case if _private(case) else None)
    return _record(_run(case, population, folder, "run"), population)


def _private(case: Case) -> bool:
    asked = case.settings.get("algorithm") == "private" or bool(case.settings.get("private"))
    return asked or case.method in ("histograms", "private_gmm", "private_mixture", "profile")


def _population(path: Path, people: People, paid: Case | None) -> Population:
    """paid: the case whose budget the population has; None: it has none."""
    options: dict[str, Any] = {"clients_per_leaf": people.leaf, "clients_per_block": people.block}
    if people.kind == "rows":
        options["dtype"] = people.dtype
    if people.image is not None:
        options["image"] = people.image
    if people.heldout is not None:
        options["halves"] = "document"
    if paid is not None:
        ledger = create_ledger(default_ledger_url(), test=True)
        options["ledger"] = {"id": ledger.id, "url": ledger.url}
    with PopulationWriter(path, people.kind, people.features, nominal_clients=people.clients, **options) as writer:
        writer.write([f"client-{number}" for number in range(people.clients)], people.matrix, people.heldout)
        made = writer.commit(Provenance(sources=("digests",)))
    if paid is not None:
        ledger.register(made.id)
        ledger.set_budget(made.id, EPSILON, 1e-6, unit=paid.unit, relation=paid.relation)
    return made


def _run(case: Case, population: Population, folder: Path, run_id: str) -> Run:
    asked: dict[str, Any] = {}
    if _private(case):
        asked["test_noise"] = KEY
    if case.given is not None:
        asked["start_from"] = str(_start(case, population, folder))
        asked["public_start_because"] = PUBLIC
    request = TrainRequest(
        method=case.method,
        population=str(population.path),
        settings=dict(case.settings),
        runs=str(folder / "runs"),
        run_id=run_id,
        seed=7,
        **asked,
    )
    settings = method_class(case.method).Config
    with ExitStack() as stack:
        for name, value in case.constants.items():
            stack.enter_context(mock.patch.object(settings, name, value))
        return to_end(start_run(request, InProcessBackend(), stamp="then"))


def _start(case: Case, population: Population, folder: Path) -> Path:
    """A file of arrays, or an earlier run: on the same population, unless only that one has to be private."""
    if case.given in STARTS:
        np.savez(folder / "start.npz", **STARTS[case.given])
        return folder / "start.npz"
    earlier = CASES[case.given]
    if _private(earlier) and not _private(case):
        population = _population(folder / "earlier", POPULATIONS[earlier.population](), earlier)
    elif _private(earlier):  # both are charged to one budget
        earlier = replace(earlier, settings={**earlier.settings, "epsilon": EPSILON / 2})
    return Path(_run(earlier, population, folder, "earlier").path)


def _record(run: Run, population: Population) -> dict[str, Any]:
    loaded = load_run(run.path)
    plan = loaded.info["plan"]
    columns = sorted({column for row in loaded.metrics for column in row if not column.startswith("seconds_")})
    sections: dict[str, Mapping[str, Any]] = {
        "metrics": {column: value for column, value in loaded.metrics[-1].items() if column in columns},
        "state": loaded.state,
        "memories": _memories(run, len(population.blocks)),
        "outputs": _outputs(run, population),
    }
    if plan:
        published = run.releases()
        together = [published[item["name"]].ravel() for item in plan if item["name"] in published]
        sections |= {
            "plan": {
                "releases": json.dumps([[item[name] for name in PLANNED] for item in plan]),
                "noise_multipliers": np.array([item["noise_multiplier"] for item in plan]),
            },
            "releases": {" ".join(sorted(published)): np.concatenate(together).astype(np.float64)},
        }
    kept = {name: _kept(values) for name, values in sections.items() if values}
    return {"rounds": len(loaded.metrics), "columns": " ".join(columns), **kept}


def _memories(run: Run, blocks: int) -> dict[str, np.ndarray]:
    folder = run.memories()
    if folder is None:
        return {}
    read = [read_values(memory_file(folder, index)) for index in range(blocks)]
    return {name: np.concatenate([values[name] for values in read]) for name in read[0]}


def _outputs(run: Run, population: Population) -> dict[str, np.ndarray]:
    """For the clients of the first block, leaf after leaf; nothing if the run has found nothing, or its method
    gives clients none."""
    method, state = trained(run)
    folder, block, parts = run.memories(), population.read(0), []
    memory = None if folder is None else read_values(memory_file(folder, 0))
    try:
        with redacted(method, 0):
            for leaf in leaves(block, population.clients_per_leaf):
                clients = slice(leaf.first, leaf.first + leaf.clients)
                mine = None if memory is None else {name: value[clients] for name, value in memory.items()}
                parts.append(method.personalise(state, leaf, mine))
    except (ConfigError, RunError):
        return {}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


# --- what is kept of values -------------------------------------------------------------------------------------------


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    floats = {name: value for name, value in values.items() if _is_float(value)}
    others = {
        name: f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else "float"
        for name, value in floats.items()
    }
    return {
        "sha256": digest(values),
        "exact": digest({**values, **others}),
        "floats": {name: numbers(value) for name, value in sorted(floats.items()) if np.size(value)},
    }


def _is_float(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")


def digest(values: Mapping[str, Any]) -> str:
    """SHA-256, its first half, of names, dtypes, shapes and bytes; scalars by their JSON."""
    sha256 = hashlib.sha256()
    for name, value in sorted(values.items()):
        if isinstance(value, np.ndarray):
            sha256.update(f"{name} {value.dtype.str} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes())
        else:
            sha256.update(f"{name} {json.dumps(value)} ".encode())
    return sha256.hexdigest()[:32]


def numbers(value: Any) -> str:
    """Of floats that are finite: how many they are, their sum, the sum of their squares, the first, the middle one and
    the last. Of a scalar the number itself."""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    found = value[np.isfinite(value)].astype(np.float64)
    some = [found[at] for at in (0, len(found) // 2, -1)] if len(found) else []
    kept = [len(found), found.sum(), (found * found).sum(), *some]
    return " ".join(f"{number:.{DIGITS}g}" for number in kept)


def machine() -> dict[str, Any]:
    """What the last bits of floats may depend on."""
    blas = [library for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "simd": np.show_config(mode="dicts")["SIMD Extensions"]["found"],
        "blas": np.show_config(mode="dicts")["Build Dependencies"]["blas"]["version"],
        "kernels": sorted({library.get("architecture", "") for library in blas}),
        "libc": " ".join(platform.libc_ver()),
    }


# --- comparison -------------------------------------------------------------------------------------------------------


def differences(found: Mapping[str, Any], kept: Mapping[str, Any], *, to_the_bit: bool) -> list[str]:
    """What of two records of a run differs. to_the_bit: otherwise floats may differ by RELATIVE."""
    different = [name for name in sorted(found.keys() | kept.keys()) if _differ(found.get(name), kept.get(name))]
    sections = [name for name in different if found.get(name) and kept.get(name) and isinstance(kept[name], dict)]
    told = [name for name in different if name not in sections]
    for section in sections:
        one, other = found[section], kept[section]
        names = sorted(one["floats"].keys() | other["floats"].keys())
        pairs = [(name, one["floats"].get(name), other["floats"].get(name)) for name in names]
        far = [f"{section} {name}: {line}, not {expected}" for name, line, expected in pairs if _far(line, expected)]
        if one["exact"] != other["exact"]:
            far.append(f"{section}: names, dtypes, shapes, whole numbers or texts")
        told += far or ([f"{section}: last bits"] if to_the_bit else [])
    return told


def _differ(one: Any, other: Any) -> bool:
    return one["sha256"] != other["sha256"] if isinstance(one, dict) and isinstance(other, dict) else one != other


def _far(line: str | None, expected: str | None) -> bool:
    """Of two lines of `numbers`. As far as a sum cancels, it is as near as its terms."""
    if line is None or expected is None:
        return True
    one, other = np.array(line.split(), np.float64), np.array(expected.split(), np.float64)
    if len(one) != len(other):
        return True
    size = np.abs(other)
    if len(other) > 1:
        norm = math.sqrt(other[2])
        size = np.array([0.0, norm * math.sqrt(other[0]), other[2], *[norm] * (len(other) - 3)])
    return bool((np.abs(one - other) > RELATIVE * size).any())


# --- the file ---------------------------------------------------------------------------------------------------------


def stored() -> dict[str, Any]:
    return json.loads(FILE.read_text())


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder that is removed, with a ledger that the environment names. Nothing waits for the disk."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ledger = f"sqlite:///{folder / 'ledger.sqlite'}"
        stack.enter_context(mock.patch.dict(os.environ, FEDCORE_LEDGER=ledger))
        stack.enter_context(mock.patch("os.fsync"))
        yield folder


def made(name: str) -> dict[str, Any]:
    with own_folder() as folder:
        return record_of(name, folder)


def write(names: list[str]) -> None:
    """Make the records of these cases, and keep the others; all of them if there are no names."""
    content = stored() if FILE.exists() else {"unstable": [], "runs": {}}
    if names and content.get("machine") != machine():
        raise SystemExit("The others were made by another machine: make all of them.")
    records = content["runs"] | {name: made(name) for name in names or CASES}
    unstable = [name for name in CASES if name in content["unstable"]]
    _store({"machine": machine(), "unstable": unstable, "runs": {name: records[name] for name in CASES}})


def mark() -> None:
    """Keep the names of the runs that end elsewhere on this machine than on the one that made the file."""
    content = stored()
    runs, known = content["runs"], set(content["unstable"])
    known |= {name for name in CASES if differences(made(name), runs[name], to_the_bit=False)}
    _store(content | {"unstable": [name for name in CASES if name in known]})


def _store(content: Mapping[str, Any]) -> None:
    FILE.write_text(json.dumps(content, indent=0) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of cases; all by default")
    parser.add_argument("--mark", action="store_true", help="make none, but note which of them another machine changes")
    given = parser.parse_args()
    mark() if given.mark else write(given.names)
