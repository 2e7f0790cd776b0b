"""Makes docs/reference/conformance.md from results: ``table.py FOLDER`` holding BACKEND-WORLD.json files.

gloo-file.json and keepstep-file.json are those of PyTorch's test file of Gloo.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from known import KNOWN, KNOWN_OF_GLOO_FILE

HEAD = """# PyTorch's own backend tests

The suite that PyTorch's Gloo and NCCL tests derive from (`torch.testing._internal.distributed.distributed_test`, torch
{torch}), run with backend `keepstep` and with Gloo on the same machine (no GPU). Repeat: `python tests/conformance
--backend keepstep --world 2`; all of it, compared, is part of `make test-all`. This page is made by
`tests/conformance/table.py`.

| ranks | backend | tests | executed | passed | failed | skipped by PyTorch's own conditions |
| --- | --- | --- | --- | --- | --- | --- |
"""


GLOO_FILE = """
## Gloo's own test file

`test/distributed/test_c10d_gloo.py` of PyTorch {source}, which is neither in the wheel nor in this repository. Its
tests get keepstep's process group where they make Gloo's, and nothing else of it is changed. Repeat, with the folder of
a checkout: `python tests/conformance --gloo-file pytorch/test/distributed`. `PYTORCH_TESTS=FOLDER make test-all`
compares.

| backend | tests | executed | passed | failed |
| --- | --- | --- | --- | --- |
"""

WANTS_GLOO_TOO = "fails with Gloo, too: the file is older than this torch"


def gloo_file(results, source):
    lines = [GLOO_FILE.format(source=source)]
    for backend in ("gloo", "keepstep"):
        count = Counter(verdict.split(":")[0] for verdict in results[backend].values())
        lines.append(
            f"| {backend} | {len(results[backend])} | {count['passed'] + count['failed']} | {count['passed']} | "
            f"{count['failed']} |\n"
        )
    lines.append("\nWhat differs:\n\n")
    for name, verdict in results["keepstep"].items():
        if verdict == "failed":
            alike = results["gloo"][name] == "failed"
            lines.append(f"- `{name}`: {WANTS_GLOO_TOO if alike else KNOWN_OF_GLOO_FILE[name]}.\n")
    return lines


def main():
    import torch

    folder = Path(sys.argv[1])
    lines = [HEAD.format(torch=torch.__version__.split("+")[0])]
    results = {}
    of_file = {}
    for backend in ("gloo", "keepstep"):
        path = folder / f"{backend}-file.json"
        if path.exists():
            of_file[backend] = json.loads(path.read_text())
    for path in sorted(folder.glob("*-[0-9].json"), key=lambda path: (path.stem.rsplit("-", 1)[1], path.stem)):
        backend, world = path.stem.rsplit("-", 1)
        verdicts = json.loads(path.read_text())
        results[backend, world] = verdicts
        count = Counter(verdict.split(":")[0] for verdict in verdicts.values())
        executed = count["passed"] + count["failed"]
        lines.append(
            f"| {world} | {backend} | {len(verdicts)} | {executed} | {count['passed']} | {count['failed']} | "
            f"{count['skipped']} |\n"
        )
    lines.append("\n## Known failures\n\n")
    lines += [f"- `{name}`: {why}.\n" for name, why in KNOWN.items()]
    if len(of_file) == 2:
        lines += gloo_file(of_file, sys.argv[2])
    lines.append(
        "\n## Left out, and why\n\nKeepstep and Gloo alike. With Gloo also the tests of all_to_all between CPU "
        "tensors, which are meant for MPI.\n\n| why, in PyTorch's words | tests |\n| --- | --- |\n"
    )
    world = max(world for backend, world in results if backend == "keepstep")
    reasons = Counter(
        verdict.removeprefix("skipped: ").replace("|", "\\|").splitlines()[0]
        for verdict in results["keepstep", world].values()
        if verdict.startswith("skipped")
    )
    lines += [f"| {why} | {count} |\n" for why, count in reasons.most_common()]
    lines.append(f"\nCounted at {world} ranks.\n")
    (Path(__file__).parents[2] / "docs" / "reference" / "conformance.md").write_text("".join(lines))


if __name__ == "__main__":
    main()
