"""What ranks publish with ``run.publish``, as processes that are no ranks see it."""

MAX_NAME_BYTES = 100  # of a publication: src/messages/publication_messages.h
