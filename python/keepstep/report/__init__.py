"""Reports a job's recoveries from its journal: ``keepstep report DIR``.

The source is ``DIR/journal.jsonl`` (one line per decision) and ``DIR/metrics.jsonl`` (one line per committed step).
Free of torch. Entry point: `keepstep.report.analysis.analyse`.
"""
