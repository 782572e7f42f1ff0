//! What an issuer grants and refuses. Malformed bytes upset neither side.

mod golden;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use proptest::prelude::*;

use super::*;
use crate::identity::{
    Application, Credentials, EnrolmentError, JoinToken, NodeKey, RENEWABLE_FOR, TokenLimits,
    renewed,
};

const SESSION: [u8; 32] = [7; 32];
const START: u64 = 1_800_000_000;

fn at(unix_s: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(unix_s))
}

/// Decisions in these tests come at once.
fn now<T>(decision: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(decision)
}

struct Scene {
    authority: Arc<Authority>,
    token: JoinToken,
}

impl Scene {
    fn new() -> Self {
        let authority = Arc::new(Authority::create().unwrap());
        Self { token: JoinToken::create(&authority), authority }
    }

    fn enrolment(&self, limits: TokenLimits) -> Enrolment {
        Enrolment::new(self.authority.clone(), vec![self.token.accepted(limits)])
    }

    /// Another token with this one's id, as if its holder had copied the secret wrongly.
    fn forged(&self) -> JoinToken {
        let (token, other) = (self.token.to_string(), JoinToken::create(&self.authority));
        let other = other.to_string();
        let secret = |text: &str| text.split('.').nth(2).unwrap().to_string();
        token.replace(&secret(&token), &secret(&other)).parse().unwrap()
    }
}

fn request(token: &JoinToken, role: Role) -> Vec<u8> {
    let key = NodeKey::create().unwrap();
    Application::new(token, role, &key).unwrap().request(&SESSION).unwrap()
}

fn admit(enrolment: &Enrolment, request: &[u8], unix_s: u64) -> Result<Identity, Refusal> {
    now(enrolment.admit(&SESSION, request, at(unix_s))).map(|granted| granted.identity)
}

#[test]
fn a_certificate_is_for_the_tokens_role_and_no_other() {
    let scene = Scene::new();
    for admits in Role::ALL {
        let enrolment = scene.enrolment(TokenLimits::unlimited(admits));
        for asked in Role::ALL {
            let answer = admit(&enrolment, &request(&scene.token, asked), START);
            if admits == asked {
                assert_eq!(answer.unwrap().role, admits);
            } else {
                assert_eq!(answer, Err(Refusal::WrongRole { admits, asked }));
            }
        }
    }
}

#[test]
fn an_unknown_token_and_a_wrong_secret_are_told_apart() {
    let scene = Scene::new();
    let enrolment = scene.enrolment(TokenLimits::unlimited(Role::Worker));
    let unknown = request(&JoinToken::create(&scene.authority), Role::Worker);
    assert_eq!(admit(&enrolment, &unknown, START), Err(Refusal::UnknownToken));
    let forged = request(&scene.forged(), Role::Worker);
    assert_eq!(admit(&enrolment, &forged, START), Err(Refusal::WrongSecret));
}

#[test]
fn a_token_expires_to_the_second() {
    let scene = Scene::new();
    let limits =
        TokenLimits { expires_unix_s: Some(START), ..TokenLimits::unlimited(Role::Worker) };
    let enrolment = scene.enrolment(limits);
    let request = request(&scene.token, Role::Worker);
    assert!(admit(&enrolment, &request, START - 1).is_ok());
    let refusal = admit(&enrolment, &request, START).unwrap_err();
    assert_eq!(refusal, Refusal::Expired { unix_s: START });
    assert!(refusal.to_string().contains("Jan 15 08:00:00 2027"), "{refusal}");
}

#[test]
fn a_token_admits_as_many_nodes_as_it_says_and_each_as_often_as_it_asks() {
    let scene = Scene::new();
    let enrolment =
        scene.enrolment(TokenLimits { uses: Some(2), ..TokenLimits::unlimited(Role::Worker) });
    let [first, second, third] = [(); 3].map(|()| request(&scene.token, Role::Worker));
    for request in [&first, &first, &second, &first] {
        assert!(admit(&enrolment, request, START).is_ok());
    }
    assert_eq!(admit(&enrolment, &third, START), Err(Refusal::UsedUp { uses: 2 }));
    assert!(admit(&enrolment, &second, START).is_ok());
}

#[test]
fn a_token_without_uses_admits_nobody() {
    let scene = Scene::new();
    let enrolment =
        scene.enrolment(TokenLimits { uses: Some(0), ..TokenLimits::unlimited(Role::Worker) });
    let request = request(&scene.token, Role::Worker);
    assert_eq!(admit(&enrolment, &request, START), Err(Refusal::UsedUp { uses: 0 }));
}

