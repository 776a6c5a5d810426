"""docs/api.md: tables of the gateway's endpoints, headers, fields and error codes.

`make reference` writes the page. Tests compare the tables with the code, in both directions.
"""
