"""How hypothesis runs the property tests of the rules."""

from hypothesis import settings

# The default deadline of 200 ms a case measures the machine's load, not the rules.
settings.register_profile("rules", deadline=None, max_examples=60)
settings.load_profile("rules")
