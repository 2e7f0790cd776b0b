"""Copies of sharded state (`checkpoint`), the memory server (`memory`) and the arithmetic of parity (`parity`)."""
