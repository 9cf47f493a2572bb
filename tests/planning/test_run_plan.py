"""A plan before a run: sizes that are right, times that add up, refusals with numbers, and nothing left behind."""

import json
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.cli.terminal import parse_seconds
from fedcore.errors import ConfigError
from fedcore.methods.registry import make_method
from fedcore.planning import calibration, run_plan, stand_ins, trial_rounds
from fedcore.planning.calibration import Calibration, calibrate
from fedcore.planning.reading import entries_of
from fedcore.planning.run_plan import Load, Resources, plan_run, predicted, refuse
from fedcore.planning.trial_rounds import Timed
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts
from fedcore.training.request import TrainRequest
from tests import sessions
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts, write_counts

FIVE = 5 * (960,)
SHAPE = stand_ins.Shape(60, 4.0, 32, 8, 8, "float32")
FEDEM = ("--set", "algorithm=fedem", "--set", "components=2", "--set", "rounds=4", "--set", "covariance=diag")
FEDEM += ("--set", "restarts=1")


@pytest.fixture
def quick(monkeypatch):
    """Without the fresh process that measures imports, and each round once."""
    monkeypatch.setattr(calibration, "REPEATS", 0)
    monkeypatch.setattr(calibration, "started_process", lambda method, private: (0.5, 10**8, 2 * 10**8))


def write_rows(path, clients: int = 60, rows: int = 6, leaf: int = 8, block: int = 16, **options):
    """Two separated components in every client."""
    generator = np.random.Generator(np.random.Philox(3))
    x = generator.normal(size=(clients * rows, 3)) + 6.0 * (np.arange(clients * rows)[:, None] % 2)
    with PopulationWriter(path, "rows", 3, clients_per_leaf=leaf, clients_per_block=block, **options) as writer:
        writer.write([f"c{i}" for i in range(clients)], (np.arange(clients + 1) * rows, x.astype(np.float32)))
        return writer.commit(Provenance(sources=("test",)))


def rows_with_a_budget(path, epsilon: float):
    """(population, ledger): the rows of `write_rows`, with a nominal number and a budget."""
    ledger = create_ledger(default_ledger_url())
    population = write_rows(path, nominal_clients=60, ledger={"id": ledger.id, "url": ledger.url})
    ledger.register(population.id)
    ledger.set_budget(population.id, epsilon, 1e-6)
    return population, ledger


def timed(**changed) -> Timed:
    counted = dict(phase="rounds", count=5, clients=8, entries=48.0, pieces=1, stacked=False, statistics=10, memory=0.0)
    seconds = dict(whole=0.9, half=0.5, server=0.2, server_half=0.2)
    sizes = dict(leaf_bytes=1000, half_bytes=600, server_bytes=50)
    return Timed(**(counted | seconds | sizes | changed))


def measured(*kinds: Timed, **changed) -> Calibration:
    made = dict(pace=1.0, leaf_clients=8, rounds=kinds or (timed(),), whole=True, stacked_clients=60, seconds=1.0)
    memory = dict(memory_write=0.0, memory_flush=0.0, memory_read=0.0, memory_file=0.0)
    stored = dict(reading=0.001, reading_bytes=1.5, stored=0.5, commit=0.01, state=100, noise=0.002, noise_start=0.1)
    start = dict(start=0.5, start_bytes=1000, flow_bytes=2000)
    return Calibration(**(made | memory | stored | start | changed))


def facts_of(kind, features=8, nominal=60, **changes) -> PublicFacts:
    return PublicFacts(kind, features, 8, nominal, None, 0.5, 0, **changes)


# --- the arithmetic, by hand ------------------------------------------------------------------------------------------


