"""Shards of parameters: their memory, the Actors that own it, and the ways to them."""
