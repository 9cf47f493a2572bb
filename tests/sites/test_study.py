"""A study: what is in it, who signs it, and what is refused by name."""

import json
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.errors import ConfigError, FedcoreError, StudyError
from fedcore.methods.names import METHODS
from fedcore.methods.registry import make_method, suited_to
from fedcore.population.columns import ColumnEntry
from fedcore.population.manifest import Vocabulary
from fedcore.privacy.noise_shares import charged_plan
from fedcore.privacy.plan import Terms
from fedcore.sites import study as module
from fedcore.sites.study import FILE, LARGEST, Schema, Study, propose, read_study, write_study
from fedcore.storage.files import json_bytes
from tests.conftest import small_counts, write_counts, write_population
from tests.sites.studies import identities, signer, study_of

PRIVATE = [
    ("histograms", {"clusters": 2, "rounds": 2}),
    ("federated_em", {"algorithm": "private", "covariance": "known", "components": 2, "rounds": 2}),
    ("private_gmm", {"components": 2, "radius": 60.0}),
    ("private_mixture", {"components": 2}),
    ("dictionaries", {"private": True, "atoms": 2}),
    ("profile", {}),
]


@pytest.fixture
def known(tmp_path):
    return identities(tmp_path)


@pytest.fixture
def proposer(known):
    return next(iter(known.values()))


@pytest.fixture
def study(known):
    return study_of(known)


def rows_population(path, **options):
    columns = (
        ColumnEntry(name="age", of="AGE_Y", unit="years", low=0.0, high=120.0),
        ColumnEntry(name="born", kind="date", of="dob", unit="days", format="%d.%m.%Y", outside="missing"),
        ColumnEntry(name="sex = f", kind="category", of="sex", value="f"),
    )
    ptr, x = np.arange(6), np.zeros((5, 3))
    return write_population(path, "rows", 3, [f"c{i}" for i in range(5)], (ptr, x), columns=columns, **options)


def proposed(known, like, method="histograms", settings=None, **changes):
    sites = tuple(module.StudySite(**signer(one).model_dump(), nominal=1000) for one in known.values())
    asked = {"rho": 0.5, "sites": sites, "seed": 7, "unit": "client", "relation": "add_or_remove_one"}
    return propose(next(iter(known.values())), method, settings or {}, like, **{**asked, **changes})


# --- what it holds ----------------------------------------------------------------------------------------------------


def test_a_study_is_written_once_and_read_by_all(tmp_path, study, known, proposer):
    write_study(proposer, study, tmp_path)
    write_study(proposer, study, str(tmp_path))
    found = read_study(str(tmp_path))
    assert found == study and found.digest == study.digest and len(study.digest) == 32
    stored = json.loads((tmp_path / FILE).read_text())
    assert stored["study"]["rho"] == 0.5 and stored["format"] == 1
    other = study_of(known, rho=0.25)
    with pytest.raises(StudyError, match="is another study"):
        write_study(proposer, other, tmp_path)
    write_study(proposer, other, tmp_path, "other.json")
    assert read_study(tmp_path) == study and read_study(tmp_path, "other.json") == other
    with pytest.raises(StudyError, match="not the proposer"):
        write_study(list(known.values())[1], study, tmp_path, "third.json")


def test_a_study_behind_a_url(base, study, proposer):
    write_study(proposer, study, f"{base}/mailbox")
    write_study(proposer, study, f"{base}/mailbox")
    assert read_study(f"{base}/mailbox") == study
    with pytest.raises(StudyError, match="holds no study"):
        read_study(f"{base}/nothing")


def test_every_word_of_a_study_is_in_its_digest(study):
    changed = [
        {"method": "private_mixture"},
        {"arithmetic": "other"},
        {"settings": {**study.settings, "rounds": 3}},
        {"schema_": study.schema_.model_copy(update={"halves": "document"})},
        {"rho": np.nextafter(0.5, 1)},
        {"sites": study.sites[::-1]},
        {"sites": (study.sites[0].model_copy(update={"nominal": 1001}), *study.sites[1:])},
        {"collusion": 2},
        {"patience": 60.0},
        {"every": 60.0},
        {"seed": 8},
        {"software": {"python": "3"}},
        {"proposer": study.proposer.model_copy(update={"name": "another"})},
    ]
    assert {name for change in changed for name in change} == set(Study.model_fields) - {"format"}
    digests = {study.model_copy(update=change).digest for change in changed}
    assert len(digests | {study.digest}) == len(changed) + 1


