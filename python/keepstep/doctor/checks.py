"""All checks in order, one at a time, so results can be shown as they arrive."""

from __future__ import annotations

import os
import platform
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from keepstep._command import keepstep_command
from keepstep._errors import KeepstepError
from keepstep.doctor import clock, engine, gpus, interpreter, memory, network, peers, processor, tasks
from keepstep.doctor.finding import Finding, error
from keepstep.doctor.interpreter import Probe
from keepstep.doctor.loopback import environment, loopback
from keepstep.doctor.system import System

Step = tuple[str, Callable[[], list[Finding]]]


@dataclass(frozen=True)
class Wanted:
    """The options. `ranks` None: as many as `keepstep run --nproc-per-node auto` starts."""

    ranks: int | None = None
    meeting: peers.Meeting | None = None


def checks(wanted: Wanted, begin: Callable[[str], None]) -> Iterator[Finding]:
    """`begin` is called with what is checked next, as it may take a while."""
    begin("the engine")
    try:
        command = keepstep_command()
        machine = ask_engine(command, wanted.ranks)
    except KeepstepError as why:
        yield error("keepstep", str(why))
        return
    try:
        if machine["python"]["problem"]:
            raise KeepstepError(machine["python"]["problem"])
        probe = Probe(machine["python"]["found"])
    except KeepstepError as why:
        yield error("Python", str(why))
        return
    try:
        errors = 0
        # With peers, the launcher at their endpoint reports whether it can listen there.
        port_problem = network.bind_problem(network.DEFAULT_PORT) if wanted.meeting is None else None
        for what, check in [*of_interpreter(probe, machine, command), *of_machine(machine, command, port_problem)]:
            begin(what)
            for finding in check():
                errors += finding.level == "error"
                yield finding
    finally:
        probe.end()
    if errors:
        return  # a job would only fail, for reasons already reported
    begin("a small job on this machine")
    yield from loopback(environment())
    if wanted.meeting is not None:
        begin(f"peers at {wanted.meeting.text()}")
        yield from peers.peers(command, wanted.meeting, environment())


def ask_engine(command: str, ranks: int | None) -> dict[str, Any]:
    """The engine's answer. To try reading stacks, it reads those of a process that is not its child, like a rank."""
    waits = "print('here', flush=True); input()"
    waiting = subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert waiting.stdout is not None
    try:
        waiting.stdout.readline()  # until then the process is not Python yet
        return engine.ask(command, ranks, waiting.pid)
    finally:
        waiting.kill()
        waiting.communicate()


def of_interpreter(probe: Probe, machine: dict[str, Any], command: str) -> list[Step]:
    found: dict[str, Any] = {}

    def python() -> list[Finding]:
        try:
            found.update(probe.answer())
        except KeepstepError as why:
            return [error("Python", str(why))]
        return interpreter.python(found)

    def of_gpus() -> list[Finding]:
        return gpus.gpus(System(), found, machine["gpus"]) if "torch" in found else []

    return [
        ("Python and torch", python),
        ("keepstep", lambda: interpreter.package(found, machine["version"], command) if found else []),
        ("torch", lambda: interpreter.torch(found) if found else []),
        ("GPUs", of_gpus),
    ]


def of_machine(machine: dict[str, Any], command: str, port_problem: str | None) -> list[Step]:
    system = System()
    ranks = machine["ranks"]
    return [
        ("CPUs", lambda: processor.cores(system, machine["cpus"], ranks)),
        ("CPU features", lambda: processor.features(system, platform.machine())),
        ("kernel", lambda: engine.kernel(machine)),
        ("stacks", lambda: engine.stacks(machine)),
        ("open files", lambda: engine.open_files(machine)),
        ("processes", lambda: tasks.tasks(system, ranks, *_task_limit(system))),
        ("memory", lambda: memory.room(machine["memory"]["available_bytes"], ranks) or engine.memory(machine)),
        ("overcommit", lambda: memory.forks(system)),
        ("/dev/shm", lambda: dev_shm(system, machine)),
        ("folders", lambda: engine.folders(machine)),
        ("monotonic clock", lambda: clock.source(system)),
        ("wall clock", lambda: clock.wall(clock.kernel_status(), time.time(), clock.built_at(command))),
        ("host name", _host_name),
        ("ports", lambda: network.ports(system, port_problem)),
    ]


def dev_shm(system: System, machine: dict[str, Any]) -> list[Finding]:
    said = engine.dev_shm(machine)
    if said[0].level == "fine":
        room = os.statvfs("/dev/shm")
        said = memory.small_dev_shm(room.f_blocks * room.f_frsize) or said
    return memory.leftovers(system) + said


def _task_limit(system: System) -> tuple[int | None, int]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    user = os.getuid()
    if user == 0 or soft == resource.RLIM_INFINITY:
        return None, 0
    return soft, tasks.tasks_of(system, user)


def _host_name() -> list[Finding]:
    name = socket.gethostname()
    return network.own_name(name, network.resolve(name), network.own_address())
