"""One module a subcommand of `antefix`; `deployments.cli` puts them together."""
