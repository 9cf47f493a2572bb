"""Registration: frames of a camera that shakes are moved back onto the background before they are summed.

    frame(p + s) = g B(p) + o + ...        s: shift of the frame in pixels, down and across, with fractions

In the first round each client looks for the shifts of its frames. If more than MANY of all frames are moved, the later
rounds register every frame; else nothing is changed. A shift is found in two steps. The correlation of phases gives
whole pixels n. The rest f = n - s follows from the regression of the frame (`fedcore.methods.background.codes`), to
which the two differences of the background are added as further images:

    frame(p + n) = B(p + f) = B + f dB + f' ddB f / 2, about

So a frame is moved by whole pixels only, and is not made smoother. What comes from beyond the border has weight 0.
Frames are compared by pixels so far from the border that every frame has them.

Source: Kuglin, Hines, "The phase correlation image alignment method" (1975); Lucas, Kanade, "An iterative image
registration technique" (1981).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.methods.background.codes import Codes, codes_of
from fedcore.rounds.pictures import shifted

FARTHEST, LEAST_REACH = 1 / 12, 3  # shift that is looked for, of the shorter side of a picture, and in pixels
FRACTION = 0.6  # of a pixel, from which on a frame is moved by a whole one more
TRIES = 3  # regressions of a frame
SMOOTH = 0.1  # cycles per pixel: higher ones, in which a frame may find its own noise in the mean image, count less
MOVED = 0.5  # pixels from which on a frame counts as moved
MANY = 0.2  # share of moved frames beyond which all are registered
FRACTIONS = 5  # images of fractions of a pixel: two first differences, three second ones


class Registered(NamedTuple):
    """frames: (n, d) moved back onto the background, with what would be expected where nothing is known; codes: of
    them, their modes those of `Registration.images`; whole, shifts: (n, 2) whole pixels that they were moved back by,
    and their shifts with fractions, down and across; beyond: of each frame the parts (rows, columns) where nothing is
    known."""

    frames: np.ndarray
    codes: Codes
    whole: np.ndarray
    shifts: np.ndarray
    beyond: list[list[tuple[slice, slice]]]

    def only(self, frames: np.ndarray) -> Registered:
        """Those of the frames (n,) bool."""
        codes = Codes(*(part[frames] for part in self.codes))
        beyond = [parts for parts, kept in zip(self.beyond, frames, strict=True) if kept]
        return Registered(self.frames[frames], codes, self.whole[frames], self.shifts[frames], beyond)


class Registration:
    """Compares frames with a background. images: (1 + extra + K, d) background, `extra` images of fractions, modes."""

    def __init__(
        self, images: np.ndarray, energies: np.ndarray, pixels: np.ndarray, picture: tuple[int, int] | None
    ) -> None:
        """images: (1 + K, d) background and modes; energies: (K,); pixels: numbers of those that frames are compared
        by; picture: (height, width), or None if frames are taken as they are."""
        self.images, self.energies, self.pixels, self.extra = images, energies, pixels, 0
        if picture is not None:
            height, width = picture
            self.shape = (height, width, images.shape[1] // (height * width))
            self.reach = max(LEAST_REACH, int(min(picture) * FARTHEST))
            self.extra = FRACTIONS
            down, across = np.divmod(pixels // self.shape[2], width)
            nearest = np.min([down, height - 1 - down, across, width - 1 - across], axis=0)  # to a border
            self.pixels = pixels[nearest >= self.reach]
            self.images = np.concatenate([images[:1], differences(images[0].reshape(self.shape)), images[1:]])
            self.window = np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1]).astype(np.float32)
            frequencies = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
            smooth = np.exp(-0.5 * (frequencies / SMOOTH) ** 2).astype(np.float32)
            self.phases = smooth * np.conj(self._phases(images[:1]))
            self.energies = np.concatenate([np.ones(2), energies])
        columns = np.r_[0:3, 1 + FRACTIONS : len(self.images)] if self.extra else slice(None)
        self.samples = self.images[columns][:, self.pixels]

    def __call__(self, frames: np.ndarray) -> Registered:
        """frames: (n, d)."""
        count = len(frames)
        whole = np.zeros((count, 2), np.int64)
        if not self.extra:
            codes = codes_of(frames[:, self.pixels], self.samples, self.energies)
            return Registered(frames, codes, whole, np.zeros((count, 2)), [[]] * count)
        whole = self.whole_shifts(frames)
        codes, fractions = self._codes(frames, whole)
        for _ in range(TRIES - 1):
            steps = np.where(np.abs(fractions) > FRACTION, np.rint(fractions), 0.0)
            better = np.clip(whole - steps, -self.reach, self.reach)
            again = np.flatnonzero((better != whole).any(axis=1) & codes.shown)
            if not len(again):
                break
            whole[again] = better[again].astype(np.int64)
            new, fractions[again] = self._codes(frames[again], whole[again])
            for part, of_part in zip(codes, new, strict=True):
                part[again] = of_part
        return self._moved(frames, codes, whole, fractions)

    def _phases(self, rows: np.ndarray) -> np.ndarray:
        """(n, H, W / 2 + 1) phases of frames (n, d) in grey, faded out to the borders."""
        height, width, channels = self.shape
        grey = rows.reshape(-1, channels).astype(np.float32) @ np.ones(channels, np.float32)
        grey = grey.reshape(-1, height, width)
        grey -= grey.mean(axis=(1, 2), keepdims=True)
        found: np.ndarray = np.fft.rfft2(grey * self.window)
        found /= np.maximum(np.abs(found), np.finfo(np.float32).tiny)
        return found

    def whole_shifts(self, frames: np.ndarray) -> np.ndarray:
        """(n, 2) int64 down and across: the largest correlation of phases of frames (n, d) with the background."""
        with np.errstate(all="ignore"):  # frames that do not show the scene may hold anything
            peaks = np.fft.irfft2(self._phases(frames) * self.phases, self.shape[:2])
        near = np.arange(-self.reach, self.reach + 1)
        best = peaks[:, near[:, None], near].reshape(len(frames), -1).argmax(axis=1)
        return np.stack(np.divmod(best, len(near)), axis=1) - self.reach

    def _codes(self, frames: np.ndarray, whole: np.ndarray) -> tuple[Codes, np.ndarray]:
        """(codes of frames that are moved back by whole pixels, (n, 2) fractions of a pixel that remain)."""
        offsets = (whole[:, 0] * self.shape[1] + whole[:, 1]) * self.shape[2]
        samples = np.take_along_axis(frames, self.pixels + offsets[:, None], axis=1)
        codes = codes_of(samples, self.samples, self.energies)
        return codes, codes.modes[:, :2] / np.where(codes.shown, codes.gains, 1.0)[:, None]

    def _moved(self, frames: np.ndarray, codes: Codes, whole: np.ndarray, fractions: np.ndarray) -> Registered:
        f, g = fractions, codes.gains[:, None]
        seconds = g * np.stack([f[:, 0] ** 2 / 2, f[:, 1] ** 2 / 2, f[:, 0] * f[:, 1]], axis=1)
        codes = codes._replace(modes=np.concatenate([codes.modes[:, :2], seconds, codes.modes[:, 2:]], axis=1))
        back, beyond = np.empty_like(frames), [outside(by, self.shape[:2]) for by in whole]
        pictures, images = back.reshape(-1, *self.shape), self.images.reshape(-1, *self.shape)
        for number, parts in enumerate(beyond):
            one = shifted(frames[number].reshape(self.shape), -whole[number])
            for part in parts:
                known = np.tensordot(codes.modes[number], images[(slice(1, None), *part)], 1)
                one[part] = codes.gains[number] * images[(0, *part)] + codes.offsets[number] + known
            pictures[number] = one
        return Registered(back, codes, whole, whole - fractions, beyond)

    def where_known(self, total: np.ndarray, registered: Registered, weights: np.ndarray) -> np.ndarray:
        """total (d,), a sum over frames with these weights (n,), without those that do not show a pixel."""
        if not self.extra:
            return total
        known = total.reshape(self.shape).astype(np.float64)
        for weight, parts in zip(weights, registered.beyond, strict=True):
            for part in parts:
                known[part] -= weight
        return np.maximum(known, 0.0).ravel()

    def in_place(self, registered: Registered, backgrounds: np.ndarray) -> np.ndarray:
        """Backgrounds (n, d) of registered frames, moved to where the camera saw them; at the border the nearest pixel
        repeats."""
        if not self.extra:
            return backgrounds
        moved = [shifted(one.reshape(self.shape), by) for one, by in zip(backgrounds, registered.whole, strict=True)]
        return np.stack(moved).reshape(backgrounds.shape)


def outside(by: np.ndarray, size: tuple[int, int]) -> list[tuple[slice, slice]]:
    """Parts, which do not overlap, of a picture that a frame moved back by whole pixels (down, across) leaves free."""
    (down, across), (height, width) = map(int, by), size
    rows = slice(height - down, height) if down > 0 else slice(0, -down)
    columns = slice(width - across, width) if across > 0 else slice(0, -across)
    rest = slice(0, height - down) if down > 0 else slice(-down, height)
    found = [(rows, slice(0, width)), (rest, columns)]
    return [part for part in found if part[0].start < part[0].stop and part[1].start < part[1].stop]


def differences(image: np.ndarray) -> np.ndarray:
    """(5, d) of an image (H, W, C): first differences down and across, second ones, and the mixed one."""
    down, across = np.gradient(image, axis=(0, 1))
    edged = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge")
    twice_down = edged[2:, 1:-1] - 2 * image + edged[:-2, 1:-1]
    twice_across = edged[1:-1, 2:] - 2 * image + edged[1:-1, :-2]
    mixed = np.gradient(down, axis=1)
    return np.stack([down, across, twice_down, twice_across, mixed]).reshape(FRACTIONS, -1)


def moved_frames(found: Registered) -> int:
    """Number of the frames that show the scene farther than MOVED from the background's place."""
    return int((found.codes.shown & (np.abs(found.shifts).max(axis=1) > MOVED)).sum())
