"""The mailbox: what is posted is never replaced, and what others put there is verified, or refused by name."""

import errno
import multiprocessing
import os
import socket
from dataclasses import replace

import pytest

from fedcore.errors import FileRefused, MailboxConflict, MailboxError, PatienceOver, SiteLeft, StudyError, Unreachable
from fedcore.sites import mailbox as module
from fedcore.sites.mailbox import ABOVE, Header, Mailbox
from fedcore.storage import objects as object_storage
from fedcore.storage import shared
from fedcore.storage.files import is_remote, place
from tests.sites.studies import NAMES, identities, study_of

A, B, C = NAMES


@pytest.fixture
def known(tmp_path):
    return identities(tmp_path)


@pytest.fixture
def study(known):
    return study_of(known)


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def where(request, tmp_path):
    """An empty mailbox: a folder, a store in this process, a store on a server."""
    if request.param == "folder":
        (tmp_path / "mailbox").mkdir()
        return tmp_path / "mailbox"
    pytest.importorskip("upath", reason="universal-pathlib is not installed")
    base = request.getfixturevalue("s3") if request.param == "s3" else request.getfixturevalue("memory")
    return place(f"{base}/mailbox")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mailbox").mkdir()
    return tmp_path / "mailbox"


@pytest.fixture
def naps(monkeypatch):
    """Seconds that were slept; no time passes otherwise."""
    slept = []
    monkeypatch.setattr(module, "sleep", slept.append)
    monkeypatch.setattr(module, "monotonic", lambda: sum(slept))
    return slept


def answer(study, site=B, run=1, round=1):
    return Header(study.digest, run, round, site, "answer")


def write(where, name, content):
    """As somebody who can write to the mailbox."""
    path = where.joinpath(*name.split("/"))
    if is_remote(where):
        object_storage.write_bytes(path, content)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def stored(where, header) -> bytes:
    return shared.read(where, header.name, 1 << 20)


# --- posting ----------------------------------------------------------------------------------------------------------


def test_what_is_posted_is_got_by_others(where, known, study):
    own, theirs, header = Mailbox(where, study), Mailbox(str(where), study), answer(study)
    assert theirs.get(header) is None
    own.post(known[B], header, b"\x00\n\xff" * 5)
    assert theirs.get(header) == module.SignedFile(header, b"\x00\n\xff" * 5)
    member = Header(study.digest, 1, 0, B, "member")
    own.post(known[B], member, b"")
    assert theirs.get(member).body == b"" and header.name == "runs/1/1.answer.hospital-b"
    assert len(stored(where, header)) - 15 <= 450


def test_the_same_again_is_no_error_and_another_one_is(where, known, study):
    box, header = Mailbox(where, study), answer(study)
    box.post(known[B], header, b"vector")
    before = stored(where, header)
    box.post(known[B], header, b"vector")
    for other in (b"another", b"vector ", b""):
        with pytest.raises(MailboxConflict, match="another file 'runs/1/1.answer.hospital-b'.*older copy of this site"):
            box.post(known[B], header, other)
    assert stored(where, header) == before


def test_what_is_there_already_is_never_replaced(where, known, study):
    box, header = Mailbox(where, study), answer(study)
    for content in (b"", b"\xff" * (1 << 17)):
        header = replace(header, round=header.round + 1)
        write(where, header.name, content)
        with pytest.raises(MailboxConflict):
            box.post(known[B], header, b"vector")
        assert stored(where, header) == content


def test_a_site_signs_its_own_files_only(folder, known, study):
    box = Mailbox(folder, study)
    with pytest.raises(MailboxError, match="another key for site 'hospital-b'"):
        box.post(known[A], answer(study), b"")
    with pytest.raises(MailboxError, match="another study"):
        box.post(known[B], replace(answer(study), study=bytes(32)), b"")
    with pytest.raises(StudyError, match="'x' is no site of the study"):
        box.post(known[B], answer(study, "x"), b"")
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("kind", "run", "round"), [("answer", 1, 0), ("member", 1, 1), ("end", 0, 0), ("else", 1, 1), ("member", 10**10, 0)]
)
def test_only_files_of_a_study_have_headers(kind, run, round):
    with pytest.raises(MailboxError, match="there is no file"):
        Header(bytes(32), run, round, A, kind)


