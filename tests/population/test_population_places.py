"""A path or URL of a population that leads elsewhere than before: no run reads people's data and charges others."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from fedcore.errors import FedcoreError, RunBusy, RunError
from fedcore.population.copying import copy_population
from fedcore.population.store import Population
from fedcore.rounds.caches import BLOCKS
from fedcore.rounds.engine import InProcessBackend
from fedcore.storage import files
from fedcore.training.budget import ledger_of
from fedcore.training.session import concluding, resume
from tests import sessions
from tests.command import private_population
from tests.conftest import small_counts
from tests.sessions import to_end


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Populations p and q of one ledger, and a link to p."""
    monkeypatch.chdir(tmp_path)
    private_population(Path("p"), small_counts(40, seed=1), test=True)
    private_population(Path("q"), small_counts(40, seed=2), test=True)
    Path("link").symlink_to("p", target_is_directory=True)
    return tmp_path


def start(population, run="r"):
    settings = {"clusters": 2, "rounds": 2, "epsilon": 1.0}
    return sessions.begin(population, Path(), settings=settings, run_id=run, test_noise="k")


def interrupted(population):
    """A run that has made its first round."""
    session = start(population)
    with suppress(KeyboardInterrupt), concluding(session):
        session.training.step()
        raise KeyboardInterrupt


def spent(*names):
    return [ledger_of(found := Population.open(name)).verify(found.id).rho_spent for name in names]


# --- one population under many names --------------------------------------------------------------------------------

SAME = {
    "a path": lambda place: place / "p",
    "a relative path": lambda place: "p",
    "a slash at its end": lambda place: "p/",
    "through another folder": lambda place: "q/../p",
    "a URL": lambda place: f"file://{place}/p",
    "a URL with escapes": lambda place: f"file://{place}/%70",
    "a link": lambda place: "link",
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.slow
def test_a_population_has_one_budget_under_all_its_names(place, name):
    to_end(start(SAME[name](place)))
    own, other = spent("p", "q")
    assert own > 0 and other == 0
    assert spent(SAME[name](place)) == [own]


# --- other data in the place of a population --------------------------------------------------------------------------


def exchange(place):
    """Another population under the same name."""
    Path("p").rename("elsewhere")
    shutil.copytree("q", "p")


def point_elsewhere(place):
    Path("link").unlink()
    Path("link").symlink_to("q", target_is_directory=True)


def forge_id(place):
    """The data of q, and the manifest of q with the id of p."""
    Path("p").rename("elsewhere")
    shutil.copytree("q", "p")
    for file in Path("p/versions").glob("*.json"):
        content = json.loads(file.read_text())
        content["population_id"] = json.loads((Path("elsewhere/versions") / file.name).read_text())["population_id"]
        file.write_text(json.dumps(content))


def forge_data(place):
    """The manifest of p, and the blocks of q."""
    shutil.rmtree("p/blocks")
    shutil.copytree("q/blocks", "p/blocks")


def link_blocks(place):
    shutil.rmtree("p/blocks")
    Path("p/blocks").symlink_to(place / "q" / "blocks", target_is_directory=True)


def link_versions(place):
    shutil.rmtree("p/versions")
    Path("p/versions").symlink_to(place / "q" / "versions", target_is_directory=True)


def remove(place):
    shutil.rmtree("p")


def name_a_host(place):
    """A record of the run that names the population at a host."""
    file = Path("runs/r/run.json")
    file.write_text(
        file.read_text().replace(str(place / "p"), "file://elsewhere/p").replace('"p"', '"file://elsewhere/p"')
    )


ELSEWHERE = (exchange, forge_id, forge_data, link_blocks, link_versions, remove, name_a_host)


@pytest.mark.parametrize("change", ELSEWHERE, ids=lambda change: change.__name__)
@pytest.mark.slow
def test_a_run_does_not_continue_on_other_data(place, change):
    interrupted("p")
    before = spent("p", "q")
    shutil.copytree("p", "before")
    change(place)
    BLOCKS.clear()
    with pytest.raises(FedcoreError) as refused:
        to_end(resume("runs/r", InProcessBackend()))
    assert refused.value.remedy and not isinstance(refused.value, RunBusy)
    shutil.rmtree("p", ignore_errors=True)
    Path("before").rename("p")
    assert spent("p", "q") == before, "nothing was charged"


def test_a_run_through_a_link_continues_on_the_data_that_it_began_with(place):
    interrupted("link")
    point_elsewhere(place)
    other = spent("q")
    to_end(resume("runs/r", InProcessBackend()))
    assert spent("q") == other == [0.0] and spent("p") > [0.0]


@pytest.mark.parametrize("change", [exchange, point_elsewhere], ids=lambda change: change.__name__)
def test_a_new_run_is_charged_to_the_people_whose_data_it_reads(place, change):
    name = "link" if change is point_elsewhere else "p"
    to_end(start(name))
    (own,) = spent("p")
    change(place)
    to_end(start(name, "later"))
    assert spent("p", "q" if change is point_elsewhere else "elsewhere") == [own, own]


@pytest.mark.parametrize("change", [forge_id, forge_data, link_blocks], ids=lambda change: change.__name__)
def test_a_new_run_on_forged_data_is_refused(place, change):
    to_end(start("p"))
    (own, other) = spent("p", "q")
    shutil.copytree("p", "before")
    change(place)
    BLOCKS.clear()  # decoded blocks that this process has read are those of before
    with pytest.raises(FedcoreError):
        to_end(start("p", "later"))
    shutil.rmtree("p")
    Path("before").rename("p")
    assert spent("q") == [other] and spent("p")[0] >= own


def test_behind_a_url_too(place, memory):
    """What another writer of the object store has put in the place of a population."""
    for name in ("p", "q"):
        copy_population(name, f"{memory}/{name}")
    interrupted(f"{memory}/p")
    before = spent("p", "q")
    files.remove(files.place(f"{memory}/p"))
    copy_population("q", f"{memory}/p")
    BLOCKS.clear()
    with pytest.raises(RunError, match="another population"):
        to_end(resume("runs/r", InProcessBackend()))
    assert spent("p", "q") == before
    to_end(start(f"{memory}/p", "later"))
    assert spent("p")[0] == before[0] and spent("q")[0] > 0
