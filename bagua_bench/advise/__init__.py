"""Advises which algorithm and transport to use for a task on a cluster. Imports torch only to simulate."""
