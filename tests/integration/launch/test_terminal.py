"""What ranks say reaches the terminal through the launcher: it is shown there, never obeyed."""

import re

from harness import JOBS, finish, start


def test_an_error_of_a_rank_is_shown_and_not_obeyed(tmp_path):
    process, command = start(tmp_path, JOBS / "obeyed_text.py", world=1)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 1, job.explain()
    assert "ValueError: [/INST] \\x1b]0;title\\x07\\x1b[2J\\u202etxt.exe" in job.output, job.output
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", job.output), ascii(job.output)
    because = job.events("job_ended")[0]["because"]
    assert "\x1b]0;title\x07" in because, because  # the journal has it as it was
