//! Runs that go back.

use super::*;

#[test]
fn i21_a_rollback_while_an_owner_lives() {
    let back = record(2);
    for (lost, expected) in [
        (vec![], Err(Invariant::I21)),
        (vec![SECOND], Err(Invariant::I21)),
        (vec![FIRST, SECOND], Ok(())),
    ] {
        let lost: BTreeSet<WorkerId> = lost.into_iter().collect();
        let seen = see(&mut checks(None), Observation::Recorded(&back, back.term, Some(&lost)));
        assert_eq!(seen, expected, "{lost:?}");
    }
}

#[test]
fn i21_a_run_begins_again_where_all_members_have_left_it() {
    let nobody = BTreeSet::new();
    let mut checks = checks(None);
    let mut rests = record(2);
    rests.waiting = true;
    promise(&mut checks, &rests);
    see(&mut checks, Observation::Recorded(&rests, rests.term, None)).expect("no loss");
    let again = record(3);
    let begin = |checks: &mut InvariantChecks| {
        see(checks, Observation::Recorded(&again, again.term, Some(&nobody)))
    };
    promise(&mut checks, &again);
    assert_eq!(begin(&mut checks), Err(Invariant::I21), "members may live, with later steps");
    let listed = BTreeSet::new();
    see(&mut checks, Observation::LeftTogether(&listed)).expect("the seed has step 0");
    assert_eq!(begin(&mut checks), Ok(()));
}

#[test]
fn a_rollback_takes_settled_steps_back() {
    let mut checks = checks(None);
    complete(&mut checks).expect("no invariant is broken");
    let (back, lost) = (record(2), BTreeSet::from([FIRST, SECOND]));
    promise(&mut checks, &back);
    see(&mut checks, Observation::Recorded(&back, back.term, Some(&lost))).expect("all are lost");
    enter(&mut checks, &back).expect("from the beginning");
    let kind = EventKind::Rollback { from: Step(1), to: Step(0), reason: RollbackReason::Asked };
    let event = Event { number: 1, unix_ms: 0, kind };
    see(&mut checks, Observation::Told(&event)).expect("it is the first event");
    compute(&mut checks, |part| part.loss = 2.0).expect_err("in the same generation");
    let again = Commit { generation: Generation(2), ..commit(1) };
    see(&mut checks, Observation::Committed(FIRST, &again)).expect("it is another history");
    see(&mut checks, Observation::Written(&commit(1).line)).expect("a new line of step 1");
}
