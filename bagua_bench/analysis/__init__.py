"""Records for those who work with them: as a data frame, one cell beside another. No torch import."""
