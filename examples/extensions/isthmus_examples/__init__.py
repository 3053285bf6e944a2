"""One extension of each kind; `docs/extending.md` explains them."""
