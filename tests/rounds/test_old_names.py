"""Old names work for one minor version, with one warning; then they are refused (docs/stability.md)."""

import ast
import warnings
from pathlib import Path

import pytest

import fedcore
from fedcore.errors import ConfigError
from fedcore.methods.names import METHODS
from fedcore.methods.registry import make_method, method_class, method_of_run
from fedcore.rounds import old_names
from fedcore.rounds.choices import known_settings
from fedcore.rounds.old_names import OldName, Renamed
from tests.command import fedcore as command
from tests.stability.since_tag import over, renamed
from tests.test_layers import FOLDERS, ROOT

OLD = {"algorithm": "em", "tolerance": 1e-3}


@pytest.fixture(autouse=True)
def nothing_warned_yet():
    old_names._warn.cache_clear()


def test_an_old_name_does_what_the_new_one_does_and_warns_once():
    with pytest.warns(OldName, match="'tolerance' of 'federated_em' is called 'tol' now.*in version 1.1") as told:
        made = [make_method("federated-em", OLD), make_method("federated_em", OLD)]
    assert made == [make_method("federated_em", {"algorithm": "em", "tol": 1e-3})] * 2 and len(told) == 1


def test_a_command_warns_in_one_line(tmp_path):
    ended = command("train", "federated_em", tmp_path / "none", "--set", "tolerance=-1", "--local")
    lines = ended.err.splitlines()
    assert lines[0].startswith("warning: The setting 'tolerance'") and lines[1].startswith("ConfigError: ")
    assert ended.code == 2 and "tol" in lines[1]


def test_both_names_are_one_too_many():
    with pytest.raises(ConfigError, match="by its old and by its new name 'tol'"), pytest.warns(OldName):
        make_method("federated_em", {**OLD, "tol": 1e-3})


@pytest.mark.parametrize(("version", "works"), [("0.1.0", True), ("1.0.7", True), ("1.1.0", False), ("2.0.0", False)])
def test_an_old_name_works_for_one_minor_version(monkeypatch, version, works):
    monkeypatch.setattr(fedcore, "__version__", version)
    if works:
        with pytest.warns(OldName):
            make_method("federated_em", OLD)
    else:
        with pytest.raises(ConfigError, match="is called 'tol' since version 1.0"):
            make_method("federated_em", OLD)


def test_a_stored_run_keeps_its_old_names_without_end(monkeypatch):
    monkeypatch.setattr(fedcore, "__version__", "9.0.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = method_of_run({"method": "federated_em", "config": OLD})
    assert found == make_method("federated_em", {"algorithm": "em", "tol": 1e-3})


def test_what_a_setting_is_called_now_exists_and_its_old_name_does_not():
    for cls in map(method_class, METHODS):
        known = known_settings(cls.Config)
        for name, one in cls.renamed_settings.items():
            assert one.new in known and name not in known and name not in cls.moved_settings, f"{cls.name} {name}"


def outlived(text: str, version: str) -> list[str]:
    """New names whose old ones the code still takes, although the version has come that refuses them."""
    made = filter(None, map(renamed, ast.walk(ast.parse(text))))
    return [one.new for one in made if over(one, version)]


def test_no_old_name_outlives_its_version():
    """Entries of `Method.renamed_settings` stay, for stored runs. All others go, with the code that reads them."""
    files = [path for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py")]
    code = [path.read_text() for path in files if path != Path(old_names.__file__)]
    of_settings = {one.new for cls in map(method_class, METHODS) for one in cls.renamed_settings.values()}
    assert {name for text in code for name in outlived(text, fedcore.__version__)} <= of_settings


@pytest.mark.parametrize(
    "made", ['Renamed("--new", since="1.2")', 'Renamed(new="--new", since="1.2")', 'old_names.Renamed("--new", "1.2")']
)
def test_an_old_name_that_outlives_its_version_is_found(made):
    assert outlived(made, "1.2.9") == [] and outlived(made, "1.3") == ["--new"]


def test_the_version_that_refuses_is_the_next_minor_one():
    assert Renamed("new", since="1.9").until == "1.10"
