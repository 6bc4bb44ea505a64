"""`hastetrio serve`: answer FHIR requests, and run the jobs too where asked."""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import click

from hastetrio._errors import ConfigError
from hastetrio._http_config import DEFAULT_ADDRESS, HttpConfig
from hastetrio._settings import FACE_KEYS, TOKEN_KEYS, WORKER_KEYS, Settings
from hastetrio.cli._options import EPILOG, State, global_options, pass_state, setting_options

if TYPE_CHECKING:
    from hastetrio._handler import JobHandler
    from hastetrio._middleware import JobMiddleware
    from hastetrio.cli._stop import Stopper
    from hastetrio.fhir import Authenticator

_logger = logging.getLogger("hastetrio.cli")


@click.command(epilog=EPILOG)
@click.option("--worker", "with_worker", is_flag=True, help="Run jobs in this process, too.")
@setting_options("http", *FACE_KEYS)
@setting_options(*TOKEN_KEYS)
@setting_options("handlers", "kinds", "middleware")
@setting_options("export_source", "export_output", "export_base_url", "export_pace")
@setting_options(*WORKER_KEYS, "transaction_connections")
@global_options(hidden=True)
@pass_state
def serve(state: State, *, with_worker: bool) -> None:
    """Answer FHIR requests over HTTP: kick-offs, status, results.

    The operations are those that the handlers declare, which are found as `hastetrio worker` finds
    them. Their jobs are run by workers, or by this process with --worker.

    Clients need access tokens once the keys, the issuer and the audience of these are given.
    Until then, only this machine is served.

    SIGINT or SIGTERM lets requests and running jobs finish; a second one cuts them; a third leaves
    at once.
    """
    settings = state.settings(log_level="info")
    settings.check_database()
    demands_tokens = settings.check_tokens()
    from hastetrio.cli._handlers import collect_handlers, collect_middleware
    from hastetrio.cli._http import listening_on

    address = settings.http or DEFAULT_ADDRESS
    with listening_on(address, loopback_only=not demands_tokens) as sockets:
        settings = attrs.evolve(settings, face=_published(settings.face, address, sockets))
        handlers = collect_handlers(
            settings,
            public_url=settings.face.public_url,
            requires_access_token=demands_tokens,
            required=with_worker,
        )
        service = _Service(
            settings,
            handlers,
            _authenticator(settings) if demands_tokens else None,
            sockets,
            collect_middleware(settings) if with_worker else (),
            with_worker=with_worker,
        )
        if not any(handler.operation for handler in handlers):
            _logger.warning("No handler declares an operation: nothing can be kicked off here")
        if not demands_tokens:
            _logger.warning(
                "No access tokens are demanded: everybody on this machine may do everything"
            )
        import trio

        if with_worker:
            from hastetrio._collector import tune_collector

            tune_collector()
        trio.run(service.run)


def _authenticator(settings: Settings) -> Authenticator:
    from hastetrio.fhir._jwks import JwksFile, KeySource
    from hastetrio.fhir._jwks_url import JwksUrl
    from hastetrio.fhir._jwt import JwtAuthenticator

    keys: KeySource
    if settings.jwks_file is not None:
        keys = JwksFile(settings.jwks_file)
    else:
        keys = JwksUrl(settings.jwks_url or "")
    return JwtAuthenticator(
        keys,
        issuer=settings.token_issuer or "",
        audience=settings.token_audience or "",
        algorithms=settings.token_algorithms,
    )


def _published(config: HttpConfig, address: str, sockets: Sequence[socket.socket]) -> HttpConfig:
    """The configuration with a public URL: the given one, else where the server listens."""
    from hastetrio.fhir._serve import is_wildcard, url_of

    if config.public_url:
        return config
    if is_wildcard(sockets):
        raise ConfigError(
            f"public_url is needed: {address} stands for every address of this machine, and "
            "clients must be told one"
        )
    return attrs.evolve(config, public_url=url_of(sockets))


@attrs.frozen
class _Service:
    """The whole process: the face, the probes, and the worker if there is one."""

    settings: Settings
    handlers: Sequence[JobHandler]
    authenticator: Authenticator | None
    sockets: Sequence[socket.socket]
    middleware: Sequence[JobMiddleware]
    with_worker: bool = attrs.field(kw_only=True)

    async def run(self) -> None:
        """Serve until told to stop."""
        import trio

        from hastetrio.cli._stop import SIGNALS, Stopper

        stopper = Stopper(self.settings.worker)
        # Received before anything is started, as by `hastetrio worker`.
        with trio.open_signal_receiver(*SIGNALS) as signals:
            async with trio.open_nursery() as nursery:
                with stopper.watching(nursery.cancel_scope):
                    nursery.start_soon(stopper.obey, signals)
                    await self._run(stopper)
                nursery.cancel_scope.cancel()

    async def _run(self, stopper: Stopper) -> None:
        import trio

        from hastetrio._registration import handlers_by_kind
        from hastetrio._worker import AsyncJobWorker
        from hastetrio.cli._connect import database_name, open_database, provider_on
        from hastetrio.cli._http import run_worker, say_listening
        from hastetrio.fhir import Face, make_app
        from hastetrio.fhir._health import Health
        from hastetrio.fhir._local import local_only
        from hastetrio.fhir._metrics import Metrics
        from hastetrio.fhir._serve import Server

        settings, config = self.settings, self.settings.worker
        async with contextlib.AsyncExitStack() as stack:
            dsn = await stack.enter_async_context(open_database(settings))
            provider = await stack.enter_async_context(
                provider_on(dsn, settings, client_connections=settings.face.poll_connections)
            )
            _logger.info("Connected to %s", database_name(settings))
            worker: AsyncJobWorker | None = None
            if self.with_worker:
                # Connections of its own: no number of requests makes a renewal late.
                own = provider_on(dsn, settings, schema=False, call_budget=config.call_budget)
                worker = AsyncJobWorker(
                    await stack.enter_async_context(own),
                    self.handlers,
                    config,
                    middleware=self.middleware,
                )
            health = Health(
                functools.partial(provider.check_schema, warn=False), has_worker=self.with_worker
            )
            operations = [one.operation.name for one in self.handlers if one.operation is not None]
            statistics = None if worker is None else worker.statistics
            metrics = Metrics(provider.overview, statistics, operations)
            by_kind = handlers_by_kind(self.handlers)
            face = Face(provider, by_kind, settings.face, self.authenticator, config.retention)
            app = make_app(face, [*health.routes(), metrics.route()])
            if self.authenticator is None:
                app = local_only(app, settings.face.public_url)
            server = Server(
                metrics.instrumented(app),
                self.sockets,
                settings.face,
                drain=config.drain_timeout,
            )
            stopper.serve(worker, health, server)
            async with trio.open_nursery() as parts:
                await parts.start(server.run)
                say_listening(self.sockets, "FHIR requests")
                if worker is not None:
                    await parts.start(run_worker, worker, health)
