"""``python -m dare_core`` is ``dare``."""

from dare_core.cli.main import main

raise SystemExit(main())
