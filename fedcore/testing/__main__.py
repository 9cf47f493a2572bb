"""`python -m fedcore.testing PACKAGE:Class [--set KEY=VALUE ...]`: runs all conformance tests of methods, a line for
each.

Exit code 0: all pass; 1: one fails; 2: there is no such method, or the settings suit no small population.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from fedcore.cli.terminal import read_settings
from fedcore.errors import FedcoreError
from fedcore.methods.names import METHODS, canonical
from fedcore.methods.registry import load
from fedcore.rounds.method import Method
from fedcore.testing.broken import in_words
from fedcore.testing.cases import Case, cases_for
from fedcore.testing.laws import LAWS, same_with
from fedcore.testing.settings_law import each_setting_matters

WORKERS = (1, 2, 4)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fedcore.testing", description="Run all conformance tests.")
    parser.add_argument("method", metavar="PACKAGE:Class", help="where the method's class is; or its registered name")
    parser.add_argument(
        "--set",
        "--settings",
        dest="settings",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="settings of the method; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, nothing else")
    given = parser.parse_args(arguments)
    try:
        method = _method(given.method, given.settings)
        cases = cases_for(method)
    except FedcoreError as error:
        return _refused(error, given.json)
    found = []
    for name, broken in _looked_at(cases):
        found.append({"law": name, "ok": not broken, "broken": broken})
        if not given.json:
            print(f"{'failed' if broken else 'ok':<6}  {name}{': ' if broken else ''}{broken}", flush=True)
    if given.json:
        print(json.dumps({"method": method.name, "laws": found}))
    return 0 if all(row["ok"] for row in found) else 1


def _method(where: str, settings: list[str]) -> Method[Any, Any]:
    """Raises ConfigError for settings that are wrong, MethodError for a class that is no method."""
    from pydantic import ValidationError

    from fedcore.errors import ConfigError
    from fedcore.methods.registry import explain

    if "" not in sys.path:
        sys.path.insert(0, "")
    name = canonical(where)
    cls = load(METHODS[name] if ":" not in where and name in METHODS else where)
    try:
        return cls(cls.Config(**read_settings(None, settings)))
    except ValidationError as error:
        raise ConfigError(f"settings of {where}: {explain(error)}", "See its Config.") from None


def _looked_at(cases: Sequence[Case]) -> Iterator[tuple[str, str]]:
    """(name, why it failed, or "") for each test, those of settings and workers last."""
    for name, law in LAWS.items():
        yield name, next(filter(None, (_broken(law, case) for case in cases)), "")
    yield "settings", _broken(each_setting_matters, cases)
    yield "workers", next(filter(None, (_broken_by(count, cases) for count in WORKERS)), "")


def _broken_by(workers: int, cases: Sequence[Case]) -> str:
    from fedcore.tasks.dask_backend import dask_backend

    with dask_backend(workers) as backend:
        found = (_broken(lambda case: same_with(case, backend, f"{workers} Dask workers"), case) for case in cases)
        return next(filter(None, found), "")


def _broken(law: Any, asked: Case | Sequence[Case]) -> str:
    try:
        law(asked)
    except Exception as error:  # a method's own: the test fails, and shows where
        name = asked.name if isinstance(asked, Case) else ""
        return f"{name}: {in_words(error)}" if name else in_words(error)
    return ""


def _refused(error: FedcoreError, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": error.message, "remedy": error.remedy}))
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
