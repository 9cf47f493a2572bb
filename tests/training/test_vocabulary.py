"""The private vocabulary end to end: one account for the words and for the runs on what is encoded with them."""

import json
import random
import signal
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from fedcore.tasks.dask_backend import DaskBackend, dask_client
from typer.testing import CliRunner

from fedcore.cli import app
from fedcore.errors import BudgetExceeded, BudgetMissing, PrivacyError, RunBusy, WorkerFailed, WrongKind
from fedcore.operations.population_page import population_page
from fedcore.population.encoding import encode
from fedcore.population.ingest.ingest import ingest
from fedcore.population.words import WORD
from fedcore.privacy import vocabulary as pure
from fedcore.privacy.accounting import exact_sum
from fedcore.privacy.ledger.ledger import Ledger, create_ledger
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.privacy.statement import private_statement
from fedcore.rounds.engine import InProcessBackend
from fedcore.training import vocabulary
from fedcore.training.budget import begin_cohorts, ledger_name, ledger_of, set_budget
from fedcore.training.vocabulary import plan_vocabulary, release_vocabulary, released_words
from tests import sessions
from tests.population.contents import counts_of, everything_in, write_csv
from tests.privacy.conftest import release

CLIENTS = 300
SECRET = "wordofone"
COMMON = [f"common{number:02d}" for number in range(20)]


def lines(clients=CLIENTS, first=0):
    """Everybody has the common words, some have one of fifty rarer ones, and one has a word of its own."""
    rng = random.Random(first)
    for client in range(first, first + clients):
        for word in COMMON:
            yield f"c{client}", word, 3
        yield f"c{client}", f"rare{rng.randrange(50):02d}", 1
    yield f"c{first}", SECRET, 99


def open_population(folder, *, delta_extra=1e-7, nominal=CLIENTS, test=False, more=(), **terms):
    url = f"sqlite:///{folder / 'ledger.sqlite'}"
    create_ledger(url, test=test)
    file = write_csv(folder / "words.csv", ("client", "token", "count"), [*lines(), *more])
    made = ingest(file, folder / "open", kind="words", nominal_clients=nominal, ledger=ledger_name(url))
    set_budget(made, ledger_of(made), 8.0, 1e-6, delta_extra=delta_extra, public_schema="made up", **terms)
    return made, ledger_of(made)


@pytest.fixture
def world(tmp_path):
    return open_population(tmp_path)


def spent(ledger, population):
    balance = ledger.verify(population.id)
    return balance.rho_spent, balance.delta_spent


def dies(monkeypatch, name, after=False):
    """Let a process die when it comes to this step of the ledger, or just after it."""
    real = getattr(Ledger, name)

    def call(self, *arguments, **options):
        if after:
            real(self, *arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, name, call)
    return real


def test_the_words_of_many_are_released_and_that_of_one_is_not(world):
    population, ledger = world
    made = release_vocabulary(population, ledger)
    assert set(made.words) >= set(COMMON) and SECRET not in made.words
    assert made.words == tuple(sorted(made.words)) and made.new == len(made.words)
    assert made.statement.private and [entry.planned.name for entry in made.statement.releases] == ["vocabulary-1"]
    assert "its thresholding steps included" in made.statement.text()
    assert made.statement.delta == pytest.approx(1e-6)
    budget = ledger.balance(population.id).required_budget()
    assert spent(ledger, population)[0] == pytest.approx(0.3 * budget.rho_max, rel=1e-9)
    assert spent(ledger, population)[1] == pytest.approx(1e-7)


@pytest.mark.slow
def test_a_run_on_what_is_encoded_is_paid_from_the_same_account(world, tmp_path):
    population, ledger = world
    words = release_vocabulary(population, ledger).words
    encoded = encode(population, tmp_path / "encoded", words)
    assert counts_of(encoded)["c0"][len(words)] >= 99  # the word of one is with all others
    before = spent(ledger, population)[0]
    session = sessions.begin(encoded, tmp_path, settings={"clusters": 1, "rounds": 1}, run_id=None)
    while session.training.step():
        pass
    session.settle("finished")
    after = spent(ledger_of(encoded), encoded)[0]
    budget = ledger.balance(population.id).required_budget()
    assert before < after <= budget.rho_max and after == pytest.approx(budget.rho_max, rel=1e-5)
    said = json.loads((session.run.path / "statement.json").read_text())
    assert f"the words that run vocabulary-{population.id}-1 released of this population" in said["text"]
    assert said["vocabulary"]["together"]["rho"] == after
    session.close()


