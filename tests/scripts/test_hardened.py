"""What is built is hardened, and says what it is made of."""

import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys

import pytest
from checkout import ROOT

COMMAND = ROOT / "build" / "keepstep"
PACKAGE = ROOT / "python" / "keepstep"
SUFFIX = ".cpython-{}{}-x86_64-linux-gnu.so".format(*sys.version_info)
BUILT = [COMMAND, *(PACKAGE / f"{name}{SUFFIX}" for name in ("_engine", "_checkpoint"))]


def output(*command):
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def version(*words):
    return output(COMMAND, "version", *words)


@pytest.mark.parametrize("binary", BUILT, ids=lambda path: path.name.partition(".")[0])
def test_a_mistake_in_memory_ends_the_process(binary):
    dynamic = output("readelf", "--wide", "--dynamic", binary)
    assert re.search(r"\(FLAGS_1\).*\bNOW\b", dynamic), "functions are looked up late: their table can be written to"
    headers = output("readelf", "--wide", "--program-headers", binary)
    assert "GNU_RELRO" in headers
    (stack,) = re.findall(r"GNU_STACK.*", headers)
    assert "RWE" not in stack
    used = output("readelf", "--wide", "--dyn-syms", binary)
    assert "__stack_chk_fail" in used
    assert re.search(r"__(memcpy|memset|snprintf|vsnprintf|read|fprintf|printf|memmove)_chk", used)


def test_the_command_is_loaded_anywhere():
    assert "(Position-Independent Executable file)" in output("readelf", "--file-header", COMMAND)


def test_version_tells_what_it_was_built_with():
    told = json.loads(version("--json"))
    assert version() == output(COMMAND, "--version") == f"keepstep {told['keepstep']}\n"
    assert {"GNU", "abseil", "curl", "isa-l", "nanobind", "openssl", "protobuf", "zstd"} <= told["built_with"].keys()
    assert told["built_with"]["nanobind"] == importlib.metadata.version("nanobind")
    assert all(re.match(r"\d", each) for part in ("built_with", "loaded") for each in told[part].values())
    refused = subprocess.run([COMMAND, "version", "--jsno"], capture_output=True, text=True)
    assert refused.returncode == 2 and "--jsno" in refused.stderr


def test_the_bill_of_materials_names_every_library():
    pytest.importorskip("tomllib", reason="scripts/sbom.py needs Python 3.11")
    bill = json.loads(output(sys.executable, ROOT / "scripts" / "sbom.py"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["bom-ref"]: part for part in bill["components"]}
    assert len(parts) == len(bill["components"]), "two parts have one reference"
    assert set(bill["dependencies"][0]["dependsOn"]) == parts.keys()
    own = {part["name"]: part["hashes"][0]["content"] for part in parts.values() if "hashes" in part}
    assert own["keepstep"] == hashlib.sha256(COMMAND.read_bytes()).hexdigest()
    assert {path.name for path in BUILT} <= own.keys()
    debian = {part["name"]: part["version"] for ref, part in parts.items() if ref.startswith("pkg:deb/")}
    for package in ("libssl3", "libc6", "libcurl4"):
        assert debian[package] == output("dpkg-query", "--show", "--showformat", "${Version}", package)
    assert parts[f"pkg:pypi/torch@{importlib.metadata.version('torch')}"]["version"]
    assert parts[f"pkg:generic/openssl@{json.loads(version('--json'))['built_with']['openssl']}"]
