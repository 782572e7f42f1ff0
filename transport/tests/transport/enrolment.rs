//! A node without a certificate becomes one of the cluster, if its token is good.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everstep_transport::identity::{
    AcceptedTokens, AdmissionDecision, Applicant, Authority, Enrolment, EnrolmentError, Gatekeeper,
    Identity, JoinToken, Refusal, Role, TokenLimits, UnixTime,
};
use everstep_transport::quic::{ConnectError, Endpoint, EnrolError, Expected, enrol, renew};
use tokio::sync::Notify;

use crate::support::{RawPeer, World, counts_failed_handshakes, link, loopback, settings};

/// A coordinator that admits workers with this token.
fn coordinator(world: &World, token: &JoinToken) -> Endpoint {
    coordinator_of(world, accepting(world.authority.clone(), token))
}

fn coordinator_of(world: &World, enrolment: Enrolment) -> Endpoint {
    let credentials = world.credentials(Role::Coordinator, "coordinator-1");
    Endpoint::bind(loopback(), &credentials, settings(), Some(enrolment)).unwrap()
}

fn accepting(authority: Arc<Authority>, token: &JoinToken) -> Enrolment {
    Enrolment::new(authority, vec![token.accepted(TokenLimits::unlimited(Role::Worker))])
}

#[tokio::test]
async fn a_good_token_makes_a_worker_that_others_let_in() {
    let world = World::new();
    let token = JoinToken::create(&world.authority);
    let coordinator = coordinator(&world, &token);
    let address = coordinator.local_address();
    let token = token.to_string().parse().unwrap();

    let credentials = enrol(address, &token, Role::Worker).await.unwrap();
    let identity = credentials.identity().clone();
    assert_eq!(identity.role, Role::Worker);

    let node = Endpoint::bind(loopback(), &credentials, settings(), None).unwrap();
    let expected = Expected::Role(Role::Coordinator);
    let (link, met) = tokio::join!(node.connect(address, &expected), coordinator.accept());
    assert_eq!(link.unwrap().identity().role, Role::Coordinator);
    assert_eq!(*met.unwrap().identity(), identity);
    assert_eq!(coordinator.stats().failed_handshakes, 0);
}

#[tokio::test]
async fn a_name_follows_from_the_key_and_cannot_be_chosen() {
    let world = World::new();
    let token = JoinToken::create(&world.authority);
    let coordinator = coordinator(&world, &token);
    let mut names = BTreeSet::new();
    for _ in 0..3 {
        let credentials = enrol(coordinator.local_address(), &token, Role::Worker).await.unwrap();
        let chain = credentials.chain();
        let (_, certificate) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
        let key = certificate.public_key().raw;
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key);
        let hex: String = digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(credentials.identity().name.as_str(), format!("worker-{hex}"));
        names.insert(credentials.identity().name.clone());
    }
    assert_eq!(names.len(), 3);
}

#[tokio::test]
async fn a_renewed_certificate_is_for_the_same_node_and_serves_both_ways() {
    let world = World::new();
    let token = JoinToken::create(&world.authority);
    let coordinator = coordinator(&world, &token);
    let address = coordinator.local_address();
    let first = enrol(address, &token, Role::Worker).await.unwrap();
    let node = Endpoint::bind(loopback(), &first, settings(), None).unwrap();
    let (before, _met) = link(&node, &coordinator).await;

    let renewed = renew(address, &token, &first).await.unwrap();
    assert_eq!(renewed.identity(), first.identity());
    assert_ne!(renewed.chain()[0], first.chain()[0]);
    node.renew(&renewed).unwrap();
    let (_here, called) = link(&node, &coordinator).await;
    let (calling, _there) = link(&coordinator, &node).await;
    assert_eq!([called.identity(), calling.identity()], [first.identity(); 2]);
    assert_eq!(before.ended(), None);
}

/// Why a coordinator that knows one token refuses a node with another token.
async fn refusal(coordinator: &Endpoint, token: &JoinToken) -> EnrolError {
    enrol(coordinator.local_address(), token, Role::Worker).await.unwrap_err()
}

