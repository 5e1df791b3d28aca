"""Registration of the audit of roles."""

from agentevolver.recipes.audit.settings import AuditSettings
from agentevolver.utils.recipes import Recipe

RECIPE = Recipe(
    name="audit",
    settings=AuditSettings,
    over="agentevolver.recipes.audit.findings:over",
    warnings="agentevolver.recipes.audit.findings:warnings",
)
