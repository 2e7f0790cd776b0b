"""Makes docs/reference/conformance.md from results: ``table.py FOLDER`` holding BACKEND-WORLD.json files."""

import json
import sys
from collections import Counter
from pathlib import Path

from known import KNOWN

HEAD = """# PyTorch's own backend tests

The suite that PyTorch's Gloo and NCCL tests derive from (`torch.testing._internal.distributed.distributed_test`, torch
{torch}), run with backend `keepstep` and with Gloo on the same machine (no GPU). Repeat: `python tests/conformance
--backend keepstep --world 2`; all of it, compared, is part of `make test-all`. This page is made by
`tests/conformance/table.py`.

| ranks | backend | tests | executed | passed | failed | skipped by PyTorch's own conditions |
| --- | --- | --- | --- | --- | --- | --- |
"""


def main():
    import torch

    folder = Path(sys.argv[1])
    lines = [HEAD.format(torch=torch.__version__.split("+")[0])]
    results = {}
    for path in sorted(folder.glob("*-*.json"), key=lambda path: (path.stem.rsplit("-", 1)[1], path.stem)):
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
    lines.append(
        "\n## Left out, and why (keepstep and Gloo alike)\n\n| why, in PyTorch's words | tests |\n| --- | --- |\n"
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
