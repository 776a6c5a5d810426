"""docs/api.md: tables of the gateway's endpoints, headers, fields and error codes.

`make reference` writes the page. Error codes are in `deployments.gateway.api`, which the code uses.
"""
