"""What the zygote may import is found out in a probe, whatever the imports do; and its forks are never two for one."""

import json
import os
import subprocess

from harness import PYTHON, ROOT, assert_same_history, run_small


def probed(folder, modules, limit_s=1):
    """What `probe` says of `modules`, in a process of its own: it forks, and pytest has threads."""
    code = f"import json; from keepstep.zygote import probe; print(json.dumps(probe({modules!r}, {limit_s})))"
    done = subprocess.run(
        [PYTHON, "-c", code], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{folder}", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_imports_that_hang_die_raise_or_start_threads_are_named_and_the_others_are_not(tmp_path):
    bodies = {
        "ks_hangs": "import threading; threading.Event().wait()",
        "ks_dies": "import os; os._exit(3)",
        "ks_raises": "raise ValueError('no such device')",
        "ks_threads": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "ks_good": "",
    }
    for name, body in bodies.items():
        (tmp_path / f"{name}.py").write_text(body + "\n")
    assert probed(tmp_path, ["ks_good", "ks_hangs"]) == {"ks_hangs": "the probe that imported it took longer than 1 s"}
    assert probed(tmp_path, ["ks_dies", "ks_good"]) == {"ks_dies": "the probe that imported it died"}
    assert probed(tmp_path, ["ks_raises", "ks_good"]) == {"ks_raises": "ValueError: no such device"}
    assert probed(tmp_path, ["ks_good", "ks_threads"]) == {"ks_threads": "2 threads run"}
    assert probed(tmp_path, ["ks_good"]) == {}


DIES_IN_BETWEEN = """
import os, signal, sys
if "keepstep.zygote" in sys.orig_argv:
    opens = os.pidfd_open
    def dies_once(pid, flags=0):  # of the worker, by the process that just forked it and is about to tell the agent
        try:
            os.close(os.open(os.path.join({folder!r}, "died"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return opens(pid, flags)
        os.kill(os.getpid(), signal.SIGKILL)
    os.pidfd_open = dies_once
"""

STARTS_A_THREAD = """
import sys, threading
if "keepstep.zygote" in sys.orig_argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def use_site(folder, monkeypatch, code):
    """Every Python that is started from here on runs `code` first."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def test_a_fork_that_dies_before_the_agent_is_told_leaves_no_second_process_on_its_socket(
    tmp_path, undisturbed, monkeypatch
):
    site = tmp_path / "site"
    use_site(site, monkeypatch, DIES_IN_BETWEEN.format(folder=str(site)))
    job = run_small(tmp_path, world=2)
    assert (site / "died").exists()
    assert_same_history(job, undisturbed(2), 12)
    assert [line["how"] for line in job.events("spawned")].count("exec") == 1, job.explain()
    assert len(job.events("fork_failed")) == 1, job.explain()
    assert len({note["pid"] for note in job.notes if "entry" in note}) == 2, job.explain()


def test_an_unfit_zygote_forks_none_of_those_that_it_was_asked_for_before_it_said_so(
    tmp_path, undisturbed, monkeypatch
):
    reference = undisturbed(2)
    use_site(tmp_path / "site", monkeypatch, STARTS_A_THREAD)
    job = run_small(tmp_path, world=2)
    assert_same_history(job, reference, 12)
    assert [line["how"] for line in job.events("spawned")] == ["exec", "exec"], job.explain()
    assert job.events("zygote_unfit"), job.explain()
