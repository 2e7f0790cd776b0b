"""What the checks look at, made by hand."""

import copy

from keepstep.doctor.system import System

MACHINE = {  # of `keepstep machine`, with nothing wrong
    "version": "0.1.0",
    "ranks": 8,
    "cpus": 8,
    "gpus": 0,
    "python": {"found": "/env/bin/python", "problem": ""},
    "open_files": {"soft": 65536, "hard": 65536, "needed": 260, "errors": [], "warnings": []},
    "memory": {"available_bytes": 16 << 30, "shared_bytes": 256 << 20, "errors": [], "warnings": []},
    "dev_shm": {"there": True, "free_bytes": 8 << 30, "errors": [], "warnings": []},
    "kernel": [{"need": "shared memory (memfd_create)", "problem": ""}, {"need": "/proc", "problem": ""}],
    "runtime_folder": {"found": "/run/user/1000/keepstep", "problem": ""},
    "temp_folder": {"found": "/tmp", "problem": ""},
    "stacks": {"found": "/env/bin/py-spy", "problem": ""},
}

PROBE = {  # of the jobs' interpreter, with nothing wrong
    "version": "3.11.7",
    "python": "/env/bin/python",
    "problems": {},
    "keepstep": {"version": "0.1.0", "file": "/env/keepstep/__init__.py"},
    "torch": {
        "version": "2.15.0+cu132",
        "cuda": "13.2",
        "nccl": "2.30.7",
        "distributed": True,
        "gpus": [],
        "cuda_problem": "",
    },
}


def machine(**changed):
    return copy.deepcopy(MACHINE) | changed


def probe(*, torch=None, **changed):
    found = copy.deepcopy(PROBE) | changed
    found["torch"] |= torch or {}
    return found


def system(folder, files):
    """A System whose files these are, by path: text, or None for a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if text is None else path.write_text(text)
    return System(folder)


def levels(findings):
    return [finding.level for finding in findings]


def only(findings):
    (finding,) = findings
    return finding
