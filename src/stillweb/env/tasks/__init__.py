"""Tasks: file formats, evaluators, scoring."""
