"""The coordinator and its hosts in a simulated world: see docs/explanation/simulation.md."""