fn is_refused(error: &EnrolError, why: &Refusal) -> bool {
    matches!(error, EnrolError::Enrolment(EnrolmentError::Refused(refusal)) if refusal == why)
}

#[tokio::test]
async fn a_token_makes_nodes_of_its_role() {
    let world = World::new();
    for role in [Role::Coordinator, Role::Operator] {
        let token = JoinToken::create(&world.authority);
        let accepted = vec![token.accepted(TokenLimits::unlimited(role))];
        let coordinator = coordinator_of(&world, Enrolment::new(world.authority.clone(), accepted));
        let address = coordinator.local_address();
        let credentials = enrol(address, &token, role).await.unwrap();
        assert_eq!(credentials.identity().role, role);
        let error = refusal(&coordinator, &token).await;
        let why = Refusal::WrongRole { admits: role, asked: Role::Worker };
        assert!(is_refused(&error, &why), "{error}");
        let words = format!("for a node with the role {role}, not worker");
        assert!(error.to_string().contains(&words), "{error}");
    }
}

#[tokio::test]
async fn a_token_that_has_expired_or_is_used_up_is_refused_in_words() {
    let world = World::new();
    let unlimited = TokenLimits::unlimited(Role::Worker);
    let spent = TokenLimits { uses: Some(0), ..unlimited.clone() };
    let expired = TokenLimits { expires_unix_s: Some(1_800_000_000 / 2), ..unlimited };
    let table = [
        (spent, Refusal::UsedUp { uses: 0 }, "used up"),
        (expired, Refusal::Expired { unix_s: 900_000_000 }, "expired on Jul  9 16:00:00 1998"),
    ];
    for (limits, why, words) in table {
        let token = JoinToken::create(&world.authority);
        let accepted = vec![token.accepted(limits)];
        let coordinator = coordinator_of(&world, Enrolment::new(world.authority.clone(), accepted));
        let error = refusal(&coordinator, &token).await;
        assert!(is_refused(&error, &why), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        counts_failed_handshakes(&coordinator, 1).await;
    }
}

/// A gatekeeper that decides only after a while, as if others had to agree.
pub struct Slow {
    tokens: Mutex<AcceptedTokens>,
    takes: Duration,
    /// Told when a request is there.
    pub asked: Arc<Notify>,
}

impl Slow {
    pub fn accepting(token: &JoinToken, takes: Duration) -> Self {
        let mut tokens = AcceptedTokens::default();
        tokens.accept(token.accepted(TokenLimits::unlimited(Role::Worker)));
        Self { tokens: Mutex::new(tokens), takes, asked: Arc::default() }
    }
}

impl Gatekeeper for Slow {
    fn admit(&self, applicant: Applicant, now: UnixTime) -> AdmissionDecision {
        self.asked.notify_one();
        let judged = self.tokens.lock().unwrap().judge(&applicant, now);
        let agreed = tokio::time::sleep(self.takes);
        Box::pin(async {
            agreed.await;
            judged
        })
    }

    fn renew(&self, _node: Identity, _now: UnixTime) -> AdmissionDecision {
        unreachable!("no link here is old enough")
    }
}

#[tokio::test]
async fn a_decision_may_take_its_time_but_not_for_ever() {
    let world = World::new();
    let token = JoinToken::create(&world.authority);
    let decided_after = |takes| {
        let gatekeeper = Slow::accepting(&token, takes);
        coordinator_of(&world, Enrolment::decided_by(world.authority.clone(), gatekeeper))
    };
    let soon = decided_after(Duration::from_millis(300));
    enrol(soon.local_address(), &token, Role::Worker).await.unwrap();
    let error = refusal(&decided_after(Duration::from_secs(600)), &token).await;
    assert!(is_refused(&error, &Refusal::Undecided), "{error}");
    assert!(error.to_string().contains("Try again"), "{error}");
}

#[tokio::test]
async fn a_coordinator_that_ends_before_it_has_decided_is_worth_another_try() {
    let world = World::new();
    let token = JoinToken::create(&world.authority);
    let gatekeeper = Slow::accepting(&token, Duration::from_secs(600));
    let asked = gatekeeper.asked.clone();
    let ending = coordinator_of(&world, Enrolment::decided_by(world.authority.clone(), gatekeeper));
    let address = ending.local_address();
    let end = async {
        asked.notified().await;
        ending.close("the coordinator stops").await;
    };
    let (enrolled, ()) = tokio::join!(enrol(address, &token, Role::Worker), end);
    let error = enrolled.map(|_| ()).unwrap_err();
    assert!(error.may_pass(), "{error}");
}

#[tokio::test]
async fn a_token_that_is_not_known_here_is_refused() {
    let world = World::new();
    let coordinator = coordinator(&world, &JoinToken::create(&world.authority));
    let error = refusal(&coordinator, &JoinToken::create(&world.authority)).await;
    assert!(is_refused(&error, &Refusal::UnknownToken), "{error}");
    assert!(error.to_string().contains("the join token is not known to this cluster"), "{error}");
}

#[tokio::test]
async fn a_token_with_another_secret_is_refused() {
    let world = World::new();
    let token = JoinToken::create(&world.authority);
    let coordinator = coordinator(&world, &token);
    let (token, other) = (token.to_string(), JoinToken::create(&world.authority).to_string());
    let mut parts: Vec<_> = token.split('.').collect();
    parts[2] = other.split('.').nth(2).unwrap();
    let error = refusal(&coordinator, &parts.join(".").parse().unwrap()).await;
    assert!(is_refused(&error, &Refusal::WrongSecret), "{error}");
}

#[tokio::test]
async fn a_token_of_another_cluster_does_not_trust_this_one() {
    let world = World::new();
    let coordinator = coordinator(&world, &JoinToken::create(&world.authority));
    let foreign = JoinToken::create(&Authority::create().unwrap());
    let error = refusal(&coordinator, &foreign).await;
    assert!(matches!(error, EnrolError::Connect(ConnectError::Foreign { .. })), "{error}");
}

#[tokio::test]
async fn a_worker_cannot_pass_for_a_coordinator() {
    let world = World::new();
    let token = JoinToken::create(&world.authority);
    let own = Arc::new(Authority::create().unwrap());
    let enrolment = accepting(own, &token);
    let credentials = world.credentials(Role::Worker, "impostor");
    let impostor = Endpoint::bind(loopback(), &credentials, settings(), Some(enrolment)).unwrap();
    let error = refusal(&impostor, &token).await;
    assert!(matches!(error, EnrolError::Connect(ConnectError::Stranger { .. })), "{error}");
}

#[tokio::test]
async fn a_certificate_of_another_authority_than_the_tokens_is_not_taken() {
    let world = World::new();
    let token = JoinToken::create(&world.authority);
    let other = Arc::new(Authority::create().unwrap());
    let endpoint = coordinator_of(&world, accepting(other, &token));
    let error = refusal(&endpoint, &token).await;
    assert!(matches!(error, EnrolError::Enrolment(EnrolmentError::Garbled(_))), "{error}");
}

#[tokio::test]
async fn a_node_that_does_not_enrol_says_so() {
    let world = World::new();
    let worker = world.worker("worker-1");
    let error = refusal(&worker, &JoinToken::create(&world.authority)).await;
    assert!(matches!(error, EnrolError::Connect(ConnectError::OtherVersion { .. })), "{error}");
}

#[tokio::test]
async fn a_garbled_request_is_refused_and_a_good_one_still_served() {
    let world = World::new();
    let token = JoinToken::create(&world.authority);
    let coordinator = coordinator(&world, &token);
    for bytes in [vec![], vec![7; 31], vec![7; 4096], vec![7; 1 << 20]] {
        let peer = RawPeer { credentials: None, protocol: b"everstep-enrol/2".to_vec() };
        let raw = peer.connect(coordinator.local_address()).await;
        let connection = raw.connection.as_ref().unwrap();
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let _ = send.write_all(&bytes).await;
        let _ = send.finish();
        let answer = receive.read_to_end(4096).await;
        // A request that is too long gets no answer: the coordinator closes the connection.
        let refused = answer.is_ok_and(|answer| !answer.is_empty());
        assert!(refused || connection.closed().await.to_string().contains("request"));
    }
    enrol(coordinator.local_address(), &token, Role::Worker).await.unwrap();
}
