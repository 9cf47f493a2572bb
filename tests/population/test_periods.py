"""Calendars, time stamps, and populations whose clients are entries of one client and one calendar period."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import IngestError, ManifestError, PopulationError
from fedcore.population import manifest as manifests
from fedcore.population.conversion import begin_cohorts, open_cohort
from fedcore.population.copying import copy_population
from fedcore.population.describing import describe
from fedcore.population.erasing import compact, forget
from fedcore.population.ingest.batches import Account
from fedcore.population.ingest.dealing import Dealing, deal
from fedcore.population.ingest.ingest import ingest
from fedcore.population.ingest.readings import Kept
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.ingest.sources_table import TableSource
from fedcore.population.ingest.spill import LargeClient, Layout
from fedcore.population.ingest.table_files import CsvFile
from fedcore.population.ingest.time_stamps import period_of_each
from fedcore.population.manifest import Provenance
from fedcore.population.periods import (
    EPOCH,
    EXAMPLES,
    MOST,
    UNITS,
    Calendar,
    Periods,
    client_of,
    fault,
    label_at,
    label_of,
    labels_in_words,
    stamp_in,
)
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from tests.population.contents import counts_of, ids_of, rows_of, write_csv

DAYS = st.dates(date(1950, 1, 1), date(2150, 1, 1))
MONTHS = [f"2026-{month:02d}" for month in range(1, 13)]
SPEC = {"period": "month", "time": "when", "first": "2026-01", "through": "2026-06", "features": 5}
HEADER = ["client", "when", "token"]


def number_of(calendar: Calendar, day: date) -> int:
    return int(calendar.of_days(np.array([(day - EPOCH).days]))[0])


# --- calendars --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
@given(one=DAYS, other=DAYS)
def test_a_day_lies_in_the_period_of_its_label_and_in_no_other(unit, one, other):
    first, last = sorted((one, other))
    last = min(last, first + timedelta(days=3000))
    calendar = Calendar.between(unit, "UTC", label_at(unit, first), label_at(unit, last))
    assert len(set(calendar.labels)) == len(calendar.labels) and (np.diff(calendar.days) > 0).all()
    for day in (first, last, first + (last - first) / 2):
        assert calendar.labels[number_of(calendar, day) - 1] == label_at(unit, day)
    outside = (EPOCH + timedelta(days=int(calendar.days[0]) - 1), EPOCH + timedelta(days=int(calendar.days[-1])))
    assert [number_of(calendar, day) for day in outside] == [0, 0]


@pytest.mark.parametrize(
    ("unit", "day", "label"),
    [
        ("week", date(2027, 1, 3), "2026-W53"),
        ("week", date(2024, 12, 30), "2025-W01"),
        ("quarter", date(2026, 3, 31), "2026-Q1"),
        ("quarter", date(2026, 4, 1), "2026-Q2"),
        ("month", date(2026, 12, 31), "2026-12"),
        ("year", date(1999, 12, 31), "1999"),
        ("day", date(2024, 2, 29), "2024-02-29"),
    ],
)
def test_labels(unit, day, label):
    assert label_at(unit, day) == label
    assert number_of(Calendar.between(unit, "UTC", label, label), day) == 1
    assert fault(Periods(column="t", unit=unit, zone="UTC"), [EXAMPLES[unit]]) is None


@pytest.mark.parametrize(
    ("unit", "first", "through", "why"),
    [
        ("month", "2026-1", "2026-03", "'2026-1' is no month; one is 2026-03"),
        ("month", "2026-13", "2026-13", "is no month"),
        ("quarter", "2026-Q5", "2026-Q5", "is no quarter"),
        ("quarter", "2026", "2026", "is no quarter"),
        ("week", "2026-W00", "2026-W10", "is no week"),
        ("week", "2025-W53", "2026-W10", "is no week"),
        ("day", "2026-02-30", "2026-03-01", "is no day"),
        ("year", "26", "2026", "is no year"),
        ("month", "2026-03", "2026-02", "2026-02 is before 2026-03"),
        ("day", "1900-01-01", "2026-01-01", f"more than {MOST}"),
        ("year", "9999", "9999", "no year follows 9999"),
    ],
)
def test_calendars_that_are_none(unit, first, through, why):
    with pytest.raises(ValueError, match=why):
        Calendar.between(unit, "UTC", first, through)


# --- zones ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "text", "label"),
    [
        ("UTC", "2026-02-28T23:30:00Z", "2026-02-28"),
        ("Europe/Zurich", "2026-02-28T23:30:00Z", "2026-03-01"),
        ("Europe/Zurich", "2026-02-28T23:30:00", "2026-02-28"),  # by the clock of the zone
        ("Europe/Zurich", "2026-03-29T01:30:00+02:00", "2026-03-29"),  # 23:30 UTC of the day before, when clocks change
        ("Europe/Zurich", "2026-03-28T22:59:59Z", "2026-03-28"),
        ("Europe/Zurich", "2026-03-28T23:00:00Z", "2026-03-29"),
        ("Europe/Zurich", "2026-03-29T21:59:59Z", "2026-03-29"),  # a day of 23 hours
        ("Europe/Zurich", "2026-03-29T22:00:00Z", "2026-03-30"),
        ("Europe/Zurich", "2026-10-25T22:59:59Z", "2026-10-25"),  # one of 25
        ("Europe/Zurich", "2026-10-25T23:00:00Z", "2026-10-26"),
        ("America/Sao_Paulo", "2018-11-04T02:59:59Z", "2018-11-03"),  # the next one has no midnight
        ("America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-04"),
        ("Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29"),  # which had no 30th
        ("Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-31"),
        ("Asia/Kathmandu", "2026-05-31T18:14:59Z", "2026-05-31"),
        ("Asia/Kathmandu", "2026-05-31T18:15:00Z", "2026-06-01"),
        ("UTC", "2026-03-01", "2026-03-01"),
        ("UTC", "20260301T101500.25+0100", "2026-03-01"),
    ],
)
def test_a_time_stamp_lies_in_the_day_that_the_zone_has_then(zone, text, label):
    day = date.fromisoformat(label)
    calendar = Calendar.between("day", zone, *(str(day + timedelta(days=shift)) for shift in (-3, 3)))
    (number,) = calendar.of_stamps([stamp_in(text)])
    assert calendar.labels[number - 1] == label
    for unit in UNITS:
        whole = Calendar.between(unit, zone, label_at(unit, day), label_at(unit, day))
        assert whole.of_stamps([stamp_in(text)]).tolist() == [1]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Zurich", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Tehran"])
@settings(max_examples=60)
@given(instant=st.integers(-(10**9), 2 * 10**9))
def test_an_instant_lies_in_the_period_that_python_says(zone, instant):
    there = datetime.fromtimestamp(instant, UTC).astimezone(ZoneInfo(zone)).date()
    for unit in UNITS:
        label = label_at(unit, there)
        calendar = Calendar.between(unit, zone, label, label)
        assert calendar.of_instants(np.array([instant])).tolist() == [1]


def test_zones_that_there_are_not():
    for zone in ("Europe/Nowhere", "../etc", ""):
        with pytest.raises(ValueError, match="knows no time zone"):
            Calendar.between("month", zone, "2026-01", "2026-01")


def stamps(zone: str):
    """The same 200 instants in every form that says which they are, beside what Python says of their months."""
    draw = random.Random(3)
    instants = [draw.randrange(1767225600 - 86400 * 40, 1798761600 + 86400 * 40) for _ in range(200)]
    moments = [datetime.fromtimestamp(instant, UTC) for instant in instants]
    months = [moment.astimezone(ZoneInfo(zone)).strftime("%Y-%m") for moment in moments]
    return moments, [MONTHS.index(month) + 1 if month in MONTHS else 0 for month in months]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Zurich", "America/New_York"])
def test_text_and_timestamps_say_the_same(zone):
    moments, expected = stamps(zone)
    calendar = Calendar.between("month", zone, MONTHS[0], MONTHS[-1])
    local = [moment.astimezone(ZoneInfo(zone)) for moment in moments]
    forms = [
        pa.array([moment.isoformat() for moment in moments]),
        pa.array([moment.isoformat().replace("+00:00", "Z") for moment in moments], pa.large_string()),
        pa.array([moment.isoformat() for moment in local]),
        pa.array([moment.replace(tzinfo=None).isoformat(" ") for moment in local]),
        pa.array([moment.date().isoformat() for moment in local]),
        pa.array([moment.date() for moment in local], pa.date32()),
        pa.array([moment.date() for moment in local], pa.date64()),
        *(
            pa.array(moments, pa.timestamp(unit, tz))
            for unit in ("s", "ms", "us", "ns")
            for tz in ("UTC", "Asia/Tokyo")
        ),
        *(pa.array([moment.replace(tzinfo=None) for moment in local], pa.timestamp(unit)) for unit in ("s", "ns")),
    ]
    for column in forms:
        numbers, why = period_of_each(column, calendar)
        assert numbers.tolist() == expected, column.type
        row = expected.index(0)
        assert "is outside of the calendar, 2026-01 to 2026-12" in why(row)
        assert period_of_each(pa.array([None], column.type), calendar)[1](0) == "the time is missing"


def test_text_that_is_no_time():
    calendar = Calendar.between("month", "UTC", "2026-01", "2026-12")
    column = pa.array(["2026-03", "", "yesterday", "2026-02-30", "12:30", "2026-03-01T25:00", None])
    numbers, why = period_of_each(column, calendar)
    assert not numbers.any()
    assert why(0) == "the time '2026-03' is no ISO date, or date and time"
    assert why(1) == why(6) == "the time is missing"


# --- populations ------------------------------------------------------------------------------------------------------


def some_entries(seed: int = 1, rows: int = 300, clients: int = 12):
    """Rows (client, ISO date, token), in months 1, 2, 3 and 6 of 2026."""
    draw = random.Random(seed)
    return [
        (
            f"u/{draw.randrange(clients)}",
            f"2026-0{draw.choice((1, 2, 3, 6))}-{draw.randrange(1, 29):02d}",
            draw.randrange(5),
        )
        for _ in range(rows)
    ]


def expected(rows):
    found = defaultdict(Counter)
    for client, when, token in rows:
        found[f"{when[:7]}/{client}"][token] += 1
    return {one: dict(counts) for one, counts in found.items()}


def made(folder: Path, *parts, **options) -> Population:
    """Ingested from one file for each part."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [write_csv(folder / f"{number}.csv", HEADER, rows) for number, rows in enumerate(parts)]
    return ingest(files, folder / "p", **{**SPEC, **options})


