"""Integrations with frameworks. Each is loaded only if it is imported, and uses public names of onejob."""
