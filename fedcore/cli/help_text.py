"""Groups of commands that are imported when they are needed, and help as plain text: Rich would take longer to import
than everything else that `--help` does.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

WIDEST = 120  # columns of help, in a terminal that has them
GIVEN = "fedcore.given"  # the arguments of a command, in the memory of its context
OF_METHODS = {"plan", "select", "train"}  # commands whose first argument is a method
LONG = 1000  # characters of a command's first sentence that are shown; all of them, in effect


class Commands(TyperGroup):
    """A group of commands whose first sentences are shown whole."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(LONG)) for name, command in found if command and not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class OfMethod(TyperCommand):
    """A command whose first argument is a method. Its help ends with the settings of the method, if one is given."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        ctx.meta[GIVEN] = [*args]  # `--help` is read before all other arguments
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        words = [word for word in ctx.meta.get(GIVEN, ()) if not word.startswith("-")]
        if not words:
            with formatter.section("Settings"):
                formatter.write_text(f"`{ctx.command_path} METHOD --help` shows the settings of a method.")
            return
        from fedcore.cli.methods import settings_rows
        from fedcore.errors import FedcoreError
        from fedcore.methods.registry import method_class

        for word in words:
            try:
                main, rest = settings_rows(method_class(word))
            except FedcoreError:  # a population, or a value of an option
                continue
            with formatter.section(f"Settings of {word}, each as --set NAME=VALUE"):
                formatter.write_dl([(row["setting"], f"{row['what']} [default: {row['default']}]") for row in main])
            if rest:
                with formatter.section("Advanced"):
                    formatter.write_text(", ".join(row["setting"] for row in rest) + ".")
                    formatter.write_text(f"`fedcore methods {word}` explains them.")
            return


class Imported(Mapping[str, Any]):
    """Commands and groups by name, each imported when it is looked up. where: "module:function" or "module:app"."""

    def __init__(self, where: Mapping[str, str]) -> None:
        self.where, self._made = where, dict[str, "Command"]()

    def __getitem__(self, name: str) -> Command:
        if name not in self._made:
            module, _, attribute = self.where[name].partition(":")
            found, holder = getattr(import_module(module), attribute), typer.Typer(rich_markup_mode=None)
            if isinstance(found, typer.Typer):
                holder.add_typer(found, name=name)
            else:
                holder.command(name, cls=OfMethod if attribute in OF_METHODS else None)(found)
            self._made[name] = get_group(holder).commands[name]
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self.where

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __len__(self) -> int:
        return len(self.where)


def group_of(where: Mapping[str, str]) -> type[Commands]:
    """A group with these commands (see `Imported`) before its own."""

    class Group(Commands):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            imported: Any = Imported(where)  # is looked up, never set
            self.commands = ChainMap(self.commands, imported)  # which lists the last map first

    return Group
