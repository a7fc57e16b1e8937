"""``python -m dare_core`` is ``dare``."""

from dare_core.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
