"""The configuration: its schema, the typed cell that it resolves to, and the checks. No torch import."""
