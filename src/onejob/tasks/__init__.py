"""What users declare and enqueue."""
