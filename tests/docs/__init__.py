"""Every command and program in the documentation runs."""
