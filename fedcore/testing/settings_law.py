"""Conformance test of settings: each setting of a method changes what a run publishes, its cost, or per-client outputs.

It compares pairs of runs, so it is not one of `LAWS`, which look at a single run each.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedcore.errors import FedcoreError
from fedcore.rounds.choices import flat, known_settings
from fedcore.rounds.clients import one_blas_thread
from fedcore.rounds.method import AnyMethod
from fedcore.rounds.private_settings import PrivateRunSettings
from fedcore.rounds.results import Features
from fedcore.rounds.scores import KnownMemories
from fedcore.rounds.statistics import values
from fedcore.testing.bits import copied, difference
from fedcore.testing.broken import require
from fedcore.testing.cases import Case, added
from fedcore.testing.results import told

FACTORS = (2.0, 0.5, 0.1, 1e4)
NUMBERS = (1, 2, 3, 0.5, 0.1, 5, 10)  # for a setting without a default, as far as its bounds allow


@dataclass(frozen=True)
class Hint:
    """How a setting is changed, if the test does not find it.

    value: in the second run. given: other settings of both runs. case: its name; None: the first one
    """

    value: Any
    given: Mapping[str, Any] = field(default_factory=dict)
    case: str | None = None


def own_settings(cls: type[AnyMethod]) -> list[str]:
    """All but those of `PrivateRunSettings`, which the platform reads."""
    return [name for name in known_settings(cls.Config) if name not in PrivateRunSettings.model_fields]


def each_setting_matters(cases: Sequence[Case], hints: Mapping[str, Hint] | None = None) -> None:
    """Raises LawBroken for settings that change nothing. cases: of one method, with different settings."""
    cls, hints = type(cases[0].method), hints or {}
    idle = [name for name in own_settings(cls) if not what_changes(name, cases, hints.get(name))]
    require(
        not idle,
        f"no value of {', '.join(idle)} that was tried changes what a run of {cls.__name__} publishes, costs or gives "
        "to clients. Remove the setting, or try others with it.",
    )


def what_changes(name: str, cases: Sequence[Case], hint: Hint | None = None) -> str:
    """What differs between two runs of which one has another value of this setting; empty if nothing does.

    Without a hint the values come from the type and the bounds of the setting, and all cases are tried.
    """
    known: Case | None = None
    with one_blas_thread():
        for before, after in _pairs(name, cases, hint):
            try:
                if before is not known:  # one case has many pairs
                    seen, known = what_is_seen(before), before
                found = difference(seen, what_is_seen(after), "what is seen")
            except FedcoreError:  # there is no such run
                if hint is not None:
                    raise
                continue
            if found:
                return found
    return ""


def _pairs(name: str, cases: Sequence[Case], hint: Hint | None) -> Iterator[tuple[Case, Case]]:
    if hint is not None:
        case = next(one for one in cases if hint.case in (None, one.name))
        before = _with(case, **hint.given)
        yield before, _with(before, **{name: hint.value})
        return
    for case in cases:
        config = case.method.config
        for value in _values(known_settings(type(config))[name], flat(config.model_dump()).get(name)):
            try:
                after = _with(case, **{name: value})
            except ValidationError:  # this value does not fit the others
                continue
            yield case, after


def _with(case: Case, **settings: Any) -> Case:
    """The case with other settings. Raises ValidationError."""
    if not settings:
        return case
    cls, config = type(case.method), case.method.config
    chosen = config.model_dump(exclude_unset=True)
    return replace(case, method=cls(cls.Config(**{**chosen, **settings})))


# --- which values are tried -------------------------------------------------------------------------------------------


def _values(info: FieldInfo, present: Any) -> Iterator[Any]:
    """Other values than the present one, within the bounds."""
    tried = [present]
    for kind, bounds in _kinds(info.annotation, info.metadata):
        for value in _of_kind(kind, present):
            if _within(value, bounds) and not any(type(value) is type(one) and value == one for one in tried):
                tried.append(value)
                yield value


def _kinds(annotation: Any, bounds: Sequence[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The types that a setting may have, each with its bounds."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _kinds(parts[0], [*bounds, *parts[1:]])
    elif origin in (Union, types.UnionType):
        for part in parts:
            yield from _kinds(part, bounds)
    else:
        yield annotation, [*bounds]


def _of_kind(kind: Any, present: Any) -> Iterator[Any]:
    if kind is bool:
        yield from (True, False)
    elif get_origin(kind) is Literal:
        yield from get_args(kind)
    elif kind in (int, float):
        number = isinstance(present, (int, float)) and not isinstance(present, bool)
        near = [present * factor for factor in FACTORS] + [present + 1, present - 1] if number else []
        for value in [*near, *NUMBERS]:
            if kind is float or float(value).is_integer():
                yield kind(value)
    elif kind is type(None):
        yield None
    elif isinstance(kind, type) and issubclass(kind, BaseModel):  # one of a choice
        yield from get_args(kind.model_fields["name"].annotation)


def _within(value: Any, bounds: Sequence[Any]) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    for bound in bounds:
        low = isinstance(bound, Ge) and value < bound.ge or isinstance(bound, Gt) and value <= bound.gt  # type: ignore[operator]
        high = isinstance(bound, Le) and value > bound.le or isinstance(bound, Lt) and value >= bound.lt  # type: ignore[operator]
        if low or high:
            return False
    return True


# --- what is seen of a run --------------------------------------------------------------------------------------------


def what_is_seen(case: Case) -> dict[str, Any]:
    """What the server gets in every round, what a run costs, shows and leaves, and what clients are given. Neither the
    states nor the messages: a setting that is copied into them changes nothing yet.
    """
    method, history = case.method, case.history
    seen: dict[str, Any] = {
        "plan": [(one.round, one.name, one.shape, one.rho) for one in case.plan],
        "rounds": [(made.result, made.info.scalars, made.info.note) for made in history.rounds],
        "result": told(method.result(history.state, Features(case.population.features))),
        "outputs": [_or_refusal(lambda n=n, leaf=leaf: _outputs(case, leaf, n)) for n, leaf in _numbered(case)],
    }
    if method.private:
        seen["worth"] = method.worth(case.public)
    if method.can_be_scored:
        seen["scores"] = _or_refusal(lambda: _scores(case))
    if method.accepts_warm_start:
        seen["left"] = _or_refusal(lambda: dict(method.warm_start_of(history.state)))
    return seen


def _numbered(case: Case) -> list[tuple[int, Any]]:
    return list(enumerate(case.population.leaves()))


def _outputs(case: Case, leaf: Any, number: int) -> dict[str, Any]:
    memories = case.history.memories
    return case.method.personalise(case.history.state, leaf, None if memories is None else copied(memories[number]))


def _scores(case: Case) -> dict[str, Any]:
    memories, found = case.history.memories, []
    for number, leaf in enumerate(case.population.scored_leaves()):
        known = None
        if case.method.scores_use_memories and memories is not None:
            known = KnownMemories(copied(memories[number]), np.ones(leaf.clients, bool))
        found.append(case.method.score_block(case.history.state, leaf, known))
    return case.method.score_table(values(added(found))).to_json("here")


def _or_refusal(made: Any) -> Any:
    """What is made, or the name of the error that says that there is none."""
    try:
        return made()
    except FedcoreError as error:
        return type(error).__name__
