"""Commands and ranks of tests start in milliseconds: they are forks of one process that has imported everything.

A command gets what a new interpreter would give it: arguments, folder, environment, standard streams, signals, an exit
code, and a command line in `ps`. It does not get an interpreter that has imported nothing; tests that need one start
one.
"""
