"""What a job's journal says about its recoveries: ``keepstep report DIR``.

The source is ``DIR/journal.jsonl`` (one line per decision) and ``DIR/metrics.jsonl`` (one line per committed step).
Free of torch. Entrance: `keepstep.report.analysis.analyse`.
"""
