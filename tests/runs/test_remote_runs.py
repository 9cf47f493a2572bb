"""Runs behind URLs: the bits of a folder, one holder at a time, and every fault has a name.

`memory://` needs no server; `s3://` is a server on the loopback interface. Another host is another process, or this
process under another host's name.
"""

import json
import os
import threading
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

import fedcore
from fedcore.errors import ConfigError, LeaseLost, RunBusy, RunError, RunNotFound, Unreachable
from fedcore.evaluation.evaluate import evaluate_run
from fedcore.operations import latest_runs, retention
from fedcore.operations.deployment import read_deployments
from fedcore.operations.latest_runs import all_latest, latest, pointer, promote
from fedcore.operations.population_page import population_page
from fedcore.operations.retention import prune
from fedcore.operations.series import conclude
from fedcore.rounds.clients import memory_file
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run, list_runs, load_run
from fedcore.storage import files, remote_lock
from fedcore.storage import objects as object_storage
from fedcore.storage.arrays import read_values, write_values
from fedcore.storage.files import place
from fedcore.training.personalise import personalise
from fedcore.training.request import Series, TrainRequest
from fedcore.training.session import abandon, concluding, resume, start_run
from tests.command import fedcore as command
from tests.command import private_population, works
from tests.conftest import small_counts, spec_of, write_counts
from tests.faults.driver import PATIENCE, PROCESSES, Kill, of_memory
from tests.faults.driver import train as in_a_process
from tests.faults.place import bits, same_result
from tests.federated_em.test_run import rows_population
from tests.population.remote_places import require_credentials
from tests.sessions import to_end

pytest.importorskip("upath", reason="universal-pathlib is not installed")
fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

OPEN = {"algorithm": "algorithm2", "clusters": 2, "rounds": 2}
PRIVATE = {"method": "histograms", "test_noise": "a key", "settings": {"clusters": 2, "rounds": 2, "epsilon": 2.0}}
REMEMBERING = {"components": 2, "covariance": "diag", "codec": 2, "participation": 0.75, "rounds": 2}
AWS = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
AWS += ("AWS_EC2_METADATA_DISABLED", "AWS_MAX_ATTEMPTS", "FEDCORE_LEDGER")


@pytest.fixture
def population(tmp_path):
    return write_counts(tmp_path / "p", small_counts(30))


def request_of(population, runs, run_id="r", **more) -> TrainRequest:
    return TrainRequest(
        **{"method": "toy", "population": population.location, "runs": str(runs), "run_id": run_id, **more}
    )


def begin(population, runs, run_id="r", stamp="then", **more):
    return start_run(request_of(population, runs, run_id, **more), InProcessBackend(), stamp=stamp)


def train(*arguments, **named) -> Run:
    return to_end(begin(*arguments, **named))


