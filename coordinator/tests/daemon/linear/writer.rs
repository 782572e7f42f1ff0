//! Clients that have tokens made and revoked, and runs submitted and cancelled. Each repeats its
//! request until an answer comes, to one coordinator after the other.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use everstep_transport::identity::{AcceptedToken, JoinToken, Role, TokenLimits};
use everstep_transport::protocol::{Message, OperatorCommand, RequestId, exemplars};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::judge::Action;
use super::{Client, LINEAR_TEST_TIMEOUT, RUN, TOKENS, id_of, name_of};
use crate::client::try_look;
use crate::client::{Request, try_ask};

/// How long a writer waits for one coordinator.
const WRITER_ANSWER_TIMEOUT: Duration = Duration::from_millis(400);
/// The pause before it asks another coordinator.
const WRITER_RETRY_BACKOFF: Duration = Duration::from_millis(5);
/// The request for a token over HTTP.
const WANTED: &str = r#"{"role": "worker"}"#;

fn token(key: u8) -> AcceptedToken {
    let zeros = "A".repeat(43); // 32 bytes
    let token: JoinToken = format!("es1.{}.{zeros}.{zeros}", name_of(key)).parse().expect("one");
    token.accepted(TokenLimits::unlimited(Role::Worker))
}

impl Client {
    /// Writes the shared tokens, over links.
    pub(super) async fn write(mut self) {
        let (mut number, mut place) = (0, self.number as usize % 3);
        while !self.record.is_over() {
            number += 1;
            let key = (self.number + number * 5) as u8 % TOKENS;
            let there = !(self.number + number / 3).is_multiple_of(2);
            let command = match there {
                true => OperatorCommand::CreateToken(token(key)),
                false => OperatorCommand::RevokeToken(id_of(key)),
            };
            let id = RequestId { client: self.number, number };
            let called = self.record.now();
            let refusal = loop {
                let request = Message::Request { id, command: command.clone() };
                match self.ask(place, request, WRITER_ANSWER_TIMEOUT).await {
                    Some(Message::Answer { id: answered, refusal, .. }) if answered == id => {
                        break Some(refusal);
                    }
                    // The change may have happened, or may happen yet.
                    _ if self.record.is_over() => break None,
                    _ => place = (place + 1) % 3,
                }
                sleep(WRITER_RETRY_BACKOFF).await;
            };
            let answered = refusal.as_ref().map(|_| self.record.now());
            let action = match (refusal, there) {
                (Some(Some(_)), _) => Action::Read(false), // it cannot be revoked
                (Some(None), false) => Action::Swap(true, false),
                _ => Action::Write(there),
            };
            self.record.note(&name_of(key), action, called, answered);
        }
    }

    /// Writes over HTTP: shared tokens, one token of its own in each round, and whether a run is
    /// under way.
    pub(super) async fn write_api(self) {
        let (mut number, mut place, mut made) = (0, self.number as usize % 3, 0);
        while !self.record.is_over() {
            number += 1;
            let round = self.record.round.load(Ordering::Relaxed);
            match number % 3 {
                0 => {
                    let name = name_of((self.number + number) as u8 % TOKENS);
                    self.revoke(&mut place, number, &name).await;
                }
                1 if made < round => {
                    made = round;
                    let name = self.make(&mut place, number).await;
                    number += 1;
                    self.revoke(&mut place, number, &name).await;
                }
                _ => self.write_run(&mut place, number).await,
            }
        }
    }

    /// Has a token of its own made. Returns the token's name.
    async fn make(&self, place: &mut usize, number: u64) -> String {
        let called = self.record.now();
        let (status, answer) = self.insist(place, number, "POST", "/api/v1/tokens", WANTED).await;
        assert_eq!(status, 201, "{answer}");
        let name = answer["id"].as_str().expect("text").to_string();
        self.record.note(&name, Action::Swap(false, true), called, Some(self.record.now()));
        name
    }

    async fn revoke(&self, place: &mut usize, number: u64, name: &str) {
        let (path, called) = (format!("/api/v1/tokens/{name}"), self.record.now());
        let (status, answer) = self.insist(place, number, "DELETE", &path, "").await;
        let action = match status {
            200 => Action::Swap(true, false),
            404 => Action::Read(false),
            _ => panic!("{status}: {answer}"),
        };
        self.record.note(name, action, called, Some(self.record.now()));
    }

    /// Submits a run, or cancels the one under way.
    async fn write_run(&self, place: &mut usize, number: u64) {
        let submits = (self.number + number / 3).is_multiple_of(2);
        let newest = if submits { None } else { self.newest_run(*place).await };
        let called = self.record.now();
        let (status, answer) = if submits {
            let mut run = serde_json::to_value(exemplars::run()).expect("plain data");
            run["name"] = format!("run-{}-{number}", self.number).into();
            self.insist(place, number, "POST", "/api/v1/run", &run.to_string()).await
        } else {
            let Some(run) = newest else { return *place = (*place + 1) % 3 };
            let body = format!("{{\"run\": {run}}}");
            self.insist(place, number, "POST", "/api/v1/run/cancel", &body).await
        };
        let is_another = answer["error"].as_str().is_some_and(|it| it.ends_with("the current one"));
        let action = match status {
            200 | 201 => Action::Swap(!submits, submits),
            404 if is_another => Action::Read(true),
            409 => Action::Read(submits),
            _ => panic!("{status}: {answer}"),
        };
        self.record.note(RUN, action, called, Some(self.record.now()));
    }

    /// The id of the newest run, under way or over.
    async fn newest_run(&self, place: usize) -> Option<u64> {
        let told = timeout(
            WRITER_ANSWER_TIMEOUT,
            try_look(self.place(place).api, "/api/v1/runs?stale=true"),
        )
        .await;
        told.ok()??.json()["runs"].as_array()?.last()?["id"].as_u64()
    }

    /// Repeats a request, under one key, until a coordinator has an answer.
    async fn insist(
        &self,
        place: &mut usize,
        number: u64,
        method: &str,
        path: &str,
        body: &str,
    ) -> (u16, Value) {
        let (key, start) = (format!("client-{:04}-{number:08}", self.number), Instant::now());
        loop {
            let there = self.place(*place);
            let headers = [("authorization", &*there.bearer), ("idempotency-key", &*key)];
            let request = Request { method, path, headers: &headers, body };
            match timeout(WRITER_ANSWER_TIMEOUT, try_ask(there.api, request)).await {
                Ok(Some(answer)) if ![503, 504].contains(&answer.status) => {
                    return (answer.status, answer.json());
                }
                // The change may have happened, or may happen yet.
                _ => *place = (*place + 1) % 3,
            }
            assert!(start.elapsed() < LINEAR_TEST_TIMEOUT, "no answer to {method} {path}");
            sleep(WRITER_RETRY_BACKOFF).await;
        }
    }
}
