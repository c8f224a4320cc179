"""Tables in the shape of the papers'."""
