"""Runs that start from given centres: what is accepted, what is refused, and what the run says of it."""

import json
import pickle
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedcore.errors import ConfigError, NothingLeft, PrivacyError, RunError, RunNotFound
from fedcore.methods.histograms.start import LATER_NAMES, NAMES, SERIES_NAMES, checked_warm_start
from fedcore.methods.names import METHODS, OWN
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import default_ledger_url, open_ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, list_runs, load_run
from fedcore.storage.arrays import read_values, write_values
from fedcore.training.request import TrainRequest
from fedcore.training.session import abandon, concluding, resume
from fedcore.training.shared_ids import register
from fedcore.training.spec import START_FILE, resolve
from fedcore.training.warm_start import in_words, previous_runs
from tests import sessions
from tests.command import fedcore, private_population, works
from tests.conftest import edit_record, small_counts, spec_of, write_counts
from tests.sessions import to_end
from tests.toy import WarmToy

SMALL = {"epsilon": 1.0, "clusters": 2, "rounds": 2}
OPEN = {"algorithm": "algorithm2", "clusters": 2, "rounds": 4}
BECAUSE = "counted from a published dictionary"
FEATURES = 7


request_for = partial(sessions.request_for, settings=SMALL)
begin, train = partial(sessions.begin, settings=SMALL), partial(sessions.train, settings=SMALL)


def statement(run) -> dict:
    return json.loads((run.path / "statement.json").read_text())


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with a population, its ledger, and a finished private run."""
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCORE_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
        population, _ = private_population(folder / "p", small_counts(400), epsilon=60.0)
        first = train(population, folder, run_id="first", settings={**SMALL, "epsilon": 12.0})
    centres = load_run(first.path).state["centres"]
    assert np.abs(centres[0] - centres[1]).sum() > 0.05, "what it released is not just the mean"
    return folder


@pytest.fixture
def private(template, tmp_path):
    """(population, ledger, a finished private run), in a copy of the template."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    population = Population.open(tmp_path / "p")
    return population, open_ledger(default_ledger_url()), Run.open(tmp_path / "runs" / "first")


@pytest.fixture
def centres():
    return np.random.default_rng(0).dirichlet(np.ones(FEATURES), 2)


@pytest.fixture
def file(tmp_path, centres):
    np.savez(tmp_path / "start.npz", centres=centres)
    return tmp_path / "start.npz"


# --- from a private run ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_private_run_goes_on_where_a_private_run_ended(private, tmp_path):
    population, ledger, first = private
    run = train(population, tmp_path, run_id="second", start_from=str(first.path))
    assert run.status == "finished" and [item["name"] for item in run.info["plan"]] == ["clusters_001", "clusters_002"]
    kept = read_values(run.path / START_FILE)
    np.testing.assert_allclose(kept["centres"], load_run(first.path).state["centres"], rtol=1e-14)
    released = {*SERIES_NAMES, *LATER_NAMES} - {"base_weights"}  # by the series so far; weights were not chosen
    assert kept.keys() == {*NAMES, *released}
    said = run.info["start"]
    assert (said["kind"], said["name"], said["private"], said["population_id"]) == ("run", "first", True, population.id)
    assert said["public_because"] is None and said["arrays"]["centres"] == [2, FEATURES]
    text = statement(run)["text"]
    assert "Start: what run 'first' released" in text and "paid for in that run" in text
    both = statement(run)["together"]
    assert both["run"] == "first" and "Run 'first' and this run were charged to the same account" in text
    assert both["rho"] == pytest.approx(statement(first)["rho"] + statement(run)["rho"])
    assert statement(run)["private"] and "Start" not in statement(first)["text"]
    assert ledger.verify(population.id).rho_reserved == 0


