"""The command, and a recipe from lines of YAML."""

import subprocess
import sys

from keepstep.recipe import library


def keepstep_recipe(folder, *words, **environment):
    command = [sys.executable, "-m", "keepstep.recipe", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, **environment)


def load(folder, text, *arguments):
    path = folder / "my.yaml"
    path.write_text(text)
    return library.load("", path, list(arguments))
