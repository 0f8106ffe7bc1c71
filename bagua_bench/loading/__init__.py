"""What loading data costs: how even the ranks' work is, and what a cache saves."""
