"""Who owns what a run leaves on the machine, and which processes end together. No torch import."""
