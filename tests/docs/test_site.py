"""The documentation as a site: it builds without a warning, and its references have all that there is."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import fedcore
import fedcore.errors
from fedcore.cli import app
from fedcore.cli.methods import settings_rows
from fedcore.methods.names import METHODS
from fedcore.methods.registry import method_class
from tests.tutorial import blocks

pytest.importorskip("mkdocs", reason="the site is built by mkdocs: pip install -e '.[docs]'")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0 and not built.stderr.strip(), built.stderr
    return made


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def all_commands(command, name="fedcore"):
    yield name, command
    for word, inner in getattr(command, "commands", {}).items():
        yield from all_commands(inner, f"{name} {word}")


def test_every_command_and_option_is_in_the_reference(site):
    page = (site / "reference/commands/index.html").read_text()
    shown = {}
    for title, section in re.findall(r"<h[1-4][^>]*>(.*?)</h[1-4]>(.*?)(?=<h[1-4]|$)", page, re.DOTALL):
        shown[re.sub(r"<[^>]+>|&para;", "", title)] = set(re.findall(r"--[a-z][a-z-]*", section))
    for name, command in all_commands(get_command(app)):
        options = {option for one in command.params for option in one.opts if option.startswith("--")}
        assert options <= shown[name], name


def test_every_setting_is_in_the_reference(site):
    page = (site / "reference/settings/index.html").read_text()
    for name in METHODS:
        section = page.split(f'<h2 id="{name}">')[1].split("<h2")[0]
        cells = set(re.findall(r"<td><code>(\w+)</code></td>", section))
        assert {row["setting"] for rows in settings_rows(method_class(name)) for row in rows} - cells == set(), name


def test_everything_that_fedcore_offers_is_in_the_reference(site):
    page = (site / "reference/python/index.html").read_text()
    for name in {*fedcore.WHERE, *(name for name, cls in vars(fedcore.errors).items() if isinstance(cls, type))}:
        assert re.search(rf'id="fedcore[\w.]*\.{name}"', page), name


def test_no_page_asks_another_host_for_anything(site):
    asked = re.compile(
        r'<(?:script|img|iframe)[^>]*\ssrc="(\w+:)?//|<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(\w+:)?//'
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [str(page.relative_to(site)) for page in pages if asked.search(page.read_text())] == []


def test_the_start_page_is_the_readme(site):
    shown = text_of(site / "index.html")
    for heading in re.findall(r"^#+ (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert heading in shown


def test_no_page_shows_unparsed_markdown(site):
    """Tables, lists and marks that the site's Markdown reads otherwise than the repository's."""
    for page in site.rglob("*.html"):
        shown = re.sub(r"<(pre|code|script|style).*?</\1>", "", page.read_text(), flags=re.DOTALL)
        bad = re.findall(r"<p>[^<]*\n[-|] .*|\]\([^)<]*\.md|^:::.*|```.*", shown, re.MULTILINE)
        assert bad == [], str(page.relative_to(site))


def test_the_notebook_has_the_code_of_its_page(site):
    cells = json.loads((site / "tutorials/researcher.ipynb").read_text())["cells"]
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    assert code == [block.code.rstrip() for block in blocks("researcher.md")]
    assert 'href="../researcher.ipynb"' in (site / "tutorials/researcher/index.html").read_text()


@pytest.mark.parametrize("stored", sorted((ROOT / "docs/notebooks").glob("*.ipynb")), ids=lambda stored: stored.stem)
def test_a_notebook_is_a_page_with_its_outputs(site, stored):
    page = site / "notebooks" / stored.stem / "index.html"
    shown = " ".join(text_of(page).split())
    for cell in json.loads(stored.read_text())["cells"]:
        for output in cell.get("outputs", []):
            assert " ".join("".join(output.get("text", "")).split()) in shown
    assert f'href="../{stored.name}"' in page.read_text() and (page.parents[1] / stored.name).exists()
    assert list(page.parents[1].glob(f"{stored.stem}-*.png"))
