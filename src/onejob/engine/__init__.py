"""What every caller of a store shares: one place that applies steps and does the follow-up work."""
