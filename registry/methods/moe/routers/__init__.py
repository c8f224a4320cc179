"""Router methods: one file a method."""
