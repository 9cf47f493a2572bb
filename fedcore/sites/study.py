"""A study: what several sites agree to run together, again and again, and from which each derives the same plan.

The proposer writes and signs it. It holds no data, no counts of rows and no plan: sizes are declared by the owners, and
every site plans by itself (`Study.plan`). Its digest names the study in every file of its mailbox.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

import fedcore
from fedcore.errors import FileRefused, StudyError
from fedcore.methods.names import canonical as canonical_name
from fedcore.methods.registry import explain, make_method, suited_to
from fedcore.operations.schedule import MOST_SECONDS
from fedcore.population import columns as of_columns
from fedcore.population.choices import Halves, Kind
from fedcore.population.columns import ColumnEntry
from fedcore.population.manifest import Vocabulary
from fedcore.population.store import Population
from fedcore.privacy.noise_shares import planned_rho
from fedcore.privacy.plan import PlannedRelease, Relation, Terms, Unit
from fedcore.rounds.method import AnyMethod, PublicFacts
from fedcore.rounds.private_settings import PrivateRunSettings
from fedcore.sites.identity import NAME, Identity, verify
from fedcore.storage import digests, files, shared
from fedcore.storage.files import Place
from fedcore.storage.parsing import parse_json
from fedcore.training.budget import fit_plan
from fedcore.training.record import installed

FILE: Final = "study.json"  # in the mailbox
LARGEST: Final = 32 << 20  # bytes of a study's file
WEEK: Final = 7 * 86400.0
LEAF: Final = 1024  # clients; exact sums do not depend on leaves, so sites may have their own
ASK: Final = "Ask the proposer of the study."
# Settings that a study decides otherwise, and why they are refused.
REFUSED: Final = {
    "epsilon": "the study states what a run costs",
    "nominal_clients": "the study states the declared size of each site",
    **dict.fromkeys(("horizon", "at_least", "recent_cohorts", "cohorts"), "budgets by cohort are not part of studies"),
    "validation": "no rows are held back, because sites share no scores",
}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Signer(_Frozen):
    """name: of a site, or of a proposer without data. key: public Ed25519 key, 64 hexadecimal digits"""

    name: str = Field(pattern=rf"^{NAME.pattern}$")
    key: str = Field(pattern=r"^[0-9a-f]{64}$")

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return bytes.fromhex(self.key)


class StudySite(Signer):
    """`nominal`: number of clients that the owner of the site's data has declared in public"""

    nominal: int = Field(ge=1, le=2**40)


class Schema(_Frozen):
    """What the populations of all sites have in common. All of it is public by declaration.

    columns: names, kinds, units, bounds, categories; () where they have no names, and for counts
    vocabulary: of counts; sha256 of its file and number of tokens
    others: as in the manifest of a population and the terms of its budget
    """

    kind: Kind
    features: int = Field(ge=1)
    columns: tuple[ColumnEntry, ...] = ()
    vocabulary: Vocabulary | None = None
    halves: Halves | None = None
    one_whole: bool = False
    image: tuple[int, int] | None = None
    unit: Unit = "client"
    relation: Relation = "add_or_remove_one"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if wrong := of_columns.fault(self.columns, self.kind == "rows", self.features):
            raise ValueError(wrong)
        if self.vocabulary is not None and self.vocabulary.size != self.features:
            raise ValueError("the vocabulary does not have one token for each feature")
        if self.image is not None and (wrong := of_columns.image_fault(self.image, self.kind == "rows", self.features)):
            raise ValueError(wrong)
        return self

    @classmethod
    def of(cls, population: Population, unit: Unit, relation: Relation) -> Schema:
        """The schema of a population with a budget of this unit and relation. How a site reads its own files (names of
        columns in the source, forms of dates, what becomes of values out of bounds) is no part of it.
        """
        made = population.manifest
        local: dict[str, Any] = {"format": "", "outside": ""}
        columns = tuple(
            one.model_copy(update=local if one.kind == "category" else {**local, "of": one.name})
            for one in made.columns
        )
        same = {
            name: getattr(made, name) for name in ("kind", "features", "vocabulary", "halves", "one_whole", "image")
        }
        return cls(columns=columns, unit=unit, relation=relation, **same)

    def difference(self, other: Schema) -> str:
        """The first thing in which the other schema differs from this one, in words; empty if they are equal."""
        for name in Schema.model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine == theirs:
                continue
            if name == "columns" and len(mine) == len(theirs):
                pairs = enumerate(zip(mine, theirs, strict=True))
                return next(_column(at, *both) for at, both in pairs if both[0] != both[1])
            if name == "vocabulary":
                return "the vocabulary is another one"
            shown = f"{len(theirs)} instead of {len(mine)}" if name == "columns" else f"{theirs!r} instead of {mine!r}"
            return f"{name.replace('_', ' ')}: {shown}"
        return ""


def _column(number: int, mine: ColumnEntry, theirs: ColumnEntry) -> str:
    name = next(name for name in ColumnEntry.model_fields if getattr(mine, name) != getattr(theirs, name))
    return f"{name} of column {number}: {getattr(theirs, name)!r} instead of {getattr(mine, name)!r}"


