"""What changed since the run before: the result, data, settings, software, privacy, scores.

The run before is the newest finished one of the same deployment that began earlier. Without a deployment, it is one of
the same method and population. All compared facts are in the records of the two runs, or are scores on public data.
Exact numbers of clients and rows are compared only if neither run is private. The page of a private run may be shown to
others than the operator, and two exact counts can reveal whether a certain client came in between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedcore.errors import FedcoreError
from fedcore.evaluation.result_changes import sizes_changed, values_changed
from fedcore.evaluation.run_summary import privacy_of, public_score, result_of
from fedcore.evaluation.written import iso_date, show
from fedcore.population.store import Population
from fedcore.rounds.choices import flat
from fedcore.runs.store import Run, list_runs
from fedcore.storage.parsing import JsonObject
from fedcore.storage.ranges import in_words

KINDS = ("result", "data", "settings", "software", "privacy", "scores")
LONGEST = 120  # characters of a value
NOT_THERE = "not there"
ROUNDING = 1e-12  # relative difference of equal numbers


@dataclass(frozen=True, slots=True)
class Change:
    """kind: one of KINDS; before, now: in words; note: a remark on both."""

    kind: str
    what: str
    before: str
    now: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Since:
    """run, started: of the run before; both in words."""

    run: str
    started: str
    changes: tuple[Change, ...] = field(default=())

    @property
    def in_words(self) -> str:
        """What was compared, and what of it is the same."""
        changed = {change.kind for change in self.changes}
        same = [kind for kind in KINDS if kind not in changed]
        began = f", which began {self.started}" if self.started else ""
        unchanged = f" No difference in {', '.join(same)}." if same else ""
        return f"Compared with run {self.run}{began}.{unchanged}"


def since_the_run_before(run: Run) -> Since | str | None:
    """What changed since the run before; None if there is none; why the two could not be compared, in words."""
    try:
        before = run_before(run)
        return None if before is None else compared(before, run)
    except FedcoreError as error:
        return f"This run could not be compared with the one before it: {error}"


def run_before(run: Run) -> Run | None:
    """The run that this one is compared with, from the same folder or URL."""
    mine = _series(run.info)
    found = [
        other
        for other in list_runs(run.path.parent)
        if other.status == "finished" and _series(other.info) == mine and _age(other) < _age(run)
    ]
    return max(found, key=_age, default=None)


def _series(info: JsonObject) -> tuple[object, ...]:
    deployment = info.get("deployment")
    return (deployment,) if deployment else (None, info.get("method"), (info.get("population") or {}).get("id"))


def _age(run: Run) -> tuple[str, str]:
    return str(run.info.get("started")), run.id


def compared(before: Run, now: Run) -> Since:
    """What differs between two runs, by kind."""
    changes = [*_result(before, now), *_data(before, now), *_settings(before, now), *_software(before, now)]
    changes += [*_privacy(before, now), *_scores(before, now)]
    return Since(before.id, str(iso_date(before.info.get("started") or "")), tuple(changes))


def _differences(kind: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """One for each name whose value is another."""
    names = list(dict.fromkeys([*now, *before]))
    pairs = {name: (before.get(name, NOT_THERE), now.get(name, NOT_THERE)) for name in names}
    return [
        Change(kind, name.replace("_", " "), *_in_words(*pair)) for name, pair in pairs.items() if not _equal(*pair)
    ]


def _equal(before: Any, now: Any) -> bool:
    """Also of numbers that differ by rounding alone, as sums that were added in another order."""
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=ROUNDING)
    return bool(before == now)


def _in_words(before: Any, now: Any) -> tuple[str, str]:
    """Two values that differ, rounded and cut as far as that still shows."""
    shown = [["None" if value is None else write(value) for value in (before, now)] for write in (show, repr)]
    for one, other in ([_cut(text) for text in texts] for texts in shown):
        if one != other:
            return one, other
    return shown[0][0][:LONGEST], f"{shown[0][1][:LONGEST]} … differs further on"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


# --- the kinds --------------------------------------------------------------------------------------------------------


def _result(before: Run, now: Run) -> list[Change]:
    """Sizes of tables, and values that differ by more than noise explains; nothing for a run whose model is removed."""
    old, new = result_of(before), result_of(now)
    changes = [Change("result", f"{what}: rows", f"{one}", f"{other}") for what, one, other in sizes_changed(old, new)]
    private = any(run.info.get("private") is not False for run in (before, now))
    values, every = values_changed(old, new, private)
    for one in values:
        note = "" if one.errors is None else f"{one.errors:.3g} standard errors of the noise"
        changes.append(Change("result", one.what, show(one.before), show(one.now), note))
    if every > len(values):
        changes.append(Change("result", "more values that changed", "", str(every - len(values))))
    return changes


def _data(before: Run, now: Run) -> list[Change]:
    exact = all(run.info.get("private") is False for run in (before, now))
    return _differences("data", _data_of(before, exact), _data_of(now, exact))


def _data_of(run: Run, exact: bool) -> dict[str, Any]:
    """exact: with numbers of clients and rows, if the version is still there."""
    info, population = run.info, run.info.get("population") or {}
    found: dict[str, Any] = {"population": population.get("name")}
    if population.get("id"):
        found["population id"] = str(population["id"])[:8]
    found |= {"version": population.get("version"), "features": info.get("features")}
    if info.get("nominal_clients") is not None:
        found["declared clients"] = info["nominal_clients"]
    if columns := info.get("columns"):
        found["columns"] = ", ".join(_column(column) for column in columns)
    if cohorts := info.get("cohorts"):
        found["cohorts"] = in_words(tuple((int(first), int(last)) for first, last in cohorts))
    if exact:
        try:
            store = Population.open(population["path"], version=population["version"])
        except (FedcoreError, KeyError):
            return found
        rows = "rows" if store.kind == "rows" else "tokens"
        if store.id == population.get("id"):
            found |= {"clients": store.n_clients, rows: store.n_rows}
    return found


def _column(column: Mapping[str, Any]) -> str:
    return f"{column.get('name')} ({column['unit']})" if column.get("unit") else str(column.get("name"))


def _settings(before: Run, now: Run) -> list[Change]:
    return _differences("settings", _settings_of(before), _settings_of(now))


def _settings_of(run: Run) -> dict[str, Any]:
    info = run.info
    asked = {"method": info.get("method"), "seed": info.get("seed"), "starts from": _start(info.get("start"))}
    return {**asked, **flat(info.get("config") or {})}


def _start(record: JsonObject | None) -> str:
    """A series starts from another run each time, which is no change."""
    if not record:
        return "nothing"
    if record.get("kind") == "run":
        return "an earlier run"
    return f"file {record.get('name')} (SHA-256 {str(record.get('sha256'))[:8]})"


def _software(before: Run, now: Run) -> list[Change]:
    """Of packages only where both runs name them."""
    names = [run.info.get("software") or {} for run in (before, now)]
    packages = [name for name in names[1] if name in names[0]] if all(names) else []
    kept = [
        {
            "fedcore": run.info.get("code_version"),
            "arithmetic": run.info.get("kernel"),
            **{name: found[name] for name in packages},
        }
        for run, found in zip((before, now), names, strict=True)
    ]
    return _differences("software", *kept)


def _privacy(before: Run, now: Run) -> list[Change]:
    promised = [_promise(run) for run in (before, now)]
    return _differences("privacy", *promised) if all(promised) else []


def _promise(run: Run) -> dict[str, Any]:
    """What the statement promises; empty while there is none yet."""
    privacy = privacy_of(run)
    if privacy.get("pending"):
        return {}
    if not privacy["private"]:
        return {"privacy": "none"}
    promised = {"privacy": "differential", "declared, not verified": bool(privacy.get("vouched"))}
    named = ("unit", "relation", "epsilon", "delta", "rho")
    return promised | {name: privacy[name] for name in named if privacy.get(name) is not None}


def _scores(before: Run, now: Run) -> list[Change]:
    old, new = public_score(before), public_score(now)
    if (old is None and new is None) or now.status == "running":  # which is not scored yet
        return []
    if old is None or new is None or (old.loss, old.on) != (new.loss, new.on):
        said = ["not scored" if one is None else f"{one.loss} {show(one.score)} on {one.on}" for one in (old, new)]
        return [] if said[0] == said[1] else [Change("scores", "score", *said)]
    if old.score == new.score:
        return []
    by = abs(new.score - old.score)
    words = f"{'better' if new.score < old.score else 'worse'} by {by:.3g}"
    error = "" if new.standard_error is None else f"; standard error of each about {new.standard_error:.2g}"
    return [Change("scores", f"{new.loss} on {new.on}", show(old.score), show(new.score), f"{words}{error}")]