@pytest.mark.slow
def test_the_start_is_that_of_the_first_round_and_survives_the_loss_of_its_run(private, tmp_path):
    population, _, first = private
    expected = load_run(first.path).state["centres"]
    session = begin(population, tmp_path, run_id="second", start_from=str(first.path))
    np.testing.assert_allclose(session.training.state.centres, expected, rtol=1e-14)
    with pytest.raises(KeyboardInterrupt), concluding(session):
        raise KeyboardInterrupt
    for path in sorted(first.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert to_end(resume(session.run.path, InProcessBackend())).status == "finished"


def forget_first_state(run):
    """As if the process had died before its first state was committed."""
    (run.path / "head.json").unlink()
    for state in run.path.glob("state/*.zip"):
        state.unlink()


def test_who_dies_before_a_run_is_there_leaves_its_name_free(tmp_path, monkeypatch):
    start = {"centres": np.eye(2)}

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr("fedcore.runs.store.write_json", die)
        dying.setattr(Run, "remove", lambda run: None)
        with pytest.raises(KeyboardInterrupt):
            Run.create(tmp_path, {"run_id": "r"}, {"centres": np.zeros((2, 2))})
    assert (tmp_path / "r" / START_FILE).exists() and list_runs(tmp_path) == []
    run = Run.create(tmp_path, {"run_id": "r"}, start)
    np.testing.assert_array_equal(read_values(run.path / START_FILE)["centres"], start["centres"])


@pytest.mark.slow
def test_a_run_that_died_before_its_first_state_starts_from_its_own_copy(private, tmp_path):
    population, _, first = private
    session = begin(population, tmp_path, run_id="second", start_from=str(first.path))
    session.close()
    forget_first_state(session.run)
    again = resume(session.run.path, InProcessBackend())
    np.testing.assert_allclose(again.training.state.centres, load_run(first.path).state["centres"], rtol=1e-14)
    assert again.run.head["files"]["start"] == session.run.head["files"]["start"] is not None
    again.close()


@pytest.mark.slow
def test_another_copy_is_noticed(private, tmp_path, centres):
    population, _, first = private
    session = begin(population, tmp_path, run_id="second", start_from=str(first.path))
    session.close()
    forget_first_state(session.run)
    write_values(session.run.path / START_FILE, {"centres": centres})
    with pytest.raises(RunError, match="does not hold what the run was asked"):
        resume(session.run.path, InProcessBackend())


@pytest.mark.slow
def test_an_abandoned_private_run_with_a_round_will_do(private, tmp_path):
    population, _, _ = private
    session = begin(population, tmp_path, run_id="half")
    with pytest.raises(KeyboardInterrupt), concluding(session):
        for _ in range(3):
            session.training.step()
        raise KeyboardInterrupt
    with pytest.raises(PrivacyError, match="has not ended"):
        spec_of(request_for(population, tmp_path, start_from=str(session.run.path)))
    abandon(session.run.path)
    spec_of(request_for(population, tmp_path, start_from=str(session.run.path)))


@pytest.mark.slow
def test_a_run_without_a_clustering_round_will_not_do(private, tmp_path):
    population, _, _ = private
    session = begin(population, tmp_path, run_id="early")
    session.training.step()
    session.close()
    abandon(session.run.path)
    with pytest.raises(ConfigError, match="has not finished a round"):
        spec_of(request_for(population, tmp_path, start_from=str(session.run.path)))


@pytest.mark.slow
def test_what_was_released_from_other_people_is_not_added_to(private, tmp_path):
    """The sums of one population say nothing of another, whose run takes its centres only."""
    _, _, first = private
    other, _ = private_population(tmp_path / "other", small_counts(400, seed=5), epsilon=60.0)
    spec = spec_of(request_for(other, tmp_path, start_from=str(first.path)))
    assert set(spec.public.warm_start) == set(NAMES) == set(spec.warm_start.record["arrays"])


@pytest.mark.slow
def test_a_file_with_the_sums_of_a_series_is_refused(private, tmp_path):
    population, _, first = private
    left = spec_of(request_for(population, tmp_path, start_from=str(first.path))).public.warm_start
    assert set(left) == {*NAMES, *SERIES_NAMES, *LATER_NAMES} - {"base_weights"}
    np.savez(tmp_path / "left.npz", **left)
    with pytest.raises(ConfigError, match="pool_sums.*from which population") as refused:
        spec_of(request_for(population, tmp_path, start_from=str(tmp_path / "left.npz"), public_start_because=BECAUSE))
    assert refused.value.remedy


# --- what a private run may not start from --------------------------------------------------------------------------


def elsewhere(tmp_path, seed=5):
    """Another population, and a finished run on it that is not private."""
    other = write_counts(tmp_path / "elsewhere", small_counts(seed=seed))
    return other, train(other, tmp_path, run_id="open", settings=OPEN)


@pytest.mark.slow
def test_a_run_that_is_not_private_needs_a_reason(private, tmp_path):
    population, ledger, _ = private
    _, open_run = elsewhere(tmp_path)
    before = ledger.head(population.id)
    with pytest.raises(PrivacyError, match="'open' is not private") as refused:
        begin(population, tmp_path, run_id="second", start_from=str(open_run.path))
    assert "--public-start" in refused.value.remedy and ledger.head(population.id) == before
    assert not (tmp_path / "runs" / "second").exists()
    run = train(population, tmp_path, run_id="second", start_from=str(open_run.path), public_start_because=BECAUSE)
    assert BECAUSE in statement(run)["text"] and run.info["start"]["public_because"] == BECAUSE
    assert run.info["start"]["private"] is False
    headline = statement(run)["text"].splitlines()[0]
    assert headline.startswith("privacy: (") and "assuming that" in headline and BECAUSE in headline
    assert statement(run)["vouched"] == [headline.split("assuming that ")[1].removesuffix(" (declared, not verified)")]


def test_no_reason_makes_exact_values_of_a_population_public_to_itself(private, tmp_path):
    population, ledger, first = private
    open_run = train(population, tmp_path, run_id="open", settings=OPEN)
    before = ledger.head(population.id)
    for given in ({}, {"public_start_because": "ok"}):
        with pytest.raises(PrivacyError, match="'open' is not private") as refused:
            begin(population, tmp_path, run_id="second", start_from=str(open_run.path), **given)
        assert "--public-start" not in refused.value.remedy
    assert ledger.head(population.id) == before and not (tmp_path / "runs" / "second").exists()
    # a private run on the same population was paid for: a reason is not needed, and changes nothing
    run = train(population, tmp_path, run_id="third", start_from=str(first.path), public_start_because="ok")
    assert statement(run)["vouched"] == [] and "word" not in statement(run)["text"].splitlines()[0]


@pytest.mark.slow
def test_a_copy_of_the_population_is_the_same_one(private, tmp_path):
    population, _, _ = private
    works("population", "copy", population.path, tmp_path / "copy")
    copied = Population.open(tmp_path / "copy")
    open_run = train(copied, tmp_path, run_id="open", settings=OPEN)
    with pytest.raises(PrivacyError, match="'open' is not private"):
        spec_of(request_for(population, tmp_path, start_from=str(open_run.path), public_start_because="ok"))


def through(population, tmp_path, settings=None):
    """A run on another population that started from an exact one on this."""
    train(population, tmp_path, run_id="exact", settings=OPEN)
    if settings is not None:
        other = write_counts(tmp_path / "between", small_counts(seed=5))
    else:
        ids = [f"between-{number}" for number in range(400)]
        other, _ = private_population(tmp_path / "between", small_counts(400, seed=5), epsilon=60.0, ids=ids)
    between = train(
        other,
        tmp_path,
        run_id="between",
        settings=settings or SMALL,
        start_from=str(tmp_path / "runs" / "exact"),
        public_start_because="ok",
    )
    return other, between


@pytest.mark.slow
@pytest.mark.parametrize("settings", [None, pytest.param(OPEN, marks=pytest.mark.slow)], ids=["private", "not private"])
def test_nor_through_a_run_on_another_population(private, tmp_path, settings):
    population, ledger, _ = private
    other, between = through(population, tmp_path, settings)
    exact = {population.id} if settings is None else {population.id, other.id}
    again = {"start_from": str(between.path)}
    assert between.info["start"]["unprotected"] == [population.id]
    for given in (again | {"public_start_because": "ok"}, *([again] if settings is None else [])):
        with pytest.raises(PrivacyError, match="run 'between' goes back"):
            spec_of(request_for(population, tmp_path, **given))
    # on a third population it may be vouched for, and what it rests on stays known
    ids = [f"third-{number}" for number in range(400)]
    third, _ = private_population(tmp_path / "third", small_counts(400, seed=6), epsilon=60.0, ids=ids)
    given = again if settings is None else again | {"public_start_because": BECAUSE}
    run = train(third, tmp_path, run_id="last", **given)
    assert set(run.info["start"]["unprotected"]) == exact
    headline = statement(run)["text"].splitlines()[0]
    assert "'exact'" in headline and "because: ok" in headline and (BECAUSE in headline) == (settings is not None)
    assert ledger.balance(population.id).rho_reserved == 0


@pytest.mark.slow
def test_a_run_that_does_not_record_its_lineage_is_refused(private, tmp_path):
    population, _, _ = private
    _, between = through(population, tmp_path)
    edit_record(between.path, lambda info: [info["start"].pop(name) for name in ("unprotected", "vouched")])
    with pytest.raises(RunError, match="without the populations behind it.*6fae4f3"):
        spec_of(request_for(population, tmp_path, start_from=str(between.path)))


def test_test_noise_does_not_count_as_private(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'tests'}.sqlite")
    other, _ = private_population(tmp_path / "q", small_counts(), test=True)
    noisy = train(other, tmp_path, run_id="noisy", test_noise="key")
    silent = train(other, tmp_path, run_id="silent")  # secure noise, but a test ledger bounds nothing
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'people'}.sqlite")
    population, _ = private_population(tmp_path / "p", small_counts())
    with pytest.raises(PrivacyError, match="'noisy' is not private"):
        spec_of(request_for(population, tmp_path, start_from=str(noisy.path)))
    with pytest.raises(PrivacyError, match="claims no privacy"):
        spec_of(request_for(population, tmp_path, start_from=str(silent.path)))
    # a run of test noise protects nobody, and may start from anything
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'tests'}.sqlite")
    assert train(other, tmp_path, test_noise="key", start_from=str(noisy.path)).status == "finished"


