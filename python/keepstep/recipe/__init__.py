"""``keepstep recipe``: training jobs for known models, each a page of Python and a YAML file, made to be copied.

Free of torch, but for the scripts in `keepstep.recipe.jobs`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keepstep.recipe.library import load as _load
from keepstep.recipe.reading import RecipeError as RecipeError

if TYPE_CHECKING:
    from keepstep.recipe.settings import Recipe as Recipe


def read(arguments: list[str]) -> Recipe:
    """What a recipe's script was started with: FILE [section.key=value ...]. Ends the process if it is wrong."""
    try:
        if not arguments:
            raise RecipeError("which recipe? Start this script with FILE [section.key=value ...]")
        return _load("", Path(arguments[0]), arguments[1:])
    except RecipeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
