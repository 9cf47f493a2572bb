"""Personalised outputs of rows that are pictures, as arrays of pictures or as picture files, by the name's ending.

    NAME.npz    every output as an array, of rows `ptr` and of clients `clients`; outputs as wide as a picture are
                (rows, height, width), or (rows, height, width, 3), and `mask` (rows, height, width) says what moves
    NAME.pngs   a folder: CLIENT/NUMBER-background.png and CLIENT/NUMBER-mask.png of every row, by its number among the
                client's rows from 0; frames.csv, a line for each with its outputs that are one number; objects.csv, a
                line for each object of a mask with its box and its track (`fedcore.rounds.tracks`); contact.png, some
                rows with four pictures each: the row with the boxes, its background, what is left, and the mask;
                contact.html, a page that shows it; about.json
    NAME.videos  the same folder with videos in place of pictures (`fedcore.training.output_videos`)

The background of a row is its output `rows_global`, and what is left `rows_local`. Where a method gives its clients the
`noise` of each pixel, masks are objects by `fedcore.rounds.pictures.foreground`; the noise is moved by the outputs
`rows_down` and `rows_across`, if there are any. Else a mask is where the largest of what is left over the colours is
beyond median + 6 MAD of that picture. PNG knows black, 0, to white, 1, in 256 steps: what is beyond is cut, and other
units are refused.
"""

from __future__ import annotations

import csv
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np

from fedcore.errors import ConfigError
from fedcore.population.store import Population
from fedcore.rounds.method import ROWS, ClientOutputs
from fedcore.rounds.pictures import foreground, own_threshold, picture_shape
from fedcore.rounds.tracks import Box, Tracker
from fedcore.storage.files import flush, json_bytes, opened, seal, write_whole
from fedcore.training.output_files import Leaf, OutputFiles

