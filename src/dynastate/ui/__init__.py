"""`dynastate ui`: a web page on the loopback address that shows state, its history, its cost and its health.

    server     the port, the URL with its token, and the web server
    app        routes, the checks of each request, and how a page is drawn
    page       the input (`Ask`) and the output (`Page`) of a view
    pages      a module for each view: read these first
    site       what all views share: tables, watched namespaces, open readers, rows that are being read
    watch      one namespace, read again in the background while somebody looks
    cursor     rows of a long result, read as far as somebody has paged
    check      `verify` in the background, with its progress
    charts     places of bars; the templates draw them as SVG

It only reads: the policy of a reader suffices, except for the list of all namespaces, which is a Scan.
"""

from __future__ import annotations

import importlib.util

from dynastate.errors import ConfigurationError

#: Modules that the page needs; all of them come with `dynastate[ui]`.
_MODULES = ("jinja2", "starlette", "uvicorn")


def check_requirements() -> None:
    """Refuse to start if a package that the page needs is not installed; the error says what to install."""
    missing = [module for module in _MODULES if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigurationError(f"the page needs {', '.join(missing)}; pip install jinja2 starlette uvicorn")
