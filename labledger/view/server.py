"""Serves the pages of a lab on loopback: routes, responses, start and stop."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from urllib.parse import quote

from aiohttp import web

from labledger import resources
from labledger.errors import LabLedgerError, LedgerMissing
from labledger.files.lab_folder import LabFolder
from labledger.records import JsonObject
from labledger.view import pages
from labledger.view.access import HEADERS, Access, Connections, PageRefused, comes_from_elsewhere
from labledger.view.caches import PageAnswer, SharedAnswers
from labledger.view.ledgers import DocumentSource, OpenedLedger, TooBusy, Workers
from labledger.view.live_outputs import LiveOutputs
from labledger.view.parameters import FORMAT, MAX_TEXT, Parameters
from labledger.view.screens import (
    comparison_screen,
    control_screen,
    grid_screen,
    output_screen,
    run_screen,
    runs_screen,
    slot_screen,
    sql_screen,
)
from labledger.view.watcher import EventStreams, Watcher

Document = Callable[[DocumentSource, Parameters], JsonObject]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Started = Callable[[str, str], None]
_log = logging.getLogger("labledger.view")
_MAX_BODY = 64 << 10
_MAX_LINE_BYTES = 16 * MAX_TEXT
"""The limit of a request's first line. One character may take twelve bytes in a URL."""
_STATIC = "/static/"
"""The path of files that need no token."""
_KEEP_ALIVE_S = 30.0
_THREADS, _SLOW_THREADS = 4, 2
_QUERY_THREADS, _WAITING_QUERIES = 2, 16


@dataclass(frozen=True, slots=True)
class Screen:
    """A page: its path, its template (None for a document alone), and its document."""

    path: str
    template: str | None
    document: Document
    parameters: tuple[str, ...] = ()
    formats: tuple[str, ...] = ("html", "json")
    is_slow: bool = False
    """Whether it may take seconds."""
    is_shared: bool = False
    """Whether many open pages request it at the same time."""


_RUN = "/runs/{run_id}"
_SLOT = "/runs/{run_id}/slots/{schedule_idx}"
SCREENS = (
    Screen("/", "runs", runs_screen.document, runs_screen.PARAMETERS, is_shared=True),
    Screen(_RUN, "run", run_screen.document, grid_screen.PARAMETERS, is_shared=True),
    Screen(f"{_RUN}/now", None, run_screen.now, is_shared=True),
    Screen(f"{_RUN}/changes", None, run_screen.changes, run_screen.PARAMETERS, is_shared=True),
    Screen(f"{_RUN}/grid", None, grid_screen.document, grid_screen.PARAMETERS, is_shared=True),
    Screen(_SLOT, "slot", slot_screen.document, slot_screen.PARAMETERS),
    Screen(f"{_SLOT}/now", None, slot_screen.now, is_shared=True),
    Screen(f"{_SLOT}/logs", None, output_screen.document, output_screen.PARAMETERS),
    Screen(
        "/compare",
        "compare",
        comparison_screen.document,
        comparison_screen.PARAMETERS,
        is_slow=True,
    ),
    Screen(
        "/sql",
        "sql",
        sql_screen.document,
        sql_screen.PARAMETERS,
        formats=sql_screen.FORMATS,
    ),
)


def serve(
    lab: LabFolder,
    started: Started,
    *,
    path: str = "/",
    port: int = 0,
    read_only: bool = False,
) -> None:
    """Serve the pages of a lab until the process is interrupted or terminated.

    Once the server answers, it calls `started` with two links: one for people, and one for a
    browser that a program starts, which works once. Raises `LabLedgerError` if the port is in use.
    """
    asyncio.run(_serve(lab, started, path, port, read_only))


async def _serve(lab: LabFolder, started: Started, path: str, port: int, read_only: bool) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
    _be_quiet(loop)
    listener = listen(port)
    access = Access(listener.getsockname()[1])
    # Import slow libraries in the background, so that the first page need not wait for them.
    threading.Thread(target=_import_libraries, daemon=True).start()
    async with serving(ViewServer(lab, access, read_only=read_only), listener):
        started(access.link(path), access.link(path, once=True))
        await stop.wait()


def _import_libraries() -> None:
    """Import the libraries of comparisons and pages, if they are installed."""
    for name in ("jinja2", "numpy", "scipy.special"):
        with suppress(ImportError):
            import_module(name)


