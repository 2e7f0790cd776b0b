"""Lines about the progress of `keepstep data`, with a clock of the test's own."""

import io

from keepstep.data.builder.progress import Lines, in_bytes, in_time


def test_lines_come_now_and_then_with_rate_and_time_left():
    now, out = [100.0], io.StringIO()
    shown = Lines("reading", 1_000_000_000, 200_000_000, clock=lambda: now[0], out=out)
    for second in range(25):
        now[0] = 100.0 + second
        shown.update(200_000_000 + second * 20_000_000)
    assert out.getvalue().splitlines() == [
        "reading: 40%, 400.0 MB of 1.0 GB, 20.0 MB/s, 30 s left",
        "reading: 60%, 600.0 MB of 1.0 GB, 20.0 MB/s, 20 s left",
    ]


def test_sizes_and_times_are_for_people():
    assert [in_bytes(count) for count in (7, 1500, 2_000_000, 3.2e9, 4e12)] == [
        "7 B",
        "1.5 kB",
        "2.0 MB",
        "3.2 GB",
        "4.00 TB",
    ]
    assert [in_time(seconds) for seconds in (0.4, 61, 7260)] == ["0 s", "1 min 1 s", "2 h 1 min"]