def test_work_is_linear_in_clients_and_leaves():
    # A piece of 8 clients takes 0.9 s and its half 0.5 s: 0.1 s a client and 0.1 s a leaf.
    load = Load(80, FIVE, 10, 480, 16, streams=False, shares_commits=False, remote=False)
    assert run_plan._work(timed(), load, measured()) == pytest.approx(10 * 0.1 + 80 * 0.1)
    heavier = replace(load, entries=960)  # twice the rows for each client
    assert run_plan._work(timed(), heavier, measured()) == pytest.approx(10 * 0.1 + 80 * 0.2)


@given(whole=st.floats(1e-6, 10), half=st.floats(0, 10), times=st.integers(1, 50))
def test_more_clients_never_take_less(whole, half, times):
    kind = timed(whole=whole, half=half)
    load = Load(80, FIVE, 10, 480, 16, False, False, False)
    larger = replace(load, clients=80 * times, leaves=10 * times, entries=480 * times)
    work = run_plan._work(kind, load, measured())
    assert work >= 0
    assert run_plan._work(kind, larger, measured()) == pytest.approx(times * work)


@pytest.mark.parametrize("cores", [1, 2])
def test_the_promise_by_hand(tmp_path, monkeypatch, cores):
    monkeypatch.setattr(run_plan, "usable_cores", lambda: cores)
    population = write_rows(tmp_path / "p")  # 60 clients, 360 rows of 3 float32: 4 blocks, 8 leaves, 4320 bytes
    method = make_method("federated_em", {"algorithm": "em"})
    releases = [PlannedRelease("a", 1, (5, 10), 1, 1.0, "", "")]
    told = predicted(method, population, releases, 7, measured(), Resources(workers=0, cache_bytes=2160))
    assert told["passes"] == 7  # five were met, two more are like them
    assert told["bytes_read_first_pass"] == 2160 and told["bytes_read_later_pass"] == 1080  # half is in the cache
    assert told["bytes_read"] == 2160 + 6 * 1080
    assert told["released_bytes"] == 8 * 50
    assert told["seconds_of_releases"] == pytest.approx(0.1 + 50 * 0.002 + 2 * 0.01)
    work = 8 * 0.1 + 60 * 0.1
    later, first = work + 4320 * 0.001 / 2, work + 4320 * 0.001
    if cores == 2:  # the next block is read while one is answered
        later, first = work * run_plan.AT_ONCE, work * run_plan.AT_ONCE
    assert told["phases"][0]["seconds_per_pass"] == pytest.approx(later + 0.2 + 0.01)
    assert told["seconds"] == pytest.approx(6 * later + first + 7 * (0.2 + 0.01) + 0.1 + 50 * 0.002 + 2 * 0.01)
    assert told["bytes_per_worker"] == 0
    assert told["disk_bytes"] == 2 * 100 + 400 and told["disk_bytes_most"] == 3 * 100 + 400


def test_who_reads_ahead(monkeypatch):
    """A process with a core to spare, or anybody behind a URL; not blocks that are streamed, or too large."""
    monkeypatch.setattr(run_plan, "usable_cores", lambda: 4)
    here = Load(80, FIVE, 10, 480, 16, streams=False, shares_commits=False, remote=False)
    far, streamed = replace(here, remote=True), replace(here, streams=True, remote=True)
    large = replace(here, remote=True, sizes=(run_plan.AHEAD_BYTES + 1.0,))
    for load, where, ahead in (
        (here, Resources(workers=0), True),
        (here, Resources(workers=3), True),
        (here, Resources(workers=4), False),
        (here, Resources(workers=1, cluster=True), False),
        (far, Resources(workers=4), True),
        (streamed, Resources(workers=0), False),
        (large, Resources(workers=0), False),
    ):
        assert run_plan._reads_ahead(load, where) == ahead
    passes = [
        run_plan._pass(timed(), load, measured(reading=0.001), Resources(workers=0, cache_bytes=0), True)
        for load in (here, far)
    ]
    assert passes[0] < passes[1], "the seconds behind a URL are measured as they are"


