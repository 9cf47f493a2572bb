"""Starts of a run: the final state of an earlier run of the method, or arrays that are declared public.

A private run treats its start as public: it is in the messages to the clients from the first round on and costs no
budget. So it must be the outcome of a private run, which was charged for it, or declared public with a reason. In the
latter case the headline of the privacy statement assumes that the declaration is true. No declaration can make exact
values of a population public for that population. A run that published such values is refused as the start of a private
run on the same population, directly or through any chain of starts. So every start lists the populations whose exact
values may be in it ("unprotected"), and the declarations that it assumes (`vouched`).
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import ConfigError, NothingLeft, PopulationError, PrivacyError, RunError, retired
from fedcore.methods.names import METHODS
from fedcore.methods.registry import method_class, method_of_run
from fedcore.population.store import Population
from fedcore.rounds.method import AnyMethod
from fedcore.runs.digests import ARRIVAL
from fedcore.runs.store import LoadedRun, Run, list_runs, load_run
from fedcore.storage.files import Place, absolute, check_regular, is_remote, place, read_bytes
from fedcore.storage.npz import BROKEN, read_npz
from fedcore.storage.parsing import JsonObject, parse_json
from fedcore.training.record import other_columns
from fedcore.training.shared_ids import holds_data_of

if TYPE_CHECKING:
    from fedcore.privacy.ledger.ledger import Ledger

PREVIOUS = "previous"
LARGEST_FILE = 2**31  # bytes of arrays


@dataclass(frozen=True)
class WarmStart:
    """arrays: by name, float64, as the method wants them. record: what run.json says of them."""

    arrays: dict[str, np.ndarray]
    record: dict[str, Any]


def find_warm_start(
    start_from: str | None,
    public_because: str | None,
    *,
    method: AnyMethod,
    private: bool,
    population: Population,
    ledger: Ledger | None,
    runs: str | Place,
    deployment: str | None = None,
) -> WarmStart | None:
    """The requested start; None: none was requested, or the first run of a series has no previous one.

    start_from: a run's folder or URL, an .npz file, or "previous": the newest finished run in `runs` of the same
    method and population that left something, and of the same deployment if it has one. Raises ConfigError for arrays
    that do not fit, NothingLeft for a run that left none, PrivacyError for a private run whose start is neither private
    nor declared public, or holds exact values of the run's population; RunError for a run that cannot be read.
    """
    if public_because is not None and not public_because.strip():
        raise ConfigError("the reason why a start is public is empty.", "State why, in words that others can check.")
    if start_from is None:
        if public_because is not None:
            raise ConfigError("a reason for a public start is given, and no start.", "Name it with --start-from.")
        return None
    if not method.accepts_warm_start:
        raise ConfigError(f"method {method.name!r} does not start from given values.", "Leave the start out.")
    if start_from != PREVIOUS:
        path = place(start_from)
        if path.suffix == ".npz":
            return _from_file(path, public_because, method, private, population)
        return _from_run(path, public_because, method, private, population, ledger)
    for found in previous_runs(runs, method.name, private, population, deployment):
        try:
            return _from_run(found.path, public_because, method, private, population, ledger)
        except NothingLeft:
            continue
    return None


def previous_runs(
    runs: str | Place, method: str, private: bool, population: Population, deployment: str | None = None
) -> list[Run]:
    """The finished runs of the same method on the same population, newest first; private ones if `private`."""
    found = []
    for run in list_runs(runs):
        info, where = run.info, run.info.get("population") or {}
        same = info.get("method") == method and where.get("id") == population.id and run.status == "finished"
        mine = deployment is None or info.get("deployment") == deployment
        if same and mine and not run.pruned and (not private or _secure(info)):
            found.append(run)
    return sorted(found, key=lambda run: (str(run.info.get("started")), run.id), reverse=True)


def _secure(info: JsonObject) -> bool:
    return info.get("private") is True and info.get("test_noise") is None


# --- runs -----------------------------------------------------------------------------------------------------------


def _from_run(
    path: Place,
    public_because: str | None,
    method: AnyMethod,
    private: bool,
    population: Population,
    ledger: Ledger | None,
) -> WarmStart:
    run = load_run(path)
    where = run.info.get("population") or {}
    name = run.info.get("run_id", path.name)
    if method.name not in _startable(run.info.get("method")):
        raise ConfigError(
            f"run {name!r} is one of method {run.info.get('method')!r}, not {method.name!r}.",
            f"Name a run of the method {method.name}.",
        )
    (earlier, arrays), own = _of_state(run, name), where.get("id") == population.id
    shared = set(earlier.series_arrays) & set(method.series_arrays) if own else set()
    dropped = {*earlier.series_arrays, *method.series_arrays} - shared
    arrays = {array: value for array, value in arrays.items() if array not in dropped}
    if private and (public_because is None or own):
        _check_private(run, name, population, ledger)
    protected = _secure(run.info) and _claims(run)
    unprotected, vouched = lineage_of(run.info, protected)
    if private and population.id in unprotected:
        raise PrivacyError(
            f"run {name!r} goes back, through what it started from, to a run on this population that is not private: "
            "it may reveal anything about the people in it, and nothing makes that public.",
            "Start from a run that does not descend from such a run, or from nothing.",
        )
    known = {
        **((run.info.get("start") or {}).get("places") or {}),
        where.get("id"): [where.get("path"), where.get("version")],
    }
    places = {one: known[one] for one in sorted(unprotected) if one in known}
    if private:
        _refuse_same_data(name, unprotected, places, population, ledger)
    _check_vocabulary(name, where, population)
    if other := other_columns(run.info, population):
        raise ConfigError(
            f"run {name!r} was trained on other columns than those of population {population.path.name!r}: {other}.",
            "Start from a run with the same columns in the same order, in the same units.",
        )
    return _warm_start(
        arrays,
        f"run {name!r}",
        method,
        population,
        {
            "kind": "run",
            "from": absolute(path),
            "name": name,
            "population_id": where.get("id"),
            "private": protected,
            "public_because": public_because,
            "unprotected": sorted(unprotected),
            "places": places,
            "vouched": list(vouched),
        },
    )


def _startable(earlier: object) -> tuple[str, ...]:
    """The methods that may start from a run of this one: itself, and those that it names in `warm_starts_for`."""
    if not isinstance(earlier, str) or earlier not in METHODS:
        return ()
    return (earlier, *method_class(earlier).warm_starts_for)


def _of_state(run: LoadedRun, name: str) -> tuple[AnyMethod, dict[str, np.ndarray]]:
    """Its method, and what that says that a later run may start from."""
    try:
        earlier = method_of_run(run.info)
        state = earlier.State(**run.state)
    except (KeyError, TypeError) as error:
        raise RunError(
            f"the state of run {name!r} is not one of its method ({error}).", "Restore it from a backup."
        ) from error
    try:
        return earlier, earlier.warm_start_of(state)
    except ConfigError as error:
        raise NothingLeft(f"run {name!r} {error.message}", error.remedy) from None


def _check_private(run: LoadedRun, name: str, population: Population, ledger: Ledger | None) -> None:
    """Raises PrivacyError unless what the run released is private: by its statement, and by its ledger if that is at
    hand.
    """
    own = (run.info.get("population") or {}).get("id") == population.id
    remedy = (
        "Start from a private run. No reason makes exact values of a population public to a run on the same one."
        if own
        else "Start from a private run, or pass --public-start with the reason why what it released is public."
    )
    if not _secure(run.info):
        raise PrivacyError(
            f"run {name!r} is not private, and a private run cannot start from its centres: they may reveal "
            "anything about the people that it was trained on.",
            remedy,
        )
    try:
        statement = parse_json(read_bytes(run.path / "statement.json"))
        claims = isinstance(statement, dict) and statement.get("private") is True
    except FileNotFoundError:
        raise PrivacyError(
            f"run {name!r} has not ended, so its privacy statement is not made.",
            "Let it finish, or give it up with `fedcore runs abandon`; then start from it.",
        ) from None
    except (OSError, ValueError) as error:
        raise RunError(
            f"the privacy statement of run {name!r} is unreadable ({type(error).__name__}).",
            "Restore statement.json from a backup.",
        ) from error
    if not claims:
        raise PrivacyError(f"the statement of run {name!r} claims no privacy.", remedy)
    if own and ledger is not None and ledger.run_status(name) is None:
        raise PrivacyError(
            f"ledger {ledger.id} knows no run {name!r} of this population: what it released was not charged here.",
            remedy,
        )


def _claims(run: Run | LoadedRun) -> bool:
    """Whether the run has a privacy statement that promises something."""
    try:
        statement = parse_json(read_bytes(run.path / "statement.json"))
    except (OSError, ValueError):
        return False
    return isinstance(statement, dict) and statement.get("private") is True and statement.get("privacy") != "none"


def lineage_of(info: JsonObject, protected: bool) -> tuple[frozenset[str], tuple[str, ...]]:
    """(ids of populations whose exact values may be in what the run ended with, words of people that the protection
    of others rests on), from the run's record. protected: whether the run itself is private.
    """
    record, name = info.get("start"), (info.get("population") or {}).get("id")
    unprotected, vouched = (frozenset(), ()) if record is None else start_lineage(record)
    vouched = tuple(dict.fromkeys((*vouched, *words_of_arrival(info))))  # once for all runs of a series
    return unprotected if protected or name is None else unprotected | {str(name)}, vouched


def start_lineage(record: JsonObject) -> tuple[frozenset[str], tuple[str, ...]]:
    """The same of a start, with the word that it rests on itself. record: as in run.json."""
    if "unprotected" not in record:
        raise RunError(*retired("The record of what the run starts from", "without the populations behind it"))
    own = () if record["public_because"] is None or record["private"] else (word_of(record),)
    return frozenset(record["unprotected"]), (*record["vouched"], *own)


def _refuse_same_data(
    name: str,
    unprotected: frozenset[str],
    places: Mapping[str, Sequence[Any]],
    population: Population,
    ledger: Ledger | None,
) -> None:
    """Raises PrivacyError if exact values of another population may be in the start, and that population has a block of
    this one: they are exact values of the same people, whatever its id is. places: [path, version] of the populations
    whose exact values may be there, as far as runs recorded them; of the others only the ledger knows the blocks.
    """
    others = {one: [(str(places[one][0]), places[one][1])] if one in places else [] for one in sorted(unprotected)}
    if (same := holds_data_of(population, others, ledger)) is not None:
        raise PrivacyError(
            f"run {name!r} may hold exact values of population {same!r}, which has a block with the same ids and data "
            "as this population: they are exact values of the same people, and nothing makes them public.",
            "Start from a private run, or from nothing.",
        )


def _check_vocabulary(name: str, where: JsonObject, population: Population) -> None:
    """Raises ConfigError if the run's tokens are known to be others. The versions of a population share theirs."""
    if where.get("id") == population.id:
        return
    mine = population.vocabulary()
    try:
        theirs = Population.open(where["path"], version=where.get("version")).vocabulary()
    except (PopulationError, KeyError, TypeError):
        theirs = None
    if mine is not None and theirs is not None and list(mine) != list(theirs):
        raise ConfigError(
            f"run {name!r} was trained on another vocabulary than that of population {population.path.name!r}.",
            "Start from a run with the same tokens in the same order.",
        )


