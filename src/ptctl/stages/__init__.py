"""The five stages. Each is a function from datasets to one dataset; none imports another; they meet on disk."""
