"""How the newest run of a study stands, as its mailbox shows it: for people, and nothing depends on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fedcore.sites.mailbox import LARGEST_NUMBER, Header, Kind, Mailbox


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

    run = _last(LARGEST_NUMBER, lambda run: next((1 for site in names if came("member", run, site) is not None), None))
    if run == 0:
        return Progress(0, dict.fromkeys(names), (), (), None)
    most = max(release.round for release in mailbox.study.plan(1)[0])
    rounds: dict[str, int | None] = {}
    times: list[float] = []
    for site in names:
        begun = came("member", run, site)
        answered = partial(came, "answer", run, site)
        rounds[site] = None if begun is None else _last(most, answered)
        newest = answered(rounds[site] or 0) if rounds[site] else begun
        times += [] if newest is None else [newest]
    ended = tuple(site for site in names if came("end", run, site) is not None)
    steps = {site: -1 if done is None else done for site, done in rounds.items()}
    behind = () if ended else tuple(site for site in names if steps[site] < max(steps.values()))
    return Progress(run, rounds, ended, behind, max(times, default=None) if behind else None)


def _last(most: int, came: Callable[[int], object]) -> int:
    """The largest number up to `most` that came (is not None), if all before it did; 0 if none did."""
    high = 1
    while high <= most and came(high) is not None:
        high *= 2
    low, high = high // 2, min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if came(middle) is not None else (low, middle)
    return low
