"""The configuration: its schema, the typed cell that comes of it, and the checks. No torch import."""
