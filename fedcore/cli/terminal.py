"""What the command line reads and prints: sizes, settings and options in; tables, JSON and progress out."""

from __future__ import annotations

import gc
import json
import os
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.errors import ConfigError
from fedcore.rounds.old_names import OldName
from fedcore.storage.parsing import parse_toml, read_toml

if TYPE_CHECKING:
    from fedcore.evaluation.written import Shown

FIRST = 300_000  # objects that the collector follows; Prefect and a flow are 240,000


def collect_late() -> None:
    """Start the garbage collector when the process has made FIRST objects, and then as usual.

    Earlier objects are those of imported modules, which stay. Each collection would look through all of them.
    """
    usual = gc.get_threshold()

    def began(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(began)
            gc.freeze()  # later collections do not look at what is there now
            gc.set_threshold(*usual)

    if 0 < usual[0] < FIRST:
        gc.callbacks.append(began)
        gc.set_threshold(FIRST)


def say(value: dict, as_json: bool) -> None:
    """One JSON object, or the same as aligned lines."""
    if as_json:
        print(json.dumps(value))
        return
    width = max((len(str(key)) for key in value), default=0)
    for key, item in value.items():
        print(f"{key:<{width}}  {item if not isinstance(item, (dict, list)) else json.dumps(item)}")


@contextmanager
def old_names_as_lines() -> Iterator[None]:
    """A warning about an old name is one line on stderr, as other warnings of commands are."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, OldName):
                warn(str(message))
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield


def warn(text: str) -> None:
    """One line on stderr about what is not as it should be and does no harm; nothing for an empty text."""
    if text and os.environ.get("FEDCORE_LOG") == "json":
        from fedcore.operations.log_lines import say as say_line

        say_line(text, level="WARNING")
    elif text:
        print(f"warning: {text}", file=sys.stderr)


WIDE = 200  # columns of a table that goes into a file or a pipe


def table(title: str, rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title=title, title_justify="left")
    for name in rows[0] if rows else []:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(
            *("" if cell is None else f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in row.values())
        )
    Console(width=None if sys.stdout.isatty() else WIDE).print(drawn)


def show_table(shown: Shown) -> None:
    """A table of a result, and what belongs below it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(title=escape(shown.title), title_justify="left")
    for name, numeric in zip(shown.headings, shown.numeric, strict=True):
        drawn.add_column(escape(name), overflow="fold", justify="right" if numeric else "left")
    for row in shown.cells:
        drawn.add_row(*(escape(cell if isinstance(cell, str) else ", ".join(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    console.print(drawn)
    for note in shown.notes:
        console.print(escape(note), highlight=False)


def parse_bytes(text: str) -> int:
    """`512MiB`, `2GB`, `1000` to bytes."""
    units = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    try:
        size = int(float(number) * units[text.strip()[len(number) :].lower()])
    except (KeyError, ValueError, OverflowError):
        size = -1
    if size < 0:
        raise ConfigError(f"{text!r} is not a size.", "Write it like 512MiB or 2GB.")
    return size


def parse_seconds(text: str) -> float:
    """`90s`, `30m`, `2h`, `1d` or `45` to seconds."""
    units = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    try:
        seconds = float(number) * units[text.strip()[len(number) :].lower()]
    except (KeyError, ValueError):
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{text!r} is not a time.", "Write it like 90s, 30m or 2h.")
    return seconds


def read_settings(config: Path | None, pairs: list[str] | None) -> dict[str, Any]:
    """A TOML file and --set pairs, the latter winning."""
    settings: dict[str, Any] = {}
    if config is not None:
        try:
            settings = read_toml(config)
        except OSError as error:
            raise ConfigError(f"cannot read {str(config)!r}: {error.strerror}.") from None
        except ValueError as error:
            raise ConfigError(f"{str(config)!r} is not valid TOML: {error}.") from None
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {pair!r} is not of the form key=value.")
        try:
            settings[name] = parse_toml(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[name] = text
        except ValueError as error:
            raise ConfigError(f"the value of --set {name[:40]}=... cannot be read: {error}.") from None
    return settings


@contextmanager
def bar(what: str, quiet: bool) -> Iterator[Any]:
    """A progress bar on stderr, as a callback (done, total); None if quiet."""
    from rich.console import Console
    from rich.progress import Progress

    if quiet:
        yield None
        return
    with Progress(console=Console(stderr=True)) as progress:
        shown = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(shown, completed=done, total=total)


if TYPE_CHECKING:
    from fedcore.operations.events import Event


def announce(make: Callable[[], list[Event]]) -> None:
    """Send events, which are made only if PREFECT_API_URL is set. If the server does not answer, print a warning."""
    address = os.environ.get("PREFECT_API_URL")
    if address and (events := make()):
        as_json = import_module("fedcore.tasks.events").as_json
        import_module("fedcore.flows.announce").post([as_json(event) for event in events], address)
