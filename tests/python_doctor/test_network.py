"""This machine's name and ports."""

import socket

from surroundings import only, system

from keepstep.doctor import network
from keepstep.doctor.finding import fine, warning
from keepstep.doctor.network import Resolved

RANGE = "proc/sys/net/ipv4/ip_local_port_range"


def test_debian_s_own_address_is_a_warning_with_the_line_for_etc_hosts():
    assert network.own_name("box", Resolved(("127.0.1.1",), 0.001), "10.0.0.7") == [
        warning(
            "host name",
            "'box' means 127.0.1.1 here, at which no other machine reaches this one; one machine alone works",
            "for several, let /etc/hosts say `10.0.0.7 box` (Debian writes 127.0.1.1), or give --rdzv-endpoint an "
            "address instead of this name (10.0.0.7)",
        )
    ]


def test_a_name_that_does_not_resolve_is_a_warning():
    finding = only(network.own_name("box", Resolved((), 0.1, "Name or service not known"), None))
    assert finding.level == "warning"
    assert finding.found == "'box' does not resolve: Name or service not known"
    assert "instead of this name (ip addr lists them)" in finding.advice


def test_a_slow_answer_is_a_warning():
    finding = only(network.own_name("box", Resolved(("10.0.0.7",), 5.04), "10.0.0.7"))
    assert finding.found == "'box' means 10.0.0.7, and it took 5.0 s to find out"


def test_a_name_with_an_address_that_peers_can_use_is_fine():
    found = Resolved(("10.0.0.7", "fd00::7"), 0.001)
    assert network.own_name("box", found, "10.0.0.7") == [fine("host name", "'box' means 10.0.0.7, fd00::7")]


def test_names_are_resolved():
    assert network.resolve("127.0.0.1").addresses == ("127.0.0.1",)
    for name in ("no such host", "a..b", "x" * 300):
        missing = network.resolve(name)
        assert missing.addresses == () and missing.problem


def test_a_port_in_use_is_a_warning(tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        assert network.bind_problem(taken.getsockname()[1]) == "it is in use"
    finding = only(network.ports(system(tmp_path, {RANGE: "32768\t60999\n"}), "it is in use"))
    assert finding.level == "warning"
    assert finding.found == "nobody can listen at 29400, where jobs of several nodes meet: it is in use"


def test_few_ports_are_a_warning(tmp_path):
    finding = only(network.ports(system(tmp_path, {RANGE: "60000\t60099\n"}), ""))
    assert finding.found == "ranks and connections get the ports 60000 to 60099: few, if there are many ranks"
    assert finding.advice == "sysctl net.ipv4.ip_local_port_range='32768 60999'"


def test_the_usual_ports_are_fine(tmp_path):
    usual = system(tmp_path, {RANGE: "32768\t60999\n"})
    assert network.ports(usual, "") == [fine("ports", "29400 is free; connections get 32768 to 60999")]
    assert network.ports(usual, None) == [fine("ports", "connections get 32768 to 60999")]
