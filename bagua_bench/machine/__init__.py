"""Machines that are not at hand: how long they compute, and the layers of the models they train."""
