"""From an authored experiment to what will run: validated, resolved, frozen and scheduled."""
