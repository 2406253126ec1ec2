"""A client attacks its own update before it sends it: settings, checks, their history and the decision."""
