"""Words that ranks share, and their accounts."""