def test_cheap_rounds_share_commits(tmp_path):
    """A round of .1 s has a fifth of a commit; one of a second, or of a private run, has one of its own."""
    load = Load(80, 5 * (0.0,), 10, 480, 16, False, True, False)
    rounds = {seconds: timed(whole=0.0, half=0.0, server=seconds) for seconds in (0.1, 1.0)}
    known = measured(pace=1.0, commit=0.05)
    assert run_plan._pass(rounds[0.1], load, known, Resources(workers=0), True) == pytest.approx(0.1 + 0.05 / 5)
    assert run_plan._pass(rounds[1.0], load, known, Resources(workers=0), True) == pytest.approx(1.0 + 0.05)
    private = replace(load, shares_commits=False)
    assert run_plan._pass(rounds[0.1], private, known, Resources(workers=0), True) == pytest.approx(0.1 + 0.05)


def test_a_single_block_has_no_workers_and_a_small_population_those_it_is_given(tmp_path):
    """Unless they are somewhere else."""
    method = make_method("federated_em", {"algorithm": "em"})
    one, four = (write_rows(tmp_path / str(block), block=block) for block in (60, 16))
    asked = [
        (one, {"workers": 3}),
        (one, {"cluster": True}),
        (four, {}),
        (four, {"workers": 3}),
        (four, {"clients": 9000}),
        (four, {"prefect": False, "clients": 9000}),
    ]
    told = [predicted(method, population, [], 5, measured(), Resources(**where)) for population, where in asked]
    assert [row["workers"] for row in told] == [0, 2, 0, 3, 2, 0]
    assert [row["bytes_per_worker"] > 0 for row in told] == [False, True, False, True, True, False]
    assert told[0]["bytes_of_flow"] > told[1]["bytes_of_flow"] - run_plan.DASK_BYTES > run_plan.PREFECT_BYTES


def test_memories_are_on_disk_and_in_time(tmp_path):
    """All are written and flushed; those that the cache has no room for are read again."""
    population, kind = write_rows(tmp_path / "p"), timed(memory=1000.0)
    method = make_method("federated_em", {"algorithm": "fedem"})
    disk = measured(kind, memory_write=1e-5, memory_flush=3e-5, memory_read=2e-5, memory_file=0.03)
    written = 5 * (60 * 1000 * 4e-5 + 4 * 0.03)
    for cache, read in ((512 * 2**20, 0.0), (0, 1.0), (4320 + 15_000, 0.75)):
        where = Resources(workers=0, cache_bytes=cache)
        without = predicted(method, population, [], 5, measured(), where)
        told = predicted(method, population, [], 5, disk, where)
        assert told["disk_bytes"] - without["disk_bytes"] == 2 * 60 * 1000
        assert told["seconds"] - without["seconds"] == pytest.approx(written + 5 * 60 * 1000 * 2e-5 * read)
    cheap = replace(disk, rounds=(timed(memory=1000.0, whole=0.0, half=0.0),), reading=0.0)  # commits are shared
    told, without = (
        predicted(method, population, [], 5, known, Resources(workers=0))
        for known in (cheap, replace(cheap, memory_write=0.0, memory_flush=0.0, memory_file=0.0))
    )
    commits = 5 * 0.01 * (1 - 0.2 / 0.5)  # the server's .2 s without, a commit of their own with
    assert told["seconds"] - without["seconds"] == pytest.approx(5 * (60 * 1000 * 1e-5 + 4 * 0.03) + commits)


def test_the_deadline_names_the_fewest_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(run_plan, "usable_cores", lambda: 1)
    population = write_rows(tmp_path / "p")
    method = make_method("federated_em", {"algorithm": "em"})
    seconds = [predicted(method, population, [], 5, measured(), Resources(workers=0, deadline=1e9))["seconds"]]
    told = predicted(method, population, [], 5, measured(), Resources(deadline=0.6 * seconds[0]))
    assert told["workers_for_deadline"] == 2
    told = predicted(method, population, [], 5, measured(), Resources(deadline=2.0 * seconds[0]))
    assert told["workers_for_deadline"] == 1
    with pytest.raises(ConfigError, match="no number of workers up to 4"):
        predicted(method, population, [], 5, measured(), Resources(deadline=1.0))