# --- files ----------------------------------------------------------------------------------------------------------


def _from_file(
    path: Place, public_because: str | None, method: AnyMethod, private: bool, population: Population
) -> WarmStart:
    if private and public_because is None:
        raise PrivacyError(
            f"a private run cannot start from {str(path)!r}, which is not declared public.",
            "If it was not derived from this population's data, pass --public-start REASON; the statement quotes it.",
        )
    arrays = _read_arrays(path)
    if series := [name for name in method.series_arrays if name in arrays]:
        raise ConfigError(
            f"{path.name!r} holds {', '.join(series)}, and a file does not say from which population.",
            "Start from the run itself, or leave these arrays out.",
        )
    return _warm_start(
        arrays,
        repr(path.name),
        method,
        population,
        {
            "kind": "file",
            "from": absolute(path),
            "name": path.name,
            "population_id": None,
            "private": False,
            "public_because": public_because,
            "unprotected": [],
            "vouched": [],
        },
    )


def _read_arrays(path: Place) -> Mapping[str, np.ndarray]:
    """Plain arrays only: nothing in the file is executed. Raises ConfigError."""
    try:
        if is_remote(path):
            return read_npz(io.BytesIO(read_bytes(path)), LARGEST_FILE)
        check_regular(path)
        return read_npz(path, LARGEST_FILE)
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror or error}.") from None
    except BROKEN as error:
        raise ConfigError(
            f"{str(path)!r} is not a readable .npz of plain arrays ({type(error).__name__}: {error}).",
            "Write it with numpy.savez.",
        ) from None


