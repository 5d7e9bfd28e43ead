"""Examine stores and jobs."""
