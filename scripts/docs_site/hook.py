"""What mkdocs does not do by itself: the navigation, and Markdown as GitHub reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
ROW = re.compile(r"^\|.*", re.MULTILINE)
CODE = re.compile(r"`[^`]+`")
ITEM = re.compile(r"( *)([-*]|\d+\.)( +)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    source = Path(config["docs_dir"]).resolve()
    config["nav"] = [{"Overview": "README.md"}, "docs/README.md", *navigation(source)]
    return config


def navigation(source: Path) -> Iterator[str | dict[str, list[str]]]:
    """The pages that docs/README.md links to, in its order. An index of a folder is a section with its pages."""
    for name in linked(source, "docs/README.md"):
        if not name.endswith("/README.md"):
            yield name
            continue
        folder = Path(name).parent
        yield {title_of(source / name): [name, *(page for page in linked(source, name) if Path(page).parent == folder)]}


def linked(source: Path, index: str) -> list[str]:
    """The pages that `index` links to, by their paths in the site."""
    found: dict[str, None] = {}
    for _, target in LINK.findall((source / index).read_text()):
        page = (source / index).parent.joinpath(target.partition("#")[0]).resolve()
        if page.suffix == ".md" and page.is_relative_to(source) and page != source / index:
            found[page.relative_to(source).as_posix()] = None
    return list(found)


@cache
def title_of(page: Path) -> str:
    """Its heading, up to a colon. Links show it in place of the file's name."""
    return page.read_text().splitlines()[0].removeprefix("# ").split(": ")[0]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = Path(page.file.src_uri).parent
    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [LINK.sub(lambda link: inside(link, folder, files), part) for part in parts[::2]]
    # GitHub takes the backslash from \| in a table's code, Python-Markdown shows it.
    return ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), indented("".join(parts)))


def inside(link: re.Match[str], folder: Path, files: Files) -> str:
    """The link as the site has it: one to a file that is no page becomes the name of the file."""
    text, target = link[1], link[2]
    where = target.partition("#")[0]
    if not where or re.match(r"[a-z]+:", target):
        return link[0]
    path = (ROOT / folder / where).resolve()
    name = path.relative_to(ROOT).as_posix()
    if files.get_file_from_path(name) is not None:
        return f"[{title_of(path)}]({target})" if text == path.name else link[0]
    if not path.exists():
        raise PluginError(f"a page in {folder} links to {target}, which is not there")
    bare = text.strip("`")
    return f"`{name}`" if name.endswith(bare) else f"{text} (`{name}`)"


def indented(markdown: str) -> str:
    """Lists as Python-Markdown reads them.

    It wants what belongs to an item indented by four, however wide the item's mark is, and an empty line before an item
    that follows a second paragraph of the item before.
    """
    lines: list[str] = []
    marks: list[int] = []  # widths, of the items that the line is in
    fenced = loose = False
    for line in markdown.split("\n"):
        text = line.lstrip(" ")
        width = len(line) - len(text)
        item = None if fenced else ITEM.match(line)
        goes_on = fenced or (lines and lines[-1] and not item and not text.startswith(("```", "#", "|")))
        while text and marks and width < marks[-1] and not goes_on:
            marks.pop()
        loose = bool(marks or item) and (loose or not (item or goes_on or not text))
        if item and loose and lines[-1]:
            lines.append("")
        lines.append(" " * 4 * len(marks) + line[min(width, marks[-1] if marks else 0) :] if text else "")
        if item:
            marks.append(len(item[0]))
        fenced ^= text.startswith("```")
    return "\n".join(lines)
