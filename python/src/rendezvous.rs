//! Where the device's thread meets the script's thread.
//!
//! The device's thread offers a micro-batch, and then serves what the script's thread asks for,
//! until that says that the pass is done. So the model's code runs on the script's thread alone,
//! and the gradients go out while it computes. The script may have ended before: then every pass
//! ends with its words.
//!
//! The device's thread writes parameters only while the script's thread waits here. So a script
//! finds one version of them from its turn's parameters until it asks for the next turn.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use everstep_kernels::compute::{ComputeError, Evaluation, GradientSink, Pass};

use crate::memory::TensorMemory;
use crate::watchdog::{self, Activity, Watchdog};

/// How often the device's thread looks at what the script's thread has spent.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// The device's thread is woken for this many bytes of gradients, or for any other request. A wake
/// costs the script's thread some 20 µs, as much as a small layer computes.
const WAKE_BYTES: usize = 1 << 20;

/// What the script's thread computes at once.
#[derive(Clone, Debug)]
pub enum Turn {
    /// A micro-batch of a data shard, with these samples in its rows. The pass has its place in the
    /// run, and the factor of its gradient.
    Training(Pass, Vec<u64>),
    /// These held-out samples, forward only.
    Evaluation(Vec<u64>),
}

/// What the script's thread asks for during its turn.
pub enum Request {
    /// The parameters of the pass, all of them.
    Parameters,
    /// A gradient is final: where it begins in the flat vector, and its elements.
    Gradient(usize, TensorMemory),
    /// The turn is over, with this mean loss of its micro-batch, its weight and its scalars.
    Done { loss: f64, weight: f64, scalars: Vec<(String, f64)> },
    /// The turn, an evaluation, is over with this result.
    Evaluated(Evaluation),
}

/// What the script's thread does in its turn, and for how long it has done so.
struct Stopwatch {
    activity: Activity,
    spent: Duration,
}

impl Stopwatch {
    fn start(activity: Activity) -> Self {
        Self { activity, spent: Duration::ZERO }
    }

    /// The script's thread has gone on since `began`. A process that was suspended has spent no
    /// more than the interval of two looks.
    fn add(&mut self, began: Instant, watchdog: &Watchdog) {
        self.spent += began.elapsed().min(WATCH_INTERVAL);
        let limit = watchdog.limit(self.activity);
        if self.spent > limit {
            watchdog::end_process(self.activity, limit);
        }
    }

    fn stop(&self, watchdog: &mut Watchdog) {
        watchdog.ended(self.activity, self.spent);
    }
}

/// How the worker ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code for the process.
    pub code: u8,
    /// The reason, for the user. Empty for a complete run.
    pub words: String,
}

/// What the script's thread finds when it asks for its next turn.
pub enum Next {
    /// A micro-batch, which is now this thread's to compute.
    Turn(Turn),
    /// No micro-batch came in time: the worker waits for something else.
    Nothing,
    /// The worker has ended, and offers no more micro-batches.
    Ended,
}

#[derive(Default)]
struct State {
    offered: Option<Turn>,
    /// The script's thread waits for a turn.
    is_waiting: bool,
    requests: VecDeque<Request>,
    /// The bytes of the gradients that came since the device's thread was woken.
    quiet_bytes: usize,
    /// How many requests were made and served.
    made: u64,
    served: u64,
    /// The script's thread looks for the cause of unequal passes.
    is_diagnosing: bool,
    /// Why the script will take no more turns.
    left: Option<String>,
    ended: Option<Ended>,
}

/// The place itself, one in each process.
#[derive(Default)]
pub struct Rendezvous {
    state: Mutex<State>,
    changed: Condvar,
}

