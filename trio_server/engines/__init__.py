"""The engines: threads that own native models. They know no HTTP, no wire types and no routes."""
