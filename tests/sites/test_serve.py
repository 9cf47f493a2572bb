"""A site serves its studies: runs start when they are due, go on after kills and absences, and follow each other."""

import json
import os
import shutil
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedcore.errors import FileRefused, StudyError
from fedcore.operations.in_process import to_the_end
from fedcore.privacy.ledger.ledger import Ledger
from fedcore.privacy.noise_shares import charged_plan
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run
from fedcore.sites import progress, run_key, serve
from fedcore.sites.joining import Joined, join, joined_studies
from fedcore.sites.mailbox import Header, Mailbox
from fedcore.sites.run_key import RunKey
from fedcore.sites.serve import Turn, take_turn
from fedcore.storage.digests import canonical
from fedcore.training.session import resume, start_run
from tests.command import fedcore, works
from tests.sites import world
from tests.sites.world import NAMES, World, to_end, totals

A, B, C = NAMES
SAME = {"same_totals": True, "same_bits": True}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test touches the user's run keys; and rounds of the toy data are made with noise that protects people."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Making:
    """Runs in this process, started at `now`."""

    def __init__(self, now: datetime):
        self.now = now

    def begin(self, request, spec, publisher):
        backend = InProcessBackend()
        stamp = self.now.strftime(serve.STAMP)
        self.make(start_run(request, backend, stamp=stamp, spec=spec, publisher=publisher), backend)

    def resume(self, path, publisher):
        backend = InProcessBackend()
        self.make(resume(path, backend, publisher=publisher), backend)

    def make(self, session, backend):
        to_the_end(session, backend, report=False)


class Sites:
    """Three sites that have joined a study, each with its clock at `now`."""

    def __init__(self, folder: Path, **terms):
        self.world = World.make(folder, test=False, **terms)
        self.now = datetime(2026, 1, 5, tzinfo=UTC)
        for name in NAMES:
            place = folder / name
            mailbox = str(self.world.mailbox_place)
            join(Joined(self.world.study, mailbox, str(place / "people"), str(place / "runs")), self.site(name))

    def site(self, name) -> Path:
        return self.world.folder / "identities" / name

    def turn(self, name, once=True) -> Turn:
        (joined,) = joined_studies(self.site(name))
        now = lambda: self.now  # noqa: E731
        return take_turn(joined, self.world.identities[name], Making(self.now), waits=0.0, once=once, now=now)

    def until_finished(self, names=NAMES, once=True) -> dict[str, Turn]:
        """Turns one after another, until the newest run is finished at all of these sites."""
        found: dict[str, Turn] = {}
        for _ in range(60):
            for name in names:
                if name not in found and (turn := self.turn(name, once)).state == "finished":
                    found[name] = turn
            if len(found) == len(names):
                return found
        raise AssertionError(f"{found}")

    def run(self, name, number) -> Run:
        return Run.open(self.path(name, number))

    def path(self, name, number) -> Path:
        study = self.world.study.digest.hex()[:16]
        return self.world.folder / name / "runs" / f"study-{study}-{name}-{number}"

    def balance(self, name):
        return self.world.ledger(name).balance(self.world.population(name).id)

    def price(self, number) -> Fraction:
        study = self.world.study
        return sum(Fraction(one.rho) for one in charged_plan(study.plan(number)[0], study.terms, study.nominal_clients))


@pytest.mark.slow
def test_runs_follow_each_other_and_start_from_the_last_one(tmp_path):
    sites = Sites(tmp_path)
    turns = [sites.turn(name) for name in NAMES]
    assert [turn.state for turn in turns] == ["waits"] * 3 and turns[0].words == "for b, c"
    assert {turn.run for turn in sites.until_finished().values()} == {1}
    one, two, three = (totals(sites.run(name, 1)) for name in NAMES)
    assert all((one[name] == two[name]).all() and (one[name] == three[name]).all() for name in one)
    assert {turn.run for turn in sites.until_finished().values()} == {2}
    for name in NAMES:
        assert sites.run(name, 1).info["start"] is None
        assert sites.run(name, 2).info["start"]["name"] == sites.path(name, 1).name
        assert sites.run(name, 2).status == "finished" and sites.balance(name).rho_reserved == 0
        assert Fraction(sites.balance(name).rho_spent) >= sites.price(1) + sites.price(2)
        assert sites.balance(name).rho_spent <= 2 * sites.world.study.rho


