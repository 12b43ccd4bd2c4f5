"""A module beside the DAG file, which travels to machines as source."""

VALUE = "travelled"
