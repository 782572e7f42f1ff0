//! Identities, credentials on disk, and join tokens.

use std::os::unix::fs::PermissionsExt;

use everstep_transport::identity::{
    Authority, Credentials, Identity, IdentityError, JoinToken, NODE_LIFETIME, Role, TokenError,
    TokenLimits,
};
use proptest::prelude::*;

use crate::support::name;

fn worker() -> Identity {
    Identity { role: Role::Worker, name: name("worker-1") }
}

#[test]
fn a_certificate_states_the_identity_it_was_issued_for() {
    let authority = Authority::create().unwrap();
    for role in [Role::Coordinator, Role::Worker, Role::Operator] {
        let identity = Identity { role, name: name("node-7") };
        let credentials = authority.issue(&identity, NODE_LIFETIME).unwrap();
        assert_eq!(Identity::of(&credentials.chain()[0]).unwrap(), identity);
        assert_eq!(*credentials.identity(), identity);
    }
}

#[test]
fn an_authority_states_no_identity() {
    let authority = Authority::create().unwrap();
    let error = Identity::of(authority.certificate()).unwrap_err();
    assert!(matches!(error, IdentityError::Malformed(_)));
}

#[test]
fn only_an_exact_uri_is_an_identity() {
    assert_eq!(Identity::parse("everstep://worker/worker-1"), Some(worker()));
    let wrong = [
        "",
        "worker/a",
        "everstep://worker",
        "everstep://king/a",
        "everstep://worker/",
        "everstep://worker/A",
        "everstep://worker/a/b",
        "everstep://Worker/a",
        "http://worker/a",
    ];
    for uri in wrong {
        assert_eq!(Identity::parse(uri), None, "{uri}");
    }
}

#[test]
fn an_authority_survives_the_disk_and_hides_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create().unwrap();
    authority.save(dir.path()).unwrap();
    authority.save(dir.path()).unwrap(); // again, over the first
    let mode = dir.path().join("authority.key").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let loaded = Authority::load(dir.path()).unwrap();
    assert_eq!(loaded.certificate(), authority.certificate());
    let (before, after) = (JoinToken::create(&authority), JoinToken::create(&loaded));
    let pin = |token: &JoinToken| token.to_string().rsplit('.').next().unwrap().to_string();
    assert_eq!(pin(&before), pin(&after));
    loaded.issue(&worker(), NODE_LIFETIME).unwrap();
}

#[test]
fn an_authority_with_the_key_of_another_is_refused() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Authority::create().unwrap().save(ours.path()).unwrap();
    Authority::create().unwrap().save(theirs.path()).unwrap();
    let key = |dir: &tempfile::TempDir| dir.path().join("authority.key");
    std::fs::copy(key(&theirs), key(&ours)).unwrap();
    assert!(matches!(Authority::load(ours.path()), Err(IdentityError::Malformed(_))));
}

#[test]
fn credentials_survive_the_disk_and_hide_their_key() {
    let dir = tempfile::tempdir().unwrap();
    let credentials = Authority::create().unwrap().issue(&worker(), NODE_LIFETIME).unwrap();
    credentials.save(dir.path()).unwrap();
    let mode = dir.path().join("node.key").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let loaded = Credentials::load(dir.path()).unwrap();
    assert_eq!(loaded.chain(), credentials.chain());
    assert_eq!(loaded.key(), credentials.key());
    assert_eq!(*loaded.identity(), worker());
}

#[test]
fn missing_or_garbled_files_are_errors_that_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let error = Credentials::load(dir.path()).unwrap_err();
    assert!(error.to_string().contains("authority.pem"), "{error}");
    std::fs::write(dir.path().join("authority.pem"), "no certificate").unwrap();
    let error = Credentials::load(dir.path()).unwrap_err();
    assert!(error.to_string().contains("authority.pem"), "{error}");
}

#[test]
fn a_token_is_read_as_it_was_written() {
    let token = JoinToken::create(&Authority::create().unwrap());
    assert_eq!(format!(" {token}\n").parse(), Ok(token.clone()));
    assert!(token.to_string().starts_with("es1."));
}

#[test]
fn a_token_never_shows_its_secret_to_a_log() {
    let token = JoinToken::create(&Authority::create().unwrap());
    let text = token.to_string();
    let secret = text.split('.').nth(2).unwrap();
    let accepted = token.accepted(TokenLimits::unlimited(Role::Worker));
    assert!(!format!("{token:?} {accepted:?}").contains(secret));
}

#[test]
fn a_garbled_token_says_what_is_wrong_with_it() {
    let text = JoinToken::create(&Authority::create().unwrap()).to_string();
    let parts: Vec<_> = text.split('.').collect();
    let with = |at: usize, part: &str| {
        let mut parts = parts.clone();
        parts[at] = part;
        parts.join(".").parse::<JoinToken>()
    };
    assert_eq!("".parse::<JoinToken>(), Err(TokenError::Foreign));
    assert_eq!(with(0, "es2"), Err(TokenError::Foreign));
    assert_eq!(parts[..3].join(".").parse::<JoinToken>(), Err(TokenError::Parts(3)));
    assert_eq!(with(1, "!"), Err(TokenError::Garbled("id")));
    assert_eq!(with(2, "AAAA"), Err(TokenError::Garbled("secret")));
    assert_eq!(with(3, &parts[3][1..]), Err(TokenError::Garbled("pin")));
}

proptest! {
    #[test]
    fn no_text_makes_the_token_parser_panic(text in "(es1)?[.A-Za-z0-9_-]{0,120}") {
        let _ = text.parse::<JoinToken>();
    }

    #[test]
    fn no_bytes_make_the_certificate_reader_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..512),
    ) {
        prop_assert!(Identity::of(&bytes.into()).is_err());
    }
}
