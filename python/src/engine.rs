//! The worker of a script, as Python sees it: `everstep._everstep.Engine`.
//!
//! The worker's threads are Rust's. The script's main thread waits for turns here, with Python's
//! lock released, and Python handles its signals ten times a second.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use everstep::script;
use everstep_transport::protocol::{DataShard, RunSpec, Step};
use everstep_worker::daemon::Ready;
use everstep_worker::data::Sampler;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde_json::json;

use crate::memory::TensorMemory;
use crate::model::{self, WorkerScript};
use crate::optimizer::TorchRule;
use crate::rendezvous::{Ended, Next, Rendezvous, Request};
use crate::statement::Settings;

/// How often Python looks for signals while its thread waits.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a script that leaves waits until its worker has said so.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker that is not started yet, or works, or has ended.
#[pyclass(frozen)]
pub struct Engine {
    rendezvous: Arc<Rendezvous>,
    parameters: usize,
    sampler: Sampler,
    stated: RunSpec,
    /// What the worker's thread takes when it starts.
    script: Mutex<Option<WorkerScript>>,
}

/// A turn in Python: step, data shard, micro-batch, whether it is the first and the last of its
/// data shard, the factor of the loss, and the samples.
type TurnInPython = (u64, u32, u32, bool, bool, f32, Vec<u64>);

#[pymethods]
impl Engine {
    /// `settings` and `rule` are JSON. `tensors` are the names and shapes of the parameters. Their
    /// f32 elements lie at `address`, one tensor after the other. `weights` is a file that has
    /// them.
    #[new]
    fn new(
        settings: &str,
        rule: &str,
        tensors: Vec<(String, Vec<usize>)>,
        address: usize,
        weights: PathBuf,
    ) -> PyResult<Self> {
        let settings: Settings = serde_json::from_str(settings).map_err(refused)?;
        let table = blake3::hash(rule.as_bytes()).to_hex().to_string();
        let rule = TorchRule::parse(rule).map_err(refused)?;
        let layout = model::layout(tensors);
        let parameters = layout.count();
        // SAFETY: `address` is that of the flat tensor, which `everstep.Run` keeps for as long as
        // the process lives. Its thread computes with it only during its turns and after the run.
        let flat = unsafe { TensorMemory::new(address, parameters) };
        let digest = digest_of(flat.values());
        let stated = (rule.name(), table, rule.first_rate());
        let stated = settings.run(digest.to_hex().to_string(), stated).map_err(refused)?;
        if settings.samples == 0 {
            return Err(refused("the data set is empty: there is nothing to train on"));
        }
        let sampler = Sampler::new(settings.seed(), settings.samples, settings.batch());
        let (samples, rendezvous) = (settings.samples, Arc::new(Rendezvous::default()));
        let data = *blake3::hash(settings.data_digest.as_bytes()).as_bytes();
        let script = WorkerScript {
            rendezvous: rendezvous.clone(),
            stated: stated.clone(),
            layout,
            flat,
            weights,
            samples,
            data,
            rule,
        };
        let script = Mutex::new(Some(script));
        Ok(Self { rendezvous, parameters, sampler, stated, script })
    }

