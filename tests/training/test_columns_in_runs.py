"""Named columns and bounds in runs: names and units in results, settings from bounds, other columns refused."""

import numpy as np
import pytest

import fedcore
from fedcore.errors import ConfigError, WrongKind
from fedcore.population.ingest.ingest import ingest
from fedcore.training.request import TrainRequest
from tests.command import works
from tests.conftest import spec_of


def table(path, names=("age", "height"), rows=60, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal([[30.0, 1.7], [60.0, 1.6]], [[3.0, 0.1]], (rows, 2, 2)).reshape(-1, 2)
    lines = [f"c{number % 20},{a:.2f},{b:.3f}" for number, (a, b) in enumerate(x.tolist())]
    path.write_text("\n".join([f"client,{','.join(names)}", *lines]) + "\n")
    return path


BOUNDS = {"age": (0, 120), "height": (0, 3)}
EM = ("--set", "components=2", "--set", "rounds=2", "--set", "covariance=diag")


@pytest.mark.slow
def test_results_have_names_and_units_without_the_population(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ingest(table(tmp_path / "a.csv"), "p", bounds=BOUNDS, units={"age": "years", "height": "m"})
    run = works("train", "federated_em", "p", "--local", *EM, "--json").json["run_id"]
    info = fedcore.load_run(f"runs/{run}").info
    assert info["columns"] == [{"name": "age", "unit": "years"}, {"name": "height", "unit": "m"}]
    (tmp_path / "p").rename(tmp_path / "moved")
    shown = str(fedcore.load_run(f"runs/{run}").tables)
    assert "age" in shown and "height" in shown and "column 0" not in shown
    ingest(table(tmp_path / "b.csv", ("age", "weight")), "other")
    with pytest.raises(WrongKind, match="column 1 is 'weight' instead of 'height'"):
        fedcore.load_run(f"runs/{run}").predict("other")
    with pytest.raises(ConfigError, match="trained on other columns"):
        spec_of(
            TrainRequest(method="federated_em", population="other", settings={}, runs="runs", start_from=f"runs/{run}")
        )


def private(file, population, *bounds):
    works("population", "ingest", file, population, "--nominal-clients", "20", *bounds)
    budget = ("--epsilon", "1", "--delta", "1e-6", "--public-schema", "a form", "--shared-ids", "the same table")
    works("budget", "set", population, *budget)


def test_a_radius_follows_from_bounds_and_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = table(tmp_path / "a.csv")
    private(file, "p", "--bounds", "age=0:120", "--bounds", "height=0:3")

    def radius(population, **settings):
        asked = TrainRequest(method="private_gmm", population=population, settings=settings, runs="runs")
        return spec_of(asked).method.config.radius

    assert radius("p") == np.hypot(120, 3) and radius("p", radius=50.0) == 50.0
    private(file, "half", "--bounds", "age=0:120")
    with pytest.raises(ConfigError, match="radius"):
        radius("half")
