"""Configuration: from YAML files to frozen models, with file:line:col for every complaint."""