def more(population: Population, rows, **options) -> Population:
    file = write_csv(population.path.parent / f"more-{population.version}.csv", HEADER, rows)
    return ingest(file, population.path, append=True, **options)


def order_of_labels(population: Population) -> list[str]:
    return [
        population.manifest.cohorts[n - 1].period for n, clients in population.manifest.order for _ in range(clients)
    ]


def checked(population: Population, rows) -> Population:
    assert counts_of(population) == expected(rows)
    assert [label_of(one) for one in ids_of(population)] == order_of_labels(population)
    assert population.verify().problems == ()
    assert Population.open(population.path).manifest == population.manifest
    return population


def test_entries_are_sorted_by_period_and_every_period_is_a_cohort(tmp_path):
    rows = some_entries()
    population = checked(made(tmp_path, rows, nominal_clients=100), rows)
    manifest = population.manifest
    assert manifest.needs == ("cohorts", "stripped-ids", "periods") and manifest.version == 1
    assert [(one.number, one.period, one.nominal) for one in manifest.cohorts] == [
        (number, f"2026-0{number}", 100) for number in range(1, 7)
    ]
    assert [number for number, _ in manifest.order] == [1, 2, 3, 6], "the others are there, and nobody is in them"
    assert manifest.nominal_clients == 600 and len({one.token for one in manifest.cohorts}) == 6
    assert manifest.period == Periods(column="when", unit="month", zone="UTC")
    told = describe(population)
    assert told["cohorts"][3] == {**told["cohorts"][3], "period": "2026-04", "clients": 0, "nominal_clients": 100}
    assert population.participants(((4, 5),)) == ()
    (first, stop) = population.participants(((2, 4),))[0]
    assert {label_of(one) for one in ids_of(population)[first:stop]} == {"2026-02", "2026-03"}


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 300), max_size=3))
def test_the_order_of_rows_and_files_changes_nothing(tmp_path_factory, seed, cuts):
    rows = some_entries()
    shuffled = rows.copy()
    random.Random(seed).shuffle(shuffled)
    bounds = [0, *sorted(cuts), len(rows)]
    parts = [shuffled[low:high] for low, high in zip(bounds, bounds[1:], strict=False)]
    one, other = (made(tmp_path_factory.mktemp("p"), *files) for files in ([rows], parts))
    assert ids_of(one) == ids_of(other) and one.manifest.order == other.manifest.order
    assert counts_of(one) == counts_of(other)


