"""Runs that several sites make together: same bits as one place, what is refused by name, and how runs end."""

import json
import time
from fractions import Fraction

import numpy as np
import pytest

from fedcore.errors import RunError, RunLeft, StudyError
from fedcore.operations.verify import verify_run
from fedcore.privacy.ledger.ledger import Ledger
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run
from fedcore.sites import publisher as publishers
from fedcore.sites.mailbox import Mailbox
from fedcore.training.session import abandon, concluding, resume
from tests.sites.world import RHO, World, one_place, rounds_of, same_bits, to_end, totals, turn


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return World.make(tmp_path)


def key_of(world: World, name: str, number: int = 1):
    return publishers.RunKey(world.study.digest, number, name)


@pytest.mark.parametrize("turns", ["cab", pytest.param("abc", marks=pytest.mark.slow)])
def test_all_sites_end_in_the_bits_of_one_place(world, turns):
    runs = to_end([world.start(name) for name in turns])
    assert [run.status for run in runs] == ["finished"] * 3
    alone = one_place(world)
    assert len(totals(alone)) > 3
    assert all(same_bits(run, alone) for run in runs)
    for name in world.names:
        assert Fraction(RHO) * (1 - Fraction(1, 10**6)) < world.spent(name) <= Fraction(RHO)
        assert not (key_of(world, name).folder / "key").exists()  # it opens nothing any more
        assert world.file("end", name).exists()


@pytest.mark.slow
def test_a_second_run_starts_from_the_first(world):
    first = {run.path.parent.parent.name: run for run in to_end(world.start_all().values())}
    starts = {name: {"start_from": str(run.path), "public_start_because": "released"} for name, run in first.items()}
    runs = to_end([world.start(name, 2, **starts[name]) for name in world.names])
    alone = one_place(world, 2, **starts["a"])
    assert all(same_bits(run, alone) for run in runs)
    assert not same_bits(runs[0], first["a"])


