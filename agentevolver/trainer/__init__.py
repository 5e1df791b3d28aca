"""The trainer: verl's synchronous one with our episodes, our validation and our records."""
