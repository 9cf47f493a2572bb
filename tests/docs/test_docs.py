"""The documentation names what there is."""

import re
import shlex
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.main import get_command

import fedcore.errors
from fedcore.cli import app
from fedcore.errors import PopulationError
from fedcore.methods.names import METHODS
from fedcore.methods.registry import make_method
from fedcore.rounds.results import Features
from tests.run_in_memory import block_of, run_method

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def test_the_page_of_errors_has_every_error():
    page = (ROOT / "docs/errors.md").read_text()
    errors = [cls for cls in vars(fedcore.errors).values() if isinstance(cls, type)]
    missing = [cls.__name__ for cls in errors if f"`{cls.__name__}`" not in page]
    assert missing == ["FedcoreError"]  # their base, which is never raised


@cache
def all_commands() -> typer.core.TyperGroup:
    return get_command(app)


def commands(page: Path) -> list[str]:
    """What is written after "fedcore " in code of the page."""
    text = page.read_text().replace("\\\n", " ")  # a command may go on in the next line
    found = re.findall(r"(?:^|[`(])fedcore ([a-z][^`\n#)]*)", text, re.MULTILINE)
    return [command.strip() for command in found]


COLUMNS = Features(2, ["age", "income"])
INCOMPLETE = block_of([np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 4.0]]) + client for client in range(30)])
ERROR, LEFT_OUT, READ = "error", "the row is left out", "read as unobserved"
COUNTED, FILLED = "counted as missing", "filled from the rest of the row"


@pytest.mark.parametrize(
    ("line", "method", "settings", "does"),
    [
        ("`private_mixture`", "private_mixture", {}, FILLED),
        ("`private_gmm`", "private_gmm", {}, LEFT_OUT),
        ("`profile`", "profile", {}, COUNTED),
        ('`federated_em`, `algorithm = "private"`', "federated_em", {"algorithm": "private"}, LEFT_OUT),
        ("`dictionaries`, `private = true`", "dictionaries", {"private": True}, LEFT_OUT),
        ("`federated_em`, not private", "federated_em", {"components": 1, "rounds": 2}, READ),
        ("`federated_em`, not private", "federated_em", {"model": "gaussian_imputer", "rounds": 2}, READ),
        ("`federated_em`, not private", "federated_em", {"model": "regression", "rounds": 2}, ERROR),
        ("`gradient_em`", "gradient_em", {}, ERROR),
        ("`mixed_effects`", "mixed_effects", {}, ERROR),
        ("`perma`", "perma", {"atoms": 2, "global_atoms": 1}, ERROR),
        ("`background`", "background", {}, ERROR),
        ("`dictionaries`, not private", "dictionaries", {"atoms": 2, "global_atoms": 1}, ERROR),
        ("`histograms`", "histograms", {}, "reads counts"),
        ("`paper_histograms`", "paper_histograms", {}, "reads counts"),
    ],
)
def test_what_a_method_does_with_missing_values(line, method, settings, does):
    """The table of docs/ingest.md against the methods; that a row left out adds nothing is tested with each method's
    sensitivities."""
    lines = (ROOT / "docs/ingest.md").read_text().splitlines()
    (cells,) = [each.split("|") for each in lines if each.startswith(f"| {line} |")]
    assert does in cells[2].lower()
    made = make_method(method, settings)
    assert ("is left out" in made.left_out(COLUMNS)) == (does == LEFT_OUT)
    if does == ERROR:
        with pytest.raises(PopulationError):
            run_method(made, INCOMPLETE)
    elif does == READ:
        run_method(made, INCOMPLETE)


def test_every_method_has_a_line_in_the_table_of_missing_values():
    page = (ROOT / "docs/ingest.md").read_text()
    assert [name for name in METHODS if f"\n| `{name}`" not in page] == []
    assert make_method("private_mixture", {}).left_out(COLUMNS) == (
        "Missing numbers are filled by draws from the released mixture, given the rest of the row."
    )
    mixed = make_method("private_mixture", {"categories": [[1]]})
    assert mixed.left_out(COLUMNS).endswith("A missing category only gives no answer.")


def test_every_command_exists():
    for page, command in [(one, command) for one in PAGES for command in commands(one)]:
        level = all_commands()
        for word in shlex.split(command, comments=True)[:2]:
            if not isinstance(level, typer.core.TyperGroup):
                break
            assert word in level.commands, f"{page}: fedcore {command}"
            level = level.commands[word]
        options = {name for parameter in level.params for name in parameter.opts}
        used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", command))
        assert used <= options | {"--help"}, f"{page}: fedcore {command}"


def test_every_link_leads_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert "://" in link or (page.parent / link).exists(), f"{page}: {link}"


def test_the_architecture_is_read_in_minutes():
    before = (ROOT / "docs/architecture.md").read_text().split("\n## Contracts\n")[0]
    assert len(before.split()) <= 1200
    assert before.count("](images/") == 1
    named = re.findall(r"^\| `((?:fedcore|tasks|flows|papers)/[\w/]*)`", before, re.M)
    assert named and all((ROOT / name).is_dir() for name in named)
