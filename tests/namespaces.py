"""Hosts of their own on one machine, for heavy commands, as root: each has a network namespace, a name, a user
and a folder.

Each host is joined to the server's by one cable. All that the hosts send each other passes a relay at the server
(`tests.relay`), which is late and cuts connections. Nothing is forwarded.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.relay import Request, requests

ROOT = Path(__file__).parents[1]
PORT = 9000  # of the store
LIMIT = 1500.0  # seconds, for any process that is waited for
SERVER = "server"


@dataclass
class Hosts:
    """The hosts and the processes on them. All that it starts ends with it.

    net: the first two numbers of all addresses. first_user: id of the server's user; the next ones are of `names`.
    meet: whether each host has a route to the server's ends of all cables, where the relay listens for others; else it
    reaches its own end only. more: variables of the environment, by host.
    """

    folder: Path
    names: Sequence[str]
    net: str
    first_user: int
    meet: bool = False
    more: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tag: str = field(default_factory=lambda: f"hosts{os.getpid()}")
    running: list[subprocess.Popen[Any]] = field(default_factory=list)

    def address(self, name: str, end: int) -> str:
        """Of the cable between the server (end 1) and a host (end 2)."""
        return f"{self.net}.{self.names.index(name) + 1}.{end}"

    def user(self, name: str) -> int:
        return self.first_user + (SERVER, *self.names).index(name)

    def home(self, name: str) -> Path:
        return self.folder / name

    def inside(self, name: str) -> list[str]:
        """What makes a command one of this host, still as root."""
        return ["ip", "netns", "exec", f"{self.tag}-{name}"]

    def wiring(self) -> list[str]:
        """Commands that make the hosts: a star, whose centre forwards nothing."""
        hub = f"{self.tag}-{SERVER}"
        made = [f"ip netns add {hub}", f"ip -n {hub} link set lo up"]
        made += [f"ip netns exec {hub} sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.disable_ipv6=1"]
        for name in self.names:
            own = f"{self.tag}-{name}"
            made += [
                f"ip netns add {own}",
                f"ip -n {own} link set lo up",
                f"ip -n {own} link add cable type veth peer name to-{name} netns {hub}",
                f"ip -n {own} addr add {self.address(name, 2)}/30 dev cable",
                f"ip -n {hub} addr add {self.address(name, 1)}/30 dev to-{name}",
                f"ip -n {hub} link set to-{name} up",
                *self.plugging(name, True),
            ]
        return made

    def plugging(self, name: str, works: bool) -> list[str]:
        """Commands that plug a host's cable in, or pull it out: all that was sent, and will be, is lost."""
        own = f"{self.tag}-{name}"
        if not works:
            return [f"ip -n {own} link set cable down"]
        route = [f"ip -n {own} route add default via {self.address(name, 1)}"] if self.meet else []
        return [f"ip -n {own} link set cable up", *route]

    def plug(self, name: str, works: bool) -> None:
        for command in self.plugging(name, works):
            subprocess.run(command.split(), check=True)

    def start(self, name: str, *command: str, output: str = "output") -> subprocess.Popen[Any]:
        """A process at this host, as its user, in its folder; its process id is that of the command."""
        home = self.home(name)
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(home),
            "USER": name,
            "LOGNAME": name,
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_DATA_HOME": str(home / "data"),
            "AWS_ENDPOINT_URL": f"http://{self.address(name, 1)}:{PORT}" if name in self.names else "",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "OMP_NUM_THREADS": "1",
            **self.more.get(name, {}),
        }
        user = self.user(name)
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs", "--"]
        script = f'echo {name} > /proc/sys/kernel/hostname && {reachable(Path(sys.base_prefix))} && exec "$@"'
        with open(home / output, "ab") as log:
            made = subprocess.Popen(
                [*self.inside(name), "unshare", "--uts", "sh", "-c", script, "sh", *become, *command],
                cwd=home,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.running.append(made)
        return made

    def at_all(self, script: str) -> None:
        """A shell script at all hosts at the same time. Raises AssertionError with what it printed."""
        started = {name: self.start(name, "sh", "-ec", script) for name in self.names}
        for name, process in started.items():
            if process.wait(LIMIT) != 0:
                raise AssertionError(f"{name}: {(self.home(name) / 'output').read_text()[-2000:]}")

    def says(self, name: str, *command: str) -> str:
        """What a command at a host prints."""
        output = f"said-{len(self.running)}"
        code = self.start(name, *command, output=output).wait(LIMIT)
        text = (self.home(name) / output).read_text()
        assert code == 0, f"{name}: {text[-2000:]}"
        return text

    def log(self) -> list[Request]:
        file = self.home(SERVER) / "requests"
        return requests(file.read_text().splitlines()) if file.exists() else []

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
        for process in self.running:
            process.wait()
        for name in (SERVER, *self.names):
            subprocess.run(["ip", "netns", "del", f"{self.tag}-{name}"], capture_output=True)


def reachable(python: Path) -> str:
    """Shell code that lets other users execute this Python if a folder above it is closed to them: it is mounted again
    in the mount namespace of one command alone.
    """
    closed = next((folder for folder in [*python.parents][::-1] if not folder.stat().st_mode & 0o001), None)
    if closed is None:
        return "true"
    there, kept = shlex.quote(str(python)), shlex.quote(str(closed))
    return (
        f"mount --bind {there} /mnt && mount -t tmpfs -o mode=755 none {kept} && mkdir -p {there} "
        f"&& mount --bind /mnt {there} && umount /mnt"
    )


@contextmanager
def serving(made: Hosts, **relay: Any) -> Iterator[Hosts]:
    """The hosts, with a relay at the server's; relay: its settings, besides the hosts, the port and its files."""
    try:
        made.folder.mkdir(mode=0o755, parents=True)
        for command in made.wiring():
            subprocess.run(command.split(), check=True)
        for name in (SERVER, *made.names):
            made.home(name).mkdir(mode=0o700)
            os.chown(made.home(name), made.user(name), made.user(name))
        config = {"port": PORT, "log": "requests", "ready": "ready", **relay}
        config["hosts"] = {made.address(name, 2): name for name in made.names}
        (made.home(SERVER) / "config.json").write_text(json.dumps(config))
        os.chmod(made.home(SERVER) / "config.json", 0o644)
        made.start(SERVER, sys.executable, "-m", "tests.relay", "config.json")
        until(lambda: (made.home(SERVER) / "ready").exists(), 120)
        yield made
    finally:
        made.end()


def until(come: Callable[[], bool], seconds: float, pause: float = 0.5) -> None:
    last = time.monotonic() + seconds
    while not come():
        if time.monotonic() > last:
            raise AssertionError(f"this did not come in {seconds:g} seconds")
        time.sleep(pause)
