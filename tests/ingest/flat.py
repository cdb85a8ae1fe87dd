"""`anonymize_rows` and `anonymize_dataset` with the options of `anonymize`, one by one."""

from typing import Any

from kvtrace._base.options import names_of, record_of, split_options
from kvtrace.ingest import pipeline, pipeline_tasks, preparation
from kvtrace.ingest.encoding_options import EncodingOptions
from kvtrace.ingest.pipeline import Listeners
from kvtrace.ingest.preparation import Job
from kvtrace.privacy.numbering.run import TaskOptions
from kvtrace.privacy.release_options import ReleaseOptions

OTHERS = ("key", "service_model", "keep_order", "workers", "checkpoint")


def anonymize_rows(inputs: Any, **options: Any) -> pipeline.AnonymizedRows:
    """As `pipeline.anonymize_rows`."""
    others = {name: options.pop(name) for name in OTHERS if name in options}
    encoding, release, listeners = split_options(options, EncodingOptions, ReleaseOptions, Listeners)
    return pipeline.anonymize_rows(inputs, encoding, release, listeners=listeners, **others)


def anonymize_dataset(inputs: Any, **options: Any) -> Any:
    """As `pipeline_tasks.anonymize_dataset`."""
    others = {name: options.pop(name) for name in OTHERS if name in options}
    tasks = record_of(TaskOptions, {name: options.pop(name) for name in names_of(TaskOptions) if name in options})
    encoding, release, listeners = split_options(options, EncodingOptions, ReleaseOptions, Listeners)
    return pipeline_tasks.anonymize_dataset(inputs, encoding, release, tasks=tasks, listeners=listeners, **others)


def prepare(inputs: Any, **options: Any) -> Job:
    """As `preparation.prepare`."""
    others = {name: options.pop(name) for name in ("key", "service_model", "keep_order") if name in options}
    return preparation.prepare(inputs, *split_options(options, EncodingOptions, ReleaseOptions), **others)
