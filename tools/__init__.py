"""Tools for people who work on onejob."""
