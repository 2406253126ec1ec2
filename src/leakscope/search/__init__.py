"""Scores of transformation policies and the search for good ones."""
