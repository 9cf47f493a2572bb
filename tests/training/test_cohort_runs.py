"""Runs on a population that grows, whose budget is kept by cohort: from the settings to the sums. What they share with
runs by calendar period and in shares: `test_account_runs.py`.
"""

from __future__ import annotations

import pickle

import pytest

from fedcore.errors import ConfigError, PrivacyError, RunError, Waiting
from fedcore.operations.population_page import population_page
from fedcore.population.erasing import forget
from fedcore.rounds.engine import InProcessBackend, Training
from fedcore.training import publishing
from fedcore.training.budget import begin_cohorts
from fedcore.training.session import resume, start_run
from tests.audit.neighbours import Replay
from tests.conftest import edit_record
from tests.growing import Growing, published, to_end
from tests.population.contents import ids_of

pytestmark = pytest.mark.usefixtures("toy")


# --- who is asked -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_canary_leaves_the_sums_of_every_run_without_its_cohort_bit_equal(tmp_path):
    """Test noise is the same in both worlds, so that equal publications are equal sums."""
    with_it, without = Growing(tmp_path / "one"), Growing(tmp_path / "other")
    for growing, canary in ((with_it, ["canary"]), (without, [])):
        growing.append("a", "b")
        growing.append("c", *canary, declared=200)
        growing.append("d")
    differ = []
    for number, cohorts in enumerate(["1-2", "1-2,4", "3", "able", "4", "2-4", "1"]):
        one, other = (growing.run(f"r{number}", cohorts=cohorts, epsilon=0.5) for growing in (with_it, without))
        differ.append(published(one) != published(other))
    assert differ == [False, False, True, True, False, True, False]


@pytest.mark.parametrize(
    "story",
    [
        "joins later",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("is a founder", "comes alone", "comes back with more")
        ),
    ],
)
def test_participants_plans_and_messages_follow_from_public_things(tmp_path, monkeypatch, story):
    """In the worlds with a client and without it everything is the same that is not a sum with noise: here, while the
    same values are published in both."""
    noise, told = Replay({}), {}
    monkeypatch.setattr(publishing, "noise_of", lambda _: noise)

    def world(name: str, there: bool) -> list:
        seen, mapped = [], Training._map

        def watched(self, message):
            seen.append(pickle.dumps(message))
            return mapped(self, message)

        monkeypatch.setattr(Training, "_map", watched)
        canary = ["canary"] if there else []
        growing = Growing(tmp_path / name, begin=False)
        if story == "is a founder":
            growing.append(*canary, "z", declared=100)
        begin_cohorts(growing.population, growing.ledger)
        for week in range(6):
            asked = {"clusters": 2, "rounds": 2, "overseed": 2, "horizon": 3, "at_least": 150}
            try:
                session = growing.run(f"w{week}", "histograms", "previous" if week else None, **asked)
                seen += [session.run.info[name] for name in ("cohorts", "plan", "rho", "nominal_clients")]
            except Waiting as error:
                seen.append(str(error))
            extra = [] if story == "comes back with more" and week < 2 else canary
            come = {"joins later": week == 1, "comes alone": week == 1, "comes back with more": True}.get(story, False)
            others = [] if story == "comes alone" or week > 3 else [f"n{week}"]
            growing.append(*others, *(extra if come else []), declared=100 if week < 2 else 0)
        monkeypatch.setattr(Training, "_map", mapped)
        return seen

    told = {there: world(str(there), there) for there in (True, False)}
    assert told[True] == told[False] and len(told[True]) > 12
    assert any(isinstance(item, str) for item in told[True]), "it has waited, too"


def test_a_cohort_to_which_nobody_came_takes_part_like_any_other(tmp_path):
    """Whether anybody came is nobody's business: the run is made, on sums of nobody."""
    growing = Growing(tmp_path)
    growing.append(declared=300)
    session = growing.run("r", cohorts="2", epsilon=1.0)
    assert session.run.status == "finished" and session.run.info["nominal_clients"] == 300
    histograms = growing.run("h", "histograms", cohorts="2", epsilon=1.0, clusters=2, rounds=2)
    assert histograms.run.status == "finished"


# --- accounts never begin anew ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{"horizon": 3}, {"recent_cohorts": 1}, {"at_least": 5}, {"cohorts": "1"}])
def test_a_run_that_is_not_private_reads_everybody(tmp_path, asked):
    growing = Growing(tmp_path)
    with pytest.raises(ConfigError, match=f"{next(iter(asked))} is for algorithm private"):
        growing.begin(method="federated_em", algorithm="em", model="poisson", kind="counts", **asked)


