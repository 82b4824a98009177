"""A fit as generations: launch, supervise, recover."""
