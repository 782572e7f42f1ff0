//! The worker of a script, as Python sees it: `everstep._everstep.Engine`.
//!
//! The worker's threads are Rust's. The script's main thread waits for turns here, with Python's
//! lock released, and Python handles its signals ten times a second.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use everstep::{Evaluation, script};
use everstep_transport::protocol::{DataShard, RunSpec, Step};
use everstep_worker::daemon::Ready;
use everstep_worker::data::Sampler;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;

use crate::measure;
use crate::memory::{TensorMemory, Writes};
use crate::model::{self, WorkerScript};
use crate::optimizer::TorchRule;
use crate::rendezvous::{Ended, Next, Rendezvous, Request, Turn};
use crate::statement::{InitialDigests, Settings, StatedRule};

/// How often Python looks for signals while its thread waits.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a script that leaves waits until its worker has said so.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker that is not started yet, or works, or has ended.
#[pyclass(frozen)]
pub struct Engine {
    rendezvous: Arc<Rendezvous>,
    parameters: usize,
    /// How often the engine has written the flat vector.
    writes: Writes,
    sampler: Sampler,
    stated: Mutex<RunSpec>,
    /// The run of the cluster, once the worker has it.
    trained: Arc<OnceLock<RunSpec>>,
    /// What the worker's thread takes when it starts.
    script: Mutex<Option<WorkerScript>>,
}

/// A turn in Python: step, data shard, micro-batch, whether it is the first and the last of its
/// data shard, the factor of the loss, and the samples. Step 0 stands for an evaluation, of which
/// only the samples count.
type TurnInPython = (u64, u32, u32, bool, bool, f32, Vec<u64>);

/// A state in Python: the number of updates, the hash, and the bytes of each vector by its name.
type StateInPython = (u64, String, Vec<(String, Py<PyBytes>)>);

#[pymethods]
impl Engine {
    /// `settings` and `rule` are JSON. `tensors` are the names and shapes of the parameters, and
    /// `statistics` those of the buffers that follow them, each with its kind. Their f32 elements
    /// lie at `address`, one tensor after the other. `weights` is a file that has them.
    #[new]
    fn new(
        settings: &str,
        rule: &str,
        tensors: Vec<(String, Vec<usize>)>,
        statistics: Vec<(String, Vec<usize>, String)>,
        address: usize,
        weights: PathBuf,
    ) -> PyResult<Self> {
        let settings: Settings = serde_json::from_str(settings).map_err(refused)?;
        let table = blake3::hash(rule.as_bytes()).to_hex().to_string();
        let rule = TorchRule::parse(rule).map_err(refused)?;
        let tensors_digest = blake3::hash(json!([tensors, statistics]).to_string().as_bytes());
        let layout = model::layout(tensors, statistics).map_err(refused)?;
        let parameters = layout.count();
        // SAFETY: `address` is that of the flat tensor, which `everstep.Run` keeps for as long as
        // the process lives. Its thread computes with it only during its turns and after the run.
        let flat = unsafe { TensorMemory::new(address, parameters) };
        let writes = flat.writes();
        let digest = digest_of(flat.values());
        let [weights_digest, tensors] =
            [digest, tensors_digest].map(|digest| digest.to_hex().to_string());
        let initial = InitialDigests { weights: weights_digest, tensors };
        let stated = StatedRule { name: rule.name(), table, learning_rate: rule.first_rate() };
        let stated: RunSpec = settings.run(initial, stated).map_err(refused)?;
        if settings.samples == 0 {
            return Err(refused("the data set is empty: there is nothing to train on"));
        }
        let sampler = Sampler::new(settings.seed(), settings.samples, settings.batch());
        let Settings { samples, held_out, .. } = settings;
        let (rendezvous, trained) = (Arc::new(Rendezvous::default()), Arc::default());
        let data = *blake3::hash(settings.data_digest.as_bytes()).as_bytes();
        let script = WorkerScript {
            rendezvous: rendezvous.clone(),
            stated: stated.clone(),
            trained: Arc::clone(&trained),
            layout,
            flat,
            weights,
            samples,
            held_out,
            data,
            rule,
            watched: true,
            update_threads: settings.update_threads(),
            device: settings.gpu.and_then(|gpu| gpu.info(&settings.processor)),
            processor: settings.processor,
        };
        let (stated, script) = (Mutex::new(stated), Mutex::new(Some(script)));
        Ok(Self { rendezvous, parameters, writes, sampler, stated, trained, script })
    }

    /// The run evaluates its held-out samples in each so many steps. 0: after the last one alone.
    /// Comes before `start` and `statement`.
    fn evaluate_each(&self, steps: u64) {
        let mut stated = self.stated.lock().unwrap_or_else(PoisonError::into_inner);
        stated.data.validation_every = steps;
    }