@pytest.mark.slow
def test_a_run_that_the_ledger_of_its_population_does_not_know(private, tmp_path, monkeypatch):
    population, ledger, first = private
    monkeypatch.setattr(type(ledger), "run_status", lambda self, run_id: None)
    with pytest.raises(PrivacyError, match="knows no run 'first'"):
        spec_of(request_for(population, tmp_path, start_from=str(first.path)))


@pytest.mark.slow
def test_a_damaged_statement_is_told(private, tmp_path):
    population, _, first = private
    (first.path / "statement.json").write_text("{")
    with pytest.raises(RunError, match="privacy statement of run 'first'"):
        spec_of(request_for(population, tmp_path, start_from=str(first.path)))


@pytest.mark.slow
def test_a_file_needs_a_reason(private, tmp_path, file, centres):
    population, _, _ = private
    with pytest.raises(PrivacyError, match="which is not declared public"):
        spec_of(request_for(population, tmp_path, start_from=str(file)))
    run = train(population, tmp_path, run_id="second", start_from=str(file), public_start_because=BECAUSE)
    said = statement(run)
    assert said["start"].endswith(BECAUSE) and "'start.npz'" in said["text"].splitlines()[0]
    assert len(said["vouched"]) == 1 and BECAUSE in said["vouched"][0]
    np.testing.assert_allclose(read_values(run.path / START_FILE)["centres"], centres)


