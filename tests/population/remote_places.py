"""Places behind URLs for the tests: what is copied there, damaged there, and how the S3 server is reached."""

import urllib.request
from pathlib import Path

from fedcore.population import arrays, layout
from fedcore.population.copying import copy_population
from fedcore.population.store import Population
from fedcore.rounds.caches import BLOCKS

BUCKET = "populations"


def forget_connections():
    """Stores read the environment once; a test that changes it starts afresh."""
    import fsspec

    arrays._open.cache_clear()
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    BLOCKS.clear()


def sign_on(monkeypatch, endpoint):
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    forget_connections()


def require_credentials(server, after: float):
    """The server checks credentials after so many requests."""
    urllib.request.urlopen(
        urllib.request.Request(
            f"{server}/moto-api/reset-auth", str(after).encode(), {"Content-Type": "text/plain"}, method="POST"
        )
    )


def copied(population, url) -> Population:
    copy_population(population.path, url)
    return Population.open(url)


def chunk(population, index, array):
    """(file system, path) of a chunk."""
    folder = layout.block_folder(population.path, population.blocks[index].slot) / array
    files = [file for file in folder.fs.find(folder.path) if not file.endswith("zarr.json")]
    return folder.fs, files[0]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in layout.files_of(folder)
        if file.name != layout.LOCK
    }


DAMAGES = {
    "deleted": lambda data: None,
    "truncated": lambda data: data[:-3],
    "emptied": lambda data: b"",
    "flipped": lambda data: bytes([data[0] ^ 4]) + data[1:],
}


def damage(population, index, array, kind):
    storage, path = chunk(population, index, array)
    data = DAMAGES[kind](storage.cat_file(path))
    storage.rm(path) if data is None else storage.pipe_file(path, data)
