"""The documentation names what there is."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.main import get_command

import fedcore.errors
from fedcore.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def test_the_runbook_has_every_error():
    page = (ROOT / "docs/operations.md").read_text()
    errors = [cls for cls in vars(fedcore.errors).values() if isinstance(cls, type)]
    missing = [cls.__name__ for cls in errors if f"`{cls.__name__}`" not in page]
    assert missing == ["FedcoreError"]  # their base, which is never raised


def commands(page: Path) -> list[str]:
    """What is written after "fedcore " in code of the page."""
    text = page.read_text().replace("\\\n", " ")  # a command may go on in the next line
    found = re.findall(r"(?:^|[`(])fedcore ([a-z][^`\n#)]*)", text, re.MULTILINE)
    return [command.strip() for command in found]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists(page):
    for command in commands(page):
        level = get_command(app)
        for word in shlex.split(command, comments=True)[:2]:
            if not isinstance(level, typer.core.TyperGroup):
                break
            assert word in level.commands, f"{page.name}: fedcore {command}"
            level = level.commands[word]
        options = {name for parameter in level.params for name in parameter.opts}
        used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", command))
        assert used <= options | {"--help"}, f"{page.name}: fedcore {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name}: {link}"
