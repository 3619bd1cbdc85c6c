"""The public library: everything that a command of `labledger` does, as typed functions.

In: paths, ids and typed options. Out: typed results; errors are `LabLedgerError`s. Nothing here
prints, ends the process, changes the working directory or needs a terminal. The command line uses
this package for everything that it does. May not import `cli`.

Each name is imported from its module when it is first used, so that a query does not load the
modules that run trials.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labledger.api.benchmark_checks import *
    from labledger.api.experiments import *
    from labledger.api.hosts import *
    from labledger.api.ledger import *
    from labledger.api.maintenance import *
    from labledger.api.notes_and_tags import *
    from labledger.api.planning import expectation as expectation
    from labledger.api.planning import plan as plan
    from labledger.api.reruns import *
    from labledger.api.run_extensions import *
    from labledger.api.run_state import *
    from labledger.api.runs import *
    from labledger.api.tidying import archive_run as archive_run
    from labledger.api.tidying import collect_garbage as collect_garbage
    from labledger.api.tidying import delete_run as delete_run
    from labledger.api.trial_logs import LogPiece as LogPiece
    from labledger.compare.comparison_document import *
    from labledger.compare.options import *
    from labledger.compare.run_differences import OutcomeChange as OutcomeChange
    from labledger.compare.wording.comparison_text import ComparisonText as ComparisonText
    from labledger.compare.wording.comparison_text import comparison_texts as comparison_texts
    from labledger.compare.wording.ranking_text import RankingText as RankingText
    from labledger.compare.wording.ranking_text import ranking_text as ranking_text
    from labledger.compare.wording.rerun_sentences import rerun_sentences as rerun_sentences
    from labledger.errors import *
    from labledger.executors.executor import HostState as HostState
    from labledger.ledger.database.migrations import LedgerUpgrade as LedgerUpgrade
    from labledger.ledger.database.model import *
    from labledger.ledger.query import ViewInfo as ViewInfo
    from labledger.maintenance.archives import Archive as Archive
    from labledger.maintenance.archives import ArchivedRun as ArchivedRun
    from labledger.maintenance.check_results import CheckResult as CheckResult
    from labledger.maintenance.check_results import TaskSupport as TaskSupport
    from labledger.maintenance.container_cleanup import ContainerDecision as ContainerDecision
    from labledger.maintenance.garbage_collection import GarbageCollection as GarbageCollection
    from labledger.maintenance.import_runs import ImportedRun as ImportedRun
    from labledger.maintenance.preflight import Preflight as Preflight
    from labledger.maintenance.run_deletion import DeletedRun as DeletedRun
    from labledger.maintenance.verify_lab import VerificationReport as VerificationReport
    from labledger.planning.options import PlanOptions as PlanOptions
    from labledger.planning.plan_text import PlanTable as PlanTable
    from labledger.planning.plan_text import PlanText as PlanText
    from labledger.planning.plan_text import plan_text as plan_text
    from labledger.planning.size_plan import *
    from labledger.records import JsonObject as JsonObject
    from labledger.records.outcomes import *
    from labledger.records.pass_rate import PassCounts as PassCounts
    from labledger.report.options import *
    from labledger.run_control.events import *
    from labledger.run_control.stop_requests import StopRequest as StopRequest
    from labledger.run_control.trial_folder_retention import FolderRetention as FolderRetention
    from labledger.runner.options import *

_NAMES_BY_MODULE = {
    "api.benchmark_checks": "BenchmarkCheck CheckedTrial Finding check_benchmark",
    "api.notes_and_tags": "add_note change_tags",
    "api.experiments": "RunPlan create_experiment plan_run preflight",
    "api.hosts": "ClusterHost clean_hosts declare_host_lost list_hosts make_certificates "
    "serve_host",
    "api.ledger": "Ledger open_ledger view_names",
    "api.maintenance": "LedgerBackup LedgerRevision back_up_ledger clean doctor import_runs "
    "ledger_revision upgrade_ledger verify",
    "api.planning": "expectation plan",
    "api.run_extensions": "RunExtension extend plan_extension",
    "api.reruns": "RerunPlan RerunSelection RerunSlot plan_rerun rerun",
    "api.run_state": "RunSelection RunState",
    "api.runs": "regrade resume run",
    "api.tidying": "archive_run collect_garbage delete_run",
    "api.trial_logs": "LogPiece",
    "compare.comparison_document": "Compared Comparison Standing TaskRow",
    "compare.run_differences": "OutcomeChange",
    "compare.wording.comparison_text": "ComparisonText comparison_texts",
    "compare.wording.ranking_text": "RankingText ranking_text",
    "compare.wording.rerun_sentences": "rerun_sentences",
    "compare.options": "CompareOptions ErrorCounting Estimand",
    "errors": "AlreadyGraded ArtifactChanged DiskFull EngineUnavailable Exit ExperimentChanged "
    "ExtraMissing HostLost InvalidInput LabLedgerError LeaseHeld LeaseLost LedgerDamaged "
    "LedgerDiskFull LedgerError LedgerMissing LedgerOutdated LedgerReplaced LedgerTooNew "
    "MalformedJson NotALedger NothingToExtend Parameter PreflightFailed Problem QueryFailed "
    "RunExists RunNotComplete RunNotFound SchemaInvalid SecretsUnknown "
    "SlotNotFound TakeoverStopped "
    "ImageBuildsStopped",
    "executors.executor": "HostState",
    "ledger.database.migrations": "LedgerUpgrade",
    "ledger.database.model": "ExperimentRevision Grading LostHost Note Rerun RunInfo RunPart Spent "
    "Stop VariantCounts",
    "ledger.query": "ViewInfo",
    "maintenance.archives": "Archive ArchivedRun",
    "maintenance.check_results": "CheckResult TaskSupport",
    "maintenance.container_cleanup": "ContainerDecision",
    "maintenance.garbage_collection": "GarbageCollection",
    "maintenance.import_runs": "ImportedRun",
    "maintenance.preflight": "Preflight",
    "maintenance.run_deletion": "DeletedRun",
    "maintenance.verify_lab": "VerificationReport",
    "planning.options": "PlanOptions",
    "planning.plan_text": "PlanTable PlanText plan_text",
    "planning.size_plan": "Design PlannedExperiment Requirement SizePlan",
    "records": "JsonObject",
    "records.outcomes": "RunStatus SlotStatus StopCause Verdict",
    "records.pass_rate": "PassCounts",
    "report.options": "LogSelection ReportOptions",
    "run_control.events": "EventKind Listener",
    "run_control.stop_requests": "StopRequest",
    "run_control.trial_folder_retention": "FolderRetention",
    "runner.options": "Regrading RunOptions RunOutcome",
}
"""The public names by the module, below `labledger`, that defines them."""

_MODULES_BY_NAME = {
    name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()
}

if not TYPE_CHECKING:  # A type checker cannot evaluate this list and would treat it as empty.
    __all__ = list(_MODULES_BY_NAME)


def __getattr__(name: str) -> Any:
    if name in _MODULES_BY_NAME:
        return getattr(import_module(f"labledger.{_MODULES_BY_NAME[name]}"), name)
    raise AttributeError(f"module 'labledger.api' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(_MODULES_BY_NAME)
