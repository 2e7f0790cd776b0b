"""What people and programs get."""

import io
import json

import pytest

from keepstep._console import Console
from keepstep.doctor import __main__ as command
from keepstep.doctor import show
from keepstep.doctor.finding import error, fine, warning

FINE, WARNING, ERROR = fine("torch", "2.15.0"), warning("wall clock", "it is wrong", "set it"), error("kernel", "no")


@pytest.mark.parametrize(
    "findings, verdict",
    [
        ([FINE], "This machine can run keepstep jobs."),
        ([FINE, WARNING], "This machine can run keepstep jobs; 1 thing to know."),
        ([FINE, WARNING, WARNING], "This machine can run keepstep jobs; 2 things to know."),
        ([ERROR, FINE, ERROR, error("torch", "")], "This machine cannot run keepstep jobs yet: kernel, torch."),
        ([ERROR, WARNING], "This machine cannot run keepstep jobs yet: kernel; and 1 thing to know."),
        ([FINE, error("peers", "")], "This machine cannot run keepstep jobs with its peers yet: peers."),
    ],
)
def test_the_verdict_names_what_keeps_jobs_from_running(findings, verdict):
    assert show.verdict(findings) == verdict


def test_json_has_all_findings_and_the_verdict(capsys):
    show.print_json([FINE, WARNING, ERROR], "0.1.0")
    assert json.loads(capsys.readouterr().out) == {
        "can_run": False,
        "verdict": "This machine cannot run keepstep jobs yet: kernel; and 1 thing to know.",
        "version": "0.1.0",
        "checks": [
            {"check": "torch", "level": "fine", "found": "2.15.0", "advice": ""},
            {"check": "wall clock", "level": "warning", "found": "it is wrong", "advice": "set it"},
            {"check": "kernel", "level": "error", "found": "no", "advice": ""},
        ],
    }


def test_lines_without_a_terminal_have_no_colour_and_are_not_broken(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    long = fine("host name", "x" * 500 + "\x1b[31m [red]")
    with show.Page(Console()) as page:
        page.begin("nothing")
        for finding in (long, WARNING):
            page.add(finding)
        page.end([long, WARNING])
    assert out.getvalue() == (
        f"fine    host name: {'x' * 500}\\x1b[31m [red]\n"
        "warning wall clock: it is wrong\n        -> set it\n"
        "This machine can run keepstep jobs; 1 thing to know.\n"
    )


@pytest.mark.parametrize("findings, code", [([FINE, WARNING], 0), ([FINE, ERROR], 1)])
def test_warnings_do_not_fail_and_errors_do(monkeypatch, capsys, findings, code):
    monkeypatch.setattr(command, "checks", lambda wanted, begin: iter(findings))
    assert command.main([]) == code
    assert capsys.readouterr().out.endswith(show.verdict(findings) + "\n")
    assert command.main(["--json"]) == code
    assert json.loads(capsys.readouterr().out)["can_run"] == (code == 0)


@pytest.mark.parametrize(
    "words, says",
    [
        (["--nproc-per-node", "0"], "--nproc-per-node is 0; give 1 to 63"),
        (["--token-file", "x"], "--token-file is for peers; give --rdzv-endpoint, too"),
        (["--rdzv-endpoint", "a", "--nnodes", "1"], "--nnodes is 1; at least 2 machines meet at --rdzv-endpoint"),
        (["--rdzv-endpoint", "a", "--timeout-s", "0"], "--timeout-s is 0; give 1 to 3600 seconds"),
        (["--rdzv-endpoint", "a:b"], "give HOST or HOST:PORT"),
        (["--jso"], "unrecognized arguments: --jso"),
    ],
)
def test_wrong_options_are_named(capsys, words, says):
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_ctrl_c_ends_it(monkeypatch, capsys):
    def interrupted(wanted, begin):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "checks", interrupted)
    assert command.main([]) == 130
    assert "stopped" in capsys.readouterr().err