class Study(_Frozen):
    """See the fields.

    method, arithmetic: name of the method, and the version of its arithmetic. settings: all of them
    rho: what a run costs the people of each site, against `collusion` other sites
    collusion: number of sites that may work together against the others, together with the mailbox
    patience: seconds that a site waits for the others before it ends a run for all
    every: seconds between the starts of two runs at a site; None: `fedcore site serve --once` starts each
    seed: of simulation randomness, drawn by the proposer; it makes each study another one, and protects nothing
    software: versions that the proposer used, to compare
    """

    format: int = Field(1, ge=1, le=1)
    method: str = Field(min_length=1, max_length=100)
    arithmetic: str = Field(max_length=100)
    settings: dict[str, JsonValue]
    schema_: Schema = Field(alias="schema")
    rho: float = Field(gt=0)
    sites: tuple[StudySite, ...] = Field(min_length=2, max_length=1000)
    collusion: int = Field(1, ge=1)
    patience: float = Field(WEEK, ge=1, le=MOST_SECONDS)
    every: float | None = Field(None, ge=1, le=MOST_SECONDS)
    seed: int = Field(ge=0, lt=2**63)
    software: dict[str, str] = Field(default_factory=dict)
    proposer: Signer

    @field_validator("method")
    @classmethod
    def _canonical(cls, name: str) -> str:
        return canonical_name(name)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for of in ("name", "key"):
            if len({getattr(site, of) for site in self.sites}) != len(self.sites):
                raise ValueError(f"two sites have one {of}")
        if self.collusion > len(self.sites) - 1:
            raise ValueError(f"collusion is at most {len(self.sites) - 1}, one fewer than there are sites")
        if any(site.name == self.proposer.name and site.key != self.proposer.key for site in self.sites):
            raise ValueError("the proposer and a site have one name and two keys")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of all that the study states, 32 bytes."""
        return hashlib.sha256(b"fedcore study 1\0" + digests.canonical(self.content())).digest()

    @property
    def nominal_clients(self) -> int:
        """Declared clients of all sites together."""
        return sum(site.nominal for site in self.sites)

    @property
    def terms(self) -> Terms:
        """How the noise is shared."""
        return Terms(len(self.sites), self.collusion, self.digest.hex())

    def site(self, name: str) -> StudySite:
        """The site of this name. Raises StudyError if there is none."""
        found = next((site for site in self.sites if site.name == name), None)
        if found is None:
            raise StudyError(f"{name[:60]!r} is no site of the study.", f"{ASK} Its sites are fixed.")
        return found

    def seed_of(self, run: int) -> int:
        """The seed of a run, counted from 1; 0 .. 2**63 - 1."""
        mixed = hashlib.sha256(b"fedcore seed 1\0" + self.digest + run.to_bytes(8, "big")).digest()
        return int.from_bytes(mixed[:8], "big") >> 1

    def made_method(self) -> AnyMethod:
        """The method with its settings. Raises StudyError for one that cannot be run by several sites."""
        return private_method(self.method, self.settings)

    def facts(
        self, run: int, warm_start: Mapping[str, np.ndarray] | None = None, rho: float | None = None
    ) -> PublicFacts:
        """What the method may know of the sites together before a run.

        warm_start: arrays that a run before has ended with. rho: of the run, None: `self.rho`
        """
        schema = self.schema_
        return PublicFacts(
            schema.kind,
            schema.features,
            LEAF,
            self.nominal_clients,
            None,
            self.rho if rho is None else rho,
            self.seed_of(run),
            schema.relation,
            warm_start,
            schema.unit,
            schema.halves,
            schema.one_whole,
            None,
            schema.image,
        )

    def plan(
        self, run: int, warm_start: Mapping[str, np.ndarray] | None = None
    ) -> tuple[tuple[PlannedRelease, ...], PublicFacts]:
        """The releases of the totals of a run, and the facts that they were planned from. What each site is charged for
        them (`charged_plan`) is at most `rho` in all. Raises ConfigError, StudyError.
        """
        method, share = self.made_method(), planned_rho(self.rho, self.terms)
        return fit_plan(method, lambda rho: self.facts(run, warm_start, rho), share)

    def content(self) -> dict[str, Any]:
        """As JSON: what is signed."""
        return self.model_dump(mode="json", by_alias=True)


# --- what can be a study ----------------------------------------------------------------------------------------------


def private_method(name: str, settings: Mapping[str, Any]) -> AnyMethod:
    """The method that a study runs. Raises StudyError for settings and methods that several sites cannot run, and
    ConfigError for those that cannot be run at all.
    """
    if "validation" in settings:
        raise _refused("validation")
    method = make_method(name, settings)
    if not method.private:
        raise StudyError(
            f"Method {method.name!r} with these settings is not private: {method.not_private_because}. Masks would "
            "hide the sums of each site, and the totals would still reveal people.",
            "Choose private settings, or another method: `fedcore methods` lists them.",
        )
    usual = PrivateRunSettings.model_fields
    for setting in REFUSED.keys() & usual.keys():
        if getattr(method.private_settings, setting, usual[setting].default) != usual[setting].default:
            raise _refused(setting)
    return method


def _refused(setting: str) -> StudyError:
    return StudyError(f"The setting {setting!r} cannot be part of a study: {REFUSED[setting]}.", "Leave it out.")


def propose(
    identity: Identity,
    method: str,
    settings: Mapping[str, Any],
    like: Population,
    *,
    seed: int,
    unit: Unit,
    relation: Relation,
    **terms: Any,
) -> Study:
    """A study over populations like this one, which the proposer signs. Nothing of its data is read.

    unit, relation: of the budgets. terms: rho, sites, and what else `Study` has. Raises StudyError, ConfigError.
    """
    refuse_population(like)
    made = suited_to(private_method(method, settings), like)
    try:
        return Study(
            method=made.name,
            arithmetic=made.arithmetic_version,
            settings=made.config.model_dump(mode="json"),
            schema=Schema.of(like, unit, relation),
            seed=seed,
            software={"fedcore": fedcore.__version__, **installed()},
            proposer=Signer(name=identity.name, key=identity.public.hex()),
            **terms,
        )
    except ValidationError as error:
        raise StudyError(f"The study cannot be proposed: {_short(error)}.") from None


def refuse_population(population: Population) -> None:
    """Raises StudyError for a population of a kind that studies do not cover."""
    made, name = population.manifest, population.path.name
    why = ""
    if made.kind == "words":
        why = "holds words. Release a vocabulary at each site, and encode with the union of all lists"
    elif made.period is not None:
        why = "is divided into calendar periods, whose budgets are not part of studies"
    elif made.cohorts:
        why = "keeps its budget by cohort, which is not part of studies"
    if why:
        raise StudyError(f"Population {name!r} {why}.", "Take part with another population.")


# --- files ------------------------------------------------------------------------------------------------------------


def write_study(identity: Identity, study: Study, place: str | Place, name: str = FILE) -> None:
    """Write the signed study below a place, where nothing is replaced. The same study again is no error.

    Raises StudyError if there is another one or the identity is not the proposer's, Unreachable.
    """
    if (identity.name, identity.public.hex()) != (study.proposer.name, study.proposer.key):
        raise StudyError(f"{identity.name!r} is not the proposer of the study.", "Only the proposer signs it.")
    signature = identity.sign(_signed(study)).hex()
    content = files.json_bytes({"format": 1, "study": study.content(), "signature": signature})
    where = files.place(place)
    try:
        with suppress(FileExistsError):
            return shared.create(where, name, content)
        if shared.read(where, name, LARGEST + 1) != content:
            raise StudyError(f"{where / name} is another study.", "Choose another name or mailbox.")
    except OSError as error:
        raise StudyError(f"{where / name} cannot be written: {error.strerror}.", "Choose another place.") from error


def read_study(place: str | Place, name: str = FILE) -> Study:
    """The study below a place, whose proposer's signature is checked. Whether the proposer is who they claim to be, and
    each site too, is for people to compare (`fedcore.sites.identity.fingerprint`).

    Raises StudyError if there is none, or none that can be read or trusted; Unreachable.
    """
    where = files.place(place)
    try:
        content = shared.read(where, name, LARGEST + 1)
    except OSError as error:
        raise StudyError(f"{where / name} cannot be read: {error.strerror}.", "Check the place.") from error
    if content is None:
        raise StudyError(f"{where} holds no study.", "Check the place; a mailbox has a file study.json.")
    return decode(content, f"{where / name}")


def decode(content: bytes, where: str) -> Study:
    """The study in these bytes. where: for messages. Raises StudyError."""
    if len(content) > LARGEST:
        raise StudyError(f"{where} is longer than {LARGEST} bytes.", ASK)
    try:
        stored = parse_json(content)
        if not isinstance(stored, dict) or stored.keys() != {"format", "study", "signature"} or stored["format"] != 1:
            raise ValueError("it is no signed study of format 1")
        if not all(text.isprintable() for text in _texts(stored)):
            raise ValueError("it holds characters that cannot be shown")
        signature = bytes.fromhex(stored["signature"])
    except (ValueError, TypeError) as error:
        reason = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise StudyError(f"{where} is no study: {reason}.", ASK) from None
    try:
        study = Study.model_validate_json(json.dumps(stored["study"]))
    except ValidationError as error:
        raise StudyError(f"{where} is no study: {_short(error)}.", ASK) from None
    try:
        verify(study.proposer.public, signature, _signed(study))
    except FileRefused:
        raise StudyError(f"{where} is not signed by the proposer that it names: it was changed.", ASK) from None
    return study


def _signed(study: Study) -> bytes:
    return b"study\0" + study.digest


def _short(error: ValidationError) -> str:
    return explain(error)[:500].rstrip(".")


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
