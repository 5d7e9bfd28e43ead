"""A shop that keeps its jobs in Django's own database."""
