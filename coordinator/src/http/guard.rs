//! Which requests are allowed: a pure function of a request's head.
//!
//! On loopback any user of this machine may read, and a change takes the token. A web page in this
//! machine's browser gets nothing: its name for this address is not ours. So the guard refuses a
//! host name that the page has made to point here, and the API lets no other origin in. On any
//! other address reading needs a token, too: the one for changes, or another one that only allows
//! reading. A liveness probe needs none anywhere, because it tells only that the process answers.

use actix_web::http::header::{AUTHORIZATION, HOST, HeaderMap};
use actix_web::http::{Method, StatusCode};

use super::problem::HttpProblem;
use super::token::Token;

/// The conditions for a request.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    pub(super) token: Token,
    /// Whether the operator named the file of the token. Then reading needs it, too.
    pub(super) for_everything: bool,
    /// A token that allows reading alone. With it, reading needs either token.
    pub(super) read_token: Option<Token>,
    /// Whether only this machine can reach the listening address.
    pub(super) loopback: bool,
}

impl Guard {
    /// Whether a request with this head may be answered.
    pub(super) fn permit(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), HttpProblem> {
        let mut hosts = headers.get_all(HOST);
        if self.loopback && !hosts.all(|host| host.to_str().is_ok_and(is_this_machine)) {
            let error = "this address is not answered under the name in the header `host`";
            let next = "ask for http://127.0.0.1 or http://localhost, with the same port";
            return Err(HttpProblem::new(StatusCode::FORBIDDEN, error, next));
        }
        let reads = matches!(*method, Method::GET | Method::HEAD);
        let is_open = !self.for_everything && self.read_token.is_none();
        if reads && (is_open || path == "/livez") {
            return Ok(());
        }
        let for_reading = |shown: &[u8]| self.read_token.as_ref().is_some_and(|it| it.is(shown));
        let mut shown = headers.get_all(AUTHORIZATION);
        match (shown.next().map(|value| bearer(value.as_bytes())), shown.next()) {
            (Some(Some(token)), None) if self.token.is(token) => Ok(()),
            (Some(Some(token)), None) if for_reading(token) && reads => Ok(()),
            (Some(Some(token)), None) if for_reading(token) => {
                let error = "the token is for reading only, and this changes something";
                Err(HttpProblem::new(StatusCode::FORBIDDEN, error, self.advice(false)))
            }
            (None, _) => Err(self.unauthorised("it needs a token", reads)),
            _ => Err(self.unauthorised("the token is not the one of this coordinator", reads)),
        }
    }

    fn unauthorised(&self, error: &str, reads: bool) -> HttpProblem {
        HttpProblem::new(StatusCode::UNAUTHORIZED, error, self.advice(reads))
    }

    fn advice(&self, reads: bool) -> String {
        let file = match (reads && self.read_token.is_some(), self.for_everything) {
            (true, _) => "it is in the file that `--http-read-token` names",
            (false, true) => "it is in the file that `--http-token` names",
            (false, false) => "it is in the file `api.token` in the coordinator's directory",
        };
        format!("send the header `Authorization: Bearer TOKEN`: {file}")
    }
}

