"""Finds names of other runtimes in a Python file. It is read, not imported or changed."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from keepstep.migrate.names import GROUPS
from keepstep.migrate.names.name import Group, Name
from keepstep.migrate.outcome import MigrateError


@dataclass(frozen=True, order=True)
class Use:
    """``name``, as in `Name.looks_like`, is used in this line. ``says`` what becomes of it."""

    line: int
    name: str
    says: str


def uses(source: str) -> list[Use]:
    """In the order of lines; a name that is imported and used counts where it is used.

    Raises MigrateError if this is no Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise MigrateError(f"line {getattr(error, 'lineno', 1)}: this is no Python: {error.args[0]}") from None
    imported = _imported(tree)
    found = {}
    for line, dotted in _named(tree, imported):
        for group, name, shown in _known(dotted):
            found[line, shown] = Use(line, shown, plain(name.ours, group.page))
    return sorted(found.values())


def plain(markdown: str, page: str) -> str:
    """As a terminal shows it: links say which page they lead to."""

    def linked(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), found["where"].partition("#")[0]))
        return target if found["text"] == posixpath.basename(target) else f"{found['text']}: {target}"

    return re.sub(r"\[(?P<text>[^\]]*)\]\((?P<where>[^)]*)\)", linked, markdown).replace("`", "")


def _imported(tree: ast.AST) -> dict[str, str]:
    """Local names and what they stand for: dcp -> torch.distributed.checkpoint."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _named(tree: ast.AST, imported: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Full names where they are used, and arguments of calls as NAME(argument=)."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner and (name := _dotted(node, imported)):
            yield node.lineno, name
        elif isinstance(node, ast.Call) and (name := _dotted(node.func, imported)):
            for argument in node.keywords:
                if argument.arg:
                    yield argument.value.lineno, f"{name}({argument.arg}=)"


def _dotted(node: ast.AST, imported: dict[str, str]) -> str:
    """torch.distributed.checkpoint.save for dcp.save; "" for what was not imported."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, imported)
        return before and f"{before}.{node.attr}"
    return imported.get(node.id, "") if isinstance(node, ast.Name) else ""


def _known(dotted: str) -> Iterator[tuple[Group, Name, str]]:
    for group in GROUPS:
        if dotted.startswith(group.packages):
            for name in group.names:
                for wanted in name.looks_like:
                    if re.search(rf"(?:^|\.){re.escape(wanted)}(?:\.\w+)*$", dotted):
                        yield group, name, wanted
