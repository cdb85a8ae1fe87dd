"""Exports of OpenTelemetry for tests, made by its SDK and encoded by its exporter."""

import json

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

RESOURCE = Resource({"service.name": "desk", "tenant.id": "bakers"})
DETAILS = "gen_ai.client.inference.operation.details"


class Telemetry:
    """Providers of an application, with these exporters or with exporters to memory."""

    def __init__(self, span_processors=(), log_processors=()):
        self.spans, self.logs = InMemorySpanExporter(), InMemoryLogRecordExporter()
        self.tracers, self.loggers = TracerProvider(resource=RESOURCE), LoggerProvider(resource=RESOURCE)
        for processor in (SimpleSpanProcessor(self.spans), *span_processors):
            self.tracers.add_span_processor(processor)
        for processor in (SimpleLogRecordProcessor(self.logs), *log_processors):
            self.loggers.add_log_record_processor(processor)
        self.tracer, self.logger = self.tracers.get_tracer("ours"), self.loggers.get_logger("ours")

    def call(self, prompt, *, in_span=True, in_event=False, old=False, tools=False, **more):
        """One call of a model, whose messages are attributes of its span, an event, or an event each."""
        attributes = {
            "gen_ai.operation.name": "chat", "gen_ai.request.model": "oven", "gen_ai.response.model": "oven-1",
            "gen_ai.usage.input_tokens": 24, "gen_ai.usage.output_tokens": 2, "gen_ai.conversation.id": "c-1",
            "gen_ai.request.temperature": 0.5, "gen_ai.request.stop_sequences": ["a", "b"], "user.id": "anna",
            **more,
        }  # fmt: skip
        messages = [{"role": "user", "parts": [{"type": "text", "content": prompt}]}]
        if tools:
            call = {"type": "tool_call", "id": "t", "name": "bake", "arguments": {"kind": "rye", "loaves": 40}}
            result = {"type": "tool_call_response", "id": "t", "response": "ok"}
            messages += [{"role": "assistant", "parts": [call]}, {"role": "tool", "parts": [result]}]
        answer = [{"role": "assistant", "parts": [{"type": "text", "content": "Yes."}], "finish_reason": "stop"}]
        with self.tracer.start_as_current_span("chat oven") as span:
            span.set_attributes(attributes)
            if in_span:
                span.set_attribute("gen_ai.input.messages", json.dumps(messages))
                span.set_attribute("gen_ai.output.messages", json.dumps(answer))
            if in_event:
                self.event(DETAILS, attributes | {"gen_ai.input.messages": messages, "gen_ai.output.messages": answer})
            if old:
                self.event("gen_ai.system.message", {"gen_ai.system": "openai"}, {"content": "Be brief."})
                self.event("gen_ai.user.message", {"gen_ai.system": "openai"}, {"content": prompt})
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}
                self.event("gen_ai.choice", {"gen_ai.system": "openai"}, choice)

    def event(self, name, attributes, body=None):
        """A log record with an event, in the current span."""
        record = LogRecord(
            event_name=name, attributes=attributes, body=body, severity_number=SeverityNumber.INFO,
            timestamp=None,
        )  # fmt: skip
        self.logger.emit(record)

    def other_work(self):
        """A span and a log record that are no calls."""
        with self.tracer.start_as_current_span("GET /wares") as span:
            span.set_attribute("http.request.method", "GET")
            self.event("app.started", {"n": 1})

    def traces(self):
        """All spans so far as an ExportTraceServiceRequest."""
        return encode_spans(self.spans.get_finished_spans())

    def records(self):
        """All log records so far as an ExportLogsServiceRequest."""
        return encode_logs(self.logs.get_finished_logs())