#[test]
fn only_who_has_the_secret_is_told_what_became_of_a_token() {
    let scene = Scene::new();
    let limits = TokenLimits { role: Role::Operator, uses: Some(0), expires_unix_s: Some(0) };
    let enrolment = scene.enrolment(limits);
    let forged = request(&scene.forged(), Role::Worker);
    assert_eq!(admit(&enrolment, &forged, START), Err(Refusal::WrongSecret));
}

#[test]
fn what_was_judged_may_be_spent_by_another_meanwhile() {
    let scene = Scene::new();
    let mut tokens = AcceptedTokens::default();
    let limits = TokenLimits { uses: Some(1), ..TokenLimits::unlimited(Role::Worker) };
    tokens.accept(scene.token.accepted(limits.clone()));
    let read = || Applicant::read(&SESSION, &request(&scene.token, Role::Worker)).unwrap().0;
    let [one, two] = [read(), read()];
    assert_eq!([&one, &two].map(|node| tokens.judge(node, at(START))), [Ok(()), Ok(())]);
    assert_eq!(tokens.spend(&one.token, &one.identity.name, at(START)), Ok(()));
    let used_up = Err(Refusal::UsedUp { uses: 1 });
    assert_eq!(tokens.spend(&two.token, &two.identity.name, at(START)), used_up);
    tokens.accept(scene.token.accepted(limits)); // again: its uses are not forgotten
    assert_eq!(tokens.judge(&two, at(START)), used_up);
}

#[test]
fn a_proof_is_worth_nothing_in_another_session() {
    let scene = Scene::new();
    let enrolment = scene.enrolment(TokenLimits::unlimited(Role::Worker));
    let request = request(&scene.token, Role::Worker);
    let replayed = now(enrolment.admit(&[8; 32], &request, at(START)));
    assert_eq!(replayed.unwrap_err(), Refusal::WrongSecret);
}

#[test]
fn what_an_issuer_keeps_makes_no_proof() {
    let scene = Scene::new();
    let limits = TokenLimits::unlimited(Role::Worker);
    let kept = rkyv::to_bytes::<Failure>(&scene.token.accepted(limits.clone())).unwrap();
    let enrolment = scene.enrolment(limits);
    let text = scene.token.to_string();
    let parts: Vec<_> = text.split('.').collect();
    for stolen in kept.windows(32) {
        let hashed = crate::identity::sha256(stolen);
        for secret in [stolen, &hashed] {
            let forged = [parts[0], parts[1], &BASE64.encode(secret), parts[3]].join(".");
            assert_ne!(forged, text);
            let request = request(&forged.parse().unwrap(), Role::Worker);
            assert_eq!(admit(&enrolment, &request, START), Err(Refusal::WrongSecret));
        }
    }
}

#[test]
fn every_refusal_says_what_to_do_and_no_date_upsets_it() {
    for unix_s in [0, START, u64::MAX / 2, u64::MAX] {
        let words = Refusal::Expired { unix_s }.to_string();
        assert!(words.contains("Ask for a new one"), "{words}");
    }
}

/// Credentials with a certificate that began at the start, and the answer that renews them an hour
/// later.
fn renewal(scene: &Scene) -> (Credentials, Vec<u8>) {
    let name = crate::protocol::NodeName::parse("operator").unwrap();
    let identity = Identity { role: Role::Operator, name };
    let held = scene.authority.issue_at(at(START), &identity, NODE_LIFETIME).unwrap();
    let enrolment = scene.enrolment(TokenLimits::unlimited(Role::Worker));
    let decision = now(enrolment.renew(&held.chain()[0], at(START + 3600)));
    (held, answer(&decision))
}

#[test]
fn a_renewed_certificate_has_the_name_the_key_and_a_new_life() {
    let (held, answer) = renewal(&Scene::new());
    let newer = renewed(&held, &answer).unwrap();
    assert_eq!((newer.identity(), newer.key()), (held.identity(), held.key()));
    assert_eq!(newer.expires(), at(START + 3600 + NODE_LIFETIME.as_secs()));
    assert_eq!(newer.authority(), held.authority());
}

#[test]
fn credentials_are_due_when_a_third_of_their_life_is_left() {
    let (held, _) = renewal(&Scene::new());
    let life = NODE_LIFETIME.as_secs();
    let due = |elapsed| held.are_due(at(START + elapsed));
    assert!(!due(0) && !due(life * 2 / 3 - 1));
    assert!(due(life * 2 / 3 + 1) && due(life) && due(life * 2));
}