def test_who_was_there_before_cohorts_has_spent_what_was_spent(tmp_path):
    growing = Growing(tmp_path, begin=False)
    growing.run("before", epsilon=4.0)
    spent = growing.ledger.balance(growing.population.id).rho_spent
    converted = begin_cohorts(growing.population, growing.ledger)
    assert begin_cohorts(converted, growing.ledger) == converted
    growing.append("a")
    growing.run("after", horizon=2)
    first, second = growing.ledger.verify(growing.population.id).segments
    assert first.rho_spent >= spent > 0 and second.rho_spent < first.rho_spent
    with pytest.raises(PrivacyError):  # an old version knows no cohorts
        start_run(growing.request("old", epsilon=0.1).model_copy(update={"version": 1}), InProcessBackend(), stamp="")


def test_cohorts_begin_also_after_versions_that_are_gone(tmp_path):
    """A run of a version that was removed, since somebody was forgotten, is of this population all the same."""
    growing = Growing(tmp_path, begin=False)
    growing.run("before", epsilon=4.0)
    leaves = ids_of(growing.population)[3]
    assert forget(growing.population, clients=[leaves]).clients == 1 and growing.population.versions() == [2]
    converted = begin_cohorts(growing.population, growing.ledger)
    assert converted.manifest.order == ((1, 3), (0, 1), (1, 8))
    growing.append(leaves)
    assert growing.cohort_of_each()[leaves] == 1
    growing.run("after", horizon=3, cohorts="1-2")


# --- interrupted runs -------------------------------------------------------------------------------------------------


def interrupted(growing, rounds: int = 1):
    session = growing.begin("r", rounds=3, horizon=4)
    for _ in range(rounds):
        session.training.step()
    session.close()
    return session


def test_a_run_that_was_killed_before_it_reserved_goes_on_with_what_it_was_made_for(tmp_path, monkeypatch):
    growing = Growing(tmp_path)
    growing.append("a")
    session = interrupted(growing, 0)
    monkeypatch.setattr(type(growing.ledger), "has_reservation", lambda *_: False)
    monkeypatch.setattr(type(growing.ledger), "participants_of", lambda *_: pytest.fail("there is none"))
    assert to_end(resume(session.run.path, InProcessBackend())).spec.participants.ranges == ((1, 2),)


def test_other_participants_than_were_reserved_are_refused(tmp_path):
    growing = Growing(tmp_path)
    growing.append("a")
    session = interrupted(growing)
    for cohorts, words in (([[1, 1]], "has reserved for cohorts 1-2"), (None, "damaged"), ([[1, 3]], "damaged")):
        edit_record(session.run.path, lambda content, cohorts=cohorts: content.update(cohorts=cohorts))
        with pytest.raises(RunError, match=words):
            resume(session.run.path, InProcessBackend())


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_of_the_population_shows_cohorts(tmp_path):
    growing = Growing(tmp_path)
    page = population_page(str(growing.path), tmp_path / "runs")
    assert "Cohorts so far: 1." in page and "No run by cohort was made yet" in page
    for week in range(3):
        request = growing.request(f"w{week}", horizon=4)
        to_end(start_run(request, InProcessBackend(), stamp=f"202601{1 + 7 * week:02}T000000"))
        growing.append(f"n{week}")
    page = population_page(str(growing.path), tmp_path / "runs")
    assert "allows 1 more runs like the last one" in page
    assert "it ends with the run of week 4 of 2026 (2026-01-22)" in page
    rows = [line for line in page.splitlines() if line.startswith("| w")]
    assert [row.split("|")[3].strip() for row in rows[:3]] == ["1-3", "1-2", "1"]
    assert all(row.split("|")[5].strip() == "1" for row in rows[:3]), "everybody of its version could pay"
    growing.run("last", horizon=4)
    growing.append("n3")
    growing.run("without", horizon=4)
    page = population_page(str(growing.path), tmp_path / "runs")
    assert "The initial cohort (cohort 1) is exhausted" in page
    row = next(line for line in page.splitlines() if line.startswith("| without"))
    assert row.split("|")[4].strip() == "400" and row.split("|")[5].strip() == "0.25"
