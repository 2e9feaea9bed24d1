"""A look at a whole cluster: what is unreadable, inconsistent or foreign. Changes nothing."""
