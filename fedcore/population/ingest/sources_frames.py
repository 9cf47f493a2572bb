"""Frames of cameras as sources: folders of images, NPZ and NPY files, video files. A row is a frame, all its pixels.

A sequence is a video file, an array (frames, height, width) or (frames, height, width, 3), or the images of one folder
in the order of their names. A fixed number of consecutive frames is a client. Its id is SEQUENCE:NUMBER with the number
of its first frame, from 0. Pixels are stored as float32 in [0, 1], line after line, the three colours of a pixel
together. Whole numbers are divided by the largest of their type.

An error names what would be lost: frames of another size or number of colours than earlier ones, transparency, more
bits than are read, and frames that a video declares and does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import IngestError, needs
from fedcore.population.blocks import Kind
from fedcore.population.identifiers import STRIPPED, Rule
from fedcore.population.ingest.batches import Account, MatrixBatch, refuse_same_names
from fedcore.population.ingest.sources_array import StoredArray, array_names
from fedcore.population.sizing import BLOCK_BYTES, CLIENTS_PER_LEAF

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
VIDEOS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg")
ARRAYS = (".npz", ".npy")
FRAMES_PER_CLIENT = 8
DEPTHS = {
    "1": 1.0,
    "L": 255.0,
    "RGB": 255.0,
    "P": 255.0,
    "I;16": 65535.0,
    "I;16B": 65535.0,
}  # largest, by Pillow's mode
STEPS = 1000  # of progress, for each sequence
WHOLE = {"uint8": 255.0, "uint16": 65535.0, "bool": 1.0}


@dataclass
class FrameSource:
    """Sequences of frames of one size. array: of NPZ files; frame_stride: every so-many-th frame is read."""

    files: Sequence[Path]
    frames_per_client: int = FRAMES_PER_CLIENT
    frame_stride: int = 1
    array: str | None = None
    progress: Callable[[int, int], None] | None = None
    rule: Rule = STRIPPED
    kind: Kind = "rows"
    dtype: str = "float32"
    keyed: bool = False
    vocabulary: None = None
    names: tuple[str, ...] = field(init=False)
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.sequences = sequences_of(self.files)
        self.names = tuple(name for name, _ in self.sequences)
        refuse_same_names(self.names, self.rule)
        self.shape = next(self._frames(*self.sequences[0]))[1].shape

    @property
    def features(self) -> int:
        return int(np.prod(self.shape))

    @property
    def image(self) -> tuple[int, int]:
        return self.shape[0], self.shape[1]

    @property
    def clients_per_leaf(self) -> int:
        """Number of clients with which a leaf is about one block."""
        size = self.frames_per_client * self.features * np.dtype(self.dtype).itemsize
        return int(np.clip(BLOCK_BYTES // size, 1, CLIENTS_PER_LEAF))

    def batches(self, account: Account) -> Iterator[MatrixBatch]:
        """A client at a time."""
        for number, (name, files) in enumerate(self.sequences):
            held: list[np.ndarray] = []
            first, before, expected = 0, account.stored, 0 if self.progress is None else self._expected(files)
            for at, frame in self._frames(name, files):
                if frame.shape != self.shape:
                    raise IngestError(
                        f"Frame {at} of {name} is of {_in_words(frame.shape)}, the first one of {self.names[0]} of "
                        f"{_in_words(self.shape)}.",
                        "All frames of a population have one size: scale them, or ingest them apart.",
                    )
                if at % self.frame_stride:
                    account.skipped += 1
                    continue
                account.stored += 1
                first = first if held else at
                held.append(frame)
                if len(held) == self.frames_per_client:
                    yield _client(name, first, held)
                    held = []
                    self._show(number, (at + 1) / max(expected, at + 1) if expected else 0.0)
            if held:
                yield _client(name, first, held)
            if files[0].suffix.lower() in IMAGES:  # of which only those that are wanted are read
                account.skipped += len(files) - (account.stored - before)
            self._show(number + 1, 0.0)

    def _show(self, done: int, of_next: float) -> None:
        """Report progress, in STEPS for each sequence: whole ones that are done, and the share of the next one."""
        if self.progress is not None:
            self.progress(round(STEPS * (done + of_next)), STEPS * len(self.sequences))

    def _expected(self, files: Sequence[Path]) -> int:
        """Number of frames that a sequence declares; 0 if it declares none."""
        suffix = files[0].suffix.lower()
        if suffix in VIDEOS:
            return declared_frames(files[0])
        if suffix in ARRAYS:
            name = frames_array(files[0], self.array)
            return len(StoredArray(files[0]) if name is None else StoredArray(files[0], name))
        return len(files)

    def _frames(self, name: str, files: Sequence[Path]) -> Iterator[tuple[int, np.ndarray]]:
        """(number, (H, W) or (H, W, 3) float32) of all frames of a sequence; of a folder only those that are wanted."""
        suffix = files[0].suffix.lower()
        if suffix in VIDEOS:
            yield from enumerate(video_frames(files[0]))
        elif suffix in ARRAYS:
            yield from enumerate(array_frames(files[0], self.array))
        else:
            for at in range(0, len(files), self.frame_stride):
                yield at, read_image(files[at])


def _in_words(shape: Sequence[int]) -> str:
    return f"{shape[0]} x {shape[1]}" + (" in colour" if len(shape) == 3 else "")


def _client(name: str, first: int, frames: Sequence[np.ndarray]) -> MatrixBatch:
    x = np.stack(frames).reshape(len(frames), -1)
    return MatrixBatch([f"{name}:{first:06d}"], (np.array([0, len(x)]), x), None)


def sequences_of(files: Sequence[Path]) -> list[tuple[str, list[Path]]]:
    """(name, files) of every sequence: images of one folder together, any other file alone."""
    known = (*IMAGES, *VIDEOS, *ARRAYS)
    for file in files:
        if file.suffix.lower() not in known:
            raise IngestError(f"{file} holds no frames by its name.", f"Known endings: {', '.join(known)}.")
    pictures = [file for file in files if file.suffix.lower() in IMAGES]
    found = [(file.name, [file]) for file in files if file.suffix.lower() not in IMAGES]
    for folder, own in groupby(sorted(pictures, key=lambda file: (file.parent, file.name)), lambda file: file.parent):
        found.append((folder.resolve().name or "images", list(own)))
    return found


# --- images ---------------------------------------------------------------------------------------------------------


def read_image(file: Path) -> np.ndarray:
    """(H, W) or (H, W, 3) float32 of [0, 1]. Raises IngestError for what is no image, or would lose something."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            depth = str(image.tile[0][3]) if image.tile else ""
            if getattr(image, "n_frames", 1) > 1:
                raise IngestError(f"{file} holds {getattr(image, 'n_frames', 1)} pictures.", "Save each to a file.")
            if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
                raise IngestError(f"{file} has transparent pixels.", "Save it without an alpha channel.")
            if image.mode not in DEPTHS or (image.mode == "RGB" and "16" in depth):
                what = "16 bits a colour" if "16" in depth else f"the mode {image.mode}"
                raise IngestError(
                    f"{file} has {what}, which is not read as it is.",
                    "Save it in grey or in colour with 8 bits, in grey with 16, or the frames as an array in .npz.",
                )
            pixels = np.asarray(image.convert("RGB") if image.mode == "P" else image)
            return pixels.astype(np.float32) / np.float32(DEPTHS[image.mode])
    except (OSError, UnidentifiedImageError, SyntaxError, Image.DecompressionBombError) as error:
        raise IngestError(f"{file} cannot be read as an image.", "Check that the file is whole.") from error


