"""Hostile peers, mailboxes and restored machines: refused by name, or noise, and never an unpaid release.

Site a is attacked. Site b and the mailbox work together against it; c is honest.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import (
    ConfigError,
    FileRefused,
    LeaseLost,
    LedgerRolledBack,
    MailboxConflict,
    MailboxError,
    PrivacyError,
    RunBusy,
    RunLeft,
    StudyError,
)
from fedcore.rounds.engine import InProcessBackend
from fedcore.sites.identity import Identity
from fedcore.sites.mailbox import Header, Mailbox
from fedcore.sites.masks import new_run_key, public_bytes
from fedcore.sites.publisher import study_spec
from fedcore.sites.run_key import RunKey
from fedcore.sites.study import read_study
from fedcore.training.session import Session, start_run
from tests.sites.world import World, rounds_of, turn

pytestmark = pytest.mark.slow

OLD = 1  # a run that has ended before the attacks
SMALL_ORDER = bytes(32)  # a point of X25519 with which every secret is 0


@dataclass
class Attack:
    """One run that is attacked."""

    world: World
    number: int
    sessions: dict[str, Session] = field(default_factory=dict)

    def members(self) -> None:
        """All sites have started. Only b and c have posted who they are."""
        self.sessions = self.world.start_all(self.number)
        turn(self.sessions["b"])
        turn(self.sessions["c"])

    def answers(self) -> None:
        """Round 1 is answered by all. Only b has looked at the answers of others."""
        self.sessions = self.world.start_all(self.number)
        for name in "abcacb":
            turn(self.sessions[name])
        assert self.sessions["b"].training.round == 2 and self.sessions["a"].training.round == 1

    def go(self) -> None:
        """Site a does what it can."""
        rounds_of(self.sessions["a"])

    def header(self, kind: str = "answer", site: str = "b", round: int = 1) -> Header:
        return self.world.header(kind, site, round if kind == "answer" else 0, self.number)

    def file(self, kind: str = "answer", site: str = "b", round: int = 1) -> Path:
        return self.world.mailbox_place / self.header(kind, site, round).name

    def body(self, kind: str = "answer", site: str = "b") -> bytes:
        return self.file(kind, site).read_bytes().split(b"\n", 2)[2]

    def put(self, content: bytes, kind: str = "answer", site: str = "b") -> None:
        """The mailbox shows another file."""
        file = self.file(kind, site)
        file.unlink(missing_ok=True)
        file.write_bytes(content)

    def sign(self, body: bytes, kind: str = "answer", header: Header | None = None, by: Identity | None = None) -> None:
        """A file of b with this body. header, by: what is signed, and by whom, if that is another lie."""
        line = (header or self.header(kind)).line(body)
        signature = (by or self.world.identities["b"]).sign(line).hex().encode()
        self.put(b"\n".join((line, signature, body)), kind)

    def numbers(self, site: str) -> np.ndarray:
        """What an answer holds."""
        return np.frombuffer(self.body(site=site), "<u8", offset=32)

    def total(self, wanted: int) -> None:
        """An answer of b with which every total is this number, as b has seen the answers of the others."""
        others = self.numbers("a") + self.numbers("c")
        self.sign(self.body()[:32] + (np.full_like(others, wanted) - others).tobytes())


# --- answers of b -----------------------------------------------------------------------------------------------------


def of_answers(change: Callable[[Attack], None]) -> Callable[[Attack], None]:
    def attack(at: Attack) -> None:
        at.answers()
        change(at)
        at.go()

    return attack


def flipped(at: Attack) -> None:
    content = bytearray(at.file().read_bytes())
    content[-1] ^= 1
    at.put(bytes(content))


def linked(at: Attack) -> None:
    at.file().unlink()
    os.symlink(at.file(site="a"), at.file())


def a_folder(at: Attack) -> None:
    at.file().unlink()
    at.file().mkdir()


def huge(at: Attack) -> None:
    os.truncate(at.file(), 2**40)


def twice(at: Attack) -> None:
    """c has added one answer of b, and a is shown another; then they compare."""
    turn(at.sessions["c"])
    at.total(7)
    for name in "abc":
        turn(at.sessions[name])


def ended(at: Attack) -> None:
    at.file().unlink()
    at.sign(b"{}", "end")


def ended_by_a_stranger(at: Attack) -> None:
    at.file().unlink()
    at.put(b"end\n\n", "end")


def of_another_study(at: Attack) -> None:
    header = at.header()
    at.sign(at.body(), header=Header(bytes(32), header.run, header.round, header.site, header.kind))


def stranger(at: Attack) -> Identity:
    return Identity.create("b", at.world.folder / f"stranger-{at.number}")


# --- members ----------------------------------------------------------------------------------------------------------


def of_members(change: Callable[[Attack], None]) -> Callable[[Attack], None]:
    def attack(at: Attack) -> None:
        at.members()
        change(at)
        at.go()

    return attack


def before_b(at: Attack) -> None:
    """a has posted who it is, and has not seen the member file of b."""
    hidden = at.file("member").read_bytes()
    at.file("member").unlink()
    assert turn(at.sessions["a"]) is None
    at.put(hidden, "member")


def echoed_key(at: Attack) -> None:
    """b states the public key of a as its own, and answers without masks."""
    before_b(at)
    at.sign(at.body("member", "a")[:32] + bytes(32), "member")
    for name in "ac":
        turn(at.sessions[name])
    at.sign(at.body(site="a")[:32] + bytes(8 * len(at.numbers("a"))))


def two_members(at: Attack) -> None:
    """c has seen one member file of b, and a is shown another. All of them answer."""
    before_b(at)
    for name in "cb":
        turn(at.sessions[name])
    at.sign(public_bytes(new_run_key()) + bytes(32), "member")
    turn(at.sessions["a"])


def two_of_a(at: Attack) -> None:
    """The mailbox has another member file of a, which a clone of the site has signed."""
    before_b(at)
    header = at.header("member", "a")
    line = header.line(bytes(64))
    at.put(b"\n".join((line, at.world.identities["a"].sign(line).hex().encode(), bytes(64))), "member", "a")
    again(at)


def again(at: Attack) -> None:
    """Site a is another process now."""
    at.sessions["a"].close()
    at.sessions["a"] = at.world.resume("a", at.number)


# --- the site itself --------------------------------------------------------------------------------------------------


def clone(hide: bool) -> Callable[[Attack], None]:
    """Another machine with the identity, people and ledger of a starts the same run. hide: the mailbox hides the member
    file of a."""

    def attack(at: Attack) -> None:
        at.answers()
        if hide:
            at.file("member", "a").unlink()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(at.world.folder / f"clone-{at.number}"))
            request = at.world.request("a", at.number, run_id=f"clone-{at.number}")
            spec = study_spec(at.world.study, at.number, at.world.identities["a"], request)
            publisher = at.world.publishing("a", at.number)
            session = start_run(request, InProcessBackend(), stamp="then", spec=spec, publisher=publisher)
            try:
                turn(session)
            finally:
                session.close()

    return attack


def two_processes(at: Attack) -> None:
    at.answers()
    at.world.resume("a", at.number)


def taken_over(at: Attack) -> None:
    """A second process takes the lease; the first one cannot charge any more."""
    at.answers()
    ledger = at.world.ledger("a")
    ledger.acquire(f"run-{at.number}", take_over=True)
    at.go()


def place_of(at: Attack, name: str) -> Path:
    return RunKey(at.world.study.digest, at.number, "a").folder if name == "cache" else at.world.folder / "a" / name


def copied(source: Path, dest: Path) -> None:
    if source.is_dir():
        shutil.rmtree(dest, ignore_errors=True)
        shutil.copytree(source, dest)
    else:
        dest.parent.mkdir(exist_ok=True)
        shutil.copy(source, dest)


def restored(*names: str, hide: bool = False, lose: bool = False) -> Callable[[Attack], None]:
    """Parts of the machine of a are restored as they were before it answered. hide: the mailbox hides that answer.
    lose: the cache folder is gone.
    """

    def attack(at: Attack) -> None:
        at.world = World.make(at.world.folder / f"restored-{at.number}")
        at.members()
        before_b(at)
        at.sessions["a"].close()
        copies = {name: at.world.folder / "copies" / name for name in names}
        for name, copy in copies.items():
            copied(place_of(at, name), copy)
        again(at)
        at.go()
        at.sessions["a"].close()
        assert at.file(site="a").exists()
        for name, copy in copies.items():
            copied(copy, place_of(at, name))
        if hide:
            at.file(site="a").unlink()
        if lose:
            shutil.rmtree(place_of(at, "cache"))
        again(at)
        at.go()

    return attack


MACHINE = ("ledger.sqlite", "people", "runs")


# --- before the run ---------------------------------------------------------------------------------------------------


def start_of(**arrays: np.ndarray) -> Callable[[Attack], None]:
    def attack(at: Attack) -> None:
        file = at.world.folder / f"start-{at.number}.npz"
        np.savez(file, **arrays)
        at.world.start("a", at.number, start_from=str(file), public_start_because="a peer sent it")

    return attack


def forged_study(at: Attack) -> None:
    place = at.world.folder / f"forged-{at.number}"
    place.mkdir()
    text = (at.world.mailbox_place / "study.json").read_text()
    (place / "study.json").write_text(text.replace('"collusion": 1', '"collusion": 2'))
    read_study(place)


def invented_site(at: Attack) -> None:
    at.world.mailbox.get(at.world.header("answer", "d", 1, at.number))


def another_study(at: Attack) -> None:
    """The mailbox is that of a study with other terms."""
    other = at.world.study.model_copy(update={"collusion": 2})
    session = at.world.start("a", at.number, mailbox=Mailbox(at.world.mailbox_place, other))
    rounds_of(session)


def other_start(at: Attack) -> None:
    at.sign(at.body("member") + bytes(32), "member")


ATTACKS: dict[str, tuple[Callable[[Attack], None], type[Exception] | None, str]] = {
    "an answer that is cut": (of_answers(lambda at: at.put(at.file().read_bytes()[:-8])), FileRefused, "cut"),
    "an answer with one bit flipped": (of_answers(flipped), FileRefused, "changed after it was signed"),
    "an answer that is empty": (of_answers(lambda at: at.put(b"")), FileRefused, "no header"),
    "an answer of no form": (of_answers(lambda at: at.put(bytes(range(100)))), FileRefused, "no header"),
    "an answer of another site": (
        of_answers(lambda at: at.put(at.file(site="c").read_bytes())),
        FileRefused,
        "another site",
    ),
    "an answer of an earlier run": (
        of_answers(lambda at: at.put(at.world.file("answer", "b", 1, OLD).read_bytes())),
        FileRefused,
        "another run",
    ),
    "an answer of a later round": (
        of_answers(lambda at: at.sign(at.body(), header=at.header(round=2))),
        FileRefused,
        "another round",
    ),
    "an answer of another study": (of_answers(of_another_study), FileRefused, "another study"),
    "an answer of a stranger": (of_answers(lambda at: at.sign(at.body(), by=stranger(at))), FileRefused, "not signed"),
    "an answer to other totals": (
        of_answers(lambda at: at.sign(bytes(32) + at.body()[32:])),
        FileRefused,
        "saw other totals",
    ),
    "an answer to another plan": (of_answers(lambda at: at.sign(at.body() + bytes(8))), FileRefused, "longer"),
    "an answer with fewer numbers": (of_answers(lambda at: at.sign(at.body()[:-8])), FileRefused, "planned numbers"),
    "an answer that is a link": (of_answers(linked), FileRefused, "regular file"),
    "an answer that is a folder": (of_answers(a_folder), FileRefused, "regular file"),
    "an answer without end": (of_answers(huge), FileRefused, "longer"),
    "two answers": (of_answers(twice), FileRefused, "saw other totals"),
    "totals at the end of int64": (of_answers(lambda at: at.total(2**63 - 1)), None, ""),
    "totals at the other end": (of_answers(lambda at: at.total(2**63)), None, ""),
    "totals of a power of two": (of_answers(lambda at: at.total(2**52)), None, ""),
    "an answer without masks": (
        of_answers(lambda at: at.sign(at.body()[:32] + bytes(8 * len(at.numbers("b"))))),
        None,
        "",
    ),
    "an echo": (of_answers(lambda at: at.sign(at.body(site="a"))), None, ""),
    "an end of b": (of_answers(ended), RunLeft, "b ended it"),
    "an end that is not signed": (of_answers(ended_by_a_stranger), FileRefused, "no header"),
    "a member without a key": (of_members(lambda at: at.sign(b"", "member")), FileRefused, "a key and a nonce"),
    "a key of small order": (
        of_members(lambda at: at.sign(SMALL_ORDER + bytes(32), "member")),
        PrivacyError,
        "not a usable",
    ),
    "a member of an earlier run": (
        of_members(lambda at: at.put(at.world.file("member", "b", 0, OLD).read_bytes(), "member")),
        FileRefused,
        "another run",
    ),
    "a member with another start": (of_members(other_start), RunLeft, "something else"),
    "another site's key": (of_members(echoed_key), None, ""),
    "two member files": (of_members(two_members), None, ""),
    "two member files of the site": (of_members(two_of_a), MailboxConflict, "another file"),
    "a clone of the site": (clone(hide=False), RunLeft, "lost its key"),
    "a clone, and the mailbox hides": (clone(hide=True), LedgerRolledBack, "posted"),
    "two processes": (two_processes, RunBusy, "run-"),
    "a lease that is lost": (taken_over, LeaseLost, "run-"),
    "an older ledger": (restored("ledger.sqlite"), LedgerRolledBack, "older copy"),
    "an older machine, but for its cache": (restored(*MACHINE), LedgerRolledBack, "posted"),
    "the same, and the mailbox hides": (restored(*MACHINE, hide=True), LedgerRolledBack, "posted"),
    "an older machine": (restored(*MACHINE, "cache"), LedgerRolledBack, "posted"),
    "an older machine without its cache": (restored(*MACHINE, lose=True), RunLeft, "lost its key"),
    "a start that is no number": (start_of(histograms=np.full((2, 7), np.nan)), ConfigError, "start"),
    "a start of another shape": (start_of(histograms=np.ones((2, 3))), ConfigError, "start"),
    "a study that was edited": (forged_study, StudyError, "not signed"),
    "an invented site": (invented_site, StudyError, "no site"),
    "a mailbox of another study": (another_study, MailboxError, "another study"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        made = World.make(folder)
        old = Attack(made, OLD)
        old.answers()
        for session in old.sessions.values():
            session.close()
        yield made


def test_there_are_enough():
    assert len(ATTACKS) >= 20


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_or_gets_noise_and_nothing_is_unpaid(world, name):
    attack, error, text = ATTACKS[name]
    at = Attack(world, 2 + list(ATTACKS).index(name))
    try:
        if error is None:
            attack(at)
            assert is_noise(at)
        else:
            with pytest.raises(error, match=text) as refused:
                attack(at)
            assert refused.value.message and "\x1b" not in str(refused.value)
    finally:
        for session in at.sessions.values():
            session.close()
    if at.world is world:
        all_is_paid(at)
    else:
        assert len(list(at.world.mailbox_place.rglob("*.answer.a"))) <= 1  # which is the one from before


def is_noise(at: Attack) -> bool:
    """The totals that a has seen are not those of the sites: masks of 64 bits are left in them."""
    round, found = at.sessions["a"].training.publisher.totals
    return round == 1 and any(np.abs(value.astype(float)).max() > 2.0**50 for value in found.values())


def all_is_paid(at: Attack) -> None:
    """Every answer of a that the mailbox has is what its ledger has charged and stored, and a replay finds no fault."""
    account, run_id = at.world.replayed("a"), f"run-{at.number}"
    states = account.runs[run_id]["states"] if run_id in account.runs else {}
    for file in at.world.mailbox_place.glob(f"runs/{at.number}/*.answer.a"):
        plan = [one for one in at.sessions["a"].spec.releases if one.round == int(file.name.split(".")[0])]
        assert plan and all(states[one.round, one.name, 0] == "published" for one in plan)
        stored = [at.world.ledger("a").published(run_id, one.name).astype("<i8").tobytes() for one in plan]
        assert file.read_bytes().split(b"\n", 2)[2][32:] == b"".join(stored)