# --- what both must be ----------------------------------------------------------------------------------------------


def _warm_start(
    arrays: Mapping[str, np.ndarray], what: str, method: AnyMethod, population: Population, record: dict[str, Any]
) -> WarmStart:
    checked = method.checked_warm_start(arrays, what, population.features)
    shapes = {name: list(value.shape) for name, value in checked.items()}
    return WarmStart(checked, {**record, "arrays": shapes, "sha256": digest_of(checked)})


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of names, shapes and little-endian bytes."""
    sha256 = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name], "<f8")
        sha256.update(f"{name}{value.shape}".encode() + value.tobytes())
    return sha256.hexdigest()


def in_words(record: JsonObject) -> str:
    """One sentence for the privacy statement."""
    source = _source(record)
    if record["public_because"] is not None:
        return f"{source}, declared public because: {record['public_because']}"
    if record["private"]:
        return f"{source}, which was paid for in that run, from the budget of population {record['population_id']}"
    return source


def word_of(record: JsonObject) -> str:
    """A declaration, as a clause of the privacy statement's headline."""
    because = " ".join(str(record["public_because"]).split())
    return f"the start, {_source(record)}, tells nothing about these people because: {because}"


def words_of_arrival(info: JsonObject) -> tuple[str, ...]:
    """The same of a run whose occasion, or whose clients' cohorts, follow from the files that arrived. info: as in
    run.json
    """
    if info.get(ARRIVAL) is None:
        return ()
    because = " ".join(str(info[ARRIVAL]).split())
    return (f"which files arrived when, and were readable, tells nothing about these people because: {because}",)


def _source(record: JsonObject) -> str:
    source = f"what run {record['name']!r} released" if record["kind"] == "run" else f"the file {record['name']!r}"
    return f"{source} (SHA-256 {record['sha256'][:16]})"
