"""The page of a method has its main settings first, and all others, if there are any, under "Advanced"."""

import re
from pathlib import Path

import pytest

from fedcore.methods.names import METHODS
from fedcore.methods.registry import method_class
from fedcore.rounds.method import settings_by_place
from fedcore.rounds.private_settings import PrivateRunSettings

DOCS = Path(__file__).parents[2] / "docs"
PRODUCTS = [name for name in METHODS if not name.startswith("paper_")]


def named(text: str) -> set[str]:
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", code)}


@pytest.mark.parametrize("method", PRODUCTS)
def test_every_setting_is_on_its_page(method):
    page = (DOCS / f"{method.replace('_', '-')}.md").read_text()
    before, *after = re.split(r"^### Advanced$|^\*\*Advanced\*\*$", page, maxsplit=1, flags=re.MULTILINE)
    main, rest = settings_by_place(method_class(method))
    assert set(main) - named(before) == set()
    own = set(rest) - set(PrivateRunSettings.model_fields)  # those are on the pages of docs/privacy
    assert own - named(*after or [""]) == set()


@pytest.mark.parametrize("name", PrivateRunSettings.model_fields)
def test_settings_of_private_runs_are_on_a_page_of_privacy(name):
    assert any(name in named(page.read_text()) for page in (DOCS / "privacy").glob("*.md"))