@pytest.mark.slow
def test_a_loop_opens_a_run_again_when_the_others_have_answered(tmp_path, monkeypatch):
    sites = Sites(tmp_path)
    assert [sites.turn(name).state for name in (A, B)] == ["waits", "waits"]
    with monkeypatch.context() as patch:
        patch.setattr(Making, "resume", None)
        assert sites.turn(A, once=False) == sites.turn(A, once=False)
        assert sites.turn(A, once=False).words == f"for {C}" and sites.turn(B, once=False).words == f"for {C}"
        with pytest.raises(TypeError):
            sites.turn(A)  # a call for one run waits for the others itself
    sites.turn(C)
    assert sites.turn(A, once=False).words == f"for {B}"  # it has answered round 1, like C, and waits again
    sites.world.file("answer", A, 1, 1).unlink()  # as if it had died before: nothing is awaited until it has posted it
    assert sites.turn(A, once=False).words == f"for {B}" and sites.world.file("answer", A, 1, 1).exists()
    assert {turn.run for turn in sites.until_finished(once=False).values()} == {1}


@pytest.mark.parametrize("joined", [NAMES, (A, B)])
def test_a_loop_ends_a_run_whose_key_was_lost(tmp_path, joined):
    sites = Sites(tmp_path)
    for name in joined:
        sites.turn(name)
    shutil.rmtree(tmp_path / "cache")
    ended = sites.turn(A, once=False)
    assert ended.state == "ended" and "has lost its key of run 1" in ended.words
    assert sites.run(A, 1).status == "abandoned" and sites.balance(A).rho_reserved == 0
    assert sites.world.file("end", A).exists() and sites.turn(A, once=False).state == "not due"


def test_a_loop_notes_its_answer_again(tmp_path):
    sites = Sites(tmp_path)
    for name in (A, B, C, A):
        sites.turn(name)
    note = RunKey(sites.world.study.digest, 1, A).folder / "answer.1"
    note.unlink()
    assert sites.turn(A, once=False).words == f"for {B}" and note.exists()


def test_a_loop_names_a_damaged_key_and_ends_the_run_without_it(tmp_path):
    sites = Sites(tmp_path)
    for name in NAMES:
        sites.turn(name)
    key = RunKey(sites.world.study.digest, 1, A).folder / "key"
    key.write_bytes(b"short")
    with pytest.raises(StudyError, match="is damaged.*delete the file"):
        sites.turn(A, once=False)
    key.unlink()
    assert sites.turn(A, once=False).state == "ended"


def test_a_loop_posts_the_end_of_a_run_that_has_ended_here(tmp_path):
    sites = Sites(tmp_path)
    for name in (A, B):
        sites.turn(name)
    key = RunKey(sites.world.study.digest, 1, A)
    body = {"reason": "operator", "rounds": 0, "totals": "00", "state": None}
    key.end(canonical(body))  # and then the process was killed
    ended = sites.turn(A, once=False)
    assert ended.state == "ended" and "it has ended at this site" in ended.words
    assert progress.end_of(sites.world.mailbox, 1, A) == body


@pytest.mark.slow
def test_the_next_run_waits_until_all_have_ended_the_last_one(tmp_path):
    sites = Sites(tmp_path)
    first = next(name for _ in range(40) for name in NAMES if sites.turn(name).state == "finished")
    others = [name for name in NAMES if name != first]
    assert sites.turn(first).words == f"for the end of this run at {', '.join(others)}"
    assert not sites.path(first, 2).exists()
    sites.until_finished(others)
    assert sites.turn(first).run == 2


@pytest.mark.slow
def test_a_run_starts_when_it_is_due(tmp_path):
    sites = Sites(tmp_path, every=3600.0)
    sites.until_finished(once=False)
    assert {sites.turn(name, once).state for name in NAMES for once in (True, False)} == {"not due"}
    sites.now += timedelta(seconds=3599)
    assert sites.turn(A).state == "not due"
    sites.now += timedelta(seconds=1)
    assert {turn.run for turn in sites.until_finished(once=False).values()} == {2}


