//! Model FLOPs utilization: the share of its GPUs' peak performance that a run's model used.
//!
//! The numerator is the operations of the model's own products and attention (Chowdhery et al.,
//! "PaLM", appendix B), once for every sample of a settled step. Work that was done again does not
//! count. The denominator is the peak of the members of each generation in its time. It counts each
//! GPU that they computed on once, even if several share it, with the peak of its data sheet.
//! Unknown values are not guessed.

use std::collections::BTreeMap;

use everstep_kernels::device::peak_flops;
use everstep_kernels::precision::Precision;
use everstep_transport::protocol::outcome::{EventKind, WorkerResult};
use everstep_transport::protocol::{Device, Generation, RunSpec, WorkerId};
use everstep_worker::builtin;

use crate::cluster::Progress;

/// The utilization of a complete run. None if a worker computed on a device without a known peak,
/// or if the model's operations were not counted.
pub(super) fn of_run(run: &RunSpec, progress: &Progress) -> Option<f64> {
    let flops = flops_per_sample(progress.results.as_deref()?)? as f64;
    let done = flops * run.batch.samples() as f64 * progress.lines.len() as f64;
    let peaks = peaks(progress, builtin::precision(run));
    let spent = progress.lines.iter().chain(&progress.undone);
    let possible = spent.map(|line| Some(line.seconds * (*peaks.get(&line.generation)?)?));
    let possible = possible.sum::<Option<f64>>()?;
    (possible > 0.0).then(|| done / possible)
}

/// The operations a sample that all workers report. None if they differ.
fn flops_per_sample(results: &[WorkerResult]) -> Option<u64> {
    let first = results.first()?.flops_per_sample;
    first.filter(|_| results.iter().all(|result| result.flops_per_sample == first))
}

/// The operations a second that the members of each generation could do.
fn peaks(progress: &Progress, precision: Precision) -> BTreeMap<Generation, Option<f64>> {
    let generations = progress.events.iter().filter_map(|event| match &event.kind {
        EventKind::Generation { generation, workers, .. } => {
            Some((*generation, peak(workers, &progress.devices, precision)))
        }
        _ => None,
    });
    generations.collect()
}

fn peak(
    workers: &[WorkerId],
    devices: &BTreeMap<WorkerId, Device>,
    precision: Precision,
) -> Option<f64> {
    let gpus = workers.iter().map(|worker| {
        let device = devices.get(worker)?;
        Some((device.gpu?.uuid, peak_flops(device.name.as_str(), precision)?))
    });
    let gpus: BTreeMap<[u8; 16], f64> = gpus.collect::<Option<_>>()?;
    Some(gpus.values().sum())
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::Event;
    use everstep_transport::protocol::run::Precision as Stated;
    use everstep_transport::protocol::{Cause, DeviceName, GpuId, MetricsLine, Step, exemplars};

    use super::*;

    fn device(name: &str, uuid: u8) -> Device {
        let gpu = GpuId { number: 0, capability: (9, 0), uuid: [uuid; 16] };
        Device { name: DeviceName::of(name), precision: Stated::Bf16, gpu: Some(gpu) }
    }

    /// Eight samples a step, each of 1e12 operations.
    fn run() -> RunSpec {
        let mut run = exemplars::run();
        run.model.precision = Stated::Bf16;
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
        let line = |generation: &u64| MetricsLine {
            generation: Generation(*generation),
            seconds: 1.0,
            ..MetricsLine::default()
        };
        let result = |_: &Device| WorkerResult {
            flops_per_sample: Some(1 << 40),
            ..WorkerResult::default()
        };
        Progress {
            lines: steps.iter().map(line).collect(),
            devices: (1..).map(WorkerId).zip(devices.iter().cloned()).collect(),
            events,
            results: Some(devices.iter().map(result).collect()),
            ..Progress::default()
        }
    }

    fn close(found: Option<f64>, share: f64) -> bool {
        found.is_some_and(|found| (found / share - 1.0).abs() < 1e-12)
    }

    const STEP: f64 = 8.0 * (1_u64 << 40) as f64;

    #[test]
    fn it_is_what_the_model_took_of_what_the_gpus_could_do() {
        let devices = [device("NVIDIA H200", 1), device("NVIDIA A100-SXM4-80GB", 2)];
        let mut told = progress(&devices, vec![generation(1, &[1, 2])], &[1, 1]);
        assert!(close(of_run(&run(), &told), STEP / (989e12 + 312e12)));
        // The time of steps that a rollback took back counts too.
        told.undone = told.lines.clone();
        assert!(close(of_run(&run(), &told), STEP / (989e12 + 312e12) / 2.0));
    }

    #[test]
    fn workers_that_share_a_gpu_count_it_once() {
        let devices =
            [device("NVIDIA H200", 1), device("NVIDIA H200", 1), device("NVIDIA H200", 2)];
        let shared = progress(&devices, vec![generation(1, &[1, 2])], &[1]);
        assert!(close(of_run(&run(), &shared), STEP / 989e12));
        let apart = progress(&devices, vec![generation(1, &[1, 2, 3])], &[1]);
        assert!(close(of_run(&run(), &apart), STEP / 989e12 / 2.0));
    }

    #[test]
    fn each_generation_counts_with_its_own_members_for_its_own_time() {
        let devices = [device("NVIDIA H200", 1), device("NVIDIA H200", 2)];
        let events = vec![generation(1, &[1, 2]), generation(2, &[1])];
        let told = progress(&devices, events, &[1, 2, 2]);
        assert!(close(of_run(&run(), &told), 3.0 * STEP / (2.0 + 1.0 + 1.0) / 989e12));
    }

    #[test]
    fn nothing_is_said_where_something_is_not_known() {
        let known = device("NVIDIA H200", 1);
        for other in [Device::default(), device("Emulated GPU", 2)] {
            let told = progress(&[known.clone(), other], vec![generation(1, &[1, 2])], &[1]);
            assert_eq!(of_run(&run(), &told), None);
        }
        let mut told = progress(&[known], vec![generation(1, &[1])], &[1]);
        assert!(of_run(&run(), &told).is_some());
        let mut uncounted = told.clone();
        uncounted.results = Some(vec![WorkerResult::default()]);
        assert_eq!(of_run(&run(), &uncounted), None, "a model of the user's own");
        told.lines.clear();
        assert_eq!(of_run(&run(), &told), None, "no time");
        told.events = vec![generation(1, &[1, 5])];
        told.lines = vec![MetricsLine { generation: Generation(1), ..MetricsLine::default() }];
        assert_eq!(of_run(&run(), &told), None, "a worker that nobody was told of");
    }
}
