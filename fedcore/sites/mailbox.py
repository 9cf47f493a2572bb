"""The mailbox of a study: a folder or URL to which all sites can write, and in which no file is ever replaced.

Every file is signed, and holds its own name, so that one file cannot stand for another: of another study, run, round or
site. Files are found by name; no listing is trusted. Whatever a file holds is read within a bound, is never a path, and
never reaches a message.

A file has three parts: the header in one line of JSON, the signature of that line in hexadecimal, and the body.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final, Literal, get_args

from fedcore.errors import FileRefused, MailboxConflict, MailboxError, PatienceOver, SiteLeft, Unreachable
from fedcore.sites.identity import Identity, verify
from fedcore.sites.study import Study
from fedcore.storage import digests, files, shared
from fedcore.storage.files import Place
from fedcore.storage.parsing import parse_json

Kind = Literal["member", "answer", "end"]
SMALL: Final = 4096  # bytes of a body, where the reader states no other bound
ABOVE: Final = 1024  # bytes of header and signature, at most
STUBBORN: Final = 60.0  # seconds for which posting is tried again, while the mailbox cannot be reached
FIRST_PAUSE: Final = {False: 0.05, True: 1.0}  # seconds before the second look, in a folder and behind a URL
LONGEST_PAUSE: Final = 30.0
GROWTH: Final = 1.25  # of the pauses
SIGNATURE: Final = re.compile(rb"[0-9a-f]{128}")
LARGEST_NUMBER: Final = 10**9


@dataclass(frozen=True, slots=True)
class Header:
    """What a file is. study: digest, 32 bytes; run, from 1; round: from 1 for an answer, else 0; site: its writer"""

    study: bytes
    run: int
    round: int
    site: str
    kind: Kind

    def __post_init__(self) -> None:
        fits = self.round >= 1 if self.kind == "answer" else self.round == 0
        if self.kind not in get_args(Kind) or not fits or not 1 <= self.run <= LARGEST_NUMBER >= self.round:
            raise MailboxError(f"there is no file {self.kind!r} of round {self.round} of run {self.run}.")

    @property
    def name(self) -> str:
        """Of the file, below the mailbox."""
        return f"runs/{self.run}/{f'{self.round}.' if self.kind == 'answer' else ''}{self.kind}.{self.site}"

    def line(self, body: bytes) -> bytes:
        """What is signed."""
        return digests.canonical({**self._fields(), "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()})

    def _fields(self) -> dict[str, Any]:
        fields = {"run": self.run, "round": self.round, "site": self.site, "kind": self.kind, "file": self.name}
        return {"format": 1, "study": self.study.hex(), **fields}


@dataclass(frozen=True, slots=True)
class SignedFile:
    """A file that was verified. body: as its site has signed it; what it means is for the reader to check"""

    header: Header
    body: bytes


class Mailbox:
    """The mailbox of one study. Made for a place that exists; nothing is contacted before the first call."""

    def __init__(self, place: str | Place, study: Study) -> None:
        self.place = files.place(place)
        self.study = study

    def post(self, identity: Identity, header: Header, body: bytes) -> None:
        """Make a file of the site's own, whole and durable, unless it is there. The same bytes again are no error.

        While the mailbox cannot be reached this tries again for `STUBBORN` seconds. Raises MailboxConflict if there is
        another file of this name, MailboxError for a file that this identity cannot sign, Unreachable.
        """
        self._check_study(header)
        if (identity.name, identity.public) != (header.site, self.study.site(header.site).public):
            raise MailboxError(
                f"The study knows another key for site {header.site!r} than that of this identity.",
                "Use the identity with which the site joined the study.",
            )
        line = header.line(body)
        content = b"\n".join((line, identity.sign(line).hex().encode(), body))
        until, pause = monotonic() + STUBBORN, 1.0
        while True:
            try:
                return self._create(header, content)
            except Unreachable:
                if monotonic() + pause > until:
                    raise
                sleep(pause)
                pause *= 2

    def _create(self, header: Header, content: bytes) -> None:
        try:
            shared.create(self.place, header.name, content)
        except FileExistsError:
            there = self._read(header, len(content) + 1)
            if there is None:  # a store that is late
                raise Unreachable(f"{self.place / header.name} cannot be read yet.", "Try again later.") from None
            if there != content:
                raise MailboxConflict(
                    f"The mailbox has another file {header.name!r} than the one that this site would post.",
                    "Another process of this site may have posted it, or an older copy of this site was restored. Find "
                    "out which, and leave the run: files of a mailbox are never replaced.",
                ) from None
        except OSError as error:
            if error.errno not in shared.NO_LINKS:
                raise self._in_the_way(header) from error
            raise MailboxError(
                f"The file system of {self.place} cannot create a file only if there is none (hard links).",
                "Move the mailbox to another file system, or to object storage.",
            ) from error

    def get(self, header: Header, most: int = SMALL) -> SignedFile | None:
        """The file, verified with the key that the study has for its site; None if there is none.

        most: bytes that the body may have. Raises FileRefused if it is anything else than this file, StudyError for a
        site that the study does not have, Unreachable.
        """
        self._check_study(header)
        key = self.study.site(header.site).public
        content = self._read(header, ABOVE + most + 1)
        if content is None:
            return None
        line, _, rest = content.partition(b"\n")
        signature, _, body = rest.partition(b"\n")
        if len(content) > ABOVE + most or len(body) > most:
            raise self._refusal(header, f"is longer than the {most} bytes that the plan allows")
        if line != header.line(body):
            raise self._refusal(header, _difference(header, line, body))
        try:
            if not SIGNATURE.fullmatch(signature):
                raise FileRefused("")
            verify(key, bytes.fromhex(signature.decode()), line)
        except FileRefused:
            raise self._refusal(header, "is not signed with the key that the study has for this site") from None
        return SignedFile(header, body)

    def posted(self, header: Header) -> float | None:
        """When a file of this name came, in seconds since 1970 by the clock of the mailbox; None if there is none.

        For people: the file is not verified. Raises FileRefused for what is no file, Unreachable.
        """
        try:
            return shared.modified(self.place, header.name)
        except OSError as error:
            raise self._in_the_way(header) from error

    def wait(self, headers: Sequence[Header], patience: float, most: int = SMALL) -> Mapping[Header, SignedFile]:
        """All of these files, in the order given, as soon as all are there. patience: seconds; 0: one look

        A look asks for each missing file, and whether its site has ended the run. Pauses between looks grow to
        `LONGEST_PAUSE`. A mailbox that cannot be reached is asked again. Raises PatienceOver, SiteLeft, and at the end
        of the patience Unreachable if the last look failed; FileRefused at once.
        """
        found: dict[Header, SignedFile] = {}
        until, pause = monotonic() + patience, FIRST_PAUSE[files.is_remote(self.place)]
        while True:
            failed = None
            try:
                self._look(headers, found, most)
            except Unreachable as error:
                failed = error
            missing = tuple(header for header in headers if header not in found)
            if not missing:
                return {header: found[header] for header in headers}
            left = until - monotonic()
            if left <= 0:
                raise failed or _patience_over(missing)
            sleep(min(pause, left))
            pause = min(pause * GROWTH, LONGEST_PAUSE)

    def _look(self, headers: Sequence[Header], found: dict[Header, SignedFile], most: int) -> None:
        for header in headers:
            if header not in found and (file := self.get(header, most)) is not None:
                found[header] = file
        ended = []
        for header in headers:
            end = Header(header.study, header.run, 0, header.site, "end")
            if header in found or header == end or self.get(end) is None:
                continue
            if (file := self.get(header, most)) is None:  # looked for after its end, which is the last file of a site
                ended.append(header.site)
            else:
                found[header] = file
        if ended:
            raise SiteLeft(
                f"Run {headers[0].run} of the study was ended by {', '.join(ended)}.",
                "What was published is usable. The next run continues from there.",
                tuple(ended),
            )

    def _read(self, header: Header, most: int) -> bytes | None:
        try:
            return shared.read(self.place, header.name, most)
        except OSError as error:
            raise self._in_the_way(header) from error

    def _in_the_way(self, header: Header) -> FileRefused:
        return self._refusal(header, "is not a regular file in regular folders")

    def _refusal(self, header: Header, why: str) -> FileRefused:
        return FileRefused(
            f"The file {header.name!r} of the mailbox {why}. Nothing was taken from it.",
            f"Ask the site {header.site!r} and the owner of the mailbox. A file that arrives slowly is whole "
            "later: try again.",
        )

    def _check_study(self, header: Header) -> None:
        if header.study != self.study.digest:
            raise MailboxError("This mailbox is of another study.", "Use the mailbox with which the site joined.")


def _difference(header: Header, line: bytes, body: bytes) -> str:
    """Why this is not the header of that file, in words of this program alone."""
    try:
        stated = parse_json(line) if len(line) <= ABOVE else None
    except ValueError:
        stated = None
    if not isinstance(stated, dict):
        return "has no header that can be read"
    for name, value in header._fields().items():
        if stated.get(name) != value or type(stated.get(name)) is not type(value):
            return WRONG[name]
    if stated.get("bytes") != len(body):
        return "is cut or was extended"
    return "was changed after it was signed"


WRONG: Final = {
    "format": "is of a format that this version does not read",
    "study": "belongs to another study",
    "run": "belongs to another run",
    "round": "belongs to another round",
    "site": "belongs to another site",
    "kind": "is of another kind",
    "file": "has another name than it was given by its site",
}


def _patience_over(missing: Sequence[Header]) -> PatienceOver:
    sites = tuple(header.site for header in missing)
    return PatienceOver(
        f"Nothing came yet from {', '.join(sites)} in run {missing[0].run} of the study.",
        "Ask these sites whether `fedcore site serve` runs there.",
        sites,
    )
