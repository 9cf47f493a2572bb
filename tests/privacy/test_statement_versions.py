"""Stored statements keep the sentences that they were written with, and verify by them.

statements/ holds what was stored before statements had versions: one with its ledger, and what differs in others.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedcore.errors import ConfigError
from fedcore.operations.verify_statement import verify_statement
from fedcore.privacy.statement import PrivacyStatement, no_privacy
from fedcore.privacy.statement_check import read_statement
from fedcore.privacy.statement_texts import CURRENT, FIRST, TEXTS, VERSIONS, template

STORED = Path(__file__).with_name("statements")
TABLE = Path(__file__).parents[2] / "docs" / "notes" / "statement-texts.md"
STATEMENT = json.loads((STORED / "statement-1.json").read_text())
OTHERS = {name: {**STATEMENT, **other} for name, other in json.loads((STORED / "others-1.json").read_text()).items()}


@pytest.fixture
def verified(tmp_path):
    """Verifies a statement with the stored ledger."""
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection:
        connection.executescript((STORED / "ledger-1.sql").read_text())

    def verify(value):
        (tmp_path / "statement.json").write_text(json.dumps(value))
        return verify_statement(tmp_path / "statement.json", ledger_url=f"sqlite:///{tmp_path / 'ledger.sqlite'}")

    return verify


def current(value):
    return read_statement(json.dumps(value))[0].in_version(CURRENT).to_json()


def test_a_statement_without_a_version_agrees_with_itself_and_its_ledger(verified):
    report = verified(STATEMENT)
    assert report.problems == [] and any("ledger's records give" in checked for checked in report.checked)
    assert read_statement(json.dumps(STATEMENT))[0].text_version == FIRST


def test_so_does_the_same_statement_in_the_current_sentences(verified):
    value = current(STATEMENT)
    assert value["text_version"] == CURRENT and verified(value).problems == []
    assert not {"promise", "noised", "nobody", "somebody"} & set(value["text"].replace(",", " ").split())


@pytest.mark.parametrize("text, version", [(FIRST, CURRENT), (CURRENT, FIRST)])
def test_the_sentences_of_another_version_than_the_stated_one_are_noticed(verified, text, version):
    of = {FIRST: STATEMENT, CURRENT: current(STATEMENT)}
    (problem,) = verified({**of[version], "text": of[text]["text"]}).problems
    assert "text was changed" in problem
    problems = verified({**of[version], "not_covered": of[text]["not_covered"]}).problems
    assert any("not_covered" in problem for problem in problems)


@pytest.mark.parametrize("name", OTHERS)
def test_every_stored_sentence_is_written_again(name):
    """In the current version too, with the same numbers."""
    made = PrivacyStatement.from_json(OTHERS[name])
    assert made.text() == OTHERS[name]["text"] and made.to_json() == OTHERS[name]
    assert made.in_version(CURRENT).in_version(FIRST) == made


def test_the_stored_statements_have_every_sentence_of_the_first_version():
    texts = "\n".join(other["text"] for other in [STATEMENT, *OTHERS.values()])
    for name in TEXTS:
        parts = [part for part in template(name, FIRST).replace("}", "{").split("{")[::2] if part.strip()]
        assert all(part in texts for part in parts), name


@pytest.mark.parametrize("version", [0, 3, True, "2", None])
def test_an_unknown_version_is_refused(version):
    with pytest.raises(ConfigError, match="version .* of its sentences"):
        read_statement(json.dumps({**STATEMENT, "text_version": version}))


def test_a_run_without_privacy_has_the_same_text_in_all_versions():
    assert "text_version" not in no_privacy("it adds no noise").to_json()


def test_the_notes_show_the_versions_side_by_side():
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    changed = {name: [template(name, one) for one in VERSIONS] for name in TEXTS if not isinstance(TEXTS[name], str)}
    assert rows == [f"| `{name}` | {old.strip()} | {new.strip()} |" for name, (old, new) in changed.items()]
