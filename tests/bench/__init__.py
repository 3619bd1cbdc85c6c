"""Measurements of labledger beside plain baselines (`scripts/bench`)."""
