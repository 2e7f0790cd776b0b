"""Rounds of one elastic job each, in which nodes and ranks come, go and die at a high rate."""

import contextlib
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from elastic_plan import DEADLY, LEAST, NODES, RANKS, draw

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from elastic_jobs import Elastic, samples_of
from harness import JOBS, finish, start
from several_nodes import kill

HUNG_S = 120.0
OPTIONS = [
    "--min-replicas", LEAST, "--graceful-shutdown-timeout", "60", "--faulty-scale-down-timeout", "0.3",
    "--max-restarts", "0",
]  # fmt: skip
JOB = ["--until", 1_000_000, "--sleep", 0.01, "--note-ids"]


LEADS_TO_ANOTHER = {"fault_detected", "resized", "resize_dropped", "resize_postponed"}  # generation


class Broken(Exception):
    """The job did what it must not."""


class Round:
    def __init__(self, folder):
        self.job = Elastic(folder / "job", *JOB, per_node=RANKS, nodes=f"1:{NODES}", options=OPTIONS)
        self.happened = Counter()
        self.told = []  # launchers that were told to leave, and whether in time
        self.recovered_at = 0  # steps
        self.asking = []

    # ---- what may happen ----

    def others(self):
        return sorted(rank for rank in self.job.launchers if rank != 0)

    def pick(self, among, happening):
        return among[int(happening.which * len(among))] if among else None

    def join(self, happening):
        free = [rank for rank in range(1, NODES) if rank not in self.job.launchers]
        rank = self.pick(free, happening)
        if rank is None:
            return False
        self.job.start(rank)
        return True

    def vanish(self, happening):
        free = [rank for rank in range(1, NODES) if rank not in self.job.launchers]
        rank = self.pick(free, happening)
        if rank is None:
            return False
        self.job.start(rank)
        time.sleep(happening.delay_s)  # anywhere on its way
        self.job.lose(rank)
        self.hurt()  # it may have been a member already
        return True

    def leave(self, happening, in_time=True):
        rank = self.pick(self.others(), happening)
        if rank is None:
            return False
        self.told.append((self.job.tell_to_leave(rank), in_time))
        return True

    def drain(self, happening):
        if not self.others():
            return False
        self.job.set_policy("gracefulShutdownTimeoutInSeconds=0.02")
        self.leave(happening, in_time=False)
        self.hurt()
        self.job.set_policy("gracefulShutdownTimeoutInSeconds=60")
        return True

    def scale(self, happening):
        self.asking.append(self.job.ask_for(happening.size))
        return True

    def auto(self, happening):
        self.asking.append(self.job.ask_for("auto"))
        return True

    def kill(self, happening):
        workers = self.job.events("generation_prepared")[-1]["workers"]
        with contextlib.suppress(ProcessLookupError, KeyError):  # it is gone since, or not whole yet
            self.job.kill_rank(int(happening.which * len(workers)))
        self.hurt()
        return True

    def kill_in_resize(self, happening):
        mark = self.job.mark()
        self.scale(happening)
        with contextlib.suppress(AssertionError):  # it may have that size already
            self.job.wait_for_event(happening.point, mark, limit_s=1)
        self.kill(happening)
        return True

    def leave_and_kill(self, happening):
        if not self.leave(happening):
            return False
        with contextlib.suppress(ProcessLookupError, KeyError):
            self.job.kill_rank(0)
        self.hurt()
        return True

    def lose(self, happening):
        rank = self.pick(self.others(), happening)
        if rank is None:
            return False
        self.job.lose(rank)
        self.hurt()
        return True

    # ---- between them ----

    def hurt(self):
        """No second time before three steps were made: one may have been decided already."""
        self.recovered_at = len(self.job.steps()) + 3

    def wait_until_recovered(self):
        deadline = time.monotonic() + HUNG_S
        while len(self.job.steps()) < self.recovered_at:
            self.look()
            if time.monotonic() > deadline:
                raise Broken(f"no step in {HUNG_S:g} s: {self.how_it_stands()}")
            time.sleep(0.02)

    def look(self):
        for rank, node in self.job.launchers.items():
            if node.process.poll() is not None:
                raise Broken(f"node {rank} ended with {node.process.returncode}:\n{node.output()[-3000:]}")

    def bad_nodes(self):
        """Those that the job takes for bad, and whose launchers were not started again since: they may be left out."""
        bad = set()
        lines = [line for name in ("rung", "growth_given_up", "node_joined") for line in self.job.events(name)]
        for line in sorted(lines, key=lambda line: line["mono"]):
            if line["event"] == "node_joined":
                bad.discard(line["joined_node"])
            elif line.get("rung") == "replace_node":
                bad.add(line["bad_node"])
            elif line.get("node_is_left_out"):
                bad.add(line["newcomers_node"])
        return bad & self.job.launchers.keys()

    def how_it_stands(self):
        return "\n".join(str(line) for line in self.job.events("size_kept")[-3:]) + self.job.first.output()[-2000:]

    def run(self, happenings, until):
        self.job.start(*range(NODES))
        self.job.wait_for_world(NODES * RANKS)
        for happening in happenings:
            if time.monotonic() > until:
                break
            time.sleep(happening.after_s)
            self.look()
            if happening.kind in DEADLY:
                self.wait_until_recovered()
            if getattr(self, happening.kind.replace(" ", "_"))(happening):
                self.happened[happening.kind] += 1
        self.wait_until_recovered()
        return self.end()

    def end(self):
        """All who are there take part in the end, and only they."""
        for asking in self.asking:
            asking.communicate(timeout=60)
        self.job.scale("auto")
        most = RANKS * len(self.job.launchers)
        deadline = time.monotonic() + HUNG_S
        while True:
            least = most - RANKS * len(self.bad_nodes())
            worlds = {line["world"] for line in self.job.steps()[-2:]}
            if len(worlds) == 1 and least <= min(worlds) <= most:
                break
            self.look()
            if time.monotonic() > deadline:
                raise Broken(f"the job never came to {least} to {most} ranks: {self.how_it_stands()}")
            time.sleep(0.05)
        done = self.job.stop()
        for node, in_time in self.told:
            code = node.process.wait(HUNG_S)
            knew = "it leaves within" in node.output()
            if not (code == 0 or (not in_time and code == 1) or (not knew and code in (143, -signal.SIGTERM))):
                raise Broken(f"a launcher that was told to leave ended with {code}:\n{node.output()[-3000:]}")
        return done


