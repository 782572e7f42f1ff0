//! A killed coordinator that starts again where it was keeps its promises.

use everstep_transport::protocol::outcome::{EventKind, Outcome, Update};
use everstep_transport::protocol::{Generation, Message, Step, Term, WorkerId};

use crate::support::{Cluster, Node, Worker, lines};

/// The terms in the events.
fn limits(update: &Update) -> Vec<u64> {
    let leading = update.events.iter().filter_map(|event| match event.kind {
        EventKind::Leading { term, .. } => Some(term.0),
        _ => None,
    });
    leading.collect()
}

#[tokio::test]
async fn i9_a_killed_coordinator_goes_on_with_the_run() {
    let mut cluster = Cluster::start().await;
    let mut workers = [cluster.worker().await, cluster.worker().await];
    let records = tokio::join!(workers[0].enters(), workers[1].enters());
    assert_eq!(workers[0].beat(lines(1..=4)).await.0, Step(4));
    let before = cluster.watch().await;
    assert_eq!(limits(&before), [2]);

    cluster.restart().await;
    for worker in &mut workers {
        let registered = Message::Registered { worker: worker.id, term: Term(3) };
        assert_eq!(worker.return_to(cluster.address).await, registered);
    }
    let after = cluster.watch().await;
    assert_eq!(limits(&after), [2, 3]);
    assert_eq!((&after.lines, &after.workers), (&before.lines, &before.workers));
    assert_eq!(after.events[..before.events.len()], before.events);
    workers[1].node.say(Message::FetchRecord);
    assert_eq!(workers[1].node.hear().await, Message::Announce(records.0));

    assert_eq!(workers[0].beat(lines(5..=10)).await, (Step(10), Generation(1)));
    workers.iter().for_each(Worker::finishes);
    for worker in &workers {
        assert_eq!(worker.node.hear().await, Message::Dismiss);
    }
    // A run that is over stays so.
    cluster.restart().await;
    let update = cluster.watch_to_the_end().await;
    assert_eq!(update.lines.len(), 10);
    assert!(matches!(update.outcome, Outcome::Complete(results) if results.len() == 2));
}

#[tokio::test]
async fn a_worker_that_the_log_does_not_know_is_told_so() {
    let mut cluster = Cluster::start().await;
    cluster.worker().await;
    cluster.restart().await;
    let stranger = Node::connect(cluster.address, &cluster.enrol().await).await;
    let worker = WorkerId(1_000);
    stranger.say(Message::Hello { worker: Some(worker) });
    assert_eq!(stranger.hear().await, Message::Evicted { worker });
}

#[tokio::test]
async fn every_registration_that_was_answered_survives_and_no_id_is_given_twice() {
    let mut cluster = Cluster::start().await;
    let mut known: Vec<Worker> = Vec::new();
    for term in (3..=7).map(Term) {
        let newcomer = cluster.worker().await;
        assert!(known.iter().all(|worker| worker.id < newcomer.id));
        known.push(newcomer);
        // Kills it the moment after it has answered.
        cluster.restart().await;
        for worker in &mut known {
            let registered = Message::Registered { worker: worker.id, term };
            assert_eq!(worker.return_to(cluster.address).await, registered);
        }
    }
    assert_eq!(limits(&cluster.watch().await), [2, 3, 4, 5, 6, 7]);
}