BACKGROUND, LEFT, MASK = "rows_global", "rows_local", "mask"
NOISE, LEAST, SHADOWS = "noise", "least_change", "shadows"  # of clients, which masks are made of
SHIFTS = ("rows_down", "rows_across")  # of rows: pixels by which a camera that shook moved them
LONGEST = 200  # bytes of the name of a client's folder
SHOWN = 8  # rows on the contact sheet
LONGEST_SIDE = 240  # pixels of a picture on it
GAP = 4  # pixels between them
COLOURS = ((1.0, 0.2, 0.2), (0.2, 1.0, 0.2), (0.3, 0.6, 1.0), (1.0, 1.0, 0.2), (1.0, 0.3, 1.0), (0.2, 1.0, 1.0))
TABLES = ("frames.csv", "objects.csv", "contact.png", "contact.html", "about.json")  # next to the clients' folders
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Contact sheet of {run}</title>
<style>body {{ font: 16px sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em }} img {{ max-width: 100% }}
strong {{ color: #a00 }}</style>
<h1>Contact sheet of {run}</h1>
<p><strong>Sensitive: this page shows frames of clients.</strong> {note}</p>
<p>Method: {method}. {shown} frames from left to right. From top to bottom: the frame with the boxes of its objects, its
background, what the background leaves, and the mask.</p>
<img src="contact.png" alt="Frames, their backgrounds, what these leave, and masks">
<p><a href="frames.csv">Numbers of each frame</a>, <a href="objects.csv">objects of the masks</a>.</p>
</html>
"""
BEYOND = 0.5  # of [0, 1]: so far outside pixels are not those of a camera


def own_mask(left: np.ndarray) -> np.ndarray:
    """(n, H, W) bool: what moves, of what a background leaves of pictures (n, H, W[, 3]), each by its own threshold."""
    size = np.abs(left)
    size = size.max(axis=-1) if size.ndim == 4 else size
    return np.stack([one > own_threshold(one) for one in size]) if len(size) else size.astype(bool)


class _Pictures(OutputFiles):
    def __init__(self, path: Path, population: Population, features: Sequence[str]):
        super().__init__(path, population, features)
        image = population.manifest.image
        self.width = population.features
        self.shape = None if image is None else picture_shape(image, self.width)
        self.about: dict[str, Any] = {}

    def begin(self, about: Mapping[str, Any]) -> None:
        self.about = dict(about)

    def pictures(self, outputs: ClientOutputs) -> dict[str, np.ndarray]:
        """The outputs of rows that are as wide as a picture, as pictures, by name."""
        return {
            name: values.reshape(len(values), *self.shape)
            for name, values in outputs.items()
            if self.shape is not None and (name.startswith(ROWS) or name == NOISE) and values.shape[1:] == (self.width,)
        }

    def masks(self, pictures: Mapping[str, np.ndarray], leaf: Leaf, outputs: ClientOutputs) -> np.ndarray:
        """(n, H, W) bool: what moves in the rows of a leaf."""
        left = pictures[LEFT]
        if not (NOISE in pictures and LEAST in outputs) or leaf.ptr is None:
            return own_mask(left)
        found = np.zeros(left.shape[:3], bool)
        shifts = np.stack([outputs.get(name, np.zeros(len(left))) for name in SHIFTS], axis=1)
        shadows = outputs.get(SHADOWS, np.ones(leaf.clients))
        for client, (noise, least) in enumerate(zip(pictures[NOISE], outputs[LEAST], strict=True)):
            for row in range(int(leaf.ptr[client]), int(leaf.ptr[client + 1])):
                at, behind = slice(row, row + 1), pictures[BACKGROUND][row : row + 1]
                found[at] = foreground(
                    behind + left[at], behind, noise, float(least), shifts[at], bool(shadows[client])
                )
        return found


class ArrayFile(_Pictures):
    """Each array grows in a separate file; at the end they are put into the archive one after the other."""

    def __init__(self, path: Path, population: Population, features: Sequence[str]):
        super().__init__(path, population, features)
        self.arrays: dict[str, tuple[IO[bytes], np.dtype, tuple[int, ...], int]] = {}
        self.ids: list[str] = []
        self.ptr = [np.zeros(1, np.int64)]

    def add(self, leaf: Leaf, ids: Sequence[str], outputs: ClientOutputs) -> None:
        self.clients += leaf.clients
        self.ids += ids
        if leaf.ptr is not None:
            self.ptr.append(leaf.ptr[1:] + leaf.first_row)
        pictures = self.pictures(outputs)
        if LEFT in pictures:
            pictures[MASK] = self.masks(pictures, leaf, outputs)
        for name, values in {**outputs, **pictures}.items():
            self._append(name, np.ascontiguousarray(values))

    def _append(self, name: str, values: np.ndarray) -> None:
        if name not in self.arrays:
            sink = opened(self.partial / name, "wb", private=True)
            self.arrays[name] = sink, values.dtype, values.shape[1:], 0
        sink, dtype, tail, length = self.arrays[name]
        sink.write(values.data)
        self.arrays[name] = sink, dtype, tail, length + len(values)

    def commit(self) -> None:
        self.close()
        whole = self.partial / "whole"
        with opened(whole, "wb", private=True) as sink, zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
            known = {"clients": np.array(self.ids, np.str_), "ptr": np.concatenate(self.ptr)}
            if len(self.ptr) == 1:
                del known["ptr"]
            for name, array in (known | {"about": np.array(json_bytes(self.about).decode())}).items():
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
            for name, (_, dtype, tail, length) in self.arrays.items():
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array_header_2_0(file, header | {"shape": (length, *tail)})
                    with open(self.partial / name, "rb") as source:
                        shutil.copyfileobj(source, file, 1 << 20)
                (self.partial / name).unlink()
        flush(whole)
        os.replace(whole, self.path)
        flush(self.path.parent)

    def close(self) -> None:
        for sink, *_ in self.arrays.values():
            sink.close()


class PictureFolder(_Pictures):
    """Files of pictures. Raises ConfigError, when it is asked for, if rows are no pictures."""

    def __init__(self, path: Path, population: Population, features: Sequence[str]):
        super().__init__(path, population, features)
        if self.shape is None:
            raise ConfigError(
                f"population {population.path.name!r} holds rows that are no pictures.",
                "Declare their height and width at ingest (--option image=28x28), or end the name otherwise.",
            )
        self.lines: IO[str] | None = None
        self.boxes: IO[str] | None = None
        self.tracker, self.sequence = Tracker(), ""
        self.columns: list[str] = []
        self.sheet: list[np.ndarray] = []
        self.shown = set(np.linspace(0, population.n_rows - 1, SHOWN).round().astype(int).tolist())

    def add(self, leaf: Leaf, ids: Sequence[str], outputs: ClientOutputs) -> None:
        pictures = self.pictures(outputs)
        if not {BACKGROUND, LEFT} <= pictures.keys() or leaf.ptr is None:
            raise ConfigError(
                "runs of this method split no pictures.", "End the name in .zarr, .npz, .parquet or .csv instead."
            )
        background, left = pictures[BACKGROUND], pictures[LEFT]
        if len(background) and not -BEYOND <= background.min() <= background.max() <= 1 + BEYOND:
            raise ConfigError(
                f"pixels of the background go from {background.min():g} to {background.max():g}, and those of a PNG "
                "from 0 to 1.",
                "End the name in .npz, or ingest pictures scaled to [0, 1], as --format frames does.",
            )
        masks = self.masks(pictures, leaf, outputs)
        numbers = {name: v for name, v in outputs.items() if name.startswith(ROWS) and v.ndim == 1}
        writer, boxes = self._writer(numbers), self._boxes()
        here = ~self.population.are_holes(leaf.first, leaf.clients)
        self.clients += int(here.sum())
        for client in map(int, np.flatnonzero(here)):
            self._follow(ids[client])
            for number, row in enumerate(range(int(leaf.ptr[client]), int(leaf.ptr[client + 1]))):
                self._keep(ids[client], number, background[row], masks[row])
                writer.writerow([ids[client], number, *(values[row] for values in numbers.values())])
                found = self.tracker.boxes(masks[row])
                boxes.writerows([ids[client], number, *box] for box in found)
                if leaf.first_row + row in self.shown:
                    self.sheet.append(_column(background[row], left[row], masks[row], found))

    def _keep(self, client: str, number: int, background: np.ndarray, mask: np.ndarray) -> None:
        """Write the pictures of a row, the next of the client. number: among the client's rows."""
        folder = self.partial / folder_name(client)
        folder.mkdir(mode=0o700, exist_ok=True)
        _save(folder / f"{number:04d}-background.png", background)
        _save(folder / f"{number:04d}-mask.png", mask)

    def _writer(self, numbers: Mapping[str, np.ndarray]) -> Any:
        if self.lines is None:
            self.lines = open(self.partial / "frames.csv", "w", newline="")
            csv.writer(self.lines).writerow(["client", "row", *(name.removeprefix(ROWS) for name in numbers)])
        return csv.writer(self.lines)

    def _boxes(self) -> Any:
        if self.boxes is None:
            self.boxes = open(self.partial / "objects.csv", "w", newline="")
            csv.writer(self.boxes).writerow(["client", "row", *Box._fields])
        return csv.writer(self.boxes)

    def _follow(self, client: str) -> None:
        """Tracks go over to a client whose frames come after those before: FILE:8 after FILE:0."""
        before, self.sequence = self.sequence, client.rpartition(":")[0] if client.rpartition(":")[2].isdigit() else ""
        if not self.sequence or self.sequence != before:
            self._begin(self.sequence or client)

    def _begin(self, sequence: str) -> None:
        """The next rows are those of another sequence of frames."""
        self.tracker.begin()

    def commit(self) -> None:
        self.close()
        if self.sheet:
            gap = np.full((len(self.sheet[0]), GAP, *self.sheet[0].shape[2:]), 1.0, np.float32)
            columns = [part for column in self.sheet for part in (column, gap)][:-1]
            _save(self.partial / "contact.png", np.concatenate(columns, axis=1))
            known = {name: escape(str(self.about.get(name, ""))) for name in ("run", "method", "note")}
            page = PAGE.format(**known, shown=len(self.sheet))
            write_whole(self.partial / "contact.html", page.encode(), private=True)
        write_whole(self.partial / "about.json", json_bytes({**self.about, "clients": self.clients}), private=True)
        seal(self.partial)
        self.partial.rename(self.path)
        flush(self.path.parent)

    def close(self) -> None:
        for lines in (self.lines, self.boxes):
            if lines is not None:
                lines.close()


def folder_name(client: str) -> str:
    """The name of a client's folder: its id, with % and a number for what cannot be in one. Raises ConfigError."""
    name = quote(client, safe=" :+@,()=")
    if not name.strip(".") or name in TABLES:
        name = name.replace(".", "%2E")
    if len(name) > LONGEST:
        raise ConfigError(f"the id {client[:40]!r}... is too long for the name of a folder.", "End the name in .npz.")
    return name


def _column(background: np.ndarray, left: np.ndarray, mask: np.ndarray, boxes: Sequence[Box]) -> np.ndarray:
    """The four pictures of a row in colour, one below the other and made small; the first has the boxes of the objects,
    each in the colour of its track."""
    step = -(-max(mask.shape) // LONGEST_SIDE)
    pictures = (background + left, background, np.abs(left), mask.astype(np.float32))
    small = [np.atleast_3d(part[::step, ::step]) for part in pictures]
    parts = [np.repeat(part, 3 // part.shape[2], axis=2).astype(np.float32) for part in small]
    for box in boxes:
        colour, (top, left_side) = COLOURS[box.track % len(COLOURS)], (box.top // step, box.left // step)
        bottom, right = (box.top + box.height - 1) // step, (box.left + box.width - 1) // step
        parts[0][[top, bottom], left_side : right + 1] = colour
        parts[0][top : bottom + 1, [left_side, right]] = colour
    gap = np.full((GAP, *parts[0].shape[1:]), 1.0, np.float32)
    return np.concatenate([piece for part in parts for piece in (part, gap)][:-1])


def bytes_of(picture: np.ndarray) -> np.ndarray:
    """uint8 (H, W[, 3]) of a picture of [0, 1], cut to it."""
    found: np.ndarray = np.rint(np.clip(picture, 0.0, 1.0) * 255).astype(np.uint8)
    return found


def _save(file: Path, picture: np.ndarray) -> None:
    """A picture (H, W[, 3]) of [0, 1], or a mask, as PNG."""
    from PIL import Image

    if picture.dtype != bool:
        picture = bytes_of(picture)
    with opened(file, "wb", private=True) as sink:
        Image.fromarray(picture).save(sink, "png", compress_level=1)