#[test]
fn a_renewal_that_is_not_of_this_node_is_not_taken() {
    let (scene, other) = (Scene::new(), Scene::new());
    let (held, answer) = renewal(&scene);
    let (foreign, foreign_answer) = renewal(&other);
    let (twin, _) = renewal(&scene); // the same name, another key
    for (held, answer) in [(&held, &foreign_answer), (&foreign, &answer), (&twin, &answer)] {
        let taken = renewed(held, answer);
        assert!(matches!(taken, Err(EnrolmentError::Garbled(_))), "{taken:?}");
    }
    let newer = renewed(&held, &answer).unwrap();
    assert!(matches!(renewed(&newer, &answer), Err(EnrolmentError::Garbled(_))));
}

/// Admits nodes with a certificate, and no others.
struct OnlyCertified;

impl Gatekeeper for OnlyCertified {
    fn admit(&self, applicant: Applicant, _now: UnixTime) -> AdmissionDecision {
        let admitted = applicant.is_certified().then_some(()).ok_or(Refusal::UnknownToken);
        Box::pin(std::future::ready(admitted))
    }

    fn renew(&self, _node: Identity, _now: UnixTime) -> AdmissionDecision {
        unreachable!("no node has a link here")
    }
}

#[test]
fn a_certificate_that_has_expired_tells_for_four_weeks_whose_key_it_was() {
    let (scene, other) = (Scene::new(), Scene::new());
    let enrolment = scene.enrolment(TokenLimits::unlimited(Role::Worker));
    let key = NodeKey::create().unwrap();
    let first = Application::new(&scene.token, Role::Worker, &key).unwrap();
    let granted = now(enrolment.admit(&SESSION, &first.request(&SESSION).unwrap(), at(START)));
    let held = first.credentials(&answer(&granted)).unwrap();
    let expired = START + NODE_LIFETIME.as_secs();
    let forgotten = expired + RENEWABLE_FOR.as_secs();

    let by_certificate = Enrolment::decided_by(scene.authority.clone(), OnlyCertified);
    let ask = |held: &Credentials, unix_s| {
        let request = Application::again(&scene.token, held).unwrap().request(&SESSION).unwrap();
        admit(&by_certificate, &request, unix_s)
    };
    for unix_s in [START, expired, forgotten - 1] {
        assert_eq!(ask(&held, unix_s).as_ref(), Ok(held.identity()));
    }
    assert_eq!(ask(&held, forgotten), Err(Refusal::UnknownToken));

    let with = |chain, key| Credentials::new(held.authority().clone(), chain, key).unwrap();
    let (thief, _) = renewal(&scene);
    let stolen = with(vec![held.chain()[0].clone()], thief.key());
    let pair = rcgen::KeyPair::try_from(&held.key()).unwrap();
    let foreign = other.authority.certify(at(START), held.identity(), &pair, NODE_LIFETIME);
    let foreign = with(vec![foreign.unwrap()], held.key());
    let named = Identity { role: Role::Worker, name: thief.identity().name.clone() };
    let misnamed = scene.authority.certify(at(START), &named, &pair, NODE_LIFETIME);
    let misnamed = with(vec![misnamed.unwrap()], held.key());
    for held in [stolen, foreign, misnamed] {
        assert_eq!(ask(&held, START), Err(Refusal::UnknownToken), "{:?}", held.identity());
    }
    let bare = Application::new(&scene.token, Role::Worker, &key).unwrap();
    let bare = bare.request(&SESSION).unwrap();
    assert_eq!(admit(&by_certificate, &bare, START), Err(Refusal::UnknownToken));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_are_a_request(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let enrolment = Scene::new().enrolment(TokenLimits::unlimited(Role::Worker));
        prop_assert_eq!(admit(&enrolment, &bytes, START), Err(Refusal::Garbled));
    }

    #[test]
    fn a_request_with_a_changed_byte_or_cut_short_is_refused(
        at in any::<prop::sample::Index>(),
        flip in 1_u8..,
        cuts in any::<bool>(),
    ) {
        let scene = Scene::new();
        let enrolment = scene.enrolment(TokenLimits::unlimited(Role::Worker));
        let mut request = request(&scene.token, Role::Worker);
        let place = at.index(request.len());
        if cuts {
            request.truncate(place);
        } else {
            request[place] ^= flip;
        }
        prop_assert!(admit(&enrolment, &request, START).is_err());
    }

    #[test]
    fn no_answer_upsets_who_asked(
        noise in prop::collection::vec(any::<u8>(), 0..600),
        at in any::<prop::sample::Index>(),
        flip in 1_u8..,
    ) {
        let scene = Scene::new();
        let (held, mut answer) = renewal(&scene);
        prop_assert!(renewed(&held, &noise).is_err());
        let application = || Application::again(&scene.token, &held).unwrap();
        prop_assert!(application().credentials(&noise).is_err());
        let place = at.index(answer.len());
        answer[place] ^= flip;
        let _ = renewed(&held, &answer);
        let _ = application().credentials(&answer);
    }
}
