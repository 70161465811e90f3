"""Decides and touches nothing: no clock, files, environment, threads or logging. Time is an argument."""