def charged(population, ledger):
    """The statement of a run that spends some of what is left, on this population."""
    balance, name = ledger.balance(population.id), f"run-{len(ledger.account(population.id).runs)}"
    planned = release(1, 40.0)
    ledger.reserve(population.id, name, (planned,), 0, unit=balance.unit, relation=balance.relation, secure=True)
    ledger.charge(ledger.acquire(name), planned)
    return private_statement(ledger, population.id, name, vocabulary=vocabulary.runs_behind(population, ledger))


def test_a_statement_names_the_release_of_its_vocabulary_and_adds_both_up(world, tmp_path):
    population, ledger = world
    made = release_vocabulary(population, ledger, delta=3e-8)
    statement = charged(encode(population, tmp_path / "encoded", made.words), ledger)
    budget, found = ledger.balance(population.id).required_budget(), statement.vocabulary
    assert found.runs == (made.run_id,) and found.rho == made.statement.rho and found.delta == 3e-8
    both = found.together
    assert both.rho == spent(ledger, population)[0] >= Fraction(statement.rho) + Fraction(found.rho)
    assert both.epsilon == budget.epsilon_of(both.rho) > max(statement.epsilon, made.statement.epsilon)
    assert both.delta == pytest.approx(budget.delta_conv + 3e-8) and statement.delta == budget.delta_conv
    headline, *rest = statement.text().splitlines()
    assert f"({both.epsilon:.4g}, {both.delta:.3g}) together with the release of its vocabulary" in headline
    assert "vocabulary and thresholds are public" not in statement.text()
    assert 'bounds and thresholds are public (declared by the budget owner, not verified: "made up")' in headline
    (line,) = (line for line in rest if line.startswith("Vocabulary:"))
    assert made.run_id in line and f"rho = {found.rho:.6g}" in line and f"rho = {both.rho:.6g}" in line
    assert statement.to_json()["vocabulary"]["together"]["rho"] == both.rho


@pytest.mark.slow
def test_a_statement_names_every_release_that_its_words_come_from_and_no_later_one(world, tmp_path):
    population, ledger = world
    first = release_vocabulary(population, ledger, epsilon=2.0, delta=3e-8)
    of_one = encode(population, tmp_path / "one", first.words)
    second = release_vocabulary(population, ledger, epsilon=4.0, delta=3e-8)
    assert second.new
    assert vocabulary.runs_behind(of_one, ledger) == (first.run_id,)
    of_both = encode(population, tmp_path / "both", second.words)
    assert vocabulary.runs_behind(of_both, ledger) == (first.run_id, second.run_id)
    text = charged(of_both, ledger).text()
    assert f"runs {first.run_id} and {second.run_id} released" in text


def test_a_vocabulary_that_somebody_chose_rests_on_the_word_of_its_owner(world, tmp_path):
    """A part of the released words, or these in another order, may tell of what it was chosen by."""
    population, ledger = world
    words = release_vocabulary(population, ledger).words
    for number, chosen in enumerate((words[1:], words[::-1], [*words, SECRET], ["tea"])):
        encoded = encode(population, tmp_path / str(number), chosen)
        assert vocabulary.runs_behind(encoded, ledger) == ()
    statement = charged(encoded, ledger)
    assert not statement.vocabulary and "vocabulary and thresholds are public (declared" in statement.text()


@pytest.mark.slow
def test_words_that_were_released_with_test_noise_are_no_release(tmp_path):
    population, ledger = open_population(tmp_path, test=True)
    made = release_vocabulary(population, ledger, test_noise="key")
    assert vocabulary.runs_behind(encode(population, tmp_path / "encoded", made.words), ledger) == ()


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_the_noise_is_that_of_the_relation(tmp_path, relation):
    population, ledger = open_population(tmp_path, relation=relation)
    (planned,) = plan_vocabulary(population, ledger.balance(population.id)).releases
    assert planned.sensitivity == pure.sensitivity(relation)
    assert release_vocabulary(population, ledger).statement.relation == relation


def test_what_cannot_be_is_refused_before_anything_is_charged(tmp_path, world):
    population, ledger = world
    with pytest.raises(BudgetExceeded, match="asks for epsilon = 9"):
        release_vocabulary(population, ledger, epsilon=9.0)
    with pytest.raises(PrivacyError, match="1e-07 left .* asks for 2e-07"):
        release_vocabulary(population, ledger, delta=2e-7)
    with pytest.raises(WrongKind, match="--kind words"):
        release_vocabulary(encode(population, tmp_path / "encoded", ["tea"]), ledger)
    assert spent(ledger, population) == (0.0, 0.0)
    (tmp_path / "none").mkdir()
    population, ledger = open_population(tmp_path / "none", delta_extra=None)
    with pytest.raises(PrivacyError, match="--delta-extra 1e-07"):
        release_vocabulary(population, ledger)
    assert spent(ledger, population) == (0.0, 0.0)


