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
    from labledger.api.maintenance import archive_run as archive_run
    from labledger.api.maintenance import collect_garbage as collect_garbage
    from labledger.api.maintenance import delete_run as delete_run
    from labledger.api.planning import expectation as expectation
    from labledger.api.planning import plan as plan
    from labledger.api.run_state import *
    from labledger.api.runs import *
    from labledger.api.trial_logs import LogPiece as LogPiece
    from labledger.checks.check_results import CheckResult as CheckResult
    from labledger.checks.check_results import TaskSupport as TaskSupport
    from labledger.checks.preflight import Preflight as Preflight
    from labledger.compare.comparison_document import *
    from labledger.compare.comparison_text import ComparisonText as ComparisonText
    from labledger.compare.comparison_text import comparison_texts as comparison_texts
    from labledger.compare.comparison_text import rerun_sentences as rerun_sentences
    from labledger.compare.options import *
    from labledger.compare.ranking_text import RankingText as RankingText
    from labledger.compare.ranking_text import ranking_text as ranking_text
    from labledger.compare.run_differences import OutcomeChange as OutcomeChange
    from labledger.errors import *
    from labledger.execution.disk_space import FolderRetention as FolderRetention
    from labledger.execution.events import *
    from labledger.execution.executor import HostState as HostState
    from labledger.execution.stop_requests import StopRequest as StopRequest
    from labledger.ledger.database.migrations import LedgerUpgrade as LedgerUpgrade
    from labledger.ledger.database.model import *
    from labledger.ledger.query import ViewInfo as ViewInfo
    from labledger.planning.plan_text import PlanTable as PlanTable
    from labledger.planning.plan_text import PlanText as PlanText
    from labledger.planning.plan_text import plan_text as plan_text
    from labledger.planning.size_plan import *
    from labledger.planning.size_plan import PlanOptions as PlanOptions
    from labledger.records import JsonObject as JsonObject
    from labledger.records.outcomes import *
    from labledger.records.pass_rate import PassCounts as PassCounts
    from labledger.report.options import *
    from labledger.runner.options import *
    from labledger.upkeep.archives import Archive as Archive
    from labledger.upkeep.archives import ArchivedRun as ArchivedRun
    from labledger.upkeep.container_cleanup import ContainerDecision as ContainerDecision
    from labledger.upkeep.garbage_collection import DeletedRun as DeletedRun
    from labledger.upkeep.garbage_collection import GarbageCollection as GarbageCollection
    from labledger.upkeep.import_runs import ImportedRun as ImportedRun
    from labledger.upkeep.verify_lab import VerificationReport as VerificationReport

_NAMES_BY_MODULE = {
    "api.benchmark_checks": "BenchmarkCheck CheckedTrial Finding check_benchmark",
    "api.experiments": "RunPlan create_experiment plan_run preflight",
    "api.hosts": "ClusterHost clean_hosts declare_host_lost list_hosts "
    "make_certificates serve_host",
    "api.ledger": "Ledger open_ledger view_names",
    "api.maintenance": "add_note change_tags LedgerBackup LedgerRevision "
    "back_up_ledger clean doctor import_runs ledger_revision "
    "upgrade_ledger verify archive_run collect_garbage delete_run",
    "api.planning": "expectation plan",
    "api.run_state": "RunSelection RunState",
    "api.runs": "RunExtension extend plan_extension RerunPlan RerunSelection "
    "RerunSlot plan_rerun rerun regrade resume run",
    "api.trial_logs": "LogPiece",
    "checks.check_results": "CheckResult TaskSupport",
    "checks.preflight": "Preflight",
    "compare.comparison_document": "Compared Comparison Standing TaskRow",
    "compare.comparison_text": "ComparisonText comparison_texts rerun_sentences",
    "compare.options": "CompareOptions ErrorCounting Estimand",
    "compare.ranking_text": "RankingText ranking_text",
    "compare.run_differences": "OutcomeChange",
    "errors": "AlreadyGraded ArtifactChanged DiskFull EngineUnavailable "
    "Exit ExperimentChanged ExtraMissing HostLost InvalidInput "
    "LabLedgerError LeaseHeld LeaseLost LedgerDamaged "
    "LedgerDiskFull LedgerError LedgerMissing LedgerOutdated "
    "LedgerReplaced LedgerTooNew MalformedJson NotALedger "
    "NothingToExtend Parameter PreflightFailed Problem "
    "QueryFailed RunExists RunNotComplete RunNotFound "
    "SchemaInvalid SecretsUnknown SlotNotFound TakeoverStopped "
    "ImageBuildsStopped",
    "execution.disk_space": "FolderRetention",
    "execution.events": "EventKind Listener",
    "execution.executor": "HostState",
    "execution.stop_requests": "StopRequest",
    "ledger.database.migrations": "LedgerUpgrade",
    "ledger.database.model": "ExperimentRevision Grading LostHost Note Rerun RunInfo "
    "RunPart Spent Stop VariantCounts",
    "ledger.query": "ViewInfo",
    "planning.plan_text": "PlanTable PlanText plan_text",
    "planning.size_plan": "PlanOptions Design PlannedExperiment Requirement SizePlan",
    "records": "JsonObject",
    "records.outcomes": "RunStatus SlotStatus StopCause Verdict",
    "records.pass_rate": "PassCounts",
    "report.options": "LogSelection ReportOptions",
    "runner.options": "Regrading RunOptions RunOutcome",
    "upkeep.archives": "Archive ArchivedRun",
    "upkeep.container_cleanup": "ContainerDecision",
    "upkeep.garbage_collection": "GarbageCollection DeletedRun",
    "upkeep.import_runs": "ImportedRun",
    "upkeep.verify_lab": "VerificationReport",
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