def test_a_server_that_keeps_answers_apart_grows_with_them():
    load = Load(1000, FIVE, 10, 480, 16, False, False, False)
    kind = timed(stacked=True, server=0.4, server_half=0.1)  # quadratic
    assert run_plan._server(kind, load, measured(stacked_clients=80)) == pytest.approx(0.4 * 10**2)
    assert run_plan._server(timed(), load, measured()) == 0.2


def test_what_cannot_fit_is_refused_with_the_numbers(tmp_path, monkeypatch):
    told = {"bytes_per_worker": 600 * 2**20, "bytes_of_flow": 100 * 2**20, "disk_bytes_most": 5 * 2**40}
    where = Resources(memory_bytes=400 * 2**20, cache_bytes=300 * 2**20)
    with pytest.raises(ConfigError, match="a worker would need 600 MiB, and may have 400 MiB") as refused:
        refuse(told, where, tmp_path)
    assert "A cache of 100 MiB would fit" in refused.value.remedy
    monkeypatch.setattr(run_plan.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 2**30}))
    with pytest.raises(ConfigError, match="5,242,880 MiB .* 1,024 MiB are free"):
        refuse(told, Resources(), tmp_path / "not" / "there")
    monkeypatch.setattr(run_plan.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 2**60}))
    refuse(told, Resources(), tmp_path)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("45", 45), ("1d", 86400)])
def test_times_are_read(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "-1s", "2 weeks", "nan", "inf", "0"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ConfigError, match="is not a time"):
        parse_seconds(text)


# --- the calibration --------------------------------------------------------------------------------------------------


def test_the_calibration_meets_every_phase(tmp_path, quick):
    population = write_rows(tmp_path / "p")
    settings = {"codec": "dithering", "components": 2, "rounds": 4, "covariance": "diag"}
    method = make_method("federated_em", settings)

    def facts(clients):
        return PublicFacts("rows", 3, 8, None, clients, None, 0)

    found = calibrate(method, population, facts, [], tmp_path / "runs", limit=30.0)
    assert [kind.phase for kind in found.rounds] == ["moments", "pick", "clusters", "memory", "rounds", "last"]
    assert [kind.count for kind in found.rounds] == [1, 2, 3, 1, 4, 1] and found.whole
    assert found.rounds[4].memory == found.rounds[3].memory > 0 == found.rounds[0].memory
    assert all(kind.whole > 0 and kind.leaf_bytes > 0 for kind in found.rounds)
    assert found.commit > 0 and found.state > 0 and found.noise == 0.0
    assert not list(tmp_path.glob("**/.plan-*")) and not (tmp_path / "runs").exists()


def test_a_method_that_needs_more_clients_still_has_a_plan(tmp_path, quick):
    # Eight clients of a leaf of eight cannot fill nine clusters; what was measured until then stands.
    write_counts(tmp_path / "p", small_counts(), block=16, leaf=8)
    told = plan_run(
        sessions.request_for(
            tmp_path / "p", tmp_path, settings={"algorithm": "algorithm2", "clusters": 9, "rounds": 3}
        ),
        Resources(workers=0),
        limit=30.0,
    )
    assert told["passes"] >= 3 and told["seconds"] > 0


class Rounds:
    """A private method of twenty rounds whose server takes a while; what clients it asks is noted."""

    name, private = "rounds", True

    def __init__(self):
        self.asked = []

    def init(self, public):
        return 0

    def message(self, state):
        return state if state < 20 else None

    def client_update(self, message, block, memory):
        self.asked.append(block.clients)
        return {}, None

    def server_update(self, state, result):
        return state + 1, None

    def release_values(self, message, total):
        return {}

    def total_rounds(self, state):
        return 20