    /// Starts the worker with the settings in the environment. With `control` it says on the
    /// launcher's socket, which is its stdin, that it listens and which run it trains. A script
    /// that is `watched` ends if it hangs: its user has no debugger in it.
    fn start(&self, control: bool, watched: bool) -> PyResult<()> {
        let script = self.take_script()?;
        if control {
            script::supervise().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        }
        let (rendezvous, stated) = (self.rendezvous.clone(), self.stated());
        let registry = model::registry(WorkerScript { watched, stated: stated.clone(), ..script });
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

    /// Has the script compute a micro-batch without a cluster, and held-out samples if the run has
    /// any. Then writes what the run needs into this file. The process ends with the launcher.
    fn measure(&self, file: PathBuf) -> PyResult<()> {
        let script = self.take_script()?;
        script::supervise().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let script = WorkerScript { stated: self.stated(), ..script };
        let work = move || measure::measure(script, &file);
        let thread = thread::Builder::new().name("everstep".into()).spawn(work);
        thread.map(drop).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Waits for the next turn. None when there will be no more.
    fn next(&self, py: Python<'_>) -> PyResult<Option<TurnInPython>> {
        loop {
            match py.detach(|| self.rendezvous.next(SIGNAL_POLL_INTERVAL)) {
                Next::Nothing => py.check_signals()?,
                Next::Ended => return Ok(None),
                Next::Turn(turn) => return Ok(Some(in_python(turn))),
            }
        }
    }

    /// Whether this turn is to find out why the first passes have had unequal results.
    fn is_diagnosing(&self) -> bool {
        self.rendezvous.is_diagnosing()
    }

    /// Waits until the flat vector has the parameters of this turn.
    fn parameters(&self, py: Python<'_>) -> PyResult<()> {
        self.rendezvous.ask(Request::Parameters);
        self.await_service(py)
    }

    /// How often the flat vector was written. A script that computes with a copy of the vector asks
    /// whether that copy is old.
    fn writes(&self) -> u64 {
        self.writes.count()
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

    /// Ends the turn with its mean loss, its weight among the micro-batches of the step, and the
    /// scalars that the script has logged. The gradients are those of the loss times the weight.
    /// Returns when all of them have been read.
    fn done(
        &self,
        py: Python<'_>,
        loss: f64,
        weight: f64,
        scalars: Vec<(String, f64)>,
    ) -> PyResult<()> {
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(refused(format!("weight={weight} is below 0, or not finite")));
        }
        self.rendezvous.ask(Request::Done { loss, weight, scalars });
        self.await_service(py)
    }

    /// Ends an evaluation with the means over its samples: the loss, and the script's own metric.
    fn evaluated(&self, py: Python<'_>, loss: f64, metric: Option<f64>) -> PyResult<()> {
        self.rendezvous.ask(Request::Evaluated(Evaluation { loss, metric }));
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

    /// The worker has no cluster any more: it counts as ended, with this exit code and these words,
    /// unless it has ended before.
    fn abandon(&self, code: u8, words: String) {
        self.rendezvous.end(Ended { code, words });
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

    /// The state after the last step, from the run's last checkpoint. Its vectors are f32. None if
    /// the run keeps no checkpoints.
    fn state(&self, py: Python<'_>) -> PyResult<Option<StateInPython>> {
        let checkpoint = self.trained.get().and_then(|run| run.checkpoint.as_ref());
        let Some(checkpoint) = checkpoint else { return Ok(None) };
        let steps = self.stated().steps;
        let read = py.detach(|| everstep::read_state(&checkpoint.path, steps));
        let state = read.map_err(|failure| PyRuntimeError::new_err(failure.to_string()))?;
        let vectors = state.vectors.iter().map(|values| bytes_of(values));
        let vectors = vectors.map(|bytes| PyBytes::new(py, &bytes).unbind());
        let named = state.names.into_iter().zip(vectors).collect();
        Ok(Some((state.updates, state.state_hash, named)))
    }

    /// The specification of the run, as JSON.
    fn statement(&self) -> String {
        json!(self.stated()).to_string()
    }
}

impl Engine {
    fn take_script(&self) -> PyResult<WorkerScript> {
        let script = self.script.lock().unwrap_or_else(PoisonError::into_inner).take();
        script.ok_or_else(|| PyRuntimeError::new_err("the worker has been started"))
    }

    fn stated(&self) -> RunSpec {
        self.stated.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn await_service(&self, py: Python<'_>) -> PyResult<()> {
        while !py.detach(|| self.rendezvous.is_served(SIGNAL_POLL_INTERVAL)) {
            py.check_signals()?;
        }
        Ok(())
    }
}

fn in_python(turn: Turn) -> TurnInPython {
    match turn {
        Turn::Evaluation(samples) => (0, 0, 0, false, false, 1.0, samples),
        Turn::Training(pass, samples) => {
            let (place, scale) = (pass.place, pass.scale);
            let (step, shard, micro_batch) = (place.step, place.data_shard, place.micro_batch);
            (step, shard, micro_batch, pass.first, pass.last, scale, samples)
        }
    }
}

/// f32 elements, little-endian.
fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// BLAKE3 of f32 elements, little-endian.
pub fn digest_of(values: &[f32]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for piece in values.chunks(1 << 16) {
        hasher.update(&bytes_of(piece));
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
