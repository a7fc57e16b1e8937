"""The SDAR family."""
