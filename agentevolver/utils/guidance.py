"""Template of the text that presents experience, in rollouts and in demonstrations."""

TEMPLATE = (
    "\n\nSome experience that earlier attempts at similar tasks have left you, to be used where it "
    "applies:\n<EXP>{}</EXP>\n\n"
)
