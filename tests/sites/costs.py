"""What the rounds of studies cost, from the requests that a relay has seen."""

import re
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedcore.sites.masks import MaskContext, mask, new_run_key, public_bytes
from fedcore.sites.study import Study
from tests.relay import Request

FILE = re.compile(r"^/(?P<study>.+)/runs/(?P<run>[0-9]+)/(?:(?P<round>[0-9]+)[.])?(?P<kind>[a-z]+)[.](?P<of>[^/]+)$")
FOUND = (200, 206)


def costs(made: Iterable[Request], sites: Iterable[str]) -> list[dict[str, Any]]:
    """One row for each round of each run of a study that all sites have answered.

    seconds: from the moment when the last site had the files of all for the round before, until it has those of this
    work: the longest time that a site took from the files of all before to the request with its own answer
    requests: of the site with most. waiting: those for files of others that were not there, which are not among these
    bytes: of the largest answer
    """
    names, put, got, of_round = {*sites}, Table(), Table(), Table()
    newest: dict[tuple[str, str, str], int] = {}  # round to which the last answer belongs that a site asked for
    for one in made:
        file = FILE.search(one.path)
        if file is None or one.cut:
            continue
        at = (one.site, file["study"], file["run"])
        newest[at] = round = newest.get(at, 0) if file["kind"] == "end" else int(file["round"] or 0)
        key, own, found = (file["study"], int(file["run"]), round), file["of"] == one.site, one.status in FOUND
        counted = of_round.at(key).setdefault(one.site, {"requests": 0, "waiting": 0})
        counted["requests" if own or found else "waiting"] += 1
        if one.method == "PUT":
            put.at(key).setdefault(one.site, one)
        elif found and file["kind"] != "end":
            got.at(key).setdefault(one.site, {}).setdefault(file["of"], one.end)
    rows = []
    for study, run, round in sorted(put):
        key, before = (study, run, round), (study, run, round - 1)
        if round < 1 or any({*of.at(each)} != names for of in (put, got) for each in (before, key)):
            continue
        own, begun, had = put[key], *({site: max(of.values()) for site, of in got[at].items()} for at in (before, key))
        row = {
            "study": study,
            "run": run,
            "round": round,
            "seconds": max(had.values()) - max(begun.values()),
            "work": max(own[site].start - begun[site] for site in names),
            **{of: max(count[of] for count in of_round[key].values()) for of in ("requests", "waiting")},
            "bytes": max(one.body for one in own.values()),
        }
        rows.append(row)
    return rows


class Table(dict[tuple[str, int, int], dict[str, Any]]):
    """(study, run, round) -> site -> what was seen of it."""

    def at(self, key: tuple[str, int, int]) -> dict[str, Any]:
        return self.setdefault(key, {})


def masks_ms(cells: int = 10_000, peers: int = 20) -> float:
    """Milliseconds for the mask with one peer, without the exchange of keys. Median of 20."""
    context = MaskContext(bytes(32), bytes(32), 1, 1, bytes(32))
    own, keys = new_run_key(), {f"p{number}": public_bytes(new_run_key()) for number in range(peers)}
    seconds: dict[int, list[float]] = {0: [], cells: []}
    for _ in range(20):
        for size, taken in seconds.items():
            began = time.perf_counter()
            mask(own, "me", keys, context, "release", size)
            taken.append(time.perf_counter() - began)
    return 1000 * (statistics.median(seconds[cells]) - statistics.median(seconds[0])) / peers


def cost_table(made: Iterable[Request], sites: Iterable[str], studies: Mapping[str, Study]) -> list[str]:
    """A row for each study: medians over the rounds of all runs, and the largest answer."""
    rows = costs(made, sites)
    table = [
        "| study | rounds | cells | bytes of an answer | requests | waiting requests | seconds | slowest site |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, study in studies.items():
        of = [row for row in rows if row["study"].endswith(name)]
        cells: dict[int, int] = {}  # of the first run: later ones may leave out rounds
        for release in study.plan(1)[0]:
            cells[release.round] = cells.get(release.round, 0) + release.cells
        over = {row["bytes"] - 8 * cells[row["round"]] for row in of if row["run"] == 1}
        middle = {
            key: f"{np.median([row[key] for row in of]):.3g}" for key in ("requests", "waiting", "seconds", "work")
        }
        sizes = f"{min(cells.values())} to {max(cells.values())}"
        table.append(
            f"| {name} | {len(of)} | {sizes} | 8 a cell + {min(over)} to {max(over)} | {' | '.join(middle.values())} |"
        )
    return table
