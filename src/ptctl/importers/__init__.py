"""Task sources → Task rows. Each importer is built with a seed and offers `tasks(source)`."""
