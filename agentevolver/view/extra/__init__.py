"""Views of recipes; `agentevolver.view.views` finds them."""