# --- arrays ---------------------------------------------------------------------------------------------------------


def frames_array(file: Path, name: str | None) -> str | None:
    """The array of frames in an NPZ file: the named one, else "frames" or the only one. None for an NPY file."""
    if file.suffix.lower() != ".npz":
        return None
    known = array_names(file)
    name = name or (known[0] if len(known) == 1 else "frames")
    if name not in known:
        raise IngestError(f"{file} has no array {name!r}.", f"It has {', '.join(known)}; name one (array=...).")
    return name


def array_frames(file: Path, name: str | None = None) -> Iterator[np.ndarray]:
    """Frames of an array one after the other, without holding it. name: of NPZ; None: "frames", or the only one."""
    name = frames_array(file, name)
    stored = StoredArray(file) if name is None else StoredArray(file, name)
    grey = len(stored.shape) == 3 or (len(stored.shape) == 4 and stored.shape[3] == 1)
    if not (grey or (len(stored.shape) == 4 and stored.shape[3] == 3)) or 0 in stored.shape or stored.fortran:
        order = ", stored column by column" if stored.fortran else ""
        raise IngestError(
            f"{stored.where} is of shape {stored.shape}{order}, not frames.",
            "Give (frames, height, width), or (frames, height, width, 3) in colour without transparency, in C order.",
        )
    if stored.dtype.name not in WHOLE and stored.dtype.kind != "f":
        raise IngestError(
            f"{stored.where} holds {stored.dtype.name}, whose value of white is unknown.",
            "Save uint8, uint16, or floats of [0, 1].",
        )
    for number in range(len(stored)):
        frame = stored.take(1)[0]
        frame = frame[..., 0] if grey and frame.ndim == 3 else frame
        if stored.dtype.kind == "f":
            if not (np.isfinite(frame).all() and frame.min() >= 0 and frame.max() <= 1):
                raise IngestError(
                    f"Frame {number} of {stored.where} has pixels outside of [0, 1], or that are no numbers.",
                    "Divide by the value of white, and clip values that noise put outside.",
                )
            yield frame.astype(np.float32)
        else:
            yield frame.astype(np.float32) / np.float32(WHOLE[stored.dtype.name])