def memories(run: Run, population) -> dict:
    parts = [read_values(memory_file(run.memories(), index)) for index in range(len(population.blocks))]
    return bits({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def objects(folder) -> dict[str, int]:
    return object_storage.sizes(place(folder))


# --- the same as in a folder ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_behind_a_url_has_the_bits_of_a_folder(toy, population, base, tmp_path):
    near, far = train(population, tmp_path / "runs"), train(population, f"{base}/runs")
    assert far.status == "finished" and same_result(load_run(far.path), load_run(near.path))
    assert memories(far, population) == memories(near, population)
    assert fedcore.load_run(f"{base}/runs/r").info == far.info and str(far.path) == f"{base}/runs/r"
    assert [run.id for run in list_runs(f"{base}/runs")] == ["r"]
    there = objects(far.path)
    kept = {f"{kind}/{number:06d}" for number in (2, 3) for kind in ("state", "memory")}
    kept |= {f"memory/{number:06d}.json" for number in (2, 3)}
    assert {"/".join(name.split("/")[:2]).removesuffix(".zip") for name in there if "/" in name} == kept
    assert "holder.json" not in there, "nobody works on it any more"
    # What is downloaded is a run in a folder.
    for name, content in object_storage.contents(far.path):
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(content)
    assert same_result(load_run(tmp_path / "copy"), load_run(near.path))


def test_a_name_is_used_once_and_what_failed_leaves_nothing(toy, population, memory, tmp_path, monkeypatch):
    runs = f"{memory}/runs"
    train(population, runs)
    with pytest.raises(RunError, match="exists already"):
        begin(population, runs)
    object_storage.write_bytes(place(f"{runs}/other/state/000000.zip"), b"somebody's")
    with pytest.raises(RunError, match="exists already"):
        begin(population, runs, "other")
    monkeypatch.setattr("tests.toy.Toy.total_rounds", lambda *_: 1)
    monkeypatch.setattr(Run, "commit", lambda *_, **__: (_ for _ in ()).throw(RunError("no room")))
    with pytest.raises(RunError, match="no room"):
        begin(population, runs, "third")
    assert objects(f"{runs}/third") == {}
    with pytest.raises(RunNotFound):
        load_run(f"{runs}/third")


def test_a_run_in_pieces_has_the_bits_of_a_whole_one(toy, population, memory, tmp_path):
    whole, session = train(population, tmp_path / "runs"), begin(population, f"{memory}/runs")
    while session.training.step() is not None:
        session.close()
        session = resume(f"{memory}/runs/r", InProcessBackend())
    with concluding(session):
        pass
    assert same_result(load_run(session.run.path), load_run(whole.path))
    assert memories(session.run, population) == memories(whole, population)
    assert sum(name.startswith("metrics") for name in objects(session.run.path)) == 1, "one writer's is left"


@pytest.mark.slow
def test_scores_report_outputs_and_pages(population, memory, tmp_path):
    public = write_counts(
        tmp_path / "public", small_counts(40, seed=2), heldout=small_counts(40, seed=3), public_for_evaluation="made up"
    )
    near, run = (
        train(population, runs, method="paper_histograms", settings=OPEN)
        for runs in (tmp_path / "runs", f"{memory}/runs")
    )
    table = evaluate_run(run.path, public, keep=True)
    assert table == evaluate_run(near.path, public) == json.loads(files.read_bytes(run.path / "evaluation.json"))
    page = files.read_bytes(run.path / "report.html").decode()
    assert "head.json" in page and run.metrics_file.name in page and "state" in page
    assert personalise(f"{memory}/runs/r", population.path, tmp_path / "out")["outputs"]
    page = population_page(population.location, f"{memory}/runs")
    assert "| r | finished | not private |" in page and f"{memory}/runs/RUN/report.html".replace("_", "\\_") in page
    with pytest.raises(ConfigError, match="not written to"):
        personalise(f"{memory}/runs/r", population.path, f"{memory}/out")


def test_a_run_starts_from_a_run_behind_a_url(population, memory, tmp_path):
    for runs in (str(tmp_path / "runs"), f"{memory}/runs"):
        train(population, runs, "first", method="paper_histograms", settings=OPEN)
        train(
            population, runs, "second", stamp="x", method="paper_histograms", settings=OPEN, start_from=f"{runs}/first"
        )
        train(population, runs, "third", stamp="y", method="paper_histograms", settings=OPEN, start_from="previous")
    near, far = (load_run(f"{runs}/third") for runs in (tmp_path / "runs", f"{memory}/runs"))
    assert same_result(far, near)
    assert far.info["start"]["name"] == "second" and far.info["start"]["from"] == f"{memory}/runs/second"
    arrays = {"centres": np.full((2, 7), 1 / 7)}
    np.savez(tmp_path / "start.npz", **arrays)
    object_storage.write_bytes(place(f"{memory}/start.npz"), (tmp_path / "start.npz").read_bytes())
    run = begin(
        population,
        f"{memory}/runs",
        "fourth",
        method="paper_histograms",
        settings=OPEN,
        start_from=f"{memory}/start.npz",
    ).run
    np.testing.assert_allclose(read_values(run.path / "start.zip")["centres"], arrays["centres"])
    with pytest.raises(ConfigError, match="cannot read"):
        spec_of(
            request_of(
                population,
                f"{memory}/runs",
                method="paper_histograms",
                settings=OPEN,
                start_from=f"{memory}/missing.npz",
            )
        )


# --- what cannot be used ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "what"),
    [
        ("s3://key:hunter2@bucket/runs", "holds a password"),
        ("s3:/bucket/runs", "lost a slash"),
        ("nosuch://b/runs", "no storage"),
        ("simplecache::s3://bucket/runs", "chain"),
    ],
)
def test_urls_that_cannot_be_used(toy, population, runs, what):
    for refused in (
        lambda: spec_of(request_of(population, runs)),
        lambda: list_runs(runs),
        lambda: Run.open(runs),
        lambda: prune(runs, 1, "now"),
    ):
        with pytest.raises(ConfigError, match=what) as caught:
            refused()
        assert "hunter2" not in str(caught.value)


def test_a_deployment_may_keep_its_runs_behind_a_url(tmp_path):
    text = '[[deployment]]\nname = "a"\nmethod = "histograms"\npopulation = "p"\nruns = "s3://bucket/runs"\n'
    (tmp_path / "d.toml").write_text(text + 'start_from = "s3://bucket/runs/first"\n')
    (item,) = read_deployments(tmp_path / "d.toml")
    assert (item.runs, item.start_from) == ("s3://bucket/runs", "s3://bucket/runs/first")
    assert item.population == str(tmp_path / "p")


LOST = "changed|unreadable|missing|lost|shorter|no run at|not hold an object"
DAMAGES = {
    "deleted": lambda path, data: object_storage.remove(path),
    "emptied": lambda path, data: object_storage.write_bytes(path, b""),
    "cut": lambda path, data: object_storage.write_bytes(path, data[: len(data) // 2]),
    "garbled": lambda path, data: object_storage.write_bytes(path, b"[1, 2" * 100),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize(
    "name", ["run.json", "head.json", "state/000002.zip", "metrics", "memory/000002/000001.arrays"]
)
def test_lost_and_damaged_objects_are_named(toy, population, memory, name, kind):
    session = begin(population, f"{memory}/runs")
    session.training.step(), session.training.step()
    session.close()
    path = session.run.metrics_file if name == "metrics" else session.run.path / name
    DAMAGES[kind](path, object_storage.read_bytes(path))
    with pytest.raises(RunError, match=LOST) as told:
        to_end(resume(f"{memory}/runs/r", InProcessBackend()))
    if name.startswith("memory"):
        assert "block 1" in str(told.value)
    if name == "head.json":
        assert abandon(session.run.path).status == "abandoned"
    assert "holder.json" not in objects(session.run.path)


@pytest.mark.slow
def test_a_store_that_cannot_be_reached_is_no_damage(toy, population, s3, server):
    session = begin(population, f"{s3}/runs", cache_bytes=0)
    session.training.step()
    require_credentials(server, 0)
    try:
        with pytest.raises(RunError, match="cannot be reached.*AWS_ACCESS_KEY_ID"), concluding(session):
            session.training.step()
        for look in (
            lambda: list_runs(f"{s3}/runs"),
            lambda: load_run(f"{s3}/runs/r"),
            lambda: abandon(f"{s3}/runs/r"),
        ):
            with pytest.raises(object_storage.Unreachable):
                look()
    finally:
        require_credentials(server, float("inf"))
    assert Run.open(f"{s3}/runs/r").round == 1
    assert to_end(resume(f"{s3}/runs/r", InProcessBackend())).round == 3


# --- who holds a run --------------------------------------------------------------------------------------------------


@dataclass
class Hosts:
    """elsewhere(): from now on this process is another one, on another host."""

    monkeypatch: pytest.MonkeyPatch

    def elsewhere(self, name="elsewhere 1"):
        self.monkeypatch.setattr("fedcore.storage.process.this_host", lambda: name)


@pytest.fixture
def hosts(monkeypatch):
    monkeypatch.setattr(remote_lock, "SECONDS", 1.0)
    return Hosts(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("store", "way"), [("memory", "waited for"), ("s3", "taken over")])
def test_a_run_of_another_host(toy, population, request, hosts, tmp_path, store, way):
    """Refused while its holder may be alive; taken then; and the old holder stops at its next commit."""
    base = request.getfixturevalue(store)
    reference = train(population, tmp_path / "runs")
    old = begin(population, f"{base}/runs")
    old.training.step()
    with pytest.raises(RunBusy, match="is working on run 'r'"):  # this process lives
        resume(f"{base}/runs/r", InProcessBackend())
    hosts.elsewhere()
    with pytest.raises(RunBusy, match="--take-over"):
        resume(f"{base}/runs/r", InProcessBackend())
    if way == "waited for":
        old.run._lock._stop.set()  # as if its process had died
    new = resume(f"{base}/runs/r", InProcessBackend(), take_over=way == "taken over")
    new.training.step()
    with pytest.raises(LeaseLost, match="another process has continued"), concluding(old):
        old.training.step()
    old.close()
    assert "holder.json" in objects(new.run.path), "the old holder takes nothing away"
    to_end(new)
    assert same_result(load_run(new.run.path), load_run(reference.path))
    assert memories(new.run, population) == memories(reference, population)


def test_the_old_holder_stops_though_the_new_one_has_done_nothing_yet(toy, population, memory, hosts):
    old = begin(population, f"{memory}/runs")
    old.training.step()
    hosts.elsewhere()
    new = resume(f"{memory}/runs/r", InProcessBackend(), take_over=True)
    with pytest.raises(LeaseLost), concluding(old):
        old.training.step()
    assert to_end(new).round == 3


@pytest.mark.slow
def test_a_commit_that_was_checked_too_early_is_refused_by_the_store(toy, population, s3, hosts):
    """The old holder looks, is taken over, and puts its head: only the condition of the put can tell."""
    old = begin(population, f"{s3}/runs")
    old.training.step()
    old.training.answer()
    checked, looked = old.run._head_file.check, []

    def slow(lock, **more):
        checked(lock, **more)
        looked.append(True)
        if len(looked) == 1:  # at the beginning of the commit
            hosts.elsewhere()
            looked.append(resume(f"{s3}/runs/r", InProcessBackend(), take_over=True))

    old.run._head_file.check = slow
    with pytest.raises(LeaseLost):
        old.training.move()
    new = looked[1]
    assert Run.open(f"{s3}/runs/r").round == 1
    assert to_end(new).round == 3


@pytest.mark.parametrize("what", ["state/", "metrics", "releases/"])
def test_a_commit_that_cannot_write_one_of_its_objects_is_none(memory, tmp_path, monkeypatch, what):
    """They are put at the same time: the others stay behind, and the head does not name them."""
    population, _ = private_population(tmp_path / "p", small_counts(40), test=True)
    session, write = begin(population, f"{memory}/runs", **PRIVATE), object_storage.write_many
    session.training.step()

    def refusing(folder, contents):
        if any(what in str(folder / name).split("/runs/r/")[1] for name in contents):
            raise Unreachable("the store refuses this object")
        write(folder, contents)

    session.training.answer()
    before, threads = load_run(f"{memory}/runs/r").head, threading.active_count()
    with monkeypatch.context() as broken:
        broken.setattr(object_storage, "write_many", refusing)
        with pytest.raises(Unreachable, match="refuses"):
            session.training.move()
    assert (load_run(f"{memory}/runs/r").head, threading.active_count()) == (before, threads)
    session.close()
    ledger = session.account.ledger
    published = {name: ledger.published("r", name) for name in ledger.published_names("r")}
    run = to_end(resume(f"{memory}/runs/r", InProcessBackend()))
    assert run.status == "finished" and published.keys() < run.releases().keys() == ledger.published_names("r")
    assert published and all(np.array_equal(value, run.releases()[name]) for name, value in published.items())
    assert "forfeit" not in {record["kind"] for record in ledger.history(population.id)}, "nothing is drawn again"


@pytest.mark.parametrize("status", ["trained", "finished"])
def test_what_died_at_a_commit_goes_once_the_rounds_are_done(toy, population, memory, status):
    """With either status: a process may die before the second one, and then no other looks for leftovers."""
    session = begin(population, f"{memory}/runs")
    while session.training.step() is not None:
        pass
    run = session.run
    before = objects(run.path)
    state, metrics = run.state_file(0), run.path / "metrics-0a1b.jsonl"
    for stray in (state, metrics):
        object_storage.write_bytes(stray, b"of a process that died")
    run.finish(status)
    session.close()
    assert objects(run.path).keys() <= before.keys()


def test_what_threads_change_is_read_again(memory):
    path = place(f"{memory}/folder/a")
    object_storage.write_bytes(path, b"old")
    with object_storage.reading_once():
        assert (object_storage.read_bytes(path), [*object_storage.listing(path.parent)]) == (b"old", ["a"])
        files.at_once(path, *(partial(object_storage.write_bytes, path.parent / name, b"new") for name in "ab"))
        assert (object_storage.read_bytes(path), [*object_storage.listing(path.parent)]) == (b"new", ["a", "b"])


def test_a_first_state_is_committed_once(toy, population, base, hosts):
    """A start that was taken over before its first commit does not go on."""
    old = Run.create(f"{base}/runs", {"run_id": "r", "method": "toy"})
    hosts.elsewhere()
    new = Run.open_locked(f"{base}/runs/r", take_over=True)
    new._write_head({**new.head, "round": 0})
    with pytest.raises(LeaseLost):
        old._write_head({**old.head, "round": 0})
    old._head_file.check = lambda _, **more: None  # it looked before
    with pytest.raises(LeaseLost):
        old._write_head({**old.head, "round": 0, "mine": True})
    assert "mine" not in Run.open(f"{base}/runs/r").head


def test_a_put_whose_answer_was_lost_counts(s3):
    path = place(f"{s3}/a.json")
    object_storage.create(path, b"first")
    version = object_storage.version(path)
    object_storage.replace(path, b"second", version)
    object_storage.replace(path, b"second", version)  # the same request again
    with pytest.raises(FileExistsError):
        object_storage.replace(path, b"third", version)
    assert object_storage.read_bytes(path) == b"second"
    with pytest.raises(FileNotFoundError):
        object_storage.replace(place(f"{s3}/b.json"), b"", version)


def test_a_first_put_whose_answer_was_lost_counts(s3, toy, population, monkeypatch):
    """The store's client puts again by itself, and then hears that there is an object."""
    storage = place(s3).fs
    put = storage.pipe_file

    def repeated(*arguments, **options):
        put(*arguments, **options)
        return put(*arguments, **options) if options.get("mode") == "create" else None

    with monkeypatch.context() as patched:
        patched.setattr(storage, "pipe_file", repeated)
        object_storage.create(place(f"{s3}/a.json"), b"mine")
        assert train(population, f"{s3}/runs").status == "finished"
    monkeypatch.setattr(object_storage, "exists", lambda path: False)  # as another process is quicker
    with pytest.raises(FileExistsError):
        object_storage.create(place(f"{s3}/a.json"), b"other")
    assert object_storage.read_bytes(place(f"{s3}/a.json")) == b"mine"


# --- processes that die -----------------------------------------------------------------------------------------------


def on_another_host(home, environment, *arguments, **options):
    """In a process of its own, with another home and nothing of this one but the environment that it is given."""
    os.environ.update(environment, HOME=str(home), TMPDIR=str(home))
    in_a_process(*arguments, **options)


@pytest.fixture
def elsewhere(tmp_path):
    """elsewhere(request or URL, kill=None): what became of it; None: killed."""
    count = []

    def launch(request, kill=None, **options):
        count.append(None)
        home = tmp_path / f"host{len(count)}"
        home.mkdir()
        environment = {name: os.environ[name] for name in AWS}
        outcome = home / "outcome.json"
        child = PROCESSES.Process(
            target=on_another_host,
            args=(home, environment, request, environment["FEDCORE_LEDGER"], tmp_path / "tally", outcome, kill),
            kwargs=options,
        )
        child.start()
        child.join(PATIENCE)
        assert child.exitcode in (0, -9)
        assert {path.name for path in home.iterdir()} <= {"outcome.json"}, "nothing stays on the disk of a host"
        return json.loads(outcome.read_text()) if child.exitcode == 0 else None

    return launch


@pytest.mark.slow
def test_a_run_with_memories_that_is_killed_goes_on_elsewhere(s3, tmp_path, elsewhere):
    """Again and again, at another step each time."""
    population = rows_population(tmp_path / "p", block=24)
    settings = {"method": "federated_em", "settings": REMEMBERING, "seed": 5}
    reference = train(population, tmp_path / "runs", **settings)
    request, last = request_of(population, f"{s3}/runs", **settings), reference.round
    assert elsewhere(request.model_dump(), Kill("memory", "after", of_memory(last - 1, 1))) is None
    assert "holder.json" in objects(f"{s3}/runs/r") and Run.open(f"{s3}/runs/r").round == last - 2
    assert len(objects(f"{s3}/runs/r/memory/{last - 1:06d}")) == 2, "of three blocks"
    for kill, committed in ((Kill("head", "after", last - 1), last - 1), (Kill("head", "before", last), last - 1)):
        assert elsewhere(f"{s3}/runs/r", kill) is None
        assert Run.open(f"{s3}/runs/r").round == committed
    assert elsewhere(f"{s3}/runs/r") == {"error": None}
    run = Run.open(f"{s3}/runs/r")
    assert same_result(load_run(run.path), load_run(reference.path))
    assert memories(run, population) == memories(reference, population)


@pytest.mark.slow
def test_a_private_run_that_is_killed_goes_on_elsewhere(s3, tmp_path, elsewhere):
    population, ledger = private_population(tmp_path / "p", small_counts(40), test=True)
    request = request_of(population, f"{s3}/runs", **PRIVATE)
    assert elsewhere(request.model_dump(), Kill("charge", "after", 2)) is None
    assert Run.open(f"{s3}/runs/r").round == 1 and len(Run.open(f"{s3}/runs/r").releases()) == 1
    assert elsewhere(f"{s3}/runs/r", Kill("publish", "after", 2)) is None
    assert elsewhere(f"{s3}/runs/r") == {"error": None}
    run = Run.open(f"{s3}/runs/r")
    assert run.status == "finished" and ledger.run_status("r") == "finished"
    assert run.releases().keys() == {item["name"] for item in run.info["plan"]}
    assert all((ledger.published("r", name) == value).all() for name, value in run.releases().items())
    assert ledger.verify(population.id).releases.get("forfeited", 0) == 1


@pytest.mark.slow
def test_a_killed_start_leaves_a_name_that_can_be_given_up(s3, tmp_path, elsewhere):
    population, ledger = private_population(tmp_path / "p", small_counts(40), test=True)
    request = request_of(population, f"{s3}/runs", **PRIVATE)
    assert elsewhere(request.model_dump(), Kill("reserve", "after")) is None
    assert ledger.balance(population.id).rho_reserved > 0
    assert abandon(f"{s3}/runs/r").status == "abandoned"
    assert ledger.balance(population.id).rho_reserved == 0


@pytest.mark.slow
def test_workers_write_memories_straight_to_the_url(s3, tmp_path):
    from fedcore.tasks.dask_backend import DaskBackend, dask_client

    population = rows_population(tmp_path / "p")
    settings = {"method": "federated_em", "settings": REMEMBERING, "seed": 5}
    reference = train(population, tmp_path / "runs", **settings)
    with dask_client(1) as client:
        session = start_run(request_of(population, f"{s3}/runs", **settings), DaskBackend(client), stamp="then")
        to_end(session)
    assert same_result(load_run(session.run.path), load_run(reference.path))
    assert memories(session.run, population) == memories(reference, population)


# --- a series of runs -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_runs_of_a_deployment(population, s3, tmp_path):
    public = write_counts(
        tmp_path / "public", small_counts(40, seed=2), heldout=small_counts(40, seed=3), public_for_evaluation="made up"
    )
    series = Series(promote="if_better", evaluate_on=str(public.path), tolerance=10.0, retention=1)
    runs = f"{s3}/runs"
    for name in "ab":
        named = {"stamp": name, "deployment": "nightly", "series": series}
        run = train(population, runs, name, method="paper_histograms", settings=OPEN, **named)
        outcome = conclude(run, "nightly", series, public, name)
        assert latest(runs, "nightly").run == name and load_run(pointer(runs, "nightly")).info["run_id"] == name
    assert outcome["latest_before"] == "a" and len(outcome["rows"]) == 2 and outcome["pruned"] == ["a"]
    assert outcome["rows"][0]["kl"] == outcome["rows"][1]["kl"], "the same settings"
    assert [item.deployment for item in all_latest(runs)] == ["nightly"]
    assert {run.id: run.pruned for run in list_runs(runs)} == {"a": True, "b": False}
    assert {name.split("/")[0] for name in objects(f"{runs}/a")}.isdisjoint(retention.MODEL)
    assert "head.json" in objects(f"{runs}/a") and ".operations.json" not in objects(runs)
    with pytest.raises(RunError, match="was removed"):
        load_run(f"{runs}/a")
    with pytest.raises(RunError, match="its model was removed"):
        promote(Run.open(f"{runs}/a"), "nightly", "", "then")


def test_one_process_at_a_time_moves_pointers_and_prunes(population, memory, monkeypatch, hosts):
    run = train(population, f"{memory}/runs", method="paper_histograms", settings=OPEN)
    monkeypatch.setattr(latest_runs, "PATIENCE", 0.0)
    with latest_runs.alone(place(f"{memory}/runs")):
        for refused in (lambda: promote(run, "nightly", "", "then"), lambda: prune(f"{memory}/runs", 1, "now")):
            with pytest.raises(RunBusy, match="which runs of"):
                refused()
    promote(run, "nightly", "", "then")
    for name in ("x", "y"):
        last = train(population, f"{memory}/runs", name, stamp=name, method="paper_histograms", settings=OPEN)
    assert last.id == "y" and latest(f"{memory}/runs", "nightly").run == "r"
    last = Run.open_locked(f"{memory}/runs/x")
    assert [item["removed"] for item in prune(f"{memory}/runs", 1, "now")] == [False], "somebody holds it"
    last.unlock()
    assert [item["removed"] for item in prune(f"{memory}/runs", 1, "now")] == [True]


@pytest.mark.slow
def test_the_command_line(population, memory, tmp_path):
    runs = f"{memory}/runs"
    settings = [word for name, value in OPEN.items() for word in ("--set", f"{name}={value}")]
    for name in "ab":
        asked = ("train", "paper_histograms", population.path, "--runs", runs, "--run-id", name, "--local", "--json")
        told = works(*asked, *settings).json
        assert told["run"] == f"{runs}/{name}" and told["status"] == "finished"
    assert works("runs", "promote", f"{runs}/a", "--deployment", "nightly", "--json").json["file"] == (
        f"{runs}/latest-nightly.json"
    )
    (row,) = works("runs", "latest", "--runs", runs, "--json").json["latest"]
    assert (row["run"], row["file"]) == (f"{runs}/a", f"{runs}/latest-nightly.json")
    assert works("runs", "show", row["file"], "--json").json["run_id"] == "a"
    assert {row["run"] for row in works("runs", "list", "--runs", runs, "--json").json["runs"]} == {
        f"{runs}/a",
        f"{runs}/b",
    }
    assert works("report", f"{runs}/b", "--json").json["report"] == f"{runs}/b/report.html"
    assert works("predict", row["file"], population.path, tmp_path / "out", "--json").json["clients"] == 30
    assert works("runs", "prune", "--keep", "1", "--runs", runs, "--json").json["pruned"] == []
    assert command("resume", f"{runs}/a", "--local").code == 2
    refused = command("predict", f"{runs}/a", population.path, f"{memory}/out", "--json")
    assert refused.code == 2 and refused.json["error"] == "ConfigError"
    assert "no runs in" in works("runs", "list", "--runs", f"{memory}/nothing").out


def test_values_in_memory_are_those_of_a_file(memory, tmp_path):
    values = {"s": np.arange(3.0), "scale": np.ones((2, 2)), "none": np.zeros((0, 3)), "one": np.array(3.5)}
    values |= {"flags": np.array([True, False]), "phase": "rounds", "step": 3, "nothing": None}
    write_values(tmp_path / "v.zip", values)
    write_values(place(f"{memory}/v.zip"), values)
    near, far = read_values(tmp_path / "v.zip"), read_values(place(f"{memory}/v.zip"))
    assert bits(near) == bits(far) and far.keys() == values.keys()
    (tmp_path / "w.zip").write_bytes(object_storage.read_bytes(place(f"{memory}/v.zip")))
    assert bits(read_values(tmp_path / "w.zip")) == bits(near)
