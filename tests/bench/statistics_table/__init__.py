"""The table of simulated errors: every output and gate of `compare`, over a grid of designs.

`designs` names the cells, `populations` draws their trials, `outputs` calls labledger's own
statistics on them, `cells` runs cells and stores their counts, `page` writes the reference page.
"""