@pytest.mark.slow
def test_a_population_without_a_budget_releases_nothing(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    file = write_csv(tmp_path / "words.csv", ("client", "token", "count"), lines(3))
    made = ingest(file, tmp_path / "open", kind="words", ledger=ledger_name(url))
    ledger_of(made).register(made.id)
    with pytest.raises(BudgetMissing):
        release_vocabulary(made, ledger_of(made))


@pytest.mark.slow
def test_a_budget_for_records_has_no_vocabulary(tmp_path):
    population, ledger = open_population(tmp_path, unit="record")
    with pytest.raises(PrivacyError, match="clients only"):
        release_vocabulary(population, ledger)


def test_a_draw_that_was_lost_is_paid_again_with_its_delta(world, monkeypatch):
    population, ledger = world
    with monkeypatch.context() as patch:
        dies(patch, "publish")
        with pytest.raises(KeyboardInterrupt):
            release_vocabulary(population, ledger, delta=4e-8)
    once = spent(ledger, population)
    assert once[0] > 0 and once[1] == pytest.approx(4e-8) and not len(released_words(ledger, population.id))
    made = release_vocabulary(population, ledger)
    assert set(made.words) >= set(COMMON)
    assert spent(ledger, population) == (pytest.approx(2 * once[0]), pytest.approx(8e-8))
    assert made.statement.releases[0].attempts == 2 and made.statement.delta >= 9e-7 + 8e-8


@pytest.mark.slow
def test_a_draw_that_was_lost_is_not_drawn_again_if_nothing_pays_for_it(world, monkeypatch):
    population, ledger = world
    with monkeypatch.context() as patch:
        dies(patch, "publish")
        with pytest.raises(KeyboardInterrupt):
            release_vocabulary(population, ledger)
    with pytest.raises(BudgetExceeded, match="no unreserved budget"):
        release_vocabulary(population, ledger)
    assert not len(released_words(ledger, population.id))
    ledger.raise_budget(population.id, 16.0, 2e-6)
    assert set(release_vocabulary(population, ledger).words) >= set(COMMON)


def test_nothing_is_drawn_before_it_is_paid(world, monkeypatch):
    population, ledger = world
    order, draw, charge = [], SecureNoise.draw, Ledger.charge

    def drawn(self, *arguments):
        order.append("draw")
        return draw(self, *arguments)

    def charged(self, *arguments):
        order.append("charge")
        return charge(self, *arguments)

    monkeypatch.setattr(SecureNoise, "draw", drawn)
    monkeypatch.setattr(Ledger, "charge", charged)
    release_vocabulary(population, ledger)
    assert order == ["charge", "draw"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["reserve", "acquire", "charge", "publish", "finish"])
@pytest.mark.parametrize("after", [False, True])
def test_a_release_that_dies_anywhere_is_gone_on_with(world, monkeypatch, step, after):
    population, ledger = world
    with monkeypatch.context() as patch:
        dies(patch, step, after)
        with pytest.raises(KeyboardInterrupt):
            release_vocabulary(population, ledger, epsilon=1.0, delta=3e-8)
    if step == "acquire" and after:  # the process that has it is this one, and lives
        with pytest.raises(RunBusy):
            release_vocabulary(population, ledger, epsilon=1.0, delta=3e-8)
        ledger.acquire(f"vocabulary-{population.id}-1", take_over=True)
        ledger.release(ledger.acquire(f"vocabulary-{population.id}-1", take_over=True))
    ended = step == "finish" and after
    made = None if ended else release_vocabulary(population, ledger, epsilon=1.0, delta=3e-8)
    words = vocabulary.as_text(released_words(ledger, population.id))
    assert set(words) >= set(COMMON) and (made is None or made.words == words)
    runs = ledger.account(population.id).runs
    assert len(runs) == 1
    lost = (step, after) in (("charge", True), ("publish", False))
    (run,) = runs.values()
    assert len(run.spent()) == 1 + lost
    drawn = exact_sum(attempt.rho for attempt in run.spent())
    assert Fraction(spent(ledger, population)[0]) >= drawn


@pytest.mark.slow
def test_an_encoded_population_goes_on_by_cohort_and_the_words_do_not(world, tmp_path):
    population, ledger = world
    encoded = encode(population, tmp_path / "encoded", release_vocabulary(population, ledger, delta=3e-8).words)
    begun = begin_cohorts(encoded, ledger)
    first = ledger.balance(population.id).segments[0]
    assert begun.manifest.cohorts and (first.rho_spent, first.first, first.last) == (spent(ledger, population)[0], 1, 1)
    with pytest.raises(PrivacyError, match="kept by cohort"):
        release_vocabulary(population, ledger, epsilon=1.0, delta=1e-8)


KILLED = """
import os, signal, sys
from fedcore.cli import app
from fedcore.privacy.ledger.ledger import Ledger

step, after, path = sys.argv[1:]
real = getattr(Ledger, step)

def call(self, *arguments, **options):
    if after == "True":
        real(self, *arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(Ledger, step, call)
app(["population", "vocabulary", path, "--private", "--epsilon", "1", "--delta", "3e-8"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "step, after, draws",
    [
        ("publish", False, 2),
        pytest.param("charge", True, 2, marks=pytest.mark.heavy),
        pytest.param("publish", True, 1, marks=pytest.mark.heavy),
    ],
)
def test_a_process_that_is_killed_has_paid_for_what_it_may_have_drawn(world, step, after, draws):
    population, ledger = world
    done = subprocess.run(
        [sys.executable, "-c", KILLED, step, str(after), str(population.path)], capture_output=True, timeout=300
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    made = release_vocabulary(population, ledger)
    assert set(made.words) >= set(COMMON) and made.run_id.endswith("-1")
    charges = [row for row in ledger.history(population.id) if row["kind"] == "charge"]
    assert len(charges) == draws == made.statement.releases[0].attempts
    assert spent(ledger, population)[1] == pytest.approx(draws * 3e-8)


@pytest.mark.slow
@pytest.mark.heavy
def test_workers_of_a_cluster_answer_as_one_process_does(world):
    population, ledger = world
    known = vocabulary.Known(np.array([COMMON[0].encode()], WORD))
    lists = vocabulary.Lists(population, None)
    here = InProcessBackend().map_blocks(lists, known, range(len(population.blocks)))["words"].value()
    with dask_client(2) as client:
        there = DaskBackend(client).map_blocks(lists, known, range(len(population.blocks)))["words"].value()
    assert [part.tolist() for part in here] == [part.tolist() for part in there] and len(here[0]) > 50
    assert COMMON[0].encode() not in here[0]


@pytest.mark.slow
def test_a_later_release_lists_what_was_not_released(world):
    population, ledger = world
    first = release_vocabulary(population, ledger, epsilon=2.0, delta=3e-8)
    second = release_vocabulary(population, ledger, epsilon=4.0, delta=3e-8)
    assert second.run_id.endswith("-2") and set(first.words) <= set(second.words)
    assert second.new == len(second.words) - len(first.words)
    value = ledger.published(second.run_id, "vocabulary-1")
    assert not set(pure.words_of(value)[0].tolist()) & {word.encode() for word in first.words}


@pytest.mark.slow
def test_three_releases_where_the_declared_size_is_large(tmp_path):
    population, ledger = open_population(tmp_path, nominal=10_000)
    planned = plan_vocabulary(population, ledger.balance(population.id))
    assert len(planned.releases) == 3 and planned.in_words.startswith("good")
    made = release_vocabulary(population, ledger)
    assert len(made.statement.releases) == 3 and made.new == len(set(made.words)) == len(made.words)


@pytest.mark.slow
def test_a_lost_early_release_gives_up_the_last_one(tmp_path, monkeypatch):
    population, ledger = open_population(tmp_path, nominal=10_000)
    with monkeypatch.context() as patch:
        dies(patch, "publish")
        with pytest.raises(KeyboardInterrupt):
            release_vocabulary(population, ledger)
    made = release_vocabulary(population, ledger)
    assert made.given_up and set(made.words) >= set(COMMON)
    assert spent(ledger, population)[1] <= 1e-7


@pytest.mark.slow
def test_test_noise_promises_nothing_and_needs_a_test_ledger(tmp_path, world):
    with pytest.raises(PrivacyError, match="for people"):
        release_vocabulary(*world, test_noise="key")
    (tmp_path / "test").mkdir()
    population, ledger = open_population(tmp_path / "test", test=True)
    made = release_vocabulary(population, ledger, test_noise="key")
    assert not made.statement.private and made.statement.text().startswith("privacy: none")


@pytest.mark.slow
def test_an_interrupted_release_keeps_its_kind_of_noise(tmp_path, monkeypatch):
    population, ledger = open_population(tmp_path, test=True)
    with monkeypatch.context() as patch:
        dies(patch, "charge")
        with pytest.raises(KeyboardInterrupt):
            release_vocabulary(population, ledger)
    with pytest.raises(PrivacyError, match="another plan"):
        release_vocabulary(population, ledger, test_noise="key")


@pytest.mark.slow
def test_by_cohort_only_those_who_can_pay_take_part(tmp_path, world):
    population, ledger = world
    release_vocabulary(population, ledger)
    population = begin_cohorts(population, ledger)
    more = write_csv(tmp_path / "more.csv", ("client", "token", "count"), [(f"n{n}", "newword", 1) for n in range(300)])
    population = ingest(more, tmp_path / "open", append=True, nominal_clients=2 * CLIENTS)
    planned = plan_vocabulary(population, ledger.balance(population.id))
    assert planned.participants.ranges == ((2, 2),) and planned.nominal_clients == CLIENTS
    made = release_vocabulary(population, ledger)
    assert "newword" in made.words and made.new == 1  # nobody of the first cohort was asked
    with pytest.raises(BudgetExceeded, match="no cohort"):
        release_vocabulary(population, ledger)
    encoded = encode(population, tmp_path / "encoded", made.words)
    assert encoded.manifest.cohorts == population.manifest.cohorts
    assert encoded.manifest.order == population.manifest.order


def test_the_word_of_one_client_is_in_the_blocks_and_nowhere_else(world, tmp_path, caplog, capsys):
    population, ledger = world
    made = release_vocabulary(population, ledger)
    encode(population, tmp_path / "encoded", made.words)
    (tmp_path / "words.csv").unlink()
    holding = {
        file.relative_to(tmp_path).parts[:2]
        for file in tmp_path.rglob("*")
        if file.is_file() and SECRET.encode() in file.read_bytes()
    }
    assert holding <= {("open", "blocks")}
    assert SECRET.encode() in everything_in(tmp_path / "open" / "blocks")
    for place in ("encoded", "open/versions"):
        assert SECRET.encode() not in everything_in(tmp_path / place)
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err + caplog.text + json.dumps(made.statement.to_json())


def test_errors_on_the_way_are_told_without_their_text(world, monkeypatch):
    population, ledger = world

    def fails(*_):
        raise ValueError(SECRET)

    for name in ("sums", "published"):
        with monkeypatch.context() as patch:
            patch.setattr(pure, name, fails)
            with pytest.raises(WorkerFailed) as told:
                release_vocabulary(population, ledger, delta=1e-8)
        assert SECRET not in str(told.value) and told.value.__suppress_context__


@pytest.mark.slow
def test_nothing_that_is_planned_or_charged_depends_on_the_number_of_words(tmp_path):
    """Reservation and charge are those of a population in which one client has thousands of words of its own."""
    told = []
    for extra in (0, 5000):
        folder = tmp_path / str(extra)
        folder.mkdir()
        population, ledger = open_population(folder, more=[("c0", f"own{number}", 1) for number in range(extra)])
        release_vocabulary(population, ledger)
        rows = [row for row in ledger.history(population.id) if row["kind"] in ("reserve", "charge", "finish")]
        told.append([{name: row.get(name) for name in ("kind", "plan", "rho", "delta", "name")} for row in rows])
    assert told[0] == told[1] and told[0][0]["plan"][0]["shape"] == [pure.MOST, pure.COLUMNS]


@pytest.mark.slow
def test_the_command_line_releases_encodes_and_shows(world, tmp_path):
    population, _ = world

    def run(*arguments):
        done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    planned = run("population", "vocabulary", population.path)
    assert planned["words"] == 0 and planned["verdict"].startswith("weak") and len(planned["releases"]) == 1
    made = run("population", "vocabulary", population.path, "--private", "--out", tmp_path / "words.txt")
    assert made["statement"]["privacy"] == "differential privacy" and made["words"] == len(made["vocabulary"])
    assert (tmp_path / "words.txt").read_text().split() == made["vocabulary"]
    encoded = run("population", "encode", population.path, tmp_path / "encoded")
    assert encoded["population_id"] == population.id and encoded["features"] == made["words"] + 1
    listed = run("population", "encode", population.path, tmp_path / "again", "--vocabulary", tmp_path / "words.txt")
    assert listed["features"] == made["words"] + 1
    shown = run("budget", "show", tmp_path / "encoded")
    assert "vocabulary-1" in json.dumps(shown["history"]) and shown["rho_spent"] > 0
    page = population_page(str(tmp_path / "encoded"), str(tmp_path / "runs"))
    assert f"Vocabulary: {made['words']} words were released by {made['run']}" in page
    assert "words; id" in population_page(str(population.path), str(tmp_path / "runs"))


def test_without_released_words_there_is_nothing_to_encode_with(world):
    with pytest.raises(PrivacyError, match="no word"):
        vocabulary.vocabulary_to_encode(*world)