@asynccontextmanager
async def serving(server: ViewServer, listener: socket.socket) -> AsyncIterator[Connections]:
    """Serve on a socket while the block runs."""
    runner = web.AppRunner(
        server.app(),
        access_log=None,
        keepalive_timeout=_KEEP_ALIVE_S,
        max_line_size=_MAX_LINE_BYTES,
        shutdown_timeout=0.1,
        handler_cancellation=True,  # Ends the event stream of a closed page.
    )
    await runner.setup()
    assert runner.server is not None
    connections = server.connections = Connections(runner.server)
    loop = asyncio.get_running_loop()
    answering = await loop.create_server(connections.protocol, sock=listener)
    tasks = [asyncio.create_task(server.watcher.watch()), asyncio.create_task(connections.watch())]
    try:
        yield connections
    finally:
        answering.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()


def listen(port: int) -> socket.socket:
    """Return a socket that listens on loopback; port 0 means a free port.

    Raises `LabLedgerError`.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise LabLedgerError(
            f"could not listen on port {port} of 127.0.0.1: {error.strerror}",
            hint="choose another port with `port=`, or 0 for a free one",
        ) from error
    return listener


def _be_quiet(loop: asyncio.AbstractEventLoop) -> None:
    """Print nothing about malformed requests and broken connections."""
    for name in ("aiohttp", "asyncio"):
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    loop.set_exception_handler(lambda _loop, _context: None)


class ViewServer:
    """Answers requests for the pages of one lab."""

    def __init__(self, lab: LabFolder, access: Access, *, read_only: bool) -> None:
        self._access = access
        self._read_only = read_only
        self._opened = opened = OpenedLedger(lab, LiveOutputs())
        self._workers = Workers(opened, _THREADS)
        self._slow_workers = Workers(opened, _SLOW_THREADS)
        """For slow pages, so that other pages do not wait for them."""
        self._query_workers = Workers(opened, _QUERY_THREADS, _WAITING_QUERIES)
        """For queries, which may use their whole time limit."""
        # The watcher has its own thread, so that it reports commits while the others are busy.
        self.watcher = Watcher(Workers(opened, 1))
        self._shared = SharedAnswers(lambda: self.watcher.changes)
        self.connections: Connections | None = None

    def app(self) -> web.Application:
        """Build the web application with all its routes."""
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._guard])
        for screen in SCREENS:
            app.router.add_get(screen.path, self._handler(screen))
        app.router.add_get(f"{_RUN}/report", self._report)
        app.router.add_post(f"{_RUN}/control", self._control)
        app.router.add_get("/events", EventStreams(self.watcher).answer)
        app.router.add_get("/static/palette.css", self._palette)
        app.router.add_static("/static", pages.STATIC)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Admit or refuse a request, and turn errors into responses."""
        try:
            response = await self._answer_or_refuse(request, handler)
        finally:
            if self.connections is not None:
                self.connections.end(request)
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    async def _answer_or_refuse(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            answer = self._before(request)
            is_admitted = answer is None and not request.path.startswith(_STATIC)
            if self.connections is not None and is_admitted:
                self.connections.begin(request)
            return await handler(request) if answer is None else answer
        except web.HTTPException as error:
            status = HTTPStatus(error.status)
            return pages.error_response(request, status, f"{status.phrase.lower()}")
        except PageRefused as refused:
            return pages.error_response(request, refused.status, refused.message, refused.hint)
        except LabLedgerError as error:
            if isinstance(error, LedgerMissing) and not self._opened.was_opened:
                return pages.no_run_response(request, self._opened.lab)
            status = pages.status_of(error)
            again = status is HTTPStatus.SERVICE_UNAVAILABLE
            return pages.error_response(request, status, error.message, error.hint, again=again)
        except TooBusy:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            return pages.error_response(request, status, "too many requests wait; try again")
        except Exception:
            _log.exception("an answer failed: %s %r", request.method, request.path[:200])
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            message = "this page failed, because of a mistake in labledger"
            return pages.error_response(request, status, message, "stderr has the details")

    def _before(self, request: web.Request) -> web.StreamResponse | None:
        """Check a request. Return a response if it is not for a page. Raises `PageRefused`."""
        self._access.check_host(request)
        if request.path.startswith(_STATIC):
            return None
        answer = self._access.exchange(request)
        if answer is not None:
            return answer
        if not self._access.is_admitted(request):
            if comes_from_elsewhere(request):
                # If the browser has the cookie, it sends it with a request from our own page.
                return _ask_again(by_itself=request.path != "/sql")
            raise PageRefused(
                HTTPStatus.FORBIDDEN,
                "this browser has not been admitted",
                "open the link that `labledger view` printed, with its token",
            )
        self._access.check_origin(request)
        return None

    def _handler(self, screen: Screen) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            return await self._answer(screen, request)

        return answer

    async def _answer(self, screen: Screen, request: web.Request) -> web.Response:
        parameters = Parameters(list(request.query.items()), screen.parameters, request.match_info)
        form = parameters.choice("format", screen.formats)
        workers = self._workers_for(screen, parameters)
        json_url = str(request.rel_url.update_query({FORMAT: "json"}))

        def make(source: DocumentSource) -> PageAnswer:
            if form == "csv":
                return PageAnswer(sql_screen.csv_text(source, parameters), "text/csv", 200)
            document = screen.document(source, parameters)
            status = document["status"] if document.get("error") else HTTPStatus.OK
            finished = pages.finish(document)
            if form == "json" or screen.template is None:
                text, kind = finished.text, "application/json"
            else:
                text = pages.page(
                    screen.template, finished, read_only=self._read_only, json_url=json_url
                )
                kind = "text/html"
            return PageAnswer(text.encode("utf-8", "replace"), kind, int(status))

        if screen.is_shared and self.watcher.listeners > 1:
            request_key = f"{request.path_qs} {form}"
            answer = await self._shared.get(request_key, lambda: workers.read(make))
        else:
            answer = await workers.read(make)
        return web.Response(
            body=answer.body,
            content_type=answer.content_type,
            charset="utf-8",
            status=answer.status,
            headers=_download("query.csv") if form == "csv" else None,
        )

    def _workers_for(self, screen: Screen, parameters: Parameters) -> Workers:
        if screen.template == "sql" and sql_screen.is_query(parameters):
            return self._query_workers
        return self._slow_workers if screen.is_slow else self._workers

    async def _report(self, request: web.Request) -> web.Response:
        """Answer with the one-file report of a run, as a download."""
        parameters = Parameters(list(request.query.items()), (), request.match_info)

        def make(source: DocumentSource) -> bytes:
            return source.ledger.rendered_report(parameters.run_id)

        content = await self._slow_workers.read(make)
        return web.Response(
            body=content,
            content_type="text/html",
            charset="utf-8",
            headers=_download(f"{parameters.run_id}.html"),
        )

    async def _control(self, request: web.Request) -> web.Response:
        """Make a request of a run, and respond with its effect."""
        if self._read_only:
            message = "this server was started with `--read-only`: it takes no requests"
            raise PageRefused(HTTPStatus.FORBIDDEN, message)
        form = await request.post()
        fields = [(name, value) for name, value in form.items() if isinstance(value, str)]
        parameters = Parameters(fields, control_screen.PARAMETERS, request.match_info)
        if pages.wants_json(request):
            finished = await self._slow_workers.read(
                lambda source: pages.finish(control_screen.ask(source, parameters).as_json())
            )
            return web.json_response(text=finished.text)
        if control_screen.is_dry(parameters):

            def make(source: DocumentSource) -> str:
                document = control_screen.preview(source, parameters, fields)
                return pages.page("control", pages.finish(document), read_only=False)

            return web.Response(text=await self._slow_workers.read(make), content_type="text/html")
        reply = await self._slow_workers.read(lambda source: control_screen.ask(source, parameters))
        location = f"/runs/{quote(reply.run_id, safe='')}"
        return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": location})

    async def _palette(self, _: web.Request) -> web.StreamResponse:
        """Respond with the colours of reports, which the pages share."""
        return web.FileResponse(resources.report_palette())


def _download(name: str) -> dict[str, str]:
    """Return the header that makes browsers save a response as a file and not show it."""
    safe = re.sub(r"[^A-Za-z0-9._+-]", "_", name)
    return {"Content-Disposition": f'attachment; filename="{safe}"'}


def _ask_again(*, by_itself: bool) -> web.Response:
    """Return a page that reloads itself: at once, or after a click.

    A link on another site must not run a costly query without the user's consent.
    """
    if by_itself:
        body = '<meta http-equiv="refresh" content="0"><p><a href="">Continue</a></p>'
    else:
        body = '<p>Another site leads here, to a query of the ledger. <a href="">Run it</a></p>'
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>labledger</title>'
    text = f"{head}{body}</html>"
    return web.Response(text=text, content_type="text/html")
