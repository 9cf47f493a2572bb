"""The manifest of one version of a population: everything a reader needs to know before it opens a block."""

from __future__ import annotations

import json
from typing import Any, Final, Literal, Never, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from fedcore.errors import ManifestError, PopulationNotFound, retired
from fedcore.population import cohorts as of_cohorts
from fedcore.population import columns as of_columns
from fedcore.population import identifiers, layout
from fedcore.population import periods as of_periods
from fedcore.population.block_table import Blocks
from fedcore.population.choices import Halves, Kind
from fedcore.population.cohorts import Cohort
from fedcore.population.columns import ColumnEntry
from fedcore.population.deliveries import Delivery
from fedcore.population.periods import Periods
from fedcore.storage import digests
from fedcore.storage.parsing import parse_json
from fedcore.storage.ranges import Ranges

SCHEMA_VERSION: Final = 2  # that new versions are written in; docs/population-format.md
COHORTS: Final = "cohorts"
HOLES: Final = "holes"
PERIODS: Final = "periods"
HALVES: Final = "halves"
COLUMNS: Final = "columns"
RECORDS: Final = "records"
IMAGE: Final = "image"
DELIVERIES: Final = "deliveries"
PACKED: Final = "packed-blocks"
ID_RULES: Final = (identifiers.FOLDED, identifiers.STRIPPED)  # a manifest needs one of them
KNOWN: Final = (
    COHORTS,
    HOLES,
    *ID_RULES,
    PERIODS,
    HALVES,
    COLUMNS,
    RECORDS,
    IMAGE,
    DELIVERIES,
    PACKED,
)  # what it may need
OF: Final = {  # fields, and what they go with
    "cohorts": (COHORTS,),
    "order": (COHORTS, HOLES),
    "period": (PERIODS,),
    "halves": (HALVES,),
    "columns": (COLUMNS,),
    "records": (RECORDS,),
    "image": (IMAGE,),
    "deliveries": (DELIVERIES,),
    "occasions": (DELIVERIES,),
}
Sha256 = Field(pattern=r"^[0-9a-f]{64}$")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Ledger(_Frozen):
    """The privacy ledger that this population is charged to."""

    id: str
    url: str


class Vocabulary(_Frozen):
    """sha256 of the vocabulary file (one token a line, UTF-8) and its number of tokens."""

    sha256: str = Sha256
    size: int = Field(ge=1)


class Provenance(_Frozen):
    """Where the data came from. sources are base names only: a manifest reveals nothing about the machine.

    dropped_tokens: out-of-vocabulary tokens that were left out; bad_rows: rows that a tolerance let pass
    clipped: values outside the bounds of their columns, which were clipped or read as missing
    alike_ids: groups of different ids that are equal once folded (`fedcore.population.identifiers.folded`)
    records: of the sources, by the second count (`fedcore.population.ingest.second_count`); None: not counted
    stored, skipped: of the records that were read, those that are stored, and those of which nothing is kept
    parent: the version that this one was made from, None for the first
    """

    sources: tuple[str, ...] = ()
    options: dict[str, JsonValue] = Field(default_factory=dict)
    dropped_tokens: int = Field(default=0, ge=0)
    bad_rows: int = Field(default=0, ge=0)
    clipped: int = Field(default=0, ge=0)
    alike_ids: int = Field(default=0, ge=0)
    records: int | None = Field(default=None, ge=0)
    stored: int | None = Field(default=None, ge=0)
    skipped: int | None = Field(default=None, ge=0)
    parent: int | None = None