    /// Starts the worker with the settings in the environment. With `control` it says on the
    /// launcher's socket, which is its stdin, that it listens and which run it trains.
    fn start(&self, control: bool) -> PyResult<()> {
        let script = self.script.lock().unwrap_or_else(PoisonError::into_inner).take();
        let script =
            script.ok_or_else(|| PyRuntimeError::new_err("the worker has been started"))?;
        if control {
            script::supervise().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        }
        let (rendezvous, stated) = (self.rendezvous.clone(), self.stated.clone());
        let registry = model::registry(script);
        let ready = move |ready: &Ready| {
            if control {
                announce(ready, &stated);
            }
        };
        let work = move || {
            let ended = match script::work(registry, ready) {
                Ok(()) => Ended { code: 0, words: String::new() },
                Err(failure) => Ended { code: failure.exit as u8, words: failure.to_string() },
            };
            rendezvous.end(ended);
        };
        let thread = thread::Builder::new().name("everstep".into()).spawn(work);
        thread.map(drop).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Waits for the next turn. None when there will be no more.
    fn next(&self, py: Python<'_>) -> PyResult<Option<TurnInPython>> {
        loop {
            match py.detach(|| self.rendezvous.next(SIGNAL_POLL_INTERVAL)) {
                Next::Nothing => py.check_signals()?,
                Next::Ended => return Ok(None),
                Next::Turn(turn) => {
                    let (pass, place) = (turn.pass, turn.pass.place);
                    let (step, shard) = (place.step, place.data_shard);
                    let (first, last, scale) = (pass.first, pass.last, pass.scale);
                    let samples = turn.samples;
                    return Ok(Some((step, shard, place.micro_batch, first, last, scale, samples)));
                }
            }
        }
    }

    /// Waits until the flat vector has the parameters of this turn.
    fn parameters(&self, py: Python<'_>) -> PyResult<()> {
        self.rendezvous.ask(Request::Parameters);
        self.await_service(py)
    }

    /// Hands over the gradient of `count` elements from `offset` on. It lies at `address`, and must
    /// stay there until `done` has returned.
    fn publish(&self, offset: usize, address: usize, count: usize) -> PyResult<()> {
        if offset.checked_add(count).is_none_or(|end| end > self.parameters) {
            return Err(refused("the gradient lies outside of the parameters"));
        }
        // SAFETY: `everstep.Run` keeps the tensor, and changes it no more, until `done` returns.
        let gradient = unsafe { TensorMemory::new(address, count) };
        self.rendezvous.ask(Request::Gradient(offset, gradient));
        Ok(())
    }

    /// Ends the turn with its mean loss. Returns when all gradients have been read.
    fn done(&self, py: Python<'_>, loss: f64) -> PyResult<()> {
        self.rendezvous.ask(Request::Done(loss));
        self.await_service(py)
    }

    /// The script takes no more turns, for this reason: it fails the run. Returns when the worker
    /// has ended, or after five seconds.
    fn leave(&self, py: Python<'_>, words: String) {
        self.rendezvous.leave(words);
        let began = Instant::now();
        py.detach(|| {
            while began.elapsed() < LEAVE_TIMEOUT
                && self.rendezvous.ended(SIGNAL_POLL_INTERVAL).is_none()
            {}
        });
    }

    /// The exit code and the words with which the worker ended. None while it works.
    fn ended(&self) -> Option<(u8, String)> {
        self.rendezvous.ended(Duration::ZERO).map(|ended| (ended.code, ended.words))
    }

    /// The epoch and the number of each sample of a micro-batch, row by row.
    fn rows(&self, step: u64, data_shard: u32, micro_batch: u32) -> Vec<(u64, u64)> {
        let rows = 0..self.sampler.batch().micro_batch;
        let sample = |row| {
            let sample = self.sampler.sample(Step(step), DataShard(data_shard), micro_batch, row);
            (sample.epoch, sample.index)
        };
        rows.map(sample).collect()
    }

    /// The specification of the run, as JSON.
    fn statement(&self) -> String {
        json!(self.stated).to_string()
    }
}

impl Engine {
    fn await_service(&self, py: Python<'_>) -> PyResult<()> {
        while !py.detach(|| self.rendezvous.is_served(SIGNAL_POLL_INTERVAL)) {
            py.check_signals()?;
        }
        Ok(())
    }
}

/// BLAKE3 of f32 elements, little-endian.
pub fn digest_of(values: &[f32]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for piece in values.chunks(1 << 16) {
        let bytes: Vec<u8> = piece.iter().flat_map(|value| value.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    hasher.finalize()
}

/// One line of JSON on the launcher's socket. A launcher that is gone reads nothing: then the
/// process ends for that.
fn announce(ready: &Ready, stated: &RunSpec) {
    let line = json!({ "name": ready.name, "address": ready.address, "run": stated });
    let line = format!("{line}\n");
    let mut rest = line.as_bytes();
    while let Ok(written @ 1..) = rustix::io::write(rustix::stdio::stdin(), rest) {
        rest = &rest[written..];
    }
}

fn refused(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}
