"""What a private run is likely to be worth: said before it is made, and asked about where it is nothing."""

from dataclasses import replace

import pytest

from fedcore.errors import NotWorthIt
from fedcore.methods.histograms import Histograms
from fedcore.methods.private_mixture import feasibility
from fedcore.methods.registry import make_method
from fedcore.rounds.engine import InProcessBackend
from fedcore.training.request import TrainRequest
from fedcore.training.session import start_run
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts
from tests.histograms.run_in_memory import facts
from tests.private_mixture.worlds import facts as mixture_facts

SETTINGS = ("--set", "epsilon=0.5")


@pytest.mark.parametrize(
    "nominal, rho, word", [(500, 0.0001, "none"), (500, 0.01, "weak"), (2000, 0.2, "fair"), (10_000, 0.5, "good")]
)
def test_a_word_for_every_strength(nominal, rho, word):
    public = facts(1000, rho=rho, nominal=nominal)
    worth = Histograms().worth(public)
    assert worth.word == word and worth.in_words.startswith(f"{word}: ")
    assert worth.unit == "nats" and f"{worth.loss:.2g}" in worth.expect


def test_less_budget_is_worth_less():
    losses = [Histograms().worth(facts(1000, rho=rho, nominal=1000)).loss for rho in (0.01, 0.02, 0.04)]
    assert losses == sorted(losses, reverse=True)


# Records, columns, components, epsilon.
@pytest.mark.parametrize(
    "sizes, mixture, search",
    [
        ((500, 5, 4, 0.3), "none", "none"),
        ((2000, 50, 2, 1.0), "none", "weak"),
        ((2000, 20, 4, 1.0), "weak", "weak"),
        ((2000, 5, 4, 1.0), "fair", "weak"),
        ((8000, 5, 4, 1.0), "good", "fair"),
        ((60_000, 10, 4, 4.0), "good", "good"),
    ],
)
def test_mixtures_say_what_their_noise_allows(sizes, mixture, search):
    records, features, components, epsilon = sizes
    public = replace(mixture_facts(features, records, epsilon), unit="client")
    settings = {"components": components}
    for name, more, word in (("private_mixture", {}, mixture), ("private_gmm", {"radius": 20.0}, search)):
        worth = make_method(name, settings | more).worth(public)
        assert worth.word == word, (name, worth.in_words)
        assert ("would be enough" in worth.expect) == (word in ("none", "weak", *(["fair"] if not more else [])))


def test_as_many_units_as_are_said_to_be_enough_are():
    public = mixture_facts(10, 1000, 1.0)
    method = make_method("private_mixture", {"components": 4})
    units = feasibility.enough(method.config, public)
    assert 1000 < units < 10_000
    assert feasibility.strength(method.config, replace(public, nominal_clients=round(units * 1.1))).word == "good"
    assert feasibility.strength(method.config, replace(public, nominal_clients=round(units / 1.3))).word == "fair"


def test_methods_without_privacy_say_nothing():
    assert make_method("paper_histograms", {}).worth(facts(9)) is None


@pytest.fixture
def hopeless(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return private_population(tmp_path / "p", small_counts(), epsilon=0.5, nominal=8)


def test_a_run_that_is_worth_nothing_asks_and_charges_nothing(hopeless, tmp_path):
    population, ledger = hopeless
    before = ledger.head(population.id)
    refused = fedcore("train", "histograms", "p", "--local")
    assert refused.code == 2 and "NotWorthIt" in refused.err and "--anyway" in refused.err
    with pytest.raises(NotWorthIt, match="Nothing was spent"):
        start_run(
            TrainRequest(method="histograms", population=str(population.path), runs=str(tmp_path / "runs")),
            InProcessBackend(),
            stamp="then",
        )
    assert ledger.head(population.id) == before and not (tmp_path / "runs").exists()
    asked = works("train", "histograms", "p", "--local", "--anyway")
    assert "what to expect, by the budget: none" in asked.err
    assert ledger.balance(population.id).rho_spent > 0


@pytest.mark.slow
def test_plans_say_it_too(hopeless):
    assert (
        works("plan", "histograms", "p", "--local", "--json", "--calibration", 0.1).json["worth"].startswith("none: ")
    )
    said = works("budget", "plan", "p", "--runs", 1, "--json").json["cold"]
    assert said["in_words"].startswith("none: ") and (said["rounds"], said["clusters"]) == (0, 0)
    assert works("train", "histograms", "p", "--local", "--anyway", "--json").err == ""