class Manifest(_Frozen):
    """See the fields. `checksum` is the sha256 of the manifest's own canonical JSON without that field.

    n_rows: rows, or tokens for counts, of the training part; dtype: of dense rows, else None; features: 1 for words;
    nominal_clients: declared number of clients, which is public; None if not declared;
    nominal_rows: declared rows of a client (different tokens, of counts), also public;
    public_for_evaluation: may be evaluated without a budget, and public_reason why.
    needs: features without which the manifest would be misread, of KNOWN.
        The rule of the client ids has no field (`fedcore.population.identifiers.Rule`): appends must follow it.
    cohorts, order: which clients came with which append, where each cohort has a budget (`fedcore.population.cohorts`).
    deliveries: files that pipelines have ingested, of this version and of those before it, oldest first; occasions:
    (pipeline, newest time for which it has appended), where each cohort has a budget
    (`fedcore.population.deliveries`).
    removed: (version, checksum) of earlier versions that were deleted because clients were forgotten.
    period: how clients were split into entries of one client and one calendar period, each period a cohort; None: they
    were not (`fedcore.population.periods`).
    halves: what was split into a training and a held-out part for each client: whole documents, or single entries
    (tokens, rows); None: not declared (`fedcore.population.ingest.documents`).
    columns: names, units and bounds of the columns, and how they were derived; () if they were not declared
    (`fedcore.population.columns`).
    records: no client column was declared: every client is one row, and a budget is per record.
    image: (height, width) of the picture in a row, line after line from the top; None: rows are no pictures.
    suppression: sha256 of the list of forgotten clients (`fedcore.population.suppression`), None without one.
    secret: 256 random bits of this version, stored with the data. Runs and ledgers know the version by its checksum.
    Without the secret, the checksum would confirm a correct guess of the data.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    needs: tuple[str, ...] = ()
    population_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    secret: str = Field(pattern=r"^[0-9a-f]{64}$")
    ledger: Ledger | None = None
    version: int = Field(ge=1)
    kind: Kind
    dtype: Literal["float32", "float64"] | None = None
    n_clients: int = Field(ge=1)
    n_rows: int = Field(ge=0)
    features: int = Field(ge=1)
    clients_per_leaf: int = Field(ge=1)
    clients_per_block: int = Field(ge=1)
    vocabulary: Vocabulary | None = None
    nominal_clients: int | None = Field(default=None, ge=1)
    nominal_rows: int | None = Field(default=None, ge=1)
    public_for_evaluation: bool = False
    public_reason: str = ""
    provenance: Provenance = Provenance()
    cohorts: tuple[Cohort, ...] = ()
    order: tuple[tuple[int, int], ...] = ()
    period: Periods | None = None
    halves: Halves | None = None
    columns: tuple[ColumnEntry, ...] = ()
    records: bool = False
    image: tuple[int, int] | None = None
    suppression: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    removed: tuple[tuple[int, str], ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    occasions: tuple[tuple[str, str], ...] = ()
    blocks: Blocks

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if wrong := self.blocks.fault(self.n_clients, self.clients_per_leaf, self.kind):
            raise ValueError(wrong)
        if self.blocks.sum_of("train.total") != self.n_rows:
            raise ValueError("the blocks do not hold n_rows rows")
        if (self.dtype is None) != (self.kind != "rows"):
            raise ValueError("dtype goes with kind 'rows'")
        if self.vocabulary is not None and self.vocabulary.size != self.features:
            raise ValueError("the vocabulary does not have one token for each feature")
        if self.kind == "words" and (self.features != 1 or self.vocabulary is not None):
            raise ValueError("words have no features and no vocabulary")
        if self.public_for_evaluation and not self.public_reason.strip():
            raise ValueError("a population is public for evaluation for a stated reason")
        if wrong := of_cohorts.fault(self.cohorts, self.order, self.n_clients):
            raise ValueError(wrong)
        if bool(self.cohorts) != (COHORTS in self.needs):
            raise ValueError("cohorts go with the need of that name")
        if bool(self.period) != (PERIODS in self.needs):
            raise ValueError("calendar periods go with the need of that name")
        if bool(self.halves) != (HALVES in self.needs):
            raise ValueError("halves go with the need of that name")
        if bool(self.columns) != (COLUMNS in self.needs):
            raise ValueError("columns go with the need of that name")
        if self.records != (RECORDS in self.needs):
            raise ValueError("records go with the need of that name")
        if bool(self.image) != (IMAGE in self.needs):
            raise ValueError("an image goes with the need of that name")
        if self.image is not None and (wrong := of_columns.image_fault(self.image, self.kind == "rows", self.features)):
            raise ValueError(wrong)
        if bool(self.deliveries or self.occasions) != (DELIVERIES in self.needs):
            raise ValueError("deliveries go with the need of that name")
        if wrong := of_columns.fault(self.columns, self.kind == "rows", self.features):
            raise ValueError(wrong)
        if wrong := of_periods.fault(self.period, [cohort.period for cohort in self.cohorts]):
            raise ValueError(wrong)
        holes = of_cohorts.holes_of(self.order)
        if bool(holes) != (HOLES in self.needs):
            raise ValueError("holes go with the need of that name")
        void = self.blocks.void
        first, clients = self.blocks.first[void], self.blocks.numbers["clients"][void]
        if not of_cohorts.covered(holes, first, first + clients).all():
            raise ValueError("a void block has clients that were not forgotten")
        return self

    @property
    def id_rule(self) -> identifiers.Rule:
        """How client ids are spelled (`fedcore.population.identifiers.spelled`)."""
        return identifiers.FOLDED if identifiers.FOLDED in self.needs else identifiers.STRIPPED

    @property
    def column_names(self) -> tuple[str, ...] | None:
        """Names of the columns, in their order; None if they have no names."""
        return tuple(column.name for column in self.columns) or None

    @property
    def first_period(self) -> str | None:
        """Label of the first calendar period; None if there are none."""
        return self.cohorts[0].period if self.cohorts else None

    def periods_in_words(self, ranges: Ranges) -> str:
        """Cohorts that are calendar periods, by their labels."""
        assert self.period is not None and self.first_period is not None
        return of_periods.labels_in_words(self.period.unit, self.first_period, ranges)

    @property
    def one_whole(self) -> bool:
        """Whether training may use the held-out part as well as the training part. True if documents were split into
        both and the data are not public, since clients may then not be scored on the held-out part."""
        return self.halves == "document" and not self.public_for_evaluation

    @property
    def has_heldout(self) -> bool:
        return self.blocks.has_heldout


def checksum_of(content: dict[str, Any]) -> str:
    """The checksum of a manifest's JSON without that field."""
    return digests.of_document(digests.canonical(content))