impl Rendezvous {
    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked has left whole values: each change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, within: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, within);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    // The script's thread.

    /// Takes the next turn. Waits for it no longer than `within`.
    pub fn next(&self, within: Duration) -> Next {
        let mut state = self.state();
        state.is_waiting = true;
        self.changed.notify_all();
        if state.offered.is_none() && state.ended.is_none() {
            state = self.wait(state, within);
        }
        state.is_waiting = false;
        match state.offered.take() {
            Some(turn) => Next::Turn(turn),
            None if state.ended.is_some() => Next::Ended,
            None => Next::Nothing,
        }
    }

    /// Asks for something. Does not wait.
    pub fn ask(&self, request: Request) {
        let mut state = self.state();
        let gradient = match &request {
            Request::Gradient(_, gradient) => size_of_val(gradient.values()),
            _ => WAKE_BYTES,
        };
        state.requests.push_back(request);
        state.made += 1;
        state.quiet_bytes += gradient;
        if state.quiet_bytes >= WAKE_BYTES {
            state.quiet_bytes = 0;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Whether all requests have been served. Waits for that no longer than `within`.
    pub fn is_served(&self, within: Duration) -> bool {
        let mut state = self.state();
        if state.served < state.made {
            state = self.wait(state, within);
        }
        state.served == state.made
    }

    /// Whether this turn is to find out why equal passes have had unequal results.
    pub fn is_diagnosing(&self) -> bool {
        self.state().is_diagnosing
    }

    /// The script takes no more turns, for this reason. It would leave again on every worker.
    pub fn leave(&self, words: String) {
        self.state().left.get_or_insert(words);
        self.changed.notify_all();
    }

    /// How the worker ended. None while it works. Waits for that no longer than `within`.
    pub fn ended(&self, within: Duration) -> Option<Ended> {
        let mut state = self.state();
        if state.ended.is_none() {
            state = self.wait(state, within);
        }
        state.ended.clone()
    }

    // The worker's threads.

    /// Writes parameters outside of a turn, while the script's thread waits for one, or has left.
    /// Ends the process if that thread hangs in what it does between its turns.
    pub fn write(&self, write: impl FnOnce(), watchdog: &Watchdog) {
        let mut stopwatch = Stopwatch::start(Activity::BetweenTurns);
        let mut state = self.state();
        while !(state.is_waiting || state.left.is_some() || state.ended.is_some()) {
            let began = Instant::now();
            state = self.wait(state, WATCH_INTERVAL);
            stopwatch.add(began, watchdog);
        }
        // The lock keeps that thread where it is.
        write();
        drop(state);
    }

    /// The next turn is to find out why equal passes have had unequal results.
    pub fn diagnose(&self) {
        self.state().is_diagnosing = true;
    }

    /// Has the script's thread compute a micro-batch with the parameters in `flat`. Returns its
    /// mean loss, times its weight. Ends the process if that thread hangs.
    pub fn compute(
        &self,
        turn: Turn,
        flat: &mut TensorMemory,
        sink: &mut dyn GradientSink,
        watchdog: &mut Watchdog,
    ) -> Result<f64, ComputeError> {
        self.offer(turn);
        let mut stopwatch = Stopwatch::start(Activity::Reading);
        loop {
            let request = self.request(&mut stopwatch, watchdog)?;
            let done = match request {
                Request::Parameters => {
                    sink.await_parameters(0..flat.values().len(), &mut |offset, values| {
                        flat.write(offset, values)
                    });
                    stopwatch.stop(watchdog);
                    stopwatch = Stopwatch::start(Activity::Computing);
                    None
                }
                Request::Gradient(offset, gradient) => {
                    let values = gradient.values();
                    sink.publish_gradient(offset..offset + values.len(), values);
                    None
                }
                Request::Done { loss, weight, scalars } => {
                    sink.publish_weight(weight);
                    scalars.iter().for_each(|(name, value)| sink.publish_scalar(name, *value));
                    Some(loss * weight)
                }
                Request::Evaluated(_) => return Err(misplaced()),
            };
            self.served();
            if let Some(loss) = done {
                stopwatch.stop(watchdog);
                return Ok(loss);
            }
        }
    }

    /// Has the script's thread evaluate held-out samples. The parameters are in the flat vector.
    pub fn evaluate(
        &self,
        samples: Vec<u64>,
        watchdog: &mut Watchdog,
    ) -> Result<Evaluation, ComputeError> {
        self.offer(Turn::Evaluation(samples));
        let mut stopwatch = Stopwatch::start(Activity::Evaluating);
        match self.request(&mut stopwatch, watchdog)? {
            Request::Evaluated(evaluation) => {
                stopwatch.stop(watchdog);
                self.served();
                Ok(evaluation)
            }
            _ => Err(misplaced()),
        }
    }

    fn offer(&self, turn: Turn) {
        self.state().offered = Some(turn);
        self.changed.notify_all();
    }

    fn served(&self) {
        self.state().served += 1;
        self.changed.notify_all();
    }

    /// The next request. Adds the wait for it to the stopwatch, from the time on at which the
    /// script's thread has taken its turn. If that thread takes too long, before or after that, the
    /// process ends.
    fn request(
        &self,
        stopwatch: &mut Stopwatch,
        watchdog: &Watchdog,
    ) -> Result<Request, ComputeError> {
        let mut before = Stopwatch::start(Activity::BetweenTurns);
        let mut state = self.state();
        loop {
            if let Some(request) = state.requests.pop_front() {
                return Ok(request);
            }
            if let Some(words) = &state.left {
                let words = words.clone();
                state.offered = None;
                return Err(ComputeError::Program(words));
            }
            let (began, is_taken) = (Instant::now(), state.offered.is_none());
            state = self.wait(state, WATCH_INTERVAL);
            let spent = if is_taken { &mut *stopwatch } else { &mut before };
            spent.add(began, watchdog);
        }
    }

    /// The worker has ended. The first word counts.
    pub fn end(&self, ended: Ended) {
        self.state().ended.get_or_insert(ended);
        self.changed.notify_all();
    }
}

/// A script that ends its turn as one of the other kind.
fn misplaced() -> ComputeError {
    ComputeError::Program("the script mixes up training and evaluation".into())
}
