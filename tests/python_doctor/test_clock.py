"""This machine's clocks."""

from surroundings import only, system

from keepstep.doctor import clock
from keepstep.doctor.finding import fine, warning

SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
NOON = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC


def test_a_slow_source_is_a_warning(tmp_path):
    finding = only(clock.source(system(tmp_path, {SOURCE: "acpi_pm\n"})))
    assert finding.level == "warning"
    assert finding.found.startswith("its source is acpi_pm: each look at it is a system call")


def test_a_fast_source_is_fine(tmp_path):
    assert clock.source(system(tmp_path, {SOURCE: "kvm-clock\n"})) == [fine("monotonic clock", "kvm-clock")]
    assert only(clock.source(system(tmp_path / "none", {}))).level == "fine"


def test_a_clock_before_the_build_is_wrong():
    assert clock.wall(0, 86400.0, NOON) == [
        warning(
            "wall clock",
            "1970-01-02 00:00:00 UTC is before keepstep was built here",
            "set the clock (chronyd, systemd-timesyncd): S3 refuses such times",
        )
    ]


def test_an_unsynchronized_clock_is_a_warning_and_a_kept_one_is_fine():
    finding = only(clock.wall(0x40 | 0x1, NOON, NOON))
    assert finding.level == "warning"
    assert finding.found.startswith("2027-01-15 08:00:00 UTC, and no NTP service keeps it right")
    assert clock.wall(0x2001, NOON, NOON) == [fine("wall clock", "2027-01-15 08:00:00 UTC, kept by NTP")]
    assert clock.wall(None, NOON, NOON) == [fine("wall clock", "2027-01-15 08:00:00 UTC")]


def test_the_kernel_is_asked():
    status = clock.kernel_status()
    assert status is None or status & ~0xFFFF == 0
