"""Background jobs in which the same work is never done twice by accident."""
