"""A Dask cluster on this machine that nobody else on it can enter.

Whoever reaches the port of a Dask scheduler, worker or nanny runs code as its user, and every user of a machine reaches
its loopback interface. So all of them speak TLS and want the certificate of this one cluster, whose key is made anew
each time and handed to the workers through a pipe. Nothing else listens: Dask's HTTP servers, which know no password,
are not started. What the processes keep on disk lies in a folder that only their user can open, because Dask puts that
folder first on the path from which modules are imported.
"""

import datetime
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from distributed import Nanny, Scheduler, Security, SpecCluster, Worker
from distributed.core import Status
from distributed.worker_memory import parse_memory_limit

from fedcore.errors import WorkerFailed

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
ROLES = ("client", "scheduler", "worker")
VALID_DAYS = 3650  # longer than any run


class _WithoutHTTP:
    """Of a scheduler or a worker: starts no HTTP server."""

    def start_http_server(self, *_: object, **__: object) -> None:
        pass


class ClosedScheduler(_WithoutHTTP, Scheduler):
    pass


class ClosedWorker(_WithoutHTTP, Worker):
    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        logging.getLogger("distributed.worker").addFilter(self._worth_telling)

    def _worth_telling(self, record: logging.LogRecord) -> bool:
        """Not what becomes of a heartbeat when the worker is closed: connecting by TLS takes so long that a run of a
        second may end meanwhile.
        """
        return self.status not in (Status.closing, Status.closed) or "heartbeat" not in record.getMessage()


class ClosedNanny(Nanny):
    def __init__(self, scheduler: str, **options: Any):
        super().__init__(scheduler, **options | {"worker_class": ClosedWorker})


@contextmanager
def local_cluster(workers: int) -> Iterator[SpecCluster]:
    """A scheduler in this process, and this many workers of one thread in processes of their own. Raises WorkerFailed
    if one of them ends before it is ready."""
    security = own_certificate()
    everywhere = {"host": LOOPBACK, "protocol": "tls://", "security": security, "dashboard": False}
    each = everywhere | {
        "nthreads": 1,
        "memory_limit": parse_memory_limit("auto", 1, workers, logger=logger),
        "silence_logs": logging.ERROR,
    }
    with dask.config.set({"temporary-directory": own_folder()}):
        try:
            cluster = SpecCluster(
                scheduler={"cls": ClosedScheduler, "options": everywhere},
                workers={number: {"cls": ClosedNanny, "options": each} for number in range(workers)},
                security=security,
                silence_logs=logging.ERROR,
            )
        except (RuntimeError, OSError) as error:  # of the nanny: its process ended, or took too long
            raise WorkerFailed(
                f"the {workers} worker processes did not start on this machine ({error}).",
                "They may have run out of memory or processes: start fewer (--workers), or use this process alone "
                '(--local). A script must call fedcore below `if __name__ == "__main__":`.',
            ) from None
        with cluster:
            yield cluster


def own_certificate() -> Security:
    """What lets in the holders of a key that is made here and nobody else. As `Security.temporary`, whose RSA keys take
    a thousand times as long to make. It is in memory; each process writes it for a moment to a temporary folder of its
    user's, from where the TLS library reads it.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedcore local cluster")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .issuer_name(name)
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    pairs = {f"tls_{role}_cert": certificate for role in ROLES} | {f"tls_{role}_key": secret for role in ROLES}
    return Security(require_encryption=True, tls_ca_file=certificate, **pairs)


def own_folder() -> str:
    """Where the processes keep what they keep: a folder of this user's that nobody else can open. Always the same one,
    because Dask removes there what processes that were killed have left; a new one if somebody else has that name.
    """
    place = os.path.join(dask.config.get("temporary-directory") or tempfile.gettempdir(), f"fedcore-{os.getuid()}")
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        found = os.lstat(place)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return tempfile.mkdtemp(prefix="fedcore-", dir=os.path.dirname(place))
    return place