@pytest.mark.slow
@pytest.mark.parametrize("because, words", [("  ", "is empty"), (BECAUSE, "and no start")])
def test_a_reason_without_sense(private, tmp_path, because, words):
    population, _, first = private
    given = {} if because == BECAUSE else {"start_from": str(first.path)}
    with pytest.raises(ConfigError, match=words):
        spec_of(request_for(population, tmp_path, public_start_because=because, **given))


# --- runs that are not private --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_not_private_starts_from_anything(private, tmp_path, file):
    population, _, first = private
    for number, start_from in enumerate((first.path, file)):
        run = train(population, tmp_path, run_id=f"open{number}", settings=OPEN, start_from=str(start_from))
        assert run.status == "finished" and statement(run)["privacy"] == "none"
    again = train(population, tmp_path, run_id="again", settings=OPEN, start_from=str(run.path))
    assert again.info["start"]["name"] == "open1" and len(load_run(again.path).metrics) <= 5


@pytest.mark.slow
def test_what_cannot_start_is_refused_before_a_run_is_made(private, tmp_path, file, toy):
    population, _, _ = private
    with pytest.raises(ConfigError, match="fedavg"):
        spec_of(request_for(population, tmp_path, settings={"algorithm": "fedavg"}, start_from=str(file)))
    with pytest.raises(ConfigError, match="'toy' does not start"):
        spec_of(request_for(population, tmp_path, method="toy", settings={}, start_from=str(file)))
    assert "toy" in METHODS