def test_each_run_has_a_seed(study):
    seeds = [study.seed_of(run) for run in range(1, 100)]
    assert len(set(seeds)) == 99 and all(0 <= seed < 2**63 for seed in seeds)
    assert seeds[0] == study.seed_of(1) != study.model_copy(update={"seed": 8}).seed_of(1)


def test_facts_are_declared_and_never_counted(study):
    facts = study.facts(3, {"centres": np.zeros(2)}, 0.25)
    assert (facts.nominal_clients, facts.clients, facts.rows) == (3000, None, None)
    assert (facts.rho, facts.seed, facts.relation, facts.unit) == (
        0.25,
        study.seed_of(3),
        "add_or_remove_one",
        "client",
    )
    assert facts.warm_start is not None and study.facts(1).rho == study.rho


@pytest.mark.parametrize(("method", "settings"), PRIVATE)
def test_every_private_method_can_be_proposed(tmp_path, known, method, settings):
    counts = "counts" in make_method(method, settings).kind
    like = write_counts(tmp_path / "p", small_counts(9)) if counts else rows_population(tmp_path / "p")
    study = proposed(known, like, method, settings)
    write_study(next(iter(known.values())), study, tmp_path)
    found = read_study(tmp_path)
    assert found == study and found.made_method() == study.made_method()
    assert found.made_method().config == suited_to(make_method(method, settings), like).config


@pytest.mark.parametrize(("method", "settings"), PRIVATE)
@pytest.mark.parametrize("sites", [2, 3])
def test_what_a_site_is_charged_is_what_the_study_states(tmp_path, known, method, settings, sites):
    """In fractions, spare releases included; and every site makes the same plan by itself."""
    known = dict(list(known.items())[:sites])
    counts = "counts" in make_method(method, settings).kind
    like = write_counts(tmp_path / "p", small_counts(9)) if counts else rows_population(tmp_path / "p")
    spares = {} if method == "profile" else {"spare_releases": 1}
    study = proposed(known, like, method, {**settings, **spares}, rho=0.3)
    assert study.terms == Terms(sites, 1, study.digest.hex())
    releases, facts = study.plan(1)
    assert releases and facts.nominal_clients == 1000 * sites and facts.clients is None
    charged = charged_plan(releases, study.terms, study.nominal_clients)
    prices = [Fraction(release.rho) for release in charged]
    assert sum(prices) + max(prices) * len(spares) <= Fraction(study.rho)
    assert sum(prices) + max(prices) * len(spares) >= Fraction(study.rho) * Fraction(99, 100)
    assert Study.model_validate_json(study.model_dump_json(by_alias=True)).plan(1)[0] == releases


def test_what_differs_between_schemas_is_named(tmp_path, known):
    schema = proposed(known, rows_population(tmp_path / "p"), "private_mixture").schema_
    age, born, sex = schema.columns
    assert schema.difference(schema) == ""
    for changes, words in (
        ({"columns": (age.model_copy(update={"high": 90.0}), born, sex)}, "high of column 0: 90.0 instead of 120.0"),
        ({"columns": (age, born, sex.model_copy(update={"value": "F"}))}, "value of column 2: 'F' instead of 'f'"),
        ({"columns": ()}, "columns: 0 instead of 3"),
        ({"unit": "record"}, "unit: 'record' instead of 'client'"),
        ({"relation": "replace_one"}, "relation: 'replace_one' instead of 'add_or_remove_one'"),
        ({"one_whole": True}, "one whole: True instead of False"),
        ({"vocabulary": Vocabulary(sha256="0" * 64, size=3)}, "the vocabulary is another one"),
    ):
        assert schema.difference(schema.model_copy(update=changes)) == words


def test_the_private_methods_are_all(known):
    names = {name for name, _ in PRIVATE}
    for name in METHODS:
        if name not in names and not name.startswith("paper"):
            with pytest.raises(StudyError, match="is not private.*totals would still reveal"):
                module.private_method(name, {})


def test_how_a_site_reads_its_files_is_not_in_a_study(tmp_path, known):
    study = proposed(known, rows_population(tmp_path / "p"), "private_mixture")
    age, born, sex = study.schema_.columns
    assert (age.of, born.of, sex.of) == ("age", "born", "sex") and born.format == born.outside == ""
    assert (age.low, age.high, age.unit, sex.value) == (0.0, 120.0, "years", "f")
    assert "AGE_Y" not in study.model_dump_json() and "%d" not in study.model_dump_json()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", module.REFUSED)
