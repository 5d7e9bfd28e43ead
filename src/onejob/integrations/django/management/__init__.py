"""Django commands."""
