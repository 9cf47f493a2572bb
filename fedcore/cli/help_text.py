"""Help as plain text: Rich would take longer to import than everything else that `--help` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

WIDEST = 120  # columns of help, in a terminal that has them
LONG = 1000  # characters of a command's first sentence that are shown; all of them, in effect


class Commands(TyperGroup):
    """A group of commands whose first sentences are shown whole."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(LONG)) for name, command in found if command and not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