# --- what the arrays must be ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "arrays, words",
    [
        ({}, "holds the arrays none"),
        ({"mean": np.full(7, 1 / 7)}, "holds the arrays mean"),
        ({"centres": np.full((2, 7), 1 / 7), "labels": np.zeros(3)}, "labels"),
        ({"centres": np.full((2, 6), 1 / 6)}, "the shape (2, 6)"),
        ({"centres": np.full(7, 1 / 7)}, "the shape (7,)"),
        ({"centres": np.zeros((0, 7))}, "the shape (0, 7)"),
        ({"centres": np.full((2, 7), 1 / 7), "counts": np.ones(3)}, "counts of"),
        ({"centres": np.full((2, 7), 1 / 7), "mean": np.full((1, 7), 1 / 7)}, "mean of"),
        ({"centres": np.full((2, 7), np.nan)}, "not numbers"),
        ({"centres": np.full((2, 7), 1 / 7), "counts": np.array([-1.0, 1])}, "negative"),
        ({"centres": np.tile([1.2, -0.2, 0, 0, 0, 0, 0], (2, 1))}, "negative"),
        ({"centres": np.full((2, 7), 1 / 6)}, "sums to 1.16667, not to 1"),
        ({"centres": np.full((2, 7), "x")}, "not numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_do_not_fit(private, tmp_path, arrays, words):
    population, _, _ = private
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ConfigError) as refused:
        spec_of(request_for(population, tmp_path, start_from=str(tmp_path / "bad.npz"), public_start_because=BECAUSE))
    assert words in str(refused.value)


@pytest.mark.slow
def test_nothing_in_a_file_is_executed(private, tmp_path):
    population, _, _ = private

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    objects = np.empty(1, object)
    objects[0] = Trap()
    np.savez(tmp_path / "trap.npz", centres=objects)
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Trap()))
    (tmp_path / "torn.npz").write_bytes((tmp_path / "trap.npz").read_bytes()[:50])
    for name, words in (
        ("trap", "not a readable"),
        ("raw", "not a readable"),
        ("torn", "not a readable"),
        ("missing", "cannot read"),
    ):
        with pytest.raises(ConfigError, match=words):
            spec_of(
                request_for(
                    population, tmp_path, start_from=str(tmp_path / f"{name}.npz"), public_start_because=BECAUSE
                )
            )
    assert not (tmp_path / "sprung").exists()


def test_rows_are_made_to_sum_to_one_exactly(centres):
    rounded = centres.astype(np.float32)
    checked = checked_warm_start({"centres": rounded, "counts": np.array([1, 2])}, "it", FEATURES)
    assert checked["centres"].dtype == checked["counts"].dtype == np.float64
    np.testing.assert_allclose(checked["centres"].sum(axis=1), 1.0, rtol=1e-15)


@pytest.mark.slow
def test_a_run_of_other_tokens(private, tmp_path):
    _, _, first = private
    other, _ = private_population(tmp_path / "wide", small_counts(features=9))
    with pytest.raises(ConfigError, match="the population has 9 tokens"):
        spec_of(request_for(other, tmp_path, start_from=str(first.path)))
    words = [f"word{i}" for i in range(FEATURES)]
    ids = [f"spoken-{number}" for number in range(50)]
    spoken, _ = private_population(tmp_path / "spoken", small_counts(), vocabulary=words, ids=ids)
    reordered, _ = private_population(tmp_path / "reordered", small_counts(), vocabulary=words[::-1])
    run = train(spoken, tmp_path, run_id="spoken")
    with pytest.raises(ConfigError, match="another vocabulary"):
        spec_of(request_for(reordered, tmp_path, start_from=str(run.path)))
    spec_of(request_for(spoken, tmp_path, start_from=str(run.path)))


@pytest.mark.slow
def test_a_folder_that_is_no_run(private, tmp_path):
    population, _, _ = private
    with pytest.raises(RunNotFound):
        spec_of(request_for(population, tmp_path, start_from=str(tmp_path / "nothing")))


# --- the previous run -----------------------------------------------------------------------------------------------


