"""What is trained: three small jobs that have little in common."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Model:
    """`python`: can do every fault to itself; its ranks are witnessed. Else: kills, crashes, exceptions only."""

    name: str
    python: bool
    program: Path
    arguments: tuple

    def script(self, folder, steps):
        """The command's end: script and arguments. What it writes goes to `folder`."""
        values = {"folder": str(folder), "steps": str(steps)}
        return [str(self.program), *(part.format(**values) for part in self.arguments)]


def models(build):
    """`build`: the folder with the C++ example."""
    return [
        Model(
            "gpt", True, ROOT / "examples" / "gpt" / "train.py",
            ("--until", "{steps}", "--layers", "2", "--width", "32", "--context", "24", "--dropout", "0.1",
             "--global-batch", "8", "--micro-batch", "2", "--text-mib", "1"),
        ),
        Model(
            "batchnorm", True, ROOT / "tests" / "jobs" / "small.py",
            ("--until", "{steps}", "--model", "rich", "--out", "{folder}"),
        ),
        Model(
            "linear", False, build / "keepstep_example_linear",
            ("--until", "{steps}", "--features", "400", "--batch", "24", "--dataset", "2000",
             "--dump", "{folder}/final"),
        ),
    ]  # fmt: skip
