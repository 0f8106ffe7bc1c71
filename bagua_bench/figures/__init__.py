"""Figures: pure functions from records to tables and from tables to axes. No torch import."""
