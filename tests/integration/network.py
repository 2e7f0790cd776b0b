"""Nodes in network namespaces of their own, all on one switch, for faults of the network between them.

Silence (what `iptables -j DROP` does) is made of the kernel's IPsec policies, which `ip` can set: action `block` drops
what comes in and tells nobody. Needs root and `ip`; `why_not()` says what is missing.
"""

import json
import subprocess
import uuid
from contextlib import contextmanager

from keepstep.bench.harness.namespaces import Node, why_not
from several_nodes import start_node

__all__ = ["Network", "network", "why_not"]

ENDPOINT_PORT = 29400


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, f"`{' '.join(map(str, words))}`: {done.stderr}"
    return done.stdout


class Network:
    def __init__(self, count):
        tag = uuid.uuid4().hex[:6]
        self.switch = f"ks-{tag}-sw"
        self.nodes = [Node(f"ks-{tag}-{i}", f"ks{tag}{i}", f"10.78.0.{i + 1}") for i in range(count)]
        self.endpoint = f"{self.nodes[0].ip}:{ENDPOINT_PORT}"

    def build(self):
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "switch", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "switch", "up")
        for node in self.nodes:
            run("ip", "netns", "add", node.namespace)
            run(
                "ip", "link", "add", node.device, "netns", node.namespace, "type", "veth",
                "peer", "name", node.device, "netns", self.switch,
            )  # fmt: skip
            run("ip", "-n", self.switch, "link", "set", node.device, "master", "switch", "up")
            run("ip", "-n", node.namespace, "addr", "add", f"{node.ip}/24", "dev", node.device)
            run("ip", "-n", node.namespace, "link", "set", node.device, "up")
            run("ip", "-n", node.namespace, "link", "set", "lo", "up")

    def remove(self):
        for namespace in (*(node.namespace for node in self.nodes), self.switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)

    def start(self, folder, rank, script, *script_args, on=None, **how):
        """A launcher with --node-rank `rank`, on node `on` of this network (the one of that number)."""
        inside = self.nodes[rank if on is None else on]
        return start_node(folder, rank, self.endpoint, script, *script_args, prefix=inside.command(), **how)

    # ---- faults

    def silence(self, a, b, ports=None):
        """Nothing reaches `b` from `a` any more, nor the other way; nobody is told. `ports`: by node, only what goes to
        these ports there."""
        for here, there in ((a, b), (b, a)):
            for port in ports[here] if ports else [None]:
                which = [] if port is None else ["proto", "tcp", "dport", port]
                run(
                    "ip", "-n", self.nodes[here].namespace, "xfrm", "policy", "add", "dir", "in",
                    "src", f"{self.nodes[there].ip}/32", "dst", f"{self.nodes[here].ip}/32", *which, "action", "block",
                )  # fmt: skip

    def let_only_endpoint_through(self, a, b):
        """A firewall at `b` drops all TCP from `a` but what belongs to connections with the endpoint, node 0's."""
        src_dst = ["src", f"{self.nodes[a].ip}/32", "dst", f"{self.nodes[b].ip}/32", "proto", "tcp"]
        for which, priority, action in (
            (["dport", ENDPOINT_PORT], 1, "allow"),
            (["sport", ENDPOINT_PORT], 1, "allow"),
            ([], 2, "block"),
        ):
            run(
                "ip", "-n", self.nodes[b].namespace, "xfrm", "policy", "add", "dir", "in", *src_dst, *which,
                "priority", priority, "action", action,
            )  # fmt: skip

    def heal(self):
        for node in self.nodes:
            run("ip", "-n", node.namespace, "xfrm", "policy", "flush")

    def unplug(self, node):
        run("ip", "-n", self.switch, "link", "set", self.nodes[node].device, "down")

    def limit(self, node, rate):
        """What `node` sends goes out at no more than `rate`, say "400kbit". None: at full speed again."""
        device = ("dev", self.nodes[node].device, "root")
        if rate is None:
            run("tc", "-n", self.nodes[node].namespace, "qdisc", "del", *device)
        else:
            run("tc", "-n", self.nodes[node].namespace, "qdisc", "add", *device, "tbf", "rate", rate,
                "burst", "32kb", "latency", "1500ms")  # fmt: skip

    def why_no_delay(self):
        """Why this kernel cannot delay what a node sends; None if it can."""
        device = ("dev", self.nodes[0].device, "root")
        done = subprocess.run(
            ["tc", "-n", self.nodes[0].namespace, "qdisc", "add", *device, "netem", "delay", "1ms"],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            return f"tc netem is not here: {done.stderr.strip()}"
        run("tc", "-n", self.nodes[0].namespace, "qdisc", "del", *device)
        return None

    def delay(self, node, milliseconds):
        run("tc", "-n", self.nodes[node].namespace, "qdisc", "add", "dev", self.nodes[node].device, "root",
            "netem", "delay", f"{milliseconds}ms")  # fmt: skip

    def rank_ports(self, node):
        """Where the ranks of `node` listen: what listens there at its address, but the job's endpoint."""
        found = run("ip", "netns", "exec", self.nodes[node].namespace, "cat", "/proc/net/tcp").splitlines()[1:]
        sockets = [line.split()[1:4] for line in found]
        ports = {int(local.split(":")[1], 16) for local, _, state in sockets if state == "0A"}
        return sorted(ports - {ENDPOINT_PORT})


@contextmanager
def network(count):
    made = Network(count)
    try:
        made.build()
        yield made
    finally:
        made.remove()


def events(folder, name):
    """From the journals of all nodes that have one in `folder`."""
    found = []
    for path in sorted(folder.glob("**/journal*.jsonl")):
        for line in path.read_text().splitlines():
            if line.endswith("}") and (entry := json.loads(line))["event"] == name:
                found.append(entry)
    return found
