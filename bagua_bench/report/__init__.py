"""Records and figures as one page of HTML."""
