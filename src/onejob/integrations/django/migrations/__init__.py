"""Django migrations: the admin entry has no table."""
