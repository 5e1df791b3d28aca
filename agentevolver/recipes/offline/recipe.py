"""Registration of the offline kit: a policy and a teacher for runs without a model, a GPU or a key."""

from agentevolver.recipes.offline.seed import SHIPPED
from agentevolver.recipes.offline.settings import TeacherSettings
from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(
    name="offline",
    layer="agentevolver.recipes.offline.layer:layer",
    services="agentevolver.recipes.offline.service:services",
    stand_in=TeacherSettings,
    environment="pocket",
    models=SHIPPED,
)
