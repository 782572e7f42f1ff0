use everstep_transport::protocol::MetricsLine;
use everstep_transport::protocol::outcome::Outcome;

use super::*;

/// The news after this step and this event: the line of step 9 alone.
fn update(step: u64, event: u64) -> Update {
    let line = MetricsLine { step: Step(9), ..MetricsLine::default() };
    Update {
        run: None,
        step: Step(step),
        event,
        lines: vec![line],
        events: Vec::new(),
        workers: Vec::new(),
        forgotten: Vec::new(),
        idle: Vec::new(),
        building: Vec::new(),
        divergence: None,
        waiting: None,
        owners_awaited: None,
        model_awaited: None,
        unable: Vec::new(),
        unreachable: Vec::new(),
        outcome: Outcome::Running,
        paused: None,
    }
}

#[test]
fn only_what_follows_is_taken_for_the_answer() {
    for (step, event, taken) in [(7, 3, true), (6, 3, false), (8, 3, false), (7, 2, false)] {
        let update = update(step, event);
        assert_eq!(follows(&update, Step(7), 3), taken, "{update:?}: step 8 is lost");
    }
}

#[test]
fn operators_listen_where_the_coordinators_can_answer() {
    let address = |text: &str| text.parse().expect("an address");
    for (coordinators, here) in [
        (vec![address("127.0.0.1:4"), address("[::1]:4")], "127.0.0.1"),
        (vec![address("127.0.0.1:4"), address("10.0.0.7:4")], "0.0.0.0"),
        (vec![address("[fd00::7]:4")], "::"),
    ] {
        assert_eq!(listening(&coordinators).to_string(), here);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.expect("a runtime")
}

#[test]
fn nobody_there_is_told_with_every_place_that_was_tried() {
    use everstep_transport::identity::{Authority, Identity, Role};
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::create().expect("keys");
    let name = NodeName::parse("operator").expect("a name");
    let identity = Identity { role: Role::Operator, name };
    let credentials = authority.issue(&identity, Duration::from_secs(60)).expect("certified");
    credentials.save(folder.path()).expect("written");
    // A bound socket that never answers.
    let deaf = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = deaf.local_addr().expect("an address");
    runtime().block_on(async {
        let mut operator = Operator::new(folder.path(), &[address]).expect("credentials");
        let error = operator.watch(Step(0), 0).await.expect_err("nobody is there");
        let OperatorError::Unanswered(words) = error else { panic!("{error:?}") };
        let expected = format!("no coordinator answers: tried {address} (");
        assert!(words.starts_with(&expected), "{words}");
    });
}
