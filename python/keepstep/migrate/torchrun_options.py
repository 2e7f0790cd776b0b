"""The options of torchrun and hyperpodrun, and what `keepstep run` does with each.

`tests/python_migrate/test_option_tables.py` compares the first three tables with docs/reference/run.md. Those of
hyperpodrun are from hyperpod-elastic-agent 1.1.3, which takes torchrun's too.
"""

from __future__ import annotations

SHORT = {"m": "module", "r": "redirects", "t": "tee"}

# Mean the same in `keepstep run`. True: a value follows.
KEPT = {
    "nnodes": True,
    "nproc-per-node": True,
    "node-rank": True,
    "role": True,
    "module": False,
    "no-python": False,
    "run-path": False,
    "start-method": True,
    "log-dir": True,
    "redirects": True,
    "tee": True,
    "local-ranks-filter": True,
    "max-restarts": True,
    "standalone": False,
    "master-addr": True,
    "master-port": True,
    "local-addr": True,
    "rdzv-id": True,
    "rdzv-backend": True,
    "rdzv-endpoint": True,
}

# `keepstep run` accepts them, and they change nothing there.
NO_EFFECT = {
    "monitor-interval": "keepstep waits for events; it never polls",
    "rdzv-conf": "--join-timeout says how long nodes may take to join",
    "event-log-handler": "events are in the journal (--journal)",
    "signals-to-handle": "SIGINT, SIGTERM and SIGHUP end the job cleanly",
    "shutdown-timeout": "keepstep has its own limit for ending workers",
    "log-line-prefix-template": "teed lines begin with [ROLERANK]:",
    "numa-binding": "use numactl to bind the job",
}

# `keepstep run` refuses them. True: a value follows.
REFUSED = {
    "virtual-local-rank": (False, "set CUDA_VISIBLE_DEVICES from LOCAL_RANK at the top of the script"),
    "duplicate-stdout-filters": (True, "use --log-dir and filter its files with grep"),
    "duplicate-stderr-filters": (True, "use --log-dir and filter its files with grep"),
    "logs-specs": (True, "use --log-dir, --redirects and --tee"),
    "print-completion": (True, "`keepstep run --help` lists all options"),
}

_SCRIPT = (
    "put its command into this script, {where} keepstep run. hyperpodrun runs it again when all processes restart, "
    "keepstep does not"
)
HYPERPOD = {
    "shutdown-signal": (True, "SIGTERM and SIGUSR1 to a launcher are notices: the ranks finish their step first"),
    "inprocess-restart": (False, "survivors keep their process in every recoverable function"),
    "server-host": (True, "there is no server for an operator"),
    "server-port": (True, "there is no server for an operator"),
    "server-log-level": (True, "there is no server for an operator"),
    "server-shutdown-timeout": (True, "there is no server for an operator"),
}
HYPERPOD_SCRIPTS = {
    "pre-train-script": _SCRIPT.format(where="before"),
    "pre-train-args": "belongs to --pre-train-script",
    "post-train-script": _SCRIPT.format(where="after"),
    "post-train-args": "belongs to --post-train-script",
}

_TAKES_VALUE = {
    **KEPT,
    **dict.fromkeys(NO_EFFECT, True),
    **{name: takes for name, (takes, _) in REFUSED.items()},
}
_OF_HYPERPOD = {
    **{name: takes for name, (takes, _) in HYPERPOD.items()},
    **dict.fromkeys(HYPERPOD_SCRIPTS, True),
    "inprocess-timeout": True,
}


def known(word: str, hyperpod: bool) -> tuple[str, bool] | None:
    """The long name of the option, and whether a value follows. Like argparse it may be an unambiguous beginning."""
    table = {**_TAKES_VALUE, **_OF_HYPERPOD} if hyperpod else _TAKES_VALUE
    if not word.startswith("--"):
        name = SHORT.get(word[1:2], "")
        return (name, table[name] and len(word) == 2) if name else None
    given = word[2:].replace("_", "-")
    found = [given] if given in table else [name for name in table if name.startswith(given)]
    return (found[0], table[found[0]]) if len(found) == 1 else None
