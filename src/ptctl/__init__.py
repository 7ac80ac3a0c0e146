"""ptctl: post-training of large language models as Unix filters over Parquet."""

__version__ = "0.1.0"
