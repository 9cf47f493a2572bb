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

from fedcore.errors import FileRefused, Unreachable
from fedcore.sites.mailbox import LARGEST_NUMBER, Header, Kind, Mailbox
from fedcore.storage import files
from fedcore.storage.parsing import parse_json

POSTED: Final = re.compile(r"[0-9]+/(?:[0-9]+[.]answer|member|end)[.](.+)")  # below `runs`; the name of the site

OF_END: Final[dict[str, tuple[type, ...]]] = {
    "reason": (str,),
    "rounds": (int,),
    "totals": (str,),
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
        if isinstance(stated, dict) and all(type(stated.get(name)) in of for name, of in OF_END.items()):
            if stated["totals"]:
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
    most = _rounds_of(mailbox)
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
    whether they saw the `same_totals` and their states have the `same_bits`; None for both with fewer than two sites.
    `unreadable`: sites whose end file is refused, or states more rounds than the plan has. Of the newest run that two
    sites have ended or that has such a file, which is this one or the one before; None if there is none. Raises
    Unreachable.
    """
    planned = _rounds_of(mailbox)
    for run in range(newest, max(newest - 2, 0), -1):
        ends: dict[str, dict[str, Any]] = {}
        for site in mailbox.study.sites:
            with suppress(FileRefused):
                if (end := end_of(mailbox, run, site.name)).get("rounds", 0) <= planned:
                    ends[site.name] = end
        most = max((end.get("rounds", 0) for end in ends.values()), default=0)
        last = {site: end for site, end in ends.items() if end.get("state") and end["rounds"] == most}
        unreadable = [site.name for site in mailbox.study.sites if site.name not in ends]
        if len(last) > 1 or unreadable:
            totals, states = ({end[name] for end in last.values()} for name in ("totals", "state"))
            return {
                "run": run,
                "sites": list(last),
                "same_totals": len(totals) == 1 if len(last) > 1 else None,
                "same_bits": len(states) == 1 if len(last) > 1 else None,
                "unreadable": unreadable,
            }
    return None


def _rounds_of(mailbox: Mailbox) -> int:
    """The last round of the plan in which the sites answer."""
    return max(release.round for release in mailbox.study.plan(1)[0])


def posted(mailbox: Mailbox) -> dict[str, dict[str, int]]:
    """{site: {"files": number, "bytes": all of them}} that the mailbox lists. Raises Unreachable, also where reading
    and creating files is allowed and listing them is not.
    """
    found = {site.name: {"files": 0, "bytes": 0} for site in mailbox.study.sites}
    runs = files.below(mailbox.place, "runs")
    try:
        files.listing(runs)  # raises for a folder that may not be listed, which `sizes` passes over
        sizes = files.sizes(runs)
    except OSError as error:
        raise Unreachable(f"{mailbox.place} cannot be listed: {error.strerror}.", "Check its permissions.") from error
    for name, size in sizes.items():
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
