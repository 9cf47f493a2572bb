"""What mkdocs does with the pages: README and its neighbours become pages, references are generated, links lead on.

Pages are written to be read in the repository too: links in them are paths between its files. On the site a link to
README, CONTRIBUTING or CHANGELOG leads to the page that is made of it, and one to code or notes is plain text.
A notebook in docs/notebooks becomes a page with its code, what the code printed and its pictures.
"""

import base64
import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click
from typer.main import get_command

from fedcore.cli import app
from fedcore.cli.methods import settings_rows
from fedcore.methods.names import METHODS
from fedcore.methods.registry import method_class, summary

ROOT = Path(__file__).parents[2]
MADE_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
NOTEBOOK = "tutorials/researcher.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in MADE_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    made = json.dumps(notebook((ROOT / "docs" / NOTEBOOK).read_text()), indent=1)
    files.append(File.generated(config, NOTEBOOK.replace(".md", ".ipynb"), content=made))
    for stored in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        markdown, pictures = page_of(stored)
        files.append(File.generated(config, f"notebooks/{stored.stem}.md", content=markdown))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    source = {made: name for name, made in MADE_PAGES.items()}.get(place, f"docs/{place}")
    for marker, made in REFERENCES.items():
        if f"<!-- {marker} -->" in markdown:
            markdown = markdown.replace(f"<!-- {marker} -->", made())
    markdown = with_links(markdown, source, place)
    if place == NOTEBOOK or place.startswith("notebooks/"):
        name = posixpath.basename(place).replace(".md", ".ipynb")
        markdown = markdown.replace("\n\n", f"\n\n[This page as a notebook]({name}){{ download }}\n\n", 1)
    return markdown


def with_links(markdown: str, source: str, place: str) -> str:
    """The page with links for the site. source: its path in the repository; place: its path on the site."""

    def link(found: re.Match[str]) -> str:
        image, text, target, anchor = (part or "" for part in found.groups())
        if not target or "://" in target:
            return found.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if (ROOT / path / "README.md").exists():
            path += "/README.md"
        if path not in MADE_PAGES and (not path.startswith("docs/") or path.startswith("docs/notes/")):
            return text
        there = MADE_PAGES.get(path, path.removeprefix("docs/"))
        if there.startswith("notebooks/"):
            there = there.replace(".ipynb", ".md")
        return f"{image}[{text}]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{anchor})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)", link, part) for part in parts[::2]]
    return "".join(parts)


def commands() -> str:
    """The help of every command, as typer writes it."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=command.context_class(command, info_name="fedcore"), name="fedcore")
    return f"#{text}"  # the page has a title


def settings() -> str:
    """A table of settings for every method."""
    return "\n\n".join(_settings_of(name) for name in METHODS)


def _settings_of(name: str) -> str:
    cls = method_class(name)
    main, rest = settings_rows(cls)
    lines = [f"## {name}", "", summary(cls), ""]
    if cls.free_settings:
        free = ", ".join(f"`{setting}`" for setting in cls.free_settings)
        lines += [f"Of what is made of a run that is there (`predict --set`, `evaluate --set`): {free}.", ""]
    lines += _table_of(main)
    if rest:
        lines += ["", "Advanced:", "", *_table_of(rest)]
    return "\n".join(lines)


def _table_of(rows: list[dict[str, str]]) -> list[str]:
    lines = ["| setting | default | values | what |", "|---|---|---|---|"]
    for row in rows:
        values = ", ".join(part for part in (row["type"], row["range"]) if part)
        cells = [f"`{row['setting']}`", f"`{row['default']}`", values, row["what"]]
        lines.append("| " + " | ".join(_escaped(cell) for cell in cells) + " |")
    return lines


def _escaped(cell: str) -> str:
    return cell.replace("|", "&#124;").replace("<", "&lt;").replace("*", "\\*").replace("\n", " ")


REFERENCES = {"commands": commands, "settings": settings}


def notebook(markdown: str) -> dict:
    """A page as a Jupyter notebook: its blocks of Python are the cells of code, without what they print."""
    cells: list[dict] = []
    parts = re.split(r"^```(\w+)\n(.*?)^```$", markdown, flags=re.MULTILINE | re.DOTALL)
    for text, language, code in zip(parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True):
        if text.strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": text.strip()})
        if language == "python":
            cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
            cells.append({**cell, "source": code.rstrip()})
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 4}


def page_of(stored: Path) -> tuple[str, dict[str, bytes]]:
    """A Jupyter notebook as Markdown: text, code, and what the code printed; and its pictures (PNG) by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(stored.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "image/png" in output.get("data", {}):
                name = f"{stored.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(output["data"]["image/png"]))
                parts.append(f"![Picture that this code draws]({name})")
    return "\n\n".join(parts) + "\n", pictures
