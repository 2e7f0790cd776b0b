"""Runs PyTorch's suite with one backend and world size: ``python tests/conformance --backend keepstep --world 2``.

With ``--gloo-file FOLDER`` it runs PyTorch's test file of Gloo instead (gloo_file.py), which has its own world sizes.
Prints one line a test, and last one JSON object: {"backend", "world", "executed", "passed", "failed", "skipped"}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="keepstep")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("-k", action="append", default=[], help="only tests whose name contains this")
    parser.add_argument("--list", type=Path, help="only the tests named in this file, one a line")
    parser.add_argument("--out", type=Path, help="results as JSON: {test: passed | failed | skipped: why}")
    parser.add_argument("--gloo-file", type=Path, help="test/distributed of PyTorch's sources, with test_c10d_gloo.py")
    parser.add_argument("--part", default="1/1", help="I/N: the Ith of N parts of the tests")
    options = parser.parse_args()

    os.environ["WORLD_SIZE"] = str(options.world)
    os.environ.setdefault("TEMP_DIR", f"/tmp/keepstep-conformance-{os.getpid()}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import suite
    import torch
    from torch import multiprocessing

    torch.set_num_threads(1)
    if options.backend == "keepstep":
        import keepstep.torch  # noqa: F401
    if options.gloo_file:
        import gloo_file

        cases = gloo_file.cases(gloo_file.load(options.gloo_file, options.backend))
    else:
        module = suite.load(options.backend)

        class TestSuite(module.TestDistBackend, module.DistributedTest._DistTestBase):
            def setUp(self) -> None:
                super().setUp()
                # The suite's own way is to spawn, which imports torch anew in every process: most of its time.
                self._start_processes(multiprocessing.get_context("fork").Process)

        cases = {name: TestSuite for name in unittest.TestLoader().getTestCaseNames(TestSuite)}
    names = list(cases)
    if options.list:
        wanted = set(options.list.read_text().split())
        names = [name for name in names if name in wanted]
    if options.k:
        names = [name for name in names if any(part in name for part in options.k)]
    index, parts = (int(number) for number in options.part.split("/"))
    names = names[index - 1 :: parts]

    results: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        begun = time.monotonic()
        result = unittest.TestResult()
        cases[name](name.rsplit(".", 1)[-1]).run(result)
        if result.skipped:
            verdict = f"skipped: {result.skipped[0][1]}"
        elif result.wasSuccessful():
            verdict = "passed"
        else:
            verdict = "failed"
            print(*(text for _, text in result.failures + result.errors), sep="\n", flush=True)
        results[name] = verdict
        print(f"[{number}/{len(names)}] {name}: {verdict} ({time.monotonic() - begun:.1f} s)", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))
    count = {kind: sum(v.startswith(kind) for v in results.values()) for kind in ("passed", "failed", "skipped")}
    print(
        json.dumps(
            {"backend": options.backend, "world": options.world, "executed": len(results) - count["skipped"], **count}
        )
    )
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