def test_folders_are_for_all_who_can_write_to_the_mailbox(folder, known, study):
    folder.chmod(0o1777)
    before = os.umask(0o077)
    try:
        Mailbox(folder, study).post(known[B], answer(study), b"")
    finally:
        os.umask(before)
    made = [folder / "runs", folder / "runs" / "1"]
    assert [path.stat().st_mode & 0o7777 for path in made] == [0o1777, 0o1777]
    assert (folder / answer(study).name).stat().st_mode & 0o777 == 0o644
    assert os.listdir(made[1]) == ["1.answer.hospital-b"], "nothing else stays"


def test_a_mailbox_for_one_user_stays_so(folder, known, study):
    folder.chmod(0o700)
    Mailbox(folder, study).post(known[B], answer(study), b"")
    assert (folder / answer(study).name).stat().st_mode & 0o777 == 0o600
    assert (folder / "runs").stat().st_mode & 0o777 == 0o700


def test_a_file_system_without_links_is_refused(folder, known, study, monkeypatch):
    def none(*arguments, **options):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", none)
    with pytest.raises(MailboxError, match="hard links.*object storage"):
        Mailbox(folder, study).post(known[B], answer(study), b"")
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_link_that_was_made_although_its_answer_was_lost(folder, known, study, monkeypatch):
    link = os.link

    def lost(*arguments, **options):
        link(*arguments, **options)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", lost)
    box = Mailbox(folder, study)
    box.post(known[B], answer(study), b"once")
    assert box.get(answer(study)).body == b"once"


def posting(folder, names, number, go, results):
    """A process of site B that posts its own bytes for 20 rounds."""
    from fedcore.sites.identity import Identity

    known = {name: Identity.load(folder / name) for name in names}
    study = study_of(known)
    box, won = Mailbox(folder / "mailbox", study), []
    go.wait()
    for round in range(1, 21):
        try:
            box.post(known[B], answer(study, round=round), bytes([number]))
            won.append(round)
        except MailboxConflict:
            pass
    results.put((number, won))


@pytest.mark.slow
def test_of_two_processes_that_post_at_once_one_wins(tmp_path, folder, known, study):
    context = multiprocessing.get_context("spawn")
    go, results = context.Barrier(2), context.Queue()
    both = [context.Process(target=posting, args=(tmp_path, NAMES, number, go, results)) for number in (1, 2)]
    for process in both:
        process.start()
    won = dict(results.get(timeout=60) for _ in both)
    for process in both:
        process.join(60)
    assert sorted(won[1] + won[2]) == list(range(1, 21)), "each round was posted once"
    for number, rounds in won.items():
        for round in rounds:
            assert Mailbox(folder, study).get(answer(study, round=round)).body == bytes([number])


# --- hostile files ----------------------------------------------------------------------------------------------------


def signed(identity, header, body, **fields):
    line = {**header._fields(), "bytes": len(body), "sha256": module.hashlib.sha256(body).hexdigest(), **fields}
    text = module.digests.canonical(line)
    return b"\n".join((text, identity.sign(text).hex().encode(), body))


