"""Which lines of Python and C++ the tests run: `python -m tests.covered`."""
