"""A structured-concurrency job worker on trio and PostgreSQL.

The layers, each importing only from those below it:

    cli, fhir, bulk                 faces
    testing, asyncio_bridge         what handlers and their tests import
    AsyncJobWorker                  the core: claims, leases, renewals, sweeps
    AsyncJobProvider                the storage protocol
    postgres, MemoryJobProvider     two storages that keep it; they import no worker
    values                          jobs, leases, results, outcomes

`embedded` runs a PostgreSQL server of its own, and knows no SQL.
"""

from hastetrio._collector import tune_collector as tune_collector
from hastetrio._config import AsyncJobWorkerConfig as AsyncJobWorkerConfig
from hastetrio._context import CancelReason as CancelReason
from hastetrio._context import JobContext as JobContext
from hastetrio._errors import ConfigError as ConfigError
from hastetrio._errors import HastetrioError as HastetrioError
from hastetrio._errors import LeaseLost as LeaseLost
from hastetrio._errors import LiveJobLimit as LiveJobLimit
from hastetrio._errors import ProviderUnavailable as ProviderUnavailable
from hastetrio._errors import SchemaError as SchemaError
from hastetrio._errors import UnstorableValue as UnstorableValue
from hastetrio._errors import UnsupportedFeature as UnsupportedFeature
from hastetrio._handler import FunctionHandler as FunctionHandler
from hastetrio._handler import HandlerOutput as HandlerOutput
from hastetrio._handler import JobHandler as JobHandler
from hastetrio._handler import job_handler as job_handler
from hastetrio._log import JobFilter as JobFilter
from hastetrio._middleware import JobMiddleware as JobMiddleware
from hastetrio._middleware import JobRun as JobRun
from hastetrio._middleware import RunOutcome as RunOutcome
from hastetrio._model import AsyncJob as AsyncJob
from hastetrio._model import AsyncJobStatus as AsyncJobStatus
from hastetrio._model import CreateAsyncJob as CreateAsyncJob
from hastetrio._model import JobLease as JobLease
from hastetrio._model import JobOutput as JobOutput
from hastetrio._model import JobResult as JobResult
from hastetrio._model import LeaseRenewal as LeaseRenewal
from hastetrio._operation import Level as Level
from hastetrio._operation import Operation as Operation
from hastetrio._operation import ResultFile as ResultFile
from hastetrio._outcome import Issue as Issue
from hastetrio._outcome import IssueType as IssueType
from hastetrio._outcome import OperationOutcomeError as OperationOutcomeError
from hastetrio._provider import AsyncJobProvider as AsyncJobProvider
from hastetrio._provider import JobCancelled as JobCancelled
from hastetrio._provider import JobQueued as JobQueued
from hastetrio._provider import WatchEvent as WatchEvent
from hastetrio._provider import WatchRestored as WatchRestored
from hastetrio._retry import RetryLater as RetryLater
from hastetrio._retry import RetryPolicy as RetryPolicy
from hastetrio._retry import Snooze as Snooze
from hastetrio._statistics import Counts as Counts
from hastetrio._statistics import WorkerStatistics as WorkerStatistics
from hastetrio._typed import ParameterMismatch as ParameterMismatch
from hastetrio._verdict import JobTimeout as JobTimeout
from hastetrio._worker import AsyncJobWorker as AsyncJobWorker
