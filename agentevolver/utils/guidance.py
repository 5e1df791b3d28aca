"""The words around guidance by experience, for whoever injects it into a rollout or into a demonstration."""

TEMPLATE = (
    "\n\nSome experience that earlier attempts at similar tasks have left you, to be used where it "
    "applies:\n<EXP>{}</EXP>\n\n"
)
