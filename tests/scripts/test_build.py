"""What is said and done where the build has it hard: a folder with a space, a machine without the packages."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checkout import ROOT, Checkout

SMALL = """
cmake_minimum_required(VERSION 3.24)
project(small LANGUAGES CXX)
if(NOT EXISTS "${Python_EXECUTABLE}")
  message(FATAL_ERROR "no interpreter: ${Python_EXECUTABLE}")
endif()
file(WRITE main.cc "int main() { return 42; }")
add_executable(keepstep main.cc)
"""


@pytest.mark.long
def test_make_builds_in_a_folder_with_a_space(tmp_path):
    checkout = Checkout(tmp_path / "a b")
    (checkout.folder / "CMakeLists.txt").write_text(SMALL)
    checkout.run("make build")
    checkout.run("source .venv/bin/activate; make build; keepstep; [ $? = 42 ]")


@pytest.mark.long
def test_what_does_not_compile_is_told_whole(tmp_path):
    checkout = Checkout(tmp_path / "a b")
    (checkout.folder / "CMakeLists.txt").write_text(SMALL.replace("return 42", "return nothing_like_that"))
    said = checkout.run("make build", ok=False)
    assert "FAILED: CMakeFiles/keepstep.dir/main.cc.o" in said
    assert re.search("main.cc:1:.*error: .nothing_like_that. was not declared", said)
    assert "ninja: build stopped" in said


@pytest.mark.long
def test_the_whole_tree_builds_in_a_folder_with_a_space(tmp_path):
    """With the packages of this checkout's own environment, which are there already."""
    tree = tmp_path / "a b"
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT).decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    subprocess.run(["make", "build"], cwd=tree, check=True)
    (tree / "talk.py").write_text("import os, torch, keepstep\nprint('hello from', os.environ['RANK'])\n")
    said = subprocess.check_output(
        [tree / ".venv/bin/keepstep", "run", "--nproc-per-node", "2", tree / "talk.py"], cwd=tmp_path, text=True
    )
    assert sorted(said.splitlines()) == ["hello from 0", "hello from 1"]


@pytest.mark.long
def test_every_file_includes_what_it_uses(tmp_path):
    """Without precompiled headers; what the sanitizers' builds compile (scripts/sanitize.sh) is left to them."""
    subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON",
         "-DKEEPSTEP_PYTHON_MODULE=OFF"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    subprocess.run(["ninja", "-C", tmp_path, "keepstep_proto"], check=True, stdout=subprocess.DEVNULL)
    commands = json.loads(subprocess.check_output(["ninja", "-C", tmp_path, "-t", "compdb"]))
    theirs = re.compile(f"{ROOT}/src/(agent|cli|coordinator)/.*\\.cc")
    files = {command["file"]: command["command"] for command in commands if theirs.fullmatch(command["file"])}
    assert len(files) > 100

    def check(file):
        done = subprocess.run(
            [*shlex.split(files[file]), "-fsyntax-only"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.stderr if done.returncode else ""

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        complaints = list(filter(None, threads.map(check, files)))
    assert not complaints, "\n".join(complaints)


def missing_packages(said):
    assert said.count("apt-get install") == 1, said
    return set(re.search(r"apt-get install -y --no-install-recommends (.*)", said)[1].split())


def test_pip_install_names_all_packages_that_are_missing(tmp_path):
    """Nothing is there that pkg-config would find, and no absl."""
    pytest.importorskip("scikit_build_core", reason="what builds a wheel is not in this environment")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--target", tmp_path / "to",
         "--config-settings", f"build-dir={tmp_path / 'build'}", "."],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, "CMAKE_ARGS": "-DCMAKE_DISABLE_FIND_PACKAGE_absl=ON", "PKG_CONFIG_LIBDIR": str(tmp_path)},
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert missing_packages(said) == {
        "libabsl-dev", "libxxhash-dev", "libzstd-dev", "libisal-dev", "libtinyxml2-dev",
        "libyaml-cpp-dev", "libre2-dev",
    }  # fmt: skip


def test_without_a_compiler_the_whole_list_is_named(tmp_path):
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path / "build", "-DCMAKE_CXX_COMPILER=NOTFOUND"],
        capture_output=True, text=True, timeout=120, env={**os.environ, "CXX": str(tmp_path / "none")},
    )  # fmt: skip
    named = missing_packages(done.stdout + done.stderr)
    assert {"g++", "pkg-config", "libabsl-dev", "libre2-dev"} <= named
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    installed = set(re.search(r"packages=\((.*?)\)", setup, re.DOTALL)[1].split())
    assert named <= installed, "scripts/setup.sh does not install what the build asks for"


@pytest.mark.parametrize("leads_to", [".venv/bin/keepstep", "build/keepstep"])
def test_the_command_through_a_symlink_finds_its_package(tmp_path, leads_to):
    there = Path(sys.prefix) / "bin" / "keepstep" if leads_to.startswith(".venv") else ROOT / leads_to
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "keepstep").symlink_to(there)
    (tmp_path / "bin" / "python").symlink_to("/usr/bin/env")  # of something else
    (tmp_path / "talk.py").write_text("import keepstep\nprint('it is', keepstep.__file__)\n")
    values = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": os.environ["HOME"]}
    for command in (["report", "--help"], ["run", "--nproc-per-node", "1", "talk.py"]):
        done = subprocess.run(
            ["keepstep", *command], cwd=tmp_path, env=values, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == f"it is {ROOT / 'python/keepstep/__init__.py'}\n"
