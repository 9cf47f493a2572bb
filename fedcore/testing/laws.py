"""Conformance tests of methods. Each is a function of a case that raises LawBroken or MethodError, with a sentence for
the author.

`LAWS` has them by name, in the order in which they run. Those of private methods are in
`fedcore.testing.privacy_laws`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, RunError
from fedcore.population.blocks import ClientBlock, leaves
from fedcore.privacy.accounting import exact_sum
from fedcore.rounds.choices import known_settings
from fedcore.rounds.clients import one_blas_thread
from fedcore.rounds.engine import Backend
from fedcore.rounds.method import MOST_MAIN, ROWS, ClientOutputs, Memory, Method, check_definition
from fedcore.rounds.results import Features, Metric
from fedcore.rounds.scores import KnownMemories
from fedcore.rounds.statistics import Statistics, merge, merge_all, values
from fedcore.storage.arrays import state_values
from fedcore.testing.bits import copied, difference
from fedcore.testing.broken import require
from fedcore.testing.cases import Case, added
from fedcore.testing.results import check_result, texts, told
from fedcore.testing.runs import Ended, run_in_pieces, stored_and_read, whole_run

Law = Callable[[Case], None]
LAWS: dict[str, Law] = {}
ORDERS = 8  # random orders of addition that are tried for each round


def law(name: str) -> Callable[[Law], Law]:
    """Register a conformance test. It runs with one BLAS thread, as in the engine."""

    def register(check: Law) -> Law:
        @wraps(check)
        def limited(case: Case) -> None:
            with one_blas_thread():
                check(case)

        LAWS[name] = limited
        return limited

    return register


# --- what a method says of itself -------------------------------------------------------------------------------------


@law("definition")
def definition(case: Case) -> None:
    """The class can be run, its settings are described and survive the run store, its metrics are declared once."""
    cls = check_definition(type(case.method))
    require(
        bool((cls.__doc__ or "").strip()), f"{cls.__name__} has no docstring: `fedcore methods` shows its first line."
    )
    require(isinstance(cls.arithmetic_version, str), f"arithmetic_version of {cls.__name__} is not a text.")
    bare = [name for name, field in known_settings(cls.Config).items() if not field.description]
    require(not bare, f"settings {', '.join(bare)} of {cls.__name__} have no description.")
    few = len(known_settings(cls.Config)) <= MOST_MAIN
    require(
        few or bool(cls.main_settings),
        f"{cls.__name__} has more than {MOST_MAIN} settings: name in main_settings those that are shown first.",
    )
    config = case.method.config
    again = cls.Config(**json.loads(json.dumps(config.model_dump(mode="json"))))
    require(again == config, f"settings of {cls.__name__} do not survive JSON: {difference(config, again, 'config')}.")
    require(
        all(isinstance(metric, Metric) for metric in cls.metrics), f"metrics of {cls.__name__} are not all `Metric`s."
    )
    names = [metric.name for metric in cls.metrics]
    require(len(names) == len(set(names)), f"{cls.__name__} declares a metric twice: {sorted(names)}.")
    require(
        case.method.private == (not case.method.not_private_because),
        f"{cls.__name__} must say in not_private_because why it is not private, and nothing if it is.",
    )


# --- rounds -----------------------------------------------------------------------------------------------------------


@law("rounds")
def rounds(case: Case) -> None:
    """A run ends within total_rounds, and every round has a phase, a new state and a RoundInfo."""
    method, history = case.method, case.history
    require(bool(history.rounds), "message returns None before the first round.")
    for made in history.rounds:
        where = f"round {made.number}"
        phase = method.phase(made.state, made.message)
        require(isinstance(phase, str) and bool(phase), f"{where}: phase returns {phase!r}, not a text.")
        total = method.total_rounds(made.state)
        require(
            isinstance(total, int) and total >= len(history.rounds),
            f"{where}: total_rounds says {total!r}, and the run takes {len(history.rounds)} rounds.",
        )
    require(method.message(history.state) is None, "message says something again after it has said None.")
    outcome = method.outcome(history.state)
    require(isinstance(outcome, str), f"outcome returns a {type(outcome).__name__}, not a text.")


@law("metrics")
def metrics(case: Case) -> None:
    """Every scalar of every round is declared in `metrics` and finite; in a private run none follows the raw data."""
    declared = {metric.name: metric for metric in type(case.method).metrics}
    for made in case.history.rounds:
        for name, value in made.info.scalars.items():
            where = f"round {made.number}: the scalar {name!r}"
            require(name in declared, f"{where} is not declared in `metrics`.")
            require(math.isfinite(float(value)), f"{where} is {value!r}, which is not finite.")
            hidden = case.method.private and declared[name].follows_data
            require(not hidden, f"{where} follows the raw data, and the run is private.")
        require(isinstance(made.info.note, str), f"round {made.number}: the note is not a text.")


@law("statistics add")
def statistics_add(case: Case) -> None:
    """The finished statistics of a round have the same bits for every cut into blocks and every order of addition."""
    generator = np.random.Generator(np.random.Philox(case.seed))
    for made in case.history.rounds:
        expected = values(added(made.statistics))
        for _ in range(ORDERS):
            found = values(_added_anyhow(made.statistics, generator))
            different = difference(expected, found, "the sum of the leaves")
            require(
                not different, f"round {made.number}: the order in which leaves are added changes bits: {different}."
            )


def _added_anyhow(statistics: list[Statistics], generator: np.random.Generator) -> Statistics:
    """Of blocks of consecutive leaves that are cut at random, in a random order, as a random tree."""
    cuts = np.flatnonzero(generator.random(len(statistics) - 1) < 0.5) + 1
    parts = [merge_all(copied(list(block))) for block in np.split(np.array(statistics, object), cuts)]
    while len(parts) > 1:
        i, j = generator.choice(len(parts), 2, replace=False)
        total = merge(parts[i], parts[j])
        parts = [part for number, part in enumerate(parts) if number not in (i, j)] + [total]
    assert parts[0] is not None
    return parts[0]


@law("purity")
def purity(case: Case) -> None:
    """init, message, client_update, release_values and server_update give the same bits when they are called again on
    equal inputs, and change none of their inputs. The second call is on copies, as in another process.
    """
    _pure(case, "init", case.public)
    for made in case.history.rounds:
        where = f"round {made.number}: "
        _pure(case, "message", made.state, where=where)
        for number, leaf in enumerate(case.population.leaves_for(case.method, made.message)):
            memory = None if made.memories is None else made.memories[number]
            _pure(case, "client_update", made.message, leaf, memory, where=where)
        if case.method.private:
            _pure(case, "release_values", made.message, added(made.statistics), where=where)
        _pure(case, "server_update", made.state, made.result, where=where)


def _pure(case: Case, name: str, *given: Any, where: str = "") -> None:
    method, again = copied(case.method), copied(case.method)
    inputs, others, kept = copied(given), copied(given), copied(given)
    first = getattr(method, name)(*inputs)
    changed = difference(kept, inputs, "the inputs")
    require(not changed, f"{where}{name} changes its inputs: {changed}.")
    changed = difference(vars(again), vars(method), "what it holds")
    require(not changed, f"{where}{name} changes the method object: {changed}.")
    first = copied(first)
    second = getattr(again, name)(*others)
    different = difference(first, second, "the result")
    require(not different, f"{where}{name} gives other bits when it is called again: {different}.")


# --- the run store ----------------------------------------------------------------------------------------------------


@law("storable state")
def storable_state(case: Case) -> None:
    """Every state and every memory is the same after the run store has written and read it, types included."""
    history, state_class = case.history, case.method.State
    states = [made.state for made in history.rounds] + [history.state]
    memories: list[list[Memory] | None] = [made.kept for made in history.rounds]
    with TemporaryDirectory() as folder:
        for number, state in enumerate(states):
            again = state_class(**stored_and_read(state_values(state), Path(folder)))
            different = difference(state, again, "the state")
            require(not different, f"the state after round {number} does not survive the run store: {different}.")
        for number, kept in enumerate(memories, 1):
            for memory in kept or ():
                different = difference(memory, stored_and_read(memory, Path(folder)), "the memory")
                require(not different, f"the memory after round {number} does not survive the run store: {different}.")


@law("chunkings")
def chunkings(case: Case) -> None:
    """A whole stored run with one block of all clients ends in the bits of the run in memory."""
    people = case.population  # the run in memory goes leaf by leaf, and so does that of the test "resuming"
    whole = people.leaf * -(-len(people.clients) // people.leaf)
    with TemporaryDirectory() as folder:
        found = whole_run(case, Path(folder), block=whole)
    _require_same_end(_ended_in_memory(case), found, f"a stored run with blocks of {whole} clients")


@law("streaming")
def streaming(case: Case) -> None:
    """A run whose rows are read while they are used ends in the same bits, if the method says that it can do that."""
    if not case.method.streams_rows or case.population.kind != "rows":
        return
    with TemporaryDirectory() as folder:
        found = whole_run(case, Path(folder), streamed=True)
    _require_same_end(_ended_in_memory(case), found, "a run whose rows are streamed")


@law("resuming")
def resuming(case: Case) -> None:
    """A run that is interrupted before its first round and after every one, and resumed, ends in the same bits."""
    with TemporaryDirectory() as folder:
        found = run_in_pieces(case, Path(folder), block=case.population.leaf)
    _require_same_end(_ended_in_memory(case), found, "a run that was resumed after every round")


def same_with(case: Case, backend: Backend, what: str) -> None:
    """A whole stored run on this backend ends in the bits of the run in memory. what: the backend is called."""
    with one_blas_thread(), TemporaryDirectory() as folder:
        found = whole_run(case, Path(folder), block=case.population.leaf, backend=backend)
        _require_same_end(_ended_in_memory(case), found, f"a run on {what}")


def _ended_in_memory(case: Case) -> Ended:
    history = case.history
    memories: dict[str, np.ndarray] = {}
    if history.memories is not None:
        names = history.memories[0]
        memories = {name: np.concatenate([memory[name] for memory in history.memories]) for name in names}
    infos = [(made.number, made.info) for made in history.rounds]
    return Ended(
        "finished",
        state_values(history.state),
        memories,
        [{"round": number, **{k: float(v) for k, v in info.scalars.items()}} for number, info in infos],
        {name: array for made in history.rounds if case.method.private for name, array in made.result.items()},
        float(exact_sum([planned.rho for made in history.rounds for planned in made.planned])),
    )


def _require_same_end(expected: Ended, found: Ended, what: str) -> None:
    for name in ("status", "state", "memories", "metrics", "releases"):
        different = difference(getattr(expected, name), getattr(found, name), name)
        require(not different, f"{what} ends with other {name} than the run in memory: {different}.")
    require(
        math.isclose(found.spent, expected.spent, rel_tol=1e-9),
        f"{what} is charged rho = {found.spent:.9g}, and its releases cost {expected.spent:.9g}.",
    )


# --- what a run gives -------------------------------------------------------------------------------------------------


@law("personalise")
def personalise(case: Case) -> None:
    """Personalised outputs have a row for each client, or for each of its rows, with the same bits however leaves are
    grouped into blocks; or a ConfigError says that there are none.
    """
    people, history = case.population, case.history
    try:
        outputs = [_outputs(case, leaf, number) for number, leaf in enumerate(people.leaves())]
    except (ConfigError, RunError):
        return
    for leaf, found in zip(people.leaves(), outputs, strict=True):
        rows = 0 if people.kind == "counts" else len(leaf.x)  # type: ignore[union-attr]
        for name, array in found.items():
            length = rows if name.startswith(ROWS) else leaf.clients
            require(
                isinstance(array, np.ndarray) and array.shape[:1] == (length,),
                f"personalise gives {name!r} of shape {np.shape(array)} for {leaf.clients} clients with {rows} rows.",
            )
    for found in outputs[1:]:
        same = {(name, array.dtype, array.shape[1:]) for name, array in found.items()}
        first = {(name, array.dtype, array.shape[1:]) for name, array in outputs[0].items()}
        require(same == first, f"personalise gives leaves other outputs: {sorted(map(str, same ^ first))}.")
    (whole,) = people.leaves(leaf=len(people.clients))
    for number, leaf in enumerate(leaves(whole, people.leaf)):
        memory = None if history.memories is None else history.memories[number]
        _pure(case, "personalise", history.state, leaf, memory)
        different = difference(outputs[number], _outputs(case, leaf, number), "the output")
        require(not different, f"personalise gives leaf {number} other bits as a part of a larger block: {different}.")


def _outputs(case: Case, leaf: ClientBlock, number: int) -> ClientOutputs:
    memories = case.history.memories
    return case.method.personalise(case.history.state, leaf, None if memories is None else copied(memories[number]))


@law("free settings")
def free_settings(case: Case) -> None:
    """A setting that may be given to a run that was made is read neither when clients answer nor when the server moves.
    It may decide what they are asked.
    """
    if not type(case.method).free_settings:
        return
    method = _watched(case.method)
    for made in case.history.rounds:
        message = case.method.message(made.state)
        for number, leaf in enumerate(case.population.leaves_for(method, message)):
            memory = None if made.memories is None else copied(made.memories[number])
            statistics, _ = method.client_update(message, leaf, memory)
            if method.private:
                method.release_values(message, statistics)
        method.server_update(copied(made.state), copied(made.result))


def _watched(method: Method[Any, Any]) -> Method[Any, Any]:
    """The method with settings of which the free ones cannot be read."""
    cls, free = type(method), type(method).free_settings

    def read(config: Any, name: str) -> Any:
        require(name not in free, f"training reads the setting {name!r}, which {cls.__name__} calls free.")
        return object.__getattribute__(config, name)

    watched: Any = type(f"Watched{cls.Config.__name__}", (cls.Config,), {"__getattribute__": read})
    return cls(watched.model_construct(**vars(method.config)))


@law("scores")
def scores(case: Case) -> None:
    """Scores on held-out data add like statistics, and their table is JSON with a title, a loss and rows."""
    method, history = case.method, case.history
    if not method.can_be_scored:
        return
    found = []
    for number, leaf in enumerate(case.population.scored_leaves()):
        known = None
        if method.scores_use_memories and history.memories is not None:
            known = KnownMemories(copied(history.memories[number]), np.ones(leaf.clients, bool))
        try:
            found.append(method.score_block(history.state, leaf, known))
        except (ConfigError, RunError):  # a run without a result
            return
        _pure(case, "score_block", history.state, leaf, known)
    generator, expected = np.random.Generator(np.random.Philox(case.seed)), values(added(found))
    for _ in range(ORDERS):
        different = difference(expected, values(_added_anyhow(found, generator)), "the sum of the scores")
        require(not different, f"the order in which the leaves' scores are added changes bits: {different}.")
    table = method.score_table(copied(expected)).to_json("here")
    json.dumps(table, allow_nan=False)
    lacking = [name for name in ("title", "loss", "axis", "rows") if name not in table]
    require(not lacking, f"the table of scores lacks {', '.join(lacking)}.")
    for row in table["rows"]:
        lacking = [name for name in ("method", table["loss"], "se") if name not in row]
        require(not lacking, f"a row of the table of scores lacks {', '.join(lacking)}: {row}.")
    require(method.headline(table["rows"]) in table["rows"], "headline is not a row of the table of scores.")


@law("result")
def result(case: Case) -> None:
    """The result, before the first round and after the last, is made of tables with columns of equal length and finite
    numbers, and is the same from a state that was stored and read. A method with results has a table after the
    last round, or an outcome that states why there is none. Names and units of columns are those that were given.
    """
    method, count = case.method, case.population.features
    named = Features(count, [f"feature {i}" for i in range(count)], [f"unit {i}" for i in range(count)])
    for state in (case.history.rounds[0].state, case.history.state):
        for given in (named, Features(count)):
            check_result(method.result(state, given), private=method.private)
    last = method.result(case.history.state, named)
    if type(method).result is not Method.result:
        said = bool(last.tables or method.outcome(case.history.state))
        require(said, "a finished run has neither a table in its result nor an outcome that says why there is none.")
    with TemporaryDirectory() as folder:
        again = method.State(**stored_and_read(state_values(case.history.state), Path(folder)))
    different = difference(told(last), told(method.result(again, named)), "the result")
    require(
        not different, f"the result is another one after the run store has written and read the state: {different}."
    )
    unnamed = method.result(case.history.state, Features(count))
    for table, other in zip(last.tables, unnamed.tables, strict=True):
        shown, mine = texts(table), texts(other)
        taken = {text for text in shown if text.startswith("feature ")}
        require(
            bool(taken) == any(re.match(r"(column|token) \d", text) for text in mine),
            f"table {table.name!r} names columns in another way than `Features` does.",
        )


@law("warm start")
def warm_start(case: Case) -> None:
    """What a run leaves for later ones is finite arrays of float64, which a run with equal settings accepts."""
    method = case.method
    if not method.accepts_warm_start:
        return
    try:
        left = method.warm_start_of(case.history.state)
    except ConfigError:  # it has found nothing
        return
    try:
        taken = method.checked_warm_start(left, "an earlier run", case.population.features)
    except ConfigError:  # settings of runs that begin otherwise
        require(case.warm_start is None, "a run that started warm leaves what it would not accept itself.")
        return
    for name, array in taken.items():
        fits = isinstance(array, np.ndarray) and array.dtype == np.float64 and bool(np.isfinite(array).all())
        require(fits, f"the warm start {name!r} is not an array of finite float64.")
    again = method.checked_warm_start(copied(taken), "an earlier run", case.population.features)
    same = taken.keys() == again.keys() and all(np.allclose(taken[name], again[name], rtol=1e-9) for name in taken)
    require(same, "checked_warm_start changes what it has accepted.")
