"""The HTML page of a report: template, style, script and charts.

In: the document `report_v1`. Out: one HTML file that works offline.
Imported by `report.rendering` alone, since its libraries take long to import.
"""
