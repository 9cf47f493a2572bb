"""Joining a study: what a person reads before they agree, what is refused, and what the site's folder keeps."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from fedcore.errors import BudgetMissing, FileRefused, StudyError, Unreachable
from fedcore.population.encoding import encode
from fedcore.sites import joining
from fedcore.sites.identity import Identity, fingerprint
from fedcore.sites.joining import Joined, agreement, join, joined_studies
from fedcore.sites.mailbox import Header, Mailbox
from fedcore.sites.progress import Progress, end_of, final_states, posted, progress_of
from fedcore.sites.study import Schema, read_study, write_study
from fedcore.storage import files
from fedcore.storage.digests import canonical
from fedcore.training.budget import ledger_of
from fedcore.training.vocabulary import release_vocabulary
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts
from tests.sites.studies import NAMES, identities, study_of
from tests.training.test_vocabulary import open_population

A, B, C = NAMES


@pytest.fixture
def known(tmp_path):
    return identities(tmp_path)


@pytest.fixture
def population(tmp_path):
    return private_population(tmp_path / "p", small_counts(20))[0]


@pytest.fixture
def study(known):
    return study_of(known)


def balance_of(population):
    return ledger_of(population).balance(population.id)


def proposal(known, tmp_path, *more):
    sites = [part for one in known.values() for part in ("--site", f"{one.name}={one.public.hex()}:1_000")]
    return (
        *("study", "new", tmp_path / "study.json", "--method", "histograms", "--population-like", tmp_path / "p"),
        *("--set", "clusters=2", "--set", "rounds=2", "--mailbox", tmp_path / "mail", "--identity", tmp_path / A),
        *(*sites, "--epsilon-a-run", "1", *more),
    )


# --- what is agreed to ------------------------------------------------------------------------------------------------


def test_an_agreement_has_both_prices_and_what_the_budget_allows(study, known, population):
    found, balance = agreement(study, known[B], population, balance_of(population)), balance_of(population)
    assert (found.site, found.rho, found.rho_all) == (B, study.rho, 2 * study.rho)
    assert found.epsilon == balance.budget.epsilon_of(study.rho) < found.epsilon_all
    charged = joining.charged_plan(study.plan(1)[0], study.terms, 3000)
    rho = sum(Fraction(one.rho) for one in charged)
    assert found.runs * rho <= Fraction(balance.rho_left) < (found.runs + 1) * rho
    assert found.numbers == sum(one.cells for one in charged) and found.rounds == max(one.round for one in charged)
    assert found.to_json()["sites"][2] == {"name": C, "clients": 1000, "fingerprint": fingerprint(known[C].public)}


def test_with_as_many_sites_as_may_collude_both_prices_are_one(known, population):
    found = agreement(study_of(known, collusion=2), known[B], population, balance_of(population))
    assert found.rho == found.rho_all and found.epsilon == found.epsilon_all


def test_an_account_without_enough_left_allows_no_run(known, population):
    found = agreement(study_of(known, rho=1e4), known[B], population, balance_of(population))
    assert found.runs == 0


def test_what_a_site_cannot_join_is_refused_by_name(tmp_path, study, known, population):
    balance = balance_of(population)
    stranger = Identity.create("x", tmp_path / "x")
    with pytest.raises(StudyError, match="'x' is no site of the study"):
        agreement(study, stranger, population, balance)
    with pytest.raises(StudyError, match="another key for site 'hospital-b'"):
        agreement(study, replace(known[B], public=stranger.public), population, balance)
    with pytest.raises(StudyError, match="arithmetic 'histograms-.*' here, and 'other'"):
        agreement(study.model_copy(update={"arithmetic": "other"}), known[B], population, balance)
    with pytest.raises(StudyError, match="It has features: 7 instead of 8"):
        schema = study.schema_.model_copy(update={"features": 8})
        agreement(study.model_copy(update={"schema_": schema}), known[B], population, balance)
    with pytest.raises(StudyError, match="It has relation"):
        schema = study.schema_.model_copy(update={"relation": "replace_one"})
        agreement(study.model_copy(update={"schema_": schema}), known[B], population, balance)
    with pytest.raises(StudyError, match="divided into shares"):
        agreement(study, known[B], population, replace(balance, shares=(object(),)))
    with pytest.raises(BudgetMissing):
        agreement(study, known[B], population, replace(balance, budget=None))


def test_a_vocabulary_without_words_that_this_site_has_released_is_refused(tmp_path, known, monkeypatch):
    opened, ledger = open_population(tmp_path)
    words = release_vocabulary(opened, ledger, delta=3e-8).words
    shorter, whole = (encode(opened, tmp_path / name, part) for name, part in (("short", words[2:]), ("whole", words)))
    for population, lacking in ((shorter, words[:2]), (whole, ())):
        budget = balance_of(population).required_budget()
        (mailbox := tmp_path / f"mail {population.path.name}").mkdir()
        study = study_of(known, schema=Schema.of(population, "client", "add_or_remove_one"), rho=budget.rho_max / 10)
        write_study(known[A], study, mailbox)
        asked = ("study", "join", mailbox, "--population", population.path, "--identity", tmp_path / B, "--yes")
        if lacking:
            refused = fedcore(*asked)
            assert refused.code == 2 and not joined_studies(tmp_path / B)
            one = Joined(study, str(mailbox), str(population.path), str(tmp_path / "runs"))
            with pytest.raises(StudyError, match="the study's vocabulary lacks 2"):
                join(one, tmp_path / B)
            with monkeypatch.context() as patch:
                patch.setattr(joining, "_check_released_words", lambda _: None)
                join(one, tmp_path / B)
            join(one, tmp_path / B)  # words that were released after it has joined
            (tmp_path / B / "studies" / f"{one.name}.json").unlink()
            assert f"the study's vocabulary lacks 2, such as {lacking[0]!r}, {lacking[1]!r}." in refused.err
        else:
            works(*asked)
            assert len(joined_studies(tmp_path / B)) == 1


def test_no_data_are_opened(study, known, population, monkeypatch):
    monkeypatch.setattr(type(population), "block", None, raising=False)
    for path in (population.path / "blocks").rglob("*"):
        if path.is_file():
            path.unlink()
    assert agreement(study, known[B], population, balance_of(population)).runs > 0


# --- what the folder keeps --------------------------------------------------------------------------------------------


def test_a_study_is_joined_once(tmp_path, study):
    one = Joined(study, "/mail", "/p", "/runs")
    assert list(joined_studies(tmp_path / A)) == []
    join(one, tmp_path / A)
    join(one, tmp_path / A)
    assert joined_studies(tmp_path / A) == [one] and one.name == study.digest.hex()[:16]
    assert (tmp_path / A / "studies").stat().st_mode & 0o077 == 0
    for changes in ({"mailbox": "/other"}, {"population": "/other"}, {"runs": "/other"}):
        with pytest.raises(StudyError, match="with another mailbox, population or folder of runs"):
            join(replace(one, **changes), tmp_path / A)
    other = replace(one, study=study.model_copy(update={"seed": 8}))
    join(other, tmp_path / A)
    assert sorted(joined_studies(tmp_path / A), key=lambda each: each.study.seed) == [one, other]


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: text.replace("0.5", "5.0"), lambda text: "[]"])
def test_a_damaged_record_is_refused(tmp_path, study, damage):
    one = Joined(study, "/mail", "/p", "/runs")
    join(one, tmp_path / A)
    file = tmp_path / A / "studies" / f"{one.name}.json"
    file.write_text(damage(file.read_text()))
    with pytest.raises(StudyError, match="is damaged.*join again"):
        joined_studies(tmp_path / A)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_three_sites_propose_and_join(tmp_path, population):
    made = {name: works("site", "init", name, "--identity", tmp_path / name, "--json").json for name in NAMES}
    known = {name: Identity.load(tmp_path / name) for name in NAMES}
    assert [one["key"] for one in made.values()] == [one.public.hex() for one in known.values()]
    assert made[A]["fingerprint"] in works("study", "--help").out or len(made[A]["fingerprint"]) == 47
    proposed = works(*proposal(known, tmp_path), "--json").json
    study = read_study(tmp_path / "mail")
    assert proposed["study"] == study.digest.hex() and read_study(tmp_path, "study.json") == study
    assert study.settings["clusters"] == 2 and [site.nominal for site in study.sites] == [1000] * 3
    budget = balance_of(population).budget
    assert study.rho == budget.rho_of(1.0) and study.patience == 7 * 86400

    asked = ("study", "join", tmp_path / "mail", "--population", tmp_path / "p", "--identity", tmp_path / B)
    refused = fedcore(*asked)
    assert refused.code == 2 and "needs a yes" in refused.err and not joined_studies(tmp_path / B)
    for name in NAMES:
        assert fingerprint(known[name].public) in refused.out
    assert "In a run it posts" in refused.out and "other sites work together" in refused.out
    found = works(*asked, "--yes", "--json").json
    assert found["site"] == B and found["runs_left"] > 0 and found["epsilon_a_run"] <= 1.0
    (one,) = joined_studies(tmp_path / B)
    assert (one.study, one.population) == (study, str(tmp_path / "p")) and one.mailbox == str(tmp_path / "mail")

    shown = works("study", "show", tmp_path / "mail", "--json").json
    assert shown["newest_run"] == {
        "run": 0,
        "rounds_answered": dict.fromkeys(NAMES),
        "ended": [],
        "awaited": [],
        "awaited_since": None,
    }
    assert "no run yet" in works("study", "show", tmp_path / "mail").out


def test_a_person_is_asked(tmp_path, known, population, monkeypatch):
    works(*proposal(known, tmp_path))
    asked = ("study", "join", tmp_path / "mail", "--population", tmp_path / "p", "--identity", tmp_path / B)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    for answer, code in ((False, 2), (True, 0)):
        monkeypatch.setattr("typer.confirm", lambda question, answer=answer: answer)
        assert fedcore(*asked).code == code
        assert len(joined_studies(tmp_path / B)) == answer


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--site", "x"), "not of the form NAME=KEY:CLIENTS"),
        (("--site", "x=00:5"), "not of the form NAME=KEY:CLIENTS"),
        (("--site", f"x={'0' * 64}:-5"), "not of the form NAME=KEY:CLIENTS"),
        (("--site", f"../x={'0' * 64}:5"), "not of the form NAME=KEY:CLIENTS"),
        (("--collusion", "3"), "collusion is at most 2"),
        (("--set", "nominal_clients=9"), "'nominal_clients' cannot be part of a study"),
        (("--patience", "soon"), "is not a time"),
        (("--epsilon-a-run", "0"), "epsilon must be positive"),
        (("--epsilon-a-run", "10000000"), "share of its noise"),
    ],
)
def test_proposals_that_are_refused(tmp_path, known, population, more, why):
    refused = fedcore(*proposal(known, tmp_path, *more))
    assert refused.code == 2 and why in refused.err, refused.err
    assert not (tmp_path / "mail").exists() and not (tmp_path / "study.json").exists()


def test_a_stranger_at_the_mailbox_reaches_no_terminal(tmp_path, known, population):
    works(*proposal(known, tmp_path))
    file = tmp_path / "mail" / "study.json"
    stored = json.loads(file.read_text())
    stored["study"]["software"]["\x1b]0;owned\x07"] = "\x1b[2J"
    file.write_text(json.dumps(stored))
    for command in (("study", "show"), ("study", "join", "--population", tmp_path / "p", "--yes")):
        refused = fedcore(*command[:2], tmp_path / "mail", *command[2:])
        assert refused.code == 2 and "StudyError" in refused.err
        assert "\x1b" not in refused.out + refused.err and "owned" not in refused.err


# --- how a run stands -------------------------------------------------------------------------------------------------


def test_progress(base, tmp_path, study, known):
    box = Mailbox(f"{base}/mailbox", study)

    def post(kind, site, run, round=0):
        box.post(known[site], Header(study.digest, run, round, site, kind), b"")

    assert progress_of(box) == Progress(0, dict.fromkeys(NAMES), (), (), None)
    for run in (1, 2, 3):
        post("member", A, run)
    found = progress_of(box)
    assert (found.run, dict(found.rounds), found.awaited) == (3, {A: 0, B: None, C: None}, (B, C))
    assert found.since is not None and found.to_json()["awaited_since"].endswith("Z")
    for site in (B, C):
        post("member", site, 3)
    assert progress_of(box).awaited == ()
    post("answer", A, 3, 1)
    post("answer", C, 3, 1)
    post("answer", C, 3, 2)
    found = progress_of(box)
    assert dict(found.rounds) == {A: 1, B: 0, C: 2} and found.awaited == (A, B)
    post("end", B, 3)
    assert progress_of(box).ended == (B,) and progress_of(box).awaited == ()


def test_states_that_end_a_run_are_compared(base, study, known):
    box = Mailbox(f"{base}/mailbox", study)

    def end(site, run, **stated):
        body = {"reason": "finished", "rounds": 2, "totals": "aa", "state": "bb", **stated}
        box.post(known[site], Header(study.digest, run, 0, site, "end"), canonical(body))

    def compared(run, newest, sites, totals=True, bits=True, unreadable=()):
        stated = {"sites": sites, "same_totals": totals, "same_bits": bits, "unreadable": [*unreadable]}
        assert final_states(box, newest) == {"run": run, **stated}

    end(A, 1)
    assert final_states(box, 1) is None and final_states(box, 0) is None
    end(C, 1)
    compared(1, 1, [A, C])
    compared(1, 2, [A, C])
    end(B, 1, state="cc")
    compared(1, 1, [A, B, C], bits=False)
    end(A, 2, rounds=1, reason="patience")
    end(B, 2)
    end(C, 2, totals="ab", state="dd")
    compared(2, 2, [B, C], totals=False, bits=False)
    found = posted(box)
    assert [found[site]["files"] for site in NAMES] == [2, 2, 2] and found[C]["bytes"] > 2 * 400
    end(A, 3)
    for run, stated in enumerate(({"rounds": "2"}, {"rounds": True}, {"rounds": 10**9}, {"totals": ""}), 3):
        end(B, run, **stated)
        end(C, run)
        if run == 3:
            compared(3, 3, [A, C], unreadable=[B])
        else:
            compared(run, run, [C], None, None, [B])
        if run != 5:  # a round after those of the plan
            with pytest.raises(FileRefused, match=f"of site 'hospital-b' in run {run} does not state how the run"):
                end_of(box, run, B)


def ends_of(known, study, box, **stated):
    """Ends of run 1: site C states other things than the others."""
    for site in NAMES:
        box.post(known[site], Header(study.digest, 1, 0, site, "member"), b"")
        body = {"reason": "finished", "rounds": 2, "totals": "aa", "state": "bb", **(stated if site == C else {})}
        box.post(known[site], Header(study.digest, 1, 0, site, "end"), canonical(body))


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({}, f"States after run 1 at {A}, {B}, {C}: the same bits"),
        ({"state": "cc"}, "different bits: compare their software and processors"),
        ({"totals": "ab", "state": "cc"}, "different totals: one of these sites was shown another mailbox"),
        ({"rounds": None}, f"The end of run 1 cannot be read at: {C}"),
    ],
)
def test_states_are_shown_with_the_reason_for_a_difference(tmp_path, study, known, stated, said):
    (tmp_path / "mail").mkdir()
    write_study(known[A], study, tmp_path / "mail")
    ends_of(known, study, Mailbox(tmp_path / "mail", study), **stated)
    shown = works("study", "show", tmp_path / "mail").out
    assert said in shown and ("software" in shown) == (stated == {"state": "cc"})
    assert works("study", "show", tmp_path / "mail", "--json").json["final_states"]["run"] == 1


def test_a_mailbox_that_cannot_be_listed_is_shown(tmp_path, study, known, monkeypatch):
    (tmp_path / "mail").mkdir()
    write_study(known[A], study, tmp_path / "mail")
    ends_of(known, study, Mailbox(tmp_path / "mail", study))

    def refused(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", refused)
    with pytest.raises(Unreachable, match="cannot be listed: Permission denied"):
        posted(Mailbox(tmp_path / "mail", study))
    shown = works("study", "show", tmp_path / "mail", "--json").json
    assert {(site["files"], site["bytes"]) for site in shown["sites"]} == {(None, None)}
    assert shown["final_states"]["same_bits"] and shown["newest_run"]["run"] == 1
    rows = [line for line in works("study", "show", tmp_path / "mail").out.splitlines() if line.startswith("│ hosp")]
    assert len(rows) == 3 and all(row.count("│ - ") == 2 for row in rows)


def test_files_that_vanish_while_they_are_counted_are_left_out(tmp_path, monkeypatch):
    for name in ("stays", ".end.a.1.partial"):
        (tmp_path / name).write_bytes(b"four")
    real = Path.stat

    def vanishing(path, **how):
        status = real(path, **how)
        if path.suffix == ".partial":
            path.unlink()  # after each look
        return status

    monkeypatch.setattr(Path, "stat", vanishing)
    assert set(files.sizes(tmp_path).values()) == {4}
    assert files.sizes(tmp_path) == {"stays": 4}
