"""Stores that speak SQL: shared flows, one file of statements per dialect, one engine each."""
