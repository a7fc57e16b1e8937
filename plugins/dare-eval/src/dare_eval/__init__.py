"""Task verifiers: GSM8K, MATH, Countdown, Sudoku."""
