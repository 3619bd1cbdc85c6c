"""The HTML page of a report: template, style, script and charts.

In: a `Report`. Out: one HTML file that works offline.
Its libraries are imported when they are first used, because they take long to import.
"""
