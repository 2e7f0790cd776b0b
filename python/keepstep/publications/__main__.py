"""``keepstep weights``: lists what a running job publishes, or writes one version to a file."""

from __future__ import annotations

import argparse
import json
import sys

from keepstep._command import exit_with
from keepstep._errors import KeepstepError
from keepstep.checkpoint.words import in_bytes
from keepstep.publications.subscription import ASK_S, job_of, subscribe


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="keepstep weights",
        description="Lists what a running job publishes by run.publish; or writes the newest version to a file.",
    )
    parser.add_argument(
        "job", nargs="?", default="", metavar="JOB",
        help="as for `keepstep stacks`: a job's name, its journal's folder, its launcher's pid, or HOST:PORT with a "
        "token; none: the only job on this machine",
    )  # fmt: skip
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the publication")
    parser.add_argument("--out", metavar="FILE", help="write the newest version of NAME to FILE, as safetensors")
    parser.add_argument("--token-file", metavar="FILE", help="the job's token, for HOST:PORT")
    parser.add_argument("--rdzv-id", metavar="ID", help="the job's --rdzv-id, for HOST:PORT")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if (options.name is None) != (options.out is None):
        parser.error("NAME and --out FILE are given together")
    try:
        if options.name is None:
            return _list(options)
        return _save(options)
    except (KeepstepError, OSError) as error:
        print(f"keepstep weights: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _list(options: argparse.Namespace) -> int:
    with job_of(options.job, options.token_file, options.rdzv_id) as job:
        found = job.ask("publications", ASK_S)["publications"]
    if options.json:
        keys = ("name", "version", "bytes")
        print(json.dumps([{**{key: each[key] for key in keys}, "age_s": each["age_ns"] / 1e9} for each in found]))
        return 0
    if not found:
        print("nothing is published")
    for each in found:
        print(f"{each['name']}: step {each['version']:,}, {in_bytes(each['bytes'])}, {each['age_ns'] / 1e9:.1f} s ago")
    return 0


def _save(options: argparse.Namespace) -> int:
    with job_of(options.job, options.token_file, options.rdzv_id) as job:
        listed = job.ask("publications", ASK_S)["publications"]
    if all(each["name"] != options.name for each in listed):
        raise KeepstepError(f"nothing named '{options.name}' is published; the job publishes "
                            f"{', '.join(each['name'] for each in listed) or 'nothing'}")  # fmt: skip
    with subscribe(
        options.name, options.job, token_file=options.token_file, rdzv_id=options.rdzv_id, timeout_s=0
    ) as subscription:
        version = subscription.next(timeout_s=ASK_S)
    if version is None:
        raise KeepstepError(f"'{options.name}' did not come within {ASK_S:.0f} s")
    version.save(options.out)
    if options.json:
        print(json.dumps({"name": options.name, "version": version.step, "bytes": version.bytes, "out": options.out}))
    else:
        print(f"{options.out}: step {version.step:,} of {options.name}, {in_bytes(version.bytes)}")
    return 0


if __name__ == "__main__":
    exit_with(main)