HOSTILE = {  # (known, header) -> content, and why it is refused
    "empty": (lambda known, h: b"", "no header"),
    "no text": (lambda known, h: b"\xff\xfe\x00\n" * 9, "no header"),
    "a terminal's commands": (lambda known, h: b"\x1b]0;owned\x07\x1b[2J" * 9, "no header"),
    "deep": (lambda known, h: b"[" * 900 + b"\n", "no header"),
    "endless line": (lambda known, h: b"{" + b" " * 3000 + b"}\n", "no header"),
    "a list": (lambda known, h: b"[]\n00\n", "no header"),
    "pickle": (lambda known, h: b"cos\nsystem\n(S'touch owned'\ntR.", "no header"),
    "cut body": (lambda known, h: signed(known[B], h, b"vector")[:-1], "cut"),
    "cut to the header": (lambda known, h: signed(known[B], h, b"v").partition(b"\n")[0], "cut"),
    "longer body": (lambda known, h: signed(known[B], h, b"vector") + b"x", "extended"),
    "other body": (lambda known, h: signed(known[B], h, b"vector").replace(b"vector", b"vectox"), "changed"),
    "renamed": (lambda known, h: signed(known[B], replace(h, round=2), b"vector"), "another round"),
    "other run": (lambda known, h: signed(known[B], replace(h, run=2), b"vector"), "another run"),
    "other study": (lambda known, h: signed(known[B], replace(h, study=bytes(32)), b"vector"), "another study"),
    "other site": (lambda known, h: signed(known[A], replace(h, site=A), b"vector"), "another site"),
    "other kind": (
        lambda known, h: signed(known[B], replace(h, kind="end", round=0), b""),
        "another round|another kind",
    ),
    "other name": (lambda known, h: signed(known[B], h, b"", file="runs/1/1.answer.hospital-c"), "another name"),
    "a path": (lambda known, h: signed(known[B], h, b"", file="../../../etc/passwd"), "another name"),
    "other format": (lambda known, h: signed(known[B], h, b"", format=2), "format"),
    "true for one": (lambda known, h: signed(known[B], h, b"", run=True), "another run"),
    "more fields": (lambda known, h: signed(known[B], h, b"", more=1), "changed"),
    "other key": (lambda known, h: signed(known[A], h, b"vector"), "key"),
    "no signature": (lambda known, h: h.line(b"") + b"\n\n", "key"),
    "signature of zeros": (lambda known, h: h.line(b"") + b"\n" + b"0" * 128 + b"\n", "key"),
    "signature that is no text": (lambda known, h: h.line(b"") + b"\n" + b"\xff" * 128 + b"\n", "key"),
    "too long": (lambda known, h: signed(known[B], h, b"\x07" * 5000), "longer than the 4096 bytes"),
    "huge": (lambda known, h: b"\x00" * (1 << 20), "longer than the 4096 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_not_what_its_name_states_is_refused(folder, known, study, name):
    content, why = HOSTILE[name]
    header = answer(study)
    write(folder, header.name, content(known, header))
    with pytest.raises(FileRefused, match=why) as caught:
        Mailbox(folder, study).get(header)
    assert caught.value.remedy and str(caught.value).isprintable()
    assert "owned" not in str(caught.value) and "passwd" not in str(caught.value)


@pytest.mark.parametrize("name", ["cut body", "longer body", "too long", "huge"])
def test_a_file_of_another_length_is_refused_wherever_it_is_stored(where, known, study, name):
    """Only the reading depends on the store."""
    content, why = HOSTILE[name]
    header = answer(study)
    write(where, header.name, content(known, header))
    with pytest.raises(FileRefused, match=why):
        Mailbox(where, study).get(header)


def test_no_more_is_read_than_the_plan_allows(folder, known, study, monkeypatch):
    header = answer(study)
    (folder / "runs" / "1").mkdir(parents=True)
    with open(folder / header.name, "wb") as file:
        file.truncate(1 << 42)  # of a sparse file: 4 TiB
    seen = []
    read = shared.read
    monkeypatch.setattr(shared, "read", lambda *asked: seen.append(len(read(*asked))) or read(*asked))
    with pytest.raises(FileRefused, match="longer than the 800 bytes"):
        Mailbox(folder, study).get(header, most=800)
    assert max(seen) == ABOVE + 801


@pytest.mark.parametrize("kind", ["folder", "fifo", "socket", "link", "link to a device", "dangling link"])
def test_what_is_no_regular_file_is_refused(folder, known, study, tmp_path, kind, monkeypatch):
    header = answer(study)
    path = folder / header.name
    path.parent.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_bytes(signed(known[B], header, b"vector"))
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        monkeypatch.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    else:
        path.symlink_to({"link": secret, "link to a device": "/dev/zero", "dangling link": "nowhere"}[kind])
    with pytest.raises(FileRefused, match="not a regular file"):
        Mailbox(folder, study).get(header)
    with pytest.raises((FileRefused, MailboxConflict)):
        Mailbox(folder, study).post(known[B], header, b"vector")
    assert not (folder / "runs/1/nowhere").exists()


@pytest.mark.parametrize("link", ["runs", "runs/1"])
def test_a_link_leads_nowhere(folder, known, study, tmp_path, link):
    """Neither reading nor writing follows a symbolic link out of the mailbox."""
    (tmp_path / "elsewhere" / "1").mkdir(parents=True)
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(tmp_path / "elsewhere")
    box = Mailbox(folder, study)
    for act in (lambda: box.get(answer(study)), lambda: box.post(known[B], answer(study), b"vector")):
        with pytest.raises(FileRefused, match="not a regular file in regular folders"):
            act()
    assert [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_an_empty_object_is_refused(s3, known, study):
    where = place(f"{s3}/mailbox")
    write(where, answer(study).name, b"")
    with pytest.raises(FileRefused, match="no header"):
        Mailbox(where, study).get(answer(study))


# --- a mailbox that is away, late, or forgetful -----------------------------------------------------------------------


def test_nothing_counts_on_a_listing(where, known, study, monkeypatch):
    """Files are got by their names, so a listing may be late, or lost."""

    def lost(*arguments, **options):
        raise AssertionError("a listing was asked for")

    box = Mailbox(where, study)
    if is_remote(where):
        monkeypatch.setattr(type(where.fs), "ls", lost)  # what checks for a name may list, of which nothing is taken
        monkeypatch.setattr(object_storage, "listing", lost)
    else:
        monkeypatch.setattr(os, "scandir", lost)
        monkeypatch.setattr(os, "listdir", lost)
    monkeypatch.setattr(shared, "sweep_abandoned", lambda folder: None)  # only for tidiness
    box.post(known[B], answer(study), b"vector")
    assert box.wait([answer(study)], 0)[answer(study)].body == b"vector"


def unavailable(monkeypatch, times):
    """The store answers 503 to so many requests."""
    left = [times]

    def failing(real):
        def act(*arguments):
            if left[0]:
                left[0] -= 1
                raise Unreachable("503 Service Unavailable.", "Try again.")
            return real(*arguments)

        return act

    monkeypatch.setattr(shared, "create", failing(shared.create))
    monkeypatch.setattr(shared, "read", failing(shared.read))
    return left


def test_posting_and_waiting_outlast_a_mailbox_that_is_away(where, known, study, naps, monkeypatch):
    box = Mailbox(where, study)
    unavailable(monkeypatch, 4)
    box.post(known[B], answer(study), b"vector")
    assert naps == [1, 2, 4, 8]
    unavailable(monkeypatch, 4)
    assert box.wait([answer(study)], 600)[answer(study)].body == b"vector"


def test_a_mailbox_that_stays_away_is_named_and_no_site_is_blamed(where, known, study, naps, monkeypatch):
    box = Mailbox(where, study)
    unavailable(monkeypatch, 10**9)
    with pytest.raises(Unreachable, match="503"):
        box.post(known[B], answer(study), b"vector")
    assert sum(naps) < module.STUBBORN
    with pytest.raises(Unreachable, match="503"):
        box.wait([answer(study)], 3600)
    assert max(naps) == module.LONGEST_PAUSE


def test_a_folder_that_is_not_mounted_is_no_empty_mailbox(tmp_path, known, study, naps):
    box = Mailbox(tmp_path / "gone", study)
    with pytest.raises(Unreachable, match="cannot be reached: No such file"):
        box.get(answer(study))
    with pytest.raises(Unreachable, match="cannot be reached"):
        box.post(known[B], answer(study), b"vector")


@pytest.mark.slow
def test_a_put_that_arrived_although_its_answer_was_lost(s3, known, study, naps, monkeypatch):
    box, create, first = Mailbox(f"{s3}/mailbox", study), object_storage.create, [True]

    def lossy(path, content):
        create(path, content)
        if first.pop() if first else False:
            raise Unreachable("The answer was lost.")

    monkeypatch.setattr(object_storage, "create", lossy)
    box.post(known[B], answer(study), b"vector")
    assert naps == [1] and box.get(answer(study)).body == b"vector"


def test_waiting_for_files_that_come_one_by_one(folder, known, study, monkeypatch):
    box, headers, slept = Mailbox(folder, study), [answer(study, name) for name in NAMES], []
    clock = [0.0]

    def sleep(seconds):
        slept.append(seconds)
        clock[0] += seconds
        if (number := len(slept) // 3) < 3 and len(slept) % 3 == 0:
            box.post(known[NAMES[2 - number]], headers[2 - number], NAMES[2 - number].encode())
            if number == 2:
                box.post(known[C], headers[2], NAMES[2].encode())

    monkeypatch.setattr(module, "sleep", sleep)
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    found = box.wait(headers, 3600)
    assert list(found) == headers and [file.body for file in found.values()] == [name.encode() for name in NAMES]
    assert slept == sorted(slept) and slept[0] == module.FIRST_PAUSE[False]


def test_patience_ends_and_names_who_is_missing(folder, known, study, naps):
    box, headers = Mailbox(folder, study), [answer(study, name) for name in NAMES]
    box.post(known[A], headers[0], b"")
    with pytest.raises(PatienceOver, match="from hospital-b, hospital-c in run 1") as caught:
        box.wait(headers, 86400)
    assert caught.value.missing == (B, C) and sum(naps) == pytest.approx(86400)
    assert len(naps) < 86400 / module.LONGEST_PAUSE + 40
    naps.clear()
    with pytest.raises(PatienceOver):
        box.wait(headers, 0)
    assert naps == []


def test_a_site_that_left_is_not_waited_for(folder, known, study, naps):
    box, headers = Mailbox(folder, study), [answer(study, name) for name in NAMES]
    for name in (A, C):
        box.post(known[name], headers[NAMES.index(name)], b"")
        box.post(known[name], Header(study.digest, 1, 0, name, "end"), b"finished")
    box.post(known[B], Header(study.digest, 1, 0, B, "end"), b"left")
    with pytest.raises(SiteLeft, match="ended by hospital-b") as caught:
        box.wait(headers, 3600)
    assert caught.value.sites == (B,) and naps == []
    box.wait([Header(study.digest, 1, 0, B, "end")], 0)


def test_an_answer_that_came_with_the_end_counts(folder, known, study, naps, monkeypatch):
    """The end is the last file of a site: between the looks for the one and for the other, both may come."""
    box, header, real = Mailbox(folder, study), answer(study), Mailbox.get
    end = Header(study.digest, 1, 0, B, "end")

    def get(self, asked, *most):
        if asked == end and not (folder / end.name).exists():
            box.post(known[B], header, b"last")
            box.post(known[B], end, b"finished")
        return real(self, asked, *most)

    monkeypatch.setattr(Mailbox, "get", get)
    assert box.wait([header], 0)[header].body == b"last"


def test_waiting_refuses_a_bad_file_at_once(folder, known, study, naps):
    write(folder, answer(study).name, b"")
    with pytest.raises(FileRefused):
        Mailbox(folder, study).wait([answer(study)], 3600)
    assert naps == []
