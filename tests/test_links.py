"""Symbolic links in the folders of runs and populations: nothing is read, changed or deleted outside."""

import shutil
from pathlib import Path

import pytest

from fedcore.errors import FedcoreError, RunError
from fedcore.methods.names import OWN
from fedcore.operations.forgetting import forget
from fedcore.operations.retention import prune
from fedcore.operations.verify import verify_run
from fedcore.population import slots
from fedcore.population.copying import copy_population
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import load_run, read_runs
from fedcore.training.budget import ledger_of
from fedcore.training.personalise import personalise
from fedcore.training.request import TrainRequest
from fedcore.training.session import abandon, resume, start_run
from fedcore.training.witness import remember_head
from tests.command import fedcore, private_population
from tests.conftest import small_counts
from tests.sessions import to_end

LEAVING = "leaving.txt"
RUN_LINKS = (
    *("run.json", "head.json", "metrics.jsonl", "lock", "start.zip", "statement.json", "report.html", "result.json"),
    *("state", "state/{last}.zip", "memory", "memory/{last}", "memory/{last}/{file}", "memory/{last}.json", "releases"),
    "releases/{release}",
)
POPULATION_LINKS = (
    *("zarr.json", "ledger-head.json", ".writer.lock", "forget.json", "versions", "versions/000001.json", "blocks"),
    *("blocks/{slot}", "blocks/{slot}/digests.json", "blocks/{slot}/{array}", "vocabularies", "forgotten"),
)


