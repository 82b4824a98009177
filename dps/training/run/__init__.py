"""A fit as a sequence of generations: launch, supervision and recovery."""
