//! Which workers' first gradients have the same bits, and the devices of those that differ.
//!
//! A run's bits are those of any other such run as long as all workers that ever registered for it
//! got the same from its first micro-batch. If they did not, a user wants to know why, even when
//! the worker that differs has gone. This module does not know how a digest is made.

use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::{DeviceName, WorkerId, WorkerLabel};
use rkyv::{Archive, Deserialize, Serialize};

/// The most kinds of workers that are told apart.
const MAX_KINDS: usize = 8;
/// The most workers of a kind that are named.
const MAX_NAMED: usize = 3;

/// The workers of a run, by their device and their first gradient.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct Probes(Vec<ProbeKind>);

/// Workers with the same digest on devices of one name.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
struct ProbeKind {
    device: DeviceName,
    probe: u64,
    /// The first workers of this kind.
    named: Vec<WorkerLabel>,
    count: u64,
}

/// Workers that a sentence speaks of together.
struct Group<'a> {
    device: &'a DeviceName,
    named: Vec<WorkerLabel>,
    count: u64,
}

impl Probes {
    /// Takes note of a worker that has registered.
    pub(super) fn note(&mut self, worker: WorkerLabel, stated: &Registration) {
        let (device, probe) = (&stated.device.name, stated.probe);
        let is_one = |kind: &&mut ProbeKind| kind.probe == probe && kind.device == *device;
        if let Some(kind) = self.0.iter_mut().find(is_one) {
            kind.count += 1;
            if kind.named.len() < MAX_NAMED {
                kind.named.push(worker);
            }
            return;
        }
        // A worker of yet another kind changes nothing, unless it is the first to differ.
        if self.0.len() == MAX_KINDS && !self.differ() {
            self.0.pop();
        }
        if self.0.len() < MAX_KINDS {
            self.0.push(ProbeKind { device: device.clone(), probe, named: vec![worker], count: 1 });
        }
    }

    fn differ(&self) -> bool {
        self.0.windows(2).any(|pair| pair[0].probe != pair[1].probe)
    }

    /// Why the bits are not those of any other such run, in words for the user. `None` if they are.
    pub(super) fn divergence(&self) -> Option<String> {
        if !self.differ() {
            return None;
        }
        let mut devices: Vec<&DeviceName> = self.0.iter().map(|kind| &kind.device).collect();
        devices.sort();
        devices.dedup();
        if let [device] = devices[..] {
            let groups = by_size(self.0.iter().map(|kind| group(device, [kind])).collect());
            return Some(of_one_device(&groups));
        }
        let on = |device| group(device, self.0.iter().filter(|kind| kind.device == *device));
        let mut words = of_many_devices(&by_size(devices.iter().copied().map(on).collect()));
        for device in devices {
            let mut there = self.0.iter().filter(|kind| kind.device == *device);
            let first = there.next().map(|kind| kind.probe);
            if there.any(|kind| Some(kind.probe) != first) {
                words += &format!("; those on {device} differ among themselves");
            }
        }
        Some(words)
    }
}

fn group<'a>(device: &'a DeviceName, kinds: impl IntoIterator<Item = &'a ProbeKind>) -> Group<'a> {
    let mut group = Group { device, named: Vec::new(), count: 0 };
    for kind in kinds {
        group.named.extend(kind.named.iter().cloned());
        group.count += kind.count;
    }
    group.named.sort_by_key(|label| label.worker);
    group.named.truncate(MAX_NAMED);
    group
}

/// The smallest group first: a sentence ends with "the others". Of equal groups, the one with the
/// first worker comes last.
fn by_size(mut groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    groups.sort_by(|a, b| a.count.cmp(&b.count).then(first(b).cmp(&first(a))));
    groups
}

fn first(group: &Group<'_>) -> Option<WorkerId> {
    group.named.first().map(|label| label.worker)
}

fn of_many_devices(groups: &[Group<'_>]) -> String {
    let Some((most, few)) = groups.split_last() else { return String::new() };
    let few = few.iter().enumerate().map(|(at, group)| {
        let verb = match (at, group.count) {
            (0, 1) => " computes",
            (0, _) => " compute",
            _ => "",
        };
        format!("{}{verb} on {}, ", who(group), group.device)
    });
    let rest = if most.count == 1 { who(most) } else { "the others".into() };
    format!("{}{rest} on {}", few.collect::<String>(), most.device)
}

fn of_one_device(groups: &[Group<'_>]) -> String {
    let Some((most, few)) = groups.split_last() else { return String::new() };
    let few: Vec<String> = few.iter().map(who).collect();
    let rest = if most.count == 1 { who(most) } else { "the others".into() };
    format!(
        "the first gradients of {} differ from those of {rest}, though all compute on {}: their \
         processors, drivers or libraries may be of different kinds or versions",
        few.join(", of "),
        most.device
    )
}

fn who(group: &Group<'_>) -> String {
    let named: Vec<String> = group.named.iter().map(WorkerLabel::to_string).collect();
    match (group.count - named.len() as u64, &named[..]) {
        (0, [one]) => one.clone(),
        (0, [first @ .., last]) => format!("{} and {last}", first.join(", ")),
        (more, _) => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;
    use everstep_transport::protocol::message::Message;

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
    fn probes(workers: &[(&str, u64)]) -> Probes {
        let mut probes = Probes::default();
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
    fn a_run_that_is_not_bitwise_says_which_devices_differ() {
        let (cpu, gpu, old) = (("cpu", 7), ("NVIDIA H200", 8), ("NVIDIA A10", 9));
        for (workers, words) in [
            (&[gpu, cpu, gpu][..], "worker 2 (id 12) computes on cpu, the others on NVIDIA H200"),
            (&[gpu, cpu], "worker 2 (id 12) computes on cpu, worker 1 (id 11) on NVIDIA H200"),
            (
                &[cpu, gpu, old, cpu, old, gpu, cpu],
                "worker 3 (id 13) and worker 5 (id 15) compute on NVIDIA A10, worker 2 (id 12) and \
                 worker 6 (id 16) on NVIDIA H200, the others on cpu",
            ),
            (
                &[cpu, cpu, cpu, cpu, cpu, gpu, gpu, gpu, gpu, gpu, gpu],
                "worker 1 (id 11), worker 2 (id 12), worker 3 (id 13) and 2 more compute on cpu, \
                 the others on NVIDIA H200",
            ),
            (
                &[gpu, gpu, cpu, ("NVIDIA H200", 6)],
                "worker 3 (id 13) computes on cpu, the others on NVIDIA H200; those on NVIDIA H200 \
                 differ among themselves",
            ),
        ] {
            assert_eq!(probes(workers).divergence().as_deref(), Some(words));
        }
    }

    #[test]
    fn on_equal_devices_it_says_who_differs_and_what_may_be_the_cause() {
        let (one, other) = (("cpu", 7), ("cpu", 8));
        let words = "though all compute on cpu: their processors, drivers or libraries may be of \
                     different kinds or versions";
        for (workers, who) in [
            (&[one, other, one][..], "worker 2 (id 12) differ from those of the others"),
            (&[one, other], "worker 2 (id 12) differ from those of worker 1 (id 11)"),
            (
                &[one, one, other, ("cpu", 9)],
                "worker 4 (id 14), of worker 3 (id 13) differ from those of the others",
            ),
        ] {
            let expected = format!("the first gradients of {who}, {words}");
            assert_eq!(probes(workers).divergence(), Some(expected));
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
        assert!(some.divergence().is_some_and(|words| words.len() < 1_000));
    }
}
