"""Frames as sources: folders of images, arrays and video files become clients of consecutive frames."""

import builtins

import numpy as np
import pytest
from PIL import Image

from fedcore.errors import ExtraMissing, IngestError
from fedcore.population.ingest.ingest import ingest
from fedcore.population.store import Population

GREY = (np.arange(7 * 6 * 8).reshape(7, 6, 8) * 37 % 256).astype(np.uint8)
COLOUR = np.stack([GREY, 255 - GREY, GREY // 2], -1)


def rows_of(population: Population) -> tuple[list[str], list[int], np.ndarray]:
    blocks = [population.read(index) for index in range(len(population.blocks))]
    ids = [str(one) for index in range(len(population.blocks)) for one in population.client_ids(index)]
    return ids, [int(n) for block in blocks for n in np.diff(block.ptr)], np.concatenate([b.x for b in blocks])


def folder(path, frames, suffix=".png"):
    path.mkdir()
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(path / f"{number:03d}{suffix}")
    return path


def test_arrays_in_blocks_of_frames(tmp_path):
    np.savez(tmp_path / "clip.npz", frames=COLOUR)
    options, seen = {"format": "frames", "frames_per_client": 2, "frame_stride": 2}, []
    made = ingest(tmp_path / "clip.npz", tmp_path / "p", progress=lambda *step: seen.append(step), **options)
    assert seen == [(429, 1000), (1000, 1000), (1000, 1000)]  # 3 of 7 frames, all, and the end of the file
    ids, sizes, x = rows_of(made)
    assert (ids, sizes) == (["clip.npz:000000", "clip.npz:000004"], [2, 2])
    np.testing.assert_array_equal(x, COLOUR[::2].reshape(4, -1).astype(np.float32) / np.float32(255))
    assert made.manifest.image == (6, 8) and made.features == 6 * 8 * 3 and made.manifest.dtype == "float32"


@pytest.mark.slow
def test_folders_are_cameras_and_more_may_come(tmp_path):
    folder(tmp_path / "a", GREY[:3])
    folder(tmp_path / "b", GREY[3:5])
    made = ingest([tmp_path / "a", tmp_path / "b"], tmp_path / "p", frames_per_client=2)
    ids, sizes, x = rows_of(made)
    assert (ids, sizes) == (["a:000000", "a:000002", "b:000000"], [2, 1, 2])
    np.testing.assert_array_equal(x, GREY[:5].reshape(5, -1).astype(np.float32) / np.float32(255))
    more = ingest(folder(tmp_path / "c", GREY[5:]), tmp_path / "p", append=True)
    assert rows_of(more)[0] == [*ids, "c:000000"]
    with pytest.raises(IngestError, match="are in .* already"):
        ingest(tmp_path / "c", tmp_path / "p", append=True)


@pytest.mark.slow
def test_depths(tmp_path):
    deep = GREY.astype(np.uint16) * 257
    np.save(tmp_path / "deep.npy", deep)
    Image.fromarray(deep[0]).save(tmp_path / "deep.png")
    np.save(tmp_path / "real.npy", GREY / 255)
    for name in ("deep.npy", "deep.png", "real.npy"):
        made = ingest(tmp_path / name, tmp_path / name.replace(".", "-"), format="frames")
        np.testing.assert_allclose(rows_of(made)[2][0], GREY[0].ravel() / 255, atol=1e-6)


def other_size(path):
    frames = folder(path / "f", GREY[:2])
    Image.fromarray(GREY[0][:5]).save(frames / "zz.png")
    return frames


def other_colours(path):
    frames = folder(path / "f", GREY[:2])
    Image.fromarray(COLOUR[0]).save(frames / "zz.png")
    return frames


def saved(name, array):
    def write(path):
        np.save(path / name, array)
        return path / name

    return write


def image(mode):
    def write(path):
        Image.fromarray(COLOUR[0]).convert(mode).save(path / "one.png" if mode != "CMYK" else path / "one.tif")
        return path / ("one.png" if mode != "CMYK" else "one.tif")

    return write


def deep_colour(path):
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"\0" + bytes(12)))
    (path / "one.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b""))
    return path / "one.png"


def cut_image(path):
    frames = folder(path / "f", np.repeat(np.repeat(GREY, 20, 1), 20, 2)[:2])
    whole = (frames / "001.png").read_bytes()
    (frames / "001.png").write_bytes(whole[: len(whole) // 2])
    return frames


def stray(path):
    frames = folder(path / "f", GREY[:2])
    (frames / "notes.txt").write_text("sunny")
    return frames


@pytest.mark.parametrize(
    "source, told",
    [
        (other_size, "5 x 8, the first one of f of 6 x 8"),
        (other_colours, "6 x 8 in colour, the first one"),
        (saved("a.npy", np.zeros((2, 6, 8, 4), np.uint8)), "not frames"),
        (saved("a.npy", np.zeros((2, 6, 8), np.int64)), "whose value of white is unknown"),
        (saved("a.npy", np.full((2, 6, 8), 1.5)), r"outside of \[0, 1\]"),
        (saved("a.npy", np.full((2, 6, 8), np.nan)), "no numbers"),
        (image("RGBA"), "transparent"),
        (image("CMYK"), "mode CMYK"),
        (deep_colour, "16 bits a colour"),
        (cut_image, "cannot be read as an image"),
        (stray, "notes.txt is in the folder of frames"),
    ],
)
def test_nothing_is_left_out_silently(tmp_path, source, told):
    with pytest.raises(IngestError, match=told):
        ingest(source(tmp_path), tmp_path / "p", format="frames")
    assert not (tmp_path / "p").exists()


# --- video ----------------------------------------------------------------------------------------------------------


def video(path, frames, codec="libx264rgb", form="rgb24"):
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], form
        stream.options = {"crf": "0"} if "264" in codec else {}
        for frame in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format=form)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


BIG = np.repeat(np.repeat(COLOUR, 4, 1), 4, 2)


def test_a_video_file_is_a_sequence(tmp_path):
    made = ingest(video(tmp_path / "clip.mp4", BIG), tmp_path / "p", frames_per_client=4, frame_stride=3)
    ids, sizes, x = rows_of(made)
    assert (ids, sizes) == (["clip.mp4:000000"], [3])
    np.testing.assert_allclose(x * 255, BIG[::3].reshape(3, -1), atol=1e-3)


def test_bad_video_files(tmp_path, monkeypatch):
    whole = video(tmp_path / "clip.mp4", BIG)
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "cut.avi").write_bytes(video(tmp_path / "a.avi", BIG, "rawvideo", "bgr24").read_bytes()[:9000])
    video(tmp_path / "deep.mkv", BIG, "ffv1", "yuv444p10le")
    video(tmp_path / "clear.mkv", BIG, "ffv1", "bgra")
    for name, told in (
        ("text.mp4", "cannot be read as a video"),
        ("cut.avi", "says that it has 7 frames, and ends after|cannot be read from frame|damaged"),
        ("deep.mkv", "more than 8 bits"),
        ("clear.mkv", "transparent"),
    ):
        with pytest.raises(IngestError, match=told):
            ingest(tmp_path / name, tmp_path / "p")
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "av":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ExtraMissing, match=r"not installed.*\[video\].*\.npz"):
        ingest(whole, tmp_path / "p")
