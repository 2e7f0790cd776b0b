"""The report as one JSON object. Times are in milliseconds if the name ends in ``_ms``, else in seconds (``_s``)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from keepstep.report.analysis import Analysis
from keepstep.report.recovery import Fault, Recovery
from keepstep.report.resizes import Resize
from keepstep.report.stragglers import Straggler


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _fault(fault: Fault) -> dict[str, Any]:
    return {
        "rank": fault.rank,
        "worker": fault.worker,
        "pid": fault.pid,
        "node": fault.node,
        "ranks": fault.ranks,
        "kind": fault.kind,
        "how": fault.how(),
        "signal": fault.signal,
        "exit_code": fault.exit_code,
        "step": fault.step,
        "detected_by": fault.detected_by,
        "because": fault.because,
    }


def recovery_json(recovery: Recovery) -> dict[str, Any]:
    return {
        "at_s": round(recovery.started_t, 6),
        "complete": recovery.complete,
        "faults": [_fault(fault) for fault in recovery.faults],
        "rungs": recovery.rungs,
        "step": recovery.step,
        "verdict": recovery.verdict,
        "because": recovery.verdict_because,
        "generations": [recovery.from_generation, recovery.to_generation],
        "newcomers": recovery.newcomers,
        "replaced_by": recovery.replaced_by,
        "phases_ms": {phase: _ms(seconds) for phase, seconds in recovery.phases_s().items()},
        "total_ms": _ms(recovery.total_s),
        "downtime_ms": _ms(recovery.downtime_s),
        "bytes_moved": recovery.bytes_moved,
        "hydrated": [
            {
                "rank": hydration.rank,
                "bytes": hydration.bytes,
                "ms": _ms(hydration.seconds),
                "bytes_from_rank": dict(
                    zip((str(source) for source in hydration.sources), hydration.bytes_from, strict=False)
                ),
            }
            for hydration in recovery.hydrations
        ],
        "lost_steps": recovery.lost_steps,
        "redone_steps": recovery.redone_steps,
    }


def _straggler(straggler: Straggler) -> dict[str, Any]:
    return {
        "rank": straggler.rank,
        "node": straggler.node,
        "host": straggler.host,
        "from_s": round(straggler.from_t, 6),
        "until_s": None if straggler.until_t is None else round(straggler.until_t, 6),
        "computed_ms": _ms(straggler.computed_s),
        "others_ms": _ms(straggler.others_s),
        "share": straggler.share,
        "lost_s": round(straggler.lost_s, 3),
    }


def _resize(resize: Resize) -> dict[str, Any]:
    return {
        "at_s": round(resize.t, 6),
        "step": resize.step,
        "ranks_before": resize.before,
        "ranks": resize.now,
        "pause_ms": _ms(resize.pause_s),
        "because": resize.because,
    }


def report_json(analysis: Analysis) -> dict[str, Any]:
    totals = analysis.totals
    return {
        "directory": str(analysis.directory),
        "job": {
            "script": analysis.script,
            "version": analysis.version,
            "world_size": analysis.world_size,
            "spares": analysis.spares,
            "exit_code": analysis.ended,
            "because": analysis.ended_because,
            "outlived": analysis.outlived,
        },
        "steps": len(analysis.commits),
        "last_step": analysis.commits[-1].step if analysis.commits else None,
        "median_step_ms": _ms(analysis.median_step_s),
        "recoveries": [recovery_json(recovery) for recovery in analysis.recoveries],
        "spares_lost": [_fault(fault) for fault in analysis.spares_lost],
        "resizes": [_resize(resize) for resize in analysis.resizes],
        "stragglers": [_straggler(straggler) for straggler in analysis.stragglers],
        "data_waits": [asdict(waits) for waits in analysis.data_waits],
        "totals": {
            "wall_s": round(totals.wall_s, 6),
            "starting_s": totals.starting_s,
            "useful_s": round(totals.useful_s, 6),
            "goodput": totals.goodput,
            "recovering_s": round(totals.recovering_s, 6),
            "lost_rank_seconds": round(totals.lost_rank_seconds, 6),
            "lost_money": totals.lost_money,
            "lost_steps": totals.lost_steps,
            "redone_steps": totals.redone_steps,
            "bytes_moved": totals.bytes_moved,
        },
        "memory": {
            "bytes_per_rank": analysis.memory_per_rank,
            "bytes_total": analysis.memory_total,
            "sockets_at_most": analysis.sockets,
            "connections_per_rank": analysis.connections_per_rank,
        },
        "refused": analysis.refused,
        "unreadable_lines": analysis.unreadable,
    }
