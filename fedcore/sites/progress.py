"""What the mailbox of a study shows: how its runs ended, how the newest one stands, and what each site has posted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import NoneType
from typing import Any, Final

from fedcore.errors import FileRefused
from fedcore.sites.mailbox import LARGEST_NUMBER, Header, Kind, Mailbox
from fedcore.storage import files
from fedcore.storage.parsing import parse_json

POSTED: Final = re.compile(r"[0-9]+/(?:[0-9]+[.]answer|member|end)[.](.+)")  # below `runs`; the name of the site

OF_END: Final[dict[str, type | tuple[type, ...]]] = {
    "reason": str,
    "rounds": int,
    "totals": str,
    "state": (str, NoneType),
}


def end_of(mailbox: Mailbox, run: int, site: str) -> dict[str, Any]:
    """What the end file of a site states: `reason`, `rounds`, and hexadecimal digests of the `totals` and of the stored
    `state` with which the run ended there, or None for no state; empty if there is no file. Raises FileRefused,
    Unreachable.
    """
    file = mailbox.get(Header(mailbox.study.digest, run, 0, site, "end"))
    if file is None:
        return {}
    with suppress(ValueError):
        stated = parse_json(file.body)
        if isinstance(stated, dict) and all(isinstance(stated.get(name), of) for name, of in OF_END.items()):
            return stated
    raise FileRefused(f"The end file of site {site!r} in run {run} does not state how the run ended.")


@dataclass(frozen=True)
class Progress:
    """run: number, 0 before the first one. rounds: how many each site has answered; None: it has not begun
    ended: sites that have ended the run. awaited: sites that all others wait for. since: seconds since 1970
    """

    run: int
    rounds: Mapping[str, int | None]
    ended: tuple[str, ...]
    awaited: tuple[str, ...]
    since: float | None

    def to_json(self) -> dict[str, Any]:
        since = None if self.since is None else datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "run": self.run,
            "rounds_answered": dict(self.rounds),
            "ended": list(self.ended),
            "awaited": list(self.awaited),
            "awaited_since": since,
        }


def progress_of(mailbox: Mailbox) -> Progress:
    """Of the newest run. Files are looked for by name, about twenty for each site. Raises Unreachable, FileRefused."""
    names = [site.name for site in mailbox.study.sites]

    def came(kind: Kind, run: int, site: str, round: int = 0) -> float | None:
        return mailbox.posted(Header(mailbox.study.digest, run, round, site, kind))

    run = last_that(
        LARGEST_NUMBER, lambda run: next((1 for site in names if came("member", run, site) is not None), None)
    )
    if run == 0:
        return Progress(0, dict.fromkeys(names), (), (), None)
    most = max(release.round for release in mailbox.study.plan(1)[0])
    rounds: dict[str, int | None] = {}
    times: list[float] = []
    for site in names:
        begun = came("member", run, site)
        answered = partial(came, "answer", run, site)
        rounds[site] = None if begun is None else last_that(most, answered)
        newest = answered(rounds[site] or 0) if rounds[site] else begun
        times += [] if newest is None else [newest]
    ended = tuple(site for site in names if came("end", run, site) is not None)
    steps = {site: -1 if done is None else done for site, done in rounds.items()}
    behind = () if ended else tuple(site for site in names if steps[site] < max(steps.values()))
    return Progress(run, rounds, ended, behind, max(times, default=None) if behind else None)


def final_states(mailbox: Mailbox, newest: int) -> dict[str, Any] | None:
    """Whether sites have ended a run with the same model: `run`, the `sites` that ended it after most rounds, and
    whether their states have the `same_bits`. Of the newest run that two sites have ended, which is this one or the one
    before; None if there is none. Raises FileRefused, Unreachable.
    """
    for run in range(newest, max(newest - 2, 0), -1):
        ends = {site.name: end_of(mailbox, run, site.name) for site in mailbox.study.sites}
        most = max(end.get("rounds", 0) for end in ends.values())
        states = {site: end["state"] for site, end in ends.items() if end.get("state") and end["rounds"] == most}
        if len(states) > 1:
            return {"run": run, "sites": list(states), "same_bits": len({*states.values()}) == 1}
    return None


def posted(mailbox: Mailbox) -> dict[str, dict[str, int]]:
    """{site: {"files": number, "bytes": all of them}} that the mailbox lists. Raises Unreachable."""
    found = {site.name: {"files": 0, "bytes": 0} for site in mailbox.study.sites}
    for name, size in files.sizes(files.below(mailbox.place, "runs")).items():
        writer = POSTED.fullmatch(name)
        if writer and writer[1] in found:
            found[writer[1]]["files"] += 1
            found[writer[1]]["bytes"] += size
    return found


def last_that(most: int, came: Callable[[int], object]) -> int:
    """The largest number up to `most` that came (is not None), if all before it did; 0 if none did."""
    high = 1
    while high <= most and came(high) is not None:
        high *= 2
    low, high = high // 2, min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if came(middle) is not None else (low, middle)
    return low
