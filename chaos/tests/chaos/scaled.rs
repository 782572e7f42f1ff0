//! The loss scale of fp16: it halves and doubles as the gradients require. It is the same for every
//! worker that computes, and survives every fault.

use std::time::Duration;

use everstep_chaos::fault::Rates;
use everstep_chaos::simulate::Simulation;
use everstep_chaos::toy;
use everstep_chaos::world::{Failure, InFlight};
use everstep_transport::protocol::run::Precision;
use everstep_transport::protocol::{LossScale, Message};

use crate::support::{Toy, WORKERS};

/// Overflows at first, and again whenever the scale has grown too far.
fn scaled() -> Toy {
    Toy::new(|run| *run = toy::scaled_run())
}

#[test]
fn it_halves_and_doubles_alike_for_any_number_of_workers() {
    let (toy, alone) = scaled().with_reference();
    let scales: Vec<u32> = alone.lines.iter().map(|line| line.loss_scale).collect();
    let halved = scales.windows(2).filter(|pair| pair[0] == 2 * pair[1]).count();
    let doubled = scales.windows(2).filter(|pair| 2 * pair[0] == pair[1]).count();
    assert_eq!(alone.run_history.skipped().count(), halved);
    assert!(halved > 3 && doubled > 2, "{scales:?}");
    for workers in WORKERS {
        for copies in [1, 2] {
            let finished = toy.copies(copies).complete(workers, 9);
            assert_eq!(finished.state_hash, alone.state_hash, "{workers} workers");
            let found: Vec<u32> = finished.lines.iter().map(|line| line.loss_scale).collect();
            assert_eq!(found, scales);
        }
    }
}

#[test]
fn i2_sixty_seeds_of_every_fault_that_a_run_survives_forget_no_scale() {
    let minute = Duration::from_secs(60);
    let simulation = Simulation::new(4, minute, Rates::default()).expect("without a fault");
    let simulation = simulation.precise(Precision::F16);
    let (mut generations, mut rollbacks) = (0, 0);
    for seed in 0..60 {
        let met = simulation.simulate(seed).result;
        let changes = met.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).changes;
        generations += changes.generations;
        rollbacks += changes.rollbacks;
    }
    assert!(generations > 500 && rollbacks > 5, "{generations}, {rollbacks}: too dull");
}

/// Whatever the commit says, no device computes with it, and no core panics.
#[test]
fn i2_a_commit_whose_scale_does_not_follow_ends_the_run() {
    for exponent in [0, 14, 17, 24, 25, 63, 200, u8::MAX] {
        let mut changed = false;
        let met = scaled().intercepted(3, move |in_flight| {
            let InFlight::Messages { messages, .. } = in_flight else { return };
            for message in messages {
                if let Message::Commit(commit) = message
                    && !std::mem::replace(&mut changed, true)
                {
                    commit.loss_scale = LossScale { exponent, good: u32::MAX };
                }
            }
        });
        let Err(Failure::Run(reason)) = met else { panic!("{exponent}: {met:?}") };
        assert!(reason.contains("loss scale that does not follow"), "{reason}");
    }
}
