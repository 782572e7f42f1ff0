//! Model FLOPs utilization: the share of its devices' peak performance that a run's model used.
//!
//! The numerator is the operations of the model's own products and attention (Chowdhery et al.,
//! "PaLM", appendix B), once for every sample of a settled step. Work that was done again does not
//! count. The denominator is the peak of the members of each generation in its time. It counts each
//! device that they computed on once, even if several share it, with the peak that its worker has
//! stated. Unknown values are not guessed.

use std::collections::BTreeMap;

use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{Generation, RunSpec, WorkerId};

use crate::cluster::Progress;

/// The utilization of a complete run. None if a worker computed on a device without a known peak,
/// or if the model's operations were not counted.
pub(super) fn of_run(run: &RunSpec, progress: &Progress) -> Option<f64> {
    let flops = flops_per_sample(progress.results.as_deref()?)? as f64;
    let done = flops * run.batch.samples() as f64 * progress.line_sums.settled().steps as f64;
    let reports = progress.generations().iter();
    let members = reports.map(|report| (report.number, &report.members[..])).collect();
    let spent = progress.line_sums.seconds().iter();
    let possible = spent.map(|(of, seconds)| Some(seconds * peak(*of, &members, progress)?));
    let possible = possible.sum::<Option<f64>>()?;
    (possible > 0.0).then(|| done / possible)
}

/// The operations a sample that all workers report. None if they differ.
fn flops_per_sample(results: &[WorkerResult]) -> Option<u64> {
    let first = results.first()?.flops_per_sample;
    first.filter(|_| results.iter().all(|result| result.flops_per_sample == first))
}

/// The operations a second that the members of a generation could do.
fn peak(
    generation: Generation,
    members: &BTreeMap<Generation, &[WorkerId]>,
    progress: &Progress,
) -> Option<f64> {
    let members = members.get(&generation)?.iter();
    let devices = members.map(|worker| peak_of(*worker, progress));
    let devices: BTreeMap<[u8; 16], f64> = devices.collect::<Option<_>>()?;
    Some(devices.values().sum())
}

/// The device that a worker computed on, by its UUID, and its peak.
fn peak_of(worker: WorkerId, progress: &Progress) -> Option<([u8; 16], f64)> {
    let device = progress.devices.get(&worker)?.accelerator.as_ref()?;
    Some((device.uuid, device.peak_flops? as f64))
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::{Event, EventKind};
    use everstep_transport::protocol::reason::RollbackReason;
    use everstep_transport::protocol::{Cause, Device, MetricsLine, Step, exemplars};

    use super::*;

    /// A device with this peak, TFLOP/s.
    fn device(tera: u64, uuid: u8) -> Device {
        let mut device = exemplars::device();
        let accelerator = device.accelerator.as_mut().expect("a GPU");
        (accelerator.uuid, accelerator.peak_flops) = ([uuid; 16], Some(tera * 1_000_000_000_000));
        device
    }

    /// Eight samples a step, each of 1e12 operations.
    fn run() -> RunSpec {
        let run = exemplars::run();
        assert_eq!(run.batch.samples(), 8);
        run
    }

    fn generation(number: u64, workers: &[u64]) -> Event {
        let kind = EventKind::Generation {
            generation: Generation(number),
            cause: Cause::Start,
            workers: workers.iter().copied().map(WorkerId).collect(),
            at_step: Step(0),
            redone: false,
            waiting: false,
            under_protected: vec![],
        };
        Event { number, unix_ms: 0, kind }
    }

    /// A second for each of these steps' generations.
    fn progress(devices: &[Device], events: Vec<Event>, steps: &[u64]) -> Progress {
        let result = |_: &Device| WorkerResult {
            flops_per_sample: Some(1 << 40),
            ..WorkerResult::default()
        };
        let mut progress = Progress {
            devices: (1..).map(WorkerId).zip(devices.iter().cloned()).collect(),
            results: Some(devices.iter().map(result).collect()),
            ..Progress::default()
        };
        for event in events {
            progress.hear(event);
        }
        settle(&mut progress, 1, steps);
        progress
    }

    /// Adds a step of a second for each of these generations, from the step `first` on.
    fn settle(progress: &mut Progress, first: u64, generations: &[u64]) {
        for (step, generation) in (first..).zip(generations) {
            let (step, generation) = (Step(step), Generation(*generation));
            let line = MetricsLine { step, generation, seconds: 1.0, ..MetricsLine::default() };
            progress.settle(line);
        }
    }

    fn close(found: Option<f64>, share: f64) -> bool {
        found.is_some_and(|found| (found / share - 1.0).abs() < 1e-12)
    }

    const STEP: f64 = 8.0 * (1_u64 << 40) as f64;

    #[test]
    fn it_is_what_the_model_took_of_what_the_gpus_could_do() {
        let devices = [device(989, 1), device(312, 2)];
        let mut progress = progress(&devices, vec![generation(1, &[1, 2])], &[1, 1]);
        assert!(close(of_run(&run(), &progress), STEP / (989e12 + 312e12)));
        // The time of steps that a rollback took back counts too.
        let (from, to, reason) = (Step(2), Step(0), RollbackReason::Asked);
        let kind = EventKind::Rollback { from, to, reason };
        progress.hear(Event { number: 2, unix_ms: 0, kind });
        progress.hear(Event { number: 3, ..generation(2, &[1, 2]) });
        settle(&mut progress, 1, &[2, 2]);
        assert!(close(of_run(&run(), &progress), STEP / (989e12 + 312e12) / 2.0));
    }

    #[test]
    fn workers_that_share_a_gpu_count_it_once() {
        let devices = [device(989, 1), device(989, 1), device(989, 2)];
        let shared = progress(&devices, vec![generation(1, &[1, 2])], &[1]);
        assert!(close(of_run(&run(), &shared), STEP / 989e12));
        let apart = progress(&devices, vec![generation(1, &[1, 2, 3])], &[1]);
        assert!(close(of_run(&run(), &apart), STEP / 989e12 / 2.0));
    }

    #[test]
    fn each_generation_counts_with_its_own_members_for_its_own_time() {
        let devices = [device(989, 1), device(989, 2)];
        let events = vec![generation(1, &[1, 2]), generation(2, &[1])];
        let run_so_far = progress(&devices, events, &[1, 2, 2]);
        assert!(close(of_run(&run(), &run_so_far), 3.0 * STEP / (2.0 + 1.0 + 1.0) / 989e12));
    }

    #[test]
    fn nothing_is_said_where_something_is_not_known() {
        let known = device(989, 1);
        let mut unknown = device(0, 2);
        unknown.accelerator.as_mut().expect("a GPU").peak_flops = None;
        for other in [Device::default(), unknown] {
            let run_so_far = progress(&[known.clone(), other], vec![generation(1, &[1, 2])], &[1]);
            assert_eq!(of_run(&run(), &run_so_far), None);
        }
        let run_so_far = progress(std::slice::from_ref(&known), vec![generation(1, &[1])], &[1]);
        assert!(of_run(&run(), &run_so_far).is_some());
        let mut uncounted = run_so_far.clone();
        uncounted.results = Some(vec![WorkerResult::default()]);
        assert_eq!(of_run(&run(), &uncounted), None, "a model of the user's own");
        let timeless = progress(std::slice::from_ref(&known), vec![generation(1, &[1])], &[]);
        assert_eq!(of_run(&run(), &timeless), None, "no time");
        let strange = progress(&[known], vec![generation(1, &[1, 5])], &[1]);
        assert_eq!(of_run(&run(), &strange), None, "a worker of which nothing is known");
    }
}