def test_the_first_run_of_a_series_is_cold_and_the_next_ones_are_warm(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts())
    names = []
    for number in range(3):
        run = train(
            population, tmp_path, stamp=f"2030010{number + 1}T000000", run_id=f"r{2 - number}", start_from="previous"
        )
        names.append(None if run.info["start"] is None else run.info["start"]["name"])
    assert names == [None, "r2", "r1"]  # by time, not by name


class Forgetful(WarmToy):
    """Leaves nothing after one round."""

    def warm_start_of(self, state):
        if state.step == 1:
            raise ConfigError("has not found anything.", "Name a run that has.")
        return super().warm_start_of(state)


def test_previous_runs_that_left_nothing_are_passed_over(tmp_path, monkeypatch):
    monkeypatch.setitem(OWN, "toy", f"{__name__}:Forgetful")
    population = write_counts(tmp_path / "p", small_counts())
    starts = []
    for number, rounds in enumerate([1, 2, 1, 2]):
        asked = {"method": "toy", "settings": {"rounds": rounds}, "start_from": "previous", "run_id": f"r{number}"}
        run = train(population, tmp_path, stamp=f"2030010{number + 1}T000000", **asked)
        starts.append(run.info["start"] and run.info["start"]["name"])
    assert starts == [None, None, "r1", "r1"]
    with pytest.raises(NothingLeft, match="run 'r0' has not found anything"):
        train(population, tmp_path, **asked | {"start_from": str(tmp_path / "runs" / "r0"), "run_id": "named"})


@pytest.mark.slow
def test_which_run_is_the_previous_one(private, tmp_path):
    population, _, first = private
    runs = tmp_path / "runs"
    train(population, tmp_path, stamp="zzz", run_id="open", settings=OPEN)
    assert previous_runs(runs, "histograms", True, population)[0].id == "first"
    assert previous_runs(runs, "paper_histograms", False, population)[0].id == "open"
    assert previous_runs(runs, "toy", False, population) == []
    assert previous_runs(runs, "histograms", True, population, deployment="nightly") == []
    assert previous_runs(tmp_path / "nowhere", "histograms", True, population) == []
    other = write_counts(tmp_path / "other", small_counts())
    assert previous_runs(runs, "paper_histograms", False, other) == []
    train(population, tmp_path, stamp="aaa", run_id="nightly", deployment="nightly")
    assert previous_runs(runs, "histograms", True, population, deployment="nightly")[0].id == "nightly"
    session = begin(population, tmp_path, stamp="zzzz", run_id="going")
    assert previous_runs(runs, "histograms", True, population)[0].id == "first"
    session.close()


# --- the relation of the budget -------------------------------------------------------------------------------------


def test_a_run_is_planned_in_the_relation_of_the_budget(tmp_path):
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=None)
    works(f"budget set {population.path} --public-schema 'made up' --epsilon 8 --delta 1e-6 --relation replace_one")
    session = begin(population, tmp_path)
    assert session.run.info["relation"] == "replace_one"
    assert {item["sensitivity"] for item in session.run.info["plan"]} == {92682}
    with pytest.raises(KeyboardInterrupt), concluding(session):
        session.training.step()
        raise KeyboardInterrupt
    run = to_end(resume(session.run.path, InProcessBackend()))
    assert statement(run)["relation"] == "replace_one" and statement(run)["private"]
    assert "against anything else" in statement(run)["text"]
    assert ledger.balance(population.id).relation == "replace_one"


def test_a_plan_in_another_relation_is_refused_by_the_ledger(tmp_path, monkeypatch):
    population, ledger = private_population(tmp_path / "p", small_counts(), epsilon=None)
    ledger.set_budget(population.id, 8.0, 1e-6, relation="replace_one")

    def in_another(*arguments):
        spec = resolve(*arguments)
        return replace(spec, public=replace(spec.public, relation="add_or_remove_one"))

    monkeypatch.setattr("fedcore.training.session.resolve", in_another)
    with pytest.raises(PrivacyError, match="under replace_one"):
        begin(population, tmp_path)