# --- video ----------------------------------------------------------------------------------------------------------


def video_frames(file: Path) -> Iterator[np.ndarray]:
    """Frames of a video file one after the other, by PyAV (FFmpeg). Raises IngestError, ExtraMissing."""
    with needs(f"The video {file}", "av", "Or save the frames as images or as an array in .npz."):
        import av
    number = 0
    try:
        with av.open(str(file)) as container:
            streams = container.streams.video
            if len(streams) != 1:
                raise IngestError(f"{file} has {len(streams)} video streams, not one.", "Keep only one.")
            promised = streams[0].frames
            streams[0].codec_context.options = {"err_detect": "explode"}
            for frame in container.decode(streams[0]):
                if frame.is_corrupt:
                    raise IngestError(f"Frame {number} of {file} is damaged.", "Copy or encode the file again.")
                yield _decoded(frame, file)
                number += 1
    except av.error.FFmpegError as error:
        told = f"{file} cannot be read as a video" if not number else f"{file} cannot be read from frame {number} on"
        raise IngestError(f"{told} ({error.strerror}).", "Check that the file is whole.") from error
    if number < max(promised, 1):
        raise IngestError(
            f"{file} says that it has {promised} frames, and ends after {number}.", "Copy or encode the file again."
        )


def declared_frames(file: Path) -> int:
    """Number of frames that a video file declares, 0 if none or if it cannot be read."""
    import av

    try:
        with av.open(str(file)) as container:
            return sum(int(stream.frames) for stream in container.streams.video)
    except av.error.FFmpegError:
        return 0


def _decoded(frame: Any, file: Path) -> np.ndarray:
    """(H, W) or (H, W, 3) float32 of a decoded frame."""
    form = frame.format
    if any(component.is_alpha for component in form.components):
        raise IngestError(f"{file} has transparent pixels ({form.name}).", "Encode it without an alpha channel.")
    if any(component.bits > 8 for component in form.components):
        raise IngestError(
            f"{file} has more than 8 bits a colour ({form.name}).", "Save the frames as an array of uint16 in .npz."
        )
    pixels = frame.to_ndarray(format="gray" if len(form.components) == 1 and not form.has_palette else "rgb24")
    return pixels.astype(np.float32) / np.float32(255)
