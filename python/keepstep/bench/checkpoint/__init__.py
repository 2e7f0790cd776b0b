"""Copies of sharded state (`checkpoint`) and the arithmetic of parity (`parity`)."""
