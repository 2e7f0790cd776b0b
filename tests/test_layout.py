"""The architecture as the folders say it: who may include whom, and that each folder explains itself."""

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"

# docs/design/README.md: what a module may include besides itself. Value types of brain/ (types.h) are open to all.
MAY_INCLUDE = {
    "base": set(),
    "net": {"base"},
    "brain": set(),
    "proto": {"base", "brain", "net"},
    "comm": {"base", "net"},
    "messages": {"base", "brain", "comm"},
    "state": {"base", "brain"},
    "data": {"base"},
    "observe": {"base"},
    "checkpoint": {"base", "brain", "state"},
    "memory_server": {"base", "brain", "net", "checkpoint"},
    "rank": {"base", "net", "comm", "messages", "state", "data", "brain"},
    "bindings": {"base", "brain", "comm", "messages", "state", "data", "checkpoint", "rank"},
    "coordinator": {"base", "brain", "net", "proto", "observe"},
    "agent": {
        "base",
        "brain",
        "net",
        "proto",
        "observe",
        "rank",
        "comm",
        "messages",
        "state",
        "data",
        "checkpoint",
        "coordinator",
    },
    "cli": {"base", "brain", "net", "agent", "coordinator", "observe", "checkpoint", "memory_server"},
}
# What a room of a module may include of its other rooms; all of them, the headers that lie in the module's own folder.
ROOMS_MAY_INCLUDE = {
    "agent/control": {"loop"},
    "agent/job": set(),
    "agent/loop": set(),
    "agent/memory": {"control", "loop"},
    "agent/nodes": {"job", "loop", "parts", "rings", "store", "watch", "workers"},
    "agent/parts": {"control", "job", "loop", "memory", "publications", "store", "watch", "workers"},
    "agent/publications": {"loop"},
    "agent/rings": {"loop"},
    "agent/store": set(),
    "agent/watch": {"job", "loop", "workers"},
    "agent/workers": {"job", "loop"},
    "base/socket": set(),
    "brain/commit": set(),
    "brain/copies": {"commit"},
    "brain/detect": set(),
    "brain/elastic": set(),
    "brain/ladder": set(),
    "brain/memory": set(),
    "brain/membership": {"commit", "copies", "elastic", "ladder", "table"},
    "brain/node": {"membership"},
    "brain/rank": set(),
    "brain/reshard": set(),
    "brain/schedules": {"membership", "node", "rank"},
    "brain/table": set(),
    "checkpoint/dcp": set(),
    "checkpoint/memory": set(),
    "checkpoint/s3": set(),
    "cli/commands": {"options"},
    "cli/options": set(),
    "comm/collectives": {"numbers"},
    "comm/numbers": set(),
    "comm/p2p": {"collectives"},
    "comm/tcp": set(),
    "data/build": {"corpus"},
    "data/corpus": set(),
    "data/order": set(),
    "data/ring": set(),
    "rank/checks": set(),
    "rank/engine": {"hydrate", "link", "shards", "vote"},
    "rank/hydrate": {"link"},
    "rank/link": set(),
    "rank/shards": {"link"},
    "rank/trainer": {"checks", "engine", "link"},
    "rank/vote": {"link"},
    "state/device": set(),
    "state/vault": set(),
}
# Likewise the packages of keepstep.torch. Its modules that are in no package import none, and are open to all.
MAY_IMPORT = {
    "tensors": set(),
    "distributed": {"tensors"},
    "reduction": {"tensors", "distributed"},
    "data_parallel": {"tensors", "distributed", "reduction"},
    "state": {"tensors"},
    "integrity": {"tensors", "data_parallel", "state"},
    "sharded": {"tensors", "state"},
    "checkpoint": {"tensors", "state", "sharded"},
    "recovery": {"tensors", "distributed", "state", "integrity", "sharded"},
    "data": {"distributed"},
    "step": {"reduction", "data_parallel", "state", "recovery", "data"},
    "prepared": {"tensors", "distributed", "data_parallel", "state", "data", "step"},
    "runtime": {
        "tensors",
        "distributed",
        "data_parallel",
        "state",
        "integrity",
        "sharded",
        "checkpoint",
        "recovery",
        "data",
        "step",
        "prepared",
    },
}
MAX_ENTRIES = 40  # in a folder, so that one can look through it
MAX_METHODS = 40  # of a class
MAX_FUNCTION_LINES = 80
BRAIN_VALUE_TYPES = {"brain/types.h"}
# Third-party headers that must never reach the processes that train.
CONTROL_PLANE_ONLY = ("google/protobuf", "generated/", "CLI/")