@pytest.mark.parametrize("memory", [2_000, 20_000, 10**8])
def test_memory_changes_nothing(tmp_path, memory):
    """Distributed over files once, several times, or not at all."""
    rows = some_entries(rows=3000, clients=200)
    file = write_csv(tmp_path / "rows.csv", HEADER, rows)
    calendar = Calendar.between("month", "UTC", "2026-01", "2026-06")
    source = TableSource([CsvFile(file, ",")], IngestRequest(features=5, time="when"), Kept(calendar))
    found = []
    dealing = Dealing(source, Layout("counts", 5, None), tmp_path / "spill", memory, calendar)
    for clients in deal(dealing, Account()).clients():
        found += [clients.id] if isinstance(clients, LargeClient) else clients.ids
    assert [label_of(one) for one in found] == sorted(label_of(one) for one in found)
    assert found == ids_of(made(tmp_path / "made", rows)) and len(found) > 700


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_appends_with_late_rows_hold_what_one_ingest_holds(tmp_path_factory, seed):
    draw, rows = random.Random(seed), some_entries(seed)
    parts = [[], [], []]
    for row in rows:
        parts[draw.randrange(3)].append(row)
    tokens: tuple[str, ...] = ()
    population = made(tmp_path_factory.mktemp("p"), parts[0], through="2026-06")
    for part in parts[1:]:
        before = ids_of(population)
        population = more(population, part)
        assert ids_of(population)[: len(before)] == before, "known entries keep their place"
        tokens = tokens or tuple(one.token for one in population.manifest.cohorts)
        assert tuple(one.token for one in population.manifest.cohorts) == tokens
    checked(population, rows)
    new = order_of_labels(population)[len(before) :]
    assert new == sorted(new), "newcomers by period"


