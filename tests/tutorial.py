"""A tutorial as a reader does it: files written, commands typed, code run, all in the page's order; what that prints is
compared with what the page shows."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).parent.parent / "docs" / "tutorials"
LIMIT = 600  # seconds of a page's commands
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?![\w])")  # a fraction


@dataclass(frozen=True)
class Block:
    """A block of code of a page, and what the page says that it prints; None if it does not say."""

    language: str
    code: str
    shown: str | None

    @property
    def file(self) -> str | None:
        """The file that a reader writes it to: its first line names it."""
        found = re.match(r"# ([\w.-]+\.\w+)\n", self.code)
        return found[1] if found else None


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    made = []
    for at, (language, code) in enumerate(found):
        if language != "text":
            after = found[at + 1] if at + 1 < len(found) else ("", "")
            made.append(Block(language, code, after[1] if after[0] == "text" else None))
    return made


def in_a_shell(page: str, folder: Path) -> str:
    """Write the page's files, type its commands into one shell in an empty folder. Returns all that was printed.

    A block whose shown output names an error ends with exit code 2, the others with 0.
    """
    todo = blocks(page)
    for block in todo:
        if block.file is not None:
            (folder / block.file).write_text(block.code)
    typed = [block for block in todo if block.language == "sh"]
    script = "".join(
        f"echo; echo '>>> {at}'\n{block.code}code=$?; echo; echo \"<<< $code\"\n" for at, block in enumerate(typed)
    )
    output = _typed(f"exec 2>&1\n{script}", folder)
    parts = re.findall(r"^>>> (\d+)\n(.*?)^<<< (\d+)$", output, re.MULTILINE | re.DOTALL)
    assert len(parts) == len(typed), output
    for block, (_, printed, code) in zip(typed, parts, strict=True):
        expected = 2 if re.match(r"\w+Error: ", block.shown or "") else 0
        assert int(code) == expected, f"{block.code}\nexit code {code}:\n{printed}"
        compare(block, printed)
    return output


def _typed(script: str, folder: Path) -> str:
    """What a shell prints; whatever it has started in the background is ended with it."""
    shell = subprocess.Popen(
        ["bash"],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        return shell.communicate(script, timeout=LIMIT)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def environment(folder: Path) -> dict[str, str]:
    """Of a new user: a home of their own, a wide terminal, and this Python's commands."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "OMP_NUM_THREADS") if name in os.environ}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return kept | {"HOME": str(home), "PATH": path, "COLUMNS": "150", "PYTHONWARNINGS": "ignore"}


def executed(book: Any, folder: Path) -> Any:
    """A notebook after a kernel has run its cells in an empty folder, as a new user: with outputs, pictures as PNG."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    folders = {name: str(folder) for name in ("HOME", "IPYTHONDIR", "JUPYTER_DATA_DIR")}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MPLBACKEND", raising=False)
        for name, value in folders.items():
            patch.setenv(name, value)
        client = nbclient.NotebookClient(
            book, timeout=LIMIT, coalesce_streams=True, resources={"metadata": {"path": str(folder)}}
        )
        return client.execute()


def printed_by(cell: Any) -> str:
    return "".join("".join(one["text"]) for one in cell.outputs if one.get("name") == "stdout")


def compare(block: Block, printed: str) -> None:
    """The lines that the page shows are printed, in their order; `...` stands for anything."""
    if block.shown is None:
        return
    lines = printed.splitlines()
    skips = True  # progress bars come before what commands print
    for shown in block.shown.splitlines():
        if shown == "...":
            skips = True
            continue
        while lines and not alike(shown, lines[0]) and (skips or not lines[0].strip()):
            lines.pop(0)
        assert lines and alike(shown, lines.pop(0)), f"{block.code}\ndoes not print\n{shown}\nbut\n{printed}"
        skips = False


def alike(shown: str, printed: str) -> bool:
    """Whether a line is the one that is shown, whatever its spaces; fractions may differ by a tenth, or by two of the
    last digit that is shown, since noise and rounding move them."""
    shown, printed = " ".join(shown.split()), " ".join(printed.split())
    pattern = re.escape(NUMBER.sub("#", shown)).replace(r"\.\.\.", ".*").replace(r"\#", "(#|[-.\\d]+)")
    found = re.fullmatch(pattern, printed)
    if found is None:
        return False
    pairs = zip(NUMBER.findall(shown), (one for one in found.groups() if one != "#"), strict=False)
    return all(near(one, other) for one, other in pairs)


def near(shown: str, printed: str) -> bool:
    last = 10.0 ** -len(shown.partition(".")[2])
    return math.isclose(float(shown), float(printed), rel_tol=0.1, abs_tol=2.001 * last)
