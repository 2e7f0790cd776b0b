"""Ranks forked from here, once what the script imports is imported: ``forked_ranks.py FOLDER SCRIPT ARGUMENTS...``.

ARGUMENTS: of each rank, as a JSON list. Rank i finds RANK and WORLD_SIZE in its environment and prints into
FOLDER/rank-i.txt; a line of JSON has the exit codes.
"""

import ast
import gc
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

folder, script, *arguments = sys.argv[1:]


def import_what_it_imports():
    for node in ast.parse(Path(script).read_text()).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            exec(compile(ast.Module([node], []), script, "exec"), {})


def run(number, words):
    code = 1
    try:
        output = os.open(Path(folder) / f"rank-{number}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = [script, *words]
        os.environ.update(RANK=str(number), WORLD_SIZE=str(len(arguments)))
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


gc.disable()  # while half a million objects are made that all stay
import_what_it_imports()
gc.freeze()
gc.enable()
pids = []
for number, words in enumerate(map(json.loads, arguments)):
    pid = os.fork()
    if pid == 0:
        run(number, words)
    pids.append(pid)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]))
