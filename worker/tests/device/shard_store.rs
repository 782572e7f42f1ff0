//! Shards that change hands: exported, restored, synced, shared.

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_transport::protocol::{Encoding, Rounding, RunSpec, Shard, Step, WorkerId};
use everstep_worker::step::event::{Gradient, Job, Report, ShardOrigin};

use crate::support::{
    Gradients, SHARDS, TestDevice, bits, enter, load, parameters, relabel, run, sync, update,
    updated, weighed_update,
};

const ASKING: WorkerId = WorkerId(7);

/// A shard's state as it arrives. A test may spoil it.
struct State {
    shard: Shard,
    version: Step,
    digest: u64,
    parts: Vec<Vec<f32>>,
}

impl State {
    fn restore(self) -> Job {
        let Self { shard, version, digest, parts } = self;
        let parts = parts.into_iter().map(Buffer::detached).collect();
        Job::Restore { shard, version, digest, parts }
    }
}

fn export(test_device: &mut TestDevice, shard: u32) -> State {
    let reports = test_device.give(Job::Export { to: ASKING, shards: vec![Shard(shard)] });
    let [Report::State { to: ASKING, version, shard, digest, parts }] = reports.as_slice() else {
        panic!("{reports:?}")
    };
    let parts = parts.iter().map(|part| part.to_vec()).collect();
    State { shard: *shard, version: *version, digest: *digest, parts }
}

fn is_intact(reports: &[Report]) -> bool {
    matches!(reports, [Report::Restored { intact: true, .. }])
}

/// The micro-batches of a step may weigh 2 on the average: then its gradient is twice as large, and
/// its commit says so.
#[test]
fn owners_divide_a_gradient_by_the_mean_weight_of_its_step() {
    let [mut plain, mut weighed] = [(); 2].map(|()| TestDevice::primary_of(0..SHARDS));
    let gradients = plain.reduced(1);
    let double = |(shard, values): (&Shard, &Shared)| {
        let values: Vec<f32> = values.iter().map(|value| 2.0 * value).collect();
        (*shard, Shared::new(Buffer::detached(values)))
    };
    let doubled: Gradients = gradients.iter().map(double).collect();
    for shard in 0..SHARDS {
        let once = plain.give(update(1, shard, &gradients));
        let twice = weighed.give(weighed_update(1, shard, &doubled, 0.5));
        assert_eq!(updated(&twice), updated(&once));
    }
}

#[test]
fn a_joiner_goes_on_from_what_an_owner_exports_as_the_owner_does() {
    let rounded = |rounding| RunSpec { all_gather: Encoding::Bf16, rounding, ..run() };
    for run in [run(), rounded(Rounding::Nearest), rounded(Rounding::Stochastic)] {
        let mut owner = TestDevice::of(&run);
        owner.give(enter(1, ShardOrigin::Seed, 0..SHARDS));
        owner.train(1, 0..SHARDS);
        owner.train(2, 0..SHARDS);
        let mut joiner = TestDevice::of(&run);
        joiner.give(sync(1, 0..SHARDS));
        for shard in 0..SHARDS {
            assert!(is_intact(&joiner.give(export(&mut owner, shard).restore())));
        }
        let gradients = owner.reduced(3);
        assert_eq!(bits(&joiner.reduced(3)), bits(&gradients), "it computes with what it learned");
        for shard in 0..SHARDS {
            let made = owner.give(update(3, shard, &gradients));
            let syncing = joiner.give(update(3, shard, &gradients));
            assert_eq!(updated(&made), updated(&syncing));
            assert!(parameters(&syncing).is_empty(), "a joiner sends nothing");
        }
        assert_eq!(joiner.digests(0..SHARDS), owner.digests(0..SHARDS));
        assert_eq!(joiner.train(4, 0..SHARDS), owner.train(4, 0..SHARDS));
    }
}

