"""Machines that are not here: how long they compute, and the layers of the models they train."""
