"""What the zygote may import is found out in a probe, whatever the imports do."""

import json
import os
import subprocess

from harness import PYTHON, ROOT


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
