"""Tools of this repository that the package does not install: they measure, torture and test its parts."""