def extend(path):
    """A version with the same clients."""
    parent = Population.open(path)
    with PopulationWriter.extending(parent) as writer:
        for entry in parent.blocks:
            writer.keep(entry)
        writer.commit()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A population with a budget; of runs with memories, and of private ones, two that are finished and an open one."""
    folder = tmp_path_factory.mktemp("links") / "here"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
        patch.setitem(OWN, "toy", "tests.toy:Toy")
        private_population("p", small_counts(), test=True, epsilon=50.0)
        private = {"private": True, "epsilon": 1.0, "nominal_clients": 50}
        for kind, settings, noise in (("plain", {}, None), ("private", private, "k")):
            for run in ("old", "ended", "half"):
                request = TrainRequest(
                    method="toy",
                    population="p",
                    runs=kind,
                    run_id=run,
                    settings={"rounds": 2, **settings},
                    test_noise=noise,
                )
                session = start_run(request, InProcessBackend(), stamp=f"then-{run}")
                if run == "half":
                    session.training.step()
                    session.training.commit()
                    session.close()
                else:
                    to_end(session)
    shutil.copytree(folder / "p", folder / "newer")
    extend(folder / "newer")
    shutil.copytree(folder, folder.parent / "template")
    return folder.parent


@pytest.fixture
def place(template, monkeypatch, toy):
    """Copies of all of it, at the same place; `outside` is where links lead to."""
    monkeypatch.chdir(template / "here")
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{template / 'here' / 'ledger.sqlite'}")
    fresh(template)
    return template


def fresh(place):
    """As it was made, and nothing outside."""
    for path in [*Path().iterdir(), *(place / "outside").glob("*")]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.copytree(place / "template", ".", dirs_exist_ok=True)


def seen(folder):
    """Everything that can be changed below a folder."""
    return {
        path: (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def linked(outside, path):
    """Move a file or folder outside and put a link in its place; what is not there becomes a link to a folder."""
    outside.mkdir(parents=True, exist_ok=True)
    target = outside / path.name
    if path.exists():
        shutil.move(path, target)
    elif path.suffix or path.name == "lock":
        target.write_text("precious")
    else:
        target.mkdir()
        for name in ("000001.json", "000000.zip", "000001.zip", "precious.txt"):
            (target / name).write_text("precious")
    path.symlink_to(target)


def of_run(run, link):
    last = max(int(state.stem) for state in (run / "state").glob("*.zip"))
    file = next((file.name for file in sorted((run / "memory" / f"{last:06d}").glob("*"))), "none")
    release = next((file.name for file in sorted((run / "releases").glob("*.zip"))), "none.zip")
    return run / link.format(last=f"{last:06d}", file=file, release=release)


OF_RUN = {
    "load": lambda kind: load_run(f"{kind}/ended"),
    "personalise": lambda kind: personalise(f"{kind}/ended", "p", Path("outputs")),
    "verify": lambda kind: raising(verify_run(f"{kind}/ended")),
    "resume": lambda kind: resume(f"{kind}/half", InProcessBackend()).close(),
    "abandon": lambda kind: abandon(f"{kind}/half"),
    "prune": lambda kind: prune(kind, 1, "now"),
    "forget": lambda kind: forget(Population.open("p"), clients=["c3"], runs=kind, stamp="now"),
}


def raising(report):
    """What a verification found, raised."""
    if report.problems:
        raise RunError("; ".join(report.problems))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "private"])
def test_a_link_in_the_folder_of_a_run_is_never_followed(place, kind):
    """A file or folder of each run is a link to where it was moved: who reads it refuses; nothing changes there."""
    wrong = []
    for link in RUN_LINKS if kind == "plain" else ("run.json", "releases", "releases/{release}"):
        fresh(place)
        for run in (Path(kind, name) for name in ("old", "ended", "half")):
            if (path := of_run(run, link)).parent.is_dir():
                linked(place / "outside" / run.name, path)
        before, memories = seen(place / "outside"), link.startswith("memory/{last}/")
        for name in OF_RUN if before else ():
            told = ""
            try:
                OF_RUN[name](kind)
            except FedcoreError as error:
                told = error.message
            if seen(place / "outside") != before:
                wrong.append((name, link, "changed what is outside"))
            reads = name in ("personalise", "verify", "resume") or (name in ("load", "abandon") and not memories)
            if reads and "is a symbolic link" not in told:
                wrong.append((name, link, told))
    assert not wrong, "\n".join(map(str, wrong))


def test_a_run_that_is_a_link_is_opened_by_name_only(place):
    linked(place / "outside", Path("plain/old"))
    before = seen(place / "outside")
    assert load_run("plain/old").metrics
    runs, damaged = read_runs("plain")
    assert [run.id for run in runs] == ["ended", "half"] and "old is a symbolic link" in str(damaged)
    assert not prune("plain", 1, "now") and seen(place / "outside") == before


@pytest.mark.parametrize("link", ["state", "metrics.jsonl", "lock"])
def test_a_link_in_the_folder_of_a_run_is_named(place, link):
    linked(place / "outside", Path("plain/half", link))
    before = seen(place / "outside")
    outcome = fedcore("resume", "plain/half", "--local")
    assert outcome.code == 2 and f"{link} in the folder of run 'half' is a symbolic link" in outcome.err
    assert seen(place / "outside") == before


# --- populations ----------------------------------------------------------------------------------------------------


OF_POPULATION = {
    "open": lambda: Population.open("p"),
    "read": lambda: Population.open("p").read(0),
    "verify": lambda: raising(Population.open("p").verify()),
    "append": lambda: extend("p"),
    "forget": lambda: forget(Population.open("p"), clients=["c3"], stamp="now"),
    "charge": lambda: remember_head(Population.open("p"), ledger_of(Population.open("p"))),
    "copy from it": lambda: copy_population("p", "copy"),
    "copy to it": lambda: copy_population("newer", "p", prune=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True], ids=["new", "read before"])
def test_a_link_in_the_folder_of_a_population_is_never_followed(place, known):
    """known: this process has read the block before, at the same place and with the same content."""
    wrong = []
    for link in POPULATION_LINKS:
        fresh(place)
        abandon("private/half")  # else nobody may be forgotten
        slots._digests.cache_clear()
        if known:
            Population.open("p").read(0)
        slot = Population.open("p").blocks[0].slot
        array = next(path.name for path in sorted(Path("p/blocks", slot).iterdir()) if path.is_dir())
        linked(place / "outside", Path("p", link.format(slot=slot, array=array)))
        before = seen(place / "outside")
        for name, action in OF_POPULATION.items():
            told = ""
            try:
                action()
            except FedcoreError as error:
                told = str(error)
            if seen(place / "outside") != before:
                wrong.append((name, link, "changed what is outside", told))
            inside = "{slot}" in link and name in ("open", "charge")
            if not inside and "symbolic link" not in told:
                wrong.append((name, link, told))
    assert not wrong, "\n".join(map(str, wrong))
