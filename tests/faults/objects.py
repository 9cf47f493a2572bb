"""Object storage of a simulated machine: what S3 does, in this process. Every request is a point.

A put is whole or absent, and may say what it is for: only if there is no such object, or only over one version of it.
A put that its sender died of may arrive a second time.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from fsspec import AbstractFileSystem
from fsspec.registry import _registry, register_implementation

if TYPE_CHECKING:
    from tests.faults.machine import Machine

AFTER = 12  # points of the next process, until a late put arrives


class Refusal(Exception):
    """What botocore raises for a put whose condition does not hold."""

    response: ClassVar = {"Error": {"Code": "PreconditionFailed"}}


class Bucket:
    """What is stored, by path without the scheme."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.objects: dict[str, bytes] = {}
        self.late: Callable[[], None] | None = None
        self.late_path = ""
        self._last: tuple[str, Callable[[], None]] = "", lambda: None
        self._waits = False

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Inside, s3:// URLs are this bucket's."""
        bucket, before = self, _registry.get("s3")

        class Storage(ObjectStorage):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                self.bucket = bucket

        register_implementation("s3", Storage, clobber=True)
        try:
            yield
        finally:
            if before is None:
                _registry.pop("s3")
            else:
                register_implementation("s3", before, clobber=True)

    def put(self, path: str, content: bytes, new: bool, version: str | None) -> None:
        def arriving() -> None:
            there = self.objects.get(path)
            if new and there is not None:
                raise FileExistsError(path)
            if version is not None and there is None:
                raise FileNotFoundError(path)
            if version is not None and version_of(there) != version:
                raise OSError(errno.EINVAL, "A pre-condition did not hold") from Refusal()
            self.objects[path] = content

        self._last = path, arriving
        self.machine.reach("network", "put", path, arriving)

    # --- a second time ------------------------------------------------------------------------------------------------

    def will_arrive_again(self, *, late: bool) -> None:
        """The last put does; late: while the next process is at work, otherwise by `deliver_now`."""
        self.late_path, self.late = self._last
        self._waits = late

    def deliver(self, points: int) -> None:
        """Called at each point of a process, with the number of it."""
        if self._waits and self.late is not None and points == AFTER:
            self.deliver_now()

    def deliver_now(self) -> None:
        if self.late is not None:
            with suppress(OSError):  # refused
                self.late()
            self.late = None

    def forget(self, objects: dict[str, bytes]) -> None:
        self.objects, self.late, self.late_path, self._waits = dict(objects), None, "", False


def version_of(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


class ObjectStorage(AbstractFileSystem):
    """The few operations that fedcore uses."""

    protocol = ("s3", "s3a")
    cachable = False
    bucket: Bucket

    @classmethod
    def _strip_protocol(cls, path):
        return str(path).removeprefix("s3://").strip("/")

    def _read(self, kind: str, path: str, act: Callable[[], Any]) -> Any:
        return self.bucket.machine.reach("network", kind, path, act, reads=True)

    def _get(self, path: str) -> bytes:
        try:
            return self.bucket.objects[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def pipe_file(self, path, value, mode="overwrite", IfMatch=None, **_):  # noqa: N803 - as S3 calls it
        self.bucket.put(self._strip_protocol(path), bytes(value), mode == "create", IfMatch)

    def cat_file(self, path, start=None, end=None, **_):
        path = self._strip_protocol(path)
        return self._read("get", path, lambda: self._get(path)[start:end])

    def info(self, path, **_):
        path = self._strip_protocol(path)

        def looking():
            if path in self.bucket.objects:
                content = self.bucket.objects[path]
                return {"name": path, "size": len(content), "type": "file", "ETag": version_of(content)}
            if any(name.startswith(f"{path}/") for name in self.bucket.objects):
                return {"name": path, "size": 0, "type": "directory"}
            raise FileNotFoundError(path)

        return self._read("head", path, looking)

    def ls(self, path, detail=True, **_):
        path = self._strip_protocol(path)

        def listing():
            found = {}
            for name, content in self.bucket.objects.items():
                if name == path:
                    found[name] = {"name": name, "size": len(content), "type": "file"}
                elif name.startswith(f"{path}/"):
                    head, slash, _ = name[len(path) + 1 :].partition("/")
                    size, kind = (0, "directory") if slash else (len(content), "file")
                    found[f"{path}/{head}"] = {"name": f"{path}/{head}", "size": size, "type": kind}
            if not found:
                raise FileNotFoundError(path)
            return [found[name] for name in sorted(found)]

        listed = self._read("list", path, listing)
        return listed if detail else [info["name"] for info in listed]

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **_):
        path = self._strip_protocol(path)

        def finding():
            names = sorted(n for n in self.bucket.objects if n == path or n.startswith(f"{path}/"))
            return {n: {"name": n, "size": len(self.bucket.objects[n]), "type": "file"} for n in names}

        found = self._read("list", path, finding)
        return found if detail else list(found)

    def rm_file(self, path):
        path = self._strip_protocol(path)
        self.bucket.machine.reach("network", "delete", path, lambda: self.bucket.objects.pop(path, None))

    def rm(self, path, recursive=False, maxdepth=None):
        names = self.find(path)
        if not names:
            raise FileNotFoundError(path)
        for name in names:  # one request for each: more points than the one for a thousand that S3 has
            self.rm_file(name)

    def created(self, path):
        raise NotImplementedError

    def modified(self, path):
        raise NotImplementedError