def test_clients_are_timed_in_some_rounds_and_a_few_answer_in_all():
    method, phases = Rounds(), 10 * ["a"] + 10 * ["b"]
    block = stand_ins.stand_ins(make_method("private_gmm", {"radius": 9.0}), facts_of("rows"), SHAPE, 64)
    few = block.slice(0, 4, 0)
    trial = trial_rounds.of_stand_ins(method, facts_of("rows"), [], phases, 60)
    made = trial.run([block], 60.0, few=[few])
    assert made.ended and made.made == 20 and [len(kind.server) for kind in made.kinds] == [10, 10]
    assert method.asked.count(64) == 2 * (5 + 1)  # rounds 1, 2, 3, 6 and 9, and once more for the memory that it takes
    assert method.asked.count(4) == 20 and all(len(kind.whole) == 5 for kind in made.kinds)
    assert 0 < made.growing(True) < made.growing(False) < made.seconds


def test_the_servers_seconds_do_not_keep_stand_ins_away(monkeypatch):
    """A whole leaf is timed although the server needs most of the time that there is."""
    method = Rounds()
    moved = method.server_update
    monkeypatch.setattr(method, "server_update", lambda *given: (time.sleep(0.01), moved(*given))[1])
    monkeypatch.setattr(calibration, "REPEATS", 0)
    trial = trial_rounds.of_stand_ins(method, facts_of("rows"), [], 20 * ["a"], 60)
    block = stand_ins.stand_ins(make_method("private_gmm", {"radius": 9.0}), facts_of("rows"), SHAPE, 512)
    found = calibration._measured(method, trial, [block], 0.5, time.perf_counter(), None)
    assert found.kinds[0].timed().clients == 512


# --- the command ------------------------------------------------------------------------------------------------------


def planned(population, runs, *more):
    """`fedcore plan federated_em` in this process."""
    asked = ("plan", "federated_em", population, "--local", "--runs", runs, "--calibration", "30", *more, *FEDEM)
    return works(*asked)


def everything_below(folder) -> dict:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_plan_leaves_nothing_and_is_kept_by_the_run(tmp_path, quick):
    write_rows(tmp_path / "p")
    works("train", "federated_em", tmp_path / "p", "--local", "--runs", tmp_path / "runs", "--run-id", "r", *FEDEM)
    before = everything_below(tmp_path)
    told = planned(tmp_path / "p", tmp_path / "runs", "--json").json
    assert everything_below(tmp_path) == before
    (tmp_path / "plan.json").write_text(json.dumps(told))
    held = works("report", tmp_path / "runs" / "r", "--plan", tmp_path / "plan.json", "--json").json["promise"]
    rows = {row["what"]: row for row in held}
    assert rows["passes"]["promised"] == rows["passes"]["measured"] == 11
    assert 0.7 < rows["disk_bytes"]["ratio"] < 1.3
    assert rows["seconds"]["measured"] > 0 and rows["bytes_of_flow"]["measured"] > 0
    assert "Planned and measured values" in (tmp_path / "runs" / "r" / "report.html").read_text()
    assert works("runs", "show", tmp_path / "runs" / "r", "--json").json["promise"] == held


@pytest.mark.slow
def test_a_private_plan_reserves_and_releases_nothing(tmp_path, quick):
    population, ledger = private_population(tmp_path / "p", small_counts(400), epsilon=50.0, nominal=400)
    before, chain = ledger.balance(population.id), ledger.head(population.id)
    sizes = ("--set", "clusters=2", "--set", "rounds=3", "--set", "overseed=2", "--workers", "2")
    asked = ("plan", "histograms", tmp_path / "p", "--runs", tmp_path / "runs", "--calibration", "30", "--json", *sizes)
    told = works(*asked).json
    assert ledger.balance(population.id) == before and ledger.head(population.id) == chain
    assert told["passes"] == 5 and told["seconds_of_releases"] > 0
    assert told["released_bytes"] == 8 * (2 * 7 + 3 * 2 * 7)  # two sums of the start, three rounds of two cells
    assert told["bytes_per_worker"] > 10**8 and told["bytes_of_flow"] > 2 * 10**8
    assert not (tmp_path / "runs").exists()
    refused = fedcore(*asked, "--memory", "50MiB")
    assert refused.code == 2 and refused.json["error"] == "ConfigError" and "may have 50 MiB" in refused.json["message"]


