"""Accelerate under keepstep (tested with 1.15)."""

from __future__ import annotations

from keepstep.integrations.accelerate.process_state import follow_ranks

follow_ranks()
