"""Running programs that a model wrote, in processes of their own."""
