"""Words that options of an ingest and manifests choose from. This module loads nothing, so commands start at once."""

from __future__ import annotations

from typing import Literal

Kind = Literal["counts", "rows", "words"]
Halves = Literal["document", "entry"]
PeriodUnit = Literal["day", "week", "month", "quarter", "year"]
DateUnit = Literal["seconds", "minutes", "hours", "days", "years"]
Format = Literal["csv", "parquet", "arrow", "jsonl", "sql", "npz", "npy", "text", "frames"]
Encoding = Literal["utf-8", "latin-1", "cp1252", "utf-16"]  # of the text of CSV and JSON lines
Outside = Literal["clip", "missing", "invalid"]  # what becomes of a value that is out of bounds
Spelling = Literal["exact", "alike", "typos"]  # of the values of a category
Tokeniser = Literal["words", "identifiers"]
WhoseRows = Literal["client", "record"]