# ---- what must hold -----------------------------------------------------------------------------------------------


def compare(done, reference):
    used, expected = samples_of(done), samples_of(reference)
    for step, (mine, theirs) in enumerate(zip(done.metrics, reference.metrics, strict=False), 1):
        if used[step - 1] != expected[step - 1]:
            raise Broken(f"step {step} used other samples: {used[step - 1]} and not {expected[step - 1]}")
        if (mine["bits"], mine["norm"]) != (theirs["bits"], theirs["norm"]):
            raise Broken(f"step {step}: loss or norm differs from the fixed-size run")


def unexplained(journal):
    """A change that the journal has no reason for; None: it has one for each."""
    planned, since, ranks, told = [], [], None, set()
    for line in journal:
        event = line["event"]
        if event == "resize_planned":
            planned.append(line)
        elif event == "growth_given_up":
            planned.append(line | {"to": float("inf")})  # back to what it was
        elif event == "resized":
            reasons = [plan for plan in planned if plan["because"] == line["because"]]
            if not reasons or reasons[-1]["to"] < line["to"]:
                return f"nobody planned {line}"
        elif event == "node_leaves":
            told.add(line["leaving_node"])
        elif event == "node_left" and line["left_node"] not in told:
            return f"nobody told it to: {line}"
        elif event == "generation_prepared":
            led = {before["event"] for before in since}
            sizes = {before["ranks"] for before in since if before["event"] == "resized"}
            if ranks is not None and not led & LEADS_TO_ANOTHER:
                return f"nothing led to {line}"
            if ranks not in (None, line["ranks"]) and line["ranks"] not in sizes:
                return f"the world went from {ranks} to {line['ranks']} ranks unsaid: {line}"
            ranks, since = line["ranks"], []
        since.append(line)
        if line.get("because") == "" and event in ("resize_planned", "resized", "verdict", "generation_prepared"):
            return f"without a reason: {line}"
    return None


class ElasticChaos:
    """`nothing_left`: raises where processes or shared memory outlive a round."""

    def __init__(self, out, seed, round_seconds, nothing_left):
        self.out, self.seed, self.round_seconds, self.nothing_left = out, seed, round_seconds, nothing_left
        self.reference = None
        self.totals = Counter()

    def fixed(self, steps):
        if self.reference is None or len(self.reference.metrics) < steps:
            folder = self.out / "fixed"
            shutil.rmtree(folder, ignore_errors=True)
            until = max(600, steps * 3 // 2)
            process, command = start(
                folder, JOBS / "reproducible.py", "--out", folder, "--note-ids", "--until", until, world=2
            )
            self.reference = finish(folder, process, command, limit_s=1800)
            if self.reference.exit_code != 0:
                raise Broken(f"the run of a fixed size failed:{self.reference.explain()}")
        return self.reference

    def round(self, number, until):
        folder = self.out / f"round-{number}"
        happenings = draw(self.seed, number, self.round_seconds)
        print(f"round {number}: {len(happenings)} happenings", flush=True)
        began = time.monotonic()
        this = Round(folder)
        try:
            with this.job:
                done = this.run(happenings, until)
            compare(done, self.fixed(len(done.metrics)))
            if because := unexplained(done.journal):
                raise Broken(f"the journal: {because}")
            if restarts := done.events("restart"):
                raise Broken(f"steps were lost: {restarts}")
        except (Broken, AssertionError) as broken:
            raise Broken(f"round {number}: {broken}\nhappened: {dict(this.happened)}\nfolder: {folder}") from None
        finally:
            for node in [*this.job.launchers.values(), *this.job.ended]:
                kill(node)
            for asking in this.asking:
                asking.communicate()
        self.nothing_left()
        self.tell(this, done, time.monotonic() - began)
        shutil.rmtree(folder)

    def tell(self, this, done, seconds):
        changes = Counter((line["from"], line["to"]) for line in done.events("resized"))
        worlds = Counter(line["world"] for line in done.metrics)
        faults = len(done.events("rung"))
        print(
            f"  {', '.join(f'{count} {kind}' for kind, count in this.happened.items())}\n"
            f"  {len(done.metrics)} steps, {changes.total()} changes of size, {faults} recoveries, worlds "
            f"{', '.join(map(str, sorted(worlds)))}, {seconds:.0f} s; bits equal, samples once, all explained",
            flush=True,
        )
        self.totals.update(this.happened)
        self.totals.update(steps=len(done.metrics), changes=changes.total(), recoveries=faults, rounds=1)
