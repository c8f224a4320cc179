from .recipe import AUTO as AUTO
from .recipe import OUTPUTS as OUTPUTS
from .recipe import Recipe as Recipe
from .recipe_file import RecipeFile as RecipeFile
from .recipe_file import read_recipe as read_recipe
from .recipe_file import write_recipe as write_recipe
