"""Batches: data sets over mapped corpora, a ring of loaded batches per node, waits for data. See `keepstep.data`."""
