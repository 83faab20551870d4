"""squilla_files: a file-based, local-first session store for desktop AI agents.

The public names are listed in `squilla_files.public`. That module is imported when the first of them is asked for, so
that importing the package, or one submodule of it, costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from squilla_files.public import *  # noqa: F403
else:

    def _load_public():
        """Take all public names into this module, where they are found from now on, and return them."""
        public = vars(import_module("squilla_files.public"))
        names = {name: value for name, value in public.items() if not name.startswith("_")}
        globals().update(names, __all__=["__version__", *names])
        return names

    def __getattr__(name):
        # The import system asks for a submodule here before it looks for the file. Loading the public names then would
        # run into the module that is just being imported.
        if name == "__all__" or not (name.startswith("_") or find_spec(f"squilla_files.{name}")):
            names = _load_public()
            if name in names or name == "__all__":
                return globals()[name]
        raise AttributeError(f"module 'squilla_files' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_load_public()})