#[test]
fn a_gradient_that_changed_in_memory_ends_the_device_before_it_is_applied() {
    let mut owner = TestDevice::primary_of(0..SHARDS);
    owner.train(1, 0..SHARDS);
    let gradients = owner.reduced(2);
    for (flipped, accepted) in [(0, true), (1 << 29, false)] {
        let mut joiner = TestDevice::new();
        joiner.give(sync(1, 0..SHARDS));
        assert!(is_intact(&joiner.give(export(&mut owner, 5).restore())));
        let Job::Update { shard, step, norm, factor, update, gradient } = update(2, 5, &gradients)
        else {
            unreachable!("it is an update")
        };
        let Gradient { values, digest } = gradient.expect("it is applied");
        let mut came = values.to_vec();
        came[3] = f32::from_bits(came[3].to_bits() ^ flipped);
        let values = Shared::new(Buffer::detached(came));
        let gradient = Some(Gradient { values, digest });
        let done = joiner.attempt(Job::Update { shard, step, norm, factor, update, gradient });
        assert_eq!(done.is_ok(), accepted, "{done:?}");
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused_and_nothing_is_lost() {
    let mut owner = TestDevice::primary_of(0..SHARDS);
    owner.train(1, 0..SHARDS);
    let spoilers: [fn(&mut State); 5] = [
        |state| state.digest ^= 1,
        |state| state.version = Step(2),
        |state| state.parts[1][3] = f32::from_bits(state.parts[1][3].to_bits() ^ 1),
        |state| state.parts.truncate(2),
        |state| state.parts[2].truncate(3),
    ];
    let mut joiner = TestDevice::new();
    joiner.give(sync(1, 0..SHARDS));
    assert!(is_intact(&joiner.give(export(&mut owner, 5).restore())));
    for spoil in spoilers {
        let mut state = export(&mut owner, 5);
        spoil(&mut state);
        let refused = joiner.give(state.restore());
        assert!(matches!(refused.as_slice(), [Report::Restored { intact: false, .. }]));
    }
    assert_eq!(joiner.digests(5..6), owner.digests(5..6));
}

#[test]
fn entering_keeps_what_is_listed_and_drops_the_rest() {
    let mut test_device = TestDevice::primary_of(0..SHARDS);
    test_device.train(1, 0..SHARDS);
    let whole = test_device.digests(0..SHARDS);
    let (owned, syncing) = (vec![(Shard(1), false), (Shard(4), true)], vec![Shard(2)]);
    let enter = |owned, syncing| {
        let generation = everstep_transport::protocol::Generation(2);
        Job::Enter { generation, origin: ShardOrigin::Held, owned, syncing }
    };
    let entered = test_device.give(enter(owned, syncing.clone()));
    let [Report::Entered { owned, .. }] = entered.as_slice() else { panic!("{entered:?}") };
    assert_eq!(*owned, [whole[1], whole[4]], "the learned one is no evidence");

    let gradients = test_device.reduced(2);
    let sent: Vec<bool> = [1, 2, 4]
        .map(|shard| !parameters(&test_device.give(update(2, shard, &gradients))).is_empty())
        .into();
    assert_eq!(sent, [false, false, true], "only a primary sends");
    let everything = (0..SHARDS).map(Shard).collect();
    let entered = test_device.give(enter(Vec::new(), everything));
    assert!(matches!(entered.as_slice(), [Report::Entered { owned, .. }] if owned.is_empty()));
    assert_eq!(test_device.digests(1..3).len(), 2, "what was kept is still there");
}

/// A joiner may be behind in state and up to date in parameters.
#[test]
fn an_older_state_does_not_take_parameters_back() {
    let mut owner = TestDevice::primary_of(0..SHARDS);
    owner.train(1, 0..SHARDS);
    let old: Vec<State> = (0..SHARDS).map(|shard| export(&mut owner, shard)).collect();
    let gradients = owner.reduced(2);
    let mut joiner = TestDevice::new();
    joiner.give(sync(1, 0..SHARDS));
    for shard in 0..SHARDS {
        let new = parameters(&owner.give(update(2, shard, &gradients)));
        joiner.give(load(shard, 2, &new[0].1));
    }
    let whole = bits(&owner.reduced(3));
    for state in old {
        assert!(is_intact(&joiner.give(state.restore())));
    }
    assert_eq!(bits(&joiner.reduced(3)), whole, "a pass does not wait");
    for shard in 0..SHARDS {
        joiner.give(update(2, shard, &gradients));
    }
    assert_eq!(bits(&joiner.reduced(3)), whole);
}

#[test]
fn what_is_shared_is_what_the_primary_computes_with() {
    for rounding in [Rounding::Nearest, Rounding::Stochastic] {
        let run = RunSpec { all_gather: Encoding::Bf16, rounding, ..run() };
        let mut owner = TestDevice::of(&run);
        owner.give(enter(1, ShardOrigin::Seed, 0..SHARDS));
        let gradients = owner.reduced(1);
        for shard in 0..SHARDS {
            let sent = parameters(&owner.give(update(1, shard, &gradients)));
            let mut ask = |step| {
                let shared = owner.give(Job::Share { to: ASKING, shards: vec![Shard(shard)] });
                let version = match shared.as_slice() {
                    [Report::Shared { to: ASKING, version, .. }] => *version,
                    _ => panic!("{shared:?}"),
                };
                assert_eq!(version, Step(step));
                assert_eq!(parameters(&shared)[0].1[..], sent[0].1[..]);
                owner.give(relabel(step + 1, shard));
            };
            ask(1);
            ask(2); // a skipped step does not round again
            let rounded = sent[0].1.iter().all(|value| value.to_bits().trailing_zeros() >= 16);
            assert!(rounded, "they travel in bf16");
        }
    }
}
