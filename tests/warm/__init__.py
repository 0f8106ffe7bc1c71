"""Commands and ranks of tests start in milliseconds: they are forks of one process that has imported everything.

What a command gets is what a new interpreter would give it: arguments, folder, environment, standard streams, signals,
an exit code, and a command line in `ps`. What it does not get is an interpreter that has imported nothing; tests whose
claim that is start one.
"""
