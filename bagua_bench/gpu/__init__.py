"""`python -m bagua_bench check-gpu`: checks that take a few minutes on a machine with a GPU."""
