"""What `tests.sites.hosts` and its relay compute; the hosts themselves need root and minutes."""

import ipaddress
import os
import subprocess
from dataclasses import replace
from itertools import combinations

import pytest

pytest.importorskip("moto.server", reason="moto is not installed")

from tests.namespaces import reachable
from tests.relay import Conversation, Request
from tests.sites import hosts
from tests.sites.costs import costs


def test_no_cable_joins_two_sites(tmp_path):
    made = replace(hosts.hosts_at(tmp_path), tag="t")
    commands = made.wiring()
    cables = [command.split() for command in commands if " type veth " in command]
    assert [{cable[2], cable[-1]} for cable in cables] == [{f"t-{site}", "t-server"} for site in hosts.NAMES]
    assert any("t-server sysctl -qw net.ipv4.ip_forward=0" in command for command in commands)
    assert not any(" route " in command for command in commands)
    nets = [ipaddress.ip_network(f"{made.address(site, 1)}/30", strict=False) for site in hosts.NAMES]
    assert not any(one.overlaps(other) for one, other in combinations(nets, 2))
    assert all(ipaddress.ip_address(made.address(site, 2)) in net for site, net in zip(hosts.NAMES, nets, strict=True))


def test_a_folder_that_is_closed_to_others_is_mounted_again(tmp_path):
    assert reachable(type(tmp_path)("/usr")) == "true"
    (inside := tmp_path / "shut" / "in it").mkdir(parents=True)
    os.chmod(tmp_path / "shut", 0o700)
    code = reachable(inside)
    assert str(inside) in code and subprocess.run(["sh", "-nc", code]).returncode == 0


def test_requests_of_a_connection_are_counted():
    clock = iter(range(1, 9)).__next__
    talk = Conversation("a", clock)
    put = b"PUT /study/x/runs/1/2.answer.a HTTP/1.1\r\nHost: s\r\nContent-Length: 3\r\n\r\n"
    talk.sent(put)
    talk.received(b"HTTP/1.1 100 Continue\r\n\r\n")
    talk.sent(b"abc")
    talk.sent(b"GET /study/x/runs/1/2.answer.b?v=1 HTTP/1.1\r\n\r\n")
    talk.received(b"HTTP/1.1 404 NOT FOUND\r\n")
    talk.received(b"\r\nno")
    assert talk.made == [
        Request("a", "PUT", "/study/x/runs/1/2.answer.a", 1, 3, 100, len(put) + 3, 25, 2),
        Request("a", "GET", "/study/x/runs/1/2.answer.b", 3, 0, 404, 47, 28, 5),
    ]


def test_costs_of_a_round():
    def asked(site, method, name, start, status=206, body=0, cut=False):
        return Request(site, method, f"/s/x/runs/1/{name}", start, body, status, 0, 0, start + 0.5, cut)

    made = []
    for site, other, late in (("a", "b", 0), ("b", "a", 2)):
        for name, at in (("member", 0), ("1.answer", 10)):
            made += [
                asked(site, "PUT", f"{name}.{site}", at + late, 200, 424 + late),
                asked(site, "GET", f"{name}.{other}", at + 3 + late),
            ]
    made += [asked("a", "GET", "1.answer.b", 11, 404), asked("a", "GET", "end.b", 11.2, 404)]
    made += [asked("a", "GET", "1.answer.b", 12, 206, cut=True)]
    made += [asked("a", "PUT", "2.answer.a", 20)]  # b has not answered
    (row,) = costs(sorted(made, key=lambda one: one.start), ("a", "b"))
    assert row == {
        "study": "s/x",
        "run": 1,
        "round": 1,
        "seconds": 10.0,  # from 5.5 to 15.5, at b
        "work": 6.5,  # both, from 3.5 to 10 and from 5.5 to 12
        "requests": 2,
        "waiting": 2,
        "bytes": 426,
    }
