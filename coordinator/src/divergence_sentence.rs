//! Why a run's bits are not those of any other such run, in a sentence for people.
//!
//! In: the kinds of first gradients that the replicated state holds. Out: words that name the
//! workers and devices that differ.

use std::fmt;

use everstep_transport::protocol::{DeviceName, WorkerId, WorkerLabel};

use crate::state::{Divergence, MAX_NAMED, ProbeDigests, ProbeKind};

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sentence(&self.0))
    }
}

/// Workers that a sentence speaks of together.
struct Group<'a> {
    device: &'a DeviceName,
    named: Vec<WorkerLabel>,
    count: u64,
}

/// Names the workers that got different first gradients, and what may be the cause.
fn sentence(probes: &ProbeDigests) -> String {
    let mut devices: Vec<&DeviceName> = probes.0.iter().map(|kind| &kind.device).collect();
    devices.sort();
    devices.dedup();
    if let [device] = devices[..] {
        let groups = by_size(probes.0.iter().map(|kind| group(device, [kind])).collect());
        return of_one_device(&groups);
    }
    let on = |device| group(device, probes.0.iter().filter(|kind| kind.device == *device));
    let mut words = of_many_devices(&by_size(devices.iter().copied().map(on).collect()));
    for device in devices {
        let mut there = probes.0.iter().filter(|kind| kind.device == *device);
        let first = there.next().map(|kind| kind.probe);
        if there.any(|kind| Some(kind.probe) != first) {
            words += &format!(", and those on {device} differ among themselves");
        }
    }
    words
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
    use crate::state::probes::tests::probes;

    fn words_of(workers: &[(&str, u64)]) -> Option<String> {
        probes(workers).divergence().map(|divergence| divergence.to_string())
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
                "worker 3 (id 13) computes on cpu, the others on NVIDIA H200, and those on NVIDIA \
                 H200 differ among themselves",
            ),
        ] {
            assert_eq!(words_of(workers).as_deref(), Some(words));
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
            assert_eq!(words_of(workers), Some(expected));
        }
    }
}