@pytest.mark.slow
def test_two_and_seven_sites(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for names, collusion in (("ab", 1), ("abcdefg", 6)):
        world = World.make(tmp_path / names, list(names), collusion=collusion)
        runs = to_end(world.start_all().values())
        alone = one_place(world)
        assert all(same_bits(run, alone) for run in runs)
        assert all(world.spent(name) <= Fraction(RHO) for name in world.names)


@pytest.mark.slow
def test_with_noise_that_protects_all_sites_see_the_same_and_claim_privacy(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    world = World.make(tmp_path, test=False)
    first, *others = to_end(world.start_all().values())
    assert all(same_bits(run, first) for run in others)
    statement = json.loads((first.path / "statement.json").read_text())
    assert statement["private"] is True and statement["sites"]["sites"] == 3
    for name in world.names:
        report = verify_run(world.path(name))
        assert report.problems == []


@pytest.mark.slow
def test_a_run_that_is_resumed_asks_no_client_twice(world, monkeypatch):
    sessions = world.start_all()
    for _ in range(2):
        for session in sessions.values():
            turn(session)
    for session in sessions.values():
        session.close()
    sessions = {name: world.resume(name) for name in world.names}
    monkeypatch.setattr(sessions["a"].training.backend, "map_blocks", lambda *_: pytest.fail("clients are asked"))
    while sessions["a"].training.done == 0:
        turn(sessions["a"])
    monkeypatch.undo()
    alone = one_place(world)
    assert all(same_bits(run, alone) for run in to_end(sessions.values()))


@pytest.mark.slow
def test_copies_of_totals_that_are_lost_come_from_the_ledgers_of_all(world):
    sessions = world.start_all()
    for _ in range(4):
        for session in sessions.values():
            turn(session)
    session = sessions["a"]
    assert session.run.round >= 1
    session.close()
    name = next(iter(totals(session.run)))
    for file in (world.path("a") / "releases").iterdir():
        file.unlink()
    sessions["a"] = world.resume("a")
    assert name in totals(sessions["a"].run)
    alone = one_place(world)
    assert all(same_bits(run, alone) for run in to_end(sessions.values()))


ORDER = [
    (publishers.TestShareNoise, "ready"),
    (Ledger, "charge_round"),
    (publishers.TestShareNoise, "draw"),
    (Ledger, "publish_round"),
    (publishers.RunKey, "note"),
    (Mailbox, "post"),
]


def test_each_step_of_a_round_follows_the_one_before(world, monkeypatch):
    """Charged before it is drawn, stored before it is noted, noted before it is posted; and masked."""
    sessions, made = world.start_all(), []
    for session in sessions.values():
        turn(session)

    def watch(of, name):
        inner = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *a, **k: (made.append(name), inner(*a, **k))[1])

    for of, name in ORDER:
        watch(of, name)
    turn(sessions["a"])
    assert list(dict.fromkeys(made)) == ["post", *(name for _, name in ORDER[:-1])]  # the member file comes first
    assert made[-2:] == ["note", "post"]
    numbers = np.frombuffer(world.file("answer", "a", 1).read_bytes().split(b"\n", 2)[2], "<i8", offset=32)
    assert np.abs(numbers.astype(float)).max() > 2.0**50


def test_sites_that_start_from_different_things_do_not_begin(world):
    sessions = world.start_all()
    for name, session in sessions.items():
        session.training.publisher.publishing.start = bytes([name == "b"]) * 32
        rounds = turn(session) if name != "c" else None
        assert not rounds
    with pytest.raises(RunLeft, match="something else"):
        leave(sessions["c"])
    assert world.spent("c") == 0


# --- what is refused by name ------------------------------------------------------------------------------------------


def refused(world, **changes):
    study = world.study.model_copy(update=changes)
    return publishers.study_spec(study, 1, world.identities["a"], world.request("a"))


def test_settings_and_methods_that_sites_cannot_share_are_refused(world):
    settings = dict(world.study.settings)
    for name, value in {"horizon": 3, "cohorts": "1-2", "at_least": 5, "epsilon": 1.0, "nominal_clients": 5}.items():
        with pytest.raises(StudyError, match=name):
            refused(world, settings=settings | {name: value})
    with pytest.raises(StudyError, match="not private"):
        refused(world, method="gradient_em", settings={})


def test_another_population_is_refused(world):
    other = world.study.schema_.model_copy(update={"features": 9})
    with pytest.raises(StudyError, match="features"):
        refused(world, schema_=other)
    with pytest.raises(StudyError, match="unit"):
        refused(world, schema_=world.study.schema_.model_copy(update={"unit": "record"}))


def test_a_share_of_a_budget_is_refused(world):
    with pytest.raises(StudyError, match="share"):
        publishers.study_spec(world.study, 1, world.identities["a"], world.request("a", share="research"))


def test_another_identity_is_refused(world, tmp_path):
    stranger = world.identities["b"].create("a", tmp_path / "stranger")
    with pytest.raises(StudyError, match="another key"):
        publishers.study_spec(world.study, 1, stranger, world.request("a"))


def test_another_arithmetic_is_refused(world):
    with pytest.raises(StudyError, match="arithmetic"):
        refused(world, arithmetic="of another version")


def test_a_run_of_a_study_is_continued_and_ended_by_its_publisher_alone(world):
    session = world.start("a")
    session.close()
    with pytest.raises(RunError, match="a study of several sites"):
        abandon(session.run.path)
    wrong = world.publishing("a", 2)
    with pytest.raises(RunError, match="a study of several sites"):
        resume(world.path("a"), InProcessBackend(), publisher=wrong)


# --- the end ----------------------------------------------------------------------------------------------------------


def is_over(world, monkeypatch):
    """The patience of the study is over for every site."""
    later = time.time() + world.study.patience + 1
    monkeypatch.setattr(publishers.time, "time", lambda: later)


def test_members_that_do_not_come_cost_nothing(world, monkeypatch):
    session = world.start("a")
    assert turn(session) is None
    is_over(world, monkeypatch)
    with pytest.raises(RunLeft, match="b, c did not answer"):
        leave(session)
    assert Run.open(world.path("a")).status == "abandoned"
    assert world.spent("a") == 0 and world.replayed("a").most == 0
    assert world.ledger("a").run_status("run-1") == "abandoned"


def leave(session):
    with concluding(session):
        while session.training.step() is not None:
            pass


@pytest.mark.slow
def test_a_site_that_stays_away_ends_the_run_for_all_at_the_last_totals(world, monkeypatch):
    sessions = world.start_all()
    for _ in range(4):
        for session in sessions.values():
            turn(session)
    gone = sessions.pop("c")
    gone.close()
    for session in sessions.values():
        rounds_of(session)
    rounds = sessions["a"].run.round
    assert rounds >= 1
    is_over(world, monkeypatch)
    with pytest.raises(RunLeft, match="c did not answer"):
        leave(sessions["a"])
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(world.folder / "cache"))
    with pytest.raises(RunLeft, match="did not answer|ended it for all"):
        is_over(world, monkeypatch)
        leave(sessions["b"])
    run = Run.open(world.path("a"))
    assert (run.status, run.round) == ("abandoned", rounds)
    assert (run.path / "statement.json").exists()  # what was published is usable
    paid = world.spent("a")
    assert 0 < paid < Fraction(RHO)
    assert world.replayed("a").most == paid  # the rest has come back
    files = {path.name: path.read_bytes() for path in world.mailbox_place.rglob("*.a")}
    back = world.resume("c")
    with pytest.raises(RunLeft, match="ended it for all"):
        leave(back)
    assert Run.open(world.path("c")).status == "abandoned"
    assert files == {path.name: path.read_bytes() for path in world.mailbox_place.rglob("*.a")}


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["this process", "another process"])
def test_a_run_can_end_before_an_optional_round(world, monkeypatch, again):
    """It is finished then, at every site that was there, and the last round was paid by those that answered it."""
    sessions = world.start_all()
    while min(session.run.round for session in sessions.values()) < 3:
        for session in sessions.values():
            if session.run.round < 3:
                turn(session)
    sessions.pop("c").close()
    assert sessions["a"].spec.releases[-1].optional
    assert turn(sessions["a"]) is None
    if again:
        sessions["a"].close()
        sessions["a"] = world.resume("a")
    is_over(world, monkeypatch)
    leave(sessions["a"])
    sessions["b"].close()
    leave(world.resume("b"))
    for name in "ab":
        run = Run.open(world.path(name))
        assert (run.status, run.round) == ("finished", 3)
        assert world.replayed(name).runs["run-1"]["status"] == "finished"
    assert world.spent("b") < world.spent("a") <= Fraction(RHO)  # b had seen the end of a before it was charged
    leave(world.resume("c"))
    assert Run.open(world.path("c")).status == "finished"


@pytest.mark.slow
def test_nothing_is_posted_after_the_end(world, monkeypatch):
    """A process that is killed between its end and the ledger's has ended all the same."""
    sessions = world.start_all()
    for session in sessions.values():
        turn(session)
    sessions["a"].training.publisher.ending("abandoned")
    sessions["a"].close()
    before = sorted(path.name for path in world.mailbox_place.rglob("*.a"))
    again = world.resume("a")
    with pytest.raises(RunLeft, match="has ended at this site"):
        leave(again)
    assert before == sorted(path.name for path in world.mailbox_place.rglob("*.a")) == ["end.a", "member.a"]
    with pytest.raises(RunLeft, match="a ended it for all"):
        leave(sessions["b"])


@pytest.mark.slow
def test_a_site_without_its_run_key_has_left_the_run(world):
    sessions = world.start_all()
    for _ in range(2):
        for session in sessions.values():
            turn(session)
    sessions["a"].close()
    for file in key_of(world, "a").folder.iterdir():
        file.unlink()
    with pytest.raises(RunLeft, match="lost its key"):
        leave(world.resume("a"))
    assert Run.open(world.path("a")).status == "abandoned"
