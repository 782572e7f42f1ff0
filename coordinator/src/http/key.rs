//! `Idempotency-Key`: a client's name for a request of its own, so that it can repeat the request.
//!
//! A client that lost an answer does not know whether the cluster agreed to its request. The client
//! may repeat it with the same key, to any coordinator. The cluster carries it out once, and
//! answers as before. It refuses the same key with other content
//! (draft-ietf-httpapi-idempotency-key-header). The log knows requests by a client's number and a
//! request's number. A hash of the key gives both, as if each key were a client that asks once. So
//! the cluster remembers it as long as that of any client: `state/requests.rs`.

use std::future::{Ready, ready};

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::http::header::HeaderMap;
use actix_web::{FromRequest, HttpRequest};
use everstep_transport::identity::{Authority, JoinToken};
use everstep_transport::protocol::RequestId;

use super::problem::HttpProblem;

const NAME: &str = "idempotency-key";
/// A shorter key may be another client's as well. A longer one is not needed.
const LENGTH: std::ops::RangeInclusive<usize> = 16..=128;

/// A digest of the key, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdempotencyKey(Option<[u8; 32]>);

impl IdempotencyKey {
    /// Reads the key in the head of a request.
    fn read(headers: &HeaderMap) -> Result<Self, HttpProblem> {
        let mut told = headers.get_all(NAME);
        match (told.next(), told.next()) {
            (None, _) => Ok(Self(None)),
            (Some(value), None) => Self::parse(value.as_bytes()),
            _ => Err(malformed("is there more than once")),
        }
    }

    /// Parses the key itself, in quotes as the draft has it, or without.
    fn parse(value: &[u8]) -> Result<Self, HttpProblem> {
        let value = value.trim_ascii();
        let quoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        let key = quoted.unwrap_or(value);
        let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        match () {
            () if !key.iter().all(is_plain) => Err(malformed("has a character that it may not")),
            () if !LENGTH.contains(&key.len()) => Err(malformed("is too short or too long")),
            () => Ok(Self(Some(*blake3::hash(key).as_bytes()))),
        }
    }

    /// The request's id in the log. None without a key.
    pub(super) fn id(self) -> Option<RequestId> {
        self.0.map(|digest| {
            let at = |first| u64::from_le_bytes(std::array::from_fn(|byte| digest[first + byte]));
            RequestId { client: at(0), number: at(8) }
        })
    }

    /// A new token. For a request with a key it is always the same.
    pub(super) fn token(self, authority: &Authority, body: &[u8]) -> JoinToken {
        match self.0 {
            None => JoinToken::create(authority),
            Some(key) => JoinToken::derived(authority, &[&key, body].concat()),
        }
    }

    /// Refuses a key for a request that does not go through the log, which would not remember it.
    pub(super) fn must_be_absent(self) -> Result<(), HttpProblem> {
        let next = "leave the header out, and look for the leader before you ask again";
        let error = "this may be done twice, whatever the header `Idempotency-Key` says";
        self.0.map_or(Ok(()), |_| Err(HttpProblem::bad(error, next)))
    }
}

/// A client used the key for another request.
pub(super) fn reused() -> HttpProblem {
    let error = "another request was made with this `Idempotency-Key`, and this one is not done";
    let next = "draw a new key for each request, and keep it only to say the same once more";
    HttpProblem::new(StatusCode::UNPROCESSABLE_ENTITY, error, next)
}

fn malformed(what: &str) -> HttpProblem {
    let next = "send 16 to 128 visible ASCII characters, none of them a quote or a backslash: a \
                UUID, say, in quotes or not";
    HttpProblem::bad(format!("the header `Idempotency-Key` {what}"), next)
}

impl FromRequest for IdempotencyKey {
    type Error = HttpProblem;
    type Future = Ready<Result<Self, HttpProblem>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Self::read(request.headers()))
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    const UUID: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

    fn read(values: &[&str]) -> Result<IdempotencyKey, u16> {
        let mut map = HeaderMap::new();
        for value in values {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
            map.append(HeaderName::from_static(NAME), value);
        }
        IdempotencyKey::read(&map).map_err(|problem| problem.status.as_u16())
    }

    #[test]
    fn a_key_is_the_same_in_quotes_and_without_and_another_is_another() {
        let key = read(&[UUID]).expect("a key");
        assert_eq!(read(&[&format!(" \"{UUID}\" ")]), Ok(key));
        let id = key.id().expect("it has one");
        let other = read(&[&UUID.replace('8', "9")]).expect("a key").id().expect("it has one");
        assert!(id.client != other.client && id.number != other.number);
        assert_eq!(read(&[]).map(IdempotencyKey::id), Ok(None));
        assert!(read(&["k".repeat(16).as_str()]).is_ok() && read(&[&"k".repeat(128)]).is_ok());
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let (short, long) = ("k".repeat(15), "k".repeat(129));
        let half = format!("\"{UUID}");
        let more = format!("\"{UUID}\";a=1");
        let spaced = format!("{UUID} {UUID}");
        let escaped = format!("{UUID}\\n");
        let wide = format!("{UUID}ü");
        for value in ["", "\"\"", &short, &long, &half, &more, &spaced, &escaped, &wide] {
            assert_eq!(read(&[value]), Err(400), "{value:?}");
        }
        assert_eq!(read(&[UUID, UUID]), Err(400));
    }

    #[test]
    fn the_token_of_a_key_is_made_of_the_body_too() {
        let authority = Authority::create().expect("an authority");
        let (key, none) = (read(&[UUID]).expect("a key"), IdempotencyKey(None));
        let made = |key: IdempotencyKey, body: &[u8]| key.token(&authority, body).to_string();
        assert_eq!(made(key, b"{}"), made(key, b"{}"));
        let other = read(&[&UUID.replace('8', "9")]).expect("a key");
        for (left, right) in [(key, other), (none, none), (key, none)] {
            assert_ne!(made(left, b"{}"), made(right, b"{}"));
        }
        assert_ne!(made(key, b"{}"), made(key, b"{ }"));
        let stranger = Authority::create().expect("an authority");
        assert_ne!(key.token(&stranger, b"{}").id(), key.token(&authority, b"{}").id());
    }
}