@pytest.mark.slow
def test_without_an_interval_a_loop_starts_nothing_and_continues_what_was_begun(tmp_path):
    sites = Sites(tmp_path)
    assert sites.turn(A, once=False).state == "not due" and not sites.path(A, 1).exists()
    for name in NAMES:
        sites.turn(name)
    sites.until_finished(once=False)
    assert {sites.turn(name, once=False).state for name in NAMES} == {"not due"}


@pytest.mark.slow
def test_a_site_that_is_away_ends_the_run_for_all_and_joins_the_next_one(tmp_path, monkeypatch):
    sites = Sites(tmp_path, patience=100.0)
    assert [sites.turn(name).state for name in (A, B)] == ["waits", "waits"]
    assert sites.balance(A).rho_reserved > 0
    monkeypatch.setattr("time.time", lambda real=__import__("time").time: real() + 101)
    first, second = sites.turn(A), sites.turn(B)
    assert first.state == "ended" and "c did not answer in time" in first.words and second.state == "ended"
    for name in (A, B):
        assert sites.run(name, 1).status == "abandoned"
        assert (sites.balance(name).rho_spent, sites.balance(name).rho_reserved) == (0, 0)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert {turn.run for turn in sites.until_finished((C, A, B)).values()} == {2}
    assert not sites.path(C, 1).exists() and sites.run(A, 2).info["start"] is None


def test_a_hostile_end_is_refused(tmp_path):
    sites = Sites(tmp_path)
    end = Header(sites.world.study.digest, 1, 0, B, "end")
    sites.world.mailbox.post(sites.world.identities[B], end, b"\x1b[2J")
    with pytest.raises(FileRefused, match="does not state how the run ended") as caught:
        sites.turn(A)
    assert str(caught.value).isprintable() and not sites.path(A, 1).exists()


def posted_by(folder, monkeypatch, people) -> dict[str, bytes]:
    """What sites with these people post in a run, by name: bodies of answers only by their lengths."""
    keys = iter(range(1, 100))
    monkeypatch.setattr(run_key, "new_run_key", lambda: X25519PrivateKey.from_private_bytes(next(keys).to_bytes(32)))
    monkeypatch.setattr(run_key.secrets, "token_bytes", lambda size: b"\x07" * size)
    monkeypatch.setattr(world, "people", lambda sites: people)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    made = World.make(folder)
    to_end(made.start_all().values())
    found = {}
    for file in sorted((folder / "mailbox" / "runs").rglob("*.*")):
        body = file.read_bytes().split(b"\n", 2)[2]
        if file.name.startswith("end"):
            body = canonical({**json.loads(body), "totals": 64, "state": 64})
        found[file.relative_to(folder).as_posix()] = body if ".answer." not in file.name else b"%d" % len(body)
    return found


@pytest.mark.slow
def test_files_of_neighbours_differ_in_nothing_but_masked_vectors(tmp_path, monkeypatch):
    """One client has other counts: names, lengths and the contents of all other files are the same."""
    one = world.people(3)
    other = one.tolil()
    other[5] = 40
    found = posted_by(tmp_path / "one", monkeypatch, one)
    assert found == posted_by(tmp_path / "other", monkeypatch, other.tocsr()) and len(found) == 3 * (4 + 2)


# --- kills ------------------------------------------------------------------------------------------------------------

STEPS = (
    (Run, "create"),
    (Run, "commit"),
    (Run, "finish"),
    (RunKey, "create"),
    (RunKey, "note"),
    (RunKey, "end"),
    (Ledger, "reserve"),
    (Ledger, "charge_round"),
    (Ledger, "publish_round"),
    (Ledger, "finish"),
    (Mailbox, "post"),
)