def sources():
    return sorted(path for path in SRC.rglob("*") if path.suffix in (".h", ".cc"))


def includes(path):
    return re.findall(r'^#include ["<]([^">]+)[">]', path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SRC)))
def test_dependencies_point_one_way(path):
    module = path.relative_to(SRC).parts[0]
    for include in includes(path):
        target = include.split("/")[0]
        if "/" in include and target in MAY_INCLUDE and target != module and include not in BRAIN_VALUE_TYPES:
            allowed = MAY_INCLUDE[module] | ({"coordinator", "agent"} if path.name.endswith("_test.cc") else set())
            assert target in allowed, f"{module} may not include {include}"


@pytest.mark.parametrize("room", sorted(ROOMS_MAY_INCLUDE))
def test_rooms_depend_one_way(room):
    module, name = room.split("/")
    for path in (SRC / room).glob("*"):
        if path.suffix not in (".h", ".cc") or path.name.endswith(("_test.cc", "_fuzz.cc", "_testing.h")):
            continue
        for include in includes(path):
            of, *rest = include.split("/")
            if of == module and len(rest) == 2 and rest[0] != name:
                assert rest[0] in ROOMS_MAY_INCLUDE[room], f"{room}/{path.name} may not include {include}"


def test_every_room_is_listed_and_none_leads_back():
    rooms = {
        f"{module.name}/{room.name}"
        for module in SRC.iterdir()
        for room in module.iterdir()
        if room.is_dir() and any(room.glob("*.cc"))
    }
    assert rooms == set(ROOMS_MAY_INCLUDE)
    imports = {room: {f"{room.split('/')[0]}/{to}" for to in may} for room, may in ROOMS_MAY_INCLUDE.items()}
    assert circle_in(imports) == []


@pytest.mark.parametrize(
    "module",
    ["base", "net", "brain", "comm", "messages", "state", "data", "rank", "observe", "checkpoint", "memory_server"],
)
def test_no_protobuf_below_the_agent(module):
    for path in (SRC / module).rglob("*"):
        if path.suffix in (".h", ".cc"):
            for include in includes(path):
                assert not include.startswith(CONTROL_PLANE_ONLY), f"{path.name} includes {include}"


def test_brains_do_no_io():
    forbidden = {"fstream", "iostream", "thread", "mutex", "random", "unistd.h", "condition_variable", "future"}
    for path in (SRC / "brain").rglob("*"):
        if (
            path.suffix in (".h", ".cc")
            and not path.name.endswith(("_test.cc", "_testing.h"))
            and not path.name.startswith(("simulat", "transcript"))
        ):
            text = path.read_text()
            assert not forbidden & set(includes(path)), f"{path.name} includes {forbidden & set(includes(path))}"
            assert "clock::now" not in text, f"{path.name} reads a clock"


def test_the_agents_decisions_exist_once():
    """Who handles an order of the coordinator is the node's brain; all others, the random schedules too, feed it."""
    handler = re.compile(r"void [\w:]+\(const (?:brain::)?(?:Seal|Decide|Activate|Kill|Release)& ")
    handlers = {
        str(path.relative_to(SRC))
        for path in sources()
        if handler.search(path.read_text()) and "bench" not in path.name
    }
    shown = {"brain/membership/membership_transcript_test.cc"}  # prints them
    assert handlers == {"brain/node/node.cc", "brain/node/node.h"} | shown