def numbers_in(value) -> set:
    """All numbers anywhere in a JSON value."""
    if isinstance(value, dict | list):
        return set().union(*map(numbers_in, value.values() if isinstance(value, dict) else value), set())
    return {value} if isinstance(value, int | float) and not isinstance(value, bool) else set()


@pytest.mark.slow
def test_what_is_kept_of_a_private_plan_tells_no_exact_count(tmp_path, quick):
    """Clients are the nominal ones, and what follows from them; a plan of a run that is not private is not taken."""
    matrix = small_counts(397)
    population, _ = private_population(tmp_path / "p", matrix, epsilon=50.0, nominal=1000)
    sizes = ("--set", "clusters=2", "--set", "rounds=3", "--set", "overseed=2")
    asked = ("histograms", tmp_path / "p", "--local", "--runs", tmp_path / "runs")
    works("plan", *asked, *sizes, "--calibration", "30", "--save", tmp_path / "plan.json")
    works("train", *asked, *sizes, "--run-id", "r")
    held = works("report", tmp_path / "runs" / "r", "--plan", tmp_path / "plan.json", "--json").json["promise"]
    assert {row["what"]: row for row in held}["passes"]["ratio"] == 1.0
    exact = {397, matrix.nnz, 8 * matrix.nnz, matrix.nnz / 397, int(matrix.sum()), len(population.blocks)}
    for path in (tmp_path / "plan.json", tmp_path / "runs" / "r" / "promise.json"):
        kept = json.loads(path.read_text())
        assert kept["clients"] == 1000 and not exact & numbers_in(kept)
    works("plan", "paper_histograms", *asked[1:], "--calibration", "30", "--save", tmp_path / "open.json")
    refused = fedcore("report", tmp_path / "runs" / "r", "--plan", tmp_path / "open.json", "--json")
    assert refused.code == 2 and "exact counts" in refused.json["message"]


def test_a_private_plan_without_a_nominal_number_asks_for_one(tmp_path):
    manifest = write_rows(tmp_path / "p")
    method = make_method("private_gmm", {"radius": 10.0})
    with pytest.raises(ConfigError, match="has no declared number of clients") as refused:
        run_plan.load_of(method, manifest, None)
    assert "--clients" in refused.value.remedy
    assert run_plan.load_of(method, manifest, 90).clients == 90


def test_a_private_plan_of_one_client_less_is_the_same(tmp_path):
    method = make_method("private_gmm", {"radius": 10.0, "nominal_clients": 60})
    loads = [run_plan.load_of(method, write_rows(tmp_path / str(n), clients=n), None) for n in (60, 59, 58)]
    assert loads[0] == loads[1] == loads[2] and loads[0].clients == 60 and loads[0].entries == 60


def test_a_private_plan_has_the_declared_number_of_rows(tmp_path):
    """That of the plan before that of the manifest; 1 where there is neither."""
    method = make_method("private_gmm", {"radius": 10.0, "nominal_clients": 60})
    population = write_rows(tmp_path / "p")
    shapes = [stand_ins.public_shape(method, population, None, rows) for rows in (None, 7)]
    with PopulationWriter.extending(population, nominal_rows=5) as writer:
        for block in population.blocks:
            writer.keep(block)
        declared = writer.commit(Provenance())
    shapes += [stand_ins.public_shape(method, declared, None, rows) for rows in (None, 7)]
    assert [shape.entries for shape in shapes] == [1, 7, 5, 7]
    assert run_plan.load_of(method, declared, None).entries == 60 * 5
    exact = make_method("gradient_em", {})
    usual, many = (run_plan.load_of(exact, declared, None, rows) for rows in (None, 50))
    assert many.entries == 50 * usual.clients and many.decoded == pytest.approx(
        usual.decoded * many.entries / usual.entries
    )
    assert Population.open(population.path).manifest.nominal_rows == 5
    assert "nominal_rows" not in (population.path / "versions" / "000001.json").read_text()