def killed_at(step: int, act) -> bool:
    """Whether a process that does this was killed before it ended: at this point, counted from 1. Each of STEPS has one
    before and one after it.
    """
    child = os.fork()
    if child == 0:
        left = [step]

        def point():
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def around(real):
            def walked(*arguments, **options):
                point()
                result = real(*arguments, **options)
                point()
                return result

            return walked

        for owner, name in STEPS:
            setattr(owner, name, around(getattr(owner, name)))
        try:
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.slow
def test_a_site_that_is_killed_anywhere_goes_on(tmp_path):
    """Site B is killed at its first step, then at the second one after that, and so on, while the others take turns."""
    sites, step, kills = Sites(tmp_path), 1, 0
    for _ in range(200):
        for name in (A, C):
            if not sites.path(name, 1).exists() or sites.run(name, 1).status != "finished":
                sites.turn(name)
        if sites.path(B, 1).exists() and (sites.path(B, 1) / "head.json").exists():
            if sites.run(B, 1).status == "finished":
                break
        killed = killed_at(step, lambda: sites.turn(B))
        kills += killed
        step = step + 1 if killed else 1
    assert sites.run(B, 1).status == "finished" and kills >= 10
    one, two = totals(sites.run(A, 1)), totals(sites.run(B, 1))
    assert all((one[name] == two[name]).all() for name in one)
    for name in (A, C):
        assert sites.world.replayed(name).runs[sites.path(name, 1).name]
        assert Fraction(sites.balance(name).rho_spent) <= Fraction(sites.world.study.rho)
    assert sites.balance(B).rho_reserved == 0
    assert sites.balance(B).rho_spent >= sites.balance(A).rho_spent  # draws that were lost cost this site alone


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_serves_what_was_joined(tmp_path, monkeypatch):
    sites = Sites(tmp_path)
    monkeypatch.setattr("fedcore.cli.sites.LONG", 0.0)
    monkeypatch.delenv("FEDCORE_LEDGER")
    done = set()
    for _ in range(30):
        for name in NAMES:
            if name in done:
                continue
            found = works("site", "serve", "--once", "--local", "--identity", sites.site(name), "--json").json["turns"]
            done |= {name} if found[0]["state"] == "finished" else set()
        if len(done) == 3:
            break
    assert done == {*NAMES}
    mailbox = sites.world.mailbox_place
    shown = works("study", "show", mailbox, "--json").json
    assert shown["newest_run"]["run"] == 1 and sorted(shown["newest_run"]["ended"]) == [*NAMES]
    assert shown["final_states"] == {"run": 1, "sites": [*NAMES], **SAME, "unreadable": []}
    for site in shown["sites"]:
        posted = [file.stat().st_size for file in (mailbox / "runs" / "1").glob(f"*.{site['name']}")]
        assert (site["files"], site["bytes"]) == (len(posted), sum(posted))
    assert "States after run 1 at a, b, c: the same bits" in works("study", "show", mailbox).out
    statement = (sites.path(A, 1) / "statement.json").read_text()
    assert "collu" in statement or "work together" in statement


def test_a_site_that_has_joined_nothing_is_told_how(tmp_path):
    sites = World.make(tmp_path)
    refused = fedcore("site", "serve", "--once", "--local", "--identity", tmp_path / "identities" / A)
    assert refused.code == 2 and "has joined no study" in refused.err and sites.names == [*NAMES]


class Stopped(Exception):
    """The loop of a command would go on."""


@pytest.mark.parametrize(("studies", "once", "waits"), [(1, False, 600.0), (2, False, 30.0), (2, True, 600.0)])
def test_a_site_waits_long_where_it_has_nothing_else_to_do(tmp_path, monkeypatch, studies, once, waits):
    sites, found = Sites(tmp_path), []
    (one,) = joined_studies(sites.site(A))
    for seed in range(1, studies):
        join(replace(one, study=one.study.model_copy(update={"seed": seed})), sites.site(A))

    def noted(joined, *_, waits, **__):
        found.append(waits)
        return Turn(joined.name, 1, "not due")

    def stop(_):
        raise Stopped

    monkeypatch.setattr(serve, "take_turn", noted)
    monkeypatch.setattr("fedcore.cli.sites.time.sleep", stop)
    asked = ("site", "serve", "--local", "--identity", sites.site(A))
    if once:
        works(*asked, "--once")
    else:
        with pytest.raises(Stopped):
            fedcore(*asked)
    assert found == [waits] * studies


def test_a_missing_extra_ends_the_command(tmp_path, monkeypatch):
    sites = Sites(tmp_path)

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="prefect")

    monkeypatch.setattr("fedcore.cli.sites.import_module", missing)
    monkeypatch.setattr("fedcore.cli.sites.time.sleep", lambda _: pytest.fail("it goes on"))
    sites.turn(A)
    sites.turn(B)
    sites.turn(C)
    refused = fedcore("site", "serve", "--identity", sites.site(A))
    assert refused.code == 2 and refused.err.count("Without --local this command needs Prefect") == 1
