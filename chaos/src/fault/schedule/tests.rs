use super::*;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_schedule_follows_from_its_seed_alone() {
    let draw = |seed| Schedule::draw(seed, MINUTE, 4, 3, &Rates::default());
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    let times: Vec<Time> = draw(7).0.iter().map(|(at, _)| *at).collect();
    assert!(times.is_sorted() && times.iter().all(|at| *at < Time(0) + MINUTE));
}

#[test]
fn every_kind_is_drawn_as_often_as_its_rate_says() {
    let rates = Rates { duplicates: 0.25, ..Rates::none() };
    let drawn: usize =
        (0..4_000).map(|seed| Schedule::draw(seed, MINUTE, 3, 3, &rates).0.len()).sum();
    assert!((850..1_150).contains(&drawn), "{drawn} of 1,000");
    let rates = Rates { mistakes: 1.0, ..Rates::default() };
    let all = Schedule::draw(1, 60 * MINUTE, 3, 3, &rates);
    let kinds: std::collections::BTreeSet<_> = all.0.iter().map(|(_, f)| f.kind()).collect();
    assert_eq!(kinds.len(), 48);
}

#[test]
fn tolerated_faults_interrupt_nothing_for_long_and_none_are_none() {
    let faults = Schedule::draw(3, 60 * MINUTE, 4, 3, &Rates::tolerated());
    let ends = |fault: &Fault| {
        matches!(fault, Fault::Crash { .. } | Fault::Drain { .. } | Fault::Preempt { .. })
    };
    let borne = |fault: &Fault| fault.outage() <= TOLERATED_OUTAGE && !ends(fault);
    assert!(faults.0.iter().all(|(_, fault)| borne(fault)) && !faults.0.is_empty());
    assert_eq!(Schedule::draw(3, 60 * MINUTE, 4, 3, &Rates::none()), Schedule::default());
}

#[test]
fn one_worker_is_enough_to_draw_from() {
    let faults = Schedule::draw(3, 10 * MINUTE, 1, 1, &Rates::default());
    assert!(faults.to_string().lines().count() == faults.0.len());
}
