"""Actions: schema, aliases of other environments, execution."""
