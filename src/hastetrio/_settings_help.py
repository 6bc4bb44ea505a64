"""What a person is told about each setting: the name of its value, and a sentence."""

from __future__ import annotations

from typing import Final

from hastetrio._http_config import DEFAULT_ADDRESS

WORDS: Final[dict[str, tuple[str, str]]] = {
    "database_url": (
        "URL",
        "The PostgreSQL database of the jobs; best in the environment when it holds a password.",
    ),
    "embedded": ("", "Use a private PostgreSQL on this machine, started when needed."),
    "data_dir": ("DIR", "Where the private PostgreSQL keeps its data; implies --embedded."),
    "prepared_statements": ("", "Let the server prepare statements; off for some poolers."),
    "log_format": ("text|json", "How log lines look."),
    "log_level": ("LEVEL", "debug, info, warning or error."),
    "tenant": ("TENANT", "The tenant the jobs belong to."),
    "project": ("PROJECT", "The project of that tenant."),
    "parameters_limit": ("BYTES", "The most bytes of JSON the parameters may have."),
    "claims_limit": ("BYTES", "The most bytes of JSON the claims may have."),
    "handlers": ("MODULE:ATTR", "A handler, or an iterable of handlers. May be repeated."),
    "kinds": ("K,...", "Run only these kinds of the handlers there are."),
    "middleware": ("MODULE:ATTR", "A hook around each run, or an iterable. May be repeated."),
    "transaction_connections": (
        "N",
        "The most transactions handlers have open at once, each on a connection of its own.",
    ),
    "export_source": ("DIR", "Switch on bulk-export: the NDJSON files it exports."),
    "export_output": ("DIR", "Where bulk-export writes the files it makes."),
    "export_base_url": ("URL", "The URL under which the export's output is served."),
    "export_pace": ("SECONDS", "Sleep after every 16 KiB exported; for demonstrations."),
    "poll_interval": ("SECONDS", "How long to wait before looking again after finding no work."),
    "lease_duration": ("SECONDS", "How long one claim or renewal holds a job."),
    "max_concurrent_jobs": ("N", "Jobs run at once."),
    "maintenance_interval": ("SECONDS", "How often abandoned and expired jobs are swept."),
    "retention": ("SECONDS", "How long a finished job is kept that does not say itself."),
    "drain_timeout": ("SECONDS", "How long running jobs may go on after a stop."),
    "cancel_grace": ("SECONDS", "How long cancelled jobs may take to leave after that."),
    "output_limit": ("BYTES", "The most bytes of JSON a result may have."),
    "outcome_limit": ("BYTES", "The most bytes of JSON a failed job's outcome may have."),
    "progress_limit": ("CHARACTERS", "The most characters a progress text keeps."),
    "thread_limit": ("N", "Threads that handlers run functions in at once (run_sync)."),
    "http": (
        "HOST:PORT",
        f"Where to listen for HTTP; port 0 for any that is free. serve uses {DEFAULT_ADDRESS}.",
    ),
    "jwks_file": ("FILE", "Demand access tokens: the public keys (JWKS) they are signed with."),
    "jwks_url": ("URL", "The same keys, fetched from an address."),
    "token_issuer": ("ISS", "The issuer whose access tokens are accepted."),
    "token_audience": ("AUD", "The audience an access token must be made for."),
    "token_algorithms": (
        "ALG,...",
        "How access tokens may be signed: RS256, ES256, EdDSA if unsaid.",
    ),
    "public_url": (
        "URL",
        "What clients' addresses of this server begin with; the address it listens on if unsaid.",
    ),
    "live_limit": ("N", "The most jobs of a project that are queued or running at once."),
    "require_prefer": ("", "Refuse a kick-off without Prefer: respond-async."),
    "body_limit": ("BYTES", "The most bytes of a request's body."),
    "url_limit": ("BYTES", "The most bytes of a request's path and query."),
    "connection_limit": ("N", "HTTP connections open at once; further ones wait."),
    "poll_connections": ("N", "The most database connections that requests share."),
}
