//! A gradient that is not finite: the step is committed, changes nothing, and the run goes on.

use std::sync::Arc;
use std::time::Duration;

use everstep_chaos::fault::{Fault, Schedule};
use everstep_chaos::toy::{self, SAMPLES};
use everstep_chaos::world::{Failure, InFlight, NodeId};
use everstep_kernels::compute::{Batch, Compute, Evaluation, HostModel, OnHost};
use everstep_kernels::device::ChosenDevice;
use everstep_kernels::layout::{Init, Layout};
use everstep_transport::protocol::{DataShard, Decision, Message, RunSpec, Step};
use everstep_transport::time::Time;
use everstep_worker::data::Sampler;

use crate::support::{Toy, WORKERS};

/// A poison that is in every sample.
const EVERYWHERE: u64 = u64::MAX;
/// Three parameter shards.
const PARAMETERS: usize = 2_500;

/// A line through the origin. One of the samples makes it impossible to learn.
struct Line {
    poison: u64,
}

impl Line {
    /// Mean loss and its derivative by each parameter.
    fn differentiate(parameters: &[f32], batch: &Batch) -> (f64, Vec<f32>) {
        let mut gradient = vec![0.0; parameters.len()];
        let mut loss = 0.0;
        for row in 0..batch.rows {
            let digits = &batch.tokens[2 * row..2 * row + 2];
            let x = |index: usize| (digits[index % 2] as f32 + index as f32).sin() / 50.0;
            let y: f32 = parameters.iter().enumerate().map(|(index, w)| w * x(index)).sum();
            let error = y - batch.targets[row] as f32;
            loss += f64::from(error * error) / batch.rows as f64;
            for (index, slope) in gradient.iter_mut().enumerate() {
                *slope += 2.0 * error * x(index) / batch.rows as f32;
            }
        }
        (loss, gradient)
    }
}

impl HostModel for Line {
    fn layout(&self) -> Layout {
        let mut layout = Layout::new();
        layout.push("slope", &[PARAMETERS], Init::Normal { deviation: 0.1 });
        layout
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
    ) -> f64 {
        let (loss, found) = Self::differentiate(parameters, batch);
        for (sum, slope) in gradient.iter_mut().zip(found) {
            *sum += scale * slope;
        }
        let samples = batch.tokens.chunks(2).map(|digits| u64::from(digits[0] * 10 + digits[1]));
        if self.poison == EVERYWHERE || samples.into_iter().any(|sample| sample == self.poison) {
            gradient[PARAMETERS / 2] = f32::NAN;
        }
        loss
    }

    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Evaluation {
        Evaluation { loss: Self::differentiate(parameters, batch).0, metric: None }
    }
}

fn model(poison: u64) -> Result<Box<dyn Compute>, String> {
    Ok(Box::new(OnHost::new(Line { poison })))
}

/// A run in which one sample of `step` spoils the gradient.
fn poisoned(step: Step, data_shards: u32) -> Toy {
    let mut toy = Toy::new(|run| {
        run.model.kind = "line".into();
        run.batch.data_shards = data_shards;
    });
    let sampler = Sampler::new(toy.run.seed, SAMPLES, toy.run.batch);
    let poison = sampler.sample(step, DataShard(1), 0, 1).index;
    let model = move |_: &RunSpec, _: ChosenDevice<'_>| model(poison);
    toy.registry = Arc::new(toy::registry().model("line", model));
    toy
}

#[test]
fn the_step_is_committed_and_changes_nothing_for_any_number_of_workers() {
    for data_shards in [8, 2] {
        for step in [1, 3, 6].map(Step) {
            let (toy, alone) = poisoned(step, data_shards).with_reference();
            assert_eq!(alone.run_history.skipped().collect::<Vec<_>>(), [step]);
            for workers in WORKERS {
                for copies in [1, 2] {
                    let finished = toy.copies(copies).complete(workers, 9);
                    assert_eq!(finished.state_hash, alone.state_hash, "{workers} workers");
                }
            }
        }
    }
}

#[test]
fn a_lost_commit_of_a_skipped_step_stops_the_run() {
    // No parameters follow that would carry the commit too. The member goes by the loss of the
    // connection, which takes the message with it.
    let toy = poisoned(Step(3), 8);
    let mut lost = false;
    let met = toy.intercepted(3, move |in_flight| {
        let InFlight::Messages { messages, .. } = in_flight else { return };
        let skip = |message: &Message| {
            matches!(message, Message::Commit(commit) if commit.decision == Decision::Skip)
        };
        if !lost && messages.iter().any(skip) {
            lost = true;
            messages.clear();
        }
    });
    assert!(matches!(met, Err(Failure::Stuck { .. })), "{met:?}");
}

/// A run of 40 steps that has diverged, and its hash. Every step is skipped.
fn diverged() -> (Toy, [u8; 32]) {
    let mut toy = Toy::new(|run| {
        run.model.kind = "line".into();
        run.steps = 40;
    });
    let model = |_: &RunSpec, _: ChosenDevice<'_>| model(EVERYWHERE);
    toy.registry = Arc::new(toy::registry().model("line", model));
    let (toy, alone) = toy.with_reference();
    assert_eq!(alone.run_history.skipped().count(), 40);
    (toy, alone.state_hash)
}

/// Workers join two members of that run at these times, milliseconds. In most seeds each join has a
/// generation of its own. In the others one generation takes several joiners.
fn join_diverged(joins: &[u64]) {
    let (toy, hash) = diverged();
    let mut apart = 0;
    for seed in 0..10 {
        let mut world = toy.world(2, seed);
        let join = |(at, node): (&u64, usize)| {
            (Time(at * 1_000_000), Fault::Join { node: NodeId::Worker(node) })
        };
        let joins: Vec<_> = joins.iter().zip(2..).map(join).collect();
        let (count, schedule) = (joins.len() as u64, Schedule(joins));
        let met = world.endure(&schedule, Duration::from_secs(1), hash);
        let endured = met.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        let generations = endured.changes.generations;
        assert!(generations > 1, "seed {seed}: nobody joined: {endured:?}");
        apart += u32::from(generations > count);
    }
    assert!(apart > 5, "{apart} of 10 seeds");
}

/// A run that has diverged skips every step, so no worker sends parameters that would tell a joiner
/// what it missed. It hung the run that it joined.
#[test]
fn i11_a_run_that_has_diverged_can_be_joined() {
    join_diverged(&[500]);
}

/// The second joiner comes while the first one is a member that has never got parameters of a step.
#[test]
fn i11_a_run_that_has_diverged_can_be_joined_a_second_time() {
    join_diverged(&[400, 700]);
}
