import logging

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.population.writer import PopulationWriter

from .remote_places import BUCKET, forget_connections, sign_on


def some_counts(clients: int, features: int = 7, seed: int = 0) -> sp.csr_matrix:
    generator = np.random.default_rng(seed)
    dense = generator.integers(1, 9, (clients, features)) * (generator.random((clients, features)) < 0.4)
    return sp.csr_matrix(dense.astype(np.int64))


def some_rows(clients: int, features: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 6, clients)
    x = generator.normal(size=(int(lengths.sum()), features)).astype(np.float32)
    x[generator.random(x.shape) < 0.1] = np.nan
    return np.concatenate([[0], np.cumsum(lengths)]), x


def names(first: int, clients: int) -> list[str]:
    return [f"user {number}" for number in range(first, first + clients)]


@pytest.fixture
def counts_population(tmp_path):
    """23 clients in leaves of 4 and blocks of 8, with held-out counts."""
    with PopulationWriter(tmp_path / "p", "counts", 7, clients_per_leaf=4, clients_per_block=8) as writer:
        writer.write(names(0, 23), some_counts(23), some_counts(23, seed=1))
        return writer.commit()


@pytest.fixture
def rows_population(tmp_path):
    """10 clients with dense rows, in leaves and blocks of 4."""
    with PopulationWriter(tmp_path / "p", "rows", 3, clients_per_leaf=4, clients_per_block=4) as writer:
        writer.write(names(0, 10), some_rows(10))
        return writer.commit()


@pytest.fixture(scope="session")
def server():
    """The URL of an S3 server with one bucket."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    found = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    found.start()
    host, port = found.get_host_and_port()
    yield f"http://{host}:{port}"
    found.stop()


@pytest.fixture
def s3(server, monkeypatch, tmp_path):
    """A fresh folder of the bucket."""
    import fsspec

    sign_on(monkeypatch, server)
    storage = fsspec.filesystem("s3")
    if not storage.exists(BUCKET):
        storage.mkdir(BUCKET)
    yield f"s3://{BUCKET}/{tmp_path.name}"
    monkeypatch.undo()
    forget_connections()


@pytest.fixture(params=["memory", "s3"])
def base(request, tmp_path):
    """A fresh folder behind a URL: in this process, or on a server."""
    return request.getfixturevalue("s3") if request.param == "s3" else f"memory://{tmp_path.name}"


@pytest.fixture
def memory(tmp_path):
    return f"memory://{tmp_path.name}"
