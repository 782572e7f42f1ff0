//! A certificate alone lets no node in: the allow list decides, and a removed node is out at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::Message;
use everstep_transport::quic::{ConnectError, Expected, LinkError};

use crate::support::{World, link, name};

fn worker(node: &str) -> Identity {
    Identity { role: Role::Worker, name: name(node) }
}

#[tokio::test]
async fn who_is_not_in_the_roster_is_not_let_in_and_told_so() {
    let world = World::new();
    let (here, listed, other) = (world.worker("here"), world.worker("listed"), world.worker("o"));
    here.admit_only(|node| *node == worker("listed"));
    let _links = link(&listed, &here).await;

    let error = other.connect(here.local_address(), &Expected::Anyone).await.unwrap_err();
    assert!(matches!(error, ConnectError::NotAdmitted { .. }), "{error}");
    assert!(error.to_string().contains("not in the allow list"), "{error}");
    assert_eq!(here.stats().failed_handshakes, 1);
    let error = here.connect(other.local_address(), &Expected::Anyone).await.unwrap_err();
    assert!(matches!(&error, ConnectError::NotListed { met, .. } if *met == worker("o")));

    here.admit_only(|_| true);
    let _links = link(&other, &here).await;
}

#[tokio::test]
async fn a_removed_node_loses_all_its_links_at_once_and_others_keep_theirs() {
    let world = World::new();
    let (here, removed, kept) = (world.worker("here"), world.worker("gone"), world.worker("kept"));
    let (called, _there) = link(&here, &removed).await;
    let (theirs, incoming) = link(&removed, &here).await;
    let (friend, stays) = link(&kept, &here).await;

    here.admit_only(|node| *node != worker("gone"));
    for ended in [called.ended(), incoming.ended()] {
        let Some(LinkError::Ended { reason }) = ended else { panic!("{ended:?}") };
        assert!(reason.contains("not in the allow list"), "{reason}");
    }
    let told = tokio::time::timeout(Duration::from_secs(20), theirs.closed()).await;
    let Ok(LinkError::Closed { reason }) = told else { panic!("{told:?}") };
    assert!(reason.contains("not in the allow list"), "{reason}");
    friend.send(Message::FetchRecord).unwrap();
    assert_eq!(stays.receive().await, Ok(Message::FetchRecord));
    assert_eq!(here.stats().links, 1);
}

#[tokio::test]
async fn who_is_removed_during_a_handshake_has_no_link_after_it() {
    let world = World::new();
    let (here, removed) = (world.worker("here"), world.worker("gone"));
    // The allow list is asked at the handshake's end, and again when a removal would find the link.
    let asked = AtomicU32::new(0);
    here.admit_only(move |_| asked.fetch_add(1, Ordering::Relaxed) == 0);
    match removed.connect(here.local_address(), &Expected::Anyone).await {
        Ok(link) => {
            let ended = tokio::time::timeout(Duration::from_secs(20), link.closed()).await;
            assert!(matches!(ended, Ok(LinkError::Closed { .. })), "{ended:?}");
        }
        // The link's end may overtake the word that the peer was let in.
        Err(error) => assert!(matches!(error, ConnectError::NotAdmitted { .. }), "{error}"),
    }
    assert_eq!(here.stats().links, 0);
}