def test_a_calendar_goes_on_with_an_append_that_says_so(tmp_path):
    population = made(tmp_path, [("a", "2026-01-05", 1)], through="2026-02", nominal_clients=10)
    with pytest.raises(IngestError, match=r"line 2: the time '?2026-03-01'? is outside of the calendar, 2026-01"):
        more(population, [("a", "2026-03-01", 1)])
    rows = [("a", "2026-03-01", 1), ("a", "2026-01-06", 2), ("b", "2026-01-31", 2)]
    population = more(population, rows, through="2026-04", nominal_clients=7)
    checked(population, [("a", "2026-01-05", 1), *rows])
    assert [(one.period, one.nominal) for one in population.manifest.cohorts] == [
        ("2026-01", 10),
        ("2026-02", 10),
        ("2026-03", 7),
        ("2026-04", 7),
    ]
    assert population.manifest.order == ((1, 2), (3, 1)) and population.manifest.nominal_clients == 34
    empty = more(population, [], through="2026-05")
    assert len(empty.manifest.cohorts) == 5 and empty.manifest.nominal_clients is None
    assert more(empty, [("a", "2026-05-31", 1)]).manifest.order == ((1, 2), (3, 1), (5, 1))


def test_periods_open_without_a_source(tmp_path):
    population = made(tmp_path, [("a", "2026-01-05", 1)], nominal_clients=10)
    with pytest.raises(PopulationError, match="--through LABEL"):
        open_cohort(population)
    opened = open_cohort(population, 20, "2026-08")
    assert [one.nominal for one in opened.manifest.cohorts][-3:] == [
        10,
        20,
        20,
    ] and opened.manifest.nominal_clients == 100
    with pytest.raises(IngestError, match="a calendar only grows"):
        open_cohort(opened, None, "2026-07")
    assert begin_cohorts(opened, lambda *_: pytest.fail("asked")) is opened


