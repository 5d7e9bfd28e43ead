"""PostgreSQL: strong, durable, and as many machines as you like."""
