"""The recipe: one TOML file, typed and strict, that every stage reads.

Precedence: defaults < file < `[[phases]]` overrides < `--set section.key=value`. Every problem is reported at once,
with its line and the nearest known key.
"""

from ptctl.recipe.load import Recipe, load_recipe
from ptctl.recipe.model import Phase, RecipeModel

__all__ = ["Phase", "Recipe", "RecipeModel", "load_recipe"]
