"""Loads: which model a start serves, how it is fitted to its settings, and what one loaded model offers its routes."""