# --- stand-ins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [0.0, 0.3, 1.0, 5.0, 8.0, 300.0])
@pytest.mark.parametrize("kind", ["counts", "rows"])
def test_stand_ins_have_the_shape_that_is_asked_for(kind, entries):
    method = make_method(*{"counts": ("histograms", {}), "rows": ("private_gmm", {"radius": 9.0})}[kind])
    shape = stand_ins.Shape(60, entries, 8, 8, 8, "float32")
    block = stand_ins.stand_ins(method, facts_of(kind), shape, 400, leaf=1)
    again = stand_ins.stand_ins(method, facts_of(kind), shape, 400, leaf=1)
    held = entries_of(block)
    most = 8 / 1.5 if kind == "counts" else np.inf
    assert block.clients == 400 and block.features == 8 and (block.first, block.leaf) == (8, 1)
    assert held / 400 == pytest.approx(min(entries, most), rel=0.1, abs=0.1)
    if kind == "counts":
        np.testing.assert_array_equal(block.indices, again.indices)
        assert block.csr.has_canonical_format and held == 0 or block.indices.max() < 8 and block.data.min() >= 1
    else:
        np.testing.assert_array_equal(block.x, again.x)
        assert np.linalg.norm(block.x, axis=1).max(initial=0) < 9.0


@pytest.mark.parametrize("entries, clients", [(1.0, 8), (2.0**23, 1)])
def test_a_leaf_of_stand_ins_has_room_in_memory(entries, clients):
    assert stand_ins.most_clients(stand_ins.Shape(60, entries, 80, 8, 10, "float64")) == clients


@pytest.mark.parametrize("components, features, unit", [(2, 1, "client"), (3, 10, "record"), (12, 4, "client")])
def test_a_search_finds_what_stands_in(components, features, unit):
    """So that a plan times the rounds of a run that goes its whole way."""
    method = make_method("private_gmm", {"components": components, "radius": 50.0, "sigma_min": 0.05})
    public = facts_of("rows", features, 20_000, unit=unit)
    plan = method.plan(public)
    phases = trial_rounds.scheduled_phases(plan, method.total_rounds(method.init(public)))
    shape = stand_ins.Shape(20_000, 16.0, 4 * features, 1024, features, "float32")
    pieces = [stand_ins.stand_ins(method, public, shape, 64)]
    made = trial_rounds.of_stand_ins(method, public, plan, phases, 2**40).run(pieces, 60.0)
    assert made.ended and made.made == len(phases), made.state.reason


def test_phases_are_those_of_the_schedule_whatever_the_trial_meets(tmp_path, quick, monkeypatch):
    """A budget too small for anything to be found, and a trial that is cut off at once."""
    population, _ = rows_with_a_budget(tmp_path / "p", epsilon=0.01)
    request = sessions.request_for(population, tmp_path, "private_gmm", {"radius": 20.0})
    whole = plan_run(request, Resources(workers=0), limit=30.0)
    run = trial_rounds.Trial.run
    monkeypatch.setattr(trial_rounds.Trial, "run", lambda self, pieces, limit, least=3: run(self, pieces, 0.0, 1))
    cut = plan_run(request, Resources(workers=0), limit=30.0)
    phases = [[(row["phase"], row["passes"]) for row in told["phases"]] for told in (whole, cut)]
    assert phases[0] == phases[1] and sum(count for _, count in phases[0]) == whole["passes"]
    assert phases[0][-1] == ("leaf covariance", 1)
    assert all(row["seconds_per_pass"] > 0 for row in cut["phases"])


