"""Words that pages, messages and docstrings avoid: no page and no room of the code may have more of them than before.
Sentences of pages are short.

python -m tests.test_english      lowers what is allowed (tests/english.json) to what there is

Text in backticks and blocks of code does not count, so identifiers and stored keys never do.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = Path(__file__).with_name("english.json")
WORDS = re.compile(
    r"\b(?:somebody|anybody|nobody|everybody|whoever|of whom|to whom|he or she"
    r"|tells?|told|telling|foretell|foretold"
    r"|vouch\w*|(?:somebody's|whose|your|owner's) word|on (?:a|that|which|whose) word"
    r"|rests? on (?:a|that|somebody|which|whose)"
    r"|laws?|worth|nominal|price[sd]?|pricing|dearest|pays?|paid|bought|noised|valleys?"
    r"|anew|mend(?:s|ed)?|for ever|outright|likewise|say so|as ever|in earnest"
    r"|(?:go|goes|went|gone|going) on|so (?:many|much)|beside|lies?|lay|lying"
    r"|(?:is|are|was|were|be) said|nothing says|ones?'s own|of (?:its|their|your|his) own)\b",
    re.IGNORECASE,
)
BARE = re.compile(r"\bSay (?:--|`|it|so|why|with|when|how)")
NO_ZERO = re.compile(r"(?<![\w.\]])\.\d+\b(?!\.)")  # a number without its leading zero


def flagged(text: str, *, code: bool = True) -> int:
    text = re.sub(r"(?s:```.*?```)|^    .*$", " ", text, flags=re.MULTILINE) if code else text
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|\{[^}]*\}", " ", text)
    prose = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    return len(WORDS.findall(text)) + len(BARE.findall(text)) + len(NO_ZERO.findall(prose))


def pages() -> dict[str, str]:
    """Text of each page, but for the notes."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}
    return {name: text for name, text in found.items() if not name.startswith("docs/notes")}


def sentence_lengths(text: str) -> list[int]:
    """Words of each sentence of three words or more. Tables, headings and blocks of code have no sentences."""
    text = re.sub(r"(?s:```.*?```)|^(?:    |\||#|!\[).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:- |\d+\. ))|(?<=[.!?])[)*\"]*\s+(?=[A-Z0-9\"(*\[]|code)", text)
    counts = (len(re.findall(r"\S*\w\S*", part)) for part in parts)
    return [count for count in counts if count >= 3]


def literal(node: ast.AST) -> str:
    """What a string literal says; a value that it is filled with is X."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) if isinstance(part, ast.Constant) else " X " for part in node.values)
    return literal(node.left) + literal(node.right) if isinstance(node, ast.BinOp) else ""


def texts_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(kind, text) of each docstring, error and help text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called.endswith(("Error", "Exceeded", "NotReady", "Busy", "Missing")):
                yield from (("errors", literal(argument)) for argument in node.args)
            yield from (("help", literal(each.value)) for each in node.keywords if each.arg in ("help", "description"))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            if not getattr(node, "name", "").startswith("_"):
                yield "docstrings", ast.get_docstring(node) or ""


def counts() -> dict[str, int]:
    """Flagged words of each page, and of each kind of text in each room of fedcore."""
    found: Counter[str] = Counter({name: flagged(text) for name, text in pages().items()})
    for file in (ROOT / "fedcore").rglob("*.html"):
        words = re.sub(r"<style.*?</style>|<[^>]+>", " ", file.read_text(), flags=re.DOTALL)
        found[f"templates of {file.parent.relative_to(ROOT).as_posix()}"] += flagged(words)
    for file in (ROOT / "fedcore").rglob("*.py"):
        room = "/".join(file.relative_to(ROOT).parent.parts[:3])
        for kind, text in texts_of(ast.parse(file.read_text())):
            found[f"{kind} of {room}"] += flagged(text, code=kind != "docstrings")
    return {name: count for name, count in sorted(found.items()) if count}


def test_code_is_not_counted_and_what_follows_it_is():
    assert flagged("whoever\n\n    nobody\n\nanew\n\n```\nnobody\n```\n\nfor ever") == 3


def test_no_page_and_no_room_has_more_flagged_words():
    allowed = json.loads(ALLOWED.read_text())
    assert {name: count for name, count in counts().items() if count > allowed.get(name, 0)} == {}


def test_sentences_of_pages_are_short():
    lengths = [length for text in pages().values() for length in sentence_lengths(text)]
    assert len(lengths) > 1000
    assert sum(lengths) / len(lengths) <= 17
    assert sum(length > 30 for length in lengths) <= 0.05 * len(lengths)


def test_sentences_are_counted():
    text = "# No sentence\n\nOne of `a b` and [four words](x.md). Two\nhas four words.\n\n- Of a list\n\n| a | b |"
    assert sentence_lengths(text) == [6, 4, 3]


def test_flagged_words_are_found():
    assert flagged("Nobody tells what .5 is worth; `nobody` and 0.5 are allowed") == 4


if __name__ == "__main__":
    ALLOWED.write_text(json.dumps(counts(), indent=1) + "\n")