def test_an_unknown_relation(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts(), epsilon=None)
    refused = fedcore(
        f"budget set {population.path} --public-schema 'made up' --epsilon 8 --delta 1e-6 --relation other"
    )
    assert refused.code == 2 and "replace_one" in refused.err


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_line_starts_from_runs_and_files(private, tmp_path, file):
    population, _, first = private
    base = f"train histograms {population.path} --local --runs {tmp_path / 'runs'} --json --set epsilon=1".split()
    base += ["--set", "clusters=2"]
    made = works(*base, "--start-from", first.path).json
    assert made["rounds"] == 2 and "first" in made["privacy"]["start"]
    made = works(*base, "--start-from", "previous", "--run-id", "next").json
    assert made["rounds"] == 2
    refused = fedcore(*base, "--start-from", file)
    assert refused.code == 2 and refused.json["error"] == "PrivacyError"
    made = works(*base, "--start-from", file, "--public-start", BECAUSE).json
    assert BECAUSE in made["privacy"]["text"]


def test_in_words():
    record = {"kind": "run", "name": "a", "sha256": "0" * 64, "private": False, "public_because": None}
    record["population_id"] = "p"
    assert in_words(record) == f"what run 'a' released (SHA-256 {'0' * 16})"


@pytest.mark.slow
def test_the_run_is_unchanged_when_nothing_is_asked_for(private):
    _, _, first = private
    assert Run.open(first.path).info["start"] is None and not (first.path / START_FILE).exists()
    assert first.info["relation"] == "add_or_remove_one"


def test_every_field_of_a_request_is_described():
    assert all(field.description for field in TrainRequest.model_fields.values())


# --- the same data under another population id ------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [False, True], ids=["manifest", "ledger"])
def test_exact_values_of_the_same_data_under_another_id_are_not_public(tmp_path, gone):
    """Populations that are there are compared by their manifests, and those that are gone by the ledger."""
    population, ledger = private_population(tmp_path / "p", small_counts())
    twin, _ = private_population(tmp_path / "twin", small_counts(), epsilon=None)
    train(twin, tmp_path, run_id="exact", settings=OPEN)
    given = {"start_from": str(tmp_path / "runs" / "exact"), "public_start_because": BECAUSE}
    if gone:
        register(population, ledger)
        register(twin, ledger)
        twin.path.rename(tmp_path / "elsewhere")
    with pytest.raises(PrivacyError, match=f"exact values of population '{twin.id}'.*the same people"):
        spec_of(request_for(population, tmp_path, **given))
    other, _ = private_population(tmp_path / "other", small_counts(seed=3))
    assert spec_of(request_for(other, tmp_path, **given)).warm_start is not None
    if gone:  # also through a run on a third population, which may start there
        third = write_counts(tmp_path / "third", small_counts(seed=4))
        train(third, tmp_path, run_id="between", settings=OPEN, **given)
        given["start_from"] = str(tmp_path / "runs" / "between")
        with pytest.raises(PrivacyError, match=f"exact values of population '{twin.id}'"):
            spec_of(request_for(population, tmp_path, **given))


def test_nor_are_they_through_a_run_on_a_third_population_of_no_ledger(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts())
    twin, third = (write_counts(tmp_path / name, small_counts(seed=seed)) for name, seed in (("twin", 0), ("third", 4)))
    train(twin, tmp_path, run_id="exact", settings=OPEN)
    given = {"start_from": str(tmp_path / "runs" / "exact"), "public_start_because": BECAUSE}
    train(third, tmp_path, run_id="between", settings=OPEN, **given)
    given["start_from"] = str(tmp_path / "runs" / "between")
    with pytest.raises(PrivacyError, match=f"exact values of population '{twin.id}'"):
        spec_of(request_for(population, tmp_path, **given))


def test_data_that_were_appended_to_are_still_the_same(tmp_path):
    """The first version of a population is the twin of another one; what is trained on is the second."""
    twin, _ = private_population(tmp_path / "twin", small_counts(6), epsilon=None)
    train(twin, tmp_path, run_id="exact", settings=OPEN)
    population, _ = private_population(tmp_path / "p", small_counts(6))
    with PopulationWriter.extending(population) as writer:
        writer.write([f"d{number}" for number in range(6)], small_counts(6, seed=9))
        writer.commit(Provenance())
    given = {"start_from": str(tmp_path / "runs" / "exact"), "public_start_because": BECAUSE}
    with pytest.raises(PrivacyError, match="the same people"):
        spec_of(request_for(population, tmp_path, **given))
