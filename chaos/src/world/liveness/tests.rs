//! What explains a loss, and what does not.

use super::*;

const LEADER: usize = 1;
const PLACE: usize = 3;
const MACHINE: NodeId = NodeId::Worker(1);

fn second(number: u64) -> Time {
    Time(0) + Duration::from_secs(number)
}

fn liveness() -> LivenessChecker {
    let mut liveness = LivenessChecker::default();
    liveness.judge();
    liveness.heard(second(10), LEADER, PLACE);
    liveness
}

#[test]
fn i8_silence_is_a_loss_only_with_a_fault_on_the_way() {
    let mut liveness = liveness();
    assert!(!liveness.explains(second(11), PLACE, MACHINE, LEADER));
    assert!(!liveness.explains(second(13), PLACE, MACHINE, LEADER), "it is silent for no reason");
    let span = Duration::from_secs(1);
    liveness.strike(second(10), &Fault::Pause { node: MACHINE, span }, &[]);
    assert!(liveness.explains(second(13), PLACE, MACHINE, LEADER));
    assert!(!liveness.explains(second(13), PLACE, NodeId::Worker(2), LEADER), "another machine");
    liveness.heard(second(13), LEADER, PLACE);
    assert!(liveness.explains(second(20), PLACE, MACHINE, LEADER), "it was silent");
    liveness.heard(second(20), LEADER, PLACE);
    assert!(!liveness.explains(second(60), PLACE, MACHINE, LEADER), "long ago");
}

#[test]
fn i8_a_standstill_of_many_workers_explains_no_loss_unless_another_fault_is_at_work() {
    let stand_still = |mut liveness: LivenessChecker, workers: usize| {
        let side = vec![MACHINE, NodeId::Worker(2)];
        let fault = Fault::PauseTogether { side, span: Duration::from_secs(10) };
        let running: Vec<NodeId> = (0..workers).map(NodeId::Worker).collect();
        liveness.strike(second(10), &fault, &running);
        liveness
    };
    let together = |workers| stand_still(liveness(), workers);
    let lost =
        |liveness: &LivenessChecker, at| liveness.explains(second(at), PLACE, MACHINE, LEADER);
    let mut alone = together(4);
    assert!(!lost(&alone, 13) && !lost(&alone, 30), "they are waited for");
    assert!(lost(&together(10), 13), "two of ten are too few");
    let fault = Fault::Disconnect { ends: (MACHINE, NodeId::Leader) };
    alone.strike(second(14), &fault, &[]);
    assert!(lost(&alone, 15), "something else may be the cause");

    let mut earlier = liveness();
    let span = Duration::from_secs(12);
    earlier.strike(second(1), &Fault::RefuseProbes { node: MACHINE, span }, &[]);
    earlier.begin_anew(second(9));
    let mut anew = stand_still(earlier, 4);
    anew.unlinked(second(10), LEADER, PLACE);
    assert!(lost(&anew, 11), "the firewall outlasts the cluster");
}

#[test]
fn i8_who_hears_nothing_for_long_may_be_lost_though_it_is_heard() {
    for (ms, expected) in [(1_400, false), (1_600, true)] {
        let mut liveness = liveness();
        let span = Duration::from_millis(ms);
        let clog = Fault::Clog { from: NodeId::Coordinator(LEADER), to: MACHINE, span };
        liveness.strike(second(10), &clog, &[]);
        liveness.heard(second(11), LEADER, PLACE);
        assert_eq!(liveness.explains(second(12), PLACE, MACHINE, LEADER), expected);
    }
}

#[test]
fn i8_a_coordinator_that_did_not_listen_makes_nobody_silent() {
    let mut liveness = liveness();
    let span = Duration::from_secs(1);
    liveness.strike(second(10), &Fault::Pause { node: MACHINE, span }, &[]);
    liveness.awake(second(14), LEADER);
    assert!(!liveness.explains(second(15), PLACE, MACHINE, LEADER));
}

#[test]
fn i8_a_pair_is_left_out_when_it_has_parted_twice() {
    let mut liveness = liveness();
    liveness.parted(second(11), PLACE, 7);
    assert!(!liveness.explains(second(11), PLACE, MACHINE, LEADER));
    liveness.parted(second(14), 7, PLACE);
    assert!(liveness.explains(second(15), PLACE, MACHINE, LEADER));
    assert!(liveness.explains(second(15), 7, MACHINE, LEADER));
    assert!(!liveness.explains(second(15), 8, MACHINE, LEADER));
}

#[test]
fn i11_what_could_go_on_and_does_not_is_at_a_standstill() {
    let mut liveness = liveness();
    liveness.progress(second(20));
    assert!(liveness.standstill(second(21)).is_some());
    let late = second(21) + MAX_STANDSTILL;
    assert_eq!(liveness.standstill(late), None);
    liveness.passes(late, false);
    assert!(liveness.standstill(late).is_some(), "it could not go on");
}