def test_settings_that_a_study_decides_are_refused_by_name(tmp_path, known, name):
    like = write_counts(tmp_path / "p", small_counts(9))
    method = "federated_em" if name == "validation" else "histograms"
    value = {"cohorts": "1-2", "epsilon": 0.5, "validation": 0.2}.get(name, 2)
    with pytest.raises(StudyError, match=f"setting '{name}' cannot be part of a study: .*Leave it out"):
        proposed(known, like, method, {name: value})


def test_a_study_of_a_setting_that_is_refused_is_refused_when_it_is_used(study):
    changed = study.model_copy(update={"settings": {**study.settings, "nominal_clients": 5}})
    with pytest.raises(StudyError, match="'nominal_clients' cannot be part"):
        changed.made_method()
    study.made_method()
    nested = {"algorithm": {"name": "private", "epsilon": 1.0}, "model": {"name": "gaussian", "covariance": "known"}}
    with pytest.raises(StudyError, match="'epsilon' cannot be part"):
        study.model_copy(update={"method": "federated_em", "settings": nested}).made_method()


def test_methods_that_are_not_private_are_refused_by_name(tmp_path, known):
    like = rows_population(tmp_path / "p")
    with pytest.raises(StudyError, match="'federated_em' with these settings is not private"):
        proposed(known, like, "federated_em", {"components": 2})
    with pytest.raises(ConfigError, match="there is no method 'unknown'"):
        proposed(known, like, "unknown")


def test_populations_that_studies_do_not_cover_are_refused_by_name(tmp_path, known):
    like = write_counts(tmp_path / "p", small_counts(9))

    def other(**changes):
        return SimpleNamespace(path=like.path, manifest=like.manifest.model_copy(update=changes))

    for changes, why in (
        ({"kind": "words"}, "holds words"),
        ({"period": object()}, "calendar periods"),
        ({"cohorts": (object(),)}, "by cohort"),
    ):
        with pytest.raises(StudyError, match=why):
            proposed(known, other(**changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sites": 1}, "at least 2 items"),
        ({"collusion": 0}, "greater than or equal to 1"),
        ({"collusion": 3}, "collusion is at most 2"),
        ({"rho": 0.0}, "greater than 0"),
        ({"rho": float("inf")}, "finite"),
        ({"patience": 0.0}, "greater than or equal to 1"),
        ({"every": 1e12}, "less than or equal"),
    ],
)
def test_terms_that_cannot_be(tmp_path, known, changes, why):
    like = write_counts(tmp_path / "p", small_counts(9))
    if "sites" in changes:
        changes = {"sites": proposed(known, like).sites[:1]}
    with pytest.raises(StudyError, match=f"cannot be proposed.*{why}"):
        proposed(known, like, **changes)


def test_a_site_is_there_once(tmp_path, known, study):
    like, (one, other, third) = write_counts(tmp_path / "p", small_counts(9)), study.sites
    for sites, why in (
        ((one, other.model_copy(update={"name": one.name})), "two sites have one name"),
        ((one, other.model_copy(update={"key": one.key})), "two sites have one key"),
        ((other, third.model_copy(update={"name": one.name})), "one name and two keys"),
    ):
        with pytest.raises(StudyError, match=why):
            proposed(known, like, sites=sites)


def test_schemas_that_cannot_be():
    column = {"name": "a", "of": "a"}
    for fields, why in (
        ({"kind": "rows", "features": 2, "columns": [column]}, "1 columns are named, and it has 2"),
        ({"kind": "rows", "features": 2, "columns": [column] * 2}, "named twice"),
        ({"kind": "counts", "features": 2, "vocabulary": {"sha256": "0" * 64, "size": 3}}, "one token for each"),
        ({"kind": "rows", "features": 2, "image": [5, 5]}, "is not a row of 2 columns"),
        ({"kind": "words", "features": 1, "image": [1, 1]}, "pictures go with"),
    ):
        with pytest.raises(ValueError, match=why):
            Schema.model_validate_json(json.dumps(fields))
    assert Schema(kind="counts", features=3, vocabulary=Vocabulary(sha256="0" * 64, size=3)).features == 3


# --- hostile files ----------------------------------------------------------------------------------------------------


def altered(change):
    """A study whose content was changed, with the signature of before."""

    def make(stored, proposer):
        change(stored["study"])
        return json_bytes(stored)

    return make


