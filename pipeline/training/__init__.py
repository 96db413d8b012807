"""Training data from recorded runs: a run folder enters, examples in the forms that trainers take leave."""
