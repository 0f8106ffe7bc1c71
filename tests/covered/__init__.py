"""Which lines the tests run, of Python and of C++: `python -m tests.covered`."""
