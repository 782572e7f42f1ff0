//! A file with the times of a worker's stages, step by step, for Perfetto and `chrome://tracing`.
//!
//! Every span of the target [`STAGES`] becomes one event of the trace event format, a line of JSON,
//! when it ends. A killed process leaves a file without its last events and its closing bracket.
//! Readers accept that.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use everstep_kernels::compute::STAGES;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The trace file. It is complete when this is dropped.
pub(crate) struct Trace(Arc<Events>);

/// The state that threads share to write the file.
struct Events {
    /// None after a failed write.
    file: Mutex<Option<BufWriter<File>>>,
    began: Instant,
    /// The wall clock at `began`, so that the files of several workers can be shown together.
    began_unix_us: f64,
}

struct Tracer(Arc<Events>);

/// A span that has not ended.
#[derive(Clone, Copy)]
struct Open {
    began: Instant,
    thread: u32,
    fields: Fields,
}

#[derive(Clone, Copy, Default)]
struct Fields {
    step: Option<u64>,
    data_shard: Option<u64>,
}

impl Trace {
    /// Creates the file, and writes its head.
    pub(crate) fn begin(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(b"[\n")?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let began_unix_us = since.map_or(0.0, |since| since.as_secs_f64() * 1e6);
        let (file, began) = (Mutex::new(Some(file)), Instant::now());
        Ok(Self(Arc::new(Events { file, began, began_unix_us })))
    }

    /// The layer that writes the file.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let stages = Targets::new().with_target(STAGES, Level::TRACE);
        Tracer(Arc::clone(&self.0)).with_filter(stages)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let pid = std::process::id();
        let last = json!({ "name": "end", "ph": "i", "s": "p", "pid": pid, "tid": 0,
            "ts": self.0.unix_us(Instant::now()) });
        let mut file = self.0.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &mut *file {
            // No reader is left to hear of an error.
            let _ = writeln!(file, "{last}\n]").and_then(|()| file.flush());
        }
    }
}

impl Events {
    fn unix_us(&self, at: Instant) -> f64 {
        self.began_unix_us + at.duration_since(self.began).as_secs_f64() * 1e6
    }

    /// Writes an event. After a failure the trace ends there, and training goes on.
    fn write(&self, event: &serde_json::Value) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.as_mut().map_or(Ok(()), |file| writeln!(file, "{event},"));
        if written.is_err() {
            *file = None;
        }
    }

    /// The number of this thread. At its first event the file also gets the thread's name.
    fn thread(&self) -> u32 {
        static THREADS: AtomicU32 = AtomicU32::new(1);
        thread_local!(static OWN: Cell<u32> = const { Cell::new(0) });
        if OWN.get() == 0 {
            OWN.set(THREADS.fetch_add(1, Ordering::Relaxed));
            let thread = std::thread::current();
            self.write(&json!({ "name": "thread_name", "ph": "M", "pid": std::process::id(),
                "tid": OWN.get(), "args": { "name": thread.name().unwrap_or("worker") } }));
        }
        OWN.get()
    }
}

impl<S> Layer<S> for Tracer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    /// A span without a step belongs to the step of the span around it.
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        let around = span.parent().and_then(|it| it.extensions().get::<Open>().copied());
        if let Some(around) = around {
            fields = around.fields;
        }
        attributes.record(&mut fields);
        let open = Open { began: Instant::now(), thread: self.0.thread(), fields };
        span.extensions_mut().insert(open);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(Open { began, thread, fields }) = span.extensions().get::<Open>().copied() else {
            return;
        };
        let mut arguments = serde_json::Map::new();
        let named = [("step", fields.step), ("data_shard", fields.data_shard)];
        for (name, value) in named {
            arguments.extend(value.map(|value| (name.to_string(), value.into())));
        }
        self.0.write(&json!({
            "name": span.name(), "cat": "stage", "ph": "X", "pid": std::process::id(),
            "tid": thread, "ts": self.0.unix_us(began),
            "dur": began.elapsed().as_secs_f64() * 1e6, "args": arguments,
        }));
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "step" => self.step = Some(value),
            "data_shard" => self.data_shard = Some(value),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

#[cfg(test)]
mod tests {
    use tracing::trace_span;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn a_trace_has_each_span_with_the_step_of_the_one_around_it_and_is_json() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("trace.json");
        let trace = Trace::begin(&path).expect("it can be written");
        let subscriber = tracing_subscriber::registry().with(trace.layer());
        tracing::subscriber::with_default(subscriber, || {
            let around = trace_span!(target: STAGES, "data_shard", step = 7u64, data_shard = 2u64);
            let _around = around.entered();
            drop(trace_span!(target: STAGES, "forward").entered());
            drop(trace_span!("another", step = 9u64).entered());
        });
        drop(trace);
        let text = std::fs::read_to_string(&path).expect("it is there");
        let events: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        let events = events.as_array().expect("a list");
        let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        let names: Vec<_> = spans.iter().map(|span| span["name"].as_str()).collect();
        assert_eq!(names, [Some("forward"), Some("data_shard")]);
        assert!(spans.iter().all(|it| it["args"] == json!({ "step": 7, "data_shard": 2 })));
        let micros = |it: usize, key: &str| spans[it][key].as_f64().expect("microseconds");
        assert!(micros(1, "ts") <= micros(0, "ts") && micros(0, "dur") <= micros(1, "dur"));
    }
}