/// The token in the value of an `Authorization` header.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// Whether a host, with or without a port, is a name of this machine that nothing else can take.
fn is_this_machine(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, ""),
    };
    let loopback = name.eq_ignore_ascii_case("localhost")
        || name == "[::1]"
        || name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback());
    loopback && port.bytes().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn guard(loopback: bool, for_everything: bool) -> Guard {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        std::fs::write(&path, SECRET).expect("written");
        let token = Token::read(&path).expect("a token");
        Guard { token, for_everything, read_token: None, loopback }
    }

    fn status(guard: &Guard, method: Method, headers: &[(HeaderName, &str)]) -> u16 {
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).expect("a value");
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, text)| map.append(name.clone(), value(text)));
        guard
            .permit(&method, "/api/v1/status", &map)
            .map_or_else(|problem| problem.status.as_u16(), |()| 200)
    }

    #[test]
    fn on_loopback_only_names_of_this_machine_are_answered() {
        let guard = guard(true, false);
        for host in
            ["127.0.0.1:40002", "localhost:1", "LocalHost", "[::1]:80", "[::1]", "127.9.9.9"]
        {
            assert_eq!(status(&guard, Method::GET, &[(HOST, host)]), 200, "{host}");
        }
        for host in
            ["evil.example:40002", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1:x", "::1"]
        {
            assert_eq!(status(&guard, Method::GET, &[(HOST, host)]), 403, "{host}");
        }
        let two = [(HOST, "localhost"), (HOST, "evil.example")];
        assert_eq!(status(&guard, Method::GET, &two), 403);
    }

    #[test]
    fn whoever_changes_something_shows_the_token_and_whoever_reads_need_not() {
        let guard = guard(true, false);
        let right = format!("Bearer {SECRET}");
        let small = format!("bearer  {SECRET} ");
        let longer = format!("Bearer {SECRET}0");
        assert_eq!(status(&guard, Method::GET, &[]), 200);
        assert_eq!(status(&guard, Method::HEAD, &[]), 200);
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert_eq!(status(&guard, method.clone(), &[]), 401);
            for shown in [&right, &small] {
                assert_eq!(status(&guard, method.clone(), &[(AUTHORIZATION, shown)]), 200);
            }
            for shown in ["", "Bearer", "Bearer ", SECRET, &longer, "Basic abc", "Bearer x"] {
                let shown = [(AUTHORIZATION, shown)];
                assert_eq!(status(&guard, method.clone(), &shown), 401, "{shown:?}");
            }
            let twice = [(AUTHORIZATION, &*right), (AUTHORIZATION, &*right)];
            assert_eq!(status(&guard, method.clone(), &twice), 401);
        }
    }

    #[test]
    fn beyond_this_machine_reading_needs_the_token_too_and_any_name_will_do() {
        let guard = guard(false, true);
        let right = format!("Bearer {SECRET}");
        let host = (HOST, "coordinator.example:8080");
        let shown = [host, (AUTHORIZATION, &right)];
        assert_eq!(status(&guard, Method::GET, &shown[..1]), 401);
        assert_eq!(status(&guard, Method::GET, &shown), 200);
    }

    #[test]
    fn a_token_for_reading_reads_and_changes_nothing() {
        const READER: &str = "a-token-for-prometheus-and-no-one-else";
        for for_everything in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("reader");
            std::fs::write(&path, READER).expect("written");
            let read_token = Some(Token::read(&path).expect("a token"));
            let guard = Guard { read_token, ..guard(false, for_everything) };
            let (reads, changes) = (format!("Bearer {READER}"), format!("Bearer {SECRET}"));
            for (method, shown, expected) in [
                (Method::GET, None, 401),
                (Method::GET, Some(&reads), 200),
                (Method::GET, Some(&changes), 200),
                (Method::POST, None, 401),
                (Method::POST, Some(&reads), 403),
                (Method::DELETE, Some(&reads), 403),
                (Method::POST, Some(&changes), 200),
            ] {
                let shown: Vec<_> = shown.iter().map(|it| (AUTHORIZATION, it.as_str())).collect();
                assert_eq!(status(&guard, method.clone(), &shown), expected, "{method} {shown:?}");
            }
        }
    }

    #[test]
    fn a_liveness_probe_needs_no_token() {
        let guard = guard(false, true);
        let answer = |path| guard.permit(&Method::GET, path, &HeaderMap::new()).is_ok();
        assert_eq!(["/livez", "/livezz", "/readyz", "/"].map(answer), [true, false, false, false]);
        assert!(guard.permit(&Method::POST, "/livez", &HeaderMap::new()).is_err());
    }
}