def _content(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON, without its checksum."""
    content = manifest.model_dump(mode="json", exclude={"blocks"})
    for name in (*OF, "nominal_rows", "suppression", "removed"):
        if not content[name]:
            del content[name]
    kept = content["provenance"]
    for name in ("clipped", "alike_ids"):
        if not kept[name]:
            del kept[name]
    for name in ("records", "stored", "skipped"):
        if kept[name] is None:
            del kept[name]
    for number, column in enumerate(content.get("columns", ())):
        content["columns"][number] = {name: value for name, value in column.items() if value not in (None, "")}
    blocks = Blocks.of(manifest.blocks)
    content["blocks"] = blocks.packed() if PACKED in manifest.needs else blocks.listed()
    return content


def checksum(manifest: Manifest) -> str:
    """The field `checksum` of the manifest's file, by which runs and ledgers know it."""
    return checksum_of(_content(manifest))


def encode(manifest: Manifest) -> bytes:
    """The bytes of the manifest file."""
    content = _content(manifest)
    content["checksum"] = checksum_of(content)
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"


def _first_of(error: ValidationError) -> str:
    first = error.errors()[0]
    return " ".join([".".join(str(step) for step in first["loc"]), first["msg"]]).strip()


def decode(data: bytes, where: str) -> Manifest:
    """The manifest in these bytes. Raises ManifestError, naming `where`, if there is none."""
    remedy = "Restore this file from a backup, open an earlier version, or ingest the population again."
    try:
        content = parse_json(data)
    except ValueError as error:
        raise ManifestError(f"The manifest {where} is not readable JSON.", remedy) from error
    if not isinstance(content, dict):
        raise ManifestError(f"The manifest {where} is not a JSON object.", remedy)
    schema, needs = content.get("schema_version"), content.get("needs")
    if type(schema) is int and schema == 1:
        _refuse_retired(where, "of schema version 1")
    if type(schema) is not int or schema != SCHEMA_VERSION:
        raise ManifestError(
            f"The manifest {where} has schema version {schema!r}; this fedcore reads {SCHEMA_VERSION}.",
            "Use the fedcore version that wrote it, or a newer one; or ingest the population again.",
        )
    blocks = content.get("blocks")
    if isinstance(blocks, list) and any(isinstance(block, dict) and "sha256" in block for block in blocks):
        _refuse_retired(where, "of schema version 2 with blocks of schema version 1")
    if content.pop("checksum", None) != checksum_of(content):
        raise ManifestError(f"The manifest {where} does not match its own checksum: it was changed or damaged.", remedy)
    needs = needs if isinstance(needs, list) else [needs] if needs else []
    unknown = [name for name in needs if name not in KNOWN]
    if unknown and unknown != ["nfc"]:
        raise ManifestError(
            f"The manifest {where} needs {unknown[0]}, which this fedcore does not know.", "Use a newer fedcore."
        )
    if not any(rule in needs for rule in ID_RULES):
        _refuse_retired(where, "without a rule that keeps one person's client ids together")
    early = sorted(name for name, features in OF.items() if name in content and not {*features} & {*needs})
    if early:
        raise ManifestError(f"The manifest {where} contradicts itself: it has {early[0]} without needing them.", remedy)
    try:
        table = Blocks.unpacked(blocks) if PACKED in needs else None
        small = content if table is None else {**content, "blocks": ()}
        return Manifest.model_validate_json(json.dumps(small), context=table)
    except ValidationError as error:
        raise ManifestError(f"The manifest {where} contradicts itself: {_first_of(error)}.", remedy) from error
    except ValueError as error:
        raise ManifestError(f"The manifest {where} contradicts itself: blocks: {error}.", remedy) from error
    except (OverflowError, MemoryError) as error:
        raise ManifestError(f"The manifest {where} holds more than fits in 64 bits or in memory.", remedy) from error


def _refuse_retired(where: str, form: str) -> Never:
    message, remedy = retired(f"The manifest {where}", form)
    again = "Or ingest the data again. What was spent on these people stays spent: see docs/privacy/ledger.md."
    raise ManifestError(message, f"{remedy} {again}")


def build(**fields: Any) -> Manifest:
    """A manifest from its fields. Raises ManifestError instead of pydantic's error."""
    try:
        return Manifest(**fields)
    except ValidationError as error:
        raise ManifestError(f"The population cannot be described: {_first_of(error)}.") from error


def _earlier(version: int, known: list[int]) -> str:
    if version >= known[0]:
        return ""
    return " any more: earlier ones were removed when clients were forgotten, or were never copied here"


def load(path: layout.Place, version: int | None = None) -> Manifest:
    """The manifest of a version, the newest by default.

    Raises PopulationNotFound or ManifestError, and PopulationError if the storage cannot be reached.
    """
    for folder in (path, path / layout.VERSIONS):
        layout.refuse_links(folder)
    known = layout.versions(path)
    if not known:
        raise PopulationNotFound(
            f"There is no population at {path}.",
            "Check bucket and path, or bring one there with `fedcore population copy`."
            if layout.is_remote(path)
            else "Check the path, or make one with `fedcore population ingest`.",
        )
    if version is None:
        version = known[-1]
    if version not in known:
        raise PopulationNotFound(
            f"The population {path} has no version {version}{_earlier(version, known)}.",
            f"It has {', '.join(map(str, known))}.",
        )
    file = layout.version_file(path, version)
    try:
        data = layout.read_bytes(file)
    except OSError as error:
        raise ManifestError(
            f"The manifest {file} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    manifest = decode(data, str(file))
    if manifest.version != version:
        raise ManifestError(f"The manifest {file} says it is version {manifest.version}.", "Restore it from a backup.")
    return manifest