@pytest.mark.slow
def test_a_private_plan_asks_nobody(tmp_path, quick, monkeypatch):
    """No block is opened: none need be there. What is in them reaches no function of the method."""
    population, _ = private_population(tmp_path / "p", small_counts(400) * 1000, epsilon=50.0, nominal=400)
    method, largest = type(make_method("histograms", {})), []
    answer = method.client_update

    def seen(self, message, block, memory):
        largest.append(block.data.max(initial=0))
        return answer(self, message, block, memory)

    monkeypatch.setattr(method, "client_update", seen)
    request = TrainRequest(method="histograms", population=str(population.path), runs=str(tmp_path / "runs"))
    shutil.rmtree(population.path / "blocks")
    plan_run(request, Resources(workers=0), limit=1.0)
    assert largest and max(largest) < 1000


def test_a_private_plan_needs_a_budget_as_the_run_does(tmp_path, quick):
    private_population(tmp_path / "p", small_counts(400), epsilon=None)
    refused = fedcore("plan", "histograms", tmp_path / "p", "--json")
    assert refused.code == 2 and refused.json["error"] == "BudgetMissing"


@pytest.mark.slow
def test_more_clients_take_more_and_a_foreign_plan_is_refused(tmp_path, quick):
    write_rows(tmp_path / "p")
    asked = ("plan", "federated_em", tmp_path / "p", "--runs", tmp_path / "runs", "--calibration", "30", *FEDEM)
    works(*asked, "--save", tmp_path / "one.json")
    told = works(*asked, "--clients", "60000000", "--json").json
    one = json.loads((tmp_path / "one.json").read_text())
    assert told["clients"] == 60_000_000 and told["bytes_read_first_pass"] == 10**6 * one["bytes_read_first_pass"]
    assert told["disk_bytes"] > 10**5 * one["disk_bytes"] / 2 and told["seconds"] > 10**3 * one["seconds"]
    write_counts(tmp_path / "q", small_counts())
    sessions.train(
        tmp_path / "q", tmp_path, settings={"algorithm": "algorithm2", "clusters": 2, "rounds": 2}, run_id="h"
    )
    refused = fedcore("report", tmp_path / "runs" / "h", "--plan", tmp_path / "one.json", "--json")
    assert refused.code == 2 and "the plan is of method" in refused.json["message"]
    (tmp_path / "none.json").write_text("[]")
    assert fedcore("report", tmp_path / "runs" / "h", "--plan", tmp_path / "none.json").code == 2
    assert fedcore("report", tmp_path / "runs" / "h", "--plan", tmp_path / "missing.json").code == 2


def test_populations_and_runs_behind_urls(tmp_path, memory, quick):
    write_rows(tmp_path / "p")
    works("population", "copy", tmp_path / "p", f"{memory}/p")
    told = planned(f"{memory}/p", f"{memory}/runs", "--json").json
    here = planned(tmp_path / "p", tmp_path / "runs", "--json").json
    same = ("passes", "bytes_read", "disk_bytes", "clients", "released_bytes")
    assert [told[name] for name in same] == [here[name] for name in same]
    import fsspec

    assert not [name for name in fsspec.filesystem("memory").find("/") if "plan-" in name]


def test_a_fresh_process_says_how_long_its_imports_take(tmp_path):
    seconds, size, flow = calibration.started_process("histograms", False)
    assert 0 < seconds < 300 and 10 * 2**20 < size <= flow


def test_people_read_units(tmp_path, quick):
    write_rows(tmp_path / "p")
    shown = planned(tmp_path / "p", tmp_path / "runs", "--deadline", "1h").out
    assert "MiB" in shown and "workers for deadline       1" in shown and "1.00 h" in shown
    assert Population.open(tmp_path / "p").versions() == [1]
