"""Docstrings as they stand in the code, for readers of the site: lines of parameters are lists, doctests are code."""

import re

from griffe import Class, Docstring, Extension, Function, Object

NAMES = r"[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*"  # "rows: ...", "low, high: ..."
PARAMETER = re.compile(rf"({NAMES}):\s+(.*)")
SENTENCE = re.compile(r"Raises|Returns|Fitted:")


class Docstrings(Extension):
    """Rewrites every docstring to Markdown of the same words."""

    def on_object(self, *, obj: Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            text = as_markdown(obj.docstring.value, _parameters(obj))
            obj.docstring = Docstring(text, lineno=obj.docstring.lineno, parent=obj)


def _parameters(obj: Object) -> set[str]:
    if isinstance(obj, Function):
        return {one.name for one in obj.parameters}
    if isinstance(obj, Class):
        made = obj.members.get("__init__")
        return {*obj.members, *(_parameters(made) if isinstance(made, Function) else ())}
    return set()


def as_markdown(text: str, known: set[str]) -> str:
    """Paragraphs whose lines begin with names of parameters become lists; `>>>` and what it prints becomes code.

    known: names that also begin an item after a semicolon, in the middle of a line
    """
    return "\n\n".join(_paragraph(one, known) for one in re.split(r"\n\s*\n", text))


def _paragraph(text: str, known: set[str]) -> str:
    if text.lstrip().startswith(">>>"):
        return f"```pycon\n{text}\n```"
    made: list[str] = []
    in_list = False
    for line in _lines(text, known):
        item = PARAMETER.match(line)
        if item and not SENTENCE.match(line):
            names = ", ".join(f"`{one}`" for one in item[1].split(", "))
            made += [""] * (not in_list) + [f"- {names}: {item[2]}"]
            in_list = True
        elif in_list and line.startswith(" "):
            made.append(f"    {line.strip()}")
        else:
            made += [""] * (in_list or bool(SENTENCE.match(line))) + [line]
            in_list = False
    return "\n".join(made).lstrip("\n")


def _lines(text: str, known: set[str]) -> list[str]:
    """The lines of a paragraph; "a: what it is; b: what that is" is two of them."""
    lines = []
    for line in text.split("\n"):
        parts = [line]
        if PARAMETER.match(line):
            for part in re.split(rf"; (?={NAMES}: )", parts.pop()):
                begins = PARAMETER.match(part)
                if parts and not (begins and set(begins[1].split(", ")) <= known):
                    parts[-1] += f"; {part}"
                else:
                    parts.append(part)
        lines += parts
    return lines
