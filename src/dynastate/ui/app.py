"""Routes, the checks of each request, and how a page is drawn."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dynastate.errors import ConfigurationError, CorruptStateError, DynastateError, VersionMissingError
from dynastate.ui.page import Ask, Page
from dynastate.ui.pages import compare, cost, health, key, operator, queries, rows
from dynastate.ui.site import Site
from dynastate.ui.texts import NONE, NUMERIC, clock_text, value_text, visible
from dynastate.ui.watch import clock_time
from dynastate.version import __version__

HERE: Final = Path(str(files("dynastate.ui")))
HOSTS: Final = ("127.0.0.1", "localhost")
#: Headers of every answer. Only the page's own scripts and styles are allowed, and nothing from another host.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
View = Callable[[Site, Ask], Page]
#: Views of a namespace, and of an operator, by their place in a URL.
OF_NAMESPACE: Final[Mapping[str, View]] = {"query": queries.view, "cost": cost.view, "health": health.view}
OF_OPERATOR: Final[Mapping[str, View]] = {
    "operator": operator.view,
    "key": key.view,
    "rows": rows.view,
    "compare": compare.view,
}
#: Views that are read again by themselves, also after they failed, after so many seconds.
POLLED: Final = (queries.view, health.view, operator.view)
RETRY_S: Final = 5.0
#: Seconds after which a view that is not read again asks whether DynamoDB still answers.
PULSE_S: Final = 5.0


def make_app(site: Site, token: str) -> Starlette:
    """The application. Every URL begins with the token, which a reader needs."""
    pages = _environment(token)
    prefix = "/{token}"
    routes = [
        Route("/{token}/", partial(_show, site, pages, "query")),
        *(Route(f"{prefix}/{name}/{{namespace}}", partial(_show, site, pages, name)) for name in OF_NAMESPACE),
        *(
            Route(f"{prefix}/{name}/{{namespace}}/{{operator:int}}", partial(_show, site, pages, name))
            for name in OF_OPERATOR
        ),
        *(
            Route(f"{prefix}/health/{{namespace}}/{name}", partial(_do, site, token, action), methods=["POST"])
            for name, action in (("verify", health.verify), ("cancel", health.cancel))
        ),
        Route(f"{prefix}/pulse/{{namespace}}", partial(_pulse, site, pages)),
        Mount("/{token}/static", StaticFiles(directory=HERE / "static")),
    ]
    middleware = [
        Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False),
        Middleware(_Guard, token=token),
    ]
    return Starlette(routes=routes, middleware=middleware)


class _Guard:
    """Refuses a request without the token, and adds `HEADERS` to every answer."""

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        token = scope["path"].split("/")[1] if "/" in scope["path"] else ""
        app = self._app
        if not secrets.compare_digest(token.encode(errors="replace"), self._token.encode()):
            app = PlainTextResponse("Open the URL that 'dynastate ui' has printed: it has a token.\n", 403)
        await app(scope, receive, send_with_headers)


def _show(site: Site, pages: Environment, name: str, request: Request) -> Response:
    view = {**OF_NAMESPACE, **OF_OPERATOR}[name]
    ask = Ask(request.path_params, dict(request.query_params))
    namespace = request.path_params.get("namespace", "")
    status = 200
    try:
        page = view(site, ask)
        status = page.status
        if page.looked is None and namespace:
            page = page.by([site.watch(namespace).last_look])
    except DynastateError as failed:
        site.engine.name_table(failed)
        status = (
            404 if isinstance(failed, VersionMissingError) else 400 if isinstance(failed, ConfigurationError) else 503
        )
        page = Page(
            "Not there" if status == 404 else "It cannot be shown",
            "error.html",
            "",
            {"error": str(failed), "is_lost": isinstance(failed, CorruptStateError)},
            refresh_s=RETRY_S if status == 503 or view in POLLED else 0,
            is_error=True,
            lost=site.lost(namespace),
        )
    query = {name: value for name, value in ask.parameters.items() if name != "live"}
    text = pages.get_template(page.template).render(
        page.values,
        page=page.values.get("page", 1),
        shown=page,
        lost=page.lost,
        command=page.command,
        options=site.options,
        footer=site.footer,
        view=name,
        ask=ask,
        namespace=namespace,
        operator=request.path_params.get("operator"),
        here=request.url.path,
        query=query,
        is_live=ask.text("live") != "off",
    )
    return HTMLResponse(text, status)


def _pulse(site: Site, pages: Environment, request: Request) -> Response:
    """The banner of a view that is not read again: whether DynamoDB answers a look."""
    try:
        look = site.watch(request.path_params["namespace"]).latest()
    except ConfigurationError as refused:
        return PlainTextResponse(str(refused), 400)
    return HTMLResponse(pages.get_template("banner.html").render(lost=look if look.is_unreachable else None))


def _do(site: Site, token: str, action: Callable[[Site, Ask], None], request: Request) -> Response:
    """Do the action, and show the view that has its button."""
    ask = Ask(request.path_params, {})
    try:
        action(site, ask)
    except DynastateError as failed:
        return PlainTextResponse(str(failed), 400)
    return RedirectResponse(f"/{token}/health/{quote(ask.namespace, safe='')}", 303)


def _environment(token: str) -> Environment:
    environment = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined)

    def parameters_of(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value not in (None, "")}

    def url(*parts: Any, **parameters: Any) -> str:
        """The URL of a view; parameters that are None or empty are left out."""
        path = "/".join(quote(str(part), safe="") for part in parts)
        query = parameters_of(parameters)
        return f"/{token}/{path}" + (f"?{urlencode(query)}" if query else "")

    def key_url(namespace: str, operator: int, key: Mapping[str, Any], **parameters: str) -> str:
        """The URL of a key, given as `to_json` has it."""
        fields = {f"n.{name}" if value is None else f"k.{name}": _field(value) for name, value in key.items()}
        return f"{url('key', namespace, operator)}?{urlencode(parameters_of(parameters) | fields)}"

    def again(path: str, query: Mapping[str, str], **changed: Any) -> str:
        """This URL with other parameters."""
        values = parameters_of({**query, **changed})
        return path + (f"?{urlencode(values)}" if values else "")

    environment.tests["numeric_type"] = lambda name: name.partition("(")[0] in NUMERIC
    environment.globals |= {
        "url": url,
        "again": again,
        "key_url": key_url,
        "key_text": _key_text,
        "visible": lambda value: visible(value_text(value)),
        "pulse_s": PULSE_S,
        "version_of_dynastate": __version__,
    }
    environment.filters |= {
        "count": lambda value: NONE if value is None else f"{value:,.0f}",
        "bytes": _bytes,
        "amount": _amount,
        "kilobytes": lambda value: _scaled(value, 2**10),
        "megabytes": lambda value: _scaled(value, 2**20),
        "dollars": _dollars,
        "priced": lambda value: _dollars(value, "$"),
        "figure": lambda value: NONE if value is None else f"{value:,.1f}",
        "fixed": lambda value, digits: f"{value:,.{digits}f}",
        "hour": lambda ms, has_day: clock_text(ms, has_day=has_day),
        "span": _span,
        "clock": clock_time,
        "moment": lambda ms: f"{datetime.fromtimestamp(ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
    }
    return environment


def _field(value: Any) -> str:
    """A value of a key in the form of the view of keys."""
    return "1" if value is None else value_text(value)


def _key_text(key: Mapping[str, Any]) -> str:
    """The values of a key as text."""
    return ", ".join("null" if value is None else visible(value_text(value)) for value in key.values())


def _dollars(value: float | None, sign: str = "") -> str:
    if value is None:
        return NONE
    return f"{sign}{value:,.2f}" if value >= 0.01 or value <= 0 else f"< {sign}0.01"


def _amount(value: float) -> tuple[str, str]:
    """A number of bytes, and its unit."""
    for unit in ("B", "KB", "MB"):
        if value < 1024:
            return f"{value:,.0f}" if unit == "B" else f"{value:,.1f}", unit
        value /= 1024
    return f"{value:,.1f}", "GB"


def _bytes(value: float) -> str:
    return " ".join(_amount(value))


def _scaled(value: float, unit: int) -> str:
    """A number of bytes in a column whose head has the unit."""
    return "< 0.1" if 0 < value < unit / 20 else f"{value / unit:,.1f}"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"
