"""Programs of their own: what they do to their process would not be good for the tests'."""