def test_bad_times_are_bad_rows_with_their_line(tmp_path):
    rows = [("a", "2026-01-05", 1), ("a", "soon", 1), ("b", "", 2), ("c", "2025-12-31", 3), ("", "2026-01-01", 1)]
    with pytest.raises(IngestError) as refused:
        made(tmp_path, rows)
    for words in (
        "4 bad rows",
        "0.csv, line 3: the time 'soon' is no ISO date",
        "0.csv, line 4: the time is missing",
        "0.csv, line 5: the time 2025-12-31 is outside of the calendar, 2026-01 to 2026-06 (UTC)",
        "0.csv, line 6: the client id is empty",
    ):
        assert words in str(refused.value), words
    population = made(tmp_path, rows, tolerance=4)
    assert counts_of(population) == {"2026-01/a": {1: 1}} and population.manifest.provenance.bad_rows == 4


def test_quoted_and_odd_csv_is_read_the_same(tmp_path):
    """The slow way."""
    text = 'client,when,token\n"a, b","2026-01-05",1\n\nc,"2026-02-01T00:30:00+01:00",2\nd,nope,3\n'
    (tmp_path / "odd.csv").write_text(text)
    with pytest.raises(IngestError, match="line 5: the time 'nope'"):
        ingest(tmp_path / "odd.csv", tmp_path / "p", **SPEC)
    population = ingest(tmp_path / "odd.csv", tmp_path / "p", tolerance=1, **SPEC)
    assert counts_of(population) == {"2026-01/a, b": {1: 1}, "2026-01/c": {2: 1}}


