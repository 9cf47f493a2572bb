"""Old artifacts of fedcore's flow runs, removed by age: each run leaves new versions of a report and of pages, and a
Prefect server keeps them all. Events are pruned by the server itself, by settings that `fedcore.flows.settings` makes.
"""

import logging
import urllib.error
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

from fedcore.flows.announce import ask
from fedcore.flows.dead import flow_names, repeating

EVERY = 3600.0  # seconds
PAGE = 50  # artifacts, each of which may have a megabyte
DAYS = 30.0  # after which those of a server that was started here are removed, unless the file says otherwise


def old_artifacts(address: str, before: datetime) -> Iterator[str]:
    """The ids of artifacts of flow runs that ended before this time, but for the newest of each key. Raises URLError,
    OSError, ValueError.
    """
    wanted = {
        "flows": {"name": {"any_": flow_names()}},
        "flow_runs": {"end_time": {"before_": before.isoformat()}},
        "sort": "ID_DESC",
        "limit": PAGE,
    }
    newest: dict[str, str] = {}
    offset = 0
    while page := ask(address, "/artifacts/filter", {**wanted, "offset": offset}):
        for one in page:
            if one["key"] is not None and one["key"] not in newest:
                found = ask(address, "/artifacts/latest/filter", {"artifacts": {"key": {"any_": [one["key"]]}}})
                newest[one["key"]] = found[0]["latest_id"] if found else ""
            if one["id"] != newest.get(one["key"]):
                yield one["id"]
        offset += len(page)


def prune(address: str, days: float, now: datetime | None = None) -> int:
    """Remove these artifacts; flow runs, logs and the runs' own reports stay. Returns how many. Raises as they do.

    days: since their flow run ended
    """
    before = (datetime.now(UTC) if now is None else now) - timedelta(days=days)
    old = list(old_artifacts(address, before))
    for id in old:
        ask(address, f"/artifacts/{id}", method="DELETE")
    return len(old)


def pruning(address: str, days: float) -> AbstractContextManager[None]:
    """Inside, old artifacts are removed at once and every hour. A server that does not answer is a line of log."""

    def work() -> None:
        try:
            prune(address, days)
        except (urllib.error.URLError, OSError, ValueError) as error:
            logging.getLogger(__name__).warning("old artifacts were not removed: %s", error)

    return repeating(work, EVERY)
