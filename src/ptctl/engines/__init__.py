"""What generates: `local` (in-process transformers model) and `oracle` (acts out reference solutions)."""