@pytest.mark.parametrize("kind", [pa.string(), pa.date32(), pa.timestamp("us"), pa.timestamp("ms", "Europe/Zurich")])
def test_dense_rows_of_parquet(tmp_path, kind):
    days = [date(2026, 1, 5), date(2026, 2, 28), date(2026, 3, 1), date(2026, 1, 6)]
    moments = [datetime(day.year, day.month, day.day, 12) for day in days]
    if pa.types.is_timestamp(kind) and kind.tz:
        moments = [moment.replace(tzinfo=ZoneInfo("Europe/Zurich")) for moment in moments]
    column = pa.array([str(day) for day in days]) if kind == pa.string() else pa.array(moments).cast(kind, safe=False)
    table = pa.table({"client": [1, 1, 2, 1], "when": column, "x": [1.0, 2.0, 3.0, 4.0]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    options = {**SPEC, "features": None, "zone": "Europe/Zurich"}
    population = ingest(tmp_path / "rows.parquet", tmp_path / "p", **options)
    assert rows_of(population) == {"2026-01/1": [(1.0,), (4.0,)], "2026-02/1": [(2.0,)], "2026-03/2": [(3.0,)]}
    assert population.features == 1, "the time is no feature"


def test_heldout_rows_are_dealt_likewise(tmp_path):
    train = write_csv(tmp_path / "a.csv", HEADER, [("a", "2026-01-05", 1), ("a", "2026-02-05", 1)])
    held = write_csv(tmp_path / "b.csv", HEADER, [("a", "2026-02-06", 3)])
    population = ingest(train, tmp_path / "p", heldout=held, **SPEC)
    assert counts_of(population, heldout=True) == {"2026-01/a": {}, "2026-02/a": {3: 1}}


@pytest.mark.parametrize(
    ("unit", "first", "words"),
    [
        ("day", "2026-02-27", "2026-02-27 to 2026-03-01, 2026-03-03"),
        ("week", "2026-W52", "2026-W52 to 2027-W01, 2027-W03"),
        ("month", "2025-12", "2025-12 to 2026-02, 2026-04"),
        ("quarter", "2025-Q4", "2025-Q4 to 2026-Q2, 2026-Q4"),
        ("year", "2025", "2025 to 2027, 2029"),
    ],
)
def test_numbers_of_a_calendar_as_dates(unit, first, words):
    assert labels_in_words(unit, first, ((1, 3), (5, 5))) == words
    assert labels_in_words(unit, first, ((1, 1),)) == first and labels_in_words(unit, first, ()) == "none"
    for wrong, ranges in (("none", ((1, 1),)), (first, ((0, 1),))):
        with pytest.raises(ValueError):
            labels_in_words(unit, wrong, ranges)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"period": None}, "'time' needs a period"),
        ({"time": None}, "is declared, and not taken from the data"),
        ({"first": None}, "is declared, and not taken from the data"),
        ({"through": None}, "is declared, and not taken from the data"),
        ({"through": "2025-12"}, "no such calendar: 2025-12 is before 2026-01"),
        ({"zone": "Mars"}, "knows no time zone 'Mars'"),
        ({"time": "then"}, "has no column 'then'"),
        ({"time": "token"}, "as that of the time and as another"),
        ({"time": "client"}, "as that of the time and as another"),
    ],
)
def test_what_does_not_go_together(tmp_path, options, why):
    with pytest.raises(IngestError, match=why):
        made(tmp_path, [("a", "2026-01-05", 1)], **options)
    assert not (tmp_path / "p").exists()


def test_only_tables_have_time_stamps(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2)), client=np.arange(3))
    with pytest.raises(IngestError, match="The rows of npz have no time stamps"):
        ingest(tmp_path / "x.npz", tmp_path / "p", **{**SPEC, "features": None})
    table = pa.table({"client": ["a"], "when": [5], "token": [1]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(IngestError, match="the column 'when' is of type int64"):
        ingest(tmp_path / "rows.parquet", tmp_path / "p", **SPEC)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"period": "week"}, "was made with period 'month', and is appended to with 'week'"),
        ({"time": "then"}, "with time 'when'"),
        ({"zone": "Europe/Zurich"}, "with zone 'UTC'"),
        ({"first": "2025-01"}, "with first '2026-01'"),
        ({"through": "2026-05"}, "2026-05 is before 2026-06, which was declared, and a calendar only grows"),
        ({"nominal_clients": 4}, "this version declares no period"),
    ],
)
def test_appends_that_do_not_fit(tmp_path, options, why):
    population = made(tmp_path, [("a", "2026-01-05", 1)])
    with pytest.raises(IngestError, match=why):
        more(population, [("a", "2026-01-06", 1)], **options)
    fine = {"period": "month", "time": "when", "zone": "UTC", "first": "2026-01", "through": "2026-06"}
    assert more(population, [("a", "2026-01-06", 1)], **fine).version == 2


def test_a_population_of_clients_stays_one(tmp_path):
    file = write_csv(tmp_path / "a.csv", ["client", "token"], [("a", 1)])
    ingest(file, tmp_path / "p", features=5)
    with pytest.raises(IngestError, match="has clients, not entries of periods: 'through' cannot be set"):
        ingest(file, tmp_path / "p", append=True, through="2026-03")


def test_a_file_without_times_is_not_appended(tmp_path):
    population = made(tmp_path, [("a", "2026-01-05", 1)])
    file = write_csv(tmp_path / "a.csv", ["client", "token"], [("a", 1)])
    with pytest.raises(IngestError, match="has no column 'when'"):
        ingest(file, population.path, append=True)


