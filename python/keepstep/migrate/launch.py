"""One launch: what it was given, and what becomes of each option. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from keepstep.migrate import accelerate_options, torchrun_options
from keepstep.migrate.outcome import Note, Notes
from keepstep.migrate.shell import Word

NODE_0 = "${NODE_0:?set it to the address of node 0}:29400"
_FROM_SLURM = {"nnodes", "node-rank", "rdzv-endpoint", "rdzv-backend", "rdzv-conf", "master-addr", "master-port"}


@dataclass(frozen=True)
class Given:
    """An option as it was given. ``name`` is long, without dashes; ``value`` as written, and ``literal`` as far as the
    script says it; ``words`` are those of the option and, if it stands apart, of its value."""

    name: str
    value: str
    literal: str
    line: int
    words: tuple[Word, ...]

    @property
    def spelled(self) -> str:
        return self.words[0].text.partition("=")[0]


@dataclass
class Launch:
    kind: str  # torchrun, hyperpodrun, accelerate launch, or python
    line: int
    under_srun: bool = False
    given: list[Given] = field(default_factory=list)


@dataclass(frozen=True)
class Surroundings:
    """What decides about a launch from outside: a manifest. ``nodes`` as for --nnodes. ``options`` by name are added,
    unless the launch has them. ``decided`` says why options of these names in the launch are left out."""

    nodes: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    decided: Mapping[str, str] = field(default_factory=dict)
    has_token: bool = False


@dataclass
class Plan:
    drop: list[Given] = field(default_factory=list)
    rename: list[tuple[Given, str]] = field(default_factory=list)
    options: list[str] = field(default_factory=list)  # new ones, in front of those that stay
    environment: list[str] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)


def plan(launch: Launch, around: Surroundings) -> Plan:
    return _Planner(launch, around).plan()


def _shape(nnodes: str) -> str:
    """one, several or elastic. What only the shell knows may be several."""
    found = re.fullmatch(r"(\d+)(?::(\d+))?", nnodes)
    if found and found[2] and found[1] != found[2]:
        return "elastic"
    return "one" if found and found[1] == "1" else "several"


class _Planner:
    def __init__(self, launch: Launch, around: Surroundings) -> None:
        self._launch, self._around = launch, around
        self._plan = Plan()
        self._by_name = {given.name: given for given in launch.given}
        self._shape = _shape(around.nodes or self._literal("nnodes") or self._literal("num-machines") or "1")
        self._by_slurm = launch.under_srun and self._shape == "several"
        self._endpoint = False  # whether one is given

    def _literal(self, name: str) -> str:
        return self._by_name[name].literal if name in self._by_name else ""

    def plan(self) -> Plan:
        for given in self._launch.given:
            self._option(given)
        if self._launch.kind == "accelerate launch":
            self._places()
        own = self._by_name.keys() - self._around.decided.keys()
        self._plan.options += [option for name, option in self._around.options.items() if name not in own]
        self._nodes()
        limited = "max-restarts" in self._by_name.keys() | self._around.options.keys()
        if self._launch.kind in ("torchrun", "accelerate launch") and not limited:
            self._changed("--max-restarts", f"the default is 3, not 0 as that of {self._launch.kind}")
        return self._plan

    def _note(self, notes: list[Note], given: Given | str, says: str) -> None:
        line, name = (self._launch.line, given) if isinstance(given, str) else (given.line, given.spelled)
        notes.append(Note(line, name, says))

    def _changed(self, given: Given | str, says: str) -> None:
        self._note(self._plan.notes.changed, given, says)

    def _missing(self, given: Given, says: str) -> None:
        self._plan.drop.append(given)
        self._note(self._plan.notes.missing, given, says)

    def _drop(self, given: Given, says: str) -> None:
        self._plan.drop.append(given)
        self._changed(given, f"left out: {says}")

    def _option(self, given: Given) -> None:
        name = given.name
        if self._launch.kind == "accelerate launch" and name not in accelerate_options.AS_TORCHRUN:
            self._accelerate(given)
        elif name in self._around.decided:
            self._drop(given, self._around.decided[name])
        elif self._by_slurm and name in _FROM_SLURM:
            self._drop(given, "under srun it comes from Slurm")
        elif name == "rdzv-conf":
            self._rendezvous_conf(given)
        elif name in torchrun_options.NO_EFFECT:
            self._drop(given, torchrun_options.NO_EFFECT[name])
        elif name in torchrun_options.REFUSED:
            self._missing(given, torchrun_options.REFUSED[name][1])
        elif name in torchrun_options.HYPERPOD:
            self._drop(given, torchrun_options.HYPERPOD[name][1])
        elif name in torchrun_options.HYPERPOD_SCRIPTS:
            self._missing(given, torchrun_options.HYPERPOD_SCRIPTS[name])
        elif name == "inprocess-timeout":
            self._rename(given, "--interrupt-timeout")
        elif name in ("rdzv-backend", "rdzv-endpoint") and not self._serves_rendezvous():
            self._drop(given, "node 0 serves the rendezvous itself")
        elif name in torchrun_options.KEPT:
            self._endpoint |= name in ("rdzv-endpoint", "master-addr")
            if len(given.spelled) > 2 and given.spelled[2:].replace("_", "-") != name:
                self._rename(given, f"--{name}")
        else:
            self._note(self._plan.notes.missing, given, f"{self._launch.kind} has no such option; it is still there")

    def _rename(self, given: Given, name: str) -> None:
        self._plan.rename.append((given, name))
        self._changed(given, f"{name} {given.value}")

    def _serves_rendezvous(self) -> bool:
        """Whether the backend is one in which node 0 listens at the endpoint."""
        backend = self._literal("rdzv-backend")
        return backend in ("", "static", "c10d") or backend.startswith("$")

    def _rendezvous_conf(self, given: Given) -> None:
        found = re.search(r"(?:^|,)(?:join_)?timeout=(\d+)(?:,|$)", given.literal)
        if not found:
            return self._drop(given, torchrun_options.NO_EFFECT["rdzv-conf"])
        self._plan.drop.append(given)
        self._plan.options.append(f"--join-timeout {found[1]}")
        self._changed(given, f"--join-timeout {found[1]}")

    def _accelerate(self, given: Given) -> None:
        name = given.name
        if name in accelerate_options.PLACES:
            self._plan.drop.append(given)  # _places says what they became
        elif name in accelerate_options.NOT_NEEDED:
            self._drop(given, accelerate_options.NOT_NEEDED[name])
        elif name in accelerate_options.ENVIRONMENT:
            variable, value = accelerate_options.ENVIRONMENT[name]
            self._plan.drop.append(given)
            self._plan.environment.append(f"{variable}={given.value or value}")
            self._changed(given, f"in the environment, as accelerate launch does: {variable}={given.value or value}")
        elif name == "config-file":
            self._missing(given, "keepstep does not read it; what it sets beside this command line is lost")
        else:
            says = "accelerate launch passes it to the script in the environment; keepstep run does not"
            self._missing(given, says)

    def _places(self) -> None:
        """How many processes run where, in torchrun's terms."""
        options = []
        machines = self._by_name.get("num-machines")
        if (processes := self._by_name.get("num-processes")) is None:
            options.append("--nproc-per-node gpu")
            self._note(
                self._plan.notes.to_do,
                "--num_processes",
                "it came from accelerate's configuration, or was all GPUs; check --nproc-per-node",
            )
        elif machines is None or self._shape == "one":
            options.append(f"--nproc-per-node {processes.value}")
        elif processes.literal.isdigit() and machines.literal.isdigit():
            options.append(f"--nproc-per-node {int(processes.literal) // int(machines.literal)}")
        else:
            options.append(
                "--nproc-per-node $(({} / {}))".format(*(_bare(each.value) for each in (processes, machines)))
            )
        port, rank = self._by_name.get("main-process-port"), self._by_name.get("machine-rank")
        address = self._by_name.get("main-process-ip")
        if self._shape == "one":
            options += [f"--master-port {port.value}"] if port else []
        elif not self._by_slurm and machines:
            options.append(f"--nnodes {machines.value}")
            options += [f"--node-rank {rank.value}"] if rank else []
            if address:
                self._endpoint = True
                options.append(f"--rdzv-endpoint {_bare(address.value)}:{_bare(port.value) if port else '29500'}")
        self._plan.options += options
        of_slurm = "; under srun the rest comes from Slurm" if self._by_slurm else ""
        self._changed("the number of processes", ", ".join(options) + of_slurm)

    def _nodes(self) -> None:
        """What several nodes need."""
        if self._launch.under_srun and not self._by_name.keys() & {"nnodes", "num-machines", "standalone"}:
            self._note(
                self._plan.notes.to_do,
                self._launch.kind,
                "without --nnodes each task was a job of its own; under srun keepstep run makes one job of all nodes "
                "of the step, unless you add --standalone",
            )
        if self._shape == "one" or self._by_slurm:
            return
        if not self._around.has_token:
            self._plan.options.append("--token-file job.token")
            self._note(
                self._plan.notes.to_do,
                "--token-file",
                "make the file once, with (umask 077; openssl rand -hex 32 > job.token), and copy it to every node",
            )
        if not self._endpoint:
            self._plan.options.append(f"--rdzv-endpoint {NODE_0}")
            self._note(
                self._plan.notes.to_do, "--rdzv-endpoint", "set NODE_0 on all nodes to the name or address of node 0"
            )
        if self._shape == "elastic":
            self._changed(
                "MIN:MAX",
                "processes stay when the job resizes, in a recoverable function; what a script without one has to do: "
                "docs/reference/elastic.md",
            )


def _bare(value: str) -> str:
    """Without the quotes around it."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
