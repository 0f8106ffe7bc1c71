"""What the user sees of runs on the terminal. No torch import."""