def signed_anew(change):
    """A study that its proposer signed, with this change."""

    def make(stored, proposer):
        change(stored["study"])
        digest = module.hashlib.sha256(b"fedcore study 1\0" + module.digests.canonical(stored["study"])).digest()
        stored["signature"] = proposer.sign(b"study\0" + digest).hex()
        return json_bytes(stored)

    return make


HOSTILE = {
    "empty": (lambda stored, proposer: b"", "is no study"),
    "not UTF-8": (lambda stored, proposer: b"\xff\xfe" + json_bytes(stored), "not text in UTF-8"),
    "a list": (lambda stored, proposer: b"[]", "no signed study"),
    "deep": (lambda stored, proposer: b"[" * 100_000, "nested too deeply"),
    "endless number": (lambda stored, proposer: b'{"format": ' + b"9" * 100_000 + b"}", "digits"),
    "NaN": (lambda stored, proposer: b'{"format": NaN}', "no number"),
    "too long": (lambda stored, proposer: b" " * (LARGEST + 1), "longer than"),
    "pickle": (lambda stored, proposer: b"cos\nsystem\n(S'touch owned'\ntR.", "is no study"),
    "no signature": (lambda stored, proposer: json_bytes({"study": stored["study"]}), "no signed study"),
    "signature is no text": (lambda stored, proposer: json_bytes({**stored, "signature": 7}), "is no study"),
    "other signature": (lambda stored, proposer: json_bytes({**stored, "signature": "00" * 64}), "was changed"),
    "cheaper": (altered(lambda study: study.update(rho=0.1)), "was changed"),
    "dearer": (altered(lambda study: study.update(rho=5.0)), "was changed"),
    "another site": (altered(lambda study: study["sites"][1].update(key="ab" * 32)), "was changed"),
    "another proposer": (altered(lambda study: study["proposer"].update(key="ab" * 32)), "one name and two keys"),
    "a stranger proposes": (
        altered(lambda study: study.update(proposer={"name": "x", "key": "ab" * 32})),
        "was changed",
    ),
    "unknown field": (signed_anew(lambda study: study.update(plan=[])), "'plan' is not a setting"),
    "a path as a name": (signed_anew(lambda study: study["sites"][1].update(name="../../x")), "sites.1.name"),
    "a name with a new line": (signed_anew(lambda study: study["sites"][1].update(name="x\n")), "cannot be shown"),
    "a terminal's commands": (
        signed_anew(lambda study: study["settings"].update({"\x1b]0;owned\x07": 1})),
        "cannot be shown",
    ),
    "text that runs backwards": (
        signed_anew(lambda study: study["software"].update(fedcore="\u202e0.1")),
        "cannot be shown",
    ),
    "a rho of text": (signed_anew(lambda study: study.update(rho="0.5")), "'rho'"),
    "true sites": (signed_anew(lambda study: study.update(collusion=True)), "'collusion'"),
    "no site": (signed_anew(lambda study: study.update(sites=[])), "sites"),
    "many settings": (signed_anew(lambda study: study.update(arithmetic="x" * 200_000)), "at most 100 characters"),
    "a surrogate": (
        lambda stored, proposer: b'{"format": 1, "study": {"a": "\\ud800"}, "signature": ""}',
        "no study|shown",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_study_is_refused(tmp_path, study, proposer, name):
    make, why = HOSTILE[name]
    stored = {"format": 1, "study": study.content(), "signature": proposer.sign(b"study\0" + study.digest).hex()}
    assert module.decode(json_bytes(stored), "it") == study
    (tmp_path / FILE).write_bytes(make(json.loads(json_bytes(stored)), proposer))
    with pytest.raises(StudyError, match=why) as caught:
        read_study(tmp_path)
    assert caught.value.remedy and str(caught.value).isprintable() and len(str(caught.value)) < 1000


def test_a_link_in_the_place_of_a_study_is_not_followed(tmp_path, study, proposer):
    write_study(proposer, study, tmp_path)
    (tmp_path / "mailbox").mkdir()
    (tmp_path / "mailbox" / FILE).symlink_to(tmp_path / FILE)
    with pytest.raises(StudyError, match="cannot be read"):
        read_study(tmp_path / "mailbox")
    with pytest.raises(FedcoreError):
        write_study(proposer, study, tmp_path / "mailbox")


def test_a_name_that_is_no_site(study):
    with pytest.raises(StudyError, match=r"'\\x1b\[2J' is no site"):
        study.site("\x1b[2J")
    assert study.site("hospital-b").nominal == 1000 and study.nominal_clients == 3000
