"""What the last release has and this tree does not: by the lists of `golden` under the tag `vMAJOR.MINOR.PATCH`.

A name may go if its old form still works, or was marked in the release and its time is over. So an old setting has an
entry in `Method.renamed_settings`, and another old name a call `Renamed("NEW", since="1.4").used("option 'OLD' ...")`,
which names it in quotes.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedcore.rounds.old_names import Renamed, _release
from tests.stability.make import GOLDEN, LISTS, SLOW, differences, read
from tests.test_layers import FOLDERS

ROOT = Path(__file__).parents[2]
LISTED = GOLDEN.relative_to(ROOT).as_posix()
FIXED = ("python", "methods", "commands", "json")  # lists in which a changed line breaks others too


def git(root: Path, *words: str, may_find_nothing: bool = False) -> str:
    """What it prints. Raises ValueError with what git said."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode > may_find_nothing:
        raise ValueError(done.stderr.strip())
    return done.stdout


def last_tag(root: Path = ROOT) -> str:
    """Of a release that this commit contains. Raises ValueError if there is none, or no clone."""
    return git(root, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*.[0-9]*.[0-9]*").strip()


def broken(tag: str, version: str, root: Path = ROOT) -> list[str]:
    """A line for each name of the tag that is gone or changed in the tree, which is of this version; none for another
    major version. Raises ValueError for an unknown tag."""
    if _release(version)[0] != _release(tag[1:])[0]:
        return []
    lists = git(root, "ls-tree", "--name-only", tag, f"{LISTED}/").splitlines()
    mine, theirs = old_names(of_tree(root)), old_names(of_tag(tag, root))
    may_go = {old for old, one in mine if not over(one, version)} | {old for old, one in theirs if over(one, version)}
    found = []
    for name in LISTS:
        if f"{LISTED}/{name}.txt" not in lists:
            continue
        before = read(git(root, "show", f"{tag}:{LISTED}/{name}.txt"), name in SLOW)
        now = read((root / LISTED / f"{name}.txt").read_text(), name in SLOW)
        for line in differences(before, now):
            kind, _, rest = line.partition(": ")
            known = may_go & set(re.split(r"[ .:]+", rest))
            if (kind == "removed" and not known) or (kind == "changed" and name in FIXED):
                found.append(f"{name}: {line}")
    return found


def over(one: Renamed, version: str) -> bool:
    """Whether the version refuses the old name."""
    return _release(one.until) <= _release(version)


# --- old names that code states ---------------------------------------------------------------------------------------


def of_tree(root: Path) -> Iterator[str]:
    """Texts of the files that rename something, without tests."""
    for folder in FOLDERS.values():
        texts = (path.read_text() for path in (root / folder).rglob("*.py"))
        yield from (text for text in texts if "Renamed(" in text)


def of_tag(tag: str, root: Path) -> Iterator[str]:
    words = ("grep", "-l", "Renamed(", tag, "--", *(f"{folder}/*.py" for folder in FOLDERS.values()))
    return (git(root, "show", one) for one in git(root, *words, may_find_nothing=True).splitlines())


def old_names(texts: Iterable[str]) -> Iterator[tuple[str, Renamed]]:
    """(old name, what is called otherwise) of all that the code renames."""
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                yield from ((key.value, made) for key, value in pairs if key and (made := renamed(value)))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "used":
                if made := renamed(node.func.value):
                    words = [one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)]
                    yield from ((old, made) for word in words for old in re.findall(r"'([^']+)'", str(word)))


def renamed(node: ast.AST) -> Renamed | None:
    """What a call makes. A name or version that is not written out is a ValueError."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] != "Renamed":
        return None
    return Renamed(
        *map(ast.literal_eval, node.args), **{str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    )
