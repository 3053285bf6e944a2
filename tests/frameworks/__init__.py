"""The integrations beside the real frameworks, in an environment of their own; `test_inside` says how."""
