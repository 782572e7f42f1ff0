//! A request that failed: the error, and what to do next.

use std::fmt;

use actix_web::http::header::{ALLOW, WWW_AUTHENTICATE};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpResponse, ResponseError};
use everstep_transport::protocol::Verification;
use everstep_transport::protocol::rejection::{Rejection, RejectionKind};
use serde_json::json;

/// The error, in words for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpProblem {
    pub(super) status: StatusCode,
    pub(super) error: String,
    pub(super) next: String,
    /// The paths that exist, if the client asked for another one.
    paths: &'static [(&'static str, &'static str)],
}

impl HttpProblem {
    pub(super) fn new(
        status: StatusCode,
        error: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self { status, error: error.into(), next: next.into(), paths: &[] }
    }

    /// The request makes no sense.
    pub(super) fn bad(error: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, next)
    }

    /// The thing that the client asked for does not exist.
    pub(super) fn absent(error: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error, next)
    }

    /// The cluster has refused the change.
    pub(super) fn rejected(rejection: &Rejection) -> Self {
        let (status, next) = match rejection.kind() {
            RejectionKind::NotFound => {
                (StatusCode::NOT_FOUND, "look at /api/v1/status and the lists for what exists")
            }
            RejectionKind::Conflict => {
                (StatusCode::CONFLICT, "look at /api/v1/status for how the run stands")
            }
            RejectionKind::Invalid => {
                (StatusCode::UNPROCESSABLE_ENTITY, "change the request: it cannot be carried out")
            }
        };
        Self::new(status, rejection.to_string(), next)
    }

    /// The checkpoint to go back to is not known to be whole, and nothing was undone.
    pub(super) fn unverified(state: &Verification) -> Self {
        let (status, why, next) = match state {
            Verification::Damaged(why) => {
                let why = format!("the checkpoint is damaged: {why}");
                (
                    StatusCode::CONFLICT,
                    why,
                    "name another step: `everstep checkpoint ls` lists them",
                )
            }
            Verification::Unread(why) => {
                let why = format!("the checkpoint cannot be read: {why}");
                (StatusCode::SERVICE_UNAVAILABLE, why, "mend what it names, and ask again")
            }
            Verification::NoReader => {
                let why = "no worker is there that could read the checkpoint".into();
                (StatusCode::SERVICE_UNAVAILABLE, why, "start a worker, and ask again")
            }
            _ => {
                let why = "a worker still reads the checkpoint to see whether it is damaged".into();
                (StatusCode::SERVICE_UNAVAILABLE, why, "ask again in a second")
            }
        };
        Self::new(status, why, next)
    }

    /// The coordinator cannot answer now.
    pub(super) fn unready(error: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error, "ask again in a second")
    }

    /// Another coordinator leads, as these words say.
    pub(super) fn elsewhere(words: String) -> Self {
        let next = "ask there, or with ?stale=true for what this one knows, perhaps not the newest";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, words, next)
    }

    /// The cluster has not confirmed in time that this coordinator leads, or that any does.
    /// `reached` of `all` voting coordinators can be reached.
    pub(super) fn unconfirmed(reached: usize, all: usize) -> Self {
        let majority = all / 2 + 1;
        let words = match reached < majority {
            true => format!(
                "{reached} of {all} coordinators can be reached: {} must agree. Training goes on",
                number(majority)
            ),
            false => {
                "the coordinators have not agreed on a leader in time. Training goes on".into()
            }
        };
        let next = "ask again once more of them run, or with ?stale=true for what was known here";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, words, next)
    }

    /// Nothing is at this path. The answer lists the paths that exist.
    pub(super) fn nowhere(path: &str, paths: &'static [(&'static str, &'static str)]) -> Self {
        let absent = Self::absent(format!("there is nothing at {path}"), "ask for one of `paths`");
        Self { paths, ..absent }
    }

    /// The path exists, but does not take this method.
    pub(super) fn method(method: &Method, path: &str) -> Self {
        let error = format!("{path} does not take {method}");
        let next = "use the method in the header `allow`";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, error, next)
    }

    /// The answer, with the methods that the path takes.
    pub(super) fn allowing(&self, methods: &'static str) -> HttpResponse {
        let mut response = self.error_response();
        let methods = actix_web::http::header::HeaderValue::from_static(methods);
        response.headers_mut().insert(ALLOW, methods);
        response
    }
}

impl fmt::Display for HttpProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.error, self.next)
    }
}

impl ResponseError for HttpProblem {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut body = json!({ "error": self.error, "next": self.next });
        if !self.paths.is_empty() {
            body["paths"] = self.paths.iter().map(|(path, _)| *path).collect();
        }
        let mut response = HttpResponse::build(self.status);
        if self.status == StatusCode::UNAUTHORIZED {
            response.insert_header((WWW_AUTHENTICATE, "Bearer"));
        }
        response.json(body)
    }
}

/// A small number in words.
fn number(count: usize) -> String {
    const WORDS: [&str; 10] =
        ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    WORDS.get(count).map_or_else(|| count.to_string(), |word| word.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_majority_it_is_said_how_many_there_are_and_how_many_it_takes() {
        let problem = HttpProblem::unconfirmed(2, 5);
        let words = "2 of 5 coordinators can be reached: three must agree. Training goes on";
        assert_eq!((problem.status.as_u16(), &*problem.error), (503, words));
        assert!(HttpProblem::unconfirmed(3, 5).error.contains("have not agreed on a leader"));
    }
}
