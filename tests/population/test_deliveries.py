"""Files of pipelines: recorded in the manifest, carried on by every later version, and by a copy."""

import pytest

from fedcore.errors import PopulationError
from fedcore.operations.forgetting import forget
from fedcore.population.conversion import open_cohort
from fedcore.population.copying import copy_population
from fedcore.population.deliveries import Delivered, Delivery
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population
from fedcore.training.budget import begin_cohorts, ledger_of
from tests.command import private_population
from tests.conftest import small_counts

FIRST = Delivered((("a/one.csv", 7, "1" * 64),), "nightly", "2026-01-02T03:00:00Z")
SECOND = Delivered((("two.csv", 8, "2" * 64), ("three.csv", 9, "3" * 64)), "nightly", "2026-01-03T03:00:00Z")
NAMES = ["a/one.csv", "two.csv", "three.csv"]


def csv(folder, *clients):
    file = folder / "source.csv"
    file.write_text("client,token,count\n" + "".join(f"{client},1,2\n" for client in clients))
    return file


def appended(population, folder, *clients, delivered=None, **options):
    came = None if delivered is None else lambda: delivered
    return ingest(csv(folder, *clients), population.path, append=True, delivered=came, **options)


@pytest.fixture
def population(tmp_path):
    return private_population(tmp_path / "p", small_counts(8))[0]


def named(population):
    return [(one.name, one.version) for one in population.manifest.deliveries]


def test_every_later_version_and_every_copy_names_the_files(population, tmp_path):
    one = appended(population, tmp_path, "x", delivered=FIRST)
    made = {"pipeline": "nightly", "at": FIRST.at}
    assert one.manifest.deliveries == (Delivery(name="a/one.csv", size=7, sha256="1" * 64, version=2, **made),)
    two = appended(one, tmp_path, "y", delivered=SECOND)
    three = appended(two, tmp_path, "z")
    left = forget(three, clients=["y"], stamp="now").erased.population
    assert left.versions() == [5]
    copy_population(left.path, tmp_path / "copy")
    for later in (two, three, left, Population.open(tmp_path / "copy")):
        assert named(later) == [("a/one.csv", 2), ("two.csv", 3), ("three.csv", 3)]
        assert "deliveries" in later.manifest.needs and later.manifest.occasions == ()
    assert "deliveries" not in population.manifest.needs


def test_an_append_of_a_pipeline_opens_the_cohort_of_its_day_and_names_its_time(population, tmp_path):
    begun = begin_cohorts(population, ledger_of(population))
    one = appended(begun, tmp_path, "x", delivered=FIRST, nominal_clients=1010)
    empty = Delivered((), "nightly", "2026-01-04T03:00:00Z")
    two = open_cohort(one, 1020, delivered=empty)
    other = open_cohort(two, delivered=Delivered((), "hourly", "2026-01-04T04:00:00Z"))
    assert one.manifest.occasions == (("nightly", FIRST.at),)
    assert other.manifest.occasions == (("nightly", empty.at), ("hourly", "2026-01-04T04:00:00Z"))
    days = [cohort.opened for cohort in other.manifest.cohorts]
    assert days[1:] == ["2026-01-02", "2026-01-04", "2026-01-04"] and named(other) == [("a/one.csv", 3)]
    assert Population.open(other.path).manifest == other.manifest


def test_what_is_asked_before_the_commit_may_refuse(population, tmp_path):
    def changed():
        raise PopulationError("a file was changed while it was read.")

    with pytest.raises(PopulationError, match="changed while"):
        ingest(csv(tmp_path, "x"), population.path, append=True, delivered=changed)
    assert Population.open(population.path).version == 1
    assert len(list((population.path / "blocks").glob("v*"))) == len(population.blocks)