def test_the_writer_takes_entries_of_declared_periods_only(tmp_path):
    period = Periods(column="when", unit="month", zone="UTC")
    with PopulationWriter(tmp_path / "p", "counts", 3, period=period, labels=("2026-01", "2026-02")) as writer:
        for wrong in ("a", "2026-03/a", "/a"):
            with pytest.raises(PopulationError, match="which is not declared"):
                writer.write([wrong], sp.csr_matrix(np.ones((1, 3), int)))
        writer.write(["2026-02/a", "2026-02/b", "2026-01/a"], sp.csr_matrix(np.ones((3, 3), int)))
        population = writer.commit(Provenance())
    assert population.manifest.order == ((2, 2), (1, 1))


def test_manifests_that_contradict_themselves(tmp_path):
    manifest = made(tmp_path, [("a", "2026-01-05", 1)], through="2026-02").manifest
    cohorts = manifest.cohorts
    others = {
        "periods go with the need": {"needs": ("cohorts", "stripped-ids")},
        "do not follow each other": {"cohorts": (cohorts[0].model_copy(update={"period": "2026-02"}), *cohorts[1:])},
        "has no calendar period": {"cohorts": (cohorts[0].model_copy(update={"period": None}), *cohorts[1:])},
        "the calendar of the cohorts is none": {
            "cohorts": (cohorts[0].model_copy(update={"period": "x"}), *cohorts[1:])
        },
        "the population has none": {"period": None, "needs": ("cohorts", "stripped-ids")},
    }
    for why, change in others.items():
        with pytest.raises(ManifestError, match=why):
            manifests.build(**{**dict(manifest), **change})
    assert manifests.decode(manifests.encode(manifest), "here") == manifest


def test_verify_finds_an_entry_in_a_period_that_is_not_its_own(tmp_path):
    """It would be charged to another account."""
    population = made(tmp_path, [("a", "2026-01-05", 1), ("a", "2026-02-05", 1)])
    wrong = population.manifest.model_copy(update={"order": ((2, 1), (1, 1))})
    (problem,) = Population(population.path, wrong).verify().problems
    assert "the entry '2026-01/a' is not of its period" in problem


# --- what else happens to them ----------------------------------------------------------------------------------------


def test_a_client_is_forgotten_with_all_entries_and_comes_back_to_the_same_accounts(tmp_path):
    rows = some_entries()
    population = made(tmp_path, rows)
    tokens = [one.token for one in population.manifest.cohorts]
    gone = forget(population, clients=["u/3", "u/4", "nobody", "2026-01/u/5"])
    assert gone.unknown == 2 and gone.clients == len(
        {one for one in expected(rows) if client_of(one) in ("u/3", "u/4")}
    )
    left = [row for row in rows if row[0] not in ("u/3", "u/4")]
    assert {one: data for one, data in counts_of(gone.population).items() if one} == expected(left)
    assert gone.population.verify().problems == ()
    packed = compact(gone.population).population
    assert packed.manifest.period == population.manifest.period and packed.manifest.needs == (
        "cohorts",
        "stripped-ids",
        "periods",
    )
    checked(packed, left)
    back = more(packed, [row for row in rows if row[0] == "u/3"])
    checked(back, [row for row in rows if row[0] != "u/4"])
    assert [one.token for one in back.manifest.cohorts] == tokens


def test_old_periods_are_forgotten(tmp_path):
    rows = some_entries()
    after = forget(made(tmp_path, rows), cohorts_to=2).population
    assert {label_of(one) for one in ids_of(after) if one} == {"2026-03", "2026-06"}
    assert after.verify().problems == () and len(after.manifest.cohorts) == 6
    late = more(after, [("u/1", "2026-01-07", 2)])
    assert late.manifest.order[-1] == (1, 1), "a late row goes to its own period"


def test_a_copy_has_the_same_periods(tmp_path):
    population = made(tmp_path, some_entries())
    copy_population(population.path, tmp_path / "copy")
    assert Population.open(tmp_path / "copy").manifest == population.manifest
