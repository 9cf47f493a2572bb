"""What others may build upon stays (docs/stability.md): names, commands, settings, fields of JSON, formats of files."""

import subprocess
from pathlib import Path

import pytest

import fedcore
from tests.stability import formats, since_tag
from tests.stability.make import GOLDEN, LISTS, MAKE, SLOW, differences, extends, stored, written
from tests.stability.names import all_commands

BROKEN = (
    "Others may build upon these. Keep the old form for one minor version (fedcore/rounds/old_names.py), or raise the "
    "schema of a format and keep reading the old one. docs/stability.md has the rules. Only then: " + MAKE
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LISTS])
def test_what_others_may_build_upon_is_as_it_was(name):
    found = differences(stored(name), LISTS[name]())
    broken = [line for line in found if not line.startswith("added")]
    assert not broken, "\n".join([*broken, BROKEN])
    assert not found, "\n".join([*found, f"These are new. Add them to the lists: {MAKE}"])


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_read_as_it_was_written(name):
    assert written(stored(name), name in SLOW) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.slow
def test_every_command_with_json_is_sampled_or_says_why_not():
    speaks = {
        name.removeprefix("fedcore ") for name, one in all_commands() if any("--json" in p.opts for p in one.params)
    }
    assert speaks - formats.sampled()[2] == formats.NOT_SAMPLED.keys()


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("(a, b=1)", "(a, b=1, c=None)", True),
        ("(a, *, b=1)", "(a, *, c=(1, 2), b=1)", True),
        ("(a, *, b=1)", "(a, *, b=1, c)", False),
        ("(a, b=1)", "(a, c=2, b=1)", False),
        ("(a, b=1)", "(a, b=2)", False),
        ("(a, b=1)", "(a)", False),
        ("(a, *, b=1)", "(a, *)", False),
        ("(a)", "(a, b)", False),
        ("number", "number or null", False),
    ],
)
def test_a_parameter_with_a_default_is_an_addition(before, now, expected):
    assert extends(before, now) is expected


def test_differences_are_named():
    before, now = {"f": "(a)", "g": "x", "h": ""}, {"f": "(a, b=1)", "g": "y", "i": ""}
    assert differences(before, now) == ["added to: f: (a) -> (a, b=1)", "added: i", "changed: g: x -> y", "removed: h"]


# --- the last release -------------------------------------------------------------------------------------------------


def test_nothing_of_the_last_release_is_gone():
    """Lists that were written again hide nothing: they are compared with those of the last tag."""
    try:
        tag = since_tag.last_tag()
    except ValueError as error:
        pytest.skip(f"no release to compare with: {error}")
    found = since_tag.broken(tag, fedcore.__version__)
    assert not found, "\n".join([f"{tag} had these.", *found, BROKEN])


@pytest.fixture
def release(tmp_path):
    """A repository with a release v1.3.0, in which some function of Python and some setting, options and fields are."""
    lists = {
        "python": "fedcore.fit: (a, b=1)\nfedcore.old_fit: (a)\n",
        "settings": "em tolerance: number\nem rank: integer\n",
        "commands": "fedcore train --workers: int\nfedcore train --threads: int\n",
        "json": "train: run=string status=string\n",
    }
    write(tmp_path, **lists)
    (tmp_path / "fedcore").mkdir()
    code = 'NEW = Renamed("--workers", since="1.3").used("option \'--threads\' of train")\n'
    (tmp_path / "fedcore/cli.py").write_text(code)
    with pytest.raises(ValueError, match="not a git repository"):
        since_tag.last_tag(tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    with pytest.raises(ValueError, match="No names found"):
        since_tag.last_tag(tmp_path)
    git(tmp_path, "tag", "v1.3.0")
    return tmp_path


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@x", *words], cwd=root, check=True)


def write(root: Path, **lists: str) -> None:
    folder = root / since_tag.LISTED
    folder.mkdir(parents=True, exist_ok=True)
    for name in LISTS:
        if name in lists or not (folder / f"{name}.txt").exists():
            (folder / f"{name}.txt").write_text(lists.get(name, ""))


def since(root: Path, version: str = "1.4.0") -> list[str]:
    assert since_tag.last_tag(root) == "v1.3.0"
    return since_tag.broken("v1.3.0", version, root)


def test_a_name_that_is_gone_since_a_release_is_found(release):
    assert since(release) == []
    write(
        release, python="fedcore.fit: (a)\n", settings="em tolerance: number\n", json="train: run=string more=string\n"
    )
    gone = [
        "python: changed: fedcore.fit: (a, b=1) -> (a)",
        "python: removed: fedcore.old_fit",
        "settings: removed: em rank",
        "json: removed: train.status",
    ]
    assert since(release) == gone
    git(release, "add", ".")
    git(release, "commit", "-qm", "the lists are written again")
    assert since(release) == gone and since(release, "2.0.0") == []


def test_an_addition_is_no_loss(release):
    write(release, python="fedcore.fit: (a, b=1, c=None)\nfedcore.old_fit: (a)\nfedcore.new: ()\n")
    assert since(release) == []


def test_a_setting_may_be_renamed_and_works_for_one_minor_version(release):
    write(release, settings="em tol: number\nem rank: integer\n")
    assert since(release) == ["settings: removed: em tolerance"]
    (release / "fedcore/em.py").write_text('renamed = {"tolerance": Renamed("tol", since="1.4")}\n')
    assert since(release) == [] and since(release, "1.5.0") == ["settings: removed: em tolerance"]


def test_an_option_goes_in_the_version_that_the_release_announced(release):
    write(release, commands="fedcore train --workers: int\n")
    (release / "fedcore/cli.py").write_text("")
    assert since(release, "1.3.1") == ["commands: removed: fedcore train --threads"]
    assert since(release, "1.4.0") == []