def test_every_module_is_listed_and_has_its_page():
    folders = {path.name for path in SRC.iterdir() if path.is_dir()}
    assert folders == set(MAY_INCLUDE)
    for folder in folders:
        page = SRC / folder / "README.md"
        assert page.exists(), f"src/{folder}/README.md is missing"


def entries_of_folders():
    """By folder: the names in it that git knows, files and folders."""
    listed = subprocess.run(
        ["git", "ls-files", "src", "python", "tests", "scripts", "docs", "examples"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    found = defaultdict(set)
    for name in listed.splitlines():
        path = Path(name)
        for folder in path.parents:
            found[str(folder)].add(path.relative_to(folder).parts[0])
    return found


def test_no_folder_has_more_entries_than_one_can_look_through():
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    full = {folder for folder, names in entries_of_folders().items() if len(names) > MAX_ENTRIES}
    assert not full, f"more than {MAX_ENTRIES} entries: {sorted(full)}"


def is_stub(function):
    return any(getattr(each, "id", "") == "overload" for each in function.decorator_list)


def test_python_classes_and_functions_can_be_surveyed():
    for path in (ROOT / "python" / "keepstep").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and not is_stub(each)]
                assert len(methods) <= MAX_METHODS, f"{path}: {node.name} has {len(methods)} methods"
            elif isinstance(node, ast.FunctionDef):
                documented = len((ast.get_docstring(node) or "").splitlines())
                lines = node.end_lineno - node.lineno + 1 - documented
                assert lines <= MAX_FUNCTION_LINES, f"{path}: {node.name} has {lines} lines"


def shipped_sources():
    return [
        path
        for path in sources()
        if not path.name.endswith(("_test.cc", "_testing.h")) and not path.name.startswith("simulat")
    ]


def test_cc_functions_can_be_surveyed():
    begins = re.compile(r"^(?!namespace|class|struct|enum|extern)\w.*\{$")
    for path in shipped_sources():
        start = None
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if begins.match(line):
                start = number
            elif line == "}" and start is not None:
                lines = number - start + 1
                assert lines <= MAX_FUNCTION_LINES, f"{path}:{start}: a function of {lines} lines"
                start = None


def members_of(text):
    """Of each class in C++ code that clang-format has formatted: its name, and what it declares, one text each."""
    text = re.sub(r"//[^\n]*", "", text)
    for found in re.finditer(
        r"^( *)(?:class|struct) (\w+)(?: final)?(?: : [^{;]*)? \{\n(.*?)^\1\};", text, re.M | re.S
    ):
        indent, name, body = found.groups()
        own = [line for line in body.splitlines() if re.match(rf"{indent}  \S", line)]
        yield name, [line.strip() for line in own if not line.strip().startswith(("}", "friend", "using"))]


def test_cc_classes_can_be_surveyed():
    method = re.compile(r"\w\(|operator")
    counted = 0
    for path in shipped_sources():
        for name, members in members_of(path.read_text()):
            methods = [each for each in members if method.search(each.split("=")[0].split("{")[0])]
            counted += len(methods)
            assert len(methods) <= MAX_METHODS, f"{path}: {name} has {len(methods)} methods"
    assert counted > 2000, "the methods are no longer found"


def test_only_keepstep_torch_and_integrations_import_torch():
    # The worker's bootstrap, the zygote and the scripts that the benchmarks run are where torch is meant to be.
    allowed = {"worker.py", "zygote.py"}
    for path in (ROOT / "python" / "keepstep").rglob("*.py"):
        relative = path.relative_to(ROOT / "python" / "keepstep")
        if relative.parts[0] in ("torch", "integrations") or "jobs" in relative.parts or relative.name in allowed:
            continue
        assert not re.search(r"^\s*(import torch|from torch)", path.read_text(), re.MULTILINE), relative


def imports_of(tree, modules):
    """What a module imports of ours, at its top or in a function. What only type checkers read does not count."""
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= members & modules or {node.module}
    return found & modules


def circle_in(imports):
    """Modules each of which imports the next one, and the last one the first; none: there is no circle."""
    done = set()

    def visit(name, path):
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return []
        for other in sorted(imports[name] - {name}):
            if circle := visit(other, [*path, name]):
                return circle
        done.add(name)
        return []

    return next((circle for name in sorted(imports) if (circle := visit(name, []))), [])


def python_imports():
    """Of each module of the package, by name: the modules of ours that it imports."""
    package = ROOT / "python" / "keepstep"
    files = {}
    for path in package.rglob("*.py"):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = path
    compiled = {f"keepstep.{path.stem}" for path in package.glob("_*.pyi")}
    modules = set(files) | compiled
    imports = {name: set() for name in compiled}
    return imports | {name: imports_of(ast.parse(path.read_text()), modules) for name, path in files.items()}


def test_python_modules_import_in_no_circle():
    circle = circle_in(python_imports())
    assert not circle, " -> ".join([*circle, circle[0]])


def package_in_torch(name):
    """The package of keepstep.torch that the module `name` is in, or is; "" for one that is in none."""
    folder, _, _ = name.removeprefix("keepstep.torch.").partition(".")
    return folder if (ROOT / "python" / "keepstep" / "torch" / folder).is_dir() else ""


def test_packages_of_keepstep_torch_import_one_way():
    for name, imported in python_imports().items():
        if name.startswith("keepstep.torch."):
            package = package_in_torch(name)
            for other in sorted(each for each in imported if each.startswith("keepstep.torch.")):
                allowed = MAY_IMPORT[package] | {package, ""} if package else set()
                assert package_in_torch(other) in allowed, f"{name} may not import {other}"
            assert "keepstep.torch" not in imported, f"{name} may not import what stands on it, keepstep.torch itself"


def test_every_package_of_keepstep_torch_is_listed_and_the_list_goes_one_way():
    folders = {path.parent.name for path in (ROOT / "python" / "keepstep" / "torch").glob("*/__init__.py")}
    assert folders == set(MAY_IMPORT)
    assert not circle_in(MAY_IMPORT)


def test_the_list_of_packages_allows_no_more_than_there_is():
    found = defaultdict(set)
    for name, imported in python_imports().items():
        if name.startswith("keepstep.torch."):
            found[package_in_torch(name)] |= {package_in_torch(other) for other in imported if other.count(".") > 1}
    for package, allowed in MAY_IMPORT.items():
        assert allowed <= found[package], f"{package} does not import {sorted(allowed - found[package])}"


def test_a_circle_of_imports_is_found():
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_version_is_the_same_everywhere():
    found = {
        re.search(r"VERSION (\d+\.\d+\.\d+)", (ROOT / "CMakeLists.txt").read_text()).group(1),
        re.search(r'version = "([^"]+)"', (ROOT / "pyproject.toml").read_text()).group(1),
        re.search(r'kVersion = "([^"]+)"', (SRC / "cli" / "commands" / "version.h").read_text()).group(1),
        re.search(r'__version__ = "([^"]+)"', (ROOT / "python" / "keepstep" / "__init__.py").read_text()).group(1),
    }
    assert len(found) == 1, found


def test_requirements_and_their_page_agree():
    page = (ROOT / "docs" / "design" / "dependencies.md").read_text()
    for name in ("requirements.txt", "requirements-tests.txt"):
        for line in (ROOT / name).read_text().splitlines():
            if line and not line.startswith("#"):
                assert line.split("==")[0].lower() in page.lower(), f"dependencies.md does not say why {line}"
