"""The turns of a site: each starts or continues the newest run of one study that the site has joined.

A run of a study is an ordinary run. Its name has those of the study and of the site, and the number of the run. Nothing
else is kept of where a site stands, so a process that was killed anywhere is followed by the next one. A site that was
away looks for the run that the others are in.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from fedcore.errors import NothingLeft, PatienceOver, RunLeft
from fedcore.runs.store import Run
from fedcore.sites.identity import Identity
from fedcore.sites.joining import Joined
from fedcore.sites.mailbox import LARGEST_NUMBER, Header, Kind, Mailbox
from fedcore.sites.progress import end_of, last_that
from fedcore.sites.publisher import StudyPublishing, study_spec
from fedcore.sites.run_key import RunKey
from fedcore.storage import files
from fedcore.training.publishing import Publishing
from fedcore.training.request import TrainRequest
from fedcore.training.session import ENDED
from fedcore.training.spec import RunSpec

FINISHED: Final = "finished"
ENDED_FOR_ALL: Final = "ended"
IDLE: Final = "not due"
STAMP: Final = "%Y%m%dT%H%M%S"  # how run.json states when a run was started


@dataclass(frozen=True)
class Turn:
    """What a turn has done. run: number. state: "finished", "ended" (for all), "waits" or "not due". words: why"""

    study: str
    run: int
    state: str
    words: str = ""


class Making(Protocol):
    """How this process makes a run to its end: `begin` a new one with its spec, or `resume` one at a place."""

    def begin(self, request: TrainRequest, spec: RunSpec, publisher: Publishing) -> None: ...

    def resume(self, path: str, publisher: Publishing) -> None: ...


def take_turn(
    joined: Joined, identity: Identity, making: Making, *, waits: float, once: bool, now: Callable[[], datetime]
) -> Turn:
    """Continue the newest run of a study, or start the next one if it is due.

    waits: seconds that this process waits for other sites in a round. once: whether a run without an interval is due.
    Raises what `start_run`, `resume`, the engine and the mailbox raise; after all of that, the next turn continues.
    """
    if (idle := idle_turn(joined, identity, once=once, now=now)) is not None:
        return idle
    turns = _Turns(joined, identity, waits)
    number, last = turns.last()
    if last is None or last.status in ENDED:
        number, last = turns.next_number(number), None
    try:
        if last is None:
            making.begin(*turns.request(number))
        else:
            making.resume(turns.path(number), turns.publishing(number, turns.start_of(last)))
    except PatienceOver as error:
        return Turn(joined.name, number, "waits", f"for {', '.join(error.missing)}")
    except RunLeft as error:
        return Turn(joined.name, number, ENDED_FOR_ALL, error.message)
    return Turn(joined.name, number, FINISHED)


def idle_turn(joined: Joined, identity: Identity, *, once: bool, now: Callable[[], datetime]) -> Turn | None:
    """The turn of a site that has no run to start or to continue now; None if there is one. once: whether a run without
    an interval is due, and one that waits for other sites is continued. Raises what the mailbox raises.
    """
    turns = _Turns(joined, identity, 0.0)
    number, last = turns.last()
    if last is not None and last.status not in ENDED:
        awaited = [] if once else turns.awaited(number)  # the call of --once waits for them itself
        return Turn(joined.name, number, "waits", f"for {', '.join(awaited)}") if awaited else None
    if not _is_due(joined, last, once, now()):
        return Turn(joined.name, number, IDLE)
    if last is not None and (missing := turns.unfinished(number, last, now())):
        return Turn(joined.name, number, "waits", f"for the end of this run at {', '.join(missing)}")
    return None


def _is_due(joined: Joined, last: Run | None, once: bool, now: datetime) -> bool:
    if joined.study.every is None or last is None:
        return once or joined.study.every is not None
    started = datetime.strptime(str(last.info["started"]), STAMP).replace(tzinfo=UTC)
    return now >= started + timedelta(seconds=joined.study.every)


@dataclass(frozen=True)
class _Turns:
    joined: Joined
    identity: Identity
    waits: float

    @property
    def mailbox(self) -> Mailbox:
        return Mailbox(self.joined.mailbox, self.joined.study)

    @property
    def others(self) -> list[str]:
        return [site.name for site in self.joined.study.sites if site.name != self.identity.name]

    def run_id(self, number: int) -> str:
        return f"study-{self.joined.name}-{self.identity.name}-{number}"

    def path(self, number: int) -> str:
        return str(files.below(files.place(self.joined.runs), self.run_id(number)))

    def newest(self) -> int:
        """Number of the newest run at this site; 0 before the first one."""
        prefix, found = self.run_id(0)[:-1], 0
        for name in files.listing(files.place(self.joined.runs)):
            number = name.removeprefix(prefix)
            if name.startswith(prefix) and number.isascii() and number.isdigit() and len(number) < 10:
                found = max(found, int(number))
        return found

    def last(self) -> tuple[int, Run | None]:
        """(number, run) of the newest run at this site; (0, None) before the first one."""
        number = self.newest()
        return number, None if number == 0 else Run.open(self.path(number))

    def next_number(self, number: int) -> int:
        """The run after this one that no other site has ended yet."""
        number += 1
        while number < LARGEST_NUMBER and any(self.end(number, site) for site in self.others):
            number += 1
        return number

    def end(self, number: int, site: str) -> dict[str, Any]:
        return end_of(self.mailbox, number, site)

    def awaited(self, number: int) -> list[str]:
        """Other sites without which this site can do nothing in a run that it has begun: their answers to the round
        that it has answered last are not there, none of them has ended the run, and the patience of the study lasts.
        Empty if the run has ended at this site, or has lost its key or its note of that answer: then this site acts.
        """
        me = self.identity.name
        key = RunKey(self.joined.study.digest, number, me)
        round = last_that(LARGEST_NUMBER, lambda round: self._posted("answer", me, number, round))
        if key.ended() is not None or (round == 0 and self._posted("member", me, number) is None):
            return []
        if (since := key.since(round)) is None or time.time() > since + self.joined.study.patience:
            return []
        kind: Kind = "answer" if round else "member"
        missing = [site for site in self.others if self._posted(kind, site, number, round) is None]
        return [] if any(self._posted("end", site, number) is not None for site in missing) else missing

    def _posted(self, kind: Kind, site: str, number: int, round: int = 0) -> float | None:
        return self.mailbox.posted(Header(self.joined.study.digest, number, round, site, kind))

    def unfinished(self, number: int, last: Run, now: datetime) -> list[str]:
        """Other sites that may still end a run that is finished here, and from which the next run would start."""
        ended = datetime.strptime(str(last.info["started"]), STAMP).replace(tzinfo=UTC)
        if last.status != FINISHED or now > ended + timedelta(seconds=self.joined.study.patience):
            return []
        return [site for site in self.others if not self.end(number, site)]

    def request(self, number: int) -> tuple[TrainRequest, RunSpec, StudyPublishing]:
        """A new run. It starts from the newest run that all sites have finished with the same totals, if that has left
        anything to start from.
        """
        warm = self.joined.study.made_method().accepts_warm_start
        try:
            return self._request(number, self.shared_before(number) if warm else 0)
        except NothingLeft:
            return self._request(number, 0)

    def _request(self, number: int, start: int) -> tuple[TrainRequest, RunSpec, StudyPublishing]:
        study = self.joined.study
        request = TrainRequest(
            method=study.method,
            population=self.joined.population,
            settings=study.settings,
            runs=self.joined.runs,
            run_id=self.run_id(number),
            start_from=self.path(start) if start else None,
        )
        spec = study_spec(study, number, self.identity, request)
        return request, spec, self.publishing(number, start)

    def shared_before(self, number: int) -> int:
        """Number of the newest run before this one that all sites have finished with the same totals; 0: none."""
        for earlier in range(number - 1, 0, -1):
            ends = [self.end(earlier, site.name) for site in self.joined.study.sites]
            if all(end.get("reason") == FINISHED and end["totals"] == ends[0]["totals"] for end in ends):
                return earlier
        return 0

    def start_of(self, run: Run) -> int:
        """Number of the run from which a run of this study started; 0: none."""
        record = run.info.get("start")
        return 0 if record is None else int(str(record["name"]).rpartition("-")[2])

    def publishing(self, number: int, start: int) -> StudyPublishing:
        """start: number of the run that it starts from; 0: none."""
        digest = b""
        if start:
            totals = str(self.end(start, self.identity.name).get("totals"))
            digest = hashlib.sha256(f"fedcore start 1 {start} {totals}".encode()).digest()
        return StudyPublishing(self.joined.study, number, self.identity, self.mailbox, start=digest, waits=self.waits)
