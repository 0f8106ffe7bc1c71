"""`python -m bagua_bench check-gpu`: what a machine with a GPU can show in a few minutes. Not yet run on a GPU."""
