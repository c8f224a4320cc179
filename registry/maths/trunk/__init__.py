"""Mathematics of trunk methods: the members' tensors of one name become one, in rows of float64."""
