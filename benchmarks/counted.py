"""`python -m benchmarks.counted FILE ARGUMENTS`: does `fedcore ARGUMENTS`, and writes to FILE (JSON) the CPU-seconds of
the child processes, which are Dask's, and what the Prefect server was sent: HTTP requests, and events by its socket.
"""

import json
import resource
import sys
from pathlib import Path


def main() -> None:
    file, sys.argv = Path(sys.argv[1]), ["fedcore", *sys.argv[2:]]
    sent = {"requests": 0, "events": 0}
    if "--local" not in sys.argv:
        _count(sent)
    from fedcore.cli import main as command

    try:
        command()
    finally:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        file.write_text(json.dumps({"children": usage.ru_utime + usage.ru_stime, **sent}))


def _count(sent: dict) -> None:
    import httpx
    from prefect.events.clients import PrefectEventsClient

    for owner, name, kind in (
        (httpx.Client, "send", "requests"),
        (httpx.AsyncClient, "send", "requests"),
        (PrefectEventsClient, "_emit", "events"),
    ):
        setattr(owner, name, _counting(getattr(owner, name), kind, sent))


def _counting(function, kind: str, sent: dict):
    def counted(*arguments, **options):
        sent[kind] += 1
        return function(*arguments, **options)

    return counted


if __name__ == "__main__":
    main()
