//! Workers of several kinds, and whether their first gradients differ.

use everstep_transport::protocol::message::Message;
use everstep_transport::protocol::{WorkerId, exemplars};

use super::*;

fn stated(device: &str, probe: u64) -> Registration {
    let messages = exemplars::all().into_iter();
    let mut stated = messages.filter_map(|message| match message {
        Message::Register(registration) => Some(registration),
        _ => None,
    });
    let mut registration = stated.next().expect("an exemplar");
    (registration.device.name, registration.probe) = (DeviceName::of(device), probe);
    registration
}

/// Workers 1, 2, … on these devices, with these digests.
pub(crate) fn probes(workers: &[(&str, u64)]) -> ProbeDigests {
    let mut probes = ProbeDigests::default();
    for (id, (device, probe)) in (1..).zip(workers) {
        let label = WorkerLabel { number: id as u32, worker: WorkerId(id + 10), host: None };
        probes.note(label, &stated(device, *probe));
    }
    probes
}

#[test]
fn equal_bits_need_no_reason_whatever_computed_them() {
    for workers in [&[][..], &[("cpu", 7)], &[("cpu", 7), ("NVIDIA H200", 7), ("cpu", 7)]] {
        assert_eq!(probes(workers).divergence(), None, "{workers:?}");
    }
}

#[test]
fn however_many_kinds_there_are_few_are_kept_and_a_difference_is_never_missed() {
    let names: Vec<String> = (0..50).map(|number| format!("GPU {number}")).collect();
    let mut all: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 7)).collect();
    assert_eq!(probes(&all).divergence(), None);
    all[30].1 = 8;
    let some = probes(&all);
    assert!(some.divergence().is_some());
    assert!(some.0.len() <= MAX_KINDS);
    assert!(some.divergence().is_some_and(|it| it.to_string().len() < 1_000));
}
